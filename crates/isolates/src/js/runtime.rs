//! The run of an invocation: in a new instance on a copy of the snapshot, or in a warm one.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_js_abi::{self as abi, INPUT_BYTES, Outcome, Thrown, ThrownKind};
use wasmtime::{
    Instance, ModuleExport, PoolConcurrencyLimitError, Store, Trap, TypedFunc, WasmParams, WasmResults,
};

use super::calls;
use super::engine::JsEngine;
use super::messages;
use super::program::JsProgram;
use super::stack::Files;
use super::state::{Stage, State};
use crate::cpu_time::{Counted, CpuTime, TimeUsed};
use crate::deadline::{self, DeadlinePassed};
use crate::reply::check_reply;
use crate::run_resources::{Isolate, RunResources};
use crate::{Completion, Event, Host, InternalError, InvocationMeta, Limits, Reply, RunError};

/// An instance between two invocations.
pub(crate) struct WarmJs {
    store: Store<State>,
    instance: Instance,
}

impl JsEngine {
    /// Runs the program's handler on one event. Returns the instance if `resources.keep` and it may have another event: the
    /// handler has answered, and no host call of it is in flight.
    ///
    /// Ends at the latest after `limits.timeout`. Dropping the future ends the run and cancels its host calls.
    pub(crate) async fn run_in(
        &self,
        program: &JsProgram,
        resources: RunResources<WarmJs>,
        meta: &InvocationMeta,
        event: Event,
        limits: Limits,
        host: Box<dyn Host>,
    ) -> (Completion, Option<Box<WarmJs>>) {
        let began = Instant::now();
        program.snapshot.note_use();
        let deadline = began + limits.timeout;
        let RunResources { isolate, keep, cpu_time } = resources;
        let was_warm = matches!(isolate, Isolate::Warm(_));
        // Assets are not the function's own.
        let allowed_bytes = limits.memory_bytes + program.assets.memory_bytes;
        let (mut store, mut instance) = match isolate {
            Isolate::Warm(warm) => {
                let WarmJs { mut store, instance } = *warm;
                let state = store.data_mut();
                (state.stage, state.limit.bytes) = (Stage::Run(host), allowed_bytes);
                (store, Some(instance))
            }
            Isolate::New(reservation) => {
                let (files, assets) = (program.files.clone(), program.assets.clone());
                (self.store(Stage::Run(host), allowed_bytes, files, assets, reservation), None)
            }
        };
        deadline::arm(&mut store, deadline, cpu_time.clone());
        let mut started = None;
        // Boxed: the future is large, and every future around it would be moved with it.
        let run =
            Box::pin(handle(self, program, &mut store, &mut instance, meta, &event, limits, &mut started));
        let run = Counted::new(cpu_time.clone(), run);
        let result = match deadline::limit(deadline, run).await {
            Ok(result) => result.unwrap_or_else(|error| Err(run_error(self, &error, &store, limits))),
            Err(DeadlinePassed) => Err(RunError::TimedOut { limit: limits.timeout }),
        };
        let ended = Instant::now();
        let started = started.unwrap_or(ended);
        let memory_bytes = store.data().memory.map_or(0, |memory| memory.data_size(&store));
        let memory_bytes = memory_bytes.saturating_sub(program.assets.memory_bytes);
        let answered = matches!(
            result,
            Ok(_)
                | Err(RunError::Failed { .. }
                    | RunError::InvalidReply { .. }
                    | RunError::ReplyTooLarge { .. })
        );
        let completion = Completion {
            result,
            start: started - began,
            execution: ended - started,
            cpu: cpu_time.spent(),
            memory_bytes,
            warm: was_warm,
        };
        let state = store.data_mut();
        // An instance near its limit would fail for memory that earlier invocations have left in it.
        let has_room = !state.limit.exceeded && memory_bytes <= limits.memory_bytes / 4 * 3;
        let may_stay = keep && answered && has_room && state.tickets.is_idle();
        let kept = instance.filter(|_| may_stay).map(|instance| {
            // The host is dropped with its invocation.
            let state = store.data_mut();
            state.stage = Stage::Deploy(Vec::new());
            state.limit.reservation.shrink_to_idle(memory_bytes);
            Box::new(WarmJs { store, instance })
        });
        (completion, kept)
    }

    /// Runs the program's handler on one event, in an isolate of its own.
    ///
    /// Ends at the latest after `limits.timeout`. Dropping the future ends the run and cancels its host calls.
    pub async fn run(
        &self,
        program: &JsProgram,
        meta: &InvocationMeta,
        event: Event,
        limits: Limits,
        host: Box<dyn Host>,
    ) -> Completion {
        let isolate = Isolate::New(self.no_reservation());
        let cpu_time = CpuTime::new(limits.cpu, Arc::default());
        let resources = RunResources { isolate, keep: false, cpu_time };
        self.run_in(program, resources, meta, event, limits, host).await.0
    }
}

