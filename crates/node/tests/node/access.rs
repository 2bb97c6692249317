//! Access control: tokens over MQTT and HTTP, topics of answers, `auth` of http triggers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD as BASE64URL};
use edgefaas_node::access::JwtSection;
use edgefaas_node::config::NodeConfig;
use edgefaas_node::{Clock, Platform};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use ring::hmac;
use rumqttc::v5::mqttbytes::v5::{PubAckReason, PublishProperties};
use rumqttc::v5::{Event, Incoming};
use serde_json::json;

use crate::support::{Mqtt5, TestNode, in_time, json, text};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";
/// Time at which the tokens of the tests are issued.
const NOW: u64 = 1_800_000_000;

fn hs256(claims: &serde_json::Value) -> String {
    let part = |text: &str| BASE64URL.encode(text);
    let signed = format!("{}.{}", part(r#"{"alg":"HS256","typ":"JWT"}"#), part(&claims.to_string()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
    format!("{signed}.{}", BASE64URL.encode(hmac::sign(&key, signed.as_bytes())))
}

/// Configures HS256 tokens.
fn with_secret(config: &mut NodeConfig) {
    let secret = config.data_dir.join("jwt-secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    config.access.jwt = Some(JwtSection { secret: Some(secret), ..JwtSection::default() });
}

fn with_acl(config: &mut NodeConfig, rules: &str) {
    let acl = config.data_dir.join("acl.toml");
    std::fs::write(&acl, rules).unwrap();
    config.access.acl = Some(acl);
}

/// A clock that a test moves.
fn platform() -> (Platform, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(NOW * 1000));
    let read = now.clone();
    (Platform { clock: Clock::new(move || read.load(Ordering::SeqCst)), ..Platform::system() }, now)
}

async fn bearing(node: &TestNode, path: &str, token: Option<&str>) -> Response<bytes::Bytes> {
    let mut request = Request::get(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    node.send(request.body(Full::default()).unwrap()).await
}

#[tokio::test]
async fn a_token_is_a_user_until_it_expires() {
    let (platform, now) = platform();
    let dir = tempfile::tempdir().unwrap();
    let node = TestNode::start_on(platform, dir, |config| {
        with_secret(config);
        config.access.allow_anonymous = Some(false);
        with_acl(config, "[[allow]]\nuser = \"*\"\npublish = [\"users/%u\"]\nsubscribe = [\"users/%u\"]\n");
    })
    .await
    .unwrap();
    let token = hs256(&json!({"sub": "ada", "exp": NOW + 600}));
    let mut client = Mqtt5::connect_with(&node, "c", |options| {
        options.set_credentials("", token);
    })
    .await;
    client.subscribe("users/ada").await;
    client.publish("users/bob", "x").await;
    assert_eq!(client.puback().await, PubAckReason::NotAuthorized);
    client.publish("users/ada", "mine").await;
    assert_eq!(client.message().await.payload, "mine");

    now.store((NOW + 3600) * 1000, Ordering::SeqCst);
    in_time(async { while client.events.poll().await.is_ok() {} }).await;
    let mut options = rumqttc::v5::MqttOptions::new("d", "127.0.0.1", node.addresses.mqtt.port());
    options.set_credentials("ada", hs256(&json!({"sub": "ada", "exp": NOW + 600})));
    let (_client, mut events) = rumqttc::v5::AsyncClient::new(options, 10);
    let error = in_time(events.poll()).await.unwrap_err().to_string();
    assert!(error.contains("BadUserNamePassword"), "{error}");
}

#[tokio::test]
async fn a_will_on_a_topic_of_the_node_is_refused() {
    use rumqttc::v5::mqttbytes::{QoS, v5::LastWill};
    let node = TestNode::start().await;
    let will = |topic: &str| LastWill::new(topic, "gone", QoS::AtLeastOnce, false, None);
    for topic in ["$SYS/broker/uptime", "$faas/dead/f", "$faas/events/x"] {
        let mut options = rumqttc::v5::MqttOptions::new("c", "127.0.0.1", node.addresses.mqtt.port());
        options.set_last_will(will(topic));
        let (_client, mut events) = rumqttc::v5::AsyncClient::new(options, 10);
        let error = in_time(events.poll()).await.unwrap_err().to_string();
        assert!(error.contains("NotAuthorized"), "{topic}: {error}");
    }
    for topic in ["gone", "$faas/fn/f/invoke"] {
        Mqtt5::connect_with(&node, "c", |options| {
            options.set_last_will(will(topic));
        })
        .await;
    }
}

#[tokio::test]
async fn http_triggers_define_the_required_credentials() {
    let (platform, _now) = platform();
    let dir = tempfile::tempdir().unwrap();
    let mut node = TestNode::start_on(platform, dir, |config| {
        with_secret(config);
        with_acl(config, "[[allow]]\nuser = \"ada\"\npublish = [\"$faas/fn/f/invoke\"]\n");
    })
    .await
    .unwrap();
    let triggers = r#"triggers = [
        { http = "/open", auth = "none" },
        { http = "/jwt", auth = "jwt" },
        { http = "/token", auth = "token" },
    ]"#;
    let source = "export default (event) => event.headers.get('authorization') ?? 'none'";
    node.deploy_one("f", triggers, source).await;
    node.deploy_one("g", "triggers = [{ http = \"/g\", auth = \"jwt\" }]", source).await;
    node.deploy_one("h", "", source).await;
    let http_token = std::fs::read_to_string(node.dir.path().join("http-token")).unwrap();
    let (own, admin) = (http_token.trim(), node.token.as_str());
    let ada = hs256(&json!({"sub": "ada", "exp": NOW + 600}));
    let bob = hs256(&json!({"sub": "bob", "exp": NOW + 600}));
    let old = hs256(&json!({"sub": "ada", "exp": NOW - 600}));
    let (yes, no, never) = (StatusCode::OK, StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN);
    for (path, token, status) in [
        ("/open", None, yes),
        ("/open", Some("anything"), yes),
        ("/jwt", None, no),
        ("/jwt", Some(ada.as_str()), yes),
        ("/jwt", Some(&bob), never),
        ("/jwt", Some(&old), no),
        ("/jwt", Some("nonsense"), no),
        ("/jwt", Some(own), yes),
        ("/token", None, no),
        ("/token", Some(&ada), no),
        ("/token", Some(own), yes),
        ("/token", Some(admin), yes),
        // A call by name needs the credentials of the strictest trigger.
        ("/fn/f", None, no),
        ("/fn/f", Some(&ada), no),
        ("/fn/f", Some(own), yes),
        ("/fn/g", None, no),
        ("/fn/g", Some(&ada), never),
        ("/fn/h", None, yes),
        ("/fn/nobody", None, StatusCode::NOT_FOUND),
    ] {
        let response = bearing(&node, path, token).await;
        assert_eq!(response.status(), status, "{path} {token:?}: {}", text(&response));
        if status == no {
            assert_eq!(response.headers()["content-type"], "application/problem+json");
            let challenge = response.headers()["www-authenticate"].to_str().unwrap();
            assert!(challenge.starts_with("Bearer realm=\"edgefaas\""), "{challenge}");
            assert_eq!(challenge.contains("invalid_token"), token.is_some(), "{challenge}");
            assert_eq!(json(&response)["status"], 401);
        }
    }
    // Functions do not see tokens of the node; they see other tokens.
    assert_eq!(text(&bearing(&node, "/token", Some(admin)).await), "none");
    assert_eq!(text(&bearing(&node, "/open", Some(own)).await), "none");
    assert_eq!(text(&bearing(&node, "/open", Some("mine")).await), "Bearer mine");
}

#[tokio::test]
async fn an_idempotency_key_belongs_to_its_caller() {
    let (platform, _now) = platform();
    let dir = tempfile::tempdir().unwrap();
    let mut node = TestNode::start_on(platform, dir, with_secret).await.unwrap();
    let triggers = r#"triggers = [
        { http = "/jwt", auth = "jwt", methods = ["POST"] },
        { http = "/open", auth = "none", methods = ["POST"] },
    ]"#;
    let source = "let n = 0; export default (event) => Math.random().toString()";
    node.deploy_one("f", triggers, source).await;
    let ada = hs256(&json!({"sub": "ada", "exp": NOW + 600}));
    let ada_later = hs256(&json!({"sub": "ada", "exp": NOW + 700}));
    let bob = hs256(&json!({"sub": "bob", "exp": NOW + 600}));
    let ask = async |path: &str, token: Option<&str>| {
        let mut request = Request::post(path).header("idempotency-key", "order-1");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let response = node.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK, "{}", text(&response));
        text(&response).to_owned()
    };
    let first = ask("/jwt", Some(&ada)).await;
    assert_eq!(ask("/jwt", Some(&ada_later)).await, first, "the user counts, not the token");
    assert_ne!(ask("/jwt", Some(&bob)).await, first);
    let operator = ask("/open", Some(&node.token)).await;
    let anyone = ask("/open", None).await;
    assert_ne!(operator, anyone);
    assert_eq!(ask("/open", None).await, anyone);
    assert_eq!(ask("/open", Some(&node.token)).await, operator);
    // A credential that only the function checks identifies the caller too.
    let shown = ask("/open", Some("session-1")).await;
    assert_ne!(shown, anyone);
    assert_ne!(ask("/open", Some("session-2")).await, shown);
}

