//! The depth of the call chain that made the last change of a field.

use std::path::Path;
use std::sync::Arc;

use edgefaas_crdt::{Field, FieldDelta, FieldType, Hlc, Operation, ReplicaId};
use edgefaas_platform::Clock;

use crate::objects::{FieldKey, WatchScope};
use crate::store::{Batch, Durability, Store, StoreOptions};

fn open(dir: &Path) -> Arc<Store> {
    Arc::new(Store::open(&StoreOptions::small(dir), Clock::new(|| 1_800_000_000_000)).unwrap())
}

fn key(field: &str) -> FieldKey {
    FieldKey::new("app", "o", field)
}

fn depth(store: &Store, field: &str) -> u8 {
    store.objects().state(&key(field)).unwrap().unwrap().1
}

async fn change(store: &Store, field: &str, operation: Operation, depth: u8) {
    let mut batch = Batch::default();
    batch.caused_at(depth);
    batch.operate(key(field), operation);
    store.committer().commit(batch, Durability::Written).await.unwrap();
}

/// The delta of a first addition on another node.
fn of_a_peer() -> FieldDelta {
    let replica = ReplicaId::new(7, 1);
    Field::empty(FieldType::Counter)
        .apply_local("n", Operation::CounterAdd(1), replica, Hlc::default())
        .unwrap()
}

#[tokio::test]
async fn a_field_has_the_depth_of_its_last_change_also_after_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    change(&store, "n", Operation::CounterAdd(1), 5).await;
    change(&store, "from-outside", Operation::CounterAdd(1), 5).await;
    change(&store, "from-outside", Operation::CounterAdd(1), 0).await;
    // A field whose changes are records of their own.
    let text = |at: u32, insert: &str| Operation::TextSplice { at, delete: 0, insert: insert.into() };
    change(&store, "large", text(0, &"x".repeat(20_000)), 1).await;
    change(&store, "large", text(0, "y"), 12).await;
    assert_eq!((depth(&store, "n"), depth(&store, "from-outside"), depth(&store, "large")), (5, 0, 12));
    store.close().unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!((depth(&store, "n"), depth(&store, "from-outside"), depth(&store, "large")), (5, 0, 12));
}

#[tokio::test]
async fn watches_get_the_depth_of_a_peer_and_the_field_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let scope = WatchScope { app: "app".into(), object: "*".into(), field: None };
    let mut watch = store.objects().watch(scope);
    let mut batch = Batch::default();
    // The changes of two members commit together, and do not share a depth.
    batch.merge(key("n"), of_a_peer(), 6);
    batch.merge(key("m"), of_a_peer(), 0);
    store.committer().commit(batch, Durability::Written).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (notice, _) = watch.next().await;
        seen.push((notice.key.field().to_owned(), notice.depth));
    }
    seen.sort();
    assert_eq!(seen, [("m".to_owned(), 0), ("n".to_owned(), 6)]);
    assert_eq!((depth(&store, "n"), depth(&store, "m")), (6, 0));
    // Nothing is new: the field remains as deep as it is.
    let mut batch = Batch::default();
    batch.merge(key("n"), of_a_peer(), 0);
    store.committer().commit(batch, Durability::Written).await.unwrap();
    assert_eq!(depth(&store, "n"), 6);
}

#[tokio::test]
async fn changes_for_peers_have_the_greatest_depth_of_a_field() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.objects().collect_for_peers();
    for depth in [0, 4, 2] {
        change(&store, "n", Operation::CounterAdd(1), depth).await;
    }
    change(&store, "m", Operation::CounterAdd(1), 0).await;
    let deltas = store.objects().take_for_peers().await;
    assert_eq!((deltas[&key("n")].depth, deltas[&key("m")].depth), (4, 0));
    // The shares that a node grants by itself are no change from outside.
    change(&store, "stock", Operation::BoundedCounterAdd(10), 3).await;
    change(&store, "stock", Operation::BoundedCounterWant(50), 0).await;
    assert_eq!(store.objects().take_for_peers().await[&key("stock")].depth, 3);
    assert_eq!(depth(&store, "stock"), 3);
}
