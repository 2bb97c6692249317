//! An engine with a host that records what functions do.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};

use bytes::Bytes;
use edgefaas_isolates::engine::{self, EpochClock, PoolConfig};
use edgefaas_isolates::js::{JsEngine, JsProgram, PrepareError, engine_code_wasm};
use edgefaas_isolates::{
    Change, Completion, DirectCall, Event, FetchError, FieldValue, Host, HostError, HostFuture,
    HttpRequest, HttpResponse, IncomingResponse, InvocationMeta, Limits, LogLevel, Module, ModuleGraph,
    MqttMessage, NODE_KEY, OutgoingRequest, PublishRequest, Read, Reply, RunError, SocketPermit,
    StreamedResponse, TcpPermission, Trigger,
};
use edgefaas_platform::Clock;
use futures_util::stream;
use tokio::sync::Notify;

/// Compiling the engine takes seconds, so the tests of this process share it.
struct Shared {
    engine: wasmtime::Engine,
    code: wasmtime::Module,
    clock: EpochClock,
    pool: PoolConfig,
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| {
    let pool = PoolConfig { max_isolates: 50, ..PoolConfig::default() };
    let engine = engine::build(pool).unwrap();
    let clock = EpochClock::start(engine.clone()).unwrap();
    let code = wasmtime::Module::new(&engine, engine_code_wasm().unwrap()).unwrap();
    Shared { engine, code, clock, pool }
});

/// The wall clock of a new [`Bench`], in milliseconds since the Unix epoch.
pub const WALL_UNIX_MS: u64 = 1_800_000_000_000;

/// The size of a piece of a large answer.
const PIECE_BYTES: usize = 100_000;

pub struct Bench {
    pub engine: JsEngine,
    wall_unix_ms: Arc<AtomicU64>,
    pub meta: InvocationMeta,
    record: Arc<Mutex<Record>>,
    failure: Option<HostError>,
}

#[derive(Debug, Default, Clone)]
pub struct Record {
    pub published: Vec<PublishRequest>,
    pub logs: Vec<(LogLevel, String)>,
    pub counters: HashMap<String, i64>,
    pub registers: HashMap<String, Bytes>,
    /// Changes of other fields and of entries of maps: object, field, path and change.
    pub changes: Vec<String>,
    /// The same for what was read.
    pub reads: Vec<String>,
    /// What a field of an object or an entry of a map answers; any other is not found.
    pub values: HashMap<String, FieldValue>,
    /// The node as JSON, and how often a function has asked for it.
    pub node: Option<String>,
    pub asked_for_node: usize,
    /// Requests to other servers that are under way.
    pub fetching: usize,
}

impl Bench {
    pub fn new() -> Self {
        let shared = &*SHARED;
        let wall_unix_ms = Arc::new(AtomicU64::new(WALL_UNIX_MS));
        let wall = wall_unix_ms.clone();
        let clock = Clock::new(move || wall.load(Relaxed));
        let js = JsEngine::new(&shared.engine, shared.code.clone(), shared.pool, clock).unwrap();
        let meta = InvocationMeta {
            id: "inv-1".into(),
            function: "test".into(),
            deadline_unix_ms: 1_900_000_000_000,
        };
        Self { engine: js, wall_unix_ms, meta, record: Arc::default(), failure: None }
    }

    /// Sets the wall clock.
    pub fn set_wall(&self, unix_ms: u64) {
        self.wall_unix_ms.store(unix_ms, Relaxed);
    }

    /// A bench on which the function "fail" fails with `error`.
    pub fn failing(error: HostError) -> Self {
        Self { failure: Some(error), ..Self::new() }
    }

    pub async fn prepare(&self, graph: &ModuleGraph) -> Result<JsProgram, PrepareError> {
        self.prepare_within(graph, Limits::default().memory_bytes).await
    }

    pub async fn prepare_within(
        &self,
        graph: &ModuleGraph,
        memory_bytes: usize,
    ) -> Result<JsProgram, PrepareError> {
        let _running = SHARED.clock.running();
        self.engine.prepare(graph, memory_bytes).await
    }

