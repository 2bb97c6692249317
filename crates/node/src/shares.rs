//! What one address may have of something that there is for all.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Counts by address. An IPv6 address stands for its network of 64 bits: whoever has one has them all.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    taken: Mutex<HashMap<IpAddr, usize>>,
}

/// One of an address's; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Arc<Shares>,
    address: IpAddr,
}

impl Shares {
    /// At most so many for each address.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default() })
    }

    /// One more for this address; nothing if it has all that it may have.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Option<Share> {
        let address = network_of(address);
        let mut taken = self.taken.lock();
        let count = taken.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share { shares: self.clone(), address })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock();
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

/// What an address counts as.
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
    fn an_address_has_its_share_and_no_more() {
        let shares = Shares::new(2);
        let take = |address: &str| shares.take(address.parse().unwrap());
        let one = take("10.0.0.1").unwrap();
        let _two = take("::ffff:10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none());
        assert!(take("10.0.0.2").is_some());
        drop(one);
        let _again = take("10.0.0.1").unwrap();
        let _v6 = (take("fd00::1").unwrap(), take("fd00::2:0:0:1").unwrap());
        assert!(take("fd00::3").is_none());
        assert!(take("fd00:0:0:1::1").is_some());
        // Nothing is kept of those that have nothing.
        assert_eq!(shares.taken.lock().len(), 2);
    }
}
