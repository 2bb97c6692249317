//! The node's end of the cluster: one authenticated, ordered and bounded channel of frames per member.
//!
//! `driver` owns the connections; each has a task that performs the handshake (`greeting`) and then serves the `channel`.
//! These share a few parts, each with its own data: `local_node`, `peer_table`, `admission`, `gossip`, `copy_detector`,
//! `join_service`, `counters`.

mod admission;
mod channel;
mod clock;
mod copy_detector;
mod counters;
pub(crate) mod dial_book;
mod dial_signal;
mod discovered;
mod driver;
mod event;
mod event_receiver;
mod gossip;
mod greeting;
mod handle;
mod join_service;
mod link;
mod local_node;
mod node_starts;
mod options;
mod outbox;
pub(crate) mod outgoing_queue;
mod pacing;
mod peer;
mod peer_stream;
mod peer_table;
mod start;
pub(crate) mod status;

#[cfg(test)]
mod tests;

pub use counters::Counters;
pub use event::{DownReason, Event};
pub use event_receiver::EventReceiver;
pub use handle::{Handle, SendError};
pub use node_starts::Copy;
pub use options::Options;
pub use peer::PeerInfo;
pub use peer_stream::{IncomingStream, IncomingStreams, OpenStreamError, PeerStream};
pub use start::{StartError, Transport};
pub use status::PeerStatus;
