//! Functions that send requests to other servers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Barrier, Notify};

use crate::support::{TestNode, in_time, json, text};

/// A server that returns the request it got, or acts by the path of the request.
struct Server {
    address: SocketAddr,
    /// Fires when a request without an answer was dropped.
    dropped: Arc<Notify>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (dropped, meeting) = (Arc::new(Notify::new()), Arc::new(Barrier::new(3)));
        let notify = dropped.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (dropped, meeting) = (notify.clone(), meeting.clone());
                let service = service_fn(move |request| answer(request, dropped.clone(), meeting.clone()));
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { address, dropped }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// Notifies when the future that owns it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

async fn answer(
    request: Request<Incoming>,
    dropped: Arc<Notify>,
    meeting: Arc<Barrier>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let to = |status: u16, location: &str| {
        Response::builder().status(status).header(header::LOCATION, location).body(Full::default()).unwrap()
    };
    let path = request.uri().path().to_owned();
    Ok(match path.as_str() {
        "/never" => {
            let _notify = NotifyOnDrop(dropped);
            std::future::pending().await
        }
        "/meet" => {
            meeting.wait().await;
            Response::new(Full::from("met"))
        }
        "/large" => Response::new(Full::from(vec![b'x'; (8 << 20) + 1])),
        "/away" => to(302, "http://other.example/x"),
        "/metadata" => to(302, "http://169.254.169.254/latest/meta-data/"),
        "/round" => to(307, "/round"),
        "/see" => to(303, "/echo"),
        "/kept" => to(308, "/echo?moved"),
        _ => {
            let (parts, body) = request.into_parts();
            let headers: serde_json::Map<_, _> = parts
                .headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().into()))
                .collect();
            let body = body.collect().await.unwrap().to_bytes();
            let echoed = serde_json::json!({
                "method": parts.method.as_str(),
                "target": parts.uri.to_string(),
                "headers": headers,
                "body": String::from_utf8_lossy(&body),
            });
            Response::new(Full::from(echoed.to_string()))
        }
    })
}

/// A node with the function `f`, which may send requests to the server.
async fn node(server: &Server, extra: &str, source: &str) -> TestNode {
    let mut node = TestNode::start().await;
    let extra = format!("permissions = {{ http = [\"{}\"] }}\n{extra}", server.address);
    node.deploy_one("f", &extra, source).await;
    node
}

#[tokio::test]
async fn a_request_arrives_as_it_was_made_and_its_answer_comes_back() {
    let server = Server::start().await;
    let source = "export default async (event) => {
        const response = await fetch(event.text(), {
            method: 'PUT', headers: { 'x-a': 'b', host: 'evil.example' }, body: 'hello',
        });
        return { status: response.status, url: response.url, echoed: await response.json() };
    }";
    let node = node(&server, "", source).await;
    let answer = json(&node.post("/fn/f", server.url("/echo?q=1#here")).await);
    assert_eq!(answer["status"], 200, "{answer}");
    let echoed = &answer["echoed"];
    assert_eq!((echoed["method"].as_str(), echoed["target"].as_str()), (Some("PUT"), Some("/echo?q=1")));
    assert_eq!((echoed["body"].as_str(), echoed["headers"]["x-a"].as_str()), (Some("hello"), Some("b")));
    assert_eq!(echoed["headers"]["host"], server.address.to_string());
    assert!(echoed["headers"]["user-agent"].as_str().unwrap().starts_with("edgefaas/"), "{echoed}");
}

