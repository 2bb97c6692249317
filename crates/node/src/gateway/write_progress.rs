//! Progress of the writes to one client: whether it reads its replies, and at which rate.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use edgefaas_platform::is_loopback;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::address_limits::network_of;

/// Write progress of one connection. The read rate of the client is measured from the first write of the current reply
/// that blocks: earlier bytes only fill the buffers of the operating system, which says nothing about the client.
#[derive(Debug)]
pub struct WriteProgress {
    address: IpAddr,
    opened: Instant,
    /// Start of the write that is blocked now, in milliseconds since `opened`, plus one; 0 if no write is blocked.
    blocked_since_ms: AtomicU64,
    /// Start of the first blocked write of the current reply, in the same unit; 0 if none has blocked.
    first_blocked_ms: AtomicU64,
    /// Bytes written since `first_blocked_ms`.
    bytes_since_blocked: AtomicU64,
    /// Replies in the reply budget that are not completely written.
    pending_replies: AtomicUsize,
    /// Notified when a blocked write continues, and at the end of a reply.
    progressed: Notify,
    evicted: CancellationToken,
}

/// Rate at which a client reads a reply of which at least one write has blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRate {
    /// Time since the first blocked write.
    pub elapsed: Duration,
    /// Average since the first blocked write.
    pub bytes_per_second: u64,
}

impl WriteProgress {
    /// For a new connection from this address.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            opened: Instant::now(),
            blocked_since_ms: AtomicU64::new(0),
            first_blocked_ms: AtomicU64::new(0),
            bytes_since_blocked: AtomicU64::new(0),
            pending_replies: AtomicUsize::new(0),
            progressed: Notify::new(),
            evicted: CancellationToken::new(),
        }
    }

    /// Address of the client.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Network whose share of the reply budget the connection uses. `None` for a loopback address, which has no share:
    /// a proxy on this machine may forward the requests of many clients.
    pub fn owner(&self) -> Option<IpAddr> {
        (!is_loopback(self.address)).then(|| network_of(self.address))
    }

    /// True while a write is blocked or a reply in the reply budget is not completely written.
    pub fn has_unsent(&self) -> bool {
        self.blocked_since_ms.load(Relaxed) != 0 || self.pending_replies.load(Relaxed) != 0
    }

    /// Records that a write is blocked: the client does not read.
    pub fn write_blocked(&self) {
        if self.blocked_since_ms.load(Relaxed) == 0 {
            let now = self.now_ms();
            self.blocked_since_ms.store(now, Relaxed);
            let _ = self.first_blocked_ms.compare_exchange(0, now, Relaxed, Relaxed);
        }
    }

    /// Records that this number of bytes was written.
    pub fn wrote(&self, bytes: usize) {
        if self.first_blocked_ms.load(Relaxed) != 0 {
            self.bytes_since_blocked.fetch_add(bytes as u64, Relaxed);
        }
        if self.blocked_since_ms.load(Relaxed) != 0 {
            self.blocked_since_ms.store(0, Relaxed);
            self.progressed.notify_waiters();
        }
    }

    /// Records the start of a reply in the reply budget. Every call needs one [`end_reply`](Self::end_reply).
    pub(super) fn begin_reply(&self) {
        if self.pending_replies.fetch_add(1, Relaxed) == 0 {
            self.bytes_since_blocked.store(0, Relaxed);
            self.first_blocked_ms.store(self.blocked_since_ms.load(Relaxed), Relaxed);
        }
    }

    /// Records that a reply is completely written, or that its connection has ended.
    pub(super) fn end_reply(&self) {
        self.pending_replies.fetch_sub(1, Relaxed);
        self.progressed.notify_waiters();
    }

    /// Waits until [`has_unsent`](Self::has_unsent) is false. The gateway handles no further request of the connection
    /// before that: a client may pipeline requests without reading the replies (RFC 9112, section 9.3.2).
    pub async fn drained(&self) {
        while self.has_unsent() {
            let progressed = self.progressed.notified();
            tokio::pin!(progressed);
            progressed.as_mut().enable();
            if self.has_unsent() {
                progressed.await;
            }
        }
    }

    /// Read rate of the client; `None` if no write of the current reply has blocked.
    pub(super) fn read_rate(&self) -> Option<ReadRate> {
        let first = self.first_blocked_ms.load(Relaxed);
        let elapsed_ms = (first != 0).then(|| self.now_ms().saturating_sub(first))?;
        let bytes_per_second =
            self.bytes_since_blocked.load(Relaxed).saturating_mul(1000) / elapsed_ms.max(1);
        Some(ReadRate { elapsed: Duration::from_millis(elapsed_ms), bytes_per_second })
    }

    /// Requests that the connection is closed, to free the memory of its replies.
    pub(super) fn evict(&self) {
        self.evicted.cancel();
    }

    /// Waits until [`evict`](Self::evict) is called.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    fn now_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn the_read_rate_counts_only_bytes_after_the_first_blocked_write() {
        let progress = WriteProgress::new([10, 0, 0, 1].into());
        progress.begin_reply();
        progress.wrote(1 << 20);
        assert_eq!(progress.read_rate(), None);
        progress.write_blocked();
        assert_eq!(progress.read_rate().unwrap().bytes_per_second, 0);
        progress.wrote(1000);
        assert!(progress.read_rate().unwrap().bytes_per_second > 0);
        // A new reply resets the measurement.
        progress.end_reply();
        progress.begin_reply();
        assert_eq!(progress.read_rate(), None);
    }

    #[test]
    fn the_next_request_waits_until_all_replies_are_sent() {
        let progress = WriteProgress::new([10, 0, 0, 1].into());
        assert!(progress.drained().now_or_never().is_some());
        progress.begin_reply();
        let mut next = Box::pin(progress.drained());
        progress.write_blocked();
        assert!((&mut next).now_or_never().is_none());
        progress.wrote(10);
        assert!((&mut next).now_or_never().is_none());
        progress.end_reply();
        assert!(next.now_or_never().is_some());
        // Small replies are not in the reply budget; a blocked write of one delays the next request all the same.
        progress.write_blocked();
        assert!(progress.drained().now_or_never().is_none());
    }
}
