use std::sync::Arc;

use edgefaas_crdt::Value;
use edgefaas_platform::Clock;

use super::*;
use crate::error::CommitError;
use crate::store::{Batch, Durability, Store, StoreOptions};

const NOW_MS: u64 = 1_800_000_000_000;
const NOW: Hlc = Hlc { wall_ms: NOW_MS, logical: 0 };
const LIMITS: PendingLimits = PendingLimits { max_fields: 4, max_bytes: 10_000 };

struct Bench {
    store: Arc<Store>,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// A store in which `object` has a counter `c` of 5, a register `r`, and a set `s` with one element.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&StoreOptions::small(dir.path()), Clock::new(|| NOW_MS)).unwrap());
        let bench = Self { store, _dir: dir };
        let mut pending = PendingFields::default();
        bench.operate(&mut pending, "c", Operation::CounterAdd(5)).unwrap();
        bench.operate(&mut pending, "r", Operation::RegisterSet("old".into())).unwrap();
        bench.operate(&mut pending, "s", Operation::SetAdd("x".into())).unwrap();
        bench.commit(pending).await.unwrap();
        bench
    }

    fn operate(
        &self,
        pending: &mut PendingFields,
        field: &str,
        operation: Operation,
    ) -> Result<(), PendingError> {
        pending.operate(self.store.objects(), key(field), operation, NOW, LIMITS)
    }

    async fn commit(&self, pending: PendingFields) -> Result<(), CommitError> {
        let mut batch = Batch::default();
        for (key, change) in pending.into_changes() {
            match change {
                PendingChange::Delete => batch.delete_field(key),
                PendingChange::Operate(operation) => batch.operate(key, operation),
            }
        }
        self.store.committer().commit(batch, Durability::Written).await
    }

    fn value(&self, field: &str) -> Option<Value> {
        self.store.objects().read(&key(field), |field| field.map(Field::value)).unwrap()
    }
}

fn key(field: &str) -> FieldKey {
    FieldKey::new("app", "object", field)
}

#[tokio::test]
async fn a_deletion_replaces_earlier_changes_and_comes_before_later_ones() {
    let bench = Bench::new().await;
    let mut pending = PendingFields::default();
    bench.operate(&mut pending, "c", Operation::CounterAdd(7)).unwrap();
    pending.delete(key("c"), LIMITS).unwrap();
    let deleted = pending.get(&key("c")).unwrap();
    assert_eq!((deleted.start(), deleted.write().is_none()), (Start::Deleted, true));
    // Another type, in the same invocation.
    bench.operate(&mut pending, "c", Operation::RegisterSet("new".into())).unwrap();
    let wrong = bench.operate(&mut pending, "c", Operation::CounterAdd(1)).unwrap_err();
    assert!(wrong.to_string().contains("is a register"), "{wrong}");
    // A set that is deleted begins empty.
    pending.delete(key("s"), LIMITS).unwrap();
    bench.operate(&mut pending, "s", Operation::SetAdd("y".into())).unwrap();
    let Some(Write::Changed { field, .. }) = pending.get(&key("s")).unwrap().write() else {
        panic!("the set is changed")
    };
    assert_eq!(field.value(), Value::Values(vec!["y".into()]));
    // A counter that begins again at 0, and is deleted and made again.
    for amount in [1, 2] {
        pending.delete(key("r"), LIMITS).unwrap();
        bench.operate(&mut pending, "r", Operation::CounterAdd(amount)).unwrap();
    }
    bench.commit(pending).await.unwrap();
    assert_eq!(bench.value("c"), Some(Value::Register(Some("new".into()))));
    assert_eq!(bench.value("s"), Some(Value::Values(vec!["y".into()])));
    assert_eq!(bench.value("r"), Some(Value::Integer(2)));
}

