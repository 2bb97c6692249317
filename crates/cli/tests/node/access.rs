//! Users, rules, TLS, client certificates and `edgefaas login`, with clients that others wrote.

use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rumqttc::v5::Incoming;
use serde_json::{Value, json};

use crate::support::{PATIENCE, Running, edgefaas, has, look_again, skipped};

const ACL: &str = r#"
[[allow]]
user = "*"
publish = ["users/%u/#"]
subscribe = ["users/%u/#", "all/+"]

[[deny]]
subscribe = ["all/secret"]
"#;

/// A folder with `edgefaas.toml`, the files it names, and the data directory.
struct Home(tempfile::TempDir);

impl Home {
    fn new(config: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("data")).unwrap();
        std::fs::write(home.path().join("edgefaas.toml"), config).unwrap();
        Self(home)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), contents).unwrap();
    }

    fn start(&self, options: &[&str]) -> Running {
        let config = self.text("edgefaas.toml");
        Running::start(&self.path("data"), &[&["--config", &config], options].concat())
    }

    /// A command of the CLI with something on its stdin, and no node named.
    fn cli(&self, args: &[&str], stdin: &str) -> Output {
        with_stdin(edgefaas(&self.path("data")).args(args), stdin)
    }
}

fn with_stdin(command: &mut Command, stdin: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that refuses its arguments ends without reading, perhaps before anything is written.
    match child.stdin.take().unwrap().write_all(stdin.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        written => written.unwrap(),
    }
    child.wait_with_output().unwrap()
}

fn add_user(node: &Running, name: &str, password: &str) {
    let mut command = edgefaas(&node.data_dir);
    let output = with_stdin(command.args(["--node", &node.control, "users", "add", name]), password);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn python() -> Option<String> {
    let python = std::env::var("EDGEFAAS_TEST_PYTHON").unwrap_or_else(|_| "python3".into());
    has(&python, &["-c", "import paho.mqtt.client"]).then_some(python)
}

/// What Paho gets for a task: see `paho_access.py`.
fn paho(python: &str, task: &Value) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node/clients/paho_access.py");
    let output = with_stdin(Command::new(python).arg(script), &task.to_string());
    assert!(output.status.success(), "{task}: {}", String::from_utf8_lossy(&output.stderr));
    let mut done: Value = serde_json::from_slice(&output.stdout).unwrap();
    // A success as well: nobody subscribes to it.
    for code in done["puback"].as_array_mut().into_iter().flatten() {
        if *code == 0x10 {
            *code = json!(0);
        }
    }
    done
}

fn port_of(url: &str) -> u16 {
    url.rsplit_once(':').unwrap().1.parse().unwrap()
}

#[test]
fn passwords_and_rules_in_both_versions() {
    let Some(python) = python() else { return skipped("python3 with paho-mqtt") };
    let home = Home::new("[access]\nallow_anonymous = false\nacl = \"acl.toml\"\n");
    home.write("acl.toml", ACL);
    let node = home.start(&[]);
    add_user(&node, "ada", "correct horse\n");
    let port: u16 = node.mqtt_port.parse().unwrap();
    let client = |version: u8, more: Value| {
        let mut task =
            json!({"port": port, "version": version, "user": "ada", "password": "correct horse"});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        paho(&python, &task)
    };
    for version in [4, 5] {
        // Paho shows the codes of 3.1.1 as those of MQTT 5: 4 is 0x86, 5 is 0x87.
        let refused = |more| client(version, more)["connack"].clone();
        assert_eq!(refused(json!({"password": "wrong"})), 0x86);
        assert_eq!(refused(json!({"user": "bob"})), 0x86);
        assert_eq!(refused(json!({"will": "users/bob/gone"})), 0x87);
        let anonymous = paho(&python, &json!({"port": port, "version": version}));
        assert_eq!(anonymous["connack"], 0x87);

        let done = client(
            version,
            json!({
                "will": "users/ada/gone",
                "subscribe": ["users/ada/#", "users/#", "$share/g/users/ada/+", "$share/g/#", "all/+", "$SYS/#"],
                "publish": ["users/ada/t", "users/bob/t", "$SYS/x"],
            }),
        );
        assert_eq!(done["connack"], 0);
        let (no, unacknowledged) = if version == 5 { (0x87, 0x87) } else { (0x80, 0) };
        assert_eq!(done["suback"], json!([1, no, 1, no, no, no]), "version {version}");
        assert_eq!(done["puback"], json!([0, unacknowledged, unacknowledged]), "version {version}");
        assert!(done["received"].as_array().unwrap().iter().all(|topic| topic == "users/ada/t"), "{done}");
    }
}

