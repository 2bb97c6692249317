//! Decides which node sends which object to which peer, and when.
//!
//! [`Replication`] is a machine without I/O: [`handle`](Replication::handle) takes an [`Event`] and the time
//! and gives [`Output`]s. It knows neither the objects' types nor sockets nor a clock, so that the same code
//! runs on a node and in a seeded simulation.
//!
//! **Deltas.** A local change waits for the object's interval, merged with later ones, and is then sent to
//! the connected nodes that are interested in the object or keep a copy of it. What cannot be sent merges
//! while it waits; past a bound, only "this object is stale there" is kept, and past another only "something
//! is". Received changes are not passed on: the writer sends to all.
//!
//! **Rounds.** What is lost on the way is repaired by comparing digests: of each pair the lower node starts a
//! round on connecting, when interests change and every 10 to 30 seconds. One number is compared, then 256,
//! then the objects that differ, then their fields; then the fields that differ are exchanged both ways. A
//! round between equals is one small message each way. Among the objects of a round those come first that the
//! replica says [so](Replica::comes_first) of; a round has at most 16,384 objects.
//!
//! **Depth.** Each delta and each state carries the depth of the call chain that made it, so that functions of several
//! nodes that trigger one another reach the limit of a chain. The machine passes it on and does not use it.
//!
//! **Copies.** If fewer connected nodes are interested in an object than it shall have copies, others keep
//! it, chosen by rendezvous hashing (Thaler, Ravishankar: Using Name-Based Mappings to Increase Hit Rates,
//! 1998) by every node for itself. When a node leaves for longer than [`Settings::settle`], the choice falls
//! on another, and the next round of an interested node with that one brings the object there. If no
//! interested node is left, the keepers do this among themselves. A node that was chosen once keeps what it
//! has and takes part in rounds over it, but gets no deltas of it any more.
//!
//! **Recovery.** A new local interest is [`Recovering`](Output::Recovering) from each member until a round that took
//! note of it is over with that member, also while the member is away in between. A member that was not connected when
//! the interest came is waited for during [`Settings::grace`]; if it comes later, it counts from then on.
//!
//! **Deletions.** What is left of a deleted field is replicated as any state, and compared with every member, also with those
//! that the object does not concern: any of them may hold an old copy. When all have it, it is not compared any more, and
//! dropped; the module `agreement` says when.
//!
//! **Stability.** See [`Replication::stable_since`].

mod agreement;
mod copies;
mod counters;
mod digest;
mod interest;
mod key;
mod lag;
mod machine;
mod outgoing;
mod peer;
mod pending;
mod receive;
mod recovery;
mod round;
mod sync;
mod tally;

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;

pub(crate) use copies::mix;
pub use counters::Counters;
pub use digest::{DeletionTimes, ObjectDigest, Part, View};
pub use interest::Interest;
pub use key::{NodeId, ObjectKey};
pub use machine::Replication;

/// Number of copies of an object unless its policy says otherwise.
pub const DEFAULT_COPIES: u8 = 2;

/// Maximum length of a payload, in bytes. A longer payload is not replicated; see [`Counters::payloads_too_long`].
pub const PAYLOAD_LIMIT_BYTES: usize = 16 * 1024 * 1024;

/// A change of an object. Deltas merge with one another while they wait to be sent; the merge is associative,
/// commutative and idempotent.
pub trait Delta: Clone {
    /// Takes another delta of the same object into this one.
    fn merge(&mut self, other: Self);
    /// About how many bytes it takes, in memory or encoded.
    fn weight_bytes(&self) -> usize;
    /// The payload that the other node merges; not empty.
    fn encode(&self) -> Bytes;
    /// Depth of the call chain that made the change, which travels beside the payload. A merge keeps the greater one.
    fn depth(&self) -> u8;
}

/// The local replica.
pub trait Replica {
    /// A change of one of its objects.
    type Delta: Delta;
    /// Calls `visit` for each object held whose [hash](ObjectKey::hash64) is in the range, in any order.
    fn digests(&self, hashes: RangeInclusive<u64>, visit: &mut dyn FnMut(&ObjectKey, ObjectDigest));
    /// A number that changes when an object changes whose hash begins with this byte; `None` if the replica does not count.
    fn version(&self, _bucket: u8) -> Option<u64> {
        None
    }
    /// The digest of a part of an object, if something of it is held. Replicas with equal states give equal digests.
    fn digest(&self, object: &ObjectKey, view: View) -> Option<u64>;
    /// The names and digests of fields of a part of an object, each name once; empty if nothing of it is held.
    fn field_digests(&self, object: &ObjectKey, view: View) -> Vec<(String, u64)>;
    /// The state of these fields (all of them if `None`) of a part of an object as a delta; nothing if there is none.
    fn state(&self, object: &ObjectKey, fields: Option<&[String]>, part: Part) -> Option<Self::Delta>;
    /// The clock of deletions, in milliseconds: later deletions of this replica have this time or a later one. 0 if the replica
    /// has no deletions.
    fn clock_ms(&self) -> u64 {
        0
    }
    /// Lets the clock of deletions follow that of another node; false if it does not.
    fn follow_clock(&self, _clock_ms: u64) -> bool {
        false
    }
    /// Number of copies that the object shall have: by the manifest, or the number that came with the object.
    fn copies(&self, object: &ObjectKey) -> u8;
    /// True if a round exchanges the object before all that are not such.
    fn comes_first(&self, _object: &ObjectKey) -> bool {
        false
    }
}

/// Replication policy of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Minimum time for which changes wait to be merged with others; 0 sends them immediately.
    pub interval: Duration,
    /// Number of nodes that shall have the object, this node among them.
    pub copies: u8,
}

