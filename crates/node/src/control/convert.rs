//! Conversion between the node's types and the messages of the control API.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_api::control as proto;
use edgefaas_coordinator::InstanceView;
use edgefaas_functions::invocation::{Outcome, Timing};
use edgefaas_functions::logs::LogLine;
use edgefaas_functions::problem::Problem;
use edgefaas_functions::registry::{LiveApp, LiveFunction, LiveWorkflow};
use edgefaas_functions::trace::{SpanStatus, TraceSpan, TraceSummary, span_id};
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::{
    FunctionSource, GuestMemoryReading, Machine, MemoryLevel, Module, ModuleGraph, Reply,
};

use super::auth::TOKEN_FILE;
use crate::bridge::BridgeStatus;
use crate::gateway::auth::HTTP_TOKEN_FILE;
use crate::memory_plan::MemoryPlan;
use crate::settings_list::{Setting, SettingOrigin, SettingsList};

/// Maximum bytes of the text of access rules in an answer.
const MAX_RULES_BYTES: usize = 64 << 10;

/// The settings in force, with the access rules and the files of tokens.
pub fn settings(
    list: &SettingsList,
    rules: Option<(&Path, String)>,
    data_dir: &Path,
) -> proto::GetSettingsResponse {
    let (rules_file, mut rules) =
        rules.map(|(file, text)| (file.display().to_string(), text)).unwrap_or_default();
    rules.truncate(rules.floor_char_boundary(MAX_RULES_BYTES));
    let setting = |setting: &Setting| {
        let (source, line) = match setting.origin {
            SettingOrigin::Default => ("default", 0),
            SettingOrigin::File { line } => ("file", line),
            SettingOrigin::Option => ("option", 0),
        };
        let (key, value) = (setting.key.clone(), setting.value.clone());
        proto::Setting { key, value, line, source: source.to_owned() }
    };
    proto::GetSettingsResponse {
        file: list.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default(),
        settings: list.settings.iter().map(setting).collect(),
        rules_file,
        rules,
        token_file: data_dir.join(TOKEN_FILE).display().to_string(),
        gateway_token_file: data_dir.join(HTTP_TOKEN_FILE).display().to_string(),
    }
}

/// A trace in a list.
pub fn trace_summary(found: TraceSummary) -> proto::TraceSummary {
    proto::TraceSummary {
        trace_id: found.trace,
        kind: found.kind.word().to_owned(),
        name: found.name,
        started_unix_us: found.started_unix_us,
        duration_us: found.duration_us,
        spans: found.spans,
        error: found.error.unwrap_or_default(),
        running: found.running,
    }
}

/// The sources of a deploy by function.
pub fn sources(artifacts: Vec<proto::Artifact>) -> Result<BTreeMap<String, FunctionSource>, String> {
    let mut sources = BTreeMap::new();
    for artifact in artifacts {
        let source = match artifact.source {
            Some(proto::artifact::Source::Component(wasm)) => FunctionSource::Component(wasm.into()),
            Some(proto::artifact::Source::Modules(graph)) => {
                FunctionSource::JavaScript(module_graph(graph))
            }
            None => return Err(format!("the artifact of function `{}` is empty", artifact.function)),
        };
        if sources.insert(artifact.function.clone(), source).is_some() {
            return Err(format!("function `{}` has two artifacts", artifact.function));
        }
    }
    Ok(sources)
}

/// The assets of a deploy by name.
pub fn assets(assets: Vec<proto::Asset>) -> Result<BTreeMap<String, Bytes>, String> {
    let mut contents = BTreeMap::new();
    for proto::Asset { name, content } in assets {
        if contents.insert(name.clone(), content.into()).is_some() {
            return Err(format!("two assets have the name `{}`", name.escape_debug()));
        }
    }
    Ok(contents)
}

fn module_graph(graph: proto::ModuleGraph) -> ModuleGraph {
    let module = |module: proto::Module| {
        let mut imports: Vec<_> = module.imports.into_iter().collect();
        // Sorted, since the revision's digest must not depend on the order of a map.
        imports.sort();
        Module { path: module.path, source: module.source, imports }
    };
    ModuleGraph { entry: graph.entry, modules: graph.modules.into_iter().map(module).collect() }
}