    pub async fn run(&self, program: &JsProgram, event: Event) -> Completion {
        self.run_within(program, event, Limits::default()).await
    }

    pub async fn run_within(&self, program: &JsProgram, event: Event, limits: Limits) -> Completion {
        let _running = SHARED.clock.running();
        sendable(self.engine.run(program, &self.meta, event, limits, self.host())).await
    }

    pub fn record(&self) -> Record {
        self.record.lock().unwrap().clone()
    }

    /// What `read` of a place, such as `object.field/key`, will answer.
    pub fn answers(&self, place: &str, read: Read<'_>, value: FieldValue) {
        self.record.lock().unwrap().values.insert(format!("{place} {read:?}"), value);
    }

    /// Sets the node, as its name, zone and labels.
    pub fn set_node(&self, json: &str) {
        self.record.lock().unwrap().node = Some(json.to_owned());
    }

    pub fn host(&self) -> Box<dyn Host> {
        Box::new(Recorder {
            record: self.record.clone(),
            met: Arc::default(),
            failure: self.failure.clone(),
        })
    }
}

struct Recorder {
    record: Arc<Mutex<Record>>,
    met: Arc<(Mutex<u32>, Notify)>,
    failure: Option<HostError>,
}

fn permit(kind: &str, name: &str) -> Result<(), HostError> {
    if name == "forbidden" { Err(HostError::NotPermitted(format!("{kind} {name}"))) } else { Ok(()) }
}

fn place(object: &str, field: &str, path: &[&str]) -> String {
    [&[&*format!("{object}.{field}")], path].concat().join("/")
}

/// A change with its bytes as text.
fn shown(change: Change<'_>) -> String {
    let bytes = match change {
        Change::RegisterSet(bytes)
        | Change::MvRegisterSet(bytes)
        | Change::GSetAdd(bytes)
        | Change::SetAdd(bytes)
        | Change::SetRemove(bytes)
        | Change::ListInsert { value: bytes, .. }
        | Change::ListPush(bytes)
        | Change::ListSet { value: bytes, .. } => Some(std::str::from_utf8(bytes).unwrap()),
        _ => None,
    };
    let debug = format!("{change:?}");
    match bytes {
        Some(text) => format!("{} {text}", &debug[..debug.find('[').unwrap()]),
        None => debug,
    }
}

/// Waits until two are here.
async fn two_here(met: &(Mutex<u32>, Notify)) {
    let here = {
        let mut here = met.0.lock().unwrap();
        *here += 1;
        *here
    };
    if here < 2 { met.1.notified().await } else { met.1.notify_one() }
}

/// A request that is under way.
struct Running(Arc<Mutex<Record>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap().fetching -= 1;
    }
}

impl Host for Recorder {
    fn publish(&mut self, message: PublishRequest) -> Result<(), HostError> {
        permit("publish", &message.topic)?;
        self.record.lock().unwrap().published.push(message);
        Ok(())
    }

    fn call(
        &mut self,
        function: String,
        data: Bytes,
    ) -> Result<HostFuture<Result<Reply, HostError>>, HostError> {
        permit("call", &function)?;
        let text = || String::from_utf8(data.to_vec()).unwrap();
        let reply = match function.as_str() {
            "meet" => {
                let (met, text) = (self.met.clone(), text());
                return Ok(Box::pin(async move {
                    two_here(&met).await;
                    Ok(Reply::Text(text))
                }));
            }
            "echo-json" => Reply::Json(text()),
            "echo-text" => Reply::Text(text()),
            "echo-bytes" => Reply::Bytes(data),
            "echo-http" => Reply::Http(HttpResponse {
                status: 418,
                headers: vec![("x".into(), "y".into())],
                body: data,
            }),
            "echo-none" => Reply::None,
            "fail" => {
                let error = self.failure.clone().expect("only where it is meant to fail");
                return Ok(Box::pin(async move {
                    tokio::task::yield_now().await;
                    Err(error)
                }));
            }
            _ => return Err(HostError::NotFound(function)),
        };
        Ok(Box::pin(async {
            tokio::task::yield_now().await;
            Ok(reply)
        }))
    }

