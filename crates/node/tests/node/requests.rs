//! The rules of HTTP/1.1 for requests (RFC 9112), checked byte by byte.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::support::{TestNode, in_time, text};

/// The bytes of the answer until the node closes the connection.
async fn answer(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    in_time(stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_request_has_one_host_and_one_length() {
    let mut node = TestNode::start().await;
    node.deploy_one("f", "", "export default (event) => 'did ' + event.text()").await;
    let (gateway, control) = (node.addresses.http, node.addresses.control);
    let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                   sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: mqtt\r\n";
    let both = [
        "content-length: 3\r\ntransfer-encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    ];
    let body = "3\r\nabc\r\n0\r\n\r\n";
    for (address, head) in [
        (gateway, "POST /fn/f HTTP/1.1\r\n"),
        (gateway, &*format!("GET /mqtt HTTP/1.1\r\n{upgrade}")),
        (control, "GET /healthz HTTP/1.1\r\n"),
    ] {
        let bad = ["", "host: localhost\r\nhost: localhost\r\n", "host: a@b\r\n"];
        for host in bad {
            let answer = answer(address, &format!("{head}{host}\r\n")).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{head}{host}: {answer}");
            assert!(answer.contains("`Host`"), "{answer}");
        }
        for both in both {
            let answer = answer(address, &format!("{head}host: localhost\r\n{both}\r\n{body}")).await;
            assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("has both"), "{both}: {answer}");
        }
        for (coding, status) in [
            ("transfer-encoding: chunked, chunked\r\n", 400),
            ("transfer-encoding: chunked\r\ntransfer-encoding: Chunked\r\n", 400),
            ("transfer-encoding: gzip, chunked\r\n", 501),
        ] {
            let answer = answer(address, &format!("{head}host: localhost\r\n{coding}\r\n{body}")).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{coding}: {answer}");
        }
    }
    // After valid requests, in any number of pieces.
    let good = "POST /fn/f HTTP/1.1\r\nhost: localhost\r\n";
    let sized = format!("{good}content-length: 3\r\n\r\nabc");
    let chunked = format!("{good}transfer-encoding: chunked\r\n\r\n{body}");
    for both in both {
        let mut stream = TcpStream::connect(gateway).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let all = format!("{sized}{chunked}{sized}{good}{both}\r\n{body}{sized}");
        for piece in all.as_bytes().chunks(7) {
            if stream.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut answers = Vec::new();
        // The node has closed the connection without reading the rest.
        let _ = in_time(stream.read_to_end(&mut answers)).await;
        let answers = String::from_utf8_lossy(&answers);
        assert_eq!(answers.matches("did abc").count(), 3, "{answers}");
        assert_eq!(answers.matches("HTTP/1.1 400 ").count(), 1, "{answers}");
    }
    // If parsers may disagree about the end of a request, no later request of the connection is served.
    for end in ["0\r\nx: y\n\nGET /fn/f HTTP/1.1\r\nhost: a\r\n\r\n", "0\r\nx: y\n\r\nz: y\r\n\r\n"] {
        let sent =
            format!("{good}transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n{end}{good}{}\r\n{body}", both[0]);
        let answers = answer(gateway, &sent).await;
        assert!(!answers.contains("did abc\r\n") && answers.matches("did abc").count() <= 1, "{answers}");
        assert!(answers.contains("HTTP/1.1 400 "), "{answers}");
    }
    // The node buffers the head of a request, so its size is bounded.
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    let mut long = Vec::new();
    // The node has closed the connection without reading the rest.
    let _ = stream.write_all(format!("{good}x: {}\r\n\r\n", "x".repeat(100 << 10)).as_bytes()).await;
    let _ = in_time(stream.read_to_end(&mut long)).await;
    assert!(long.is_empty() || long.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&long));
    let fits = answer(
        gateway,
        &format!("{good}x: {}\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc", "x".repeat(24 << 10)),
    )
    .await;
    assert!(fits.contains("did abc"), "{fits}");
    // HTTP/1.0 needs no `Host`.
    let old = answer(gateway, "GET /fn/f HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 "), "{old}");
    assert_eq!(text(&node.post("/fn/f", "x").await), "did x");
}

#[tokio::test]
async fn a_client_that_has_sent_everything_may_close_its_side() {
    let mut node = TestNode::start().await;
    let source = "export default async (event) => {
        await new Promise((resolve) => setTimeout(resolve, 200));
        return 'did ' + event.text();
    }";
    node.deploy_one("f", "", source).await;
    for (address, request, expected) in [
        (
            node.addresses.http,
            "POST /fn/f HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc",
            "did abc",
        ),
        (node.addresses.control, "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", "200 OK"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        in_time(stream.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(expected), "{answer}");
    }
    // An incomplete request gets no answer.
    let mut stream = TcpStream::connect(node.addresses.http).await.unwrap();
    stream
        .write_all(b"POST /fn/f HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nab")
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    let _ = in_time(stream.read_to_string(&mut answer)).await;
    assert!(!answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_call_ends_when_its_client_resets_the_connection() {
    let mut node = TestNode::start().await;
    // The function waits for a server that never answers and notices when the request is dropped.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let source = format!("export default () => fetch('http://{address}/')");
    node.deploy_one("waits", &format!("permissions = {{ http = [\"{address}\"] }}"), &source).await;
    let (sender, mut events) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            sender.send("requested").await.unwrap();
            while !matches!(stream.read(&mut [0; 1024]).await, Ok(0) | Err(_)) {}
            sender.send("dropped").await.unwrap();
        }
    });
    let mut stream = TcpStream::connect(node.addresses.http).await.unwrap();
    stream.write_all(b"GET /fn/waits HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(in_time(events.recv()).await, Some("requested"));
    // With this option, closing the socket resets the connection.
    stream.set_zero_linger().unwrap();
    drop(stream);
    assert_eq!(in_time(events.recv()).await, Some("dropped"));
}
