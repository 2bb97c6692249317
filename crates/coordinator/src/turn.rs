//! Turns of instances: short ones where the event arrives, long ones on the threads for [computing](super::compute).

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_workflow::instance::{Action, Cut, Instance, NextTask, Note, Outgoing, Permits};
use edgefaas_workflow::{Environment, Event};
use serde_json::Value;

use super::compute::SLICE;
use super::coordinator::Coordinator;
use super::discard::discard;
use super::instance::Running;
use super::outgoing_messages::may_send;
use super::root_budget::NodeBudget;
use super::run_state::{Pace, Refusal, RunState};

/// The longest time that an instance holds a worker.
pub(super) const WORKER_SLICE: Duration = Duration::from_millis(1);
/// The growth of an instance on a worker while memory is short: a share of the free bytes, within this range. An
/// instance that grows more continues on the compute threads, which limit the number of growing instances.
const WORKER_GROWTH_BYTES: std::ops::RangeInclusive<usize> = (2 << 10)..=(64 << 10);
const WORKER_GROWTH_SHARE: usize = 4;
/// The uncharged growth of an instance while memory is short, in bytes.
const SLICE_BYTES: usize = 256 << 10;
/// Tasks between two reads of the clock.
const CLOCK_TASKS: u32 = 8;

/// A paused turn that continues on the compute threads, with its instance.
pub(super) struct Paused {
    instance: Instance,
    /// The event, if it was not delivered yet.
    event: Option<Event>,
    actions: Vec<Action>,
    now_ms: u64,
    unix_ms: u64,
    secrets: Value,
    runtime: Value,
    observed: bool,
    is_refusal: bool,
    /// Time that the turn has used on the compute threads.
    computed: Duration,
}

fn worker_growth_bytes(budget: &NodeBudget) -> usize {
    let (min, max) = WORKER_GROWTH_BYTES.into_inner();
    (budget.bytes().free() / WORKER_GROWTH_SHARE).clamp(min, max)
}

fn take_notes(actions: &mut Vec<Action>) -> Vec<Note> {
    let mut notes = Vec::new();
    let others = std::mem::take(actions).into_iter().filter_map(|action| match action {
        Action::Note(note) => {
            notes.push(note);
            None
        }
        other => Some(other),
    });
    *actions = others.collect();
    notes
}

fn pace_of(turn: Duration) -> Pace {
    if turn > WORKER_SLICE { Pace::Slow } else { Pace::Quick }
}

/// Yields the worker every [`WORKER_SLICE`] in a task that processes many events.
pub(super) struct YieldTimer(Instant);

impl YieldTimer {
    /// The task has the worker from now on.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Yields if the task has had the worker for [`WORKER_SLICE`].
    pub async fn yield_if_due(&mut self) {
        if self.0.elapsed() >= WORKER_SLICE {
            tokio::task::yield_now().await;
            self.0 = Instant::now();
        }
    }
}

