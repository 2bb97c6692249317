use std::sync::atomic::AtomicU64;

use edgefaas_broker::Hooks;
use edgefaas_isolates::{DirectCall, Event, Reply, Trigger};
use edgefaas_state::store::{Batch, Durability};

use super::invocation_records::StoredProblem;
use super::*;
use crate::invocation::{Principal, Timing};
use crate::problem::Problem;
use crate::test_node::TestNode;

struct Disk {
    dir: tempfile::TempDir,
    now_ms: Arc<AtomicU64>,
}

impl Disk {
    fn new() -> Self {
        let now_ms = Arc::new(AtomicU64::new(1_800_000_000_000));
        Self { dir: tempfile::tempdir().unwrap(), now_ms }
    }

    fn open(&self, limits: KeepLimits) -> Arc<DurableQueue> {
        let now_ms = self.now_ms.clone();
        let clock = Clock::new(move || now_ms.load(Ordering::Relaxed));
        TestNode::open(self.dir.path(), clock, Hooks::default(), limits).durable
    }

    fn id(&self) -> Ulid {
        Ulid::from_parts(self.now_ms.load(Ordering::Relaxed), rand::random())
    }
}

const LISTED: Retention = Retention { time: Duration::from_secs(3600), count: 100, bytes: 1 << 20 };
const HOUR: KeepLimits = KeepLimits {
    time: Duration::from_secs(3600),
    count: 100,
    bytes: 1 << 20,
    memory_bytes: 16 << 20,
    listed: LISTED,
    dead: LISTED,
};

fn pending(id: Ulid, key: Option<Digest>) -> Pending {
    Pending {
        id: id.0,
        attempt: 1,
        due_unix_ms: 0,
        order_key: None,
        keep: Some(Keep { key, auth: None }),
        answer: None,
        principal: Principal::Operator,
        trace_parent: None,
        depth: 0,
        event: Event { trigger: Trigger::Call(DirectCall::default()), body: bytes::Bytes::new() },
    }
}

async fn commit(queue: &DurableQueue, fill: impl FnOnce(&mut Batch)) {
    let mut batch = Batch::default();
    fill(&mut batch);
    queue.store.committer().commit(batch, Durability::Synced).await.unwrap();
}

async fn end(queue: &DurableQueue, pending: &Pending) {
    let mut bytes = 0;
    let outcome = StoredOutcome::new(Ok(Reply::Text("done".into())), 1, Timing::default());
    let ended = Ended { outcome, node: Some("hall".into()) };
    commit(queue, |batch| bytes = queue.keep(batch, "f", pending, ended)).await;
    queue.kept(bytes);
}

#[tokio::test]
async fn damaged_records_are_skipped_and_the_others_are_loaded() {
    let disk = Disk::new();
    let good = records::encode(&pending(disk.id(), None));
    {
        let queue = disk.open(HOUR);
        let mut flipped = good.clone();
        flipped[10] ^= 1;
        commit(&queue, |batch| {
            queue.records.put(batch, invocation_records::pending_key("f", 1), good.clone());
            queue.records.put(batch, invocation_records::pending_key("f", 2), flipped);
            queue.records.put(
                batch,
                invocation_records::pending_key("f", 3),
                good[..good.len() / 2].to_vec(),
            );
            queue.records.put(batch, invocation_records::pending_key("g", 4), good.clone());
            queue.records.put(batch, b"p-no-such-key".to_vec(), good.clone());
        })
        .await;
        queue.store.close().unwrap();
    }
    let queue = disk.open(HOUR);
    assert_eq!((queue.pending("f"), queue.pending("g")), (1, 1));
    assert_eq!(queue.start_next("f", 9, QueueOrder::Fifo).map(|(sequence, _)| sequence), Some(1));
    // Sequence numbers continue after the last one, also if its record is damaged.
    assert_eq!(queue.next_sequence(), 5);
}

#[tokio::test]
async fn last_errors_are_read_again_and_those_without_an_invocation_are_removed() {
    let disk = Disk::new();
    let (waits, gone) = (disk.id(), disk.id());
    let problem = || StoredProblem::from(Problem::new(500, "Function failed", "not yet"));
    {
        let queue = disk.open(HOUR);
        let retried = Pending { attempt: 2, ..pending(waits, None) };
        commit(&queue, |batch| {
            queue.records.put(batch, invocation_records::pending_key("f", 1), records::encode(&retried));
            for id in [waits, gone] {
                queue.last_errors.set(id.0, problem());
                queue.last_errors.put(&queue.records, batch, id.0);
            }
        })
        .await;
        queue.store.close().unwrap();
    }
    let queue = disk.open(HOUR);
    assert_eq!(queue.last_errors.get(waits.0), Some(problem()));
    assert_eq!(queue.last_errors.get(gone.0), None);
    queue.remove_expired().await.unwrap();
    let stored = |queue: &DurableQueue| {
        let mut ids = Vec::new();
        let all = queue.records.for_each(invocation_records::LAST_ERROR, |key, _| {
            ids.extend(invocation_records::parse_last_error_key(key));
        });
        all.unwrap();
        ids
    };
    assert_eq!(stored(&queue), [waits.0]);
    commit(&queue, |batch| queue.last_errors.delete(&queue.records, batch, waits.0)).await;
    assert!(stored(&queue).is_empty());
}