    fn fetch(
        &mut self,
        _: OutgoingRequest,
    ) -> Result<HostFuture<Result<IncomingResponse, HostError>>, HostError> {
        unreachable!("bodies of answers come in pieces")
    }

    /// Answers with what it was asked; the path of the URL chooses how.
    fn fetch_streamed(
        &mut self,
        request: OutgoingRequest,
        body: HostFuture<Result<Bytes, HostError>>,
    ) -> Result<HostFuture<Result<StreamedResponse, FetchError>>, HostError> {
        let (_, rest) = request.url.split_once("://").expect("an absolute URL");
        let (host, path) = rest.split_once('/').expect("a path");
        permit("fetch", host)?;
        let mut headers = vec![("x-method".to_owned(), request.method)];
        headers.push(("x-redirect".to_owned(), format!("{:?}", request.redirect)));
        headers.extend(request.headers);
        let url = request.url.clone();
        let sent = stream::once(async move { body.await.map_err(FetchError::from) });
        let mut response = StreamedResponse {
            status: 200,
            headers,
            body_bytes: None,
            body: Box::pin(sent),
            url,
            redirected: false,
        };
        match path.split_once('/').unwrap_or((path, "")) {
            ("never", _) => {
                self.record.lock().unwrap().fetching += 1;
                let running = Running(self.record.clone());
                return Ok(Box::pin(async move {
                    let _running = running;
                    std::future::pending().await
                }));
            }
            ("fail", _) => {
                let error = HostError::Failed("connection refused".into());
                return Ok(Box::pin(std::future::ready(Err(error.into()))));
            }
            ("meet", _) => {
                let met = self.met.clone();
                return Ok(Box::pin(async move {
                    two_here(&met).await;
                    Ok(response)
                }));
            }
            // Pieces of 100,000 bytes, each of its own number.
            (kind @ ("sized" | "chunked" | "broken"), pieces) => {
                let pieces: u8 = pieces.parse().unwrap();
                let sizes = (0..pieces).map(|number| Ok(Bytes::from(vec![number; PIECE_BYTES])));
                let lost = (kind == "broken")
                    .then(|| Err(FetchError::from(HostError::Failed("connection lost".into()))));
                response.body_bytes = (kind == "sized").then_some(u64::from(pieces) * PIECE_BYTES as u64);
                response.body = Box::pin(stream::iter(sizes.chain(lost)));
            }
            ("status", status) => response.status = status.parse().unwrap(),
            ("moved", target) => {
                response.url = format!("http://{host}/{target}");
                response.redirected = true;
            }
            _ => {}
        }
        Ok(Box::pin(std::future::ready(Ok(response))))
    }

    fn tcp(&mut self) -> Option<TcpPermission> {
        None
    }

    fn socket(&mut self) -> Result<SocketPermit, HostError> {
        Err(HostError::NotPermitted("a socket".to_owned()))
    }

    fn resolve(&mut self, name: &str) -> Result<HostFuture<Result<Vec<SocketAddr>, HostError>>, HostError> {
        Err(HostError::NotPermitted(name.to_owned()))
    }

    fn counter_add(&mut self, object: &str, field: &str, amount: i64) -> Result<(), HostError> {
        permit("object", object)?;
        *self.record.lock().unwrap().counters.entry(format!("{object}.{field}")).or_default() += amount;
        Ok(())
    }

    fn counter_value(&mut self, object: &str, field: &str) -> Result<i64, HostError> {
        permit("object", object)?;
        Ok(self.record.lock().unwrap().counters.get(&format!("{object}.{field}")).copied().unwrap_or(0))
    }

    fn register_set(&mut self, object: &str, field: &str, value: Bytes) -> Result<(), HostError> {
        permit("object", object)?;
        self.record.lock().unwrap().registers.insert(format!("{object}.{field}"), value);
        Ok(())
    }

    fn register_get(&mut self, object: &str, field: &str) -> Result<Option<Bytes>, HostError> {
        permit("object", object)?;
        Ok(self.record.lock().unwrap().registers.get(&format!("{object}.{field}")).cloned())
    }

