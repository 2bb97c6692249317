use std::sync::atomic::AtomicU64;

use edgefaas_broker::Hooks;
use edgefaas_isolates::{DirectCall, Event, Reply, Trigger};
use edgefaas_state::store::Durability;

use super::*;
use crate::invocation::{Principal, Timing};
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

const HOUR: KeepLimits =
    KeepLimits { time: Duration::from_secs(3600), count: 100, bytes: 1 << 20, memory_bytes: 16 << 20 };

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