#[tokio::test]
async fn expired_outcomes_are_removed_with_their_idempotency_keys() {
    let disk = Disk::new();
    let queue = disk.open(HOUR);
    let (key, request) = ([7; 16], [8; 16]);
    let first = disk.id();
    let claimed = queue.claim(key, request, first).unwrap();
    assert!(matches!(claimed, Claim::New(_)));
    // The claim holds until the invocation is on the disk.
    assert!(matches!(queue.claim(key, request, disk.id()).unwrap(), Claim::Known(id) if id == first));
    let reserved = Reserved { id: first.0, request };
    commit(&queue, |batch| {
        queue.records.put(batch, invocation_records::reserved_key(&key), records::encode(&reserved))
    })
    .await;
    end(&queue, &pending(first, Some(key))).await;
    drop(claimed);
    assert!(matches!(queue.claim(key, request, disk.id()).unwrap(), Claim::Known(id) if id == first));
    assert!(matches!(queue.claim(key, [9; 16], disk.id()).unwrap(), Claim::Conflict));
    assert!(matches!(queue.lookup(first).unwrap(), Lookup::Done(access, ended)
        if access.function == "f" && ended.node.as_deref() == Some("hall")));
    assert!(matches!(queue.lookup(disk.id()).unwrap(), Lookup::Unknown));

    disk.now_ms.fetch_add(3_600_001, Ordering::Relaxed);
    queue.remove_expired().await.unwrap();
    assert!(matches!(queue.lookup(first).unwrap(), Lookup::Gone));
    assert!(matches!(queue.claim(key, [9; 16], disk.id()).unwrap(), Claim::New(_)));
    assert_eq!(queue.reading(), DurableReading::default());
    for kind in [invocation_records::KNOWN, invocation_records::RESERVED, invocation_records::EXPIRY] {
        queue.records.for_each(kind, |key, _| panic!("left over: {}", key.escape_ascii())).unwrap();
    }
}

#[tokio::test]
async fn the_oldest_outcomes_over_a_limit_are_removed() {
    for limits in [KeepLimits { count: 3, ..HOUR }, KeepLimits { bytes: 0, ..HOUR }] {
        let disk = Disk::new();
        let queue = disk.open(limits);
        let mut ids = Vec::new();
        for _ in 0..600 {
            disk.now_ms.fetch_add(1, Ordering::Relaxed);
            ids.push(disk.id());
            end(&queue, &pending(ids[ids.len() - 1], None)).await;
        }
        queue.remove_expired().await.unwrap();
        let kept = if limits.bytes == 0 { 0 } else { 3 };
        assert_eq!(queue.reading().kept, kept);
        for (index, id) in ids.iter().enumerate() {
            let exists = matches!(queue.lookup(*id).unwrap(), Lookup::Done(..));
            assert_eq!(exists, index >= 600 - kept as usize, "{index}");
        }
    }
}

fn call(id: Ulid, key: Option<Digest>) -> ExternalCall<'static> {
    ExternalCall { id, name: "flow", keep: key.map(|key| Keep { key: Some(key), auth: None }) }
}

async fn end_external(queue: &DurableQueue, call: ExternalCall<'_>) {
    let result = Ok(Reply::Text("done".into()));
    let end = ExternalEnd { result, timing: Timing::default(), details: b"details".to_vec() };
    let mut batch = Batch::default();
    let kept = queue.end_external(&mut batch, call, end);
    queue.store.committer().commit(batch, Durability::Synced).await.unwrap();
    queue.external_ended(kept);
}

fn ended_ids(queue: &DurableQueue) -> Vec<Ulid> {
    queue.ended_externals().map(|ended| ended.unwrap().id).collect()
}

