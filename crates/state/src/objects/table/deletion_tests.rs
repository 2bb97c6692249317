use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use edgefaas_crdt::{Operation, StateDelta, Value};
use edgefaas_manifest::{ObjectClass, ObjectDurability};
use edgefaas_platform::Clock;

use super::*;
use crate::error::CommitError;
use crate::objects::{MAX_FIELDS_PER_OBJECT, WatchScope};
use crate::store::{Batch, Durability, Store, StoreOptions};

const NOW_MS: u64 = 1_800_000_000_000;

fn open(dir: &Path) -> Arc<Store> {
    Arc::new(Store::open(&StoreOptions::small(dir), Clock::new(|| NOW_MS)).unwrap())
}

fn key(field: &str) -> FieldKey {
    FieldKey::new("app", "object", field)
}

fn set(value: impl Into<bytes::Bytes>) -> Operation {
    Operation::RegisterSet(value.into())
}

async fn change(store: &Store, changes: impl FnOnce(&mut Batch)) -> Result<(), CommitError> {
    let mut batch = Batch::default();
    changes(&mut batch);
    store.committer().commit(batch, Durability::Written).await
}

fn value(store: &Store, field: &str) -> Option<Value> {
    store.objects().read(&key(field), |field| field.map(Field::value)).unwrap()
}

fn names(store: &Store) -> Vec<String> {
    let keys = store.objects().fields("app", "object", None, 100).unwrap();
    keys.iter().map(|key| key.field().to_owned()).collect()
}

fn records(store: &Store) -> usize {
    store.objects().space().iter().count()
}

#[tokio::test]
async fn a_field_of_one_node_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let large: bytes::Bytes = vec![7; 50_000].into();
    change(&store, |batch| {
        batch.operate(key("counter"), Operation::CounterAdd(5));
        batch.operate(key("large"), set(large.clone()));
        batch.operate(key("stays"), Operation::CounterAdd(1));
    })
    .await
    .unwrap();
    // A change of a large field is a record of its own.
    change(&store, |batch| batch.operate(key("set"), Operation::SetAdd(vec![1; 9_000].into())))
        .await
        .unwrap();
    change(&store, |batch| batch.operate(key("set"), Operation::SetAdd("x".into()))).await.unwrap();
    assert_eq!(records(&store), 5);
    change(&store, |batch| {
        for field in ["counter", "large", "set", "none"] {
            batch.delete_field(key(field));
        }
    })
    .await
    .unwrap();
    assert_eq!(
        (value(&store, "counter"), value(&store, "large"), value(&store, "set")),
        (None, None, None)
    );
    assert_eq!((names(&store), records(&store)), (vec!["stays".to_owned()], 1));
    let listed = store.objects().list(None, None, 10).unwrap();
    assert_eq!(listed[0].fields.keys().collect::<Vec<_>>(), ["stays"]);
    // The name can have another type, also in one batch with the deletion.
    change(&store, |batch| batch.operate(key("counter"), set("text"))).await.unwrap();
    change(&store, |batch| {
        batch.delete_field(key("counter"));
        batch.operate(key("counter"), Operation::SetAdd("x".into()));
    })
    .await
    .unwrap();
    assert_eq!(value(&store, "counter"), Some(Value::Values(vec!["x".into()])));
    change(&store, |batch| batch.delete_field(key("stays"))).await.unwrap();
    drop(store);
    let store = open(dir.path());
    assert_eq!(names(&store), ["counter"]);
    change(&store, |batch| batch.delete_field(key("counter"))).await.unwrap();
    assert_eq!((records(&store), store.objects().list(None, None, 10).unwrap()), (0, vec![]));
}

