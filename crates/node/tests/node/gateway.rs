//! Functions over HTTP.

use http::{Method, Request, StatusCode};
use http_body_util::Full;

use crate::support::{TestNode, in_time, json, text};

#[tokio::test]
async fn a_handler_sees_the_request_and_its_reply_is_sent() {
    let mut node = TestNode::start().await;
    let source = r#"
        export default async function handler(event) {
            return {
                kind: event.kind, method: event.method, path: event.path,
                query: event.query.toString(), header: event.headers.get("x-test"), body: await event.text(),
            };
        }"#;
    node.deploy_one("echo", "", source).await;
    let request = Request::builder()
        .method(Method::PUT)
        .uri("/fn/echo/a/b?x=1&y=2")
        .header("X-Test", "ja")
        .body(Full::from("hallo"))
        .unwrap();
    let response = node.send(request).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/json");
    let body = json(&response);
    assert_eq!(body["kind"], "http");
    assert_eq!(body["method"], "PUT");
    assert_eq!(body["path"], "/a/b");
    assert_eq!(body["query"], "x=1&y=2");
    assert_eq!(body["header"], "ja");
    assert_eq!(body["body"], "hallo");
    assert_eq!(response.headers()["invocation-id"].len(), 26);
    let timing = response.headers()["server-timing"].to_str().unwrap();
    assert!(timing.contains("queue;dur=") && timing.contains("exec;dur="), "{timing}");
    assert_eq!(json(&node.get("/fn/echo").await)["path"], "/");
}