#[test]
fn users_come_and_go_by_command() {
    if Command::new("mosquitto_pub").output().is_err() {
        return skipped("mosquitto-clients");
    }
    let home = Home::new("[access]\nallow_anonymous = false\n");
    // No node runs yet, and none ever did: the file is made.
    std::fs::remove_dir(home.path("data")).unwrap();
    assert_eq!(home.cli(&["users", "list"], "").status.code(), Some(3));
    let added = home.cli(&["users", "add", "ada"], "one\n");
    let stderr = String::from_utf8_lossy(&added.stderr).into_owned();
    assert!(added.status.success() && stderr.contains("no node runs"), "{stderr}");
    assert_eq!(home.cli(&["users", "add", "ada"], "one\n").status.code(), Some(7));
    assert_eq!(home.cli(&["users", "rm", "nobody"], "").status.code(), Some(6));
    let node = home.start(&[]);
    let publish = |password: &str| {
        let mut client = Command::new("mosquitto_pub");
        client.args(["-p", &node.mqtt_port, "-u", "ada", "-P", password, "-V", "5", "-q", "1"]);
        client.args(["-t", "a", "-m", "x"]);
        client.output().unwrap().status.code()
    };
    const REFUSED: Option<i32> = Some(134);
    assert_eq!(publish("one"), Some(0));
    assert_eq!(publish("two"), REFUSED);
    let cli = |args: &[&str], stdin: &str| {
        with_stdin(edgefaas(&node.data_dir).args(["--node", &node.control]).args(args), stdin)
    };
    assert!(cli(&["users", "passwd", "ada"], "two").status.success());
    assert_eq!((publish("one"), publish("two")), (REFUSED, Some(0)));
    assert_eq!(node.ok(&["users", "list"]), "ada\n");

    for (args, stdin, code, words) in [
        (&["users", "add", "ada"][..], "x", 7, "user `ada` exists already"),
        (&["users", "add", "a/b"], "x", 2, "not a name of a user"),
        (&["users", "add", "bob"], "", 2, "is empty"),
        (&["users", "passwd", "bob"], "x", 6, "user `bob` does not exist"),
        (&["users", "rm", "bob"], "", 6, "user `bob` does not exist"),
    ] {
        let output = cli(args, stdin);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }

    // Who is gone is disconnected.
    let mut watcher = Subscriber::start(&node.mqtt_port, Some(("ada", "two")), &["a"]);
    assert_eq!(publish("two"), Some(0));
    assert_eq!(watcher.next().as_deref(), Some("x"));
    node.ok(&["users", "rm", "ada"]);
    assert_eq!(watcher.next(), None);
    assert_eq!(publish("two"), REFUSED);
    let text = std::fs::read_to_string(home.path("data/users.toml")).unwrap();
    assert!(!text.contains("ada"), "{text}");
}

/// A client that is subscribed, by rumqttc.
struct Subscriber {
    connection: rumqttc::v5::Connection,
    _client: rumqttc::v5::Client,
}

impl Subscriber {
    fn start(port: &str, credentials: Option<(&str, &str)>, topics: &[&str]) -> Self {
        let mut options = rumqttc::v5::MqttOptions::new("watcher", "127.0.0.1", port.parse().unwrap());
        if let Some((user, password)) = credentials {
            options.set_credentials(user, password);
        }
        let (client, connection) = rumqttc::v5::Client::new(options, 100);
        let mut started = Self { connection, _client: client };
        for topic in topics {
            started._client.subscribe(*topic, rumqttc::v5::mqttbytes::QoS::AtLeastOnce).unwrap();
            started.until(|event| matches!(event, Incoming::SubAck(_)).then_some(())).expect("subscribed");
        }
        started
    }

    /// The next message, or nothing when the connection is over.
    fn next(&mut self) -> Option<String> {
        self.until(|event| match event {
            Incoming::Publish(message) => Some(String::from_utf8(message.payload.to_vec()).unwrap()),
            _ => None,
        })
    }

