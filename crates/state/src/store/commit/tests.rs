use std::sync::Arc;

use edgefaas_crdt::Operation;
use edgefaas_manifest::{Classes, ObjectClass, ObjectDurability};
use edgefaas_platform::{Budget, Clock};
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::*;
use crate::objects::{FieldKey, WatchScope};
use crate::store::writer::GROUP_BATCHES;
use crate::store::{Store, StoreOptions};

fn open(dir: &tempfile::TempDir) -> Arc<Store> {
    Arc::new(Store::open(&StoreOptions::small(dir.path()), Clock::new(|| 1_800_000_000_000)).unwrap())
}

fn key() -> FieldKey {
    FieldKey::new("app", "object", "n")
}

fn addition(amount: i64) -> Batch {
    let mut batch = Batch::default();
    batch.operate(key(), Operation::CounterAdd(amount));
    batch
}

fn value(store: &Store) -> i64 {
    let read = store.objects().read(&key(), |field| {
        field.and_then(|field| field.counter("n").ok()).map_or(0, |counter| counter.value())
    });
    read.unwrap()
}

#[tokio::test]
async fn what_the_tasks_of_a_thread_bring_is_written_together() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let before = store.committer().reading().commits;
    let all = (0..100).map(|_| store.committer().commit(addition(1), Durability::Written));
    for answer in join_all(all).await {
        answer.unwrap();
    }
    assert_eq!(value(&store), 100);
    let commits = store.committer().reading().commits - before;
    assert!(commits <= 2, "{commits} commits of 100 batches");
}

#[tokio::test]
async fn a_batch_whose_task_is_dropped_is_written_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let dropped = store.committer().commit(addition(5), Durability::Written).now_or_never();
    assert_eq!(dropped, None, "it lets others go first");
    // The thread takes what waits with whatever else it writes.
    store.committer().commit(Batch::default(), Durability::Synced).await.unwrap();
    assert_eq!(value(&store), 5);
}

#[tokio::test]
async fn a_refused_batch_takes_none_of_the_others_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut wrong = addition(1);
    wrong.operate(key(), Operation::RegisterSet("text".into()));
    let batches = [addition(1), wrong, addition(2)];
    let all = batches.map(|batch| store.committer().commit(batch, Durability::Written));
    let answers = join_all(all).await;
    assert!(matches!(answers[1], Err(CommitError::Field(_))), "{answers:?}");
    assert_eq!((answers[0].clone(), answers[2].clone(), value(&store)), (Ok(()), Ok(()), 3));
}

#[tokio::test]
async fn more_than_may_wait_is_for_the_thread_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let all = (0..3 * GROUP_BATCHES).map(|_| store.committer().commit(addition(1), Durability::Written));
    for answer in join_all(all).await {
        answer.unwrap();
    }
    assert_eq!(value(&store), 3 * GROUP_BATCHES as i64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_closes_answers_everybody() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut acknowledged = 0;
                while store.committer().commit(addition(1), Durability::Written).await.is_ok() {
                    acknowledged += 1;
                }
                acknowledged
            })
        })
        .collect();
    while value(&store) < 100 {
        tokio::task::yield_now().await;
    }
    let closing = store.clone();
    tokio::task::spawn_blocking(move || closing.committer().close()).await.unwrap();
    let mut acknowledged = 0;
    for writer in writers {
        acknowledged += writer.await.unwrap();
    }
    assert_eq!(value(&store), acknowledged);
    drop(store);
    assert_eq!(value(&open(&dir)), acknowledged);
}

/// A reader that first watches and then reads either sees the change or is notified of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_watch_that_begins_while_something_is_written_misses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    for number in 0..3000 {
        let key = FieldKey::new("app", "object", &format!("field-{number}"));
        let mut batch = Batch::default();
        batch.operate(key.clone(), Operation::CounterAdd(1));
        let writing = tokio::spawn({
            let store = store.clone();
            async move { store.committer().commit(batch, Durability::Written).await }
        });
        // At another moment of the writing each time.
        (0..number % 60 * 20).for_each(|_| std::hint::spin_loop());
        let scope = WatchScope { app: "app".into(), object: "object".into(), field: None };
        let mut watch = store.objects().watch(scope);
        if store.objects().read(&key, |field| field.is_none()).unwrap() {
            let told = tokio::time::timeout(Duration::from_secs(60), watch.next()).await;
            assert_eq!(told.expect("it is told").0.key, key);
        }
        writing.await.unwrap().unwrap();
    }
}

