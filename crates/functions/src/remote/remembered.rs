//! Outcomes of durable invocations of other nodes: a repetition gets the same answer, without a second effect.
//!
//! ```text
//! r NODE ID               Record: the outcome, in the batch of the effects
//! x FINISHED NODE ID      Expiry: an outcome, in the order in which outcomes expire
//! ```
//!
//! NODE (the entry node) and FINISHED (milliseconds since the Unix epoch) have 8 bytes, big-endian. An outcome with an error
//! has no effects: it is in memory only, and a repetition after a restart runs again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_cluster::calls::OutcomeHead;
use edgefaas_state::store::{Batch, Store, StoreError};
use parking_lot::Mutex;
use prost::Message;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::records::{self, Records, prefixed};

const RECORD: u8 = b'r';
const EXPIRY: u8 = b'x';
/// Maximum number of failed outcomes in memory, and how long they are kept.
const MAX_FAILED: usize = 1024;
const FAILED_TIME: Duration = Duration::from_secs(60);
/// Maximum number of expired outcomes that one batch deletes.
const MAX_DELETED: usize = 16;

/// Limits of remembered outcomes. If one is exceeded, the oldest outcomes are deleted.
#[derive(Debug, Clone, Copy)]
pub struct RememberLimits {
    /// How long an outcome is kept.
    pub time: Duration,
    /// Maximum number.
    pub count: usize,
    /// Maximum size on the disk, in bytes.
    pub bytes: usize,
}

impl Default for RememberLimits {
    fn default() -> Self {
        Self { time: Duration::from_secs(24 * 3600), count: 20_000, bytes: 64 << 20 }
    }
}

/// The id of an invocation of another node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CallId {
    /// The node that made the call.
    pub node_id: u64,
    /// The invocation's id.
    pub id: Arc<str>,
}

/// An outcome, as it is sent.
pub(super) type Sent = (OutcomeHead, Bytes);

/// Remembered outcomes, and invocations that have none yet.
pub struct Remembered {
    records: Records,
    limits: RememberLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: HashMap<CallId, watch::Receiver<Option<Sent>>>,
    failed: HashMap<CallId, (u32, Sent)>,
    failed_order: VecDeque<(Instant, CallId)>,
    /// Outcomes on the disk, oldest first, with their size and the time of their end.
    stored: VecDeque<(u64, CallId, usize)>,
    stored_bytes: usize,
}

/// The record of an outcome.
#[derive(Serialize, Deserialize)]
struct Record {
    /// An encoded [`OutcomeHead`].
    head: Bytes,
    body: Bytes,
}

/// The record of the index by which outcomes expire.
#[derive(Serialize, Deserialize)]
struct Expiry {
    bytes: u32,
}

/// What is known of a call.
pub(super) enum Begin {
    /// It is new: the caller runs it.
    New(Running),
    /// It is running: its outcome arrives here, or the sender is dropped if it has none.
    Running(watch::Receiver<Option<Sent>>),
    /// It has ended.
    Done(Sent),
}

/// An invocation that runs. Dropping it without an outcome lets a repetition run.
pub(super) struct Running {
    remembered: Arc<Remembered>,
    id: CallId,
    attempt: u32,
    outcome: watch::Sender<Option<Sent>>,
}

impl Remembered {
    /// Reads the index. Blocks.
    ///
    /// # Errors
    /// The store cannot be read. A damaged record is skipped with a warning.
    pub fn open(store: Arc<Store>, limits: RememberLimits) -> Result<Self, StoreError> {
        let records = Records::new(store);
        let mut state = State::default();
        records.for_each(EXPIRY, |key, value| {
            match (parse_expiry_key(key), records::decode::<Expiry>(value)) {
                (Some((finished, id)), Ok(expiry)) => {
                    state.stored_bytes += expiry.bytes as usize;
                    state.stored.push_back((finished, id, expiry.bytes as usize));
                }
                (_, Err(damage)) => {
                    records::warn_damaged("the expiry of a remembered outcome", key, damage)
                }
                (None, _) => records::warn_damaged(
                    "the expiry of a remembered outcome",
                    key,
                    records::Damage::Fields,
                ),
            }
        })?;
        Ok(Self { records, limits, state: Mutex::new(state) })
    }