#[tokio::test]
async fn a_whole_object_has_its_stored_and_its_pending_fields() {
    let bench = Bench::new().await;
    let mut pending = PendingFields::default();
    bench.operate(&mut pending, "new", Operation::CounterAdd(1)).unwrap();
    bench.operate(&mut pending, "c", Operation::CounterAdd(1)).unwrap();
    pending.delete_object(bench.store.objects(), "app", "object", LIMITS).unwrap();
    for field in ["c", "r", "s", "new"] {
        let deleted = pending.get(&key(field)).unwrap();
        assert_eq!((deleted.start(), deleted.write().is_none()), (Start::Deleted, true), "{field}");
    }
    bench.operate(&mut pending, "s", Operation::CounterAdd(3)).unwrap();
    bench.commit(pending).await.unwrap();
    let left = bench.store.objects().fields("app", "object", None, 10).unwrap();
    assert_eq!((left, bench.value("s")), (vec![key("s")], Some(Value::Integer(3))));
}

#[tokio::test]
async fn a_deletion_over_a_limit_changes_nothing() {
    let bench = Bench::new().await;
    let mut pending = PendingFields::default();
    for field in ["a", "b"] {
        let other = FieldKey::new("app", "other", field);
        pending.operate(bench.store.objects(), other, Operation::CounterAdd(1), NOW, LIMITS).unwrap();
    }
    let bytes = pending.bytes();
    let refused = pending.delete_object(bench.store.objects(), "app", "object", LIMITS);
    assert!(matches!(refused, Err(PendingError::TooMany)));
    let tight = PendingLimits { max_fields: 100, max_bytes: bytes + 300 };
    let refused = pending.delete_object(bench.store.objects(), "app", "object", tight);
    assert!(matches!(refused, Err(PendingError::NoRoom)));
    assert!(pending.get(&key("c")).is_none());
    assert_eq!(pending.bytes(), bytes);
    bench.commit(pending).await.unwrap();
    assert_eq!(bench.value("c"), Some(Value::Integer(5)));
}

#[tokio::test]
async fn a_deletion_releases_the_memory_of_earlier_writes() {
    let bench = Bench::new().await;
    let mut pending = PendingFields::default();
    pending.delete(key("c"), LIMITS).unwrap();
    let empty = pending.bytes();
    for operation in [
        Operation::RegisterSet(vec![7; 5_000].into()),
        Operation::CounterAdd(1),
        Operation::SetAdd(vec![7; 5_000].into()),
    ] {
        let is_set = matches!(operation, Operation::SetAdd(_));
        bench.operate(&mut pending, "c", operation).unwrap();
        if is_set {
            bench.operate(&mut pending, "c", Operation::SetAdd("y".into())).unwrap();
        }
        assert!(pending.bytes() > empty);
        pending.delete(key("c"), LIMITS).unwrap();
        assert_eq!(pending.bytes(), empty);
    }
    let large = bench.operate(&mut pending, "c", Operation::RegisterSet(vec![7; 10_000].into()));
    assert!(matches!(large, Err(PendingError::NoRoom)));
    assert_eq!(pending.bytes(), empty);
}

#[tokio::test]
async fn a_member_keeps_the_type_of_a_deleted_field() {
    let bench = Bench::new().await;
    bench.store.objects().collect_for_peers();
    let mut pending = PendingFields::default();
    pending.delete(key("c"), LIMITS).unwrap();
    let refused = bench.operate(&mut pending, "c", Operation::RegisterSet("new".into())).unwrap_err();
    assert!(matches!(refused, PendingError::Apply(ApplyError::DeletedAs { .. })), "{refused}");
    bench.operate(&mut pending, "c", Operation::CounterAdd(2)).unwrap();
    // This one was never stored, so it leaves no tombstone.
    bench.operate(&mut pending, "new", Operation::CounterAdd(2)).unwrap();
    pending.delete(key("new"), LIMITS).unwrap();
    bench.operate(&mut pending, "new", Operation::RegisterSet("new".into())).unwrap();
    bench.commit(pending).await.unwrap();
    assert_eq!(bench.value("c"), Some(Value::Integer(2)));
    assert_eq!(bench.value("new"), Some(Value::Register(Some("new".into()))));
}