impl Default for Policy {
    fn default() -> Self {
        Self { interval: Duration::from_millis(200), copies: DEFAULT_COPIES }
    }
}

/// Input of the machine. `D` is the delta of an object.
#[derive(Debug, Clone)]
pub enum Event<D> {
    /// A connection is up, after [`PeerDown`](Self::PeerDown) if there was one before.
    PeerUp {
        /// The node at the other end.
        node: NodeId,
        /// The negotiated version.
        protocol_version: u32,
    },
    /// The connection is gone. Frames in flight are lost.
    PeerDown {
        /// The node at the other end.
        node: NodeId,
    },
    /// All members of the cluster, connected or not; with or without this one.
    Members(Vec<NodeId>),
    /// The interests of the functions on this node; replaces the previous ones.
    LocalInterests(Vec<Interest>),
    /// The node itself changed an object. Not for changes that came from others.
    Changed {
        /// The object.
        object: ObjectKey,
        /// The change.
        delta: D,
        /// Replication policy of the object.
        policy: Policy,
    },
    /// A frame came from a peer.
    Received {
        /// The peer.
        node: NodeId,
        /// The frame, whatever is in it.
        frame: Bytes,
    },
    /// The transport had no room for a frame of [`Output::Send`]. Until [`Writable`](Self::Writable), further
    /// frames for the node are handed back too: in their order, after all outputs of the call were carried
    /// out.
    Refused {
        /// The peer.
        node: NodeId,
        /// The frame.
        frame: Bytes,
    },
    /// The transport has room again after a refusal.
    Writable {
        /// The peer.
        node: NodeId,
    },
    /// Payloads of a peer could not be stored, such as on a full disk.
    NotStored {
        /// The peer.
        node: NodeId,
    },
    /// The payload of an [`Output::Merge`] was garbage.
    BadPayload {
        /// The sender.
        node: NodeId,
    },
    /// Time has passed; at the latest at [`Replication::next_deadline`].
    Tick,
}

/// Output of the machine: the driver carries it out, in order, before it handles the next event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Give a frame to the transport; if that has no room, [`Event::Refused`]. An empty outbox takes a frame
    /// of any length up to [`MESSAGE_LIMIT_BYTES`](crate::wire::MESSAGE_LIMIT_BYTES).
    Send {
        /// The receiver.
        node: NodeId,
        /// The frame.
        frame: Bytes,
    },
    /// Merge a delta into the replica; if it is garbage, [`Event::BadPayload`].
    Merge {
        /// The sender.
        node: NodeId,
        /// The object, which may be new here.
        object: ObjectKey,
        /// Number of copies that the object shall have, for [`Replica::copies`] where no manifest says so.
        copies: u8,
        /// The result of the sender's [`Delta::encode`].
        payload: Bytes,
        /// The sender's [`Delta::depth`]; 0 from a sender of a version without depths.
        depth: u8,
    },
    /// The members whose objects of these interests have not all come; comes with each change, after the
    /// [`Merge`](Self::Merge)s that it is about.
    Recovering {
        /// The interests, as they were passed to the machine.
        interests: Vec<Interest>,
        /// Members, sorted; none when everything is here.
        lacks: Vec<NodeId>,
    },
    /// Close the connection, and leave the peer alone for a pause that the transport decides. The machine forgets the
    /// peer immediately.
    Disconnect {
        /// The peer.
        node: NodeId,
        /// The cause.
        reason: DisconnectReason,
    },
}

/// The reason why a peer is disconnected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DisconnectReason {
    /// The peer sent an invalid frame.
    #[error("it sent a frame that is not a message, or is over its limits")]
    BadMessage,
    /// The peer sent a payload that no object understands.
    #[error("it sent a change that no object understands")]
    BadPayload,
    /// The peer did not finish a round.
    #[error("it does not answer")]
    Stalled,
}

/// Settings of the machine. The defaults are for nodes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Seed of the jitter between rounds.
    pub seed: u64,
    /// The minimum between two rounds with a peer.
    pub round_min: Duration,
    /// The maximum between two rounds with a peer.
    pub round_max: Duration,
    /// The time that a new interest waits for members that are not connected.
    pub grace: Duration,
    /// Time for which a node must be connected before it is chosen to keep objects, and for which it must be away before
    /// others are chosen in its place.
    pub settle: Duration,
    /// Maximum time in which a peer may send nothing while a message from it is due.
    pub stall: Duration,
    /// Maximum length of the messages that this node sends, in bytes; at most 256 KiB.
    pub message_bytes: usize,
    /// Maximum of bytes of deltas that wait for a peer without room.
    pub lag_bytes: usize,
    /// Maximum of objects whose deltas wait for a peer without room; as many more are marked as stale.
    pub lag_objects: usize,
    /// Maximum of bytes of changes that wait for their interval; above it, the first changes are sent early.
    pub pending_bytes: usize,
    /// Maximum of objects that a round compares one by one; at most [`ROUND_OBJECTS`](crate::wire::ROUND_OBJECTS). If
    /// more differ, another round follows immediately.
    pub round_objects: usize,
    /// Bytes of objects that no function on this node uses, which a peer may send in one burst …
    pub keep_bytes: u64,
    /// … and per second after that.
    pub keep_bytes_per_second: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 0,
            round_min: Duration::from_secs(10),
            round_max: Duration::from_secs(30),
            grace: Duration::from_secs(2),
            settle: Duration::from_secs(5),
            stall: Duration::from_secs(120),
            message_bytes: 256 * 1024,
            lag_bytes: 512 * 1024,
            lag_objects: 4096,
            pending_bytes: 8 * 1024 * 1024,
            round_objects: crate::wire::ROUND_OBJECTS,
            keep_bytes: 64 * 1024 * 1024,
            keep_bytes_per_second: 1024 * 1024,
        }
    }
}
