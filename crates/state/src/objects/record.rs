//! On-disk format of a field.
//!
//! A field has a base record under its key. A change of a large field does not rewrite the base: each change is a
//! separate record under the key, a zero byte and a number of eight bytes (big-endian). Once the change records
//! together are as large as the base, the base is rewritten. So a change costs about twice its own size, however large
//! the field is.
//!
//! | record | bytes |
//! |---|---|
//! | base | 2, flags (1: changes follow), the field's binary form, checksum |
//! | change | 3, the delta's binary form, checksum |
//! | base, with a depth | 4, flags, depth, the field's binary form, checksum |
//! | change, with a depth | 5, depth, the delta's binary form, checksum |
//! | tombstone of a deleted field | 6, depth, the state's binary form, checksum |
//! | base of the first versions | the field's binary form, which begins with 1 |
//!
//! The depth is that of the call chain that made the last change. Changes from outside have none, and no byte for it.
//! The checksum is the lower half of XXH3-64 over all bytes before it, little-endian.

use edgefaas_crdt::{FieldState, StateDelta};
use xxhash_rust::xxh3::xxh3_64;

const BASE: u8 = 2;
const CHANGE: u8 = 3;
const DEEP_BASE: u8 = 4;
const DEEP_CHANGE: u8 = 5;
const TOMBSTONE: u8 = 6;
const FIRST_VERSIONS: u8 = 1;
const CHANGES_FOLLOW: u8 = 1;
const CHECKSUM_BYTES: usize = 4;
const NUMBER_BYTES: usize = 8;

/// A record cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The checksum is wrong.
    #[error("its checksum is wrong: the disk has lost or changed bytes of it")]
    Checksum,
    /// The kind of the record or a flag is unknown to this version.
    #[error(
        "it is of kind {0}, which this version does not know; use the edgefaas that wrote it, or a newer one"
    )]
    Kind(u8),
    /// The record does not contain a field.
    #[error(transparent)]
    Field(#[from] edgefaas_crdt::DecodeError),
}

/// Contents of a base record.
pub struct Base {
    /// The field, or its tombstone.
    pub field: FieldState,
    /// Change records may exist beside it.
    pub changes_follow: bool,
    /// Depth of the call chain that made the last change in it.
    pub depth: u8,
}

/// A change of a field.
pub struct Change {
    /// The change.
    pub delta: StateDelta,
    /// Depth of the call chain that made it.
    pub depth: u8,
}

/// The base record of a field. No changes follow a tombstone.
pub fn encode_base(field: &FieldState, changes_follow: bool, depth: u8) -> Vec<u8> {
    if field.is_deleted() {
        let mut record = vec![TOMBSTONE, depth];
        record.extend_from_slice(&field.encode());
        return with_checksum(record);
    }
    let flags = if changes_follow { CHANGES_FOLLOW } else { 0 };
    let mut record = match depth {
        0 => vec![BASE, flags],
        depth => vec![DEEP_BASE, flags, depth],
    };
    record.extend_from_slice(&field.encode());
    with_checksum(record)
}

/// The record of a change.
pub fn encode_change(delta: &StateDelta, depth: u8) -> Vec<u8> {
    let mut record = match depth {
        0 => vec![CHANGE],
        depth => vec![DEEP_CHANGE, depth],
    };
    record.extend_from_slice(&delta.encode());
    with_checksum(record)
}

/// True if a base record is the tombstone of a deleted field. The checksum is not verified.
pub fn is_tombstone(record: &[u8]) -> bool {
    record.first() == Some(&TOMBSTONE)
}

/// Reads a base record of this or an earlier version.
pub fn decode_base(record: &[u8]) -> Result<Base, RecordError> {
    if record.first() == Some(&FIRST_VERSIONS) {
        return Ok(Base { field: FieldState::decode(record)?, changes_follow: false, depth: 0 });
    }
    let (flags, depth, field) = match checked(record)? {
        [BASE, flags @ (0 | CHANGES_FOLLOW), field @ ..] => (flags, 0, field),
        [TOMBSTONE, depth, field @ ..] => (&0, *depth, field),
        [DEEP_BASE, flags @ (0 | CHANGES_FOLLOW), depth, field @ ..] => (flags, *depth, field),
        [kind, ..] => return Err(RecordError::Kind(*kind)),
        [] => return Err(RecordError::Checksum),
    };
    Ok(Base { field: FieldState::decode(field)?, changes_follow: *flags == CHANGES_FOLLOW, depth })
}

/// Reads the record of a change.
pub fn decode_change(record: &[u8]) -> Result<Change, RecordError> {
    match checked(record)? {
        [CHANGE, delta @ ..] => Ok(Change { delta: StateDelta::decode(delta)?, depth: 0 }),
        [DEEP_CHANGE, depth, delta @ ..] => Ok(Change { delta: StateDelta::decode(delta)?, depth: *depth }),
        [kind, ..] => Err(RecordError::Kind(*kind)),
        [] => Err(RecordError::Checksum),
    }
}

