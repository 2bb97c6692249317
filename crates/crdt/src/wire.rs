//! Reading and writing the parts of the binary form: the primitives of postcard's wire format 1 (integers as LEB128,
//! signed ones in zigzag, lengths before bytes), read without recursion and without trusting any length.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use postcard::Error;

use crate::{FieldType, Hlc, ReplicaId, Timestamp};

/// A type with a binary form. Equal values have equal bytes.
pub(crate) trait Wire: Sized {
    fn write(&self, out: &mut Vec<u8>);
    fn read(from: &mut Reader<'_>) -> Result<Self, Error>;
}

/// The bytes that remain to be read.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// The type of a document with history that was found.
    former_document: Option<FieldType>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, former_document: None }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The type of a document with history, as development versions wrote it, at which reading failed.
    pub(crate) fn former_document(&self) -> Option<FieldType> {
        self.former_document
    }

    /// Reads the number of a type.
    pub(crate) fn field_type(&mut self) -> Result<FieldType, Error> {
        let number = self.byte()?;
        self.type_of(number)
    }

    /// The type with a number.
    pub(crate) fn type_of(&mut self, number: u8) -> Result<FieldType, Error> {
        self.former_document = FieldType::of_former_document(number);
        FieldType::from_number(number).ok_or(Error::DeserializeBadEnum)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        let (first, rest) = self.rest.split_first().ok_or(Error::DeserializeUnexpectedEnd)?;
        self.rest = rest;
        Ok(*first)
    }

    /// Reads `length` bytes without copying them.
    pub(crate) fn slice(&mut self, length: u64) -> Result<&'a [u8], Error> {
        let length = usize::try_from(length).map_err(|_| Error::DeserializeUnexpectedEnd)?;
        let (slice, rest) = self.rest.split_at_checked(length).ok_or(Error::DeserializeUnexpectedEnd)?;
        self.rest = rest;
        Ok(slice)
    }

    /// Reads a length and that number of bytes, without copying them.
    pub(crate) fn sized(&mut self) -> Result<&'a [u8], Error> {
        let length = u64::read(self)?;
        self.slice(length)
    }
}

impl Wire for u64 {
    fn write(&self, out: &mut Vec<u8>) {
        let mut left = *self;
        while left >= 0x80 {
            out.push(left as u8 | 0x80);
            left >>= 7;
        }
        out.push(left as u8);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = from.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && byte > 1 {
                return Err(Error::DeserializeBadVarint);
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::DeserializeBadVarint)
    }
}

impl Wire for u32 {
    fn write(&self, out: &mut Vec<u8>) {
        u64::from(*self).write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        u64::read(from)?.try_into().map_err(|_| Error::DeserializeBadVarint)
    }
}

impl Wire for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        match from.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::DeserializeBadBool),
        }
    }
}

impl Wire for Bytes {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u64).write(out);
        out.extend_from_slice(self);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        from.sized().map(Bytes::copy_from_slice)
    }
}

impl Wire for String {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u64).write(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let text = std::str::from_utf8(from.sized()?).map_err(|_| Error::DeserializeBadUtf8)?;
        Ok(text.to_owned())
    }
}

impl<T: Wire> Wire for Option<T> {
    fn write(&self, out: &mut Vec<u8>) {
        self.is_some().write(out);
        if let Some(value) = self {
            value.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        match from.byte()? {
            0 => Ok(None),
            1 => T::read(from).map(Some),
            _ => Err(Error::DeserializeBadOption),
        }
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
        self.1.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok((A::read(from)?, B::read(from)?))
    }
}

impl<K: Wire + Ord, V: Wire> Wire for BTreeMap<K, V> {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u64).write(out);
        for (key, value) in self {
            key.write(out);
            value.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let mut map = Self::new();
        for _ in 0..u64::read(from)? {
            let key = K::read(from)?;
            map.insert(key, V::read(from)?);
        }
        Ok(map)
    }
}

impl<T: Wire + Ord> Wire for BTreeSet<T> {
    fn write(&self, out: &mut Vec<u8>) {
        (self.len() as u64).write(out);
        for item in self {
            item.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let mut set = Self::new();
        for _ in 0..u64::read(from)? {
            set.insert(T::read(from)?);
        }
        Ok(set)
    }
}

impl Wire for ReplicaId {
    fn write(&self, out: &mut Vec<u8>) {
        self.node.write(out);
        self.incarnation.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { node: u64::read(from)?, incarnation: u32::read(from)? })
    }
}

impl Wire for Timestamp {
    fn write(&self, out: &mut Vec<u8>) {
        self.hlc.wall_ms.write(out);
        self.hlc.logical.write(out);
        self.replica.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        let hlc = Hlc { wall_ms: u64::read(from)?, logical: u32::read(from)? };
        Ok(Self { hlc, replica: ReplicaId::read(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_what_postcard_makes_of_them() {
        for value in [0u64, 1, 127, 128, 300, 1 << 35, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            value.write(&mut bytes);
            assert_eq!(bytes, postcard::to_allocvec(&value).unwrap());
            assert_eq!(u64::read(&mut Reader::new(&bytes)), Ok(value));
        }
        let too_long = [0xff; 9].into_iter().chain([2]).collect::<Vec<u8>>();
        assert_eq!(u64::read(&mut Reader::new(&too_long)), Err(Error::DeserializeBadVarint));
    }
}
