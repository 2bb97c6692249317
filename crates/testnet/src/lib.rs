//! Hosts in network namespaces, joined by a user-space switch: tests and benchmarks of several nodes on one machine.
//!
//! Each host has a namespace of its own with one TUN device, `net0`, whose packets this process forwards. No kernel module for traffic
//! control is needed. A [`Topology`] names zones and their hosts; each host has a [`Link`] to the switch of its zone, and each
//! pair of zones a trunk. Every link has [`Conditions`] and [`Traffic`] per direction, and can be cut and restored at run time.
//! Loopback addresses of a host are subject to none of it: [`Host::connect`] and [`Host::enter`] reach them at any time.
//!
//! Nothing outlives the [`Network`], or the process: namespaces have no names, devices are not persistent, and the kernel kills the
//! processes of hosts with the thread that started them.
//!
//! Needs Linux, `/dev/net/tun`, the program `ip`, and root or a user namespace: [`isolated`].

mod forwarder;
mod link;
mod namespace;
mod network;
mod privilege;
mod switch;
mod topology;

pub use link::{Bandwidth, Conditions, Traffic};
pub use network::{CreateNetworkError, Direction, Host, Link, Network};
pub use privilege::isolated;
pub use topology::Topology;
