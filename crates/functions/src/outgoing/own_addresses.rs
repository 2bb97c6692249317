//! The addresses of this machine's network interfaces.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Maximum age of the cached list. An older list is read again when an address is checked.
const MAX_AGE: Duration = Duration::from_secs(1);

static LAST_READ: Mutex<Option<Reading>> = Mutex::new(None);

struct Reading {
    at: Instant,
    own: Vec<IpAddr>,
}

/// True if `address` is an address of this machine: of an interface, loopback or unspecified.
pub fn is_own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if address.is_loopback() || address.is_unspecified() {
        return true;
    }
    let known = |last: &Option<Reading>| {
        let reading = last.as_ref().filter(|reading| reading.at.elapsed() < MAX_AGE)?;
        Some(reading.own.contains(&address))
    };
    let last_known = known(&LAST_READ.lock());
    last_known.unwrap_or_else(|| {
        let own = interface_addresses();
        let found = own.contains(&address);
        *LAST_READ.lock() = Some(Reading { at: Instant::now(), own });
        found
    })
}

fn interface_addresses() -> Vec<IpAddr> {
    match if_addrs::get_if_addrs() {
        Ok(interfaces) => interfaces.iter().map(|interface| interface.ip().to_canonical()).collect(),
        Err(error) => {
            tracing::warn!(%error, "the addresses of the network interfaces cannot be read");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_addresses_are_own_and_documentation_addresses_are_not() {
        for own in ["127.0.0.1", "127.8.9.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"] {
            assert!(is_own(own.parse().unwrap()), "{own}");
        }
        assert!(!is_own("192.0.2.1".parse().unwrap()));
        assert!(interface_addresses().contains(&IpAddr::from([127, 0, 0, 1])));
    }
}
