//! The peer: a process for each instance of a function, which has one invocation at a time, as with containers.
//!
//! An HTTP server in front of them gives an invocation to an instance that waits, or starts one, to which it is bound. One
//! that has waited for the keep-alive time ends. The front talks to instances in lines over pipes, which costs less than
//! what there is between a platform and its containers; and there are no containers: namespaces and file systems would come
//! on top.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Instances that may be there at once; further invocations wait. More than the trace needs.
const MAX_INSTANCES: usize = 256;
/// How often is looked for instances that have waited too long.
const REAP: Duration = Duration::from_millis(250);

/// The commands that start an instance, by the function's name.
pub type Catalogue = HashMap<String, Vec<String>>;

/// Runs it in this process until it is killed. `catalogue` is a JSON file.
pub async fn run(catalogue: &Path, keep_alive: Duration) -> anyhow::Result<()> {
    let front = Arc::new(Front {
        catalogue: serde_json::from_slice(&std::fs::read(catalogue)?)?,
        idle: Mutex::default(),
        places: Arc::new(Semaphore::new(MAX_INSTANCES)),
        waiting: AtomicUsize::new(0),
        starts: AtomicUsize::new(0),
    });
    tokio::spawn(reap(front.clone(), keep_alive));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve(front.clone(), stream));
    }
}

struct Front {
    catalogue: Catalogue,
    idle: Mutex<HashMap<String, Vec<Idle>>>,
    places: Arc<Semaphore>,
    /// Invocations that wait for a place.
    waiting: AtomicUsize,
    starts: AtomicUsize,
}

struct Idle {
    instance: Instance,
    since: Instant,
}

/// A process. Dropping it kills it.
struct Instance {
    _process: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    _place: OwnedSemaphorePermit,
}

impl Instance {
    /// Starts it and waits until it is ready.
    async fn start(command: &[String], place: OwnedSemaphorePermit) -> anyhow::Result<Self> {
        let (program, arguments) = command.split_first().context("an empty command")?;
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| program.clone())?;
        let stdin = process.stdin.take().context("stdin is piped")?;
        let stdout = BufReader::new(process.stdout.take().context("stdout is piped")?).lines();
        let mut instance = Self { _process: process, stdin, stdout, _place: place };
        let ready = instance.line().await?;
        ensure!(ready == "ready", "an instance that is not ready: {ready}");
        Ok(instance)
    }

    async fn call(&mut self, body: &[u8]) -> anyhow::Result<String> {
        let line = [body, b"\n"].concat();
        self.stdin.write_all(&line).await?;
        self.line().await
    }

    async fn line(&mut self) -> anyhow::Result<String> {
        self.stdout.next_line().await?.context("the instance ended")
    }
}

impl Front {
    /// The answer, and how long the start of an instance took if one was started.
    async fn invoke(&self, name: &str, body: &[u8]) -> anyhow::Result<(String, Option<Duration>)> {
        let waits = self.pools().get_mut(name).and_then(Vec::pop);
        let (mut instance, start) = match waits {
            Some(idle) => (idle.instance, None),
            None => {
                let command = self.catalogue.get(name).with_context(|| format!("no function {name}"))?;
                let place = self.place().await?;
                self.starts.fetch_add(1, Relaxed);
                let begun = Instant::now();
                (Instance::start(command, place).await?, Some(begun.elapsed()))
            }
        };
        let answer = instance.call(body).await?;
        if self.waiting.load(Relaxed) == 0 {
            let idle = Idle { instance, since: Instant::now() };
            self.pools().entry(name.to_owned()).or_default().push(idle);
        }
        Ok((answer, start))
    }

    /// Room for one more, for which the one that has waited longest goes if need be.
    async fn place(&self) -> anyhow::Result<OwnedSemaphorePermit> {
        if let Ok(place) = self.places.clone().try_acquire_owned() {
            return Ok(place);
        }
        let oldest = {
            let mut pools = self.pools();
            let pool = pools.values_mut().filter(|pool| !pool.is_empty()).min_by_key(|pool| pool[0].since);
            pool.map(|pool| pool.remove(0))
        };
        drop(oldest);
        self.waiting.fetch_add(1, Relaxed);
        let place = self.places.clone().acquire_owned().await;
        self.waiting.fetch_sub(1, Relaxed);
        Ok(place?)
    }

    fn pools(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends instances that have waited for `keep_alive`.
async fn reap(front: Arc<Front>, keep_alive: Duration) {
    let mut interval = tokio::time::interval(REAP);
    loop {
        interval.tick().await;
        let mut ended = Vec::new();
        for pool in front.pools().values_mut() {
            ended.extend(pool.extract_if(.., |idle| idle.since.elapsed() >= keep_alive));
        }
    }
}

/// Until the client closes the connection.
async fn serve(front: Arc<Front>, stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let service = service_fn(move |request: Request<Incoming>| {
        let front = front.clone();
        async move { Ok::<_, Infallible>(respond(&front, request).await) }
    });
    Ok(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?)
}

async fn respond(front: &Front, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path().to_owned();
    if path == "/metrics" {
        let text = format!("front_starts_total{{start=\"cold\"}} {}\n", front.starts.load(Relaxed));
        return Response::new(Full::from(text));
    }
    let answer = async {
        let body = request.into_body().collect().await?.to_bytes();
        front.invoke(path.strip_prefix("/fn/").context("not a function's path")?, &body).await
    };
    match answer.await {
        Ok((text, start)) => {
            let mut response = Response::new(Full::from(text));
            let timing = start.map(|start| format!("start;dur={:.3}", start.as_secs_f64() * 1e3));
            if let Some(Ok(timing)) = timing.map(|timing| timing.parse()) {
                response.headers_mut().insert("server-timing", timing);
            }
            response
        }
        Err(error) => {
            let mut response = Response::new(Full::from(format!("{error:#}")));
            *response.status_mut() = StatusCode::BAD_GATEWAY;
            response
        }
    }
}