#[tokio::test]
async fn only_permitted_servers_are_reached() {
    let server = Server::start().await;
    let source = "export default async (event) => {
        try { return (await fetch(event.text())).status; } catch (error) {
            return `${error.name} ${error.cause?.code ?? error.code}: ${error.cause?.message ?? error.message}`;
        }
    }";
    let node = node(&server, "", source).await;
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for (url, expected) in [
        (format!("http://{}/", other.local_addr().unwrap()), "permissions.http"),
        (format!("http://localhost:{}/", server.address.port()), "permissions.http"),
        ("https://api.example.com/".to_owned(), "permissions.http"),
        (server.url("/away"), "a redirection leads there"),
        (server.url("/round"), "redirects more than 20 times"),
        ("ftp://127.0.0.1/".to_owned(), ""),
        ("no url".to_owned(), ""),
        (format!("http://user:secret@{}/", server.address), ""),
    ] {
        let answer = text(&node.post("/fn/f", url.clone()).await).to_owned();
        assert!(answer.contains("TypeError") && answer.contains(expected), "{url}: {answer}");
        assert!(!answer.contains("secret"), "{answer}");
    }
    assert_eq!(text(&node.post("/fn/f", server.url("/see")).await), "200");
}

#[tokio::test]
async fn redirections_change_the_request_as_the_standard_defines() {
    let server = Server::start().await;
    let source = "export default async (event) => {
        const { url, redirect } = event.json();
        const response = await fetch(url, { method: 'POST', body: 'x', redirect });
        return { status: response.status, redirected: response.redirected, echoed: await response.text() };
    }";
    let node = node(&server, "", source).await;
    let ask = |path: &str, redirect: &str| {
        let body = serde_json::json!({ "url": server.url(path), "redirect": redirect }).to_string();
        node.post("/fn/f", body)
    };
    let seen = json(&ask("/see", "follow").await);
    assert!(seen["redirected"] == true && seen["echoed"].as_str().unwrap().contains("\"GET\""), "{seen}");
    let kept = json(&ask("/kept", "follow").await);
    let echoed = kept["echoed"].as_str().unwrap();
    assert!(
        echoed.contains("\"POST\"") && echoed.contains("/echo?moved") && echoed.contains("\"x\""),
        "{kept}"
    );
    let manual = json(&ask("/see", "manual").await);
    assert_eq!((manual["status"].as_u64(), manual["redirected"].as_bool()), (Some(303), Some(false)));
    assert_eq!(ask("/see", "error").await.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn requests_overlap() {
    let server = Server::start().await;
    let source = "export default async (event) => {
        const url = event.text();
        const all = await Promise.all([1, 2, 3].map(() => fetch(url).then((response) => response.text())));
        return all.join();
    }";
    let node = node(&server, "", source).await;
    assert_eq!(text(&node.post("/fn/f", server.url("/meet")).await), "met,met,met");
}

#[tokio::test]
async fn a_request_without_an_answer_ends_at_the_deadline_or_when_aborted() {
    let server = Server::start().await;
    let source = "export default async (event) => {
        const signal = event.query === 'abort' ? AbortSignal.timeout(1000) : undefined;
        try { await fetch(event.text(), { signal }); } catch (error) { return error.name; }
    }";
    let node = node(&server, "limits = { timeout = \"5s\" }", source).await;
    assert_eq!(text(&node.post("/fn/f?abort", server.url("/never")).await), "TimeoutError");
    in_time(server.dropped.notified()).await;
    let response = node.post("/fn/f", server.url("/never")).await;
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    in_time(server.dropped.notified()).await;
}