#[tokio::test]
async fn a_refused_batch_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let elements = [vec![1; 3_000], vec![2; 3_000]];
    for element in &elements {
        change(&store, |batch| batch.operate(key("large"), Operation::SetAdd(element.clone().into())))
            .await
            .unwrap();
    }
    change(&store, |batch| batch.operate(key("small"), Operation::CounterAdd(5))).await.unwrap();
    for second in [Operation::CounterAdd(1), set("x")] {
        let refused = change(&store, |batch| {
            batch.delete_field(key("large"));
            batch.delete_field(key("small"));
            batch.operate(key("large"), second);
            batch.operate(key("other"), Operation::CounterAdd(i64::MAX));
            batch.operate(key("other"), Operation::CounterAdd(1));
        });
        assert!(matches!(refused.await, Err(CommitError::Field(_))));
        assert_eq!(value(&store, "large"), Some(Value::Values(elements.clone().map(Into::into).into())));
        assert_eq!(value(&store, "small"), Some(Value::Integer(5)));
        assert_eq!(names(&store), ["large", "small"]);
    }
}

#[tokio::test]
async fn deleted_bytes_and_fields_do_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    // The quota is 4 MiB.
    for _ in 0..20 {
        change(&store, |batch| batch.operate(key("big"), set(vec![7; 1 << 20]))).await.unwrap();
        change(&store, |batch| batch.operate(key("big2"), set(vec![7; 1 << 20]))).await.unwrap();
        change(&store, |batch| {
            batch.delete_field(key("big"));
            batch.delete_field(key("big2"));
        })
        .await
        .unwrap();
    }
    for round in 0..3 {
        for chunk in 0..10 {
            change(&store, |batch| {
                let field = |number: usize| key(&format!("f{round}-{chunk}-{number}"));
                (0..1000).for_each(|number| batch.operate(field(number), Operation::CounterAdd(1)));
            })
            .await
            .unwrap();
        }
        let full = change(&store, |batch| batch.operate(key("more"), Operation::CounterAdd(1))).await;
        assert!(full.unwrap_err().to_string().contains("10000 fields"));
        for chunk in 0..10 {
            change(&store, |batch| {
                (0..1000).for_each(|number| batch.delete_field(key(&format!("f{round}-{chunk}-{number}"))));
            })
            .await
            .unwrap();
        }
    }
    assert_eq!(records(&store), 0);
}

#[tokio::test]
async fn a_member_keeps_a_tombstone_until_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.objects().collect_for_peers();
    change(&store, |batch| batch.operate(key("f"), Operation::CounterAdd(5))).await.unwrap();
    store.objects().take_for_peers().await;
    change(&store, |batch| batch.delete_field(key("f"))).await.unwrap();
    let deltas = store.objects().take_for_peers().await;
    let tombstone = FieldState::from(deltas[&key("f")].delta.clone());
    assert!(tombstone.is_deleted() && tombstone.deleted_at_ms() == NOW_MS);
    assert_eq!((names(&store), records(&store), value(&store, "f")), (vec![], 1, None));
    let kept = store.objects().fields_and_tombstones("app", "object").unwrap();
    assert_eq!(kept, [key("f")]);
    drop(store);

    let store = open(dir.path());
    store.objects().collect_for_peers();
    assert_eq!((names(&store), records(&store), value(&store, "f")), (vec![], 1, None));
    let refused = change(&store, |batch| batch.operate(key("f"), set("x"))).await.unwrap_err();
    assert!(refused.to_string().contains("was a counter"), "{refused}");
    for (up_to_ms, left) in [(NOW_MS - 1, 1), (NOW_MS, 0)] {
        change(&store, |batch| batch.drop_tombstone(key("f"), up_to_ms)).await.unwrap();
        assert_eq!(records(&store), left);
    }
    change(&store, |batch| batch.operate(key("f"), set("x"))).await.unwrap();
    change(&store, |batch| batch.drop_tombstone(key("f"), u64::MAX)).await.unwrap();
    assert_eq!(value(&store, "f"), Some(Value::Register(Some("x".into()))));
}

