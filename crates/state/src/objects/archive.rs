//! Objects in one file, for backup and restore.
//!
//! | part | bytes |
//! |---|---|
//! | head | `EFOBJ`, format version 1 |
//! | record, any number | 1, length of the key (u16), key, length of the field (u32), field, checksum (u32) |
//! | end | 0, number of records (u64), checksum (u32) of the part |
//!
//! Numbers are little-endian. The key is as in the store, the field in its binary form; the checksum is the lower half of
//! XXH3-64 over the part's bytes before it. An archive without its end was cut short.

use std::io::{self, Read, Write};

use edgefaas_crdt::{DecodeError, Field};
use xxhash_rust::xxh3::Xxh3Default;

use super::key::FieldKey;
use crate::error::StoreError;

const HEAD: [u8; 6] = *b"EFOBJ\x01";
const RECORD: u8 = 1;
const END: u8 = 0;
/// Maximum size of a field.
const MAX_FIELD_BYTES: u32 = 512 << 20;

/// An archive cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file or the connection failed.
    #[error("the archive cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// A field to be written could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file does not begin with the head of an archive.
    #[error(
        "this is not an archive of objects, or one of a newer version; make one with `edgefaas objects export`"
    )]
    Head,
    /// A record is damaged.
    #[error("record {record} of the archive is damaged: {damage}; use another copy of it")]
    Damaged {
        /// Number of the record, from 1.
        record: u64,
        /// The damage.
        damage: RecordDamage,
    },
    /// Bytes follow the end.
    #[error(
        "there is more behind the end of the archive, after {records} records; import archives one by one"
    )]
    More {
        /// Number of records before the end.
        records: u64,
    },
    /// The archive has no end.
    #[error(
        "the archive ends after {records} records without its end: it was not written whole; use another copy of it"
    )]
    Cut {
        /// Number of records read.
        records: u64,
    },
}

/// Damage of a record of an archive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordDamage {
    /// The end of the archive names another number of records.
    #[error("{records} were written")]
    Count {
        /// Number of records that were written.
        records: u64,
    },
    /// The length of a field is impossible.
    #[error("a field of {bytes} bytes")]
    FieldTooLarge {
        /// The length.
        bytes: u32,
    },
    /// The key does not name a field.
    #[error("its key is invalid")]
    Key,
    /// The field cannot be decoded.
    #[error(transparent)]
    Field(#[from] DecodeError),
    /// The record is neither a field nor the end.
    #[error("it is of kind {kind}")]
    Kind {
        /// The first byte of the record.
        kind: u8,
    },
    /// The content does not match the checksum.
    #[error("its checksum is wrong")]
    Checksum,
}

/// Writes an archive.
pub struct ArchiveWriter<W> {
    out: W,
    records: u64,
}

impl<W: Write> ArchiveWriter<W> {
    /// Begins an archive.
    pub fn new(mut out: W) -> Result<Self, ArchiveError> {
        out.write_all(&HEAD)?;
        Ok(Self { out, records: 0 })
    }

    /// Adds a field.
    pub fn add(&mut self, key: &FieldKey, field: &Field) -> Result<(), ArchiveError> {
        let (key, field) = (key.as_bytes(), field.encode());
        let mut record = Vec::with_capacity(key.len() + field.len() + 16);
        record.push(RECORD);
        record.extend_from_slice(&(key.len() as u16).to_le_bytes());
        record.extend_from_slice(key);
        record.extend_from_slice(&(field.len() as u32).to_le_bytes());
        record.extend_from_slice(&field);
        self.part(record)?;
        self.records += 1;
        Ok(())
    }

    /// Writes the end of the archive; returns the number of fields in it.
    pub fn finish(mut self) -> Result<(W, u64), ArchiveError> {
        let mut end = vec![END];
        end.extend_from_slice(&self.records.to_le_bytes());
        self.part(end)?;
        self.out.flush()?;
        Ok((self.out, self.records))
    }

    /// The writer of the archive.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    fn part(&mut self, mut part: Vec<u8>) -> Result<(), ArchiveError> {
        let mut checksum = Xxh3Default::new();
        checksum.update(&part);
        part.extend_from_slice(&(checksum.digest() as u32).to_le_bytes());
        Ok(self.out.write_all(&part)?)
    }
}