impl Coordinator {
    /// Begins a turn with an event while the caller holds the instance's lock. A durable instance gets the times of its
    /// event log.
    ///
    /// # Errors
    /// The turn is long: [`finish_turn`](Self::finish_turn) continues it. Until then the instance receives no other
    /// event.
    pub(super) fn begin_turn(
        &self,
        running: &Running,
        state: &mut RunState,
        event: Event,
        times_ms: Option<(u64, u64)>,
    ) -> Result<Vec<Action>, Box<Paused>> {
        if let Event::Ended { frame, .. } = &event {
            state.open.calls.retain(|(call, _)| call != frame);
            state.open.children.retain(|(child, _)| child != frame);
        }
        let program = &running.workflow.program;
        let secrets = self.secrets_of(&running.workflow);
        let (now_ms, unix_ms) = times_ms.unwrap_or_else(|| (self.time.now_ms(), self.clock.now_unix_ms()));
        let observed =
            running.trace_parent.is_some() || self.has_lifecycle_subscriber(&running.workflow.name);
        let runtime = &self.runtime;
        let memory_bytes = running.memory_bytes;
        let max_message_bytes = self.publisher.max_message_bytes();
        let may_send =
            |outgoing: &Outgoing| may_send(outgoing, &running.workflow.permissions, max_message_bytes);
        let environment = Environment {
            now_ms,
            unix_ms,
            secrets: &secrets,
            runtime,
            observed,
            memory_bytes,
            cut: Cut::Memory,
            permits: Permits::Asked(&may_send),
        };
        let is_refusal = matches!(event, Event::Refuse { .. });
        let (mut actions, mut later) = (Vec::new(), None);
        // A single task may allocate much: while the budget is used up, such turns run one after another.
        let must_wait =
            self.budget.is_spent() && !is_refusal && !Coordinator::may_exceed_budget(&running.workflow);
        // The continuation of a turn is known to be long.
        if matches!(event, Event::Continue)
            || event.is_large()
            || state.computing.pace == Pace::Slow
            || must_wait
        {
            later = Some(event);
        } else {
            let started = Instant::now();
            let (mut tasks, bytes_before) = (0, state.instance.bytes());
            actions = state.instance.begin(program, event, &environment, &mut |next| {
                tasks += 1;
                next.is_quick
                    && (tasks % CLOCK_TASKS != 0 || started.elapsed() < WORKER_SLICE)
                    && (!self.budget.is_tight()
                        || next.bytes <= bytes_before + worker_growth_bytes(&self.budget))
            });
            // The filters of a message run without slices.
            state.computing.pace = pace_of(started.elapsed());
        }
        if later.is_none() && !state.instance.is_paused() {
            self.turn_ended(running, state, is_refusal);
            return Ok(actions);
        }
        let stand_in = state.instance.stand_in();
        let instance = std::mem::replace(&mut state.instance, stand_in);
        self.settle(running, state);
        // The instance is in `Paused`, and its charge stays.
        state.charge_for(running.input_bytes, instance.bytes());
        let runtime = runtime.clone();
        Err(Box::new(Paused {
            instance,
            event: later,
            actions,
            now_ms,
            unix_ms,
            secrets,
            runtime,
            observed,
            is_refusal,
            computed: Duration::ZERO,
        }))
    }

    /// Finishes a paused turn. `None` if the node stops; the instance is then removed.
    pub(super) async fn finish_turn(
        &self,
        running: &Arc<Running>,
        paused: Box<Paused>,
    ) -> Option<Vec<Action>> {
        // A slot of an earlier turn would block this turn.
        running.has_settled();
        let (of, program) = (running.clone(), running.workflow.program.clone());
        let bytes = paused.instance.bytes();
        let mut paused = Some(paused);
        let max_message_bytes = self.publisher.max_message_bytes();
        let turn = self.compute.run(bytes, move || {
            let mut turn = paused.take()?;
            let Paused { now_ms, unix_ms, observed, .. } = *turn;
            let may_send =
                |outgoing: &Outgoing| may_send(outgoing, &of.workflow.permissions, max_message_bytes);
            let environment = Environment {
                now_ms,
                unix_ms,
                secrets: &turn.secrets,
                runtime: &turn.runtime,
                observed,
                memory_bytes: of.memory_bytes,
                cut: Cut::Memory,
                permits: Permits::Asked(&may_send),
            };
            let started = Instant::now();
            let (bytes_before, budget) = (turn.instance.bytes(), &of.root.node);
            let goes_on = &mut |next: NextTask| {
                let may_grow = next.bytes < bytes_before + SLICE_BYTES || !budget.is_tight();
                started.elapsed() < SLICE && may_grow
            };
            let more = match turn.event.take() {
                Some(event) => turn.instance.begin(&program, event, &environment, goes_on),
                None => turn.instance.resume(&program, &environment, goes_on),
            };
            turn.actions.extend(more);
            turn.computed += started.elapsed();
            if turn.instance.is_paused() {
                // The bytes are charged now; a refusal is possible only at the end of the turn.
                of.charge(turn.instance.bytes());
                paused = Some(turn);
                return None;
            }
            Some(turn)
        });
        let (turn, slot) = turn.await?;
        let Paused { instance, mut actions, is_refusal, computed, .. } = *turn;
        {
            let mut state = running.state.lock();
            let stand_in = std::mem::replace(&mut state.instance, instance);
            let bytes = stand_in.bytes();
            // The stand-in may hold values that the instance has released.
            discard(stand_in, bytes);
            state.computing.slot = Some(slot);
            state.computing.pace = pace_of(computed);
            self.turn_ended(running, &mut state, is_refusal);
        }
        // Thousands of notes must not block the worker.
        let mut timer = YieldTimer::start();
        for note in take_notes(&mut actions) {
            timer.yield_if_due().await;
            self.note(running, &note);
        }
        Some(actions)
    }

    fn turn_ended(&self, running: &Running, state: &mut RunState, is_refusal: bool) {
        if is_refusal {
            state.budget.refusal = Refusal::Delivered { steps: state.instance.steps() };
        }
        self.settle(running, state);
    }
}
