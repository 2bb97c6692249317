//! The server that functions ask: a process of its own that answers a little JSON after a while.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_benches::process::Process;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// How long it takes to answer, as a database would.
const DELAY: Duration = Duration::from_millis(5);
const ORDER: &str = r#"{"items":[{"price":3,"count":4},{"price":30,"count":1}]}"#;
/// What the function makes of it.
pub const TOTAL: &str = "42";

/// Starts it as a child; gives the address of what it has.
pub fn start() -> anyhow::Result<(Process, String)> {
    let process = Process::start(crate::own_binary()?.arg("backend"))?;
    let url = format!("http://{}/order", process.first_line.trim());
    Ok((process, url))
}

/// Runs it in this process until it is killed.
pub async fn run() -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let order = service_fn(|_: Request<Incoming>| async {
            tokio::time::sleep(DELAY).await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(ORDER.as_bytes()))))
        });
        // A client that goes away is none of its business.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), order));
    }
}
