//! Events of start rules on the disk: what a durable workflow has counted is still counted after a restart.
//!
//! ```text
//! 'c' WORKFLOW NUMBER     an event that the rule has counted, or a time at which it has fired
//! 'z' WORKFLOW            state of the rule after some of them, which are then deleted
//! ```
//!
//! A record is committed in one batch with the instances that it starts. At the start of the node the records after the state are
//! counted again, and what fires then is dropped: it has started already. The time of the rule goes on where it ended.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use edgefaas_broker::{Change, Space, Ticket};
use edgefaas_functions::durable::{Digest, digest};
use edgefaas_functions::registry::{LiveWorkflow, has_rule};
use edgefaas_state::store::{Batch, Durability, StoreError};
use edgefaas_workflow::synthesizer::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::coordinator::Coordinator;
use super::start_rules::StartRule;

/// First byte of the keys of records.
const RECORD: u8 = b'c';
/// First byte of the keys of states.
const STATE: u8 = b'z';
/// The version of both formats.
const FORMAT: u8 = 1;
/// A state is written after this many records at least, and after as many as the rule keeps events.
const MIN_RECORDS: usize = 64;

/// What a rule has counted.
#[derive(Serialize, Deserialize)]
enum Counted {
    /// An event of the filter with this index.
    Event { source: u32, event: Arc<Value> },
    /// A time at which it fired.
    Tick,
}

#[derive(Serialize, Deserialize)]
struct Record {
    format: u8,
    /// The definition of the workflow.
    definition: [u8; 32],
    /// The time at which the rule began.
    since_ms: u64,
    now_ms: u64,
    counted: Counted,
}

#[derive(Serialize, Deserialize)]
struct StateRecord {
    format: u8,
    definition: [u8; 32],
    now_ms: u64,
    /// The number of the last record in the state.
    up_to: u64,
    state: State,
}

/// Numbers of the records of a rule on the disk.
#[derive(Debug, Default)]
pub(crate) struct Logged {
    /// Those that the last state does not have.
    numbers: Vec<u64>,
    /// Those that it has. They are deleted twice: the write-ahead log may write one after its deletion.
    before: Vec<u64>,
}

fn key(first: u8, workflow: &str, number: Option<u64>) -> Vec<u8> {
    let mut key = vec![first];
    key.extend_from_slice(&digest(&[workflow.as_bytes()]));
    key.extend(number.iter().flat_map(|number| number.to_be_bytes()));
    key
}

