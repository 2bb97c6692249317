//! The binary form of fields and deltas, on disk and between nodes: one byte with the format version, then the field
//! in postcard (postcard.jamesmunns.com, wire format 1).

use bytes::Bytes;
use postcard::Error;

use crate::causal::{Flag, GSet, MvRegister, Set};
use crate::dotted::{Dotted, read_path};
use crate::replica_totals::ReplicaTotals;
use crate::wire::{Reader, Wire};
use crate::{
    BoundedCounter, Counter, Document, Field, FieldDelta, FieldState, FieldType, GCounter, Register,
    StateDelta, Timestamp,
};

/// The format that this version writes; the first byte.
pub const FORMAT_VERSION: u8 = 1;

/// The bytes do not contain a valid field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There are no bytes, not even the version.
    #[error("a field cannot be read: there are no bytes")]
    Empty,
    /// Written by a version of edgefaas that this one does not know.
    #[error(
        "a field cannot be read: it has format {found}, this version reads format {FORMAT_VERSION}; \
         use the edgefaas that wrote it or a newer one"
    )]
    UnknownVersion {
        /// The version that the bytes claim.
        found: u8,
    },
    /// The bytes end early or hold what no field has, such as an unknown type.
    #[error("a field cannot be read: {0}")]
    Malformed(postcard::Error),
    /// A list, text or JSON document of a development version, which kept its history.
    #[error(
        "a field cannot be read: it is or has a {field_type} that keeps its history, as development versions before the \
         first release wrote it; export its value with that version and set it again"
    )]
    FormerDocument {
        /// The type of the document.
        field_type: FieldType,
    },
    /// There are bytes after the end.
    #[error("a field cannot be read: {bytes} bytes too many")]
    TrailingBytes {
        /// The number of trailing bytes.
        bytes: usize,
    },
}

/// Variants of the binary form after those of [`FieldType`]: counters with folded incarnations.
const FOLDED_COUNTER: u8 = 13;
const FOLDED_G_COUNTER: u8 = 14;
/// Variants of fields that were deleted once.
const DELETED_COUNTER: u8 = 18;
const DELETED_G_COUNTER: u8 = 19;
const DELETED_REGISTER: u8 = 20;
const DELETED_G_SET: u8 = 21;
const DELETED_BOUNDED_COUNTER: u8 = 22;
/// Before the variant of a field that was deleted once: the time of the deletion.
const DELETED_AT: u8 = 23;

impl Field {
    /// The binary form.
    pub fn encode(&self) -> Vec<u8> {
        self.encoded(vec![FORMAT_VERSION])
    }

