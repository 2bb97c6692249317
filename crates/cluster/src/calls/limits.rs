//! Limits of remote calls.

use std::time::Duration;

/// Limits of the calls of one node.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// Maximum of calls in flight to one member, and from one member.
    pub calls_per_peer: usize,
    /// Maximum size of the body of one call or answer, in bytes.
    pub body_bytes: usize,
    /// Maximum size of all bodies that one member is sending to this node, in bytes.
    pub peer_body_bytes: usize,
    /// How long a body or an answer may make no progress.
    pub stall: Duration,
    /// How long opening a stream to a member may take.
    pub open: Duration,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            calls_per_peer: 256,
            body_bytes: 32 << 20,
            peer_body_bytes: 64 << 20,
            stall: Duration::from_secs(10),
            open: Duration::from_secs(5),
        }
    }
}

/// Flow-control window of one call, in bytes: unread data of one body. It bounds the throughput of one call to this much per
/// round trip.
pub(super) const CALL_WINDOW_BYTES: u32 = 512 << 10;
/// Flow-control window of all calls from one member, in bytes.
pub(super) const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Bytes that are collected before a write, so that the header of a frame and its payload are one write.
pub(super) const WRITE_BUFFER_BYTES: usize = 32 << 10;
/// Maximum size of the HTTP/2 headers of a call: they carry no data of it.
pub(super) const MAX_HEADER_BYTES: u32 = 1 << 10;
