//! The binary form does not change by accident: these bytes are on disks.

use edgefaas_crdt::{DecodeError, Field, FieldDelta, FieldType, Hlc, Operation, ReplicaId};

const COUNTER: [u8; 10] = [
    1, // format version
    0, // a counter
    2, // of two replicas
    7, 1, 5, 0, // node 7, incarnation 1: added 5, subtracted 0
    8, 2, 0, // node 8, incarnation 2: added 0 …
];
const COUNTER_END: [u8; 2] = [0xac, 0x02]; // … subtracted 300

const REGISTER: [u8; 11] = [
    1, // format version
    1, // a register
    1, // that is set
    0xe8, 0x07, 3, // at 1000 ms, logical 3
    7, 1, // by node 7, incarnation 1
    2, b'4', b'2', // two bytes
];

const LIST: [u8; 32] = [
    1,  // format version
    15, // a list
    2, 7, 1, 8, 2, // replicas: node 7, incarnation 1, and node 8, incarnation 2
    0, // no folded node
    1, 1, 1, // the first has one range of dots: it begins at 1 and has one more
    1, 1, 0, // the second has the dot 1
    1, 0, // one group of values, without a path
    2, // elements
    1, 1, // the first shares no mark and has one …
    0, 0, 1, 0, // … in the middle, of the run of dot 1 of the first replica, at its start
    0, 1, b'a', // its value has the dot of the position
    0,    // the next place of the run
    1, 1, 1, 1, b'B', // one value, with dot 1 of the second replica
];

fn counter() -> Field {
    let mut field = Field::empty(FieldType::Counter);
    let now = Hlc::default();
    field.apply_local("f", Operation::CounterAdd(5), ReplicaId::new(7, 1), now).unwrap();
    field.apply_local("f", Operation::CounterAdd(-300), ReplicaId::new(8, 2), now).unwrap();
    field
}

#[test]
fn a_counter_has_these_bytes() {
    let bytes = [&COUNTER[..], &COUNTER_END].concat();
    assert_eq!(counter().encode(), bytes);
    assert_eq!(Field::decode(&bytes), Ok(counter()));
}

#[test]
fn a_register_has_these_bytes() {
    let mut field = Field::empty(FieldType::Register);
    let now = Hlc { wall_ms: 1_000, logical: 3 };
    let delta =
        field.apply_local("f", Operation::RegisterSet("42".into()), ReplicaId::new(7, 1), now).unwrap();
    assert_eq!(field.encode(), REGISTER);
    assert_eq!(delta.encode(), REGISTER);
    assert_eq!(FieldDelta::decode(&REGISTER), Ok(delta));
}

#[test]
fn a_list_has_these_bytes() {
    let mut field = Field::empty(FieldType::List);
    let now = Hlc::default();
    for value in ["a", "b"] {
        field.apply_local("f", Operation::ListPush(value.into()), ReplicaId::new(7, 1), now).unwrap();
    }
    field.apply_local("f", Operation::ListSet(1, "B".into()), ReplicaId::new(8, 2), now).unwrap();
    assert_eq!(field.encode(), LIST);
    assert_eq!(Field::decode(&LIST), Ok(field));
}

#[test]
fn a_delta_holds_only_what_changed() {
    let mut field = counter();
    let delta =
        field.apply_local("f", Operation::CounterAdd(1), ReplicaId::new(7, 1), Hlc::default()).unwrap();
    assert_eq!(delta.encode(), [1, 0, 1, 7, 1, 6, 0]);
}

#[test]
fn what_is_no_field_is_a_typed_error() {
    assert_eq!(Field::decode(&[]), Err(DecodeError::Empty));
    assert_eq!(Field::decode(&[2, 0, 0]), Err(DecodeError::UnknownVersion { found: 2 }));
    assert!(matches!(Field::decode(&COUNTER), Err(DecodeError::Malformed(_))));
    assert!(matches!(Field::decode(&[1, 99]), Err(DecodeError::Malformed(_))), "an unknown type");
    assert_eq!(Field::decode(&[1, 1, 0, 0, 0]), Err(DecodeError::TrailingBytes { bytes: 2 }));
    // Lengths that promise gigabytes allocate nothing of the sort.
    let huge = [0xff, 0xff, 0xff, 0xff, 0x0f];
    assert!(Field::decode(&[&[1, 0], &huge[..]].concat()).is_err());
    assert!(Field::decode(&[&[1, 1, 1, 0, 0, 0, 0], &huge[..]].concat()).is_err());
}