/// An app in a list; `pending` returns the number of durable invocations of a function, `retryable` that of the failed instances of a
/// workflow that can be retried.
pub fn app(
    app: &LiveApp,
    pending: impl Fn(&str) -> u64,
    retryable: impl Fn(&LiveWorkflow) -> u64,
) -> proto::App {
    proto::App {
        name: app.name.to_string(),
        revision: app.revision.clone(),
        deployed_unix_ms: app.deployed_unix_ms as i64,
        functions: app.functions.iter().map(|live| function(live, pending(&live.name))).collect(),
        previous_revisions: app.previous.clone(),
        workflows: app.workflows.iter().map(|live| workflow(live, retryable(live))).collect(),
        ..proto::App::default()
    }
}

fn workflow(live: &LiveWorkflow, retryable: u64) -> proto::Workflow {
    let figures = &live.figures;
    let read = |figure: &std::sync::atomic::AtomicU64| figure.load(std::sync::atomic::Ordering::Relaxed);
    let (completed, faulted, cancelled) =
        (read(&figures.completed), read(&figures.faulted), read(&figures.cancelled));
    let ended = completed + faulted + cancelled;
    proto::Workflow {
        name: live.name.to_string(),
        version: live.program.version.clone(),
        durable: live.program.durable,
        triggers: live.triggers(),
        started: read(&figures.started),
        completed,
        faulted,
        cancelled,
        rejected: read(&figures.rejected),
        // The coordinator holds them until they are retried or dropped.
        live: read(&figures.live).saturating_sub(retryable),
        retryable,
        mean_us: read(&figures.duration_us).checked_div(ended).unwrap_or(0),
    }
}

fn function(live: &LiveFunction, pending: u64) -> proto::Function {
    let (running, queued) = live.admission.load();
    let (invocations, failures, rejected) = live.metrics.totals();
    let used = live.metrics.reading();
    let micros = |duration: Duration| duration.as_micros() as u64;
    proto::Function {
        name: live.name.to_string(),
        kind: live.kind.clone(),
        source_bytes: live.source_bytes,
        triggers: live.spec.triggers.iter().map(ToString::to_string).collect(),
        error: live.failure().map_or_else(String::new, |error| error.to_string()),
        stats: Some(proto::FunctionStats {
            invocations,
            failures,
            rejected,
            running,
            queued,
            pending,
            cold_starts: used.cold_starts,
            warm_starts: used.warm_starts,
            cpu_us: micros(used.cpu),
            memory_peak_bytes: used.memory_peak_bytes,
            duration_p50_us: micros(used.quantiles[0]),
            duration_p90_us: micros(used.quantiles[1]),
            duration_p99_us: micros(used.quantiles[2]),
        }),
        prepare_us: micros(live.prepared()),
    }
}

/// Outcome of an invocation. `node` is the name of the node that has run it.
pub fn outcome(outcome: Outcome, node: Option<&str>) -> proto::InvokeResponse {
    let Outcome { id, result, timing, .. } = outcome;
    let result = match result {
        Ok(answer) => proto::invoke_response::Outcome::Reply(reply(answer)),
        Err(error) => {
            let Problem { title, status, detail, .. } = Problem::of(&error, None);
            let (status, title) = (status.into(), title.into_owned());
            proto::invoke_response::Outcome::Failure(proto::Failure { status, title, detail })
        }
    };
    let Timing { queue, start, execution } = timing;
    let us = |duration: std::time::Duration| duration.as_micros() as u64;
    proto::InvokeResponse {
        invocation_id: id,
        outcome: Some(result),
        timing: Some(proto::Timing { queue_us: us(queue), start_us: us(start), exec_us: us(execution) }),
        node: node.unwrap_or_default().to_owned(),
    }
}

fn reply(reply: Reply) -> proto::Reply {
    let plain = |kind: &str, body: Vec<u8>| proto::Reply { kind: kind.into(), body, ..Default::default() };
    match reply {
        Reply::None => plain("none", Vec::new()),
        Reply::Json(text) => plain("json", text.into()),
        Reply::Text(text) => plain("text", text.into()),
        Reply::Bytes(bytes) => plain("bytes", bytes.into()),
        Reply::Http(response) => proto::Reply {
            kind: "http".into(),
            body: response.body.into(),
            status: response.status.into(),
            headers: response
                .headers
                .into_iter()
                .map(|(name, value)| proto::Header { name, value })
                .collect(),
        },
    }
}