    fn object_change(
        &mut self,
        object: &str,
        field: &str,
        path: &[&str],
        change: Change<'_>,
    ) -> Result<(), HostError> {
        permit("object", object)?;
        self.record.lock().unwrap().changes.push(format!(
            "{} {}",
            place(object, field, path),
            shown(change)
        ));
        Ok(())
    }

    fn object_read(
        &mut self,
        object: &str,
        field: &str,
        path: &[&str],
        read: Read<'_>,
    ) -> Result<FieldValue, HostError> {
        permit("object", object)?;
        let asked = format!("{} {read:?}", place(object, field, path));
        let mut record = self.record.lock().unwrap();
        record.reads.push(asked.clone());
        record.values.get(&asked).cloned().ok_or(HostError::NotFound(asked))
    }

    fn object_delete(&mut self, object: &str, field: Option<&str>) -> Result<(), HostError> {
        permit("object", object)?;
        let changed = match field {
            Some(field) => format!("{object}.{field} deleted"),
            None => format!("{object} deleted"),
        };
        self.record.lock().unwrap().changes.push(changed);
        Ok(())
    }

    fn log(&mut self, level: LogLevel, message: String) {
        self.record.lock().unwrap().logs.push((level, message));
    }

    fn config(&mut self, key: &str) -> Option<String> {
        match key {
            "GREETING" => Some("\"hello\"".into()),
            "limit" => Some("3".into()),
            NODE_KEY => {
                let mut record = self.record.lock().unwrap();
                record.asked_for_node += 1;
                record.node.clone()
            }
            _ => None,
        }
    }

    fn config_keys(&mut self) -> Vec<String> {
        vec!["GREETING".into(), "limit".into()]
    }

    fn secret(&mut self, name: &str) -> Option<String> {
        (name == "API_KEY").then(|| "s3cret".into())
    }

    fn secret_names(&mut self) -> Vec<String> {
        vec!["API_KEY".into()]
    }
}

/// A function of one module.
pub fn graph(path: &str, source: &str) -> ModuleGraph {
    files(&[(path, source)], &[])
}

/// A function of several modules; `imports` are (importer, specifier, target).
pub fn files(files: &[(&str, &str)], imports: &[(&str, &str, &str)]) -> ModuleGraph {
    let modules = files.iter().map(|(path, source)| Module {
        path: (*path).to_owned(),
        source: (*source).to_owned(),
        imports: imports
            .iter()
            .filter(|(importer, _, _)| importer == path)
            .map(|(_, specifier, target)| ((*specifier).to_owned(), (*target).to_owned()))
            .collect(),
    });
    ModuleGraph { entry: files[0].0.to_owned(), modules: modules.collect() }
}

pub fn call(body: &str) -> Event {
    Event { trigger: Trigger::Call(DirectCall::default()), body: Bytes::copy_from_slice(body.as_bytes()) }
}

pub fn mqtt(topic: &str, payload: &str) -> Event {
    let message = MqttMessage { topic: topic.into(), ..MqttMessage::default() };
    Event { trigger: Trigger::Mqtt(message), body: Bytes::copy_from_slice(payload.as_bytes()) }
}

pub fn http(method: &str, path: &str, query: &str, body: &str) -> Event {
    let request =
        HttpRequest { method: method.into(), path: path.into(), query: query.into(), headers: Vec::new() };
    Event { trigger: Trigger::Http(request), body: Bytes::copy_from_slice(body.as_bytes()) }
}

/// The value of a JSON reply.
pub fn json(reply: Result<Reply, RunError>) -> serde_json::Value {
    match reply {
        Ok(Reply::Json(text)) => serde_json::from_str(&text).unwrap(),
        other => panic!("expected a JSON reply, got {other:?}"),
    }
}

/// The text of a text reply.
pub fn text(reply: Result<Reply, RunError>) -> String {
    match reply {
        Ok(Reply::Text(text)) => text,
        other => panic!("expected a text reply, got {other:?}"),
    }
}

/// A run can be spawned on any runtime.
fn sendable<F: Future + Send>(run: F) -> F {
    run
}
