//! Limits on addresses and clients: number of connections, rates.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A token bucket: `per_second` on average, up to `burst` without a pause.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    pub(crate) fn new(per_second: u32, burst: u32, now: Instant) -> Bucket {
        let burst = f64::from(burst.max(1));
        Bucket { per_second: f64::from(per_second.max(1)), burst, tokens: burst, filled: now }
    }

    /// Takes a token if there is one; otherwise gives the time until there is.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + since * self.per_second).min(self.burst);
        self.filled = now;
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / self.per_second))
    }

    /// Takes a token in any case, on credit if there is none; gives the time until the credit is paid back.
    pub(crate) fn spend(&mut self, now: Instant) -> Option<Duration> {
        if self.take(now).is_ok() {
            return None;
        }
        self.tokens -= 1.0;
        Some(Duration::from_secs_f64(-self.tokens / self.per_second))
    }

    fn is_whole(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens + since * self.per_second >= self.burst
    }
}

/// Bytes of a common bound; released on drop.
#[derive(Debug)]
pub(crate) struct Claim {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Claim {
    /// Takes `bytes`, even over the bound.
    pub(crate) fn of(total: &Arc<AtomicUsize>, bytes: usize) -> Claim {
        total.fetch_add(bytes, Relaxed);
        Claim { total: total.clone(), bytes }
    }

    /// True if at most `max_bytes` are taken in all.
    pub(crate) fn fits(&self, max_bytes: usize) -> bool {
        self.total.load(Relaxed) <= max_bytes
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

/// Connections by remote address.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    by_address: HashMap<IpAddr, Address>,
    /// Time at which addresses without connections were last removed.
    tidied: Option<Instant>,
}

#[derive(Debug)]
struct Address {
    connections: usize,
    connects: Option<Bucket>,
}

/// The reason why an address gets no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressLimit {
    #[error("its address has {0} connections, the maximum")]
    Connections(usize),
    #[error("its address connects more than {0} times a second")]
    Rate(u32),
}

const TIDY_INTERVAL: Duration = Duration::from_secs(60);

impl Addresses {
    /// Counts a connection, unless that is one too many. 0 stands for no limit.
    pub(crate) fn enter(
        &mut self,
        address: IpAddr,
        max_connections: usize,
        per_second: u32,
        now: Instant,
    ) -> Result<(), AddressLimit> {
        if self.tidied.is_none_or(|tidied| now - tidied >= TIDY_INTERVAL) {
            self.tidied = Some(now);
            self.by_address.retain(|_, address| {
                address.connections > 0 || address.connects.is_some_and(|bucket| !bucket.is_whole(now))
            });
        }
        let connects =
            (per_second > 0).then(|| Bucket::new(per_second, per_second.saturating_mul(10), now));
        let entry = self.by_address.entry(address).or_insert(Address { connections: 0, connects });
        if max_connections > 0 && entry.connections >= max_connections {
            return Err(AddressLimit::Connections(max_connections));
        }
        if let Some(bucket) = &mut entry.connects
            && bucket.take(now).is_err()
        {
            return Err(AddressLimit::Rate(per_second));
        }
        entry.connections += 1;
        Ok(())
    }

    /// A connection is over.
    pub(crate) fn leave(&mut self, address: IpAddr) {
        if let Some(entry) = self.by_address.get_mut(&address) {
            entry.connections = entry.connections.saturating_sub(1);
            if entry.connections == 0 && entry.connects.is_none() {
                self.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_so_many_at_once_and_so_many_a_second() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 3, start);
        assert_eq!([(); 3].map(|()| bucket.take(start)), [Ok(()); 3]);
        let wait = bucket.take(start).expect_err("it is empty");
        assert_eq!(wait, Duration::from_millis(100));
        assert_eq!(bucket.take(start + wait), Ok(()));
        assert!(bucket.take(start + wait).is_err());
    }

    #[test]
    fn credit_is_paid_back() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 1, start);
        assert_eq!(bucket.spend(start), None);
        let wait = bucket.spend(start).expect("it is empty");
        assert_eq!(wait, Duration::from_millis(100));
        let wait = bucket.spend(start + wait).expect("nothing is left");
        assert_eq!(wait, Duration::from_millis(100));
    }

    #[test]
    fn an_address_has_so_many_connections() {
        let (now, address) = (Instant::now(), IpAddr::from([127, 0, 0, 1]));
        let mut addresses = Addresses::default();
        assert_eq!(addresses.enter(address, 2, 0, now), Ok(()));
        assert_eq!(addresses.enter(address, 2, 0, now), Ok(()));
        assert_eq!(addresses.enter(address, 2, 0, now), Err(AddressLimit::Connections(2)));
        assert_eq!(addresses.enter(IpAddr::from([127, 0, 0, 2]), 2, 0, now), Ok(()));
        addresses.leave(address);
        assert_eq!(addresses.enter(address, 2, 0, now), Ok(()));
    }
}
