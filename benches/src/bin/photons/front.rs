//! The peer: a process for each instance of a function, which has one invocation at a time, as with containers.
//!
//! An HTTP server in front of them gives an invocation to an instance that waits, or else has one started and gives it the
//! first that is free, the new one or another. Few are started at once, so that a burst does not choke the machine with
//! starts, and none that nobody waits for any more. An instance that has waited for the keep-alive time ends. The front
//! talks to instances in lines over pipes, which costs less than what there is between a platform and its containers; and
//! there are no containers: namespaces and file systems would come on top.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
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
use tokio::sync::{Notify, Semaphore};

/// How often is looked for instances that have waited too long.
const REAP: Duration = Duration::from_millis(250);

/// The commands that start an instance, by the function's name.
pub type Catalogue = HashMap<String, Vec<String>>;

/// Runs it in this process until it is killed. `catalogue` is a JSON file.
pub async fn run(catalogue: &Path, keep_alive: Duration) -> anyhow::Result<()> {
    let front = Arc::new(Front {
        pools: pools(serde_json::from_slice(&std::fs::read(catalogue)?)?),
        starting: Semaphore::new(2 * std::thread::available_parallelism().map_or(1, Into::into)),
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
    pools: HashMap<String, Arc<Pool>>,
    /// Places for starts under way.
    starting: Semaphore,
    starts: AtomicUsize,
}

/// The instances of one function that wait, and the invocations that wait for one.
struct Pool {
    command: Vec<String>,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Default)]
struct State {
    /// The one that has waited longest is the first.
    idle: Vec<Idle>,
    /// Invocations that wait.
    waiting: usize,
    /// Starts under way, or about to be.
    starting: usize,
    /// Why the last start failed; whoever waits is told.
    failure: Option<String>,
}

struct Idle {
    instance: Instance,
    since: Instant,
}

fn pools(catalogue: Catalogue) -> HashMap<String, Arc<Pool>> {
    let pool = |command| Arc::new(Pool { command, state: Mutex::default(), freed: Notify::new() });
    catalogue.into_iter().map(|(name, command)| (name, pool(command))).collect()
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(&self, instance: Instance) {
        self.state().idle.push(Idle { instance, since: Instant::now() });
        self.freed.notify_one();
    }
}

/// Counts an invocation as one that waits.
struct Waiting<'a>(&'a Pool);

impl<'a> Waiting<'a> {
    fn new(pool: &'a Pool) -> Self {
        pool.state().waiting += 1;
        Self(pool)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

/// A process. Dropping it kills it.
struct Instance {
    _process: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    /// How long its start took, until its first invocation has told.
    start: Option<Duration>,
}

impl Instance {
    /// Starts it and waits until it is ready.
    async fn start(command: &[String]) -> anyhow::Result<Self> {
        let begun = Instant::now();
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
        let mut instance = Self { _process: process, stdin, stdout, start: None };
        let ready = instance.line().await?;
        ensure!(ready == "ready", "an instance that is not ready: {ready}");
        instance.start = Some(begun.elapsed());
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
    /// The answer, and how long the start of its instance took if it is the instance's first.
    async fn invoke(
        self: &Arc<Self>,
        name: &str,
        body: &[u8],
    ) -> anyhow::Result<(String, Option<Duration>)> {
        let pool = self.pools.get(name).with_context(|| format!("no function {name}"))?;
        let mut instance = self.instance(pool).await?;
        let answer = instance.call(body).await?;
        let start = instance.start.take();
        pool.give(instance);
        Ok((answer, start))
    }

    /// One that waits, or the first that is free.
    async fn instance(self: &Arc<Self>, pool: &Arc<Pool>) -> anyhow::Result<Instance> {
        if let Some(idle) = pool.state().idle.pop() {
            return Ok(idle.instance);
        }
        let _waiting = Waiting::new(pool);
        loop {
            // Before the look, so that nothing is missed that is freed after it.
            let mut freed = pin!(pool.freed.notified());
            freed.as_mut().enable();
            let start = {
                let mut state = pool.state();
                if let Some(idle) = state.idle.pop() {
                    return Ok(idle.instance);
                }
                if let Some(failure) = state.failure.take() {
                    bail!(failure);
                }
                let start = state.starting < state.waiting;
                state.starting += usize::from(start);
                start
            };
            if start {
                tokio::spawn(self.clone().start(pool.clone()));
            }
            freed.await;
        }
    }

    /// Starts an instance for whoever waits for one when it is its turn.
    async fn start(self: Arc<Self>, pool: Arc<Pool>) {
        let _turn = self.starting.acquire().await;
        let wanted = {
            let mut state = pool.state();
            let wanted = state.starting <= state.waiting;
            state.starting -= usize::from(!wanted);
            wanted
        };
        if !wanted {
            return;
        }
        self.starts.fetch_add(1, Relaxed);
        let started = Instance::start(&pool.command).await;
        pool.state().starting -= 1;
        match started {
            Ok(instance) => pool.give(instance),
            Err(error) => {
                pool.state().failure = Some(format!("{error:#}"));
                pool.freed.notify_one();
            }
        }
    }
}

/// Ends instances that have waited for `keep_alive`.
async fn reap(front: Arc<Front>, keep_alive: Duration) {
    let mut interval = tokio::time::interval(REAP);
    loop {
        interval.tick().await;
        for pool in front.pools.values() {
            let ended = |idle: &mut Idle| idle.since.elapsed() >= keep_alive;
            let ended: Vec<Idle> = pool.state().idle.extract_if(.., ended).collect();
            drop(ended);
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

async fn respond(front: &Arc<Front>, request: Request<Incoming>) -> Response<Full<Bytes>> {
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