#[tokio::test]
async fn every_kind_of_reply_has_its_media_type() {
    let mut node = TestNode::start().await;
    let source = r#"
        export default (event) => ({
            "/json": () => ({ a: [1, 2] }),
            "/text": () => "plain",
            "/bytes": () => new Uint8Array([0, 1, 255]),
            "/nothing": () => undefined,
            "/own": () => new Response("made", { status: 201, headers: { "x-own": "yes", "content-type": "a/b" } }),
        })[event.path]()"#;
    node.deploy_one("kinds", "", source).await;
    for (path, status, media_type, body) in [
        ("json", 200, Some("application/json"), &br#"{"a":[1,2]}"#[..]),
        ("text", 200, Some("text/plain; charset=utf-8"), b"plain"),
        ("bytes", 200, Some("application/octet-stream"), &[0, 1, 255]),
        ("nothing", 204, None, b""),
        ("own", 201, Some("a/b"), b"made"),
    ] {
        let response = node.get(&format!("/fn/kinds/{path}")).await;
        assert_eq!(response.status(), status, "{path}: {:?}", response.body());
        let found = response.headers().get("content-type").map(|value| value.to_str().unwrap());
        assert_eq!(found, media_type, "{path}");
        assert_eq!(&response.body()[..], body, "{path}");
    }
}

#[tokio::test]
async fn http_triggers_are_mounted_with_their_methods() {
    let mut node = TestNode::start().await;
    let triggers = r#"triggers = [{ http = "/rooms/{room}", methods = ["GET", "POST"] }]"#;
    node.deploy_one("rooms", triggers, "export default (event) => event.method + ' ' + event.path").await;
    let response = node.get("/rooms/7?x").await;
    assert_eq!(text(&response), "GET /rooms/7");
    let request = Request::delete("/rooms/7").body(Full::default()).unwrap();
    let response = node.send(request).await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.headers()["allow"], "GET, POST");
    assert_eq!(node.get("/rooms").await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_unknown_function_is_a_404_that_names_those_like_it() {
    let mut node = TestNode::start().await;
    node.deploy_one("average", "", "export default () => 1").await;
    let response = node.get("/fn/averge").await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem = json(&response);
    assert_eq!(problem["status"], 404);
    assert_eq!(problem["near"], serde_json::json!(["average"]));
    assert_eq!(problem["detail"], "there is no function `averge`; did you mean `average`?");
}

#[tokio::test]
async fn a_body_over_its_limit_is_a_413_whether_its_length_is_declared_or_not() {
    let mut node = TestNode::start().await;
    node.deploy_one("small", r#"limits = { payload = "1KiB" }"#, "export default (e) => e.bytes().length")
        .await;
    assert_eq!(text(&node.post("/fn/small", vec![b'x'; 1024]).await), "1024");
    let response = node.post("/fn/small", vec![b'x'; 1025]).await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let detail = json(&response)["detail"].as_str().unwrap().to_owned();
    assert_eq!(detail, "the payload for `small` has 1025 bytes; limits.payload is 1024");

    let chunk = format!("400\r\n{0}\r\n400\r\n{0}\r\n0\r\n\r\n", "x".repeat(1024));
    let request = format!(
        "POST /fn/small HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"
    );
    let answer = raw(&node, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn a_request_that_is_not_http_is_refused_and_the_next_one_is_served() {
    let mut node = TestNode::start().await;
    node.deploy_one("hello", "", "export default () => 'hello'").await;
    for garbage in
        [&b"\x10\x20\x00\x04MQTT\x04\x02\r\n\r\n"[..], b"GET\r\n\r\n", b"GET /fn/hello HTTP/9.9\r\n\r\n"]
    {
        let answer = raw(&node, garbage).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(text(&node.get("/fn/hello").await), "hello");
}

#[tokio::test]
async fn foreign_pages_cannot_call_functions_of_this_machine() {
    let mut node = TestNode::start_with(|config| {
        config.websocket.allowed_origins = vec!["https://app.example".into()];
    })
    .await;
    let triggers = r#"triggers = [{ http = "/default" }, { http = "/open", auth = "none" }]"#;
    node.deploy_one("f", triggers, "export default () => 'ran'").await;
    let own = node.addresses.http.to_string();
    let own_origin = format!("http://{own}");
    let token = format!("Bearer {}", node.token);
    let ask = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = node.send(request.body(Full::default()).unwrap()).await;
        (response.status().as_u16(), text(&response).to_owned())
    };
    for (path, headers, status) in [
        ("/fn/f", &[("host", &*own)][..], 200),
        ("/fn/f", &[("host", "localhost:1")], 200),
        ("/fn/f", &[("host", &own), ("origin", &own_origin)], 200),
        ("/fn/f", &[("host", "app.example"), ("origin", "https://app.example")], 200),
        ("/fn/f", &[("host", &own), ("origin", "http://evil.example")], 403),
        ("/fn/f", &[("host", &own), ("origin", "null")], 403),
        // DNS rebinding, with and without an origin.
        ("/fn/f", &[("host", "evil.example"), ("origin", "http://evil.example")], 403),
        ("/fn/f", &[("host", "evil.example")], 403),
        // Requests for images, scripts and links have no `Origin`, but `Sec-Fetch-Site`.
        ("/fn/f", &[("host", &own), ("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "image")], 403),
        ("/fn/f", &[("host", &own), ("sec-fetch-site", "same-site")], 403),
        ("/fn/f", &[("host", &own), ("sec-fetch-site", "same-origin")], 200),
        ("/fn/f", &[("host", &own), ("sec-fetch-site", "none")], 200),
        (
            "/fn/f",
            &[("host", &own), ("sec-fetch-site", "cross-site"), ("origin", "https://app.example")],
            200,
        ),
        ("/open", &[("host", &own), ("sec-fetch-site", "cross-site")], 200),
        // Nor can they read outcomes of durable invocations.
        ("/invocations/7ZZZZZZZZZZZZZZZZZZZZZZZZZ", &[("host", "evil.example")], 403),
        (
            "/invocations/7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
            &[("host", &own), ("origin", "http://evil.example")],
            403,
        ),
        ("/invocations/7ZZZZZZZZZZZZZZZZZZZZZZZZZ", &[("host", &own)], 405),
        ("/default", &[("host", &own), ("origin", "http://evil.example")], 403),
        // The manifest allows every caller.
        ("/open", &[("host", &own), ("origin", "http://evil.example")], 200),
        ("/open", &[("host", "evil.example")], 200),
        // A page that has the token may call.
        ("/fn/f", &[("host", &own), ("origin", "http://evil.example"), ("authorization", &token)], 200),
    ] {
        let (found, body) = ask(path, headers).await;
        assert_eq!(found, status, "{path} {headers:?}: {body}");
        assert!(status != 403 || body.contains("allowed_origins"), "{body}");
    }
}

#[tokio::test]
async fn bodies_in_flight_are_bounded_in_sum_and_make_room() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut node = TestNode::start().await;
    node.deploy_one("big", r#"limits = { payload = "32MiB" }"#, "export default () => 'ran'").await;
    let head = "POST /fn/big HTTP/1.1\r\nhost: localhost\r\ncontent-length: 33554432\r\n\r\n";
    let (refused, mut refusals) = tokio::sync::mpsc::unbounded_channel();
    let slow = (0..3).map(|_| {
        let (address, refused) = (node.addresses.http, refused.clone());
        tokio::spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            // Almost the whole body; the node may close the connection in the middle.
            let _ = stream.write_all(&vec![b'x'; 33_554_432 - 500]).await;
            let mut answer = [0; 12];
            let answered = stream.read_exact(&mut answer).await.map(|_| answer);
            let _ = refused.send(answered.map(|answer| String::from_utf8_lossy(&answer).into_owned()));
        })
    });
    let slow: Vec<_> = slow.collect();
    // The budget has room for two bodies.
    assert_eq!(in_time(refusals.recv()).await.unwrap().unwrap(), "HTTP/1.1 503");
    // After a while these bodies make room for others, although their clients are still connected.
    let gave_way = in_time(async {
        loop {
            let status = node.post("/fn/big", vec![b'x'; 100_000]).await.status().as_u16();
            assert!([200, 503].contains(&status), "{status}");
            if let Ok(answer) = refusals.try_recv() {
                return answer;
            }
        }
    });
    assert_eq!(gave_way.await.unwrap(), "HTTP/1.1 503");
    assert_eq!(node.post("/fn/big", vec![b'x'; 100_000]).await.status(), 200);
    assert!(slow.iter().any(|slow| !slow.is_finished()), "the other body is still received");
}

#[tokio::test]
async fn a_client_that_sends_requests_ahead_gets_one_reply_at_a_time() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const AHEAD: usize = 10;
    const BODY_BYTES: usize = 12 << 20;
    let mut node = TestNode::start().await;
    let manifest = r#"
        app = "a"
        [functions.big]
        main = "big.js"
        limits = { reply = "16MiB" }
        permissions = { objects = ["o"] }
        [functions.runs]
        main = "runs.js"
        permissions = { objects = ["o"] }"#;
    let big = "export default async (e, c) => { await c.object('o').counter('runs').add(1); return new Uint8Array(12 << 20); }";
    let runs = "export default (e, c) => c.object('o').counter('runs').value()";
    node.deploy(manifest, &[("big", big), ("runs", runs)]).await;
    let mut stream = tokio::net::TcpStream::connect(node.addresses.http).await.unwrap();
    let request = b"GET /fn/big HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(&request.repeat(AHEAD)).await.unwrap();
    for number in 1..=AHEAD {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(in_time(stream.read_u8()).await.unwrap());
        }
        // The reply has begun, and the client has read little of it.
        for _ in 0..20 {
            assert_eq!(text(&node.get("/fn/runs").await), number.to_string());
        }
        in_time(stream.read_exact(&mut vec![0; BODY_BYTES])).await.unwrap();
    }
}

async fn raw(node: &TestNode, bytes: &[u8]) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(node.addresses.http).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    // With `connection: close` the node closes the connection after its answer. Otherwise the client closes its half.
    if !bytes.windows(17).any(|window| window == b"connection: close") {
        stream.shutdown().await.unwrap();
    }
    let mut answer = Vec::new();
    // A reset connection is a refusal too.
    let _ = crate::support::in_time(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}
