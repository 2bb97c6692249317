//! The outgoing side of one connection: whether its client takes what it is sent, and how fast.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use edgefaas_platform::is_loopback;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::address_limits::network_of;

/// What the client of one connection has taken since it first let a write of the current reply wait. What was taken
/// before lies in buffers of the system: that says nothing about the client.
#[derive(Debug)]
pub struct Outflow {
    address: IpAddr,
    opened: Instant,
    /// Milliseconds since `opened` and one more: since when a write waits; 0 if none does.
    waits_since: AtomicU64,
    /// The same for the first write of the current reply that waited.
    first_waited: AtomicU64,
    /// Bytes since then.
    taken: AtomicU64,
    /// Replies that are counted and not taken yet.
    unread: AtomicUsize,
    moved: Notify,
    evicted: CancellationToken,
}

/// How a client takes a reply that it has let wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Since the first write that waited.
    pub waited: Duration,
    /// What it has taken since then.
    pub bytes_per_second: u64,
}

impl Outflow {
    /// Of a connection that was just opened from this address.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            opened: Instant::now(),
            waits_since: AtomicU64::new(0),
            first_waited: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            unread: AtomicUsize::new(0),
            moved: Notify::new(),
            evicted: CancellationToken::new(),
        }
    }

    /// The address of the client.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The address that it counts for; nothing on this machine, where a proxy may stand for many.
    pub fn owner(&self) -> Option<IpAddr> {
        (!is_loopback(self.address)).then(|| network_of(self.address))
    }

    /// Whether the client has still to take something.
    pub fn is_unread(&self) -> bool {
        self.waits_since.load(Relaxed) != 0 || self.unread.load(Relaxed) != 0
    }

    /// A write waits for the client.
    pub fn waits(&self) {
        if self.waits_since.load(Relaxed) == 0 {
            let now = self.now();
            self.waits_since.store(now, Relaxed);
            let _ = self.first_waited.compare_exchange(0, now, Relaxed, Relaxed);
        }
    }

    /// So many bytes were written.
    pub fn wrote(&self, bytes: usize) {
        if self.first_waited.load(Relaxed) != 0 {
            self.taken.fetch_add(bytes as u64, Relaxed);
        }
        if self.waits_since.load(Relaxed) != 0 {
            self.waits_since.store(0, Relaxed);
            self.moved.notify_waiters();
        }
    }

    /// A reply begins that is counted until the client has taken it.
    pub(super) fn begin_reply(&self) {
        if self.unread.fetch_add(1, Relaxed) == 0 {
            self.taken.store(0, Relaxed);
            self.first_waited.store(self.waits_since.load(Relaxed), Relaxed);
        }
    }

    /// The client has taken the reply, or is gone.
    pub(super) fn end_reply(&self) {
        self.unread.fetch_sub(1, Relaxed);
        self.moved.notify_waiters();
    }

    /// Waits until the client has taken everything it was sent: before, nothing more is done for it. A client may send
    /// many requests ahead (RFC 9112, section 9.3.2).
    pub async fn taken(&self) {
        while self.is_behind() {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.is_behind() {
                moved.await;
            }
        }
    }

    fn is_behind(&self) -> bool {
        self.waits_since.load(Relaxed) != 0 || self.unread.load(Relaxed) != 0
    }

    /// How the client takes its reply; nothing if it has not let it wait.
    pub(super) fn pace(&self) -> Option<Pace> {
        let first = self.first_waited.load(Relaxed);
        let waited_ms = (first != 0).then(|| self.now().saturating_sub(first))?;
        let bytes_per_second = self.taken.load(Relaxed).saturating_mul(1000) / waited_ms.max(1);
        Some(Pace { waited: Duration::from_millis(waited_ms), bytes_per_second })
    }

    /// Has the connection closed: others need the memory.
    pub(super) fn evict(&self) {
        self.evicted.cancel();
    }

    /// Waits until the connection is to be closed.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }

    fn now(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64 + 1
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn what_lies_in_buffers_does_not_count_as_taken() {
        let outflow = Outflow::new([10, 0, 0, 1].into());
        outflow.begin_reply();
        outflow.wrote(1 << 20);
        assert_eq!(outflow.pace(), None);
        outflow.waits();
        assert_eq!(outflow.pace().unwrap().bytes_per_second, 0);
        outflow.wrote(1000);
        assert!(outflow.pace().unwrap().bytes_per_second > 0);
        // The next reply is another one.
        outflow.end_reply();
        outflow.begin_reply();
        assert_eq!(outflow.pace(), None);
    }

    #[test]
    fn the_next_request_waits_until_all_is_taken() {
        let outflow = Outflow::new([10, 0, 0, 1].into());
        assert!(outflow.taken().now_or_never().is_some());
        outflow.begin_reply();
        let mut next = Box::pin(outflow.taken());
        outflow.waits();
        assert!((&mut next).now_or_never().is_none());
        outflow.wrote(10);
        assert!((&mut next).now_or_never().is_none());
        outflow.end_reply();
        assert!(next.now_or_never().is_some());
        // Small ones are not counted, but a client that does not take them gets no further ones.
        outflow.waits();
        assert!(outflow.taken().now_or_never().is_none());
    }
}