#[tokio::test]
async fn an_invalid_answer_is_an_error_and_the_next_request_succeeds() {
    let server = Server::start().await;
    let rude = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = rude.local_addr().unwrap();
    tokio::spawn(async move {
        for answer in ["", "rubbish\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort"] {
            let (mut stream, _) = rude.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    // It is kept from other programs, and nobody listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = socket.local_addr().unwrap();
    let mut node = TestNode::start().await;
    let extra = format!("permissions = {{ http = [\"{}\", \"{address}\", \"{closed}\"] }}", server.address);
    let source = "export default async (event) => {
        try { return await (await fetch(event.text())).text(); } catch (error) {
            return `${error.name}: ${error.cause?.message ?? error.message}`;
        }
    }";
    node.deploy_one("f", &extra, source).await;
    for expected in ["", "", ""] {
        let answer = text(&node.post("/fn/f", format!("http://{address}/")).await).to_owned();
        assert!(answer.starts_with("TypeError") && answer.contains(expected), "{answer}");
    }
    let refused = text(&node.post("/fn/f", format!("http://{closed}/")).await).to_owned();
    assert!(refused.contains("refused"), "{refused}");
    let large = text(&node.post("/fn/f", server.url("/large")).await).to_owned();
    assert!(
        large.contains("more than the 8388608 bytes that function `f` may receive; raise limits.response"),
        "{large}"
    );
    assert!(text(&node.post("/fn/f", server.url("/echo")).await).contains("\"GET\""));
}

#[tokio::test]
async fn calls_and_logs_have_their_limits() {
    let server = Server::start().await;
    let source = "export default async (event) => {
        for (let i = 0; i < 100; i++) console.log('x'.repeat(100));
        let done = 0;
        try { for (;;) { await fetch(event.text()); done++; } } catch (error) {
            return `${done} ${error.cause?.message ?? error.message}`;
        }
    }";
    let mut node = node(&server, "limits = { calls = 3, log = \"1KiB\" }", source).await;
    let answer = text(&node.post("/fn/f", server.url("/echo")).await).to_owned();
    assert!(answer.starts_with("3 ") && answer.contains("limits.calls"), "{answer}");
    let log = node.logged("f").await;
    assert_eq!(log.len(), 11, "{log:?}");
    assert!(log.last().unwrap().contains("limits.log"), "{log:?}");
}

/// A server that accepts connections and never answers: its address, and the number of its connections.
async fn silent_server() -> (SocketAddr, tokio::sync::watch::Receiver<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (count, counted) = tokio::sync::watch::channel(0);
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
            count.send_replace(open.len());
        }
    });
    (address, counted)
}

/// Function that sends a number of requests to a server, and logs when all have begun.
const GREEDY: &str = "export default async (event) => {
    const { url, count } = event.json();
    const all = Array.from({ length: count }, () => fetch(url));
    console.log('begun');
    return (await Promise.allSettled(all)).length;
}";

/// A node with the function `greedy`, which may ask the server at `dead`, and `other`, which may ask a healthy one.
async fn greedy_and_other(dead: SocketAddr, server: &Server) -> TestNode {
    let mut node = TestNode::start().await;
    let manifest = format!(
        "app = \"a\"\n[functions.greedy]\nmain = \"greedy.js\"\npermissions = {{ http = [\"{dead}\"] }}\n\
         limits = {{ calls = 1000, timeout = \"60s\" }}\n[functions.other]\nmain = \"other.js\"\n\
         permissions = {{ http = [\"{}\"] }}\nlimits = {{ timeout = \"20s\" }}\n",
        server.address
    );
    let other = "export default async (event) => (await fetch(event.text())).status";
    node.deploy(&manifest, &[("greedy", GREEDY), ("other", other)]).await;
    node
}

#[tokio::test]
async fn a_server_that_never_answers_does_not_block_requests_of_others() {
    let server = Server::start().await;
    let (dead, mut connections) = silent_server().await;
    let node = greedy_and_other(dead, &server).await;
    let body = serde_json::json!({ "url": format!("http://{dead}/"), "count": 600 }).to_string();
    let waiting = node.post("/fn/greedy", body);
    tokio::pin!(waiting);
    tokio::select! {
        _ = &mut waiting => panic!("no server answers it"),
        // 448 of the 512 connections: no other function uses any.
        reached = in_time(connections.wait_for(|count| *count >= 448)) => drop(reached.unwrap()),
    }
    // More requests than the greedy function left free, one after another, while it waits.
    for _ in 0..3 {
        let requests = (0..30).map(|_| node.post("/fn/other", server.url("/echo")));
        tokio::select! {
            _ = &mut waiting => panic!("no server answers it"),
            answers = futures_util::future::join_all(requests) => {
                for answer in answers {
                    assert_eq!((answer.status(), text(&answer)), (StatusCode::OK, "200"));
                }
            }
        }
    }
    assert_eq!(*connections.borrow(), 448, "the rest is free for others");
}