#[tokio::test]
async fn a_field_takes_the_place_of_its_tombstone_in_an_object_that_is_full_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.objects().collect_for_peers();
    let names = |range: Range<usize>| range.map(|number| key(&format!("f{number}")));
    for from in (0..MAX_RECORDS_PER_OBJECT).step_by(MAX_FIELDS_PER_OBJECT) {
        for step in (from..from + MAX_FIELDS_PER_OBJECT).step_by(1_000) {
            let add = |batch: &mut Batch| {
                names(step..step + 1_000).for_each(|key| batch.operate(key, Operation::CounterAdd(1)));
            };
            change(&store, add).await.unwrap();
        }
        let full =
            change(&store, |batch| batch.operate(key("new"), Operation::CounterAdd(1))).await.unwrap_err();
        assert!(full.to_string().contains("cannot have more than 10000 fields"), "{full}");
        for step in (from..from + MAX_FIELDS_PER_OBJECT).step_by(1_000) {
            change(&store, |batch| names(step..step + 1_000).for_each(|key| batch.delete_field(key)))
                .await
                .unwrap();
        }
    }
    let full =
        change(&store, |batch| batch.operate(key("new"), Operation::CounterAdd(1))).await.unwrap_err();
    assert!(full.to_string().contains("has 0 fields, and 20000 deleted ones"), "{full}");
    change(&store, |batch| batch.operate(key("f7"), Operation::CounterAdd(1))).await.unwrap();
    assert_eq!(value(&store, "f7"), Some(Value::Integer(1)));
    // Also one that is in the same batch as its deletion.
    let again = |batch: &mut Batch| {
        batch.delete_field(key("f7"));
        batch.operate(key("f7"), Operation::CounterAdd(2));
    };
    change(&store, again).await.unwrap();
    assert_eq!(value(&store, "f7"), Some(Value::Integer(2)));
    // Dropped tombstones make room.
    let drop = |batch: &mut Batch| names(8..108).for_each(|key| batch.drop_tombstone(key, NOW_MS));
    change(&store, drop).await.unwrap();
    change(&store, |batch| batch.operate(key("new"), Operation::CounterAdd(1))).await.unwrap();
}

/// A member that lacks the deletion sends the field: it gets the deletion again, with a new time.
#[tokio::test]
async fn a_deletion_that_a_member_lacks_is_told_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.objects().collect_for_peers();
    change(&store, |batch| batch.operate(key("f"), Operation::CounterAdd(5))).await.unwrap();
    let (state, _) = store.objects().state(&key("f")).unwrap().unwrap();
    change(&store, |batch| batch.delete_field(key("f"))).await.unwrap();
    store.objects().take_for_peers().await;
    let old = StateDelta::from(state);
    change(&store, |batch| batch.merge(key("f"), old.clone(), 0)).await.unwrap();
    assert!(store.objects().peers.deltas.lock().is_empty(), "the members are not believed to know it");
    store.objects().deletions().set_agreed(NOW_MS);
    assert!(store.objects().deletions().observe(NOW_MS + 5_000, NOW_MS));
    change(&store, |batch| batch.merge(key("f"), old, 0)).await.unwrap();
    let deltas = store.objects().take_for_peers().await;
    assert_eq!(FieldState::from(deltas[&key("f")].delta.clone()).deleted_at_ms(), NOW_MS + 5_000);
    assert_eq!(value(&store, "f"), None);
}

#[tokio::test]
async fn a_watch_is_told_of_a_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let scope = WatchScope { app: "app".into(), object: "*".into(), field: None };
    let mut watch = store.objects().watch(scope);
    change(&store, |batch| batch.operate(key("f"), Operation::CounterAdd(5))).await.unwrap();
    let (notice, _) = watch.next().await;
    assert_eq!((notice.previous, notice.value), (None, Some(Value::Integer(5))));
    change(&store, |batch| batch.delete_field(key("f"))).await.unwrap();
    let (notice, _) = watch.next().await;
    assert_eq!(
        (notice.previous, notice.value, notice.field_type),
        (Some(Value::Integer(5)), None, FieldType::Counter)
    );
    change(&store, |batch| batch.operate(key("f"), set("x"))).await.unwrap();
    let (notice, _) = watch.next().await;
    assert_eq!((notice.previous, notice.value), (None, Some(Value::Register(Some("x".into())))));
}

