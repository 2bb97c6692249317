//! Durable instances on the disk: how they started, and every event since.
//!
//! ```text
//! 'w' ID 0            how it started
//! 'w' ID 1..          the events that it was told, in order
//! 'w' ID INBOX+n      events that were accepted and that it was not told yet
//! 'w' ID OUTCOME      what came of it, until the instance that waits for it has it
//! 'w' ID SNAPSHOT     itself after some of the events, which are gone then
//! 'd' DIGEST          the definition of instances
//! 'q' NUMBER          an event that may start a workflow, until its filter is evaluated
//! ```
//!
//! An instance is the sum of its events ([`Instance::advance`] is a pure function), so that what happened is all there
//! is to write. An event and what the function that caused it has changed are one batch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use edgefaas_functions::durable::AnswerTo;
use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_state::store::{Batch, StoreError};
use edgefaas_workflow::instance::{Action, Cut, FrameId, Instance};
use edgefaas_workflow::{Environment, Event, WorkflowError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use ulid::Ulid;

use super::actions::child_id;
use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::instance::{Running, Start};
use super::lanes::{Arrival, StartEvent, filter_of};
use super::root::RootBudget;
use super::run_state::{End, RunState};

/// What the keys of instances start with.
const INSTANCE: u8 = b'w';
/// What the keys of definitions start with.
const DEFINITION: u8 = b'd';
/// First byte of the keys of events that may start workflows.
const START_EVENT: u8 = b'q';
const START: u32 = 0;
const INBOX: u32 = 0xF000_0000;
const OUTCOME: u32 = 0xFFFF_FFFD;
const SNAPSHOT: u32 = 0xFFFF_FFFE;
/// The version of all formats here.
const FORMAT: u8 = 1;
/// Events after which an instance is written as it is, and they are deleted.
const EVENTS: u32 = 64;
/// It is not written where that takes so many times what it holds, and more than this.
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
    /// Without: no limit.
    #[serde(default)]
    memory_bytes: Option<u64>,
    depth: u8,
    trace_parent: Option<String>,
    parent: Option<(u128, FrameId)>,
    /// The root instance, if this is a descendant of one.
    #[serde(default)]
    root: Option<u128>,
    answer: Option<AnswerTo>,
    seed: u64,
    started_unix_ms: u64,
}

#[derive(Serialize, Deserialize)]
struct EventRecord {
    now_ms: u64,
    unix_ms: u64,
    event: Event,
    /// Where its turn ended, see [`Instance::cut_after`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cut_after: Option<u32>,
}

/// An event that an instance is being told, to be written when its turn has ended.
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
    // Numbers, texts and JSON only: this cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

