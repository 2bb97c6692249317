//! A node's settings: a TOML file, and above it the command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use edgefaas_broker::BrokerConfig;
use edgefaas_coordinator::WorkflowLimits;
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::{Machine, MemoryLimit, PoolOverrides};
use edgefaas_platform::is_loopback;
use edgefaas_state::store::{MIN_RESERVE_BYTES, WalSync};
use serde::Deserialize;

use crate::access::AccessSection;
use crate::bridge::config::{self as bridge, BridgeConfigError, BridgeSection};
use crate::memory_plan::{MemoryPlan, MemoryWishes};
use crate::tls::{ClientCertificates, TlsError, TlsSection};

/// Settings of a node. Every one has a default, so that an empty file is a good one.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Where the node keeps everything. Only one node may use it at a time.
    pub data_dir: PathBuf,
    /// Where compiled code is kept; `cache` in the data directory if it is not set. It can be made again, so
    /// that it need not be on the SD card.
    pub cache_dir: Option<PathBuf>,
    /// The HTTP gateway.
    pub http: SocketAddr,
    /// The MQTT listener.
    pub mqtt: SocketAddr,
    /// The listener for MQTT over TLS; there is none if it is not set.
    pub mqtts: Option<SocketAddr>,
    /// The control API, metrics and health.
    pub control: SocketAddr,
    /// Threads that serve connections and run isolates; 0 means one a core.
    pub workers: usize,
    /// How long a stopping node waits for what runs.
    #[serde(with = "humantime_serde")]
    pub drain_grace: Duration,
    /// Who may do what.
    pub access: AccessSection,
    /// Certificates.
    pub tls: TlsSection,
    /// Isolates.
    pub isolates: IsolatesSection,
    /// The store.
    pub store: StoreSection,
    /// The broker.
    pub broker: BrokerSection,
    /// Durable invocations.
    pub invocations: InvocationsSection,
    /// MQTT over WebSocket.
    pub websocket: WebSocketSection,
    /// Connections to other brokers.
    pub bridges: Vec<BridgeSection>,
    /// The logs of functions.
    pub logs: LogsSection,
    /// See [`ClusterSection`].
    pub cluster: ClusterSection,
    /// See [`ObjectsSection`].
    pub objects: ObjectsSection,
    /// See [`WorkflowsSection`].
    pub workflows: WorkflowsSection,
    /// See [`TracesSection`].
    pub traces: TracesSection,
}

impl Default for NodeConfig {
    fn default() -> Self {
        let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Self {
            data_dir: default_data_dir(),
            cache_dir: None,
            http: loopback(8080),
            mqtt: loopback(1883),
            mqtts: None,
            control: loopback(7070),
            workers: 0,
            drain_grace: Duration::from_secs(10),
            access: AccessSection::default(),
            tls: TlsSection::default(),
            isolates: IsolatesSection::default(),
            store: StoreSection::default(),
            broker: BrokerSection::default(),
            invocations: InvocationsSection::default(),
            websocket: WebSocketSection::default(),
            bridges: Vec::new(),
            logs: LogsSection::default(),
            cluster: ClusterSection::default(),
            objects: ObjectsSection::default(),
            workflows: WorkflowsSection::default(),
            traces: TracesSection::default(),
        }
    }
}

/// `[cluster]`: how the node finds the others of its cluster, once it is in one.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSection {
    /// Where it listens for them, by TCP and by QUIC (UDP). Nothing is listened on before the node is a member.
    pub listen: SocketAddr,
    /// Addresses of members, such as `pi-2.local:7071`, beside those that the node has learnt.
    pub bootstrap: Vec<String>,
    /// Whether members are looked for on the local network by multicast DNS; where it listens on loopback alone they are
    /// not.
    pub mdns: bool,
}

impl Default for ClusterSection {
    fn default() -> Self {
        let listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7071);
        Self { listen, bootstrap: Vec::new(), mdns: true }
    }
}

/// `[objects]`: stateful objects.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectsSection {
    /// Memory for fields, so that they need not be read from the disk; see [`MemoryPlan`] without.
    pub cache: Option<ByteSize>,
}

