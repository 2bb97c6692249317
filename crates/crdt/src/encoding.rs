//! The binary form of fields and deltas, on disk and between nodes: one byte with the format version, then the field
//! in postcard (postcard.jamesmunns.com, wire format 1).

use bytes::Bytes;
use postcard::Error;

use crate::causal::{Flag, MvRegister, Set};
use crate::document::{Document, Form};
use crate::dotted::{Dotted, read_path};
use crate::replica_totals::ReplicaTotals;
use crate::wire::{Reader, Wire};
use crate::{BoundedCounter, Counter, Field, FieldDelta, FieldType, GCounter};

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

impl Field {
    /// The binary form.
    pub fn encode(&self) -> Vec<u8> {
        self.encoded(Form::Full)
    }

    /// Equal for equal states, on every replica and machine: XXH3 of the binary form, in which documents are
    /// represented by their heads.
    pub fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.encoded(Form::Digest))
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
        let mut reader = Reader::new(body);
        let field = Self::read(&mut reader).map_err(DecodeError::Malformed)?;
        match reader.rest().len() {
            0 => Ok(field),
            bytes => Err(DecodeError::TrailingBytes { bytes }),
        }
    }

    fn encoded(&self, form: Form) -> Vec<u8> {
        let mut out = vec![FORMAT_VERSION];
        match self {
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
                map.dotted.write(form, &mut out);
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
            | Self::DwFlag(Flag { dotted, .. }) => dotted.write(form, &mut out),
            Self::List(document) | Self::Text(document) | Self::Json(document) => {
                document.write(form, &mut out)
            }
        }
        out
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let variant = from.byte()?;
        match variant {
            FOLDED_COUNTER => return Ok(Self::Counter(Counter { tally: ReplicaTotals::read(from)? })),
            FOLDED_G_COUNTER => return Ok(Self::GCounter(GCounter { tally: ReplicaTotals::read(from)? })),
            _ => {}
        }
        let field_type = FieldType::from_number(variant).ok_or(Error::DeserializeBadEnum)?;
        let mut field = Self::empty(field_type);
        match &mut field {
            Self::Counter(counter) => counter.tally = ReplicaTotals::read_totals(from)?,
            Self::Register(register) => register.written = Option::read(from)?,
            Self::GCounter(counter) => counter.tally = ReplicaTotals::read_totals(from)?,
            Self::BoundedCounter(counter) => *counter = BoundedCounter::read(from)?,
            Self::GSet(set) => {
                for _ in 0..u64::read(from)? {
                    set.elements.insert(Bytes::read(from)?);
                }
            }
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
            | Self::DwFlag(Flag { dotted, .. }) => *dotted = Dotted::read(field_type, from)?,
            Self::List(document) | Self::Text(document) | Self::Json(document) => {
                *document = Document::read(field_type, from)?;
            }
        }
        field.show_all();
        Ok(field)
    }
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