#[tokio::test]
async fn an_external_invocation_that_is_opened_again_outlives_the_expiry_of_its_first_end() {
    let disk = Disk::new();
    let queue = disk.open(HOUR);
    let (key, request, id) = ([7; 16], [8; 16], disk.id());
    let Claim::New(claim) = queue.claim(key, request, id).unwrap() else { panic!("the key is free") };
    let entries = queue.external_entries(call(id, Some(key)), Some(&claim), None);
    commit(&queue, |batch| {
        entries.into_iter().for_each(|(key, value)| queue.records.put(batch, key, value));
    })
    .await;
    drop(claim);
    assert!(matches!(queue.lookup(id).unwrap(), Lookup::Pending(_)));
    end_external(&queue, call(id, Some(key))).await;
    assert!(matches!(queue.lookup(id).unwrap(), Lookup::Done(..)));

    disk.now_ms.fetch_add(1_800_000, Ordering::Relaxed);
    commit(&queue, |batch| queue.reopen_external(batch, call(id, Some(key)), None)).await;
    assert!(matches!(queue.lookup(id).unwrap(), Lookup::Pending(_)));
    // Half an hour later the first end expires.
    disk.now_ms.fetch_add(1_800_001, Ordering::Relaxed);
    queue.remove_expired().await.unwrap();
    assert!(matches!(queue.lookup(id).unwrap(), Lookup::Pending(_)));
    assert!(matches!(queue.claim(key, request, disk.id()).unwrap(), Claim::Known(known) if known == id));
    assert_eq!((ended_ids(&queue), queue.reading().kept), (vec![], 0));
    end_external(&queue, call(id, Some(key))).await;
    assert_eq!((ended_ids(&queue), queue.reading().kept), (vec![id], 1));
    disk.now_ms.fetch_add(3_600_001, Ordering::Relaxed);
    queue.remove_expired().await.unwrap();
    assert!(matches!(queue.lookup(id).unwrap(), Lookup::Gone));
    assert!(matches!(queue.claim(key, [9; 16], disk.id()).unwrap(), Claim::New(_)));
}

#[tokio::test]
async fn the_expiry_of_a_second_end_leaves_the_key_to_its_new_owner() {
    let disk = Disk::new();
    let queue = disk.open(HOUR);
    let (key, first) = ([7; 16], disk.id());
    end_external(&queue, call(first, Some(key))).await;
    disk.now_ms.fetch_add(3_600_001, Ordering::Relaxed);
    queue.remove_expired().await.unwrap();
    // The first is opened again, while another one takes the key.
    commit(&queue, |batch| queue.reopen_external(batch, call(first, Some(key)), None)).await;
    end_external(&queue, call(first, Some(key))).await;
    disk.now_ms.fetch_add(1000, Ordering::Relaxed);
    let (second, request) = (disk.id(), [8; 16]);
    let Claim::New(claim) = queue.claim(key, request, second).unwrap() else { panic!("the key is free") };
    let entries = queue.external_entries(call(second, Some(key)), Some(&claim), None);
    commit(&queue, |batch| {
        entries.into_iter().for_each(|(key, value)| queue.records.put(batch, key, value));
    })
    .await;
    drop(claim);
    disk.now_ms.fetch_add(3_599_500, Ordering::Relaxed);
    queue.remove_expired().await.unwrap();
    assert!(matches!(queue.lookup(first).unwrap(), Lookup::Gone));
    assert!(matches!(queue.claim(key, request, disk.id()).unwrap(), Claim::Known(id) if id == second));
}

#[tokio::test]
async fn records_for_lists_have_limits_of_their_own_and_are_counted_after_a_restart() {
    let disk = Disk::new();
    let limits = KeepLimits { listed: Retention { count: 2, ..LISTED }, count: 1, ..HOUR };
    let mut ids = Vec::new();
    {
        let queue = disk.open(limits);
        let kept = disk.id();
        end_external(&queue, call(kept, Some([1; 16]))).await;
        for _ in 0..3 {
            disk.now_ms.fetch_add(1, Ordering::Relaxed);
            ids.insert(0, disk.id());
            end_external(&queue, call(ids[0], None)).await;
        }
        assert!(matches!(queue.lookup(ids[0]).unwrap(), Lookup::Unknown), "it is for lists only");
        queue.remove_expired().await.unwrap();
        ids.truncate(2);
        ids.push(kept);
        assert_eq!(ended_ids(&queue), ids);
        let (name, external) = queue.external(ids[0]).unwrap().unwrap();
        assert_eq!((&*name, &*external.details), ("flow", &b"details"[..]));
        queue.store.close().unwrap();
    }
    let queue = disk.open(limits);
    assert_eq!((queue.listed.count(), queue.outcomes.count()), (2, 1));
    disk.now_ms.fetch_add(1, Ordering::Relaxed);
    ids.insert(0, disk.id());
    end_external(&queue, call(ids[0], None)).await;
    queue.remove_expired().await.unwrap();
    ids.remove(2);
    assert_eq!(ended_ids(&queue), ids);
}