/// `[workflows]`: how many instances there may be.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkflowsSection {
    /// Instances that run something at the same time; whoever would start another is told to come back.
    pub running: usize,
    /// Instances, those that wait included.
    pub instances: usize,
    /// Memory of all instances and of the events that wait for them; by the memory plan without.
    pub memory: Option<ByteSize>,
    /// Live descendants of a root instance: sub-workflows at any depth, also those that functions call.
    pub descendants: usize,
    /// Memory of a root instance with its descendants; half of `memory` without, at most 64 MiB.
    pub root_memory: Option<ByteSize>,
}

impl Default for WorkflowsSection {
    fn default() -> Self {
        let limits = edgefaas_coordinator::WorkflowLimits::within(0);
        Self {
            running: limits.running,
            instances: limits.instances,
            memory: None,
            descendants: limits.root.descendants,
            root_memory: None,
        }
    }
}

impl WorkflowsSection {
    /// The limits, where the memory plan has given so many bytes to workflows.
    pub fn limits(&self, bytes: u64) -> WorkflowLimits {
        let mut limits = WorkflowLimits::within(bytes);
        if let Some(memory) = self.root_memory {
            limits.root.bytes = usize::try_from(memory.as_u64()).unwrap_or(usize::MAX);
        }
        limits.root.descendants = self.descendants;
        (limits.running, limits.instances) = (self.running, self.instances);
        limits
    }
}

/// `[traces]`: what is remembered of where the time went.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TracesSection {
    /// Spans that are kept in memory, in 512 bytes each on average; 0 records none.
    pub spans: usize,
    /// Traces that begin in a second, at most; others are not recorded.
    pub per_second: u64,
    /// Where they are sent as well: the URL of an OpenTelemetry collector (OTLP over HTTP), such as
    /// `http://127.0.0.1:4318`.
    pub otlp: Option<String>,
}

impl Default for TracesSection {
    fn default() -> Self {
        let limits = edgefaas_functions::trace::TraceLimits::default();
        Self { spans: limits.spans, per_second: limits.per_second, otlp: None }
    }
}

/// `[isolates]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IsolatesSection {
    /// How many isolates may exist at once, over all functions; as many as the machine has room for without.
    pub max: Option<u32>,
    /// The most memory an isolate may have; functions' own limits are at most this. A quarter of the machine's without, at
    /// most 256 MiB.
    pub max_memory: Option<ByteSize>,
    /// Address space that each isolate reserves: 4 GiB where there is so much, and then its code needs no bounds checks.
    pub reservation: Option<ByteSize>,
    /// The most memory that parsing, evaluating and compiling a function may take, in a process of its own. Three quarters
    /// of the machine's without, at least 512 MiB where the machine has so much.
    pub compile_memory: Option<ByteSize>,
    /// Files of compiled code that are kept, together; those not used for longest go first.
    pub code_cache: ByteSize,
    /// Functions that stay ready to run though nobody has called them lately; others are loaded when they are called.
    pub programs: usize,
}

impl Default for IsolatesSection {
    fn default() -> Self {
        Self {
            max: None,
            max_memory: None,
            reservation: None,
            compile_memory: None,
            code_cache: ByteSize::gib(1),
            programs: 128,
        }
    }
}

impl IsolatesSection {
    /// The pool that fits a machine and these settings, with the plan's memory.
    pub fn pool(&self, machine: &Machine, plan: &MemoryPlan) -> PoolConfig {
        let machine = Machine { memory_bytes: plan.limit.bytes, ..*machine };
        machine.pool(PoolOverrides {
            guest_bytes: Some(plan.guest_bytes),
            max_isolates: self.max,
            max_memory_bytes: self.max_memory.map(|size| size.as_u64()),
            reservation_bytes: self.reservation.map(|size| size.as_u64()),
        })
    }

    /// The memory that the process may use in which a function is compiled, in bytes.
    pub fn compile_memory_bytes(&self, machine: &Machine) -> u64 {
        self.compile_memory.map_or_else(|| machine.compile_memory_bytes(), |size| size.as_u64())
    }
}

/// `[store]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSection {
    /// What a power cut may cost: changes are synced to the disk at least this often. They reach the
    /// operating system before anyone is answered, whatever this is.
    #[serde(with = "humantime_serde")]
    pub sync_interval: Duration,
    /// Free space that only deletions and deliveries may use, at least 2 MiB. By default a sixteenth of the disk, from 4
    /// to 64 MiB.
    pub reserve: Option<ByteSize>,
    /// Memory for the store's block cache; see [`MemoryPlan`] without.
    pub cache: Option<ByteSize>,
    /// Goes on without what is missing or damaged; only ever for one start, by `--accept-loss`.
    #[serde(skip)]
    pub accept_loss: bool,
}

