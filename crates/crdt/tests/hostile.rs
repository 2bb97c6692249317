//! Bytes from outside that are wrong on purpose: reading them ends, without a panic and without taking much memory.
//!
//! Every test prints its seed; `PROPTEST_RNG_SEED=SEED` repeats a run.

mod generate;

use edgefaas_crdt::{
    DecodeError, Field, FieldDelta, FieldType, Hlc, MAX_MAP_DEPTH, Operation, ReplicaId, Value,
};
use generate::{field_types, operations, seeded};
use proptest::prelude::*;

/// A field after some operations of two replicas, and the last delta.
fn written(field_type: FieldType, operations: Vec<Operation>) -> (Field, Option<FieldDelta>) {
    let mut field = Field::empty(field_type);
    let mut last = None;
    for (number, operation) in (0u64..).zip(operations) {
        let replica = ReplicaId::new(number % 2, 1);
        let now = Hlc { wall_ms: number, logical: 0 };
        last = field.apply_local("f", operation, replica, now).ok().or(last);
    }
    (field, last)
}

/// Everything that is done with a field from outside.
fn use_it(bytes: &[u8]) {
    if let Ok(delta) = FieldDelta::decode(bytes) {
        assert_eq!(FieldDelta::decode(&delta.encode()), Ok(delta));
    }
    if let Ok(mut field) = Field::decode(bytes) {
        let value = field.value();
        let again = Field::decode(&field.encode()).expect("a field that was read can be read again");
        assert_eq!(again, field);
        assert_eq!(again.digest(), field.digest());
        assert_eq!(again.value(), value);
        let mut other = Field::empty(field.field_type());
        other.merge(field.clone().into());
        assert_eq!(other, field);
        field.fold(0, 1);
        field.size_bytes();
        field.latest();
    }
}

proptest! {
    #![proptest_config(seeded())]

    #[test]
    fn damaged_fields_can_be_handled(
        (field_type, operations) in field_types()
            .prop_flat_map(|t| (Just(t), prop::collection::vec(operations(t), 1..12))),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        of_delta: bool,
    ) {
        let (field, delta) = written(field_type, operations);
        let mut bytes = match delta.filter(|_| of_delta) {
            Some(delta) => delta.encode(),
            None => field.encode(),
        };
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes[0] = 1;
        use_it(&bytes);
    }
}

#[test]
fn maps_nest_only_so_deep() {
    let nested = |depth: usize| {
        let mut operation = Operation::EwFlagSet(true);
        for _ in 0..depth {
            operation = Operation::MapUpdate("k".to_owned(), Box::new(operation));
        }
        let replica = ReplicaId::new(1, 1);
        Field::empty(FieldType::Map).apply_local("f", operation, replica, Hlc::default())
    };
    let deepest = nested(MAX_MAP_DEPTH).unwrap().encode();
    use_it(&deepest);
    assert_eq!(
        nested(MAX_MAP_DEPTH + 1).unwrap_err().to_string(),
        format!("field `f{}`: it would nest deeper than 16 levels; use fewer", "/k".repeat(MAX_MAP_DEPTH))
    );
    // One step more, by hand: the length of the path and one key.
    let mut deeper = deepest;
    let at = deeper.windows(3).position(|part| part == [MAX_MAP_DEPTH as u8, 1, b'k']).unwrap();
    deeper[at] += 1;
    deeper.splice(at + 1..at + 1, [1, b'k', 7]);
    assert!(Field::decode(&deeper).is_err());
}

/// Bytes of lists, texts and JSON of development versions, which kept their history.
#[test]
fn documents_with_history_are_refused_by_name() {
    for (bytes, field_type) in [
        (&[1, 10, 0, 0][..], FieldType::List),
        (&[1, 11, 0, 0], FieldType::Text),
        (&[1, 12, 0, 0], FieldType::Json),
        // In a map: a replica, its dots, and one path of one step.
        (&[1, 7, 1, 7, 1, 0, 1, 1, 0, 1, 1, 1, b'k', 12, 1, 0, 1, 1, 0, 0], FieldType::Json),
    ] {
        assert_eq!(Field::decode(bytes), Err(DecodeError::FormerDocument { field_type }));
    }
    let error = Field::decode(&[1, 11, 0, 0]).unwrap_err().to_string();
    assert!(error.contains("text") && error.contains("export its value"), "{error}");
}

/// A position may have so many parts, and each is written once.
#[test]
fn positions_are_only_so_long() {
    let list = |depth: u64| {
        // Of replica 7.1 with the dot 1: one element at a position of so many parts.
        let mut bytes = vec![1, 15, 1, 7, 1, 0, 1, 1, 0, 1, 0, 1, 1];
        bytes.extend(postcard::to_allocvec(&depth).unwrap());
        for _ in 0..depth {
            bytes.extend([2, 0, 1, 0]);
        }
        bytes.extend([0, 1, b'v']);
        bytes
    };
    let longest = list(1024);
    use_it(&longest);
    let read = Field::decode(&longest).unwrap();
    assert_eq!(read.encode(), longest);
    assert_eq!(read.value(), Value::List(vec!["v".into()]));
    assert!(Field::decode(&list(1025)).is_err());
}

#[test]
fn lengths_that_promise_much_allocate_little() {
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    for field_type in 0..=23u8 {
        for zeros in 0..6 {
            let bytes = [&[1, field_type][..], &vec![0; zeros], &huge].concat();
            assert!(Field::decode(&bytes).is_err());
        }
    }
}