    /// Begins a call, unless it is running or has ended.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) fn begin(self: &Arc<Self>, id: CallId, attempt: u32) -> Result<Begin, StoreError> {
        // First marked as running, then looked up: an outcome is stored before its invocation stops to be running.
        let (outcome, receiver) = watch::channel(None);
        {
            let mut state = self.state.lock();
            if let Some(running) = state.running.get(&id) {
                return Ok(Begin::Running(running.clone()));
            }
            if let Some((failed, sent)) = state.failed.get(&id)
                && *failed == attempt
            {
                return Ok(Begin::Done(sent.clone()));
            }
            state.running.insert(id.clone(), receiver);
        }
        let running = Running { remembered: self.clone(), id, attempt, outcome };
        let stored: Option<Record> = self.records.get("a remembered outcome", &record_key(&running.id))?;
        let Some(stored) = stored else { return Ok(Begin::New(running)) };
        let head = OutcomeHead::decode(stored.head).map_err(|_| StoreError::Damaged {
            what: "a remembered outcome".to_owned(),
            reason: records::Damage::Fields.to_string(),
        })?;
        let sent = (head, stored.body);
        running.outcome.send_replace(Some(sent.clone()));
        Ok(Begin::Done(sent))
    }

    /// Adds the outcome of an invocation to the batch of its effects, and deletes outcomes that are over the limits.
    pub(super) fn put(&self, batch: &mut Batch, running: &Running, sent: &Sent, now_unix_ms: u64) {
        let (head, body) = sent;
        let record = records::encode(&Record { head: head.encode_to_vec().into(), body: body.clone() });
        let bytes = record.len();
        let expiry = records::encode(&Expiry { bytes: u32::try_from(bytes).unwrap_or(u32::MAX) });
        self.records.put(batch, record_key(&running.id), record);
        self.records.put(batch, expiry_key(now_unix_ms, &running.id), expiry);
        let mut state = self.state.lock();
        state.stored.push_back((now_unix_ms, running.id.clone(), bytes));
        state.stored_bytes += bytes;
        let oldest_ms = now_unix_ms.saturating_sub(self.limits.time.as_millis() as u64);
        for _ in 0..MAX_DELETED {
            let is_over = state.stored.len() > self.limits.count || state.stored_bytes > self.limits.bytes;
            // The newest one is kept also if it alone is over the limit.
            let Some((finished, id, bytes)) = state
                .stored
                .pop_front_if(|(finished, id, _)| (is_over || *finished < oldest_ms) && *id != running.id)
            else {
                break;
            };
            state.stored_bytes -= bytes;
            self.records.delete(batch, record_key(&id));
            self.records.delete(batch, expiry_key(finished, &id));
        }
    }

    /// Number of outcomes on the disk.
    pub fn count(&self) -> usize {
        self.state.lock().stored.len()
    }
}

impl Running {
    /// The invocation was committed with its outcome.
    pub fn committed(self, sent: &Sent) {
        self.outcome.send_replace(Some(sent.clone()));
    }

