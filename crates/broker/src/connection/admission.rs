//! Limits on connections before their CONNECT: by address, and of all that have not sent it yet.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use parking_lot::Mutex;

use crate::config::BrokerConfig;
use crate::limits::{AddressLimit, Addresses};

/// Counts connections until they are admitted or refused, and by address until they end.
pub(super) struct Admission {
    max_handshakes: usize,
    /// 0 for no limit.
    max_per_address: usize,
    /// 0 for no limit.
    max_connects_per_second: u32,
    handshakes: AtomicUsize,
    addresses: Mutex<Addresses>,
}

/// A connection that has not sent its CONNECT yet.
pub(super) struct Handshake<'a>(&'a AtomicUsize);

/// A connection of an address.
pub(super) struct AddressPlace<'a> {
    addresses: &'a Mutex<Addresses>,
    address: IpAddr,
}

impl Admission {
    pub(super) fn new(config: &BrokerConfig) -> Admission {
        Admission {
            max_handshakes: config.max_connections,
            max_per_address: config.max_connections_per_address,
            max_connects_per_second: config.max_connects_per_second_per_address,
            handshakes: AtomicUsize::new(0),
            addresses: Mutex::default(),
        }
    }

    /// `None` when as many connections as there may be clients have not sent their CONNECT.
    pub(super) fn begin_handshake(&self) -> Option<Handshake<'_>> {
        let handshake = Handshake(&self.handshakes);
        (self.handshakes.fetch_add(1, Relaxed) < self.max_handshakes).then_some(handshake)
    }

    /// Counts a connection of an address.
    ///
    /// # Errors
    /// The address has too many connections, or connects too often.
    pub(super) fn enter(&self, address: IpAddr) -> Result<Option<AddressPlace<'_>>, AddressLimit> {
        let (max, per_second) = (self.max_per_address, self.max_connects_per_second);
        if max == 0 && per_second == 0 {
            return Ok(None);
        }
        self.addresses.lock().enter(address, max, per_second, Instant::now())?;
        Ok(Some(AddressPlace { addresses: &self.addresses, address }))
    }
}

impl Drop for AddressPlace<'_> {
    fn drop(&mut self) {
        self.addresses.lock().leave(self.address);
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