/// The workflow and the number of a record's key.
fn parse_key(bytes: &[u8]) -> Option<(Digest, u64)> {
    let (workflow, number) = bytes.get(1..)?.split_last_chunk::<8>()?;
    Some((Digest::try_from(workflow).ok()?, u64::from_be_bytes(*number)))
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    // Numbers, text and JSON: encoding cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

fn change(workflow: &LiveWorkflow, rule: &StartRule, number: u64, now_ms: u64, counted: Counted) -> Change {
    let (definition, since_ms) = (workflow.digest, rule.since_ms);
    let record = Record { format: FORMAT, definition, since_ms, now_ms, counted };
    rule.log.lock().numbers.push(number);
    Change {
        space: Space::Hook,
        key: key(RECORD, &workflow.name, Some(number)),
        value: Some(encode(&record).into()),
    }
}

/// The change that records an event which a rule has counted.
pub(super) fn counted_event(
    workflow: &LiveWorkflow,
    rule: &StartRule,
    number: u64,
    now_ms: u64,
    (source, event): (u32, Arc<Value>),
) -> Change {
    change(workflow, rule, number, now_ms, Counted::Event { source, event })
}

/// The change that records a time at which a rule has fired.
pub(super) fn counted_tick(workflow: &LiveWorkflow, rule: &StartRule, number: u64, now_ms: u64) -> Change {
    change(workflow, rule, number, now_ms, Counted::Tick)
}

impl Coordinator {
    /// Writes the state of a rule, if it has as many records as events. The caller holds the turn of the rule; `ticket` is that of
    /// the last record.
    pub(super) async fn compact_rule(
        &self,
        workflow: &LiveWorkflow,
        rule: &Arc<StartRule>,
        ticket: Option<Ticket>,
    ) {
        let is_due = rule.log.lock().numbers.len() >= MIN_RECORDS.max(rule.events());
        if !is_due {
            return;
        }
        // The state may not be on the disk before what it has counted: that would be counted again.
        if let Some(ticket) = ticket
            && self.broker.durable(ticket).await.is_err()
        {
            return;
        }
        let now_ms = self.time.now_ms();
        let (definition, encoding) = (workflow.digest, rule.clone());
        let up_to = rule.log.lock().numbers.last().copied().unwrap_or_default();
        let encoded = tokio::task::spawn_blocking(move || {
            let state = encoding.state(now_ms);
            encode(&StateRecord { format: FORMAT, definition, now_ms, up_to, state })
        });
        let Ok(encoded) = encoded.await else { return };
        let space = &self.store.spaces().invocations;
        let mut batch = Batch::default();
        batch.put(space, key(STATE, &workflow.name, None), encoded);
        let numbers = {
            let log = rule.log.lock();
            log.before.iter().chain(&log.numbers).copied().collect::<Vec<u64>>()
        };
        for number in numbers {
            batch.delete(space, key(RECORD, &workflow.name, Some(number)));
        }
        match self.store.committer().commit(batch, Durability::Written).await {
            Ok(_) => {
                let mut log = rule.log.lock();
                log.before = std::mem::take(&mut log.numbers);
            }
            // The records stay; the next record tries again.
            Err(error) => {
                tracing::warn!(workflow = &*workflow.name, %error, "the state of a rule is not written")
            }
        }
    }

    /// Restores the rules of durable workflows, and deletes what belongs to other definitions.
    pub(super) fn recover_rules(&self) -> Result<(), StoreError> {
        let space = self.store.spaces().invocations.clone();
        let mut records: HashMap<Digest, BTreeMap<u64, Vec<u8>>> = HashMap::new();
        for entry in space.prefix([RECORD]) {
            let (key, value) = entry.into_inner()?;
            let Some((workflow, number)) = parse_key(&key) else { continue };
            self.start_events_from(number + 1);
            records.entry(workflow).or_default().insert(number, value.to_vec());
        }
        let mut states: HashMap<Digest, StateRecord> = HashMap::new();
        for entry in space.prefix([STATE]) {
            let (key, value) = entry.into_inner()?;
            let workflow = key.get(1..).and_then(|digest| Digest::try_from(digest).ok());
            if let (Some(workflow), Ok(state)) = (workflow, serde_json::from_slice(&value)) {
                states.insert(workflow, state);
            }
        }
        let mut obsolete = Batch::default();
        let routes = self.registry.routes();
        let with_rule =
            |workflow: &&Arc<LiveWorkflow>| workflow.program.durable && has_rule(&workflow.program);
        for workflow in routes.workflows().filter(with_rule) {
            let id = digest(&[workflow.name.as_bytes()]);
            let state = states.remove(&id);
            let records = records.remove(&id).unwrap_or_default();
            self.restore_rule(workflow, state, records, &mut obsolete);
        }
        // Of workflows that are not deployed any more.
        for (workflow, numbers) in records {
            for number in numbers.into_keys() {
                let mut key = vec![RECORD];
                key.extend_from_slice(&workflow);
                key.extend_from_slice(&number.to_be_bytes());
                obsolete.delete(&space, key);
            }
        }
        for workflow in states.into_keys() {
            obsolete.delete(&space, [&[STATE][..], &workflow].concat());
        }
        let store = self.store.clone();
        self.workers.spawn(async move {
            let committer = store.committer();
            if let Err(error) = committer.commit(obsolete, Durability::Written).await {
                tracing::warn!(%error, "events of removed rules could not be deleted");
            }
        });
        Ok(())
    }

    fn restore_rule(
        &self,
        workflow: &Arc<LiveWorkflow>,
        state: Option<StateRecord>,
        records: BTreeMap<u64, Vec<u8>>,
        obsolete: &mut Batch,
    ) {
        let space = &self.store.spaces().invocations;
        let is_current =
            |format: u8, definition: [u8; 32]| format == FORMAT && definition == workflow.digest;
        let state = state.filter(|state| is_current(state.format, state.definition));
        let up_to = state.as_ref().map(|state| state.up_to);
        let mut counted = Vec::new();
        for (number, value) in records {
            let record: Option<Record> = serde_json::from_slice(&value).ok();
            let record = record.filter(|record| is_current(record.format, record.definition));
            match record.filter(|_| up_to.is_none_or(|up_to| number > up_to)) {
                Some(record) => counted.push((number, record)),
                None => obsolete.delete(space, key(RECORD, &workflow.name, Some(number))),
            }
        }
        let first = counted.first().map(|(_, record)| record.since_ms);
        let Some(start_ms) = state.as_ref().map(|state| state.now_ms).or(first) else { return };
        let Some(rule) = self.rules.restored(workflow, state.map(|state| state.state), start_ms) else {
            return;
        };
        let share_bytes = self.rules.share_bytes();
        let mut last_ms = start_ms;
        for (number, Record { now_ms, counted, .. }) in counted {
            last_ms = last_ms.max(now_ms);
            rule.log.lock().numbers.push(number);
            match counted {
                // It was counted before, so it can be counted.
                Counted::Event { source, event } => {
                    drop(rule.handle(source as usize, &event, now_ms, share_bytes))
                }
                Counted::Tick => drop(rule.tick(now_ms, share_bytes)),
            }
        }
        self.time.not_before(last_ms);
    }
}
