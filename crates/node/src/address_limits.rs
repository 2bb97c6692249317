//! Limits per client address on a shared resource, such as connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Permits in use, by address. An IPv6 address counts as its /64 network, since one client can use all addresses of it.
#[derive(Debug)]
pub struct AddressLimits {
    max_per_address: usize,
    in_use: Mutex<HashMap<IpAddr, usize>>,
}

/// A permit of an address; dropping it releases the permit.
#[derive(Debug)]
pub struct AddressPermit {
    limits: Arc<AddressLimits>,
    address: IpAddr,
}

impl AddressLimits {
    /// Limits of `max_per_address` permits for each address.
    pub fn new(max_per_address: usize) -> Arc<Self> {
        Arc::new(Self { max_per_address, in_use: Mutex::default() })
    }

    /// A permit for this address; `None` if all its permits are in use.
    pub fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let address = network_of(address);
        let mut in_use = self.in_use.lock();
        let count = in_use.entry(address).or_default();
        if *count >= self.max_per_address {
            return None;
        }
        *count += 1;
        Some(AddressPermit { limits: self.clone(), address })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut in_use = self.limits.in_use.lock();
        if let Some(count) = in_use.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                in_use.remove(&self.address);
            }
        }
    }
}

/// The address that permits are counted for: an IPv4 address (also one mapped into IPv6), or the /64 network of an
/// IPv6 address.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gets_its_permits_and_no_more() {
        let limits = AddressLimits::new(2);
        let acquire = |address: &str| limits.acquire(address.parse().unwrap());
        let one = acquire("10.0.0.1").unwrap();
        let _two = acquire("::ffff:10.0.0.1").unwrap();
        assert!(acquire("10.0.0.1").is_none());
        assert!(acquire("10.0.0.2").is_some());
        drop(one);
        let _again = acquire("10.0.0.1").unwrap();
        let _v6 = (acquire("fd00::1").unwrap(), acquire("fd00::2:0:0:1").unwrap());
        assert!(acquire("fd00::3").is_none());
        assert!(acquire("fd00:0:0:1::1").is_some());
        // Addresses without a permit have no entry.
        assert_eq!(limits.in_use.lock().len(), 2);
    }
}