impl Coordinator {
    /// What is written of a start before anybody is told that it was accepted.
    pub(super) fn start_entries(&self, running: &Running, state: &mut RunState) -> Vec<(Vec<u8>, Vec<u8>)> {
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
            parent: running.parent.map(|(id, frame)| (id.0, frame)),
            root: (running.root.id() != running.id).then(|| running.root.id().0),
            answer: running.answer.clone(),
            seed: running.id.0 as u64,
            started_unix_ms: state.instance.started_unix_ms(),
        };
        let mut entries = vec![(key(running.id, START), encode(&record))];
        // Once for all instances; it does not matter if it is there already.
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
        EventRecord { now_ms, unix_ms, event: event.clone(), cut_after: None }
    }

    /// Gives the place in the log to an event that an instance is about to be told. The event is added to `batch` by
    /// [`log_turn`](Self::log_turn).
    pub(super) fn log_event(
        &self,
        running: &Running,
        state: &mut RunState,
        event: &Event,
        inbox: Option<u32>,
        batch: &mut Batch,
    ) -> Logged {
        let space = &self.store.spaces().invocations;
        for (key, value) in self.start_entries(running, state) {
            batch.put(space, key, value);
        }
        let logged = Logged { key: key(running.id, state.log.next), record: self.event_record(event) };
        state.log.next += 1;
        if let Some(number) = inbox.filter(|number| *number >= INBOX) {
            batch.delete(space, key(running.id, number));
        }
        // The one that it ran has told what came of it.
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
        let record = EventRecord { cut_after: state.instance.cut_after(), ..record };
        batch.put(&self.store.spaces().invocations, key, encode(&record));
    }

    /// Adds what an instance has come to.
    pub(super) fn log_state(&self, running: &Running, state: &mut RunState, batch: &mut Batch) {
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
        // What thousands of branches share would be there for each of them: their events are less.
        let most = SNAPSHOT_SHARE.saturating_mul(state.instance.bytes() as u64).max(MIN_SNAPSHOT_BYTES);
        if state.instance.written_bytes() > most {
            return;
        }
        let now_ms = self.time.now_ms();
        let Ok(bytes) = state.instance.to_bytes(now_ms) else { return };
        let Ok(instance) = String::from_utf8(bytes) else { return };
        let record = SnapshotRecord { next: state.log.next, now_ms, instance };
        batch.put(space, key(running.id, SNAPSHOT), encode(&record));
        for number in state.log.snapshot.max(1)..state.log.next {
            batch.delete(space, key(running.id, number));
        }
        state.log.snapshot = state.log.next;
    }

    /// Forgets an instance that failed: what it has in memory at once, the rest when the future is awaited.
    pub(super) fn drop_faulted(
        self: &Arc<Self>,
        running: &Running,
    ) -> impl Future<Output = ()> + Send + use<> {
        let batch = self.take_faulted(running);
        let (coordinator, id) = (self.clone(), running.id);
        async move {
            let committer = coordinator.store.committer();
            if let Err(error) = committer.commit(batch, edgefaas_state::store::Durability::Written).await {
                tracing::warn!(instance = %id, %error, "an instance that failed stays on the disk, and is there at the next start");
            }
        }
    }

    /// Takes an instance that failed out of memory; gives what is to be deleted.
    fn take_faulted(&self, running: &Running) -> Batch {
        let mut batch = Batch::default();
        let state = running.state.lock();
        // It may have been retried meanwhile.
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

    /// Brings back the instances that had not ended. What they had asked for is asked for again.
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
        // Their time goes on where it was.
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
                // Events that came too late for it.
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
                Err(reason) => {
                    // There may be room for it after another start.
                    left.extend(
                        serde_json::from_slice::<StartRecord>(start).ok().map(|start| start.digest),
                    );
                    tracing::error!(instance = %Ulid(id), reason, "an instance cannot be brought back");
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
                tracing::warn!(%error, "old definitions could not be deleted");
            }
        });
        // First all of them: some wait for others.
        for (running, queued) in back {
            self.resume(&running, queued, &outcomes);
        }
        self.recover_start_events()
    }

    /// Goes on with the events that may start workflows and were not evaluated.
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
                // Its workflow is not deployed any more, or listens to something else.
                obsolete.delete(&space, key.to_vec());
                continue;
            };
            // Times of the node's own clock do not outlive it.
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
                tracing::warn!(%error, "events of former workflows could not be deleted");
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
    ) -> Result<(Arc<Running>, Vec<Queued>), String> {
        let start: StartRecord = serde_json::from_slice(start).map_err(|error| error.to_string())?;
        if start.format != FORMAT {
            return Err(format!("its format {} is not known", start.format));
        }
        let workflow = match live.get(&start.digest) {
            Some(workflow) => workflow.clone(),
            None => {
                let text = definitions.get(&start.digest).ok_or("its definition is not there")?;
                let text = String::from_utf8_lossy(text);
                let permissions =
                    self.registry.routes().workflow(&start.workflow).map(|now| now.permissions.clone());
                let app: Arc<str> = start.app.as_str().into();
                let file = format!("{} (as it was)", start.workflow);
                let workflow = LiveWorkflow::compile(&app, &file, &text, permissions.unwrap_or_default());
                let workflow = Arc::new(workflow.map_err(|error| error.to_string())?);
                live.insert(start.digest, workflow.clone());
                workflow
            }
        };
        let root = start.root.unwrap_or(id.0);
        let new_root = || self.root_budget(Ulid(root));
        let root = roots.entry(root).or_insert_with(new_root).clone();
        let running = self
            .enter_workflow(Start {
                workflow,
                input: Arc::new(start.input),
                input_bytes: start.input_bytes,
                id,
                // Those that were there before have their places.
                depth: start.depth.max(1),
                root: Some(root),
                is_recovered: true,
                memory_bytes: Some(start.memory_bytes.unwrap_or(u64::MAX)),
                trace_parent: start.trace_parent,
                parent: start.parent.map(|(id, frame)| (Ulid(id), frame)),
                answer: start.answer,
            })
            .map_err(|error| error.to_string())?;
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
                    serde_json::from_slice(snapshot).map_err(|error| error.to_string())?;
                state.instance = Instance::from_bytes(record.instance.as_bytes(), program, record.now_ms)
                    .map_err(|error| error.to_string())?;
                (state.log.next, state.log.snapshot) = (record.next, record.next);
            }
            for (number, value) in entries.range(state.log.next.max(1)..INBOX) {
                let record: EventRecord =
                    serde_json::from_slice(value).map_err(|error| error.to_string())?;
                let environment = Environment {
                    now_ms: record.now_ms,
                    unix_ms: record.unix_ms,
                    secrets: &secrets,
                    runtime: &self.runtime,
                    observed: false,
                    memory_bytes: running.memory_bytes,
                    cut: Cut::Recorded(record.cut_after),
                };
                // What it asked for then has been done, or is asked for again below. A turn goes on with the event that says so.
                state.instance.advance(program, record.event, &environment);
                state.log.next = number + 1;
            }
            for (number, value) in entries.range(INBOX..OUTCOME) {
                let record: EventRecord =
                    serde_json::from_slice(value).map_err(|error| error.to_string())?;
                running.inbox.lock().not_before(number - INBOX + 1);
                queued.push(Queued::from_inbox(record.event, *number));
            }
            // Its failure was told before.
            if state.instance.status() == edgefaas_workflow::Status::Faulted {
                state.end = End::Reported;
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
            };
            let actions = state.instance.outstanding(&program, &environment);
            self.settle(running, &mut state);
            actions
        };
        let mut rest = Vec::new();
        for action in actions {
            if let Action::Workflow { frame, wait: true, .. } = &action
                && let Some(outcome) = outcomes.get(&child_id(running.id, *frame).0)
                && let Ok(result) = serde_json::from_slice::<Result<Arc<Value>, WorkflowError>>(outcome)
            {
                running.state.lock().open.children.push((*frame, child_id(running.id, *frame)));
                self.spawn_drive(running.clone(), Queued::now(Event::Ended { frame: *frame, result }));
                continue;
            }
            rest.push(action);
        }
        if let Some(asked) = self.perform(running, rest, false) {
            self.spawn_asked(running, asked);
        }
        for queued in queued {
            self.tell_in_order(running, queued);
        }
        running.workflow.figures.started.fetch_sub(1, Relaxed);
        if matches!(running.state.lock().end, End::Reported) {
            self.faulted.lock().push_back(running.id);
        }
        // It may have been cut off between its end and the word about it.
        self.ended_if(running);
    }
}
