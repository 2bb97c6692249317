//! Event log of durable instances: the start of an instance and every event since.
//!
//! ```text
//! 'w' ID 0            start record
//! 'w' ID 1..          delivered events, in order
//! 'w' ID INBOX+n      accepted events, not yet delivered
//! 'w' ID OUTCOME      result, until the parent instance has it
//! 'w' ID SNAPSHOT     state after some of the events, which are then deleted
//! 'd' DIGEST          definition of a workflow
//! 'q' NUMBER          event that may start a workflow, until its filter is evaluated
//! 'c', 'z'            what start rules have counted, see [`rule_log`](super::rule_log)
//! ```
//!
//! [`kept_instances`](super::kept_instances) has the records of ended instances. The state of an instance follows from its events ([`Instance::advance`] is a pure function), so only the events are
//! stored. The result of a function that has changed objects is committed with these changes, as an accepted event; with
//! messages alone, it is committed with its turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use edgefaas_functions::durable::{AnswerTo, KeyClaim};
use edgefaas_functions::invocation::InvocationError;
use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_functions::trace::Entry;
use edgefaas_state::store::{Batch, StoreError};
use edgefaas_workflow::instance::{Action, Cut, FrameId, Instance, Permits, Refused, SnapshotError};
use edgefaas_workflow::{DefinitionError, Environment, Event, WorkflowError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::actions::child_id;
use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::function_step::{frame_of_call, frames_with_results};
use super::instance::{Running, Start};
use super::kept_call::KeptCall;
use super::kept_instances::KeptEnd;
use super::place::Place;
use super::root_budget::RootBudget;
use super::run_state::{End, LoggedEnd, RunState};
use super::spans::OpenSpans;
use super::start_lanes::{Arrival, StartEvent, filter_of};

/// First byte of the keys of instances.
const INSTANCE: u8 = b'w';
/// First byte of the keys of definitions.
const DEFINITION: u8 = b'd';
/// First byte of the keys of events that may start workflows.
const START_EVENT: u8 = b'q';
const START: u32 = 0;
const INBOX: u32 = 0xF000_0000;
const OUTCOME: u32 = 0xFFFF_FFFD;
const SNAPSHOT: u32 = 0xFFFF_FFFE;
/// The version of all formats here.
const FORMAT: u8 = 1;
/// A snapshot replaces the events of an instance after this many of them.
const EVENTS: u32 = 64;
/// A snapshot is not written if it takes more than [`SNAPSHOT_SHARE`] times the instance's memory and more than
/// [`MIN_SNAPSHOT_BYTES`].
const SNAPSHOT_SHARE: u64 = 4;
const MIN_SNAPSHOT_BYTES: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
struct StartRecord {
    format: u8,
    workflow: String,
    app: String,
    digest: [u8; 32],
    input: Value,
    input_bytes: usize,
    /// `None`: no limit.
    #[serde(default)]
    memory_bytes: Option<u64>,
    depth: u8,
    trace_parent: Option<String>,
    #[serde(default)]
    entry: Entry,
    parent: Option<(u128, FrameId)>,
    /// The root instance, if this is a descendant of one.
    #[serde(default)]
    root: Option<u128>,
    answer: Option<AnswerTo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept_call: Option<KeptCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
    seed: u64,
    started_unix_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct EventRecord {
    now_ms: u64,
    unix_ms: u64,
    event: Event,
    /// The end of its turn, see [`Instance::cut_after`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cut_after: Option<u32>,
    /// See [`Instance::refused`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    refused: Vec<Refused>,
}

/// An event of the current turn. It is added to the batch when the turn has ended.
pub(super) struct Logged {
    key: Vec<u8>,
    record: EventRecord,
}

impl Logged {
    /// Monotonic and wall clock time of the event, in milliseconds.
    pub fn times_ms(&self) -> (u64, u64) {
        (self.record.now_ms, self.record.unix_ms)
    }
}

#[derive(Serialize, Deserialize)]
struct SnapshotRecord {
    next: u32,
    now_ms: u64,
    instance: String,
    /// The spans of the tasks that run or wait.
    #[serde(default)]
    spans: OpenSpans,
}

fn key(id: Ulid, number: u32) -> Vec<u8> {
    let mut key = vec![INSTANCE];
    key.extend_from_slice(&id.0.to_be_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn parse_key(key: &[u8]) -> Option<(Ulid, u32)> {
    let (id, number) = key.strip_prefix(&[INSTANCE])?.split_at_checked(16)?;
    Some((Ulid(u128::from_be_bytes(id.try_into().ok()?)), u32::from_be_bytes(number.try_into().ok()?)))
}

fn definition_key(digest: &[u8; 32]) -> Vec<u8> {
    let mut key = vec![DEFINITION];
    key.extend_from_slice(digest);
    key
}

#[derive(Serialize, Deserialize)]
struct StartEventRecord {
    format: u8,
    workflow: String,
    source: u32,
    event: Value,
    arrival: Arrival,
}

pub(super) fn start_event_key(number: u64) -> Vec<u8> {
    let mut key = vec![START_EVENT];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// An entry for an event that may start a workflow.
pub(super) fn start_event_entry(workflow: &str, number: u64, event: &StartEvent) -> (Vec<u8>, Vec<u8>) {
    let record = StartEventRecord {
        format: FORMAT,
        workflow: workflow.to_owned(),
        source: event.source,
        event: (*event.event).clone(),
        arrival: event.arrival.clone(),
    };
    (start_event_key(number), encode(&record))
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    // The records hold numbers, text and JSON only: encoding cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

/// A stored instance cannot be recovered.
#[derive(Debug, thiserror::Error)]
enum RecoverError {
    /// A record of the event log cannot be read. The number is that of its key.
    #[error("record {number} of its event log cannot be read: {error}")]
    Unreadable { number: u32, error: serde_json::Error },
    /// Another version of the node has written the start record.
    #[error("its format {format} is not known")]
    UnknownFormat { format: u8 },
    /// The definition of its workflow is neither deployed nor on the disk.
    #[error("the definition of its workflow `{workflow}` is missing")]
    MissingDefinition { workflow: String },
    /// The definition of its workflow does not compile.
    #[error("the definition of its workflow `{workflow}` does not compile: {error}")]
    Definition { workflow: String, error: Box<DefinitionError> },
    /// A budget has no room for the instance, or the node stops.
    #[error("it is not admitted: {0}")]
    NotAdmitted(Box<InvocationError>),
    /// The snapshot is damaged, or does not fit the definition.
    #[error("its snapshot cannot be used: {0}")]
    Snapshot(#[from] SnapshotError),
}

impl Coordinator {
    /// The entries of a start. They are stored before the start is acknowledged.
    pub(super) fn start_entries(
        &self,
        running: &Running,
        state: &mut RunState,
        claim: Option<&KeyClaim>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        if std::mem::replace(&mut state.log.started, true) {
            return Vec::new();
        }
        state.log.next = 1;
        let record = StartRecord {
            format: FORMAT,
            workflow: running.workflow.name.to_string(),
            app: running.workflow.app.to_string(),
            digest: running.workflow.digest,
            input: state.instance.input().to_json(),
            input_bytes: running.input_bytes,
            memory_bytes: Some(running.memory_bytes),
            depth: running.depth,
            trace_parent: running.trace_parent.clone(),
            entry: running.entry,
            parent: running.parent.map(|(id, frame)| (id.0, frame)),
            root: (running.root.id() != running.id).then(|| running.root.id().0),
            answer: running.answer.clone(),
            kept_call: running.kept_call.clone(),
            place: running.held.as_ref().map(|held| held.place),
            seed: running.id.0 as u64,
            started_unix_ms: state.instance.started_unix_ms(),
        };
        let mut entries = vec![(key(running.id, START), encode(&record))];
        entries.extend(self.kept_entries(running, claim));
        // One entry serves all instances of the definition. A repeated write has no effect.
        if self.definitions.lock().insert(running.workflow.digest) {
            let text = running.workflow.text.as_bytes().to_vec();
            entries.push((definition_key(&running.workflow.digest), text));
        }
        entries
    }

    /// An entry for an event that has been accepted, and its number.
    pub(super) fn inbox_entry(&self, running: &Running, event: &Event) -> (u32, Vec<u8>, Vec<u8>) {
        let number = INBOX + running.inbox.lock().take_number();
        (number, key(running.id, number), encode(&self.event_record(event)))
    }

    fn event_record(&self, event: &Event) -> EventRecord {
        let (now_ms, unix_ms) = (self.time.now_ms(), self.clock.now_unix_ms());
        EventRecord { now_ms, unix_ms, event: event.clone(), cut_after: None, refused: Vec::new() }
    }

    /// Assigns the next number in the event log to an event that is about to be delivered. [`log_turn`](Self::log_turn)
    /// adds the event to a batch.
    pub(super) fn log_event(
        &self,
        running: &Running,
        state: &mut RunState,
        event: &Event,
        inbox: Option<u32>,
        batch: &mut Batch,
    ) -> Logged {
        let space = &self.store.spaces().invocations;
        for (key, value) in self.start_entries(running, state, None) {
            batch.put(space, key, value);
        }
        if matches!(event, Event::Retry) {
            self.reopen_end(running, state, batch);
        }
        let logged = Logged { key: key(running.id, state.log.next), record: self.event_record(event) };
        state.log.next += 1;
        if let Some(number) = inbox.filter(|number| *number >= INBOX) {
            batch.delete(space, key(running.id, number));
        }
        // The child has reported its result.
        if let Event::Ended { frame, .. } = event
            && state.open.children.iter().any(|(child, _)| child == frame)
        {
            batch.delete(space, key(child_id(running.id, *frame), OUTCOME));
        }
        logged
    }

    /// Adds an event whose turn has ended.
    pub(super) fn log_turn(&self, state: &RunState, logged: Logged, batch: &mut Batch) {
        let Logged { key, record } = logged;
        let record = EventRecord {
            cut_after: state.instance.cut_after(),
            refused: state.instance.refused().to_vec(),
            ..record
        };
        batch.put(&self.store.spaces().invocations, key, encode(&record));
    }

    /// Adds the state of an instance: a snapshot when one is due, the deletion of its entries when it has ended. Returns the
    /// record of its end, if that is kept.
    pub(super) fn log_state(
        &self,
        running: &Running,
        state: &mut RunState,
        actions: &[Action],
        batch: &mut Batch,
    ) -> Option<KeptEnd> {
        let kept = self.log_end(running, state, batch);
        self.log_snapshot(running, state, actions, batch);
        kept
    }

    fn log_snapshot(&self, running: &Running, state: &mut RunState, actions: &[Action], batch: &mut Batch) {
        let space = &self.store.spaces().invocations;
        if state.instance.status().is_ended()
            && state.instance.status() != edgefaas_workflow::Status::Faulted
        {
            for number in state.log.snapshot..state.log.next {
                batch.delete(space, key(running.id, number));
            }
            batch.delete(space, key(running.id, START));
            batch.delete(space, key(running.id, SNAPSHOT));
            let parent = running.parent.and_then(|(id, _)| self.find(id));
            if parent.is_some_and(|parent| parent.is_durable())
                && let Some(result) = state.instance.result()
            {
                batch.put(space, key(running.id, OUTCOME), encode(result));
            }
            return;
        }
        if state.log.next - state.log.snapshot <= EVENTS {
            return;
        }
        // A snapshot repeats values that thousands of branches share; the events are then smaller.
        let max_bytes =
            SNAPSHOT_SHARE.saturating_mul(state.instance.bytes() as u64).max(MIN_SNAPSHOT_BYTES);
        if state.instance.written_bytes() > max_bytes {
            return;
        }
        let now_ms = self.time.now_ms();
        let Ok(bytes) = state.instance.to_bytes(now_ms) else { return };
        let Ok(instance) = String::from_utf8(bytes) else { return };
        // The notes of the turn are handled after the commit.
        let mut spans = state.spans.clone();
        spans.turn(&self.traces, running, actions, self.clock.now_unix_us());
        let record = SnapshotRecord { next: state.log.next, now_ms, instance, spans };
        batch.put(space, key(running.id, SNAPSHOT), encode(&record));
        for number in state.log.snapshot.max(1)..state.log.next {
            batch.delete(space, key(running.id, number));
        }
        state.log.snapshot = state.log.next;
    }

    /// Drops a failed instance: its memory immediately, its entries on the disk when the future is awaited, in one batch with
    /// `changes`.
    pub(super) fn drop_faulted(
        self: &Arc<Self>,
        running: &Running,
        changes: Batch,
    ) -> impl Future<Output = ()> + Send + use<> {
        let mut batch = self.take_faulted(running);
        batch.append(changes);
        let (coordinator, id) = (self.clone(), running.id);
        async move {
            let committer = coordinator.store.committer();
            if let Err(error) = committer.commit(batch, edgefaas_state::store::Durability::Written).await {
                tracing::warn!(instance = %id, %error, "a failed instance could not be deleted: the next start recovers it");
            }
        }
    }

    /// Removes a failed instance from memory. Returns the deletions of its entries.
    fn take_faulted(self: &Arc<Self>, running: &Running) -> Batch {
        let mut batch = Batch::default();
        let state = running.state.lock();
        // The instance may have been retried in the meantime.
        if state.instance.status() != edgefaas_workflow::Status::Faulted {
            return batch;
        }
        let space = &self.store.spaces().invocations;
        for number in state.log.snapshot..state.log.next {
            batch.delete(space, key(running.id, number));
        }
        batch.delete(space, key(running.id, START));
        batch.delete(space, key(running.id, SNAPSHOT));
        drop(state);
        self.forget(running);
        batch
    }

    /// Recovers the instances that had not ended, and repeats their pending calls.
    pub fn recover_all(self: &Arc<Self>) -> Result<(), StoreError> {
        let space = self.store.spaces().invocations.clone();
        let mut found: BTreeMap<u128, BTreeMap<u32, Vec<u8>>> = BTreeMap::new();
        for entry in space.prefix([INSTANCE]) {
            let (bytes, value) = entry.into_inner()?;
            if let Some((id, number)) = parse_key(&bytes) {
                found.entry(id.0).or_default().insert(number, value.to_vec());
            }
        }
        let mut definitions: BTreeMap<[u8; 32], Vec<u8>> = BTreeMap::new();
        for entry in space.prefix([DEFINITION]) {
            let (bytes, value) = entry.into_inner()?;
            if let Ok(digest) = <[u8; 32]>::try_from(&bytes[1..]) {
                definitions.insert(digest, value.to_vec());
            }
        }
        // The clock of the instances continues after their latest event.
        let latest = |value: &Vec<u8>| {
            serde_json::from_slice::<EventRecord>(value).map_or(0, |record| record.now_ms)
        };
        let last = found
            .values()
            .flat_map(|entries| entries.range(1..OUTCOME))
            .map(|(_, value)| latest(value))
            .max();
        self.time.not_before(last.unwrap_or(0));
        let snapshots = found.values().filter_map(|entries| entries.get(&SNAPSHOT));
        let written = snapshots.filter_map(|value| serde_json::from_slice::<SnapshotRecord>(value).ok());
        let last = written.map(|record| record.now_ms).max();
        self.time.not_before(last.unwrap_or(0));
        let mut live: BTreeMap<[u8; 32], Arc<LiveWorkflow>> = BTreeMap::new();
        for workflow in self.registry.routes().workflows() {
            live.insert(workflow.digest, workflow.clone());
        }
        let mut roots = BTreeMap::new();
        let mut outcomes = BTreeMap::new();
        let (mut back, mut stray, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (id, entries) in found {
            if let Some(outcome) = entries.get(&OUTCOME) {
                outcomes.insert(id, outcome.clone());
            }
            let Some(start) = entries.get(&START) else {
                // These events arrived after the instance had ended.
                stray.extend(
                    entries
                        .keys()
                        .filter(|number| **number != OUTCOME)
                        .map(|number| key(Ulid(id), *number)),
                );
                continue;
            };
            match self.recover(Ulid(id), start, &entries, &definitions, &mut live, &mut roots) {
                Ok(recovered) => back.push(recovered),
                Err(error) => {
                    // The next start may have room for the instance, so its definition is kept.
                    left.extend(
                        serde_json::from_slice::<StartRecord>(start).ok().map(|start| start.digest),
                    );
                    tracing::error!(instance = %Ulid(id), %error, "an instance cannot be recovered");
                }
            }
        }
        let used: std::collections::HashSet<[u8; 32]> = back
            .iter()
            .map(|(running, _): &(Arc<Running>, Vec<Queued>)| running.workflow.digest)
            .chain(left)
            .collect();
        let mut unused = Batch::default();
        stray.into_iter().for_each(|key| unused.delete(&space, key));
        for digest in definitions.keys().filter(|digest| !used.contains(*digest)) {
            unused.delete(&space, definition_key(digest));
        }
        *self.definitions.lock() = used;
        let coordinator = self.clone();
        self.workers.spawn(async move {
            let committer = coordinator.store.committer();
            if let Err(error) = committer.commit(unused, edgefaas_state::store::Durability::Written).await {
                tracing::warn!(%error, "unused workflow definitions could not be deleted");
            }
        });
        // All instances are recovered before the first resumes, since some wait for others. Those that have a place begin
        // in its order, after the one that had begun.
        for (running, _) in &back {
            let Some(held) = &running.held else { continue };
            self.places.not_before(held.place.number);
            let state = running.state.lock();
            if state.log.next > 1 && !matches!(state.end, End::Reported) {
                self.places.resume(held.place, running.id);
            }
        }
        back.sort_by_key(|(running, _)| running.held.as_ref().map(|held| held.place.number));
        for (running, queued) in back {
            self.resume(&running, queued, &outcomes);
        }
        self.recover_rules()?;
        self.recover_start_events()
    }

    /// Recovers the events that may start workflows and were not evaluated.
    fn recover_start_events(self: &Arc<Self>) -> Result<(), StoreError> {
        let space = self.store.spaces().invocations.clone();
        let mut obsolete = Batch::default();
        for entry in space.prefix([START_EVENT]) {
            let (key, value) = entry.into_inner()?;
            let number = key.get(1..).and_then(|number| number.try_into().ok()).map(u64::from_be_bytes);
            let Some(number) = number else { continue };
            self.start_events_from(number + 1);
            let record: Option<StartEventRecord> = serde_json::from_slice(&value).ok();
            let known = record.filter(|record| record.format == FORMAT).and_then(|record| {
                let workflow = self.registry.routes().workflow(&record.workflow)?.clone();
                let filter = filter_of(&workflow, record.source)?;
                Some((workflow, record, filter))
            });
            let Some((workflow, StartEventRecord { source, event, arrival, .. }, filter)) = known else {
                // The workflow is no longer deployed, or has another filter.
                obsolete.delete(&space, key.to_vec());
                continue;
            };
            // Times of the monotonic clock are invalid after a restart.
            let arrival = Arrival { now_ms: self.time.now_ms(), ..arrival };
            let event =
                StartEvent { source, filter, event: Arc::new(event), arrival, number: Some(number) };
            self.enqueue_recovered(&workflow.name, event);
        }
        let coordinator = self.clone();
        self.workers.spawn(async move {
            let committer = coordinator.store.committer();
            if let Err(error) = committer.commit(obsolete, edgefaas_state::store::Durability::Written).await
            {
                tracing::warn!(%error, "start events of removed workflows could not be deleted");
            }
        });
        self.drain_recovered();
        Ok(())
    }

    fn recover(
        self: &Arc<Self>,
        id: Ulid,
        start: &[u8],
        entries: &BTreeMap<u32, Vec<u8>>,
        definitions: &BTreeMap<[u8; 32], Vec<u8>>,
        live: &mut BTreeMap<[u8; 32], Arc<LiveWorkflow>>,
        roots: &mut BTreeMap<u128, Arc<RootBudget>>,
    ) -> Result<(Arc<Running>, Vec<Queued>), RecoverError> {
        let unreadable = |number| move |error| RecoverError::Unreadable { number, error };
        let start: StartRecord = serde_json::from_slice(start).map_err(unreadable(START))?;
        if start.format != FORMAT {
            return Err(RecoverError::UnknownFormat { format: start.format });
        }
        let workflow = match live.get(&start.digest) {
            Some(workflow) => workflow.clone(),
            None => {
                let text = definitions.get(&start.digest);
                let text = text
                    .ok_or_else(|| RecoverError::MissingDefinition { workflow: start.workflow.clone() })?;
                let text = String::from_utf8_lossy(text);
                let now = self.registry.routes().workflow(&start.workflow).cloned();
                let permissions = now.as_ref().map(|now| now.permissions.clone());
                let app: Arc<str> = start.app.as_str().into();
                let file = format!("{} (as it was)", start.workflow);
                let workflow = LiveWorkflow::compile(&app, &file, &text, permissions.unwrap_or_default());
                let mut workflow = workflow.map_err(|error| RecoverError::Definition {
                    workflow: start.workflow.clone(),
                    error: Box::new(error),
                })?;
                workflow.keep_figures(now.as_deref());
                let workflow = Arc::new(workflow);
                live.insert(start.digest, workflow.clone());
                workflow
            }
        };
        let new_root = || match start.root {
            None => self.root_budget(id),
            Some(root) => self.root_elsewhere(Ulid(root)),
        };
        let root = roots.entry(start.root.unwrap_or(id.0)).or_insert_with(new_root).clone();
        let running = self
            .enter_workflow(Start {
                workflow,
                input: Arc::new(start.input),
                input_bytes: start.input_bytes,
                id,
                // The depth limit does not apply to recovered instances.
                depth: start.depth.max(1),
                root: Some(root),
                is_recovered: true,
                memory_bytes: Some(start.memory_bytes.unwrap_or(u64::MAX)),
                trace_parent: start.trace_parent,
                entry: start.entry,
                parent: start.parent.map(|(id, frame)| (Ulid(id), frame)),
                answer: start.answer,
                kept_call: start.kept_call,
                place: start.place,
            })
            .map_err(|error| RecoverError::NotAdmitted(Box::new(error)))?;
        let mut queued = Vec::new();
        {
            let mut state = running.state.lock();
            let state = &mut *state;
            state.log.started = true;
            state.log.next = 1;
            let program = &running.workflow.program;
            let secrets = self.secrets_of(&running.workflow);
            state.instance = Instance::new(
                id.to_string().into(),
                Arc::new(state.instance.input().to_json()),
                start.seed,
                start.started_unix_ms,
            );
            if let Some(snapshot) = entries.get(&SNAPSHOT) {
                let record: SnapshotRecord =
                    serde_json::from_slice(snapshot).map_err(unreadable(SNAPSHOT))?;
                state.instance = Instance::from_bytes(record.instance.as_bytes(), program, record.now_ms)?;
                (state.log.next, state.log.snapshot) = (record.next, record.next);
                state.spans = record.spans;
            }
            for (number, value) in entries.range(state.log.next.max(1)..INBOX) {
                let record: EventRecord = serde_json::from_slice(value).map_err(unreadable(*number))?;
                let environment = Environment {
                    now_ms: record.now_ms,
                    unix_ms: record.unix_ms,
                    secrets: &secrets,
                    runtime: &self.runtime,
                    observed: running.trace_parent.is_some() && self.traces.is_on(),
                    memory_bytes: running.memory_bytes,
                    cut: Cut::Recorded(record.cut_after),
                    permits: Permits::Recorded(&record.refused),
                };
                // The other actions of a recorded event are dropped here: they are done, or `resume` repeats them.
                // `Event::Continue` continues a turn.
                let actions = state.instance.advance(program, record.event, &environment);
                let unix_us = record.unix_ms.saturating_mul(1000);
                for span in state.spans.turn(&self.traces, &running, &actions, unix_us) {
                    self.traces.restore(span, |text| self.mask(&running, text));
                }
                state.log.next = number + 1;
            }
            for (number, value) in entries.range(INBOX..OUTCOME) {
                let record: EventRecord = serde_json::from_slice(value).map_err(unreadable(*number))?;
                running.inbox.lock().not_before(number - INBOX + 1);
                queued.push(Queued::from_inbox(record.event, *number));
            }
            // The failure was reported before the restart.
            if state.instance.status() == edgefaas_workflow::Status::Faulted {
                state.end = End::Reported;
                state.log.end = LoggedEnd::Written;
                state.ended_unix_ms = self.kept_instance(id).map_or(0, |kept| kept.ended_unix_ms);
            }
            if state.log.next == 1 {
                queued.insert(0, Queued::now(Event::Start));
            }
        }
        Ok((running, queued))
    }

    fn resume(
        self: &Arc<Self>,
        running: &Arc<Running>,
        queued: Vec<Queued>,
        outcomes: &BTreeMap<u128, Vec<u8>>,
    ) {
        let actions = {
            let mut state = running.state.lock();
            let program = running.workflow.program.clone();
            let secrets = self.secrets_of(&running.workflow);
            let environment = Environment {
                now_ms: self.time.now_ms(),
                unix_ms: self.clock.now_unix_ms(),
                secrets: &secrets,
                runtime: &self.runtime,
                observed: false,
                memory_bytes: running.memory_bytes,
                cut: Cut::Memory,
                // Open tasks have sent their messages.
                permits: Permits::ANY_MESSAGE,
            };
            let actions = state.instance.outstanding(&program, &environment);
            self.settle(running, &mut state);
            actions
        };
        let mut rest = Vec::new();
        let done = frames_with_results(&queued);
        for action in actions {
            if frame_of_call(&action).is_some_and(|frame| done.contains(&frame)) {
                continue;
            }
            if let Action::Workflow { frame, wait: true, .. } = &action
                && let Some(outcome) = outcomes.get(&child_id(running.id, *frame).0)
                && let Ok(result) = serde_json::from_slice::<Result<Arc<Value>, WorkflowError>>(outcome)
            {
                running.state.lock().open.children.push((*frame, child_id(running.id, *frame)));
                self.spawn_advance(running.clone(), Queued::now(Event::Ended { frame: *frame, result }));
                continue;
            }
            rest.push(action);
        }
        if let Some(pending) = self.perform(running, rest, false) {
            self.spawn_call(running, pending);
        }
        let has_place = running.held.is_some();
        for queued in queued {
            match has_place && matches!(queued.event, Event::Start) {
                true => self.begin_in_order(running.clone(), queued, None),
                false => self.deliver_in_order(running, queued),
            }
        }
        running.workflow.figures.started.fetch_sub(1, Relaxed);
        if matches!(running.state.lock().end, End::Reported) {
            self.faulted.lock().push_back(running.id);
        }
        // The node may have stopped between the instance's end and its report.
        self.report_if_ended(running);
    }
}
