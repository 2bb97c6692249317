//! The binary form of fields and deltas, on disk and between nodes: a byte with the format version,
//! then the field in postcard (postcard.jamesmunns.com, wire format 1).

use crate::{Field, FieldDelta};

/// The format that this version writes; the first byte.
pub const FORMAT_VERSION: u8 = 1;

/// Bytes that are no field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is not even a version.
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
        /// How many.
        bytes: usize,
    },
}

impl Field {
    /// The binary form.
    pub fn encode(&self) -> Vec<u8> {
        // postcard refuses only sequences of unknown length, and a field has none.
        postcard::to_extend(self, vec![FORMAT_VERSION]).expect("a field can always be encoded")
    }

    /// Reads the binary form; never panics, whatever the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = bytes.split_first().ok_or(DecodeError::Empty)?;
        if *version != FORMAT_VERSION {
            return Err(DecodeError::UnknownVersion { found: *version });
        }
        match postcard::take_from_bytes(body).map_err(DecodeError::Malformed)? {
            (field, []) => Ok(field),
            (_, rest) => Err(DecodeError::TrailingBytes { bytes: rest.len() }),
        }
    }
}

impl FieldDelta {
    /// The binary form, the same as a field's.
    pub fn encode(&self) -> Vec<u8> {
        self.0.encode()
    }

    /// Reads the binary form; never panics, whatever the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        Field::decode(bytes).map(Self)
    }
}
