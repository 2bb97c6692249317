//! Addresses.

use std::net::IpAddr;

/// True for addresses of this machine (127.0.0.0/8, `::1`, and the former mapped into IPv6).
pub fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}