/// A log line.
pub fn log_line(line: LogLine, lost_before: u64) -> proto::LogLine {
    proto::LogLine {
        time_unix_ms: line.time_unix_ms as i64,
        function: line.function.to_string(),
        invocation_id: line.invocation,
        level: line.level.as_str().to_owned(),
        message: line.message,
        lost_before,
        number: line.number,
    }
}

/// Status of a bridge.
pub fn bridge(status: &BridgeStatus) -> proto::Bridge {
    proto::Bridge {
        name: status.name.clone(),
        url: status.url.clone(),
        connected_since_ms: status.connected_since_unix_ms,
        queued: status.queued,
        messages_in: status.incoming,
        messages_out: status.outgoing,
        dropped: status.dropped,
        last_error: status.last_error.clone().unwrap_or_default(),
    }
}

/// The pool of isolates, with the machine it is sized for.
pub fn pool(pool: &PoolConfig, machine: &Machine) -> proto::Pool {
    proto::Pool {
        max_memory_bytes: pool.max_memory_bytes as u64,
        reservation_bytes: pool.reservation_bytes,
        cores: machine.cores as u32,
        memory_bytes: machine.memory_bytes,
        address_bits: machine.address_bits,
        page_bytes: machine.page_bytes as u32,
        pagemap_scan: machine.pagemap_scan,
        copy_on_write: machine.copy_on_write,
    }
}

/// The memory of the node.
pub fn memory(plan: &MemoryPlan, guests: &GuestMemoryReading, level: Option<MemoryLevel>) -> proto::Memory {
    let share = |share: crate::memory_plan::MemoryShare| proto::MemoryShare {
        name: share.name.to_owned(),
        bytes: share.bytes,
    };
    proto::Memory {
        limit_bytes: plan.limit.bytes,
        limit_source: plan.limit.source.to_string(),
        available_bytes: level.map_or(0, |level| level.available_bytes),
        shares: plan.shares().map(share).to_vec(),
        function_bytes: guests.used_bytes,
        withheld_bytes: guests.withheld_bytes,
        waiting: u32::try_from(guests.waiting).unwrap_or(u32::MAX),
        refused: guests.refused,
    }
}

/// An instance of a workflow.
pub fn instance(view: InstanceView) -> proto::Instance {
    proto::Instance {
        id: view.id.to_string(),
        workflow: view.workflow,
        status: view.status.word().to_owned(),
        started_unix_ms: view.started_unix_ms,
        tasks: view.tasks,
        steps: view.steps,
        durable: view.durable,
        input: view.input,
        context: view.context,
        output: view.output,
        error: view.error,
        version: view.version,
        ended_unix_ms: view.ended_unix_ms,
        key: view.key.unwrap_or_default(),
    }
}

/// A span of a trace.
pub fn span(span: TraceSpan) -> proto::Span {
    let [queue_us, start_us, execution_us, state_us] = span.phases_us;
    proto::Span {
        span_id: span_id(&span.id),
        status: match span.status {
            SpanStatus::Ended => String::new(),
            SpanStatus::Running => "running".to_owned(),
            SpanStatus::Waiting => "waiting".to_owned(),
        },
        id: span.id,
        parent: span.parent.unwrap_or_default(),
        kind: span.kind.word().to_owned(),
        name: span.name,
        started_unix_us: span.started_unix_us,
        duration_us: span.duration_us,
        queue_us,
        start_us,
        execution_us,
        state_us,
        input: span.input,
        output: span.output,
        error: span.error.unwrap_or_default(),
        trace_id: span.trace,
        node: span.node.map(|node| node.to_string()).unwrap_or_default(),
    }
}

/// Free space on the disk.
pub(super) fn disk(space: &edgefaas_state::store::SpaceReading) -> proto::Disk {
    proto::Disk {
        full: space.is_full,
        free_bytes: space.free_bytes,
        needed_bytes: space.needed_bytes,
        refused: space.refused,
    }
}
