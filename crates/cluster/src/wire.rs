//! The messages that replicate objects, as protocol buffers.
//!
//! One frame of the transport is one [`Message`]. Fields and kinds that a newer version adds are skipped by
//! an older one: an unknown kind decodes to `kind: None`. Tags are never used again for something else.

use bytes::Bytes;
use prost::Message as _;

/// The version of the protocol that this code speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// Maximum length of a message, in bytes. No sender makes a longer one; a receiver refuses it unread. The limit also
/// bounds the memory for decoding: about fifty times as much, for a message of nothing but empty entries.
pub const MESSAGE_LIMIT_BYTES: usize = 320 * 1024;

/// Maximum length of an app's name, in bytes.
pub const APP_BYTES: usize = 255;
/// Maximum length of an object's name, or of a pattern for it, in bytes.
pub const OBJECT_BYTES: usize = 1024;
/// Maximum of interests of one node.
pub const INTERESTS: usize = 4096;
/// Number of buckets of objects. The first byte of the hash of an object's key selects the bucket.
pub const BUCKETS: usize = 256;
/// Maximum of objects that one round of anti-entropy compares one by one.
pub const ROUND_OBJECTS: usize = 16_384;
/// Maximum of keys that have a short number on a connection.
pub const KEY_IDS: u32 = 1024;

/// One frame.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    /// The message; none if this version does not know its kind.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10")]
    pub kind: Option<Kind>,
}

/// The kinds of messages.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// The sender's interests.
    #[prost(message, tag = "1")]
    Interests(Interests),
    /// Changes or states of objects.
    #[prost(message, tag = "2")]
    Deltas(Deltas),
    /// A piece of a change or state that is too long for one message.
    #[prost(message, tag = "3")]
    Chunk(Chunk),
    /// A round, first step: the lower node says what it has, in one number.
    #[prost(message, tag = "4")]
    Summary(Summary),
    /// Second step: the higher node has the same, or says what it has, bucket by bucket.
    #[prost(message, tag = "5")]
    Buckets(Buckets),
    /// Third step: the objects of the lower node in the buckets that differ.
    #[prost(message, tag = "6")]
    Objects(Objects),
    /// Fourth step, any number of messages: what the higher node lacks, and its fields of objects that differ.
    #[prost(message, tag = "7")]
    Differences(Differences),
    /// Fifth step, any number of messages: the fields that the lower node lacks.
    #[prost(message, tag = "8")]
    Wants(Wants),
    /// Last step: the higher node has sent all.
    #[prost(message, tag = "9")]
    Finished(Finished),
    /// The higher node asks for a round.
    #[prost(message, tag = "10")]
    RoundPlease(RoundPlease),
}

/// All interests of the sender; replaces those that it sent before.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Interests {
    /// Counts the sender's sets of interests, from 1.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The interests; at most [`INTERESTS`].
    #[prost(message, repeated, tag = "2")]
    pub interests: Vec<InterestEntry>,
}

/// An interest of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InterestEntry {
    /// The app's name.
    #[prost(string, tag = "1")]
    pub app: String,
    /// A pattern of object names, in which `*` stands for any characters.
    #[prost(string, tag = "2")]
    pub pattern: String,
}

/// Changes or states of objects; the receiver merges them, in any order and as often as they come.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Deltas {
    /// The deltas, one for each object.
    #[prost(message, repeated, tag = "1")]
    pub deltas: Vec<ObjectDelta>,
}

/// A change or state of one object.
///
/// With a key and an id, the id means this key from now on in this direction of this connection. With an id
/// alone, it is the key that the id means.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectDelta {
    /// 1 to [`KEY_IDS`], or 0 for none.
    #[prost(uint32, tag = "1")]
    pub id: u32,
    /// The app's name.
    #[prost(string, optional, tag = "2")]
    pub app: Option<String>,
    /// The object's name in the app.
    #[prost(string, optional, tag = "3")]
    pub object: Option<String>,
    /// Number of copies that the object shall have; 0 for the default of two.
    #[prost(uint32, tag = "4")]
    pub copies: u32,
    /// The encoded delta, which only the replicas understand.
    #[prost(bytes = "bytes", tag = "5")]
    pub payload: Bytes,
    /// Greatest depth of the call chains that made the changes; 0 for changes from outside, which take no byte for it.
    #[prost(uint32, tag = "6")]
    pub depth: u32,
}

