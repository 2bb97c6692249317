//! A server on bare hyper in the shape of a node: one thread accepts, one single-threaded runtime a core serves.

use std::process::Stdio;

use anyhow::ensure;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::mpsc;

/// Where an answer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// It is there.
    Constant,
    /// A process that is started for the request prints it.
    Process,
}

pub fn run(answers: Answers) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    let mut workers = Vec::with_capacity(cores);
    for _ in 0..cores {
        let (connections, mut accepted) = mpsc::channel::<std::net::TcpStream>(1024);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                while let Some(stream) = accepted.recv().await {
                    tokio::spawn(serve(stream, answers));
                }
            });
        });
        workers.push(connections);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        super::announce(&listener.local_addr()?.to_string())?;
        for turn in 0.. {
            let (stream, _) = listener.accept().await?;
            workers[turn % cores].send(stream.into_std()?).await?;
        }
        Ok(())
    })
}

/// Until the client closes the connection.
async fn serve(stream: std::net::TcpStream, answers: Answers) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let stream = TcpStream::from_std(stream)?;
    let hello = service_fn(|_: Request<hyper::body::Incoming>| async move {
        let body = match answers {
            Answers::Constant => Bytes::from_static(b"hello"),
            Answers::Process => run_process().await?,
        };
        let mut response = Response::new(Full::new(body));
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        anyhow::Ok(response)
    });
    Ok(http1::Builder::new().serve_connection(TokioIo::new(stream), hello).await?)
}

/// What a small program prints.
async fn run_process() -> anyhow::Result<Bytes> {
    let output = Command::new("/bin/echo").args(["-n", "hello"]).stdin(Stdio::null()).output().await?;
    ensure!(output.status.success(), "the process ended with {}", output.status);
    Ok(output.stdout.into())
}
