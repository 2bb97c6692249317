//! `run: script`: JavaScript in an isolate of its own, without permissions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_isolates::{
    Change, DirectCall, Event, FetchError, FieldValue, FunctionSource, Host, HostError, HostFuture,
    IncomingResponse, Isolation, Limits, LogLevel, Module, ModuleGraph, OutgoingRequest, PrepareError,
    Preparing, Program, PublishRequest, Read, Reply, RunError, SocketPermit, StreamedResponse,
    TcpPermission, Trigger,
};
use edgefaas_workflow::{ErrorKind, WorkflowError};
use serde_json::{Value, json};

use super::coordinator::Coordinator;
use super::instance::Running;
use super::run_state::WorkflowResult;

/// A function that runs a script whose text is in the event.
const RUNNER: &str = r#"
const AsyncFunction = (async () => {}).constructor;
export default async function script(event) {
  const { code, arguments: given, environment } = event.json();
  const lines = [];
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const write = (...values) => void lines.push(values.map(text).join(" "));
  const console = { log: write, info: write, warn: write, error: write, debug: write };
  const names = Object.keys(given ?? {});
  const run = new AsyncFunction("console", "env", ...names, code);
  const result = await run(console, environment ?? {}, ...names.map((name) => given[name]));
  return { result: result === undefined ? lines.join("\n") : result };
}
"#;
const MEMORY_BYTES: usize = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);
const REPLY_BYTES: usize = 8 << 20;

impl Coordinator {
    /// Runs a script.
    pub(super) async fn script_step(
        self: &Arc<Self>,
        running: &Running,
        path: &str,
        code: &str,
        input: &Value,
    ) -> WorkflowResult {
        let failed = |detail: String| WorkflowError::new(ErrorKind::Runtime, detail);
        let program = self.script_program().await.map_err(|error| failed(error.to_string()))?;
        let body =
            json!({"code": code, "arguments": input["arguments"], "environment": input["environment"]});
        let event = Event {
            trigger: Trigger::Call(DirectCall { caller: Some(running.workflow.name.to_string()) }),
            body: body.to_string().into(),
        };
        let permit =
            self.invoker.isolate_permit().await.ok_or_else(|| failed("the node is stopping".to_owned()))?;
        let meta = edgefaas_isolates::InvocationMeta {
            id: format!("{}{path}", running.id),
            function: running.workflow.name.to_string(),
            deadline_unix_ms: self.clock.now_unix_ms() + TIMEOUT.as_millis() as u64,
        };
        let limits = Limits {
            memory_bytes: MEMORY_BYTES,
            timeout: TIMEOUT,
            cpu: Duration::MAX,
            reply_bytes: REPLY_BYTES,
        };
        let completion = self.isolates.run(&program, &meta, event, limits, Box::new(NoPermissions)).await;
        drop(permit);
        match completion.result {
            Ok(Reply::Json(text)) => {
                let value: Value = serde_json::from_str(&text).unwrap_or_default();
                Ok(Arc::new(value.get("result").cloned().unwrap_or_default()))
            }
            Ok(_) => Ok(Arc::new(Value::Null)),
            Err(RunError::TimedOut { .. }) => Err(WorkflowError::new(
                ErrorKind::Timeout,
                format!("the script did not end within {TIMEOUT:?}"),
            )),
            Err(error) => Err(failed(error.to_string())),
        }
    }

    async fn script_program(&self) -> Result<Program, PrepareError> {
        let cell = &self.script;
        let made = cell.get_or_try_init(|| async {
            let module =
                Module { path: "script.js".into(), source: RUNNER.into(), imports: Default::default() };
            let source = FunctionSource::JavaScript(ModuleGraph {
                entry: "script.js".into(),
                modules: vec![module],
            });
            let preparing = Preparing {
                name: "script",
                owner: "$script",
                source: &source,
                assets: &[],
                memory_bytes: MEMORY_BYTES,
                isolation: Isolation::Fresh,
                anew: false,
            };
            self.isolates.prepare(preparing).await
        });
        made.await.cloned()
    }
}

/// The host of scripts. It refuses every call.
struct NoPermissions;

fn refused<T>(what: &str) -> Result<T, HostError> {
    Err(HostError::NotPermitted(format!("a script of a workflow has no {what}: make it a function")))
}

impl Host for NoPermissions {
    fn publish(&mut self, _: PublishRequest) -> Result<(), HostError> {
        refused("messages")
    }

    fn call(&mut self, _: String, _: Bytes) -> Result<HostFuture<Result<Reply, HostError>>, HostError> {
        refused("calls")
    }

    fn fetch(
        &mut self,
        _: OutgoingRequest,
    ) -> Result<HostFuture<Result<IncomingResponse, HostError>>, HostError> {
        refused("network")
    }

    fn fetch_streamed(
        &mut self,
        _: OutgoingRequest,
        _: HostFuture<Result<Bytes, HostError>>,
    ) -> Result<HostFuture<Result<StreamedResponse, FetchError>>, HostError> {
        refused("network")
    }

    fn tcp(&mut self) -> Option<TcpPermission> {
        None
    }

    fn socket(&mut self) -> Result<SocketPermit, HostError> {
        refused("network")
    }

    fn resolve(&mut self, _: &str) -> Result<HostFuture<Result<Vec<SocketAddr>, HostError>>, HostError> {
        refused("network")
    }

    fn counter_add(&mut self, _: &str, _: &str, _: i64) -> Result<(), HostError> {
        refused("objects")
    }

    fn counter_value(&mut self, _: &str, _: &str) -> Result<i64, HostError> {
        refused("objects")
    }

    fn register_set(&mut self, _: &str, _: &str, _: Bytes) -> Result<(), HostError> {
        refused("objects")
    }

    fn register_get(&mut self, _: &str, _: &str) -> Result<Option<Bytes>, HostError> {
        refused("objects")
    }

    fn object_change(&mut self, _: &str, _: &str, _: &[&str], _: Change<'_>) -> Result<(), HostError> {
        refused("objects")
    }

    fn object_read(&mut self, _: &str, _: &str, _: &[&str], _: Read<'_>) -> Result<FieldValue, HostError> {
        refused("objects")
    }

    fn object_delete(&mut self, _: &str, _: Option<&str>) -> Result<(), HostError> {
        refused("objects")
    }

    fn log(&mut self, _: LogLevel, _: String) {}

    fn config(&mut self, _: &str) -> Option<String> {
        None
    }

    fn config_keys(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn secret(&mut self, _: &str) -> Option<String> {
        None
    }

    fn secret_names(&mut self) -> Vec<String> {
        Vec::new()
    }
}