#[tokio::test]
async fn functions_see_no_form_of_a_token_of_the_node() {
    let mut node = TestNode::start().await;
    let source = "export default (event) => event.headers.get('authorization') ?? 'none'";
    node.deploy_one("f", "triggers = [{ http = \"/open\", auth = \"none\" }]", source).await;
    let ask = async |values: &[String]| {
        let mut request = Request::get("/open");
        for value in values {
            request = request.header("authorization", value);
        }
        let response = node.send(request.body(Full::default()).unwrap()).await;
        (response.status().as_u16(), text(&response).to_owned())
    };
    let token = &node.token;
    for value in [
        format!("Bearer {token}"),
        format!("bearer\t {token}"),
        format!("Basic {}", BASE64.encode(format!("node:{token}"))),
        format!("Basic {}", BASE64.encode(format!("node:{token}")).trim_end_matches('=')),
        format!("Basic {}", BASE64URL.encode(format!("\u{fb}\u{ff}:{token}"))),
        format!("token:{token}"),
        format!("({token})"),
        format!("x{token}x"),
        token.clone(),
        format!("Basic x, Bearer {token}"),
    ] {
        assert_eq!(ask(std::slice::from_ref(&value)).await, (200, "none".into()), "{value}");
    }
    assert_eq!(ask(&["Basic x".into()]).await, (200, "Basic x".into()));
    for values in
        [["Basic x".into(), format!("Bearer {token}")], [format!("Bearer {token}"), "Basic x".into()]]
    {
        let (status, body) = ask(&values).await;
        assert_eq!(status, 400, "{body}");
        assert!(!body.contains(token.as_str()));
    }
    // Of the proxies before the node.
    let source = "export default (event) => event.headers.get('proxy-authorization') ?? 'none'";
    node.deploy_one("g", "triggers = [{ http = \"/proxied\", auth = \"none\" }]", source).await;
    let request = Request::get("/proxied").header("proxy-authorization", "Basic x");
    let response = node.send(request.body(Full::default()).unwrap()).await;
    assert_eq!((response.status().as_u16(), text(&response)), (200, "none"));
}