/// A clock that the test sets.
fn open_at(dir: &Path, now_ms: &Arc<AtomicU64>, ttl: Duration) -> Arc<Store> {
    let now_ms = now_ms.clone();
    let store = Store::open(&StoreOptions::small(dir), Clock::new(move || now_ms.load(Relaxed))).unwrap();
    set_ttl(&store, Some(ttl));
    Arc::new(store)
}

fn set_ttl(store: &Store, ttl: Option<Duration>) {
    let mut classes = Classes::default();
    classes.add("app".into(), [("session-*".to_owned(), ObjectClass { ttl, ..ObjectClass::default() })]);
    store.objects().set_classes(classes);
}

#[tokio::test]
async fn an_object_expires_after_its_last_change() {
    let dir = tempfile::tempdir().unwrap();
    let now_ms = Arc::new(AtomicU64::new(NOW_MS));
    let ttl = Duration::from_secs(1_600);
    let key = |object: &str, field: &str| FieldKey::new("app", object, field);
    let add = |store: Arc<Store>, object: &'static str| async move {
        change(&store, |batch| batch.operate(FieldKey::new("app", object, "n"), Operation::CounterAdd(1)))
            .await
    };
    let store = open_at(dir.path(), &now_ms, ttl);
    for object in ["session-1", "session-2", "other"] {
        add(store.clone(), object).await.unwrap();
    }
    drop(store);
    let store = open_at(dir.path(), &now_ms, ttl);
    now_ms.fetch_add(1_000_000, Relaxed);
    add(store.clone(), "session-2").await.unwrap();
    let expired = |store: &Store| store.expired_objects(now_ms.load(Relaxed), 10).unwrap();
    let found = expired(&store);
    // A sixteenth of the time to live is 100 s, of which a minute counts.
    assert_eq!((found.objects.len(), found.next_unix_ms), (0, Some(NOW_MS + 60_000 + 1_600_000)));
    // A request to expire an object early changes nothing.
    change(&store, |batch| batch.expire("app", "session-1", vec![key("session-1", "n")])).await.unwrap();
    assert!(store.objects().has_record(&key("session-1", "n")).unwrap());
    now_ms.fetch_add(660_000, Relaxed);
    assert_eq!(expired(&store).objects, [("app".to_owned(), "session-1".to_owned())]);
    change(&store, |batch| batch.expire("app", "session-1", vec![key("session-1", "n")])).await.unwrap();
    assert!(!store.objects().has_record(&key("session-1", "n")).unwrap());
    // A change after the search keeps the object.
    now_ms.fetch_add(10_000_000, Relaxed);
    assert_eq!(expired(&store).objects, [("app".to_owned(), "session-2".to_owned())]);
    add(store.clone(), "session-2").await.unwrap();
    change(&store, |batch| batch.expire("app", "session-2", vec![key("session-2", "n")])).await.unwrap();
    let sum = store.objects().read(&key("session-2", "n"), |field| field.map(Field::value)).unwrap();
    assert_eq!(sum, Some(Value::Integer(3)));
    now_ms.fetch_add(10_000_000, Relaxed);
    change(&store, |batch| batch.expire("app", "session-2", vec![key("session-2", "n")])).await.unwrap();
    let found = expired(&store);
    assert_eq!((found.objects, found.next_unix_ms), (vec![], None));
    assert_eq!(records(&store), 1);
}

