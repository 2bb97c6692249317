//! The network: its hosts, and handles for its links.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tun_rs::{DeviceBuilder, SyncDevice};

use crate::forwarder::{Forwarder, MTU_BYTES};
use crate::link::Pipe;
use crate::namespace::{Namespace, ip_batch};
use crate::switch::{Switch, Way};
use crate::topology::HostPlan;
use crate::{Conditions, Topology, Traffic};

/// Name of the device of each host.
const DEVICE: &str = "net0";
/// Packets that a device keeps for the switch.
const QUEUE_PACKETS: u32 = 10_000;
/// How long `Host::connect` waits.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);

/// Why a network cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateNetworkError {
    /// The system does not allow it.
    #[error(
        "cannot make host `{host}`: {source}; needs root or a user namespace, /dev/net/tun and the program `ip`"
    )]
    Host {
        /// Its name.
        host: String,
        /// What the system answered.
        source: io::Error,
    },
    /// The switch did not start.
    #[error("cannot start the switch: {source}")]
    Switch {
        /// What the system answered.
        source: io::Error,
    },
}

/// Hosts in zones, and the links between them. Dropping it ends the processes of its hosts.
pub struct Network {
    zones: Vec<String>,
    // Before the hosts: their devices go away first.
    forwarder: Forwarder,
    hosts: Vec<Host>,
}

/// A network namespace with one device.
pub struct Host {
    plan: HostPlan,
    namespace: Namespace,
}

impl Network {
    pub(crate) fn new(topology: &Topology) -> Result<Self, CreateNetworkError> {
        let (mut hosts, mut devices) = (Vec::new(), Vec::new());
        for plan in &topology.hosts {
            let (host, device) = Host::new(plan).map_err(|source| {
                let host = plan.name.clone();
                CreateNetworkError::Host { host, source }
            })?;
            hosts.push(host);
            devices.push(device);
        }
        let addresses: Vec<_> = topology.hosts.iter().map(|host| (host.address, host.zone)).collect();
        let switch = Switch::new(&addresses, topology.zones.len(), topology.seed);
        let forwarder =
            Forwarder::start(switch, devices).map_err(|source| CreateNetworkError::Switch { source })?;
        Ok(Self { zones: topology.zones.clone(), forwarder, hosts })
    }

    /// All hosts, in the order of the topology.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host of this name.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn host(&self, name: &str) -> &Host {
        &self.hosts[self.host_number(name)]
    }

    /// The link between a host and the switch of its zone; outbound is from the host to the switch.
    ///
    /// # Panics
    ///
    /// If there is no such host.
    pub fn link(&self, host: &str) -> Link<'_> {
        let number = self.host_number(host);
        Link { outbound: self.direction(Way::Up(number)), inbound: self.direction(Way::Down(number)) }
    }

    /// The trunk between two zones; outbound is from `from` to `to`.
    ///
    /// # Panics
    ///
    /// If one of the zones does not exist, or both are the same.
    pub fn trunk(&self, from: &str, to: &str) -> Link<'_> {
        let number = |name: &str| {
            let found = self.zones.iter().position(|zone| zone == name);
            found.unwrap_or_else(|| panic!("no zone `{name}` in {:?}", self.zones))
        };
        let (from, to) = (number(from), number(to));
        assert_ne!(from, to, "a trunk is between two zones");
        Link {
            outbound: self.direction(Way::Trunk { from, to }),
            inbound: self.direction(Way::Trunk { from: to, to: from }),
        }
    }

    fn direction(&self, way: Way) -> Direction<'_> {
        Direction { network: self, way }
    }

    fn host_number(&self, name: &str) -> usize {
        let found = self.hosts.iter().position(|host| host.plan.name == name);
        found.unwrap_or_else(|| panic!("no host `{name}`"))
    }
}

impl Host {
    fn new(plan: &HostPlan) -> io::Result<(Self, SyncDevice)> {
        let address = plan.address;
        let (namespace, device) = Namespace::new(move || {
            // No address of IPv6 for the device, and so no waiting for one. Without the file the system has no IPv6.
            let _ = fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
            // A ping of a process that is not root.
            let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
            let device = DeviceBuilder::new()
                .name(DEVICE)
                .mtu(MTU_BYTES)
                .tx_queue_len(QUEUE_PACKETS)
                .inherit_enable_state()
                .build_sync()?;
            device.set_nonblocking(true)?;
            ip_batch(&format!(
                "link set lo up\naddr add {address}/16 dev {DEVICE}\nlink set {DEVICE} up\n\
                 route add default dev {DEVICE}\n"
            ))?;
            Ok(device)
        })?;
        Ok((Self { plan: plan.clone(), namespace }, device))
    }

    /// Its name in the topology.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Its address on the network.
    pub fn address(&self) -> Ipv4Addr {
        self.plan.address
    }

    /// Starts a process on the host. The kernel kills it with the network, and with this process.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        self.namespace.spawn(command)
    }

    /// Runs a process on the host and waits for its end, with its output and without input.
    pub fn output(&self, mut command: Command) -> io::Result<Output> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.spawn(command)?.wait_with_output()
    }

    /// Runs `inside` on a thread on the host, and waits for it. Sockets that it makes, and threads that it starts (those of a
    /// runtime too), are on the host for their whole life.
    ///
    /// # Panics
    ///
    /// If `inside` does, or the system does not let the thread enter.
    pub fn enter<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> R {
        let entered = self.namespace.enter(inside);
        entered.unwrap_or_else(|error| panic!("cannot enter host `{}`: {error}", self.plan.name))
    }

    /// A connection from the host, which this process may use. To a loopback address it does not pass the network: no
    /// cut concerns it.
    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.enter(|| TcpStream::connect_timeout(&to, CONNECT_PATIENCE))
    }
}

/// Both directions of a link.
#[derive(Clone, Copy)]
pub struct Link<'a> {
    outbound: Direction<'a>,
    inbound: Direction<'a>,
}

/// One direction of a link.
#[derive(Clone, Copy)]
pub struct Direction<'a> {
    network: &'a Network,
    way: Way,
}

impl<'a> Link<'a> {
    /// From the host to its switch, or from the first zone of the trunk.
    pub fn outbound(&self) -> Direction<'a> {
        self.outbound
    }

    /// To the host, or to the first zone of the trunk.
    pub fn inbound(&self) -> Direction<'a> {
        self.inbound
    }

    /// Sets the conditions of each direction, for packets that enter from now on.
    pub fn set(&self, conditions: Conditions) {
        self.outbound.set(conditions);
        self.inbound.set(conditions);
    }

    /// Cuts both directions.
    pub fn cut(&self) {
        self.outbound.cut();
        self.inbound.cut();
    }

    /// Ends the cuts of both directions.
    pub fn restore(&self) {
        self.outbound.restore();
        self.inbound.restore();
    }
}

impl Direction<'_> {
    /// Sets the conditions, for packets that enter from now on.
    pub fn set(&self, conditions: Conditions) {
        self.with(|pipe| pipe.conditions = conditions);
    }

    /// Drops every packet from now on, also those in flight.
    pub fn cut(&self) {
        self.with(|pipe| pipe.is_cut = true);
    }

    /// Ends a cut.
    pub fn restore(&self) {
        self.with(|pipe| pipe.is_cut = false);
    }

    /// What has passed so far.
    pub fn traffic(&self) -> Traffic {
        self.with(|pipe| pipe.traffic)
    }

    fn with<R>(&self, change: impl FnOnce(&mut Pipe) -> R) -> R {
        change(self.network.forwarder.switch().pipe(self.way))
    }
}