    /// The invocation has failed, without effects.
    pub fn failed(self, sent: &Sent) {
        self.outcome.send_replace(Some(sent.clone()));
        let now = Instant::now();
        let mut state = self.remembered.state.lock();
        while state.failed_order.len() >= MAX_FAILED
            || state.failed_order.front().is_some_and(|(at, _)| now.duration_since(*at) > FAILED_TIME)
        {
            let Some((_, oldest)) = state.failed_order.pop_front() else { break };
            state.failed.remove(&oldest);
        }
        state.failed.insert(self.id.clone(), (self.attempt, sent.clone()));
        state.failed_order.push_back((now, self.id.clone()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.remembered.state.lock().running.remove(&self.id);
    }
}

fn record_key(id: &CallId) -> Vec<u8> {
    let mut key = prefixed(RECORD, &id.node_id.to_be_bytes());
    key.extend_from_slice(id.id.as_bytes());
    key
}

fn expiry_key(finished_unix_ms: u64, id: &CallId) -> Vec<u8> {
    let mut key = prefixed(EXPIRY, &finished_unix_ms.to_be_bytes());
    key.extend_from_slice(&id.node_id.to_be_bytes());
    key.extend_from_slice(id.id.as_bytes());
    key
}

fn parse_expiry_key(key: &[u8]) -> Option<(u64, CallId)> {
    let (finished, rest) = key.strip_prefix(&[EXPIRY])?.split_first_chunk::<8>()?;
    let (node_id, id) = rest.split_first_chunk::<8>()?;
    let id = std::str::from_utf8(id).ok()?.into();
    Some((u64::from_be_bytes(*finished), CallId { node_id: u64::from_be_bytes(*node_id), id }))
}

#[cfg(test)]
mod tests {
    use edgefaas_platform::Clock;
    use edgefaas_state::store::{Durability, StoreOptions};

    use super::*;

    fn open(data_dir: &std::path::Path, limits: RememberLimits) -> (Arc<Store>, Arc<Remembered>) {
        let store = Arc::new(Store::open(&StoreOptions::small(data_dir), Clock::system()).unwrap());
        let remembered = Remembered::open(store.clone(), limits).unwrap();
        (store, Arc::new(remembered))
    }

    fn id(node_id: u64, id: &str) -> CallId {
        CallId { node_id, id: id.into() }
    }

    fn sent(body: &'static str) -> Sent {
        (OutcomeHead { queue_us: 7, ..OutcomeHead::default() }, body.into())
    }

    async fn commit(store: &Store, remembered: &Remembered, running: Running, sent: &Sent, now: u64) {
        let mut batch = Batch::default();
        remembered.put(&mut batch, &running, sent, now);
        store.committer().commit(batch, Durability::Written).await.unwrap();
        running.committed(sent);
    }

    fn new(begin: Result<Begin, StoreError>) -> Running {
        match begin.unwrap() {
            Begin::New(running) => running,
            Begin::Running(_) | Begin::Done(_) => panic!("the call is known"),
        }
    }

    fn done(begin: Result<Begin, StoreError>) -> Sent {
        match begin.unwrap() {
            Begin::Done(sent) => sent,
            Begin::New(_) | Begin::Running(_) => panic!("the call has no outcome"),
        }
    }

    #[tokio::test]
    async fn a_committed_outcome_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        {
            let (store, remembered) = open(folder.path(), RememberLimits::default());
            let running = new(remembered.begin(id(1, "a"), 1));
            commit(&store, &remembered, running, &sent("once"), 1000).await;
            assert_eq!(done(remembered.begin(id(1, "a"), 1)), sent("once"));
        }
        let (_store, remembered) = open(folder.path(), RememberLimits::default());
        assert_eq!(remembered.count(), 1);
        // A later attempt has no second effect either.
        assert_eq!(done(remembered.begin(id(1, "a"), 2)), sent("once"));
        // The same id of another node is another invocation.
        new(remembered.begin(id(2, "a"), 1));
    }

    #[tokio::test]
    async fn a_repetition_waits_for_the_running_invocation() {
        let folder = tempfile::tempdir().unwrap();
        let (store, remembered) = open(folder.path(), RememberLimits::default());
        let running = new(remembered.begin(id(1, "a"), 1));
        let Begin::Running(mut repeated) = remembered.begin(id(1, "a"), 2).unwrap() else {
            panic!("it is running")
        };
        commit(&store, &remembered, running, &sent("once"), 1000).await;
        let outcome = repeated.wait_for(Option::is_some).await.unwrap().clone();
        assert_eq!(outcome, Some(sent("once")));
        // An invocation that was cancelled may run again.
        let running = new(remembered.begin(id(1, "b"), 1));
        let Begin::Running(mut repeated) = remembered.begin(id(1, "b"), 1).unwrap() else {
            panic!("it is running")
        };
        drop(running);
        assert!(repeated.wait_for(Option::is_some).await.is_err());
        new(remembered.begin(id(1, "b"), 1));
    }

    #[tokio::test]
    async fn a_failure_is_the_answer_to_the_same_attempt_only() {
        let folder = tempfile::tempdir().unwrap();
        let (_store, remembered) = open(folder.path(), RememberLimits::default());
        new(remembered.begin(id(1, "a"), 1)).failed(&sent("failed"));
        assert_eq!(done(remembered.begin(id(1, "a"), 1)), sent("failed"));
        new(remembered.begin(id(1, "a"), 2));
        for number in 0..2 * MAX_FAILED {
            new(remembered.begin(id(1, &number.to_string()), 1)).failed(&sent("failed"));
        }
        assert_eq!(remembered.state.lock().failed.len(), MAX_FAILED);
    }

    #[tokio::test]
    async fn old_and_surplus_outcomes_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let limits = RememberLimits { time: Duration::from_secs(10), count: 3, bytes: 1 << 20 };
        let (store, remembered) = open(folder.path(), limits);
        for number in 0..5_u64 {
            let running = new(remembered.begin(id(1, &number.to_string()), 1));
            commit(&store, &remembered, running, &sent("x"), number).await;
        }
        assert_eq!(remembered.count(), 3);
        new(remembered.begin(id(1, "1"), 1));
        done(remembered.begin(id(1, "2"), 1));
        let running = new(remembered.begin(id(1, "new"), 1));
        commit(&store, &remembered, running, &sent("x"), 11_000).await;
        assert_eq!(remembered.count(), 1);
        drop(remembered);
        let entries = store.spaces().invocations.iter().count();
        assert_eq!(entries, 2, "the newest outcome and its expiry");
    }
}