#[tokio::test]
async fn a_server_that_accepts_no_connection_does_not_block_requests_of_others() {
    let server = Server::start().await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let full = socket.listen(1).unwrap();
    let dead = full.local_addr().unwrap();
    let mut node = greedy_and_other(dead, &server).await;
    let body = serde_json::json!({ "url": format!("http://{dead}/"), "count": 600 }).to_string();
    let request = edgefaas_api::control::LogsRequest { function: "greedy".into(), follow: true, tail: 0 };
    let mut lines = node.control.logs(request).await.unwrap().into_inner();
    let waiting = node.post("/fn/greedy", body);
    tokio::pin!(waiting);
    let answered = async {
        assert_eq!(in_time(lines.message()).await.unwrap().unwrap().message, "begun");
        for _ in 0..3 {
            let answer = node.post("/fn/other", server.url("/echo")).await;
            assert_eq!((answer.status(), text(&answer)), (StatusCode::OK, "200"));
        }
    };
    tokio::select! {
        _ = &mut waiting => panic!("no connection of it was made"),
        () = answered => {}
    }
}

#[tokio::test]
async fn a_request_beyond_the_waiting_limit_is_refused_with_the_reason() {
    let (dead, _) = silent_server().await;
    let mut node = TestNode::start().await;
    let extra =
        format!("permissions = {{ http = [\"{dead}\"] }}\nlimits = {{ calls = 2000, timeout = \"60s\" }}");
    // The first request that ends is a refused one.
    let source = "export default async (event) => {
        try { await Promise.race(Array.from({ length: 900 }, () => fetch(event.text()))); } catch (error) {
            return error.cause?.message ?? error.message;
        }
    }";
    node.deploy_one("f", &extra, source).await;
    let ask = || node.post("/fn/f", format!("http://{dead}/"));
    for _ in 0..2 {
        // A single function may wait with all its requests. When this request ends, both end.
        let refused = tokio::select! {
            refused = ask() => refused,
            refused = ask() => refused,
        };
        let refused = text(&refused).to_owned();
        assert!(refused.contains("function `f` has 448 of the node's 512 requests"), "{refused}");
        assert!(refused.contains("1024 more requests wait"), "{refused}");
    }
}

/// Function that returns the result of a request.
const TRY: &str = "export default async (event) => {
    try { return (await fetch(event.text())).status; } catch (error) { return error.cause?.message ?? error.message; }
}";

#[tokio::test]
async fn every_address_that_is_not_public_must_be_named() {
    let server = Server::start().await;
    let mut node = TestNode::start().await;
    let extra = format!("permissions = {{ http = [\"*:*\", \"{}\"] }}", server.address);
    node.deploy_one("f", &extra, TRY).await;
    for (host, written) in [
        ("10.0.0.1", "10.0.0.1"),
        ("192.168.1.1:8080", "192.168.1.1:8080"),
        ("172.16.0.1", "172.16.0.1"),
        ("100.64.0.1", "100.64.0.1"),
        ("169.254.169.254", "169.254.169.254"),
        ("2852039166", "169.254.169.254"),
        ("0.0.0.0", "0.0.0.0"),
        ("[fd00::1]", "[fd00::1]"),
        ("[fe80::1]", "[fe80::1]"),
        ("[::ffff:10.0.0.1]", "10.0.0.1"),
        ("[64:ff9b::a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]"),
    ] {
        let refused = node.post("/fn/f", format!("http://{host}/")).await;
        let refused = text(&refused);
        assert!(
            refused.contains(&format!("must be named: add `{written}` to permissions.http")),
            "{refused}"
        );
    }
    let led = node.post("/fn/f", server.url("/metadata")).await;
    assert!(
        text(&led).contains("a redirection leads there") && text(&led).contains("add `169.254.169.254`")
    );
    assert_eq!(text(&node.post("/fn/f", server.url("/echo")).await), "200");
}