impl Default for StoreSection {
    fn default() -> Self {
        Self { sync_interval: Duration::from_secs(1), reserve: None, cache: None, accept_loss: false }
    }
}

/// `[broker]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerSection {
    /// The largest MQTT packet that is taken or sent.
    pub max_packet: ByteSize,
    /// Connections at once; see [`MemoryPlan`] without.
    pub max_connections: Option<usize>,
    /// How soon a message is on the disk that is acknowledged: `commit`, `interval` or `never`.
    pub sync: WalSync,
    /// Sessions, with and without a connection.
    pub max_sessions: usize,
    /// The longest Session Expiry Interval that clients get; without it as long as they like.
    #[serde(with = "humantime_serde")]
    pub max_session_expiry: Option<Duration>,
    /// The longest keepalive; without it as long as clients like.
    #[serde(with = "humantime_serde")]
    pub max_keepalive: Option<Duration>,
    /// QoS 1 and 2 messages that may wait on the disk for one session.
    pub queue_messages: usize,
    /// Bytes of them.
    pub queue_size: ByteSize,
    /// Bytes that may wait on the disk for all sessions.
    pub max_queue_size: ByteSize,
    /// What happens to a message for a session with a full queue: `drop-oldest` or `reject`.
    pub when_queue_full: WhenQueueFull,
    /// Bytes that may wait in memory for all clients; see [`MemoryPlan`] without.
    pub max_buffered: Option<ByteSize>,
    /// Retained messages.
    pub max_retained_messages: usize,
    /// Bytes of them; see [`MemoryPlan`] without.
    pub max_retained: Option<ByteSize>,
    /// Connections from one address; 0 for no limit.
    pub max_connections_per_address: usize,
    /// New connections a second from one address; 0 for no limit.
    pub max_connects_per_second_per_address: u32,
    /// Messages a second from one client, which is read slower when it sends more; 0 for no limit.
    pub max_messages_per_second: u32,
    /// Client identifiers of bridges of other nodes, `*` for any characters: only these clients may set the user property
    /// `edgefaas-via`.
    pub bridge_clients: Vec<String>,
    /// Time between two rounds of `$SYS/broker/` figures; `0s` for none.
    #[serde(with = "humantime_serde")]
    pub sys_interval: Duration,
}

/// What happens to a message for a session whose queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenQueueFull {
    /// The oldest one makes room and is lost.
    #[default]
    DropOldest,
    /// The publisher is told, or waits.
    Reject,
}

impl Default for BrokerSection {
    fn default() -> Self {
        let broker = BrokerConfig::default();
        Self {
            max_packet: ByteSize::mib(1),
            max_connections: None,
            sync: WalSync::default(),
            max_sessions: broker.max_sessions,
            max_session_expiry: None,
            max_keepalive: None,
            queue_messages: broker.stored_queue_messages,
            queue_size: ByteSize::b(broker.stored_queue_bytes),
            max_queue_size: ByteSize::b(broker.max_stored_queue_bytes),
            when_queue_full: WhenQueueFull::default(),
            max_buffered: None,
            max_retained_messages: broker.max_retained_messages,
            max_retained: None,
            max_connections_per_address: 0,
            max_connects_per_second_per_address: 0,
            max_messages_per_second: 0,
            bridge_clients: vec!["edgefaas-*".into()],
            sys_interval: broker.sys_interval,
        }
    }
}

/// `[invocations]`: for how long the outcomes of durable invocations may be asked for. The oldest are forgotten first.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InvocationsSection {
    /// The longest time. As long as an outcome is kept, so is its idempotency key.
    #[serde(with = "humantime_serde")]
    pub keep: Duration,
    /// Outcomes.
    pub max_kept: u64,
    /// Bytes of them.
    pub max_kept_size: ByteSize,
}

impl Default for InvocationsSection {
    fn default() -> Self {
        Self { keep: Duration::from_secs(3600), max_kept: 100_000, max_kept_size: ByteSize::mib(64) }
    }
}

/// `[logs]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogsSection {
    /// Lines kept for each function.
    pub lines_per_function: usize,
    /// Bytes kept for each function.
    pub bytes_per_function: ByteSize,
}

