//! Kinds of addresses: public, private, loopback, link.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of an address, for permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressKind {
    /// A server on the internet.
    Public,
    /// A private network: RFC 1918, shared (RFC 6598), unique local (RFC 4193) and other addresses that are not routed on
    /// the internet.
    Private,
    /// Loopback, and addresses that stand for this machine (RFC 1122, section 3.2.1.3).
    Loopback,
    /// One link: link-local (including cloud metadata services), multicast and broadcast.
    Link,
}

impl AddressKind {
    /// The kind of `address`. An IPv6 address that a translator or a tunnel turns into an IPv4 address has the kind of
    /// that one: IPv4-mapped and -compatible (RFC 4291), NAT64 (RFC 6052) and 6to4 (RFC 3056).
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => Self::of_v6(address),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        let [a, b, c, _] = address.octets();
        match (a, b, c) {
            (0 | 127, ..) => Self::Loopback,
            (169, 254, _) | (224..=239, ..) => Self::Link,
            _ if address.is_broadcast() => Self::Link,
            // Shared (RFC 6598), protocol assignments (RFC 6890), benchmarks (RFC 2544), reserved (RFC 1112).
            (100, 64..=127, _) | (192, 0, 0) | (198, 18 | 19, _) | (240.., ..) => Self::Private,
            _ if address.is_private() => Self::Private,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let bits = address.to_bits();
        let v4 = |shift: u32| Self::of_v4(Ipv4Addr::from_bits((bits >> shift) as u32));
        match address.segments() {
            // Unspecified and loopback, which have the form of IPv4-compatible addresses.
            [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Self::Loopback,
            [0, 0, 0, 0, 0, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => v4(0),
            [0x2002, ..] => v4(80),
            // Local NAT64 (RFC 8215), discard-only (RFC 6666), Teredo (RFC 4380), whose servers may be anywhere.
            [0x64, 0xff9b, 1, ..] | [0x100, 0, 0, 0, ..] | [0x2001, 0, ..] => Self::Private,
            // Unique local, and site-local (RFC 3879).
            [0xfc00..=0xfdff, ..] | [0xfec0..=0xfeff, ..] => Self::Private,
            [0xfe80..=0xfebf, ..] | [0xff00..=0xffff, ..] => Self::Link,
            _ => Self::Public,
        }
    }
}

impl fmt::Display for AddressKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Public => "a public address",
            Self::Private => "an address of a private network",
            Self::Loopback => "a loopback address",
            Self::Link => "a link-local or multicast address",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_address_has_the_kind_of_the_address() {
        for (kind, addresses) in [
            (
                AddressKind::Public,
                &[
                    "1.1.1.1",
                    "172.32.0.1",
                    "100.128.0.1",
                    "192.169.0.1",
                    "2606:4700::1111",
                    "64:ff9b::1.1.1.1",
                ][..],
            ),
            (
                AddressKind::Private,
                &[
                    "10.0.0.1",
                    "172.16.0.1",
                    "172.31.255.255",
                    "192.168.1.10",
                    "100.64.0.1",
                    "100.127.255.255",
                    "198.18.0.1",
                    "240.0.0.1",
                    "fc00::1",
                    "fdff::1",
                    "fec0::1",
                    "::ffff:10.0.0.1",
                    "::10.0.0.1",
                    "64:ff9b::192.168.0.1",
                    "64:ff9b:1::1.1.1.1",
                    "2002:a00:1::1",
                    "2001:0:4136:e378::1",
                ],
            ),
            (
                AddressKind::Loopback,
                &[
                    "127.0.0.1",
                    "0.0.0.0",
                    "0.1.2.3",
                    "::",
                    "::1",
                    "::127.0.0.1",
                    "::ffff:127.0.0.1",
                    "64:ff9b::127.0.0.1",
                    "2002:7f00:1::",
                ],
            ),
            (
                AddressKind::Link,
                &[
                    "169.254.169.254",
                    "224.0.0.251",
                    "255.255.255.255",
                    "fe80::1",
                    "febf::1",
                    "ff02::1",
                    "::ffff:169.254.169.254",
                    "64:ff9b::169.254.169.254",
                    "2002:a9fe:a9fe::",
                ],
            ),
        ] {
            for address in addresses {
                assert_eq!(AddressKind::of(address.parse().unwrap()), kind, "{address}");
            }
        }
    }
}