    /// Equal for equal states, on every replica and machine: XXH3 of the binary form.
    pub fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.encoded(vec![FORMAT_VERSION]))
    }

    /// Reads the binary form; never panics, whatever the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        FieldDelta::decode(bytes).map(Self::from)
    }

    fn decode_gathered(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
        if *version != FORMAT_VERSION {
            return Err(DecodeError::UnknownVersion { found: *version });
        }
        Self::decode_body(Reader::new(body))
    }

    fn decode_body(mut reader: Reader<'_>) -> Result<Self, DecodeError> {
        let field = Self::read(&mut reader).map_err(|error| match reader.former_document() {
            Some(field_type) => DecodeError::FormerDocument { field_type },
            None => DecodeError::Malformed(error),
        })?;
        match reader.rest().len() {
            0 => Ok(field),
            bytes => Err(DecodeError::TrailingBytes { bytes }),
        }
    }

    /// Adds the variant and the state to `out`.
    fn encoded(&self, mut out: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Counter(counter) if counter.tally.has_removed() => {
                out.push(DELETED_COUNTER);
                counter.tally.write_with_removed(&mut out);
                return out;
            }
            Self::GCounter(counter) if counter.tally.has_removed() => {
                out.push(DELETED_G_COUNTER);
                counter.tally.write_with_removed(&mut out);
                return out;
            }
            Self::Register(Register { written, deleted: Some(deleted) }) => {
                out.push(DELETED_REGISTER);
                deleted.write(&mut out);
                written.write(&mut out);
                return out;
            }
            Self::GSet(set) if set.generation > 0 => {
                out.push(DELETED_G_SET);
                set.generation.write(&mut out);
            }
            Self::BoundedCounter(counter) if counter.generation() > 0 => {
                out.push(DELETED_BOUNDED_COUNTER);
                counter.generation().write(&mut out);
            }
            Self::Counter(counter) if counter.tally.has_bases() => {
                out.push(FOLDED_COUNTER);
                counter.tally.write(&mut out);
                return out;
            }
            Self::GCounter(counter) if counter.tally.has_bases() => {
                out.push(FOLDED_G_COUNTER);
                counter.tally.write(&mut out);
                return out;
            }
            _ => out.push(self.field_type().number()),
        }
        match self {
            Self::Counter(counter) => counter.tally.write_totals(&mut out),
            Self::Register(register) => register.written.write(&mut out),
            Self::GCounter(counter) => counter.tally.write_totals(&mut out),
            Self::BoundedCounter(counter) => counter.write(&mut out),
            Self::GSet(set) => {
                (set.len() as u64).write(&mut out);
                set.iter().for_each(|element| element.write(&mut out));
            }
            Self::Map(map) => {
                map.dotted.write(&mut out);
                (map.bounded.len() as u64).write(&mut out);
                for (path, counter) in &map.bounded {
                    (path.len() as u64).write(&mut out);
                    path.iter().for_each(|step| step.write(&mut out));
                    counter.write(&mut out);
                }
            }
            Self::MvRegister(MvRegister { dotted, .. })
            | Self::Set(Set { dotted, .. })
            | Self::EwFlag(Flag { dotted, .. })
            | Self::DwFlag(Flag { dotted, .. })
            | Self::List(Document { dotted, .. })
            | Self::Text(Document { dotted, .. })
            | Self::Json(Document { dotted, .. }) => dotted.write(&mut out),
        }
        out
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let variant = from.byte()?;
        match variant {
            FOLDED_COUNTER => return Ok(Self::Counter(Counter { tally: ReplicaTotals::read(from)? })),
            FOLDED_G_COUNTER => return Ok(Self::GCounter(GCounter { tally: ReplicaTotals::read(from)? })),
            DELETED_COUNTER => {
                return Ok(Self::Counter(Counter { tally: ReplicaTotals::read_with_removed(from)? }));
            }
            DELETED_G_COUNTER => {
                return Ok(Self::GCounter(GCounter { tally: ReplicaTotals::read_with_removed(from)? }));
            }
            DELETED_REGISTER => {
                let deleted = Some(Timestamp::read(from)?);
                return Ok(Self::Register(Register { deleted, written: Option::read(from)? }));
            }
            DELETED_G_SET => {
                let mut set = GSet { generation: u64::read(from)?, ..GSet::default() };
                set.read_elements(from)?;
                return Ok(Self::GSet(set));
            }
            DELETED_BOUNDED_COUNTER => {
                let generation = u64::read(from)?;
                return Ok(Self::BoundedCounter(BoundedCounter::read_of_generation(generation, from)?));
            }
            _ => {}
        }
        let field_type = from.type_of(variant)?;
        let mut field = Self::empty(field_type);
        match &mut field {
            Self::Counter(counter) => counter.tally = ReplicaTotals::read_totals(from)?,
            Self::Register(register) => register.written = Option::read(from)?,
            Self::GCounter(counter) => counter.tally = ReplicaTotals::read_totals(from)?,
            Self::BoundedCounter(counter) => *counter = BoundedCounter::read(from)?,
            Self::GSet(set) => set.read_elements(from)?,
            Self::Map(map) => {
                map.dotted = Dotted::read(field_type, from)?;
                for _ in 0..u64::read(from)? {
                    let path = read_path(field_type, from)?.ok_or(Error::DeserializeBadEncoding)?;
                    if path.last().is_none_or(|step| step.field_type != FieldType::BoundedCounter) {
                        return Err(Error::DeserializeBadEncoding);
                    }
                    map.bounded.insert(path, BoundedCounter::read(from)?);
                }
            }
            Self::MvRegister(MvRegister { dotted, .. })
            | Self::Set(Set { dotted, .. })
            | Self::EwFlag(Flag { dotted, .. })
            | Self::DwFlag(Flag { dotted, .. })
            | Self::List(Document { dotted, .. })
            | Self::Text(Document { dotted, .. })
            | Self::Json(Document { dotted, .. }) => *dotted = Dotted::read(field_type, from)?,
        }
        field.show_all();
        Ok(field)
    }
}

impl GSet {
    fn read_elements(&mut self, from: &mut Reader<'_>) -> Result<(), Error> {
        for _ in 0..u64::read(from)? {
            self.elements.insert(Bytes::read(from)?);
        }
        Ok(())
    }
}

impl FieldState {
    /// The binary form: that of the field, with the time of the deletion in front if it was deleted once.
    pub fn encode(&self) -> Vec<u8> {
        self.field().encoded(start(self.deleted_at_ms()))
    }

    /// Equal for equal states, on every replica and machine; see [`Field::digest`].
    pub fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.field().encoded(start(self.deleted_at_ms())))
    }

    /// Reads the binary form; never panics, whatever the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        StateDelta::decode(bytes).map(Self::from)
    }
}

impl StateDelta {
    /// The binary form, the same as that of a state.
    pub fn encode(&self) -> Vec<u8> {
        self.delta.0.encoded(start(self.deleted_at_ms))
    }

    /// Reads the binary form; never panics, whatever the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let [FORMAT_VERSION, DELETED_AT, rest @ ..] = bytes else {
            return FieldDelta::decode(bytes).map(Self::from);
        };
        let mut reader = Reader::new(rest);
        let deleted_at_ms = u64::read(&mut reader).map_err(DecodeError::Malformed)?;
        let delta = FieldDelta(Field::decode_body(reader)?);
        Ok(Self { delta, deleted_at_ms })
    }
}

fn start(deleted_at_ms: u64) -> Vec<u8> {
    let mut out = vec![FORMAT_VERSION];
    if deleted_at_ms > 0 {
        out.push(DELETED_AT);
        deleted_at_ms.write(&mut out);
    }
    out
}

impl FieldDelta {
    /// The binary form, the same as a field's.
    pub fn encode(&self) -> Vec<u8> {
        self.0.encode()
    }

    /// Reads the binary form; never panics, whatever the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Field::decode_gathered(bytes).map(Self)
    }
}
