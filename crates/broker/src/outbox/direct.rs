//! The direct way to a client at rest: a publisher's thread writes what it has encoded to the socket.
//!
//! Usually the connection's task writes, and a publisher wakes it. If the task is on another thread that sleeps, waking it
//! takes longer than all the rest. So while the connection has nothing to write, the publisher may write in its place, under
//! the lock of the outbox: a write that does not block. Whoever writes begins with a whole packet. If the socket takes a
//! part of the bytes, the connection writes the rest before anything else.
//!
//! A client that gets many messages is not at rest: there the task writes many of them at once.

use std::time::{Duration, Instant};

use super::Outbox;

/// The connection writes for this long after a direct write, so that messages in quick succession share a write.
const REST: Duration = Duration::from_micros(100);
/// Maximum of bytes of a direct write.
const MAX_BYTES: usize = 4 * 1024;

/// The writer of a client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The connection has bytes to write, or has not begun.
    Connection,
    /// Nobody has bytes to write. The moment of the last direct write.
    Free(Option<Instant>),
    /// The first bytes of the buffer are the rest of a packet.
    Torn,
}

impl Outbox {
    /// The bytes to write directly; none if the connection has to write them.
    pub(crate) fn lend(&self, now: Instant) -> Option<&[u8]> {
        let link = self.link.as_ref()?;
        let is_at_rest = match link.way {
            Way::Free(None) => true,
            Way::Free(Some(last)) => now.saturating_duration_since(last) >= REST,
            Way::Connection | Way::Torn => false,
        };
        let fits = !link.buffer.is_empty() && link.buffer.len() <= MAX_BYTES;
        (is_at_rest && fits).then_some(&link.buffer)
    }

    /// The socket has taken the first `bytes` of those that were [lent](Self::lend). False if the connection has to be
    /// notified: to write the rest, or for a publisher that waits for room.
    pub(crate) fn written(&mut self, bytes: usize, now: Instant) -> bool {
        let Some(link) = &mut self.link else { return true };
        if bytes < link.buffer.len() {
            if bytes > 0 {
                let _ = link.buffer.split_to(bytes);
                link.way = Way::Torn;
            }
            return false;
        }
        link.way = Way::Free(Some(now));
        link.handed_over();
        let is_done = !link.awaited;
        self.totals
            .release(std::mem::take(&mut self.taken_bytes) + std::mem::take(&mut self.claimed_bytes));
        is_done
    }

    /// Moves the rest of a packet to the front of `out`, of which nothing is written yet. No direct write follows.
    pub(crate) fn take_rest(&mut self, out: &mut bytes::BytesMut) {
        let Some(link) = &mut self.link else { return };
        if link.way == Way::Torn {
            link.take_all(out);
        }
        link.way = Way::Connection;
    }
}