#[test]
fn what_a_snapshot_has_kept_is_reclaimed_when_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let space = &store.spaces().invocations;
    let committer = store.committer();
    let reclaims = || committer.space().reclaims;
    let until = |is_done: &dyn Fn() -> bool| {
        let since = std::time::Instant::now();
        while !is_done() {
            assert!(since.elapsed() < Duration::from_secs(300), "the space of deleted data is not free");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    for number in 0..200u32 {
        let noise: Vec<u8> = (0..25_000u32)
            .flat_map(|at| (at.wrapping_mul(number + 7).wrapping_mul(2_654_435_761)).to_be_bytes())
            .collect();
        space.insert(number.to_be_bytes(), noise).unwrap();
    }
    space.rotate_memtable_and_wait().unwrap();
    let reader = store.database.snapshot();
    for number in 0..200u32 {
        space.remove(number.to_be_bytes()).unwrap();
    }
    let before = reclaims();
    committer.requests.reclaim();
    until(&|| reclaims() > before);
    let tables = || {
        let files = std::fs::read_dir(space.path().join("tables")).unwrap();
        files.filter_map(|file| file.ok()?.metadata().ok()).map(|file| file.len()).sum::<u64>()
    };
    assert!(tables() > 10 << 20, "the snapshot has {} bytes", tables());
    drop(reader);
    // Nothing is written any more, and no write is refused.
    until(&|| tables() < 1 << 20);
}

#[tokio::test]
async fn a_batch_has_its_share_of_a_budget_until_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let budget = Budget::new(100);
    let mut batch = addition(5);
    batch.charge(budget.take(60).unwrap());
    let dropped = store.committer().commit(batch, Durability::Written).now_or_never();
    assert_eq!((dropped, budget.free()), (None, 40), "nobody waits for it, and it is still there");
    store.committer().commit(Batch::default(), Durability::Synced).await.unwrap();
    assert_eq!((value(&store), budget.free()), (5, 100));
}

/// The element `number` of a set with elements of 100 bytes.
fn element(number: usize) -> bytes::Bytes {
    format!("{number:0100}").into()
}

fn set_of_8() -> Batch {
    let mut batch = Batch::default();
    for number in 0..8 {
        batch.operate(FieldKey::new("app", "object", "s"), Operation::SetAdd(element(number)));
    }
    batch
}

#[tokio::test]
async fn a_change_of_a_small_field_counts_as_what_it_writes() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    store.committer().commit(set_of_8(), Durability::Written).await.unwrap();
    let writer = store.committer().writer.lock();
    let footprint = |operations: &[Operation]| {
        let mut batch = Batch::default();
        for operation in operations {
            batch.operate(FieldKey::new("app", "object", "s"), operation.clone());
        }
        writer.fields.footprint(&batch.fields)
    };
    let (one, two) = (Operation::SetRemove(element(3)), Operation::SetRemove(element(4)));
    let removal = footprint(std::slice::from_ref(&one));
    assert!(removal.rewritten_bytes > 800, "{removal:?}");
    assert_eq!(removal.rewritten_bytes, removal.replaced_bytes);
    assert_eq!(footprint(&[one, two]), removal, "the record is written once");
    let clear = footprint(&[Operation::SetClear]);
    assert_eq!((clear.rewritten_bytes, clear.replaced_bytes), (0, removal.replaced_bytes));
}

#[tokio::test]
async fn what_is_written_later_is_bounded_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut classes = Classes::default();
    let lazy = ObjectClass {
        durability: ObjectDurability::Memory,
        write_interval: Duration::from_secs(3600),
        ..ObjectClass::default()
    };
    classes.add("app".into(), [("*".to_owned(), lazy)]);
    store.objects().set_classes(classes);
    let (mut most, mut written) = (0, false);
    for number in 0..3000 {
        let mut batch = Batch::default();
        let key = FieldKey::new("app", &format!("object-{number}"), "r");
        batch.operate(key, Operation::RegisterSet(vec![7; 3000].into()));
        store.committer().commit(batch, Durability::Written).await.unwrap();
        let bytes = store.committer().writer.lock().fields.unwritten_bytes();
        written |= bytes < most;
        most = most.max(bytes);
    }
    assert!(most > 3 << 20 && most < 5 << 20 && written, "{most} bytes waited, written: {written}");
}
