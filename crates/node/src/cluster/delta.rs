//! Payload between nodes: fields of an object, or changes of them.
//!
//! A payload is postcard (wire format 1): a sequence of pairs of a field's name and its binary form, sorted by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_cluster::replication::{Delta, ObjectKey};
use edgefaas_crdt::StateDelta;
use edgefaas_state::objects::{FieldKey, MAX_RECORDS_PER_OBJECT, name_error};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Changes of some fields of one object.
#[derive(Debug, Clone, Default)]
pub struct ObjectDelta {
    fields: BTreeMap<Arc<str>, StateDelta>,
    /// Greatest depth of the call chains that made the changes.
    depth: u8,
}

/// A payload cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// The payload is not a sequence of names and bytes.
    #[error("it is not a list of fields: {0}")]
    Malformed(postcard::Error),
    /// The payload has no field, or more than an object may have.
    #[error("it has {0} fields")]
    Count(usize),
    /// A field's name is invalid.
    #[error("{0}")]
    Name(String),
    /// A field cannot be decoded.
    #[error(transparent)]
    Field(#[from] edgefaas_crdt::DecodeError),
}

#[derive(Serialize, Deserialize)]
struct Entry<'a> {
    name: &'a str,
    field: ByteBuf,
}

impl ObjectDelta {
    /// Adds a change of a field, made at this depth.
    pub fn add(&mut self, field: &str, delta: StateDelta, depth: u8) {
        self.depth = self.depth.max(depth);
        match self.fields.get_mut(field) {
            Some(before) => drop(before.merge(delta)),
            None => drop(self.fields.insert(field.into(), delta)),
        }
    }

    /// True if it contains no field.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

impl Delta for ObjectDelta {
    fn merge(&mut self, other: Self) {
        for (name, delta) in other.fields {
            self.add(&name, delta, other.depth);
        }
    }

    fn weight_bytes(&self) -> usize {
        self.fields.iter().map(|(name, delta)| name.len() + delta.size_bytes() + 32).sum()
    }

    fn encode(&self) -> Bytes {
        let entries: Vec<_> = self
            .fields
            .iter()
            .map(|(name, delta)| Entry { name, field: ByteBuf::from(delta.encode()) })
            .collect();
        // postcard fails only for sequences of unknown length.
        postcard::to_allocvec(&entries).unwrap_or_default().into()
    }

    fn depth(&self) -> u8 {
        self.depth
    }
}

/// Decodes a payload of a peer.
pub fn decode(object: &ObjectKey, payload: &[u8]) -> Result<Vec<(FieldKey, StateDelta)>, PayloadError> {
    let entries: Vec<Entry<'_>> = postcard::from_bytes(payload).map_err(PayloadError::Malformed)?;
    if entries.is_empty() || entries.len() > MAX_RECORDS_PER_OBJECT {
        return Err(PayloadError::Count(entries.len()));
    }
    if let Some(reason) = name_error("app's", &object.app).or_else(|| name_error("object", &object.object))
    {
        return Err(PayloadError::Name(reason));
    }
    let field = |entry: Entry<'_>| {
        if let Some(reason) = name_error("field", entry.name) {
            return Err(PayloadError::Name(reason));
        }
        let delta = StateDelta::decode(&entry.field)?;
        Ok((FieldKey::new(&object.app, &object.object, entry.name), delta))
    };
    entries.into_iter().map(field).collect()
}

#[cfg(test)]
mod tests {
    use edgefaas_crdt::{FieldState, FieldType, Hlc, Operation, ReplicaId};
    use proptest::prelude::*;

    use super::*;

    impl ObjectDelta {
        fn of(field: &str, delta: StateDelta) -> Self {
            Self { fields: BTreeMap::from([(field.into(), delta)]), depth: 0 }
        }
    }

    fn delta(amount: i64) -> StateDelta {
        let mut field = FieldState::empty(FieldType::Counter);
        let replica = ReplicaId::new(u64::MAX / 3, 4).into();
        field.apply_local("f", Operation::CounterAdd(amount), replica, Hlc::default()).unwrap()
    }

    #[test]
    fn a_payload_is_small_and_decoded_again() {
        let object = ObjectKey::new("miso", "counter");
        let mut whole = ObjectDelta::of("n", delta(5_000_000));
        assert!(whole.encode().len() <= 28, "{} bytes", whole.encode().len());
        whole.merge(ObjectDelta::of("m", delta(-3)));
        let read = decode(&object, &whole.encode()).unwrap();
        let names: Vec<_> = read.iter().map(|(key, _)| key.field().to_owned()).collect();
        assert_eq!(names, ["m", "n"]);
        assert_eq!(read[1].1, delta(5_000_000));
    }

    #[test]
    fn invalid_payloads_are_refused() {
        let object = ObjectKey::new("a", "o");
        assert!(matches!(decode(&object, &ObjectDelta::default().encode()), Err(PayloadError::Count(0))));
        let bad = ObjectDelta::of("a\0b", delta(1));
        assert!(matches!(decode(&object, &bad.encode()), Err(PayloadError::Name(_))));
        let good = ObjectDelta::of("f", delta(1)).encode();
        assert!(matches!(decode(&ObjectKey::new("a", "o\0"), &good), Err(PayloadError::Name(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_fields_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&ObjectKey::new("a", "o"), &bytes);
        }
    }
}