/// A piece of a payload. The pieces of one payload follow one another; other messages may come between.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Chunk {
    /// The app's name.
    #[prost(string, tag = "1")]
    pub app: String,
    /// The object's name in the app.
    #[prost(string, tag = "2")]
    pub object: String,
    /// Number of copies, as in [`ObjectDelta`].
    #[prost(uint32, tag = "3")]
    pub copies: u32,
    /// Offset of this piece in the payload, in bytes; 0 begins a payload.
    #[prost(uint64, tag = "4")]
    pub offset_bytes: u64,
    /// The payload ends here.
    #[prost(bool, tag = "5")]
    pub last: bool,
    /// The piece.
    #[prost(bytes = "bytes", tag = "6")]
    pub payload: Bytes,
    /// Depth, as in [`ObjectDelta`].
    #[prost(uint32, tag = "7")]
    pub depth: u32,
}

/// One digest of the sender's copy of all objects that both nodes share.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Summary {
    /// The round's number, chosen by the sender.
    #[prost(uint32, tag = "1")]
    pub round: u32,
    /// The sum of the buckets' digests.
    #[prost(fixed64, tag = "2")]
    pub root: u64,
    /// The version of the receiver's interests that the sender knows.
    #[prost(uint32, tag = "3")]
    pub interests_version: u32,
    /// The sender's clock of deletions, in milliseconds; 0 if it has none.
    #[prost(uint64, tag = "4")]
    pub clock_ms: u64,
    /// Deletions up to this time are agreed by all members.
    #[prost(uint64, tag = "5")]
    pub agreed_ms: u64,
    /// Deletions up to this time are not in the digest.
    #[prost(uint64, tag = "7")]
    pub without_ms: u64,
    /// The sender could not store all that the receiver had sent before the sender's last message of this kind. So that the
    /// usual value takes no byte.
    #[prost(bool, tag = "6")]
    pub has_lost: bool,
}

/// A digest for each bucket of the objects that both nodes share; no digests if their sum equals the received one.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Buckets {
    /// The round's number, as in [`Summary`].
    #[prost(uint32, tag = "1")]
    pub round: u32,
    /// [`BUCKETS`] digests, or none.
    #[prost(fixed64, repeated, tag = "2")]
    pub digests: Vec<u64>,
    /// Numbers of objects, one for each bucket, or none.
    #[prost(uint32, repeated, tag = "3")]
    pub objects: Vec<u32>,
    /// The sender follows the clock of the [`Summary`].
    #[prost(bool, tag = "4")]
    pub follows_clock: bool,
    /// The sender's clock of deletions, in milliseconds; 0 if it has none.
    #[prost(uint64, tag = "6")]
    pub clock_ms: u64,
    /// Deletions up to this time are not in the digests, and not compared in this round.
    #[prost(uint64, tag = "8")]
    pub without_ms: u64,
    /// As in [`Summary`].
    #[prost(bool, tag = "7")]
    pub has_lost: bool,
    /// Deletions up to this time are agreed by all members.
    #[prost(uint64, tag = "5")]
    pub agreed_ms: u64,
}

/// The sender's objects in some ranges of hashes, all of them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Objects {
    /// The round's number, as in [`Summary`].
    #[prost(uint32, tag = "1")]
    pub round: u32,
    /// The first hash of each range, ascending; at most [`BUCKETS`].
    #[prost(fixed64, repeated, tag = "2")]
    pub from: Vec<u64>,
    /// The last hash of each range.
    #[prost(fixed64, repeated, tag = "3")]
    pub to: Vec<u64>,
    /// The hashes of the objects' keys, ascending.
    #[prost(fixed64, repeated, tag = "4")]
    pub hashes: Vec<u64>,
    /// The digests of the objects, one for each hash.
    #[prost(fixed64, repeated, tag = "5")]
    pub digests: Vec<u64>,
    /// More objects differ; another round follows.
    #[prost(bool, tag = "6")]
    pub partial: bool,
}

/// The differences that a round found.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Differences {
    /// The round's number, as in [`Summary`].
    #[prost(uint32, tag = "1")]
    pub round: u32,
    /// The hashes of objects that the sender wants whole.
    #[prost(fixed64, repeated, tag = "2")]
    pub wanted: Vec<u64>,
    /// The sender's fields of objects that differ.
    #[prost(message, repeated, tag = "3")]
    pub objects: Vec<ObjectFields>,
    /// The last message of this step.
    #[prost(bool, tag = "4")]
    pub last: bool,
}

/// Fields that the sender wants.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Wants {
    /// The round's number, as in [`Summary`].
    #[prost(uint32, tag = "1")]
    pub round: u32,
    /// The fields, by object; without digests. The whole object if there are no names.
    #[prost(message, repeated, tag = "2")]
    pub objects: Vec<ObjectFields>,
    /// The last message of this step.
    #[prost(bool, tag = "3")]
    pub last: bool,
}

/// Fields of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectFields {
    /// The app's name.
    #[prost(string, tag = "1")]
    pub app: String,
    /// The object's name in the app.
    #[prost(string, tag = "2")]
    pub object: String,
    /// The fields' names.
    #[prost(string, repeated, tag = "3")]
    pub names: Vec<String>,
    /// The fields' digests, one for each name, where they are of interest.
    #[prost(fixed64, repeated, tag = "4")]
    pub digests: Vec<u64>,
}