impl Default for LogsSection {
    fn default() -> Self {
        Self { lines_per_function: 1000, bytes_per_function: ByteSize::kib(256) }
    }
}

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("the configuration {path} cannot be read: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("the configuration {path} is not valid:\n{reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Place and reason.
        reason: Box<toml::de::Error>,
    },
    /// MQTT clients elsewhere can't prove who they are.
    #[error(
        "{listener} = {address} can be reached from other machines, and clients there have no way to prove who \
         they are: add a user while the node listens on loopback (`edgefaas users add NAME`), configure \
         [access.jwt], or let anyone in with `allow_anonymous = true` under [access]"
    )]
    NoCredentials {
        /// Which listener.
        listener: &'static str,
        /// Its address.
        address: SocketAddr,
    },
    /// The certificates' settings do not fit.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A bridge's settings make no sense.
    #[error(transparent)]
    Bridge(#[from] BridgeConfigError),
    /// A number that makes no sense.
    #[error("{key} = {value} is out of range: {allowed}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}

impl NodeConfig {
    /// Reads `file`, or gives the defaults without one.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = file else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|reason| ConfigError::Read { path: path.to_owned(), reason })?;
        let mut config: Self = toml::from_str(&text)
            .map_err(|reason| ConfigError::Parse { path: path.to_owned(), reason: Box::new(reason) })?;
        if let Some(folder) = path.parent() {
            config.files().for_each(|file| *file = folder.join(&*file));
        }
        Ok(config)
    }

    /// The files that others are named by, which are relative to the configuration's own folder.
    fn files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let Self { access, tls, bridges, .. } = self;
        let (secret, public_key) = match &mut access.jwt {
            Some(jwt) => (jwt.secret.as_mut(), jwt.public_key.as_mut()),
            None => (None, None),
        };
        let TlsSection { cert, key, client_ca, client_crl, .. } = tls;
        let certificates = [cert, key, client_ca, client_crl].map(Option::as_mut);
        let of_bridges = bridges.iter_mut().flat_map(|bridge| {
            let BridgeSection { ca, cert, key, password_file, .. } = bridge;
            [ca, cert, key, password_file].map(Option::as_mut)
        });
        let files = [access.acl.as_mut(), secret, public_key].into_iter().chain(certificates);
        files.chain(of_bridges).flatten()
    }

    /// The addresses that MQTT clients elsewhere can reach, each with its listener and whether such clients
    /// show certificates there.
    pub(crate) fn wide_mqtt(&self) -> impl Iterator<Item = (&'static str, SocketAddr, bool)> {
        let certified = self.tls.client_certificates != ClientCertificates::Off;
        [("mqtt", Some(self.mqtt), false), ("mqtts", self.mqtts, certified)]
            .into_iter()
            .filter_map(|(listener, address, certified)| Some((listener, address?, certified)))
            .filter(|(_, address, _)| !is_loopback(address.ip()))
    }

    /// The addresses that are served by TLS: MQTT over TLS, and control port and gateway off loopback.
    pub(crate) fn tls_addresses(&self) -> Vec<SocketAddr> {
        let wide = [self.http, self.control].into_iter().filter(|address| !is_loopback(address.ip()));
        wide.chain(self.mqtts).collect()
    }

    /// Holds the settings against what a node can do.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.tls.check()?;
        bridge::check(&self.bridges)?;
        let out_of_range =
            |key, value: String, allowed| Err(ConfigError::OutOfRange { key, value, allowed });
        if let Some(max) = self.isolates.max.filter(|max| !(1..=100_000).contains(max)) {
            return out_of_range("isolates.max", max.to_string(), "1 to 100000");
        }
        let compile_memory = ByteSize::mib(32)..=ByteSize::gib(64);
        if let Some(memory) = self.isolates.compile_memory.filter(|memory| !compile_memory.contains(memory))
        {
            return out_of_range("isolates.compile_memory", memory.to_string(), "32MiB to 64GiB");
        }
        let size = ByteSize::mib(1)..=ByteSize::gib(4);
        if let Some(memory) = self.isolates.max_memory.filter(|memory| !size.contains(memory)) {
            return out_of_range("isolates.max_memory", memory.to_string(), "1MiB to 4GiB");
        }
        if let Some(reservation) =
            self.isolates.reservation.filter(|reservation| !size.contains(reservation))
        {
            return out_of_range("isolates.reservation", reservation.to_string(), "1MiB to 4GiB");
        }
        let least = ByteSize::b(MIN_RESERVE_BYTES);
        if let Some(reserve) = self.store.reserve.filter(|reserve| *reserve < least) {
            return out_of_range("store.reserve", reserve.to_string(), "2MiB or more");
        }
        let packet = self.broker.max_packet;
        if !(ByteSize::b(128)..=ByteSize::b(268_435_455)).contains(&packet) {
            return out_of_range("broker.max_packet", packet.to_string(), "128B to 268435455B");
        }
        if self.workers > 1024 {
            return out_of_range("workers", self.workers.to_string(), "0 (one a core) to 1024");
        }
        Ok(())
    }

    /// Shares the memory out, with the sizes that are set here.
    pub fn memory_plan(&self, limit: MemoryLimit) -> MemoryPlan {
        let bytes = |size: Option<ByteSize>| size.map(|size| size.as_u64());
        let wishes = MemoryWishes {
            buffered_bytes: bytes(self.broker.max_buffered),
            retained_bytes: bytes(self.broker.max_retained),
            connections: self.broker.max_connections.map(|connections| connections as u64),
            block_bytes: bytes(self.store.cache),
            field_bytes: bytes(self.objects.cache),
            workflow_bytes: bytes(self.workflows.memory),
        };
        MemoryPlan::new(limit, wishes)
    }

    /// How many workers there are: as set, or one a core.
    pub fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, Into::into),
            count => count,
        }
    }
}