/// Key of a change record; a prefix of it covers all change records of the field.
pub fn change_key(field_key: &[u8], number: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(field_key.len() + 1 + NUMBER_BYTES);
    key.extend_from_slice(field_key);
    key.push(0);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Splits the key of a change record into the field's key and the number; `None` for the key of a base record.
pub fn split_change_key(key: &[u8]) -> Option<(&[u8], u64)> {
    // The names of app, object and field contain no zero byte, so the key of a base record contains two.
    let mut zeros = key.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at);
    let third = zeros.nth(2)?;
    let number = key.get(third + 1..)?.try_into().ok()?;
    Some((&key[..third], u64::from_be_bytes(number)))
}

fn with_checksum(mut record: Vec<u8>) -> Vec<u8> {
    let checksum = xxh3_64(&record) as u32;
    record.extend_from_slice(&checksum.to_le_bytes());
    record
}

fn checked(record: &[u8]) -> Result<&[u8], RecordError> {
    let (content, checksum) = record.split_last_chunk::<CHECKSUM_BYTES>().ok_or(RecordError::Checksum)?;
    match xxh3_64(content) as u32 == u32::from_le_bytes(*checksum) {
        true => Ok(content),
        false => Err(RecordError::Checksum),
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_crdt::{FieldType, Hlc, Operation, ReplicaId};

    use super::*;

    fn field() -> (FieldState, StateDelta) {
        let mut field = FieldState::empty(FieldType::Counter);
        let replica = ReplicaId::new(7, 1).into();
        field.apply_local("f", Operation::CounterAdd(5), replica, Hlc::default()).unwrap();
        let delta = field.apply_local("f", Operation::CounterAdd(-2), replica, Hlc::default()).unwrap();
        (field, delta)
    }

    /// Existing data directories contain these bytes: a change needs a new kind of record.
    #[test]
    fn the_format_stays_as_it_is() {
        let (field, delta) = field();
        let base = encode_base(&field, false, 0);
        assert_eq!(base, [2, 0, 1, 0, 1, 7, 1, 5, 2, 21, 165, 159, 201], "{base:?}");
        let change = encode_change(&delta, 0);
        assert_eq!(change[..change.len() - 4], [3, 1, 0, 1, 7, 1, 5, 2], "{change:?}");
        assert_eq!(decode_base(&base).unwrap().field, field);
        assert_eq!(decode_base(&field.encode()).unwrap().field, field, "as the first versions wrote it");
        assert_eq!(decode_change(&change).unwrap().delta, delta);
        assert!(decode_base(&encode_base(&field, true, 0)).unwrap().changes_follow);
        let (deep_base, deep_change) = (encode_base(&field, false, 9), encode_change(&delta, 9));
        assert_eq!(deep_base[..deep_base.len() - 4], [4, 0, 9, 1, 0, 1, 7, 1, 5, 2], "{deep_base:?}");
        assert_eq!(deep_change[..deep_change.len() - 4], [5, 9, 1, 0, 1, 7, 1, 5, 2], "{deep_change:?}");
        let mut deleted = field.clone();
        deleted.delete(ReplicaId::new(7, 1), Hlc { wall_ms: 9, logical: 0 });
        let tombstone = encode_base(&deleted, true, 0);
        assert_eq!(tombstone[..5], [6, 0, 1, 23, 9], "{tombstone:?}");
        assert!(is_tombstone(&tombstone) && !is_tombstone(&base));
        assert_eq!(decode_base(&tombstone).unwrap().field, deleted);
        let (base, change) = (decode_base(&deep_base).unwrap(), decode_change(&deep_change).unwrap());
        assert_eq!((base.field, base.depth, change.delta, change.depth), (field, 9, delta, 9));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (field, delta) = field();
        for (record, is_base) in [
            (encode_base(&field, true, 0), true),
            (encode_change(&delta, 0), false),
            (encode_base(&field, true, 3), true),
            (encode_change(&delta, 3), false),
        ] {
            for bit in 8..record.len() * 8 {
                let mut damaged = record.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let refused =
                    if is_base { decode_base(&damaged).is_err() } else { decode_change(&damaged).is_err() };
                assert!(refused, "bit {bit}");
            }
            assert!(decode_base(&record[..record.len() - 1]).is_err());
        }
        let other = with_checksum(vec![9, 1, 2]);
        assert_eq!(decode_base(&other).err(), Some(RecordError::Kind(9)));
    }

    #[test]
    fn keys_of_changes_lie_behind_their_base() {
        let base = b"app\0object\0field";
        let (first, second) = (change_key(base, 1), change_key(base, 256));
        assert!(base[..] < first[..] && first < second);
        assert!(second[..] < b"app\0object\0field-2"[..]);
        assert_eq!(split_change_key(&second), Some((&base[..], 256)));
        assert_eq!(split_change_key(base), None);
        // A number whose bytes are zero.
        assert_eq!(split_change_key(&change_key(base, 0)), Some((&base[..], 0)));
    }
}