/// The round is over.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Finished {
    /// The round's number, as in [`Summary`].
    #[prost(uint32, tag = "1")]
    pub round: u32,
}

/// Asks for a round.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RoundPlease {}

/// A frame is not a message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum WireError {
    /// The message is too long.
    #[error("a message of {bytes} bytes; at most {limit_bytes} are allowed")]
    TooLong {
        /// Length of the message, in bytes.
        bytes: usize,
        /// Maximum length, in bytes.
        limit_bytes: usize,
    },
    /// The frame is not valid protocol buffers.
    #[error("not a message: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// A field of the message has too many elements or bytes.
    #[error("a message with {count} of `{what}`; at most {limit} are allowed")]
    TooMany {
        /// The field.
        what: &'static str,
        /// Number of elements of the field, or its length in bytes.
        count: usize,
        /// Maximum of `count`.
        limit: usize,
    },
    /// Two parts of it do not fit together.
    #[error("a message whose `{what}` do not fit together")]
    Inconsistent {
        /// The fields.
        what: &'static str,
    },
}

impl Message {
    /// The bytes of a frame.
    pub fn encode_frame(&self) -> Bytes {
        self.encode_to_vec().into()
    }

    /// Reads a frame of at most `limit_bytes` (usually [`MESSAGE_LIMIT_BYTES`]). What comes out keeps to the
    /// limits that are said at each field.
    pub fn decode_frame(frame: Bytes, limit_bytes: usize) -> Result<Self, WireError> {
        if frame.len() > limit_bytes {
            return Err(WireError::TooLong { bytes: frame.len(), limit_bytes });
        }
        let message = Self::decode(frame)?;
        if let Some(kind) = &message.kind {
            check(kind)?;
        }
        Ok(message)
    }
}

impl From<Kind> for Message {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

fn check(kind: &Kind) -> Result<(), WireError> {
    match kind {
        Kind::Interests(told) => {
            at_most("interests", told.interests.len(), INTERESTS)?;
            told.interests.iter().try_for_each(|entry| names(&entry.app, &entry.pattern))
        }
        Kind::Deltas(deltas) => deltas.deltas.iter().try_for_each(|delta| {
            at_most("id", delta.id as usize, KEY_IDS as usize)?;
            match (&delta.app, &delta.object) {
                (Some(app), Some(object)) => names(app, object),
                (None, None) if delta.id > 0 => Ok(()),
                _ => Err(WireError::Inconsistent { what: "id, app and object" }),
            }
        }),
        Kind::Chunk(chunk) => names(&chunk.app, &chunk.object),
        Kind::Buckets(buckets) => match (buckets.digests.len(), buckets.objects.len()) {
            (0, 0) | (BUCKETS, BUCKETS) => Ok(()),
            _ => Err(WireError::Inconsistent { what: "digests and objects" }),
        },
        Kind::Objects(objects) => {
            at_most("ranges", objects.from.len(), BUCKETS)?;
            at_most("hashes", objects.hashes.len(), ROUND_OBJECTS)?;
            if objects.from.len() != objects.to.len() || !ranges_ascend(&objects.from, &objects.to) {
                return Err(WireError::Inconsistent { what: "from and to" });
            }
            if objects.hashes.len() != objects.digests.len() || !objects.hashes.is_sorted() {
                return Err(WireError::Inconsistent { what: "hashes and digests" });
            }
            Ok(())
        }
        Kind::Differences(differences) => {
            at_most("wanted", differences.wanted.len(), ROUND_OBJECTS)?;
            differences.objects.iter().try_for_each(|fields| {
                if fields.names.len() != fields.digests.len() {
                    return Err(WireError::Inconsistent { what: "names and digests" });
                }
                names(&fields.app, &fields.object)
            })
        }
        Kind::Wants(wants) => {
            wants.objects.iter().try_for_each(|fields| names(&fields.app, &fields.object))
        }
        Kind::Summary(_) | Kind::Finished(_) | Kind::RoundPlease(_) => Ok(()),
    }
}

fn names(app: &str, object: &str) -> Result<(), WireError> {
    at_most("app", app.len(), APP_BYTES)?;
    at_most("object", object.len(), OBJECT_BYTES)
}

fn at_most(what: &'static str, count: usize, limit: usize) -> Result<(), WireError> {
    if count > limit { Err(WireError::TooMany { what, count, limit }) } else { Ok(()) }
}

fn ranges_ascend(from: &[u64], to: &[u64]) -> bool {
    let ends_after_start = from.iter().zip(to).all(|(from, to)| from <= to);
    ends_after_start && from.iter().skip(1).zip(to).all(|(next, to)| next > to)
}
