//! The control port: authentication, health, metrics, reflection, logs.

use edgefaas_api::control as proto;
use edgefaas_api::control::control_client::ControlClient;
use http::{Request, StatusCode};
use http_body_util::Full;
use tonic::Code;

use crate::support::{HeldServer, Mqtt5, TestNode, channel, client, in_time, send};

#[tokio::test]
async fn only_health_needs_no_token() {
    let mut node = TestNode::start().await;
    let control = node.addresses.control;
    let get = |path: &str, token: Option<&str>| {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        in_time(send(control, request.body(Full::default()).unwrap()))
    };
    assert_eq!(get("/healthz", None).await.status(), StatusCode::OK);
    assert_eq!(get("/readyz", None).await.status(), StatusCode::OK);
    let refused = get("/metrics", None).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(get("/metrics", Some("wrong")).await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(get("/nothing", None).await.status(), StatusCode::UNAUTHORIZED);

    node.deploy_one("hello", "", "export default () => 1").await;
    node.invoke("hello", "").await;
    let metrics = get("/metrics", Some(&node.token)).await;
    assert_eq!(metrics.status(), StatusCode::OK);
    let text = String::from_utf8(metrics.into_body().to_vec()).unwrap();
    let line = r#"edgefaas_invocations_total{function="hello",outcome="ok"} 1"#;
    assert!(text.lines().any(|found| found == line), "{text}");

    let mut unauthenticated = ControlClient::new(channel(control).await);
    let refused = unauthenticated.list(proto::ListRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn the_queue_monitor_counts_messages_of_each_filter() {
    let mut node = TestNode::start().await;
    let mut subscriber = Mqtt5::connect(&node, "subscriber").await;
    subscriber.subscribe("rooms/+/co2").await;
    for room in ["a", "b"] {
        subscriber.publish(&format!("rooms/{room}/co2"), "700").await;
        subscriber.message().await;
    }
    let list =
        |filter: Option<&str>| proto::ListQueuesRequest { filter: filter.map(str::to_owned), limit: 0 };
    // A message may have arrived shortly before it is counted.
    let queues = in_time(async {
        loop {
            let queues = node.control.list_queues(list(None)).await.unwrap().into_inner();
            if queues.queues.iter().any(|queue| queue.messages_in >= 2 && queue.messages_out >= 2) {
                return queues;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    let [queue] = &queues.queues[..] else { panic!("one filter: {queues:?}") };
    assert_eq!(
        (queue.filter.as_str(), queue.subscribers, queue.messages_in, queue.messages_out, queue.waiting),
        ("rooms/+/co2", 1, 2, 2, 0)
    );
    assert_eq!(queues.total, 1);
    let none = in_time(node.control.list_queues(list(Some("other")))).await.unwrap().into_inner();
    assert_eq!(none.queues, []);
    let wrong = in_time(node.control.list_queues(list(Some("a/#/b")))).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn the_token_is_readable_only_by_its_owner_and_stays_the_same() {
    use std::os::unix::fs::PermissionsExt;
    let node = TestNode::start().await;
    let token = node.token.clone();
    let file = node.dir.path().join("token");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim(), token);
    let dir = node.stop().await;
    let node = TestNode::start_in(dir, |_| {}).await.unwrap();
    assert_eq!(node.token, token);
}

#[tokio::test]
async fn reflection_and_health_are_served() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let node = TestNode::start().await;
    let mut request = tonic::Request::new(HealthCheckRequest { service: String::new() });
    let bearer = format!("Bearer {}", node.token).parse().unwrap();
    request.metadata_mut().insert("authorization", bearer);
    let mut health = HealthClient::new(channel(node.addresses.control).await);
    let answer = health.check(request).await.unwrap().into_inner();
    assert_eq!(answer.status, 1);

    macro_rules! services {
        ($version:ident) => {{
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
            let message_request = Some(MessageRequest::ListServices(String::new()));
            let asked = tonic_reflection::pb::$version::ServerReflectionRequest {
                host: String::new(),
                message_request,
            };
            let mut request = tonic::Request::new(tokio_stream::once(asked));
            request
                .metadata_mut()
                .insert("authorization", format!("Bearer {}", node.token).parse().unwrap());
            let mut client = ServerReflectionClient::new(channel(node.addresses.control).await);
            let mut answers = client.server_reflection_info(request).await.unwrap().into_inner();
            match in_time(answers.message()).await.unwrap().unwrap().message_response {
                Some(MessageResponse::ListServicesResponse(list)) => {
                    list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            }
        }};
    }
    for services in [services!(v1), services!(v1alpha)] {
        assert!(services.contains(&"edgefaas.objects.v1.Objects".to_owned()), "{services:?}");
    }
}

#[tokio::test]
async fn logs_are_kept_and_followed() {
    let mut node = TestNode::start().await;
    let source =
        "export default (event, context) => { console.log('one'); context.log.warn(event.text()); }";
    node.deploy_one("talk", "", source).await;
    node.invoke("talk", "two").await;
    let request = proto::LogsRequest { function: "talk".into(), follow: true, tail: 1 };
    let mut lines = node.control.logs(request).await.unwrap().into_inner();
    let mut next = async || in_time(lines.message()).await.unwrap().unwrap();
    let kept = next().await;
    assert_eq!((&kept.level[..], &kept.message[..]), ("warn", "two"));
    node.invoke("talk", "three").await;
    assert_eq!(next().await.message, "one");
    let live = next().await;
    assert_eq!((&live.function[..], &live.message[..]), ("talk", "three"));
    let unknown = proto::LogsRequest { function: "tlak".into(), follow: false, tail: 0 };
    let error = node.control.logs(unknown).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("`talk`"), "{}", error.message());
}

#[tokio::test]
async fn silent_unauthenticated_connections_block_others_only_briefly() {
    use tokio::io::AsyncReadExt;
    let mut node = TestNode::start().await;
    node.deploy_one("talk", "", "export default (event) => console.log(event.text())").await;
    let request = proto::LogsRequest { function: "talk".into(), follow: true, tail: 0 };
    let mut lines = node.control.logs(request).await.unwrap().into_inner();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(node.addresses.control).await.unwrap());
    }
    // An authenticated connection is not affected.
    node.invoke("talk", "one").await;
    assert_eq!(in_time(lines.message()).await.unwrap().unwrap().message, "one");
    for mut stream in silent {
        let mut rest = Vec::new();
        // All are closed: most immediately, the others after some seconds.
        let _ = in_time(stream.read_to_end(&mut rest)).await;
    }
    let health = || Request::get("/healthz").body(Full::default()).unwrap();
    assert_eq!(in_time(send(node.addresses.control, health())).await.status(), StatusCode::OK);
    node.invoke("talk", "two").await;
    assert_eq!(in_time(lines.message()).await.unwrap().unwrap().message, "two");
}

#[tokio::test]
async fn silent_connections_make_way_for_a_client_of_the_same_address() {
    use tokio::io::AsyncReadExt;
    let mut node = TestNode::start().await;
    let mut silent = std::collections::VecDeque::new();
    for _ in 0..40 {
        silent.push_back(tokio::net::TcpStream::connect(node.addresses.control).await.unwrap());
    }
    // Each client has the token, and closes the oldest of the silent connections, which continue to arrive.
    for _ in 0..40 {
        silent.push_back(tokio::net::TcpStream::connect(node.addresses.control).await.unwrap());
        let mut client = client(node.addresses.control, &node.token).await;
        in_time(client.list(proto::ListRequest::default())).await.unwrap();
    }
    let mut oldest = silent.pop_front().unwrap();
    let mut rest = Vec::new();
    let _ = in_time(oldest.read_to_end(&mut rest)).await;
    let _ = in_time(node.control.list(proto::ListRequest::default())).await.unwrap();
}

#[tokio::test]
async fn unauthenticated_connections_of_two_addresses_do_not_block_others() {
    use std::time::Duration;
    use tokio::net::TcpSocket;
    let node = TestNode::start().await;
    let mut silent = Vec::new();
    for host in [2, 3] {
        for _ in 0..40 {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 0, host], 0).into()).unwrap();
            silent.push(socket.connect(node.addresses.control).await.unwrap());
        }
    }
    let health = || Request::get("/healthz").body(Full::default()).unwrap();
    // Without eviction a silent connection stays open for 10 s.
    let answer = tokio::time::timeout(Duration::from_secs(8), send(node.addresses.control, health()));
    assert_eq!(answer.await.expect("it need not wait").status(), StatusCode::OK);
}

#[tokio::test]
async fn one_address_does_not_take_all_tls_handshakes() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};
    let node = TestNode::start_with(|config| config.mqtts = Some(([127, 0, 0, 1], 0).into())).await;
    let mqtts = node.addresses.mqtts.unwrap();
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(mqtts).await.unwrap());
    }
    // Bytes that are not TLS get an alert, unless the node has refused the handshake.
    let answer = async |mut stream: TcpStream| {
        let mut answer = Vec::new();
        let _ = stream.write_all(b"this is not TLS").await;
        let _ = in_time(stream.read_to_end(&mut answer)).await;
        answer.first().copied()
    };
    assert_eq!(answer(silent.pop().unwrap()).await, None, "the address has reached its limit");
    let other = TcpSocket::new_v4().unwrap();
    other.bind(([127, 0, 0, 2], 0).into()).unwrap();
    assert_eq!(answer(other.connect(mqtts).await.unwrap()).await, Some(0x15));
}

#[tokio::test]
async fn a_node_that_stops_finishes_running_invocations_and_accepts_no_new_ones() {
    let mut node = TestNode::start().await;
    let mut server = HeldServer::start().await;
    let source = format!(
        "export default async () => {{
            await fetch('http://{}/');
            return new Promise((done) => setTimeout(() => done('finished'), 500));
        }}",
        server.address
    );
    node.deploy_one("slow", &format!("permissions = {{ http = [\"{}\"] }}", server.address), &source).await;
    let address = node.addresses.http;
    let slow = tokio::spawn(async move {
        send(address, Request::get("/fn/slow").body(Full::default()).unwrap()).await
    });
    // It runs, and goes on when the stop has begun.
    server.requested(1).await;
    node.begin_stop();
    server.open();
    let response = in_time(slow).await.unwrap();
    assert_eq!(response.body(), "finished");
    node.stop().await;
}