    fn until<T>(&mut self, wanted: impl Fn(&Incoming) -> Option<T>) -> Option<T> {
        loop {
            match self.connection.recv_timeout(PATIENCE).expect("it should not take that long") {
                Ok(rumqttc::v5::Event::Incoming(Incoming::Disconnect(_))) => return None,
                Ok(rumqttc::v5::Event::Incoming(event)) => {
                    if let Some(found) = wanted(&event) {
                        return Some(found);
                    }
                }
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }
}

#[test]
fn a_reload_drops_nobody_and_a_bad_file_changes_nothing() {
    if Command::new("mosquitto_pub").output().is_err() {
        return skipped("mosquitto-clients");
    }
    let home = Home::new("[access]\nacl = \"acl.toml\"\n");
    home.write("acl.toml", "[[allow]]\npublish = [\"#\"]\nsubscribe = [\"a\", \"b\"]\n");
    let node = home.start(&[]);
    let publish = |topic: &str, message: &str| {
        let mut client = Command::new("mosquitto_pub");
        client.args(["-p", &node.mqtt_port, "-V", "5", "-q", "1", "-t", topic, "-m", message]);
        let output = client.output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
    };
    let mut watcher = Subscriber::start(&node.mqtt_port, None, &["a", "b"]);
    publish("a", "one");
    assert_eq!(watcher.next().as_deref(), Some("one"));

    home.write("acl.toml", "[[allow]]\npublish = [\"#\"]\n\nsubscibe = [\"b\"]\n");
    let refused = node.cli(&["users", "reload"]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(7), "{stderr}");
    for words in ["acl.toml", "line 4", "subscibe", "the previous settings stay in force"] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    publish("a", "two");
    assert_eq!(watcher.next().as_deref(), Some("two"));

    home.write("acl.toml", "[[allow]]\npublish = [\"#\"]\nsubscribe = [\"b\"]\n");
    let reloaded = node.ok(&["users", "reload", "-o", "json"]);
    let reloaded: Value = serde_json::from_str(&reloaded).unwrap();
    assert_eq!(reloaded, json!({"users": 0, "rules": 1, "tls_fingerprint": null}));
    publish("a", "not any more");
    publish("b", "still");
    assert_eq!(
        watcher.next().as_deref(),
        Some("still"),
        "the connection is there, one of its subscriptions is not"
    );

    // The same by signal.
    home.write("acl.toml", "");
    node.signal("-HUP");
    loop {
        if publish("b", "again").to_lowercase().contains("not authorized") {
            return;
        }
        look_again();
    }
}

/// A certificate authority, and certificates that it signed.
struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, "the plant");
        let key = rcgen::KeyPair::generate().unwrap();
        Self { issuer: rcgen::CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    /// Certificate and key, PEM.
    fn sign(&self, name: &str, server: bool) -> (String, String) {
        let names = if server { vec!["localhost".to_owned()] } else { Vec::new() };
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.serial_number = Some(name.as_bytes().to_vec().into());
        let key = rcgen::KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// A list of revoked certificates, PEM.
    fn revoke(&self, names: &[&str]) -> String {
        let revoked = names.iter().map(|name| rcgen::RevokedCertParams {
            serial_number: name.as_bytes().to_vec().into(),
            revocation_time: rcgen::date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2026, 1, 1),
            next_update: rcgen::date_time_ymd(4000, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

#[test]
fn tls_with_client_certificates_and_new_ones_by_reload() {
    let Some(python) = python() else { return skipped("python3 with paho-mqtt") };
    let home = Home::new(
        "[access]\nallow_anonymous = false\nacl = \"acl.toml\"\n[tls]\ncert = \"server.pem\"\n\
         key = \"server.key\"\nclient_certificates = \"optional\"\nclient_ca = \"ca.pem\"\nclient_crl = \"revoked.pem\"\n",
    );
    home.write("acl.toml", ACL);
    let (ours, others) = (Authority::new(), Authority::new());
    let put = |name: &str, (cert, key): (String, String)| {
        home.write(&format!("{name}.pem"), cert);
        home.write(&format!("{name}.key"), key);
        let closed = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(home.path(&format!("{name}.key")), closed).unwrap();
    };
    home.write("ca.pem", ours.issuer.pem());
    put("server", ours.sign("server", true));
    put("pump", ours.sign("pump-1", false));
    put("stranger", others.sign("pump-1", false));
    put("stolen", ours.sign("stolen", false));
    home.write("revoked.pem", ours.revoke(&[]));
    let node = home.start(&["--mqtts", "127.0.0.1:0"]);
    add_user(&node, "ada", "secret");
    let port = port_of(node.word("mqtts"));
    let client = |more: Value| {
        let mut task = json!({"host": "localhost", "port": port, "version": 5, "ca": home.text("ca.pem")});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        paho(&python, &task)
    };
    let pump = json!({
        "cert": home.text("pump.pem"), "key": home.text("pump.key"),
        "publish": ["users/pump-1/t", "users/ada/t"],
    });
    let done = client(pump.clone());
    assert_eq!((&done["connack"], &done["puback"]), (&json!(0), &json!([0, 0x87])), "by certificate");
    let password = json!({"user": "ada", "password": "secret", "publish": ["users/ada/t"]});
    assert_eq!(client(password)["puback"], json!([0]), "by password over TLS");
    assert_eq!(client(json!({}))["connack"], 0x87, "by nothing");
    let mut other_name = pump.clone();
    other_name["user"] = json!("ada");
    assert_eq!(client(other_name)["connack"], 0x86, "a name that the certificate does not have");
    let stranger = json!({"cert": home.text("stranger.pem"), "key": home.text("stranger.key")});
    assert_ne!(client(stranger.clone())["connack"], 0, "another authority");

    let stolen = json!({"cert": home.text("stolen.pem"), "key": home.text("stolen.key")});
    assert_eq!(client(stolen.clone())["connack"], 0);
    home.write("revoked.pem", ours.revoke(&["stolen"]));
    node.ok(&["users", "reload"]);
    assert_ne!(client(stolen)["connack"], 0, "revoked");
    assert_eq!(client(pump.clone())["connack"], 0);

    // New certificates come by reload, and what is half written changes nothing.
    put("server", others.sign("server", true));
    home.write("server.key", "");
    assert_eq!(node.cli(&["users", "reload"]).status.code(), Some(7));
    assert_eq!(client(pump.clone())["connack"], 0);
    put("server", others.sign("server", true));
    home.write("ca.pem", others.issuer.pem());
    home.write("revoked.pem", others.revoke(&[]));
    node.ok(&["users", "reload"]);
    assert_eq!(client(stranger)["connack"], 0);
    assert_ne!(client(pump)["connack"], 0);
}

#[test]
fn required_certificates_are_required_over_websocket_too() {
    let home = Home::new("[tls]\nclient_certificates = \"required\"\nclient_ca = \"ca.pem\"\n");
    home.write("ca.pem", Authority::new().issuer.pem());
    let node = home.start(&["--mqtts", "127.0.0.1:0"]);
    let mut stream = std::net::TcpStream::connect(&node.http).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET /mqtt HTTP/1.1\r\nhost: {}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\
         sec-websocket-protocol: mqtt\r\n\r\n",
        node.http
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut status = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 403");
}

#[test]
fn mosquittos_clients_speak_tls_with_the_nodes_own_certificate() {
    if Command::new("mosquitto_pub").output().is_err() {
        return skipped("mosquitto-clients");
    }
    let home = Home::new("");
    let node = home.start(&["--mqtts", "127.0.0.1:0"]);
    let port = port_of(node.word("mqtts")).to_string();
    let certificate = home.text("data/tls-cert.pem");
    let options = ["-h", "localhost", "-p", &port, "--cafile", &certificate];
    for version in ["tlsv1.2", "tlsv1.3"] {
        let options = [&options[..], &["--tls-version", version]].concat();
        let mut client = Command::new("mosquitto_pub");
        client.args(&options).args(["-r", "-q", "2", "-t", "a", "-m", version]);
        assert!(client.status().unwrap().success(), "{version}");
        let mut client = Command::new("mosquitto_sub");
        client.args(&options).args(["-C", "1", "-W", "60", "-t", "a"]);
        let output = client.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), version);
    }
    // Without TLS on that port nothing comes of it.
    let mut plain = Command::new("mosquitto_pub");
    plain.args(["-h", "localhost", "-p", &port, "-t", "a", "-m", "x"]);
    assert!(!plain.status().unwrap().success());
}

/// An address of this machine that is not loopback.
fn other_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

#[test]
fn a_node_that_others_can_reach_is_logged_in_to() {
    let Some(address) = other_address() else { return skipped("an address other than loopback") };
    let home = Home::new("");
    home.write(
        "hello.js",
        "export default (event) => `hello ${event.headers.get('authorization') ?? 'you'}`;",
    );
    let wide = format!("{address}:0");
    let start = |data: &Path| {
        let any = "127.0.0.1:0";
        Running::start_at(data, &["--http", &wide, "--mqtt", any, "--control", &wide])
    };
    let node = start(&home.path("data"));
    assert!(node.control.starts_with("https://"), "{}", node.ready);
    let fingerprint = node.word("tls-fingerprint").to_owned();
    let token = std::fs::read_to_string(home.path("data/token")).unwrap();

    // On the node itself: its data directory says where it is and which certificate it has.
    let status = home.cli(&["status"], "");
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.status.success() && text.contains(&fingerprint), "{text}");

    // On the laptop.
    let laptop = home.path("laptop");
    std::fs::create_dir(&laptop).unwrap();
    let cli = |args: &[&str], stdin: &str| {
        let output = with_stdin(edgefaas(&laptop).args(args), stdin);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let node_option = |command: &[&'static str]| [&["--node", node.control.as_str()], command].concat();
    let (code, _, stderr) = cli(&[&node_option(&["list"])[..], &["--token", token.trim()]].concat(), "");
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("edgefaas login"), "{stderr}");
    let (code, _, stderr) = cli(&["login", &node.control], &token);
    assert_eq!(code, Some(2), "nobody is there to compare: {stderr}");
    assert!(stderr.contains(&fingerprint), "{stderr}");
    let wrong = "00".repeat(32);
    let (code, _, stderr) = cli(&["login", &node.control, "--fingerprint", &wrong], &token);
    assert_eq!(code, Some(4), "{stderr}");
    let (code, _, stderr) = cli(&["login", &node.control, "--fingerprint", &fingerprint], "wrong");
    assert_eq!(code, Some(4), "{stderr}");
    assert!(!laptop.join("login/nodes.json").exists(), "nothing is kept of a login that failed");
    let (code, stdout, stderr) = cli(&["login", &node.control, "--fingerprint", &fingerprint], &token);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("logged in"), "{stdout}");
    // The token of a data directory is not for a node that a login made known.
    let others = home.path("others");
    std::fs::create_dir(&others).unwrap();
    home.write("others/token", "wrong");
    let (code, _, stderr) =
        cli(&[&node_option(&["list"])[..], &["--data-dir", &home.text("others")]].concat(), "");
    assert_eq!(code, Some(0), "{stderr}");
    let hello = home.text("hello.js");
    let deploy =
        [&["--node", node.control.strip_prefix("https://").unwrap(), "deploy"], &[hello.as_str()][..]];
    let (code, _, stderr) = cli(&deploy.concat(), "");
    assert_eq!(code, Some(0), "without a scheme it is https too: {stderr}");

    // The gateway there speaks TLS as well, and wants a token, which the function does not get to see.
    if has("curl", &["--version"]) {
        let http_token = std::fs::read_to_string(home.path("data/http-token")).unwrap();
        let curl = |path: &str, bearer: Option<&str>| {
            let mut curl = Command::new("curl");
            curl.args(["-sS", "-i", "--cacert", &home.text("data/tls-cert.pem")]);
            if let Some(bearer) = bearer {
                curl.args(["-H", &format!("authorization: Bearer {bearer}")]);
            }
            let output = curl.arg(format!("{}{path}", node.word("http"))).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
        };
        for (path, bearer, words) in [
            ("/fn/hello", None, "HTTP/1.1 401"),
            ("/fn/hello", None, "www-authenticate: Bearer"),
            ("/fn/hello", Some("wrong"), "invalid_token"),
            ("/fn/helo", None, "HTTP/1.1 401"),
            ("/fn/helo", Some(http_token.trim()), "HTTP/1.1 404"),
            ("/fn/hello", Some(http_token.trim()), "hello you"),
            ("/fn/hello", Some(token.trim()), "hello you"),
        ] {
            let answer = curl(path, bearer);
            assert!(answer.contains(words), "{path} {bearer:?}: {answer}");
        }
    } else {
        skipped("curl");
    }

    // Another node in its place is noticed, and gets nothing.
    let control = node.control.clone();
    let http = node.http.clone();
    assert_eq!(node.terminate(), Some(0));
    let impostor = Running::start_at(
        &home.path("impostor"),
        &["--http", &http, "--mqtt", "127.0.0.1:0", "--control", control.strip_prefix("https://").unwrap()],
    );
    let (code, _, stderr) = cli(&["--node", &control, "list"], "");
    assert_eq!(code, Some(4), "{stderr}");
    for words in ["nothing was sent", &fingerprint, impostor.word("tls-fingerprint")] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
}

#[test]
fn mqtt_for_others_needs_somebody_who_can_prove_who_they_are() {
    let Some(address) = other_address() else { return skipped("an address other than loopback") };
    let home = Home::new("");
    let wide = format!("{address}:0");
    let any = "127.0.0.1:0";
    let options = ["run", "--http", any, "--control", any, "--mqtt", &wide];
    let refused = home.cli(&options, "");
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    for words in [&wide, "edgefaas users add", "[access.jwt]", "allow_anonymous = true"] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    assert!(home.cli(&["users", "add", "ada"], "secret").status.success());
    let node = Running::start_at(&home.path("data"), &options[1..]);
    if let Some(python) = python() {
        let client = |more: Value| {
            let mut task =
                json!({"host": address.to_string(), "port": port_of(node.word("mqtt")), "version": 5});
            task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            paho(&python, &task)["connack"].clone()
        };
        assert_eq!(client(json!({})), 0x87, "from elsewhere nobody is anonymous");
        assert_eq!(client(json!({"user": "ada", "password": "secret"})), 0);
    } else {
        skipped("python3 with paho-mqtt");
    }
}

#[test]
fn beyond_loopback_only_callers_with_a_name_see_why_a_function_failed() {
    let Some(address) = other_address() else { return skipped("an address other than loopback") };
    let home = Home::new("[access]\nallow_anonymous = true\n");
    std::fs::create_dir(home.path("app")).unwrap();
    home.write(
        "app/edgefaas.toml",
        "app = \"a\"\n[functions.f]\nmain = \"f.js\"\ntriggers = [{ http = \"/f\", auth = \"none\" }]\n",
    );
    home.write("app/f.js", "export default () => { throw new Error('no such table: customers'); };");
    let (config, wide, any) = (home.text("edgefaas.toml"), format!("{address}:0"), "127.0.0.1:0");
    let options = ["--config", &config, "--http", &wide, "--mqtt", &wide, "--control", any];
    let node = Running::start_at(&home.path("data"), &options);
    node.ok(&["deploy", &home.text("app")]);
    let url = format!("{}/f", node.word("http").trim_end_matches('/'));
    let curl = |extra: &[&str]| {
        let mut command = Command::new("curl");
        let output = command.args(["-sk", "--noproxy", "*", &url]).args(extra).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let stranger = curl(&[]);
    assert!(stranger.contains("Function failed") && stranger.contains("\"invocation\""), "{stranger}");
    assert!(!stranger.contains("customers") && !stranger.contains("f.js"), "{stranger}");
    let token = std::fs::read_to_string(home.path("data/http-token")).unwrap();
    let operator = curl(&["-H", &format!("authorization: Bearer {}", token.trim())]);
    assert!(operator.contains("customers") && operator.contains("f.js"), "{operator}");

    // The same over MQTT, where a client without a name is a stranger unless it is on this machine.
    add_user(&node, "ada", "correct");
    let answer = |host: &str, credentials: Option<(&str, &str)>| {
        use rumqttc::v5::mqttbytes::QoS;
        let mut options = rumqttc::v5::MqttOptions::new("asker", host, node.mqtt_port.parse().unwrap());
        if let Some((name, password)) = credentials {
            options.set_credentials(name, password);
        }
        let (client, connection) = rumqttc::v5::Client::new(options, 16);
        let mut asker = Subscriber { connection, _client: client };
        asker._client.subscribe("$faas/fn/f/result/1", QoS::AtLeastOnce).unwrap();
        asker.until(|event| matches!(event, Incoming::SubAck(_)).then_some(())).expect("subscribed");
        asker._client.publish("$faas/fn/f/invoke/1", QoS::AtMostOnce, false, "x").unwrap();
        asker.next().expect("it answers")
    };
    let host = address.to_string();
    let stranger = answer(&host, None);
    assert!(stranger.contains("\"invocation\"") && !stranger.contains("customers"), "{stranger}");
    assert!(answer(&host, Some(("ada", "correct"))).contains("customers"));
}

/// Passes bytes on between clients at `at` and a node, which answers every question in the listener's place.
fn pass_on(at: &str, node: &str) -> u16 {
    let listener = std::net::TcpListener::bind(at).unwrap();
    let port = listener.local_addr().unwrap().port();
    let node = node.trim_start_matches("http://").to_owned();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, node) = (client.unwrap(), std::net::TcpStream::connect(&node).unwrap());
            let ways = [(client.try_clone().unwrap(), node.try_clone().unwrap()), (node, client)];
            for (mut from, mut to) in ways {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    port
}

#[test]
fn a_found_token_goes_only_to_the_node_that_has_it() {
    let home = tempfile::tempdir().unwrap();
    let (own, other) = (home.path().join("own"), home.path().join("other"));
    let node = Running::start(&own, &[]);
    let list = |data: &Path, url: &str, more: &[&str]| {
        let output = edgefaas(data).args(["list", "--node", url]).args(more).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, stderr) = list(&own, &node.control, &[]);
    assert_eq!(code, Some(0), "{stderr}");
    let port = port_of(&node.control);

    let another = Running::start(&other, &[]);
    // Programs that let the node answer in their place: at another port, and at another address with its port.
    let relay = pass_on("127.0.0.1:0", &node.control);
    pass_on(&format!("127.0.0.2:{port}"), &node.control);
    let elsewhere = [format!("http://127.0.0.1:{relay}"), format!("http://127.0.0.2:{port}")];
    for url in elsewhere.iter().chain([&another.control]) {
        let (code, stderr) = list(&own, url, &[]);
        assert_eq!(code, Some(4), "{url}: {stderr}");
        let token_file = own.join("token").display().to_string();
        assert!(stderr.contains("was not sent") && stderr.contains(&token_file), "{url}: {stderr}");
    }
    // A token that is given is for the node that is named.
    let token = std::fs::read_to_string(other.join("token")).unwrap();
    for (url, token) in
        [(&another.control, token), (&elsewhere[0], std::fs::read_to_string(own.join("token")).unwrap())]
    {
        let (code, stderr) = list(&own, url, &["--token", token.trim()]);
        assert_eq!(code, Some(0), "{url}: {stderr}");
    }
    // A question is no way in.
    let nonce = "0".repeat(64);
    let ask = |path: &str| {
        let mut stream = std::net::TcpStream::connect(node.control.trim_start_matches("http://")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    assert!(ask(&format!("/proof/{nonce}")).starts_with("HTTP/1.1 204"));
    for path in ["/proof/", "/proof/00", "/proof/../metrics", "/metrics"] {
        assert!(ask(path).starts_with("HTTP/1.1 401"), "{path}");
    }
}

/// An answer whose request was not read ends with a reset of its stream, which curl reports in place of the answer now and then.
#[test]
fn a_refusal_over_http2_reaches_curl() {
    if !has("curl", &["--version"]) {
        return skipped("curl");
    }
    let home = Home::new("");
    let node = home.start(&[]);
    home.write("body", vec![0; 60_000]);
    let url = format!("{}/edgefaas.control.v1.Control/List", node.word("control"));
    let body = format!("@{}", home.text("body"));
    for round in 0..30 {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-i", "--http2-prior-knowledge", "-H", "content-type: application/grpc"]);
        let small = round % 2 == 0;
        let output =
            curl.args(["--data-binary", if small { "five." } else { &body }, &url]).output().unwrap();
        let answer = String::from_utf8_lossy(&output.stdout);
        assert!(answer.contains("grpc-status: 16"), "{round}: {answer} {output:?}");
    }
}