/// Reads an archive.
pub struct ArchiveReader<R> {
    from: R,
    records: u64,
    checksum: Xxh3Default,
    ended: bool,
}

impl<R: Read> ArchiveReader<R> {
    /// Reads the head of an archive.
    pub fn new(mut from: R) -> Result<Self, ArchiveError> {
        let mut head = [0; HEAD.len()];
        from.read_exact(&mut head).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::Head,
            _ => ArchiveError::Io(error),
        })?;
        if head != HEAD {
            return Err(ArchiveError::Head);
        }
        Ok(Self { from, records: 0, checksum: Xxh3Default::new(), ended: false })
    }

    /// The next field; `None` at the end.
    pub fn next_field(&mut self) -> Result<Option<(FieldKey, Field)>, ArchiveError> {
        if self.ended {
            return Ok(None);
        }
        self.checksum.reset();
        let [kind] = self.take()?;
        match kind {
            END => {
                let records = u64::from_le_bytes(self.take()?);
                self.check()?;
                if records != self.records {
                    return Err(self.damaged(RecordDamage::Count { records }));
                }
                if self.from.read(&mut [0])? > 0 {
                    return Err(ArchiveError::More { records });
                }
                self.ended = true;
                Ok(None)
            }
            RECORD => {
                let key_bytes = u16::from_le_bytes(self.take()?);
                let key = self.take_bytes(key_bytes.into())?;
                let field_bytes = u32::from_le_bytes(self.take()?);
                if field_bytes > MAX_FIELD_BYTES {
                    return Err(self.damaged(RecordDamage::FieldTooLarge { bytes: field_bytes }));
                }
                let field = self.take_bytes(field_bytes.into())?;
                self.check()?;
                let key = FieldKey::parse(&key).ok_or_else(|| self.damaged(RecordDamage::Key))?;
                let field = Field::decode(&field).map_err(|error| self.damaged(error.into()))?;
                self.records += 1;
                Ok(Some((key, field)))
            }
            other => Err(self.damaged(RecordDamage::Kind { kind: other })),
        }
    }

    fn check(&mut self) -> Result<(), ArchiveError> {
        let expected = self.checksum.digest() as u32;
        let found = u32::from_le_bytes(self.take()?);
        if found != expected {
            return Err(self.damaged(RecordDamage::Checksum));
        }
        Ok(())
    }

    fn damaged(&self, damage: RecordDamage) -> ArchiveError {
        ArchiveError::Damaged { record: self.records + 1, damage }
    }

    fn take<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], ArchiveError> {
        let mut bytes = [0; COUNT];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn take_bytes(&mut self, count: u64) -> Result<Vec<u8>, ArchiveError> {
        // The buffer grows with the bytes received, not with the claimed length.
        let mut bytes = Vec::new();
        let read = (&mut self.from).take(count).read_to_end(&mut bytes)?;
        if (read as u64) < count {
            return Err(ArchiveError::Cut { records: self.records });
        }
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        match self.from.read_exact(bytes) {
            Ok(()) => {
                self.checksum.update(bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(ArchiveError::Cut { records: self.records })
            }
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_crdt::{FieldType, Hlc, Operation, ReplicaId};

    use super::*;

    fn archive() -> Vec<u8> {
        let mut writer = ArchiveWriter::new(Vec::new()).unwrap();
        for amount in [3, -4] {
            let mut field = Field::empty(FieldType::Counter);
            let operation = Operation::CounterAdd(amount);
            field.apply_local("f", operation, ReplicaId::new(1, 2), Hlc::default()).unwrap();
            writer.add(&FieldKey::new("app", "object", &format!("f{amount}")), &field).unwrap();
        }
        let (bytes, records) = writer.finish().unwrap();
        assert_eq!(records, 2);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<i64>, ArchiveError> {
        let mut reader = ArchiveReader::new(bytes)?;
        let mut values = Vec::new();
        while let Some((key, field)) = reader.next_field()? {
            values.push(field.counter(key.field()).unwrap().value());
        }
        Ok(values)
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&archive()).unwrap(), [3, -4]);
    }

    #[test]
    fn nothing_follows_the_end() {
        let twice = [archive(), archive()].concat();
        assert!(matches!(read(&twice), Err(ArchiveError::More { records: 2 })));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let bytes = archive();
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&damaged).is_err(), "bit {bit}");
        }
    }
}