/// `$EDGEFAAS_DATA_DIR`; else `/var/lib/edgefaas` for root; else `$XDG_DATA_HOME/edgefaas` or
/// `~/.local/share/edgefaas`.
pub fn default_data_dir() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("EDGEFAAS_DATA_DIR") {
        return dir;
    }
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/edgefaas");
    }
    set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .map_or_else(|| PathBuf::from(".edgefaas"), |base| base.join("edgefaas"))
}

/// `[websocket]`
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebSocketSection {
    /// Origins whose pages may connect beside the gateway's own, such as `https://example.org`; `*` for all.
    pub allowed_origins: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_relative_to_the_configurations_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("edgefaas.toml");
        let text = "[access]\nacl = \"acl.toml\"\n[access.jwt]\nsecret = \"/etc/secret\"\npublic_key = \"a/b.pem\"\n\
                    [tls]\ncert = \"c.pem\"\nkey = \"c.key\"\n";
        std::fs::write(&file, text).unwrap();
        let config = NodeConfig::load(Some(&file)).unwrap();
        let beside = |name: &str| Some(folder.path().join(name));
        assert_eq!(config.access.acl, beside("acl.toml"));
        let jwt = config.access.jwt.clone().unwrap();
        assert_eq!((jwt.secret, jwt.public_key), (Some("/etc/secret".into()), beside("a/b.pem")));
        assert_eq!((&config.tls.cert, &config.tls.key), (&beside("c.pem"), &beside("c.key")));
        config.check().unwrap();
    }

    #[test]
    fn what_others_can_reach_is_known() {
        let config = |text: &str| toml::from_str::<NodeConfig>(text).unwrap();
        let wide = |text: &str| {
            config(text).wide_mqtt().map(|(name, _, certified)| (name, certified)).collect::<Vec<_>>()
        };
        assert_eq!(wide(""), []);
        assert_eq!(wide("mqtts = \"127.0.0.1:1\"\nmqtt = \"[::1]:1\""), []);
        assert_eq!(wide("mqtt = \"0.0.0.0:1\""), [("mqtt", false)]);
        assert_eq!(wide("mqtt = \"[::ffff:127.0.0.1]:1\""), [], "an IPv4 address in an IPv6 one");
        let certified =
            "mqtts = \"192.0.2.1:1\"\n[tls]\nclient_ca = \"a\"\nclient_certificates = \"optional\"";
        assert_eq!(wide(certified), [("mqtts", true)]);
        assert!(config("").tls_addresses().is_empty(), "no certificate is made for nobody");
        assert_eq!(config("http = \"0.0.0.0:1\"\nmqtts = \"127.0.0.1:2\"").tls_addresses().len(), 2);
        for (text, words) in [
            ("[acces]", "unknown field `acces`"),
            ("[access]\nallow_anonymus = true", "unknown field `allow_anonymus`"),
            ("[tls]\nclient_certificates = \"yes\"", "unknown variant `yes`"),
        ] {
            let error = toml::from_str::<NodeConfig>(text).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
