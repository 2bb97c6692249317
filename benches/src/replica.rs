//! The node's data types as the simulation sees them: objects with one field each.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use edgefaas_cluster::replication::{Delta, NodeId, ObjectDigest, ObjectKey, Part, Replica, View};
use edgefaas_cluster::simulation::SimulatedReplica;
use edgefaas_crdt::{Field, FieldDelta, FieldType, Hlc, Operation, ReplicaId, Value};

/// The name of every object's field, which does not travel.
const FIELD: &str = "f";
/// Who has made what was there before.
const BEGINNING: ReplicaId = ReplicaId::new(0, 1);

/// The objects of a node.
#[derive(Debug, Clone)]
pub struct Objects {
    replica: ReplicaId,
    fields: BTreeMap<ObjectKey, Kept>,
}

/// A change of an object.
#[derive(Debug, Clone)]
pub struct Change(FieldDelta);

#[derive(Debug, Clone)]
struct Kept {
    field: Field,
    /// None since it has changed.
    digest: Cell<Option<u64>>,
}

impl Objects {
    /// None, of a node.
    pub fn new(node: u64) -> Self {
        Self { replica: ReplicaId::new(node, 1), fields: BTreeMap::new() }
    }

    /// Puts so many elements into a set that all replicas have from the beginning.
    pub fn fill(&mut self, object: &ObjectKey, elements: usize) {
        for number in 0..elements as u64 {
            self.operate(object, Operation::SetAdd(element(number)), BEGINNING);
        }
    }

    /// Adds to a counter.
    pub fn add(&mut self, object: &ObjectKey, amount: i64) -> Change {
        self.operate(object, Operation::CounterAdd(amount), self.replica)
    }

    /// Adds an element to a set.
    pub fn insert(&mut self, object: &ObjectKey, number: u64) -> Change {
        self.operate(object, Operation::SetAdd(element(number)), self.replica)
    }

    /// Sets a register that keeps the values of concurrent writers.
    pub fn set(&mut self, object: &ObjectKey, value: Bytes) -> Change {
        self.operate(object, Operation::MvRegisterSet(value), self.replica)
    }

    /// The values of such a register.
    pub fn values(&self, object: &ObjectKey) -> Vec<Bytes> {
        match self.fields.get(object).map(|kept| kept.field.value()) {
            Some(Value::Values(values)) => values,
            _ => Vec::new(),
        }
    }

    fn operate(&mut self, object: &ObjectKey, operation: Operation, replica: ReplicaId) -> Change {
        let field_type = operation.field_type();
        let kept = self.kept(object, field_type);
        kept.digest.set(None);
        let delta = kept.field.apply_local(FIELD, operation, replica, Hlc::default());
        // The operations here cannot fail.
        Change(delta.unwrap_or_else(|_| Field::empty(field_type).into()))
    }

    fn kept(&mut self, object: &ObjectKey, field_type: FieldType) -> &mut Kept {
        self.fields
            .entry(object.clone())
            .or_insert_with(|| Kept { field: Field::empty(field_type), digest: Cell::new(None) })
    }
}

/// What an element is: 16 characters.
fn element(number: u64) -> Bytes {
    format!("{number:016x}").into()
}

impl Kept {
    fn digest(&self) -> u64 {
        let digest = self.digest.get().unwrap_or_else(|| self.field.digest());
        self.digest.set(Some(digest));
        digest
    }
}

impl Delta for Change {
    fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
    }

    fn weight_bytes(&self) -> usize {
        self.0.size_bytes()
    }

    fn encode(&self) -> Bytes {
        self.0.encode().into()
    }

    fn depth(&self) -> u8 {
        0
    }
}

impl Replica for Objects {
    type Delta = Change;

    fn digests(&self, hashes: RangeInclusive<u64>, visit: &mut dyn FnMut(&ObjectKey, ObjectDigest)) {
        for (object, kept) in self.fields.iter().filter(|(object, _)| hashes.contains(&object.hash64())) {
            visit(object, kept.digest().into());
        }
    }

    fn digest(&self, object: &ObjectKey, _: View) -> Option<u64> {
        self.fields.get(object).map(Kept::digest)
    }

    fn field_digests(&self, object: &ObjectKey, view: View) -> Vec<(String, u64)> {
        self.digest(object, view).map(|digest| (FIELD.to_owned(), digest)).into_iter().collect()
    }

    fn state(&self, object: &ObjectKey, _: Option<&[String]>, _: Part) -> Option<Change> {
        self.fields.get(object).map(|kept| Change(kept.field.clone().into()))
    }

    fn copies(&self, _: &ObjectKey) -> u8 {
        1
    }
}

impl SimulatedReplica for Objects {
    fn merge(&mut self, _: NodeId, object: &ObjectKey, _: u8, payload: &[u8]) -> bool {
        let Ok(delta) = FieldDelta::decode(payload) else { return false };
        let kept = self.kept(object, delta.field_type());
        kept.digest.set(None);
        kept.field.merge(delta);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_that_merge_one_anothers_changes_are_equal() {
        let object = ObjectKey::new("a", "o");
        let (mut one, mut other) = (Objects::new(1), Objects::new(2));
        for objects in [&mut one, &mut other] {
            objects.fill(&object, 10);
        }
        assert_eq!(one.digest(&object, View::ALL), other.digest(&object, View::ALL));
        let mut change = one.insert(&object, 100);
        Delta::merge(&mut change, one.insert(&object, 101));
        assert_ne!(one.digest(&object, View::ALL), other.digest(&object, View::ALL));
        assert!(SimulatedReplica::merge(&mut other, NodeId(1), &object, 1, &change.encode()));
        assert_eq!(one.digest(&object, View::ALL), other.digest(&object, View::ALL));
        assert!(!SimulatedReplica::merge(&mut other, NodeId(1), &object, 1, b"nonsense"));
    }
}