/// Runs the handler until it has answered. The outer error ends the isolate, the inner is the function's.
#[expect(clippy::too_many_arguments, reason = "one invocation, with the instance it may have")]
async fn handle(
    engine: &JsEngine,
    program: &JsProgram,
    store: &mut Store<State>,
    warm: &mut Option<Instance>,
    meta: &InvocationMeta,
    event: &Event,
    limits: Limits,
    started: &mut Option<Instant>,
) -> wasmtime::Result<Result<Reply, RunError>> {
    // Also for a warm instance: the wall clock may have been set meanwhile.
    store.data_mut().time = engine.guest_clock();
    let instance = match *warm {
        Some(instance) => {
            let reset: TypedFunc<(), ()> = function(instance, store, &engine.exports.reset)?;
            reset.call_async(&mut *store, ()).await?;
            instance
        }
        None => *warm.insert(program.snapshot.get(engine).await?.start(&engine.code, store).await?),
    };
    let message = abi::encode(&messages::invocation(meta, event, rand::random()))?;
    let exports = &engine.exports;
    let invoke: TypedFunc<(u32, u32), u64> = function(instance, store, &exports.invoke)?;
    let at = if message.len() <= INPUT_BYTES {
        write(store, program.snapshot.input(), &message)?;
        program.snapshot.input()
    } else {
        write_to_new_buffer(engine, instance, store, &message).await?
    };
    *started = Some(Instant::now());
    let mut packed = invoke.call_async(&mut *store, (at, message.len() as u32)).await?;
    loop {
        let Some(memory) = store.data().memory else { wasmtime::bail!("the isolate has no memory") };
        let outcome = calls::message(memory.data(&*store), (packed >> 32) as u32, packed as u32)?;
        match abi::decode(outcome)? {
            Outcome::Done(reply) => return Ok(check_reply(messages::reply(reply), limits)),
            Outcome::InvalidReply(reason) => return Ok(Err(RunError::InvalidReply { reason })),
            Outcome::Failed(thrown) => return Ok(Err(failed(thrown, &program.files, store, limits))),
            Outcome::Pending => {}
        }
        let Some(answers) = store.data_mut().tickets.next().await else {
            // What had no memory for its answer leaves a promise behind that nothing settles.
            let refused = is_refused(store);
            return Ok(Err(if refused { out_of_memory(store, limits) } else { RunError::NeverSettles }));
        };
        let resolve: TypedFunc<(u32, u32, u32), ()> = function(instance, store, &exports.resolve)?;
        for (ticket, answer) in answers {
            let at = write_to_new_buffer(engine, instance, store, &answer).await?;
            resolve.call_async(&mut *store, (ticket, at, answer.len() as u32)).await?;
        }
        let run_jobs: TypedFunc<(), u64> = function(instance, store, &exports.run_jobs)?;
        packed = run_jobs.call_async(&mut *store, ()).await?;
    }
}

fn function<P: WasmParams, R: WasmResults>(
    instance: Instance,
    store: &mut Store<State>,
    export: &ModuleExport,
) -> wasmtime::Result<TypedFunc<P, R>> {
    let function = instance.get_module_export(&mut *store, export).and_then(|export| export.into_func());
    match function {
        Some(function) => function.typed(&*store),
        None => wasmtime::bail!("the engine lacks an export"),
    }
}

/// Writes a message to a buffer that the engine allocates for it.
async fn write_to_new_buffer(
    engine: &JsEngine,
    instance: Instance,
    store: &mut Store<State>,
    message: &[u8],
) -> wasmtime::Result<u32> {
    let alloc: TypedFunc<u32, u32> = function(instance, store, &engine.exports.alloc)?;
    let at = alloc.call_async(&mut *store, message.len() as u32).await?;
    write(store, at, message)?;
    Ok(at)
}

fn write(store: &mut Store<State>, at: u32, message: &[u8]) -> wasmtime::Result<()> {
    let Some(memory) = store.data().memory else { wasmtime::bail!("the isolate has no memory") };
    Ok(memory.write(&mut *store, at as usize, message)?)
}

fn failed(thrown: Thrown, files: &Files, store: &Store<State>, limits: Limits) -> RunError {
    let Thrown { kind, message, stack } = thrown;
    let shown = files.show(&stack);
    match kind {
        ThrownKind::OutOfMemory => out_of_memory(store, limits),
        // Without memory for an error object, QuickJS throws null.
        ThrownKind::Error if is_refused(store) && stack.is_empty() => out_of_memory(store, limits),
        ThrownKind::StackOverflow => RunError::StackOverflow { location: shown.location },
        ThrownKind::Error => RunError::Failed { message, location: shown.location, stack: shown.stack },
    }
}

/// True if the isolate's memory could not grow.
fn is_refused(store: &Store<State>) -> bool {
    let limit = &store.data().limit;
    limit.exceeded || limit.reservation.refusal().is_some()
}

/// The limit that its memory hit: the function's own, or the node's.
fn out_of_memory(store: &Store<State>, limits: Limits) -> RunError {
    let limit = &store.data().limit;
    let own = RunError::OutOfMemory { limit_bytes: limits.memory_bytes };
    match limit.exceeded {
        true => own,
        false => limit.reservation.refusal().unwrap_or(own),
    }
}

/// The error of a run that ended its isolate.
fn run_error(engine: &JsEngine, error: &wasmtime::Error, store: &Store<State>, limits: Limits) -> RunError {
    if error.downcast_ref::<DeadlinePassed>().is_some() {
        return RunError::TimedOut { limit: limits.timeout };
    }
    if error.downcast_ref::<TimeUsed>().is_some() {
        return RunError::CpuTimeUsed { limit: limits.cpu };
    }
    if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        return RunError::NoCapacity { limit: engine.pool.max_isolates };
    }
    if is_refused(store) {
        return out_of_memory(store, limits);
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => RunError::StackOverflow { location: None },
        Some(trap) => RunError::Trapped {
            message: format!("the JavaScript engine: {trap}"),
            location: None,
            stack: Some(format!("{error:?}")),
        },
        None => InternalError::Engine { detail: format!("{error:#}") }.into(),
    }
}