#[tokio::test]
async fn the_time_to_live_of_an_old_object_begins_when_it_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let session = FieldKey::new("app", "session-1", "n");
    change(&store, |batch| batch.operate(session.clone(), Operation::CounterAdd(1))).await.unwrap();
    drop(store);
    let now_ms = Arc::new(AtomicU64::new(NOW_MS + 1_000_000_000));
    let store = open_at(dir.path(), &now_ms, Duration::from_secs(10));
    assert!(store.expired_objects(now_ms.load(Relaxed), 10).unwrap().objects.is_empty());
    assert_eq!(store.objects_without_last_change(), std::slice::from_ref(&session));
    change(&store, |batch| batch.touch(session.clone())).await.unwrap();
    assert_eq!(store.objects_without_last_change(), []);
    now_ms.fetch_add(11_000, Relaxed);
    assert_eq!(store.expired_objects(now_ms.load(Relaxed), 10).unwrap().objects.len(), 1);
}

#[tokio::test]
async fn the_time_to_live_begins_anew_when_a_class_gets_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let now_ms = Arc::new(AtomicU64::new(NOW_MS));
    let ttl = Duration::from_secs(10);
    let store = open_at(dir.path(), &now_ms, ttl);
    let session = FieldKey::new("app", "session-1", "n");
    change(&store, |batch| batch.operate(session.clone(), Operation::CounterAdd(1))).await.unwrap();
    assert_eq!(store.objects_that_stay().unwrap(), []);
    set_ttl(&store, None);
    let staying = store.objects_that_stay().unwrap();
    assert_eq!(staying, [("app".to_owned(), "session-1".to_owned())]);
    change(&store, |batch| batch.forget_last_change("app", "session-1")).await.unwrap();
    assert_eq!(store.objects_that_stay().unwrap(), []);
    now_ms.fetch_add(60_000, Relaxed);
    set_ttl(&store, Some(ttl));
    assert!(store.expired_objects(now_ms.load(Relaxed), 10).unwrap().objects.is_empty());
    assert_eq!(store.objects_without_last_change(), [session]);
}

/// Small and large fields, tombstones, fields that only memory has, and neighbours.
#[tokio::test]
async fn the_states_of_an_object_are_those_of_its_fields() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.objects().collect_for_peers();
    let mut classes = Classes::default();
    let class = ObjectClass { durability: ObjectDurability::Memory, ..ObjectClass::default() };
    classes.add("app".into(), [("object".to_owned(), class)]);
    let large: bytes::Bytes = vec![7; 9_000].into();
    for neighbour in ["objec", "object2"] {
        let key = FieldKey::new("app", neighbour, "n");
        change(&store, |batch| batch.operate(key, Operation::CounterAdd(9))).await.unwrap();
    }
    change(&store, |batch| {
        batch.operate(key("counter"), Operation::CounterAdd(5));
        batch.operate(key("gone"), Operation::CounterAdd(1));
        batch.operate(key("set"), Operation::SetAdd(large));
    })
    .await
    .unwrap();
    for element in ["a", "b"] {
        change(&store, |batch| batch.operate(key("set"), Operation::SetAdd(element.into()))).await.unwrap();
    }
    change(&store, |batch| batch.delete_field(key("gone"))).await.unwrap();
    store.objects().set_classes(classes);
    for (field, amount) in [("counter", 2), ("between", 3)] {
        change(&store, |batch| batch.operate(key(field), Operation::CounterAdd(amount))).await.unwrap();
    }
    let expected = || -> Vec<_> {
        let keys = store.objects().fields_and_tombstones("app", "object").unwrap();
        let state = |key: FieldKey| {
            let (state, depth) = store.objects().state(&key).unwrap().unwrap();
            (key, state.digest(), depth)
        };
        keys.into_iter().map(state).collect()
    };
    let found = || -> Vec<_> {
        let states = store.objects().states("app", "object").unwrap();
        states.into_iter().map(|(key, state, depth)| (key, state.digest(), depth)).collect()
    };
    assert_eq!(found().len(), 4);
    assert_eq!(found(), expected());
}