/// A key pair and a token, by openssl.
fn openssl(dir: &Path, key: &[&str], sign: impl Fn(&mut Command), header: &str) -> (String, String) {
    let run = |command: &mut Command| {
        let output = command.current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(Command::new("openssl").arg("genpkey").args(key).args(["-out", "key.pem"]));
    let public = run(Command::new("openssl").args(["pkey", "-in", "key.pem", "-pubout"]));
    let claims = json!({"sub": "ada", "exp": NOW + 600, "aud": ["greenhouse"], "iss": "https://login"});
    let signed = format!("{}.{}", BASE64URL.encode(header), BASE64URL.encode(claims.to_string()));
    std::fs::write(dir.join("signed"), &signed).unwrap();
    let mut command = Command::new("openssl");
    sign(&mut command);
    let signature = run(&mut command);
    (String::from_utf8(public).unwrap(), format!("{signed}.{}", BASE64URL.encode(signature)))
}

#[tokio::test]
async fn tokens_signed_by_openssl_are_accepted() {
    if !Command::new("openssl").arg("version").output().is_ok_and(|output| output.status.success()) {
        println!("skipped: needs openssl");
        assert!(std::env::var_os("EDGEFAAS_NO_SKIP").is_none(), "needs openssl");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (rsa, rs256) = openssl(
        dir.path(),
        &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"],
        |command| {
            command.args(["dgst", "-sha256", "-sign", "key.pem", "signed"]);
        },
        r#"{"alg":"RS256"}"#,
    );
    let (ed25519, eddsa) = openssl(
        dir.path(),
        &["-algorithm", "ED25519"],
        |command| {
            command.args(["pkeyutl", "-sign", "-rawin", "-inkey", "key.pem", "-in", "signed"]);
        },
        r#"{"alg":"EdDSA"}"#,
    );
    let (platform, _now) = platform();
    let mut node = TestNode::start_on(platform, tempfile::tempdir().unwrap(), |config| {
        let keys = config.data_dir.join("issuers.pem");
        std::fs::write(&keys, rsa + &ed25519).unwrap();
        config.access.jwt = Some(JwtSection {
            public_key: Some(keys),
            issuer: Some("https://login".into()),
            audience: Some("greenhouse".into()),
            ..JwtSection::default()
        });
    })
    .await
    .unwrap();
    node.deploy_one("f", "triggers = [{ http = \"/f\", auth = \"jwt\" }]", "export default () => 'in'")
        .await;
    for token in [&rs256, &eddsa] {
        assert_eq!(text(&bearing(&node, "/f", Some(token)).await), "in");
        let mut bytes = token.clone().into_bytes();
        let last = bytes.len() - 10;
        bytes[last] = if bytes[last] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(bytes).unwrap();
        assert_eq!(bearing(&node, "/f", Some(&forged)).await.status(), StatusCode::UNAUTHORIZED);
    }
    // An attacker signs with the public key as a secret, which is not a valid signature.
    let hs = hs256(&json!({"sub": "ada", "exp": NOW + 600}));
    let refused = bearing(&node, "/f", Some(&hs)).await;
    assert!(text(&refused).contains("HS256"), "{}", text(&refused));
}

#[tokio::test]
async fn an_answer_goes_only_where_its_requester_may_publish() {
    let mut node = TestNode::start_with(|config| {
        let rules = r##"
            [[allow]]
            client = "requester"
            publish = ["$faas/fn/+/invoke/#", "answers/%c"]
            [[allow]]
            client = "watcher"
            subscribe = ["#", "$faas/#"]
        "##;
        with_acl(config, rules);
    })
    .await;
    node.deploy_one("f", "", "export default (event) => 'to ' + event.text()").await;
    let mut watcher = Mqtt5::connect(&node, "watcher").await;
    watcher.subscribe("#").await;
    watcher.subscribe("$faas/fn/f/result/+").await;
    let mut requester = Mqtt5::connect(&node, "requester").await;
    for topic in ["private", "answers/other", "answers/requester"] {
        let properties =
            PublishProperties { response_topic: Some(topic.to_owned()), ..PublishProperties::default() };
        requester.publish_with("$faas/fn/f/invoke", topic, properties).await;
        assert_eq!(requester.puback().await, PubAckReason::Success);
    }
    let answer = watcher.message().await;
    assert_eq!(
        (&answer.topic[..], &answer.payload[..]),
        (&b"answers/requester"[..], &b"to answers/requester"[..])
    );
    requester.publish("$faas/fn/f/invoke/7", "own").await;
    assert_eq!(requester.puback().await, PubAckReason::Success);
    let answer = watcher.message().await;
    assert_eq!(answer.topic, "$faas/fn/f/result/7", "an answer on the node's own topic needs no rule");
    in_time(async {
        while node.logged("f").await.iter().filter(|line| line.contains("refused: NotAuthorized")).count()
            < 2
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    watcher.publish("$faas/fn/f/invoke", "x").await;
    assert_eq!(
        watcher.puback().await,
        PubAckReason::NotAuthorized,
        "who may not publish starts no function"
    );
}

#[tokio::test]
async fn a_reload_ends_subscriptions_and_removes_users_but_keeps_connections() {
    use edgefaas_api::control as proto;
    let mut node = TestNode::start_with(|config| {
        with_acl(config, "[[allow]]\npublish = [\"#\"]\nsubscribe = [\"a\", \"b\"]\n");
    })
    .await;
    for name in ["ada", "bob"] {
        let request =
            proto::AddUserRequest { name: name.into(), password: "secret".into(), role: String::new() };
        node.control.add_user(request).await.unwrap();
    }
    let connect = async |name: &'static str| {
        Mqtt5::connect_with(&node, name, |options| {
            options.set_credentials(name, "secret");
        })
        .await
    };
    let (mut ada, mut bob) = (connect("ada").await, connect("bob").await);
    ada.subscribe("a").await;
    ada.subscribe("b").await;
    let users = node.dir.path().join("users.toml");
    let kept = std::fs::read_to_string(&users).unwrap();
    let acl = node.dir.path().join("acl.toml");

    // Both files are wrong, one after the other: nothing changes.
    std::fs::write(&acl, "[[allow]]\npublish = 1\n").unwrap();
    let error = node.control.reload(proto::ReloadRequest {}).await.unwrap_err();
    assert!(error.message().contains("line 2") && error.message().contains("acl.toml"), "{error}");
    std::fs::write(&acl, "[[allow]]\npublish = [\"#\"]\nsubscribe = [\"b\"]\n").unwrap();
    std::fs::write(&users, "[users.ada]\npassword = \"plain\"\n").unwrap();
    let error = node.control.reload(proto::ReloadRequest {}).await.unwrap_err();
    assert!(error.message().contains("line 2") && error.message().contains("users.toml"), "{error}");
    ada.publish("a", "one").await;
    assert_eq!(ada.message().await.payload, "one");

    // bob is removed by an edit of the file.
    let ada_alone = kept[..kept.find("[users.bob]").unwrap()].to_owned();
    std::fs::write(&users, ada_alone).unwrap();
    let reloaded = node.control.reload(proto::ReloadRequest {}).await.unwrap().into_inner();
    assert_eq!((reloaded.users, reloaded.rules), (1, Some(1)));
    in_time(async {
        loop {
            match bob.events.poll().await {
                Err(_) | Ok(Event::Incoming(Incoming::Disconnect(_))) => return,
                Ok(_) => {}
            }
        }
    })
    .await;
    // A connection looks at its subscriptions shortly after the reload.
    in_time(async {
        let of_a = || proto::ListQueuesRequest { filter: Some("a".into()), limit: 0 };
        let is_subscribed =
            |queues: &proto::ListQueuesResponse| queues.queues.iter().any(|queue| queue.subscribers > 0);
        while is_subscribed(&node.control.list_queues(of_a()).await.unwrap().into_inner()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    ada.publish("a", "not any more").await;
    ada.publish("b", "still").await;
    assert_eq!(ada.message().await.payload, "still");
}

/// The return code of CONNACK (MQTT 3.1.1) for a client at a loopback address: 0 if it is accepted.
async fn connack(node: &TestNode, from: [u8; 4], client_id: &str, user: &str, password: &str) -> u8 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    let mut stream = in_time(socket.connect(node.addresses.mqtt)).await.unwrap();
    let text = |text: &str| [&(text.len() as u16).to_be_bytes(), text.as_bytes()].concat();
    let credentials = [text(client_id), text(user), text(password)].concat();
    let body = [text("MQTT"), vec![4, 0b1100_0010, 0, 60], credentials].concat();
    stream.write_all(&[vec![0x10, body.len() as u8], body].concat()).await.unwrap();
    let mut answer = [0; 4];
    in_time(stream.read_exact(&mut answer)).await.unwrap();
    answer[3]
}

async fn add_user(node: &mut TestNode, name: &str) {
    let request = edgefaas_api::control::AddUserRequest {
        name: name.into(),
        password: format!("{name}'s"),
        role: String::new(),
    };
    node.control.add_user(request).await.unwrap();
}

#[tokio::test]
async fn wrong_passwords_delay_only_their_own_address_and_user() {
    let mut node = TestNode::start().await;
    add_user(&mut node, "ada").await;
    add_user(&mut node, "bob").await;
    let (here, there) = ([127, 0, 0, 1], [127, 0, 0, 2]);
    let begun = std::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(connack(&node, here, "a", "ada", "wrong").await, 4);
    }
    // 0.1, 0.2 and 0.4 s.
    assert!(begun.elapsed().as_millis() >= 700, "{:?}", begun.elapsed());
    let fourth = connack(&node, here, "a", "ada", "wrong");
    tokio::pin!(fourth);
    // A delay of 0.8 s, during which others are accepted: the same user from another address, and other users from this one.
    let others = async {
        assert_eq!(connack(&node, there, "b", "ada", "ada's").await, 0);
        assert_eq!(connack(&node, here, "c", "bob", "bob's").await, 0);
    };
    let (fourth, ()) = tokio::join!(fourth, others);
    assert_eq!(fourth, 4);
    assert_eq!(connack(&node, here, "a", "ada", "ada's").await, 0);

    let begun = std::time::Instant::now();
    for _ in 0..3 {
        let request = Request::get("/metrics").header("authorization", "Bearer wrong");
        let answer =
            crate::support::send(node.addresses.control, request.body(Full::default()).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    }
    assert!(begun.elapsed().as_millis() >= 700, "{:?}", begun.elapsed());
    assert_eq!(node.metrics().await.status(), StatusCode::OK);
}

#[tokio::test]
async fn rules_bind_client_ids_to_users() {
    let rules = "[[allow]]\nuser = \"*\"\nclient_ids = [\"sensor-%u-*\"]\nsubscribe = [\"#\"]\n";
    let mut node = TestNode::start_with(|config| with_acl(config, rules)).await;
    add_user(&mut node, "ada").await;
    add_user(&mut node, "bob").await;
    let here = [127, 0, 0, 1];
    assert_eq!(connack(&node, here, "sensor-ada-1", "ada", "ada's").await, 0);
    assert_eq!(connack(&node, here, "sensor-ada-1", "bob", "bob's").await, 5);
    assert_eq!(connack(&node, here, "anything", "bob", "bob's").await, 5);
    assert_eq!(connack(&node, here, "sensor-bob-1", "bob", "bob's").await, 0);
}
