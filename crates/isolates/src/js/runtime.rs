//! The run of an invocation: in an instance on a copy of the snapshot, which is new or was [reset](super::clean), or in a
//! warm one.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_js_abi::{self as abi, INPUT_BYTES, Outcome, Thrown, ThrownKind};
use wasmtime::{PoolConcurrencyLimitError, Store, Trap};

use super::calls;
use super::engine::JsEngine;
use super::instance::JsInstance;
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
    instance: JsInstance,
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
        let (mut store, mut instance, origin) = match isolate {
            Isolate::Warm(warm) => {
                let WarmJs { mut store, instance } = *warm;
                let state = store.data_mut();
                (state.stage, state.limit.bytes) = (Stage::Run(host), allowed_bytes);
                (store, Some(instance), None)
            }
            Isolate::New(reservation) => {
                let (taken, origin) = program.clean.take();
                let (store, instance) =
                    self.clean_store(program, taken, allowed_bytes, reservation, Stage::Run(host));
                (store, instance, Some(origin))
            }
        };
        deadline::arm(&mut store, deadline, cpu_time.clone());
        let mut started = None;
        // Boxed: the future is large, and every future around it would be moved with it.
        let run = Box::pin(handle(
            self,
            program,
            &mut store,
            &mut instance,
            was_warm,
            meta,
            &event,
            limits,
            &mut started,
        ));
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
        let Some(instance) = instance.filter(|_| answered) else { return (completion, None) };
        if !keep {
            // The faults of a thread tell what it has written, and not what others have.
            if let Some(origin) = origin.filter(|_| !cpu_time.has_moved()) {
                self.give_back(program, store, instance, origin, ended - began);
            }
            return (completion, None);
        }
        let state = store.data_mut();
        // An instance near its limit would fail for memory that earlier invocations have left in it.
        let has_room = !state.limit.exceeded && memory_bytes <= limits.memory_bytes / 4 * 3;
        let may_stay = has_room && state.tickets.is_idle();
        if !may_stay {
            return (completion, None);
        }
        // The host is dropped with its invocation.
        state.stage = Stage::Deploy(Vec::new());
        state.limit.reservation.shrink_to_idle(memory_bytes);
        let kept = Some(Box::new(WarmJs { store, instance }));
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
    instance: &mut Option<JsInstance>,
    is_warm: bool,
    meta: &InvocationMeta,
    event: &Event,
    limits: Limits,
    started: &mut Option<Instant>,
) -> wasmtime::Result<Result<Reply, RunError>> {
    // Also for a warm instance: the wall clock may have been set meanwhile.
    store.data_mut().time = engine.guest_clock();
    let instance = match instance {
        Some(instance) => {
            if is_warm {
                instance.reset.call_async(&mut *store, ()).await?;
            }
            instance
        }
        None => {
            let snapshot = program.snapshot.get(engine).await?;
            instance.insert(JsInstance::start(engine, &snapshot, store).await?)
        }
    };
    let message = abi::encode(&messages::invocation(meta, event, rand::random()))?;
    let at = if message.len() <= INPUT_BYTES {
        instance.memory.write(&mut *store, program.snapshot.input() as usize, &message)?;
        program.snapshot.input()
    } else {
        write_to_new_buffer(instance, store, &message).await?
    };
    *started = Some(Instant::now());
    let mut packed = instance.invoke.call_async(&mut *store, (at, message.len() as u32)).await?;
    loop {
        let outcome = calls::message(instance.memory.data(&*store), (packed >> 32) as u32, packed as u32)?;
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
        for (ticket, answer) in answers {
            let at = write_to_new_buffer(instance, store, &answer).await?;
            instance.resolve.call_async(&mut *store, (ticket, at, answer.len() as u32)).await?;
        }
        packed = instance.run_jobs.call_async(&mut *store, ()).await?;
    }
}

/// Writes a message to a buffer that the engine allocates for it.
async fn write_to_new_buffer(
    instance: &JsInstance,
    store: &mut Store<State>,
    message: &[u8],
) -> wasmtime::Result<u32> {
    let at = instance.alloc.call_async(&mut *store, message.len() as u32).await?;
    instance.memory.write(&mut *store, at as usize, message)?;
    Ok(at)
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
