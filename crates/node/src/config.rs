//! Configuration of a node: a TOML file, overridden by the command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use edgefaas_broker::BrokerConfig;
use edgefaas_cluster::artefacts::CHUNK_BYTES;
use edgefaas_cluster::status::MAX_LABELS;
use edgefaas_coordinator::WorkflowLimits;
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::{Machine, MemoryLimit, PoolOverrides};
use edgefaas_manifest::CorsOrigin;
use edgefaas_platform::{LABEL_RULE, is_label, is_loopback};
use edgefaas_state::store::{MIN_RESERVE_BYTES, WalSync};
use serde::{Deserialize, Serialize};

use crate::access::AccessSection;
use crate::bridge::config::{self as bridge, BridgeConfigError, BridgeSection};
use crate::memory_plan::{MemoryOverrides, MemoryPlan};
use crate::settings_list::ConfigFile;
use crate::tls::{ClientCertificates, TlsError, TlsSection};
pub use crate::trace_export::config::{OtlpProtocol, OtlpUrlError, TracesSection};

/// Configuration of a node. Every setting has a default, so an empty file is valid.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Folder of all data of the node. Only one node may use it at a time.
    pub data_dir: PathBuf,
    /// Folder of compiled code; by default `cache` in the data directory. Its content can be restored, so it need not
    /// be on the SD card.
    pub cache_dir: Option<PathBuf>,
    /// The HTTP gateway.
    pub http: SocketAddr,
    /// The MQTT listener.
    pub mqtt: SocketAddr,
    /// The listener for MQTT over TLS; disabled by default.
    pub mqtts: Option<SocketAddr>,
    /// The control API, metrics and health.
    pub control: SocketAddr,
    /// Threads that serve connections and run isolates; 0 means one per core.
    pub workers: usize,
    /// Grace period for running invocations when the node stops.
    #[serde(with = "humantime_serde")]
    pub drain_grace: Duration,
    /// Access control.
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
    /// The HTTP gateway.
    pub gateway: GatewaySection,
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
    /// See [`DashboardSection`].
    pub dashboard: DashboardSection,
    /// The file that it was read from.
    #[serde(skip)]
    pub file: Option<ConfigFile>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        let loopback = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
        Self {
            data_dir: edgefaas_api::default_data_dir(),
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
            gateway: GatewaySection::default(),
            bridges: Vec::new(),
            logs: LogsSection::default(),
            cluster: ClusterSection::default(),
            objects: ObjectsSection::default(),
            workflows: WorkflowsSection::default(),
            traces: TracesSection::default(),
            dashboard: DashboardSection::default(),
            file: None,
        }
    }
}

/// `[dashboard]`: the pages at the control port.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct DashboardSection {
    /// Serves them, and accepts sign-ins.
    #[serde(rename = "enabled")]
    pub is_enabled: bool,
    /// Time from the last request to the end of a session; at most 12 hours from the sign-in.
    #[serde(with = "humantime_serde")]
    pub session: Duration,
}

impl Default for DashboardSection {
    fn default() -> Self {
        Self { is_enabled: true, session: Duration::from_secs(3600) }
    }
}

/// `[cluster]`: addresses and discovery of the other members of its cluster.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSection {
    /// Listen address for members, by TCP and by QUIC (UDP). The node opens the port once it is a member.
    pub listen: SocketAddr,
    /// Addresses of members, such as `pi-2.local:7071`, beside those that the node has learnt.
    pub bootstrap: Vec<String>,
    /// Discovers members on the local network by multicast DNS; disabled if the node listens on loopback alone.
    pub mdns: bool,
    /// The zone of this node, such as a building: nodes that reach each other quickly. Without it the zone is measured.
    pub zone: Option<String>,
    /// Labels of this node, to which deploys and placement policies refer.
    pub labels: Vec<String>,
    /// Maximum of artefact bytes that the node sends to members in a second; by default what the links take.
    pub artefact_rate: Option<ByteSize>,
}

impl ClusterSection {
    /// Checks the zone and the labels.
    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key, value: &str| {
            Err(ConfigError::NotALabel { key, value: value.escape_debug().to_string(), rule: LABEL_RULE })
        };
        if let Some(zone) = self.zone.as_deref().filter(|zone| !is_label(zone)) {
            return wrong("cluster.zone", zone);
        }
        if let Some(label) = self.labels.iter().find(|label| !is_label(label)) {
            return wrong("cluster.labels", label);
        }
        let min_rate = ByteSize::b(CHUNK_BYTES as u64);
        if let Some(rate) = self.artefact_rate.filter(|rate| *rate < min_rate) {
            let (key, allowed) = ("cluster.artefact_rate", "64KiB or more");
            return Err(ConfigError::OutOfRange { key, value: rate.to_string(), allowed });
        }
        match self.labels.len() {
            count if count > MAX_LABELS => Err(ConfigError::TooManyLabels { count, limit: MAX_LABELS }),
            _ => Ok(()),
        }
    }
}

impl Default for ClusterSection {
    fn default() -> Self {
        let listen = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7071);
        Self {
            listen,
            bootstrap: Vec::new(),
            mdns: true,
            zone: None,
            labels: Vec::new(),
            artefact_rate: None,
        }
    }
}

/// `[objects]`: stateful objects.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObjectsSection {
    /// Memory for cached fields; by default [`MemoryPlan`] sets it.
    pub cache: Option<ByteSize>,
}

/// `[workflows]`: limits on instances.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkflowsSection {
    /// Maximum number of instances that run a step at the same time; further starts are refused, and the caller may try
    /// again.
    pub running: usize,
    /// Maximum number of instances, including waiting ones.
    pub instances: usize,
    /// Memory of all instances and of the events that wait for them; by default [`MemoryPlan`] sets it.
    pub memory: Option<ByteSize>,
    /// Maximum number of live descendants of a root instance: sub-workflows at any depth, including those that
    /// functions call.
    pub descendants: usize,
    /// Memory of a root instance with its descendants; by default half of `memory`, at most 64 MiB.
    pub root_memory: Option<ByteSize>,
    /// Maximum age of the records of ended durable instances that had no key. Those with one are outcomes of `[invocations]`.
    #[serde(with = "humantime_serde")]
    pub keep: Duration,
    /// Maximum number of these records; 0 keeps none.
    pub max_kept: u64,
    /// Maximum size of them, in bytes.
    pub max_kept_size: ByteSize,
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
            keep: Duration::from_secs(3600),
            max_kept: 10_000,
            max_kept_size: ByteSize::mib(16),
        }
    }
}

impl WorkflowsSection {
    /// The limits, with `bytes` of memory for workflows in the memory plan.
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

/// `[isolates]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct IsolatesSection {
    /// Maximum number of isolates over all functions; by default the number that the machine has room for.
    pub max: Option<u32>,
    /// Maximum memory of an isolate; it bounds the functions' own limits. By default the largest memory that
    /// one function can have within the budget of functions, from 64 to 256 MiB.
    pub max_memory: Option<ByteSize>,
    /// Address space that each isolate reserves: by default 4 GiB if available, which makes bounds checks unnecessary.
    pub reservation: Option<ByteSize>,
    /// Maximum memory of the process that parses, evaluates and compiles a function. By default three quarters of the
    /// machine's memory, at least 512 MiB if the machine has it, else at least 192 MiB.
    pub compile_memory: Option<ByteSize>,
    /// Maximum total size of the files of compiled code; the least recently used are removed first.
    pub code_cache: ByteSize,
    /// Maximum number of functions that stay loaded without recent calls; others are loaded at their next call.
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
    /// Size of the pool for a machine, these settings and the memory of the plan.
    pub fn pool(&self, machine: &Machine, plan: &MemoryPlan) -> PoolConfig {
        let machine = Machine { memory_bytes: plan.limit.bytes, ..*machine };
        machine.pool(PoolOverrides {
            guest_bytes: Some(plan.guest_bytes),
            max_isolates: self.max,
            max_memory_bytes: self.max_memory.map(|size| size.as_u64()),
            reservation_bytes: self.reservation.map(|size| size.as_u64()),
        })
    }

    /// Memory limit of the process that compiles a function, in bytes.
    pub fn compile_memory_bytes(&self, machine: &Machine) -> u64 {
        self.compile_memory.map_or_else(|| machine.compile_memory_bytes(), |size| size.as_u64())
    }
}

/// `[store]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSection {
    /// Maximum interval between syncs to the disk: a power cut loses at most the changes of this interval. The
    /// operating system has every change before it is acknowledged.
    #[serde(with = "humantime_serde")]
    pub sync_interval: Duration,
    /// Free space reserved for deletions and deliveries, at least 2 MiB. By default a sixteenth of the disk, from 4 to
    /// 64 MiB.
    pub reserve: Option<ByteSize>,
    /// Memory of the store's block cache; by default [`MemoryPlan`] sets it.
    pub cache: Option<ByteSize>,
    /// Continues without missing or damaged files; set for one start only, by `--accept-loss`.
    #[serde(skip)]
    pub accept_loss: bool,
}

impl Default for StoreSection {
    fn default() -> Self {
        Self { sync_interval: Duration::from_secs(1), reserve: None, cache: None, accept_loss: false }
    }
}

/// `[broker]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct BrokerSection {
    /// Maximum size of an MQTT packet, received or sent.
    pub max_packet: ByteSize,
    /// Maximum number of connections; by default [`MemoryPlan`] sets it.
    pub max_connections: Option<usize>,
    /// When an acknowledged message is on the disk: `commit`, `interval` or `never`.
    pub sync: WalSync,
    /// Maximum number of sessions, with and without a connection.
    pub max_sessions: usize,
    /// Maximum Session Expiry Interval; by default unlimited.
    #[serde(with = "humantime_serde")]
    pub max_session_expiry: Option<Duration>,
    /// Maximum keepalive; by default unlimited.
    #[serde(with = "humantime_serde")]
    pub max_keepalive: Option<Duration>,
    /// Maximum number of QoS 1 and 2 messages on the disk for one session.
    pub queue_messages: usize,
    /// Maximum size of them, in bytes.
    pub queue_size: ByteSize,
    /// Maximum size of the messages on the disk for all sessions, in bytes.
    pub max_queue_size: ByteSize,
    /// Policy for a message to a session with a full queue: `drop-oldest` or `reject`.
    pub when_queue_full: WhenQueueFull,
    /// Maximum size of the messages in memory for all clients, in bytes; by default [`MemoryPlan`] sets it.
    pub max_buffered: Option<ByteSize>,
    /// Maximum number of retained messages.
    pub max_retained_messages: usize,
    /// Maximum size of them, in bytes; by default [`MemoryPlan`] sets it.
    pub max_retained: Option<ByteSize>,
    /// Maximum number of connections from one address; 0 for no limit.
    pub max_connections_per_address: usize,
    /// Maximum number of new connections per second from one address; 0 for no limit.
    pub max_connects_per_second_per_address: u32,
    /// Maximum number of messages per second from one client, which is throttled beyond it; 0 for no limit.
    pub max_messages_per_second: u32,
    /// Patterns of client identifiers of bridges of other nodes, `*` for any characters: only these clients may set the
    /// user property `edgefaas-via`.
    pub bridge_clients: Vec<String>,
    /// Interval of publishing `$SYS/broker/` figures; `0s` disables them.
    #[serde(with = "humantime_serde")]
    pub sys_interval: Duration,
}

/// Policy for a message to a session with a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenQueueFull {
    /// The oldest message is dropped.
    #[default]
    DropOldest,
    /// The publisher gets an error, or waits.
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

/// `[invocations]`: retention of the outcomes of durable invocations. The oldest are removed first.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct InvocationsSection {
    /// Maximum age. An idempotency key is kept while its outcome is kept.
    #[serde(with = "humantime_serde")]
    pub keep: Duration,
    /// Maximum number of outcomes.
    pub max_kept: u64,
    /// Maximum size of them, in bytes.
    pub max_kept_size: ByteSize,
    /// Maximum age of a dead letter.
    #[serde(with = "humantime_serde")]
    pub keep_dead: Duration,
    /// Maximum number of dead letters. Over it the function that has the most loses its oldest.
    pub max_dead: u64,
    /// Maximum size of them, in bytes.
    pub max_dead_size: ByteSize,
}

impl Default for InvocationsSection {
    fn default() -> Self {
        Self {
            keep: Duration::from_secs(3600),
            max_kept: 100_000,
            max_kept_size: ByteSize::mib(64),
            keep_dead: Duration::from_secs(7 * 24 * 3600),
            max_dead: 1000,
            max_dead_size: ByteSize::mib(16),
        }
    }
}

/// `[logs]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogsSection {
    /// Maximum number of lines of each function.
    pub lines_per_function: usize,
    /// Maximum size of the lines of each function, in bytes.
    pub bytes_per_function: ByteSize,
}

impl Default for LogsSection {
    fn default() -> Self {
        Self { lines_per_function: 1000, bytes_per_function: ByteSize::kib(256) }
    }
}

/// The configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration {path} cannot be read: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The file is invalid.
    #[error("the configuration {path} is not valid:\n{reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Position and reason.
        reason: Box<toml::de::Error>,
    },
    /// MQTT clients on other machines have no means to authenticate.
    #[error(
        "{listener} = {address} can be reached from other machines, and clients there cannot \
         authenticate: add a user while the node listens on loopback (`edgefaas users add NAME`), configure \
         [access.jwt], or accept anonymous clients with `allow_anonymous = true` under [access]"
    )]
    NoCredentials {
        /// Name of the listener.
        listener: &'static str,
        /// Its address.
        address: SocketAddr,
    },
    /// The settings of certificates are inconsistent.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A bridge's settings are invalid.
    #[error(transparent)]
    Bridge(#[from] BridgeConfigError),
    /// The URL of the collector is invalid.
    #[error(transparent)]
    OtlpUrl(#[from] OtlpUrlError),
    /// A number is out of range.
    #[error("{key} = {value} is out of range: {allowed}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The allowed range.
        allowed: &'static str,
    },
    /// A zone or label is invalid.
    #[error("`{value}` in {key} is not a name: {rule}")]
    NotALabel {
        /// The key.
        key: &'static str,
        /// The zone or label.
        value: String,
        /// The form of a name.
        rule: &'static str,
    },
    /// The node has too many labels.
    #[error("cluster.labels has {count} labels; at most {limit} are allowed")]
    TooManyLabels {
        /// Number of labels.
        count: usize,
        /// Maximum of `count`.
        limit: usize,
    },
}

impl NodeConfig {
    /// Reads `file`; without a file, returns the defaults.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = file else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|reason| ConfigError::Read { path: path.to_owned(), reason })?;
        let config = Self::parse(path, &text)?;
        Ok(Self { file: Some(ConfigFile { path: path.to_owned(), text }), ..config })
    }

    /// The configuration of this text in the file `path`.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text)
            .map_err(|reason| ConfigError::Parse { path: path.to_owned(), reason: Box::new(reason) })?;
        if let Some(folder) = path.parent() {
            config.files().for_each(|file| *file = folder.join(&*file));
        }
        Ok(config)
    }

    /// Paths of other files, which are relative to the configuration's own folder.
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

    /// MQTT addresses that other machines can reach: listener, address, and true if clients present certificates there.
    pub(crate) fn wide_mqtt(&self) -> impl Iterator<Item = (&'static str, SocketAddr, bool)> {
        let certified = self.tls.client_certificates != ClientCertificates::Off;
        [("mqtt", Some(self.mqtt), false), ("mqtts", self.mqtts, certified)]
            .into_iter()
            .filter_map(|(listener, address, certified)| Some((listener, address?, certified)))
            .filter(|(_, address, _)| !is_loopback(address.ip()))
    }

    /// Addresses served by TLS: MQTT over TLS, and control port and gateway off loopback.
    pub(crate) fn tls_addresses(&self) -> Vec<SocketAddr> {
        let wide = [self.http, self.control].into_iter().filter(|address| !is_loopback(address.ip()));
        wide.chain(self.mqtts).collect()
    }

    /// Validates the settings.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.tls.check()?;
        self.cluster.check()?;
        bridge::check(&self.bridges)?;
        self.traces.collector()?;
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
        let min_reserve = ByteSize::b(MIN_RESERVE_BYTES);
        if let Some(reserve) = self.store.reserve.filter(|reserve| *reserve < min_reserve) {
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

    /// The memory plan, with the sizes that are configured here.
    pub fn memory_plan(&self, limit: MemoryLimit) -> MemoryPlan {
        let bytes = |size: Option<ByteSize>| size.map(|size| size.as_u64());
        let overrides = MemoryOverrides {
            buffered_bytes: bytes(self.broker.max_buffered),
            retained_bytes: bytes(self.broker.max_retained),
            connections: self.broker.max_connections.map(|connections| connections as u64),
            block_bytes: bytes(self.store.cache),
            field_bytes: bytes(self.objects.cache),
            workflow_bytes: bytes(self.workflows.memory),
        };
        MemoryPlan::new(limit, overrides)
    }

    /// Number of workers: as configured, or one per core.
    pub fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, Into::into),
            count => count,
        }
    }
}

/// `[gateway]`
#[derive(Debug, Clone, Default, serde::Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatewaySection {
    /// Origins whose pages may send requests to all functions and workflows; none by default.
    #[serde(deserialize_with = "origins", serialize_with = "origin_texts")]
    pub cors: Vec<CorsOrigin>,
}

fn origins<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<CorsOrigin>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}

fn origin_texts<S: serde::Serializer>(origins: &[CorsOrigin], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(origins.iter().map(ToString::to_string))
}

/// `[websocket]`
#[derive(Debug, Clone, Default, serde::Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct WebSocketSection {
    /// Origins whose pages may connect, beside the gateway's own, such as `https://example.org`; `*` for all.
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
    fn the_packaged_configuration_changes_nothing_and_its_examples_are_valid() {
        let text = include_str!("../../../packaging/edgefaas.toml");
        let packaged: NodeConfig = toml::from_str(text).unwrap();
        assert_eq!(format!("{packaged:?}"), format!("{:?}", NodeConfig::default()));
        let examples: String = text
            .lines()
            .filter_map(|line| line.strip_prefix('#'))
            .filter(|line| !line.starts_with(' '))
            .map(|line| format!("{line}\n"))
            .collect();
        let mut examples: NodeConfig = toml::from_str(&examples).unwrap();
        assert_eq!(
            (examples.mqtts.take(), examples.access.allow_anonymous.take()),
            (Some("0.0.0.0:8883".parse().unwrap()), Some(false))
        );
        examples.data_dir = NodeConfig::default().data_dir;
        assert_eq!(
            format!("{examples:?}"),
            format!("{:?}", NodeConfig::default()),
            "they are the defaults"
        );
    }

    #[test]
    fn addresses_off_loopback_are_found() {
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
        assert!(config("").tls_addresses().is_empty(), "loopback addresses need no certificate");
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

    #[test]
    fn zones_and_labels_are_checked() {
        let check = |text: &str| {
            let config: NodeConfig = toml::from_str(&format!("[cluster]\n{text}")).unwrap();
            config.check().map_err(|error| error.to_string())
        };
        assert_eq!(check("zone = \"east-wing\"\nlabels = [\"camera\", \"floor=2\"]"), Ok(()));
        let error = check("zone = \"east wing\"").unwrap_err();
        assert!(error.starts_with("`east wing` in cluster.zone is not a name: write 1 to 63"), "{error}");
        let error = check("labels = [\"a\", \"\"]").unwrap_err();
        assert!(error.starts_with("`` in cluster.labels is not a name"), "{error}");
        let error = check("artefact_rate = \"1KiB\"").unwrap_err();
        assert!(error.contains("cluster.artefact_rate") && error.contains("64KiB or more"), "{error}");
        assert_eq!(check("artefact_rate = \"64KiB\""), Ok(()));
        let many = format!("labels = {:?}", vec!["a"; MAX_LABELS + 1]);
        assert_eq!(check(&many).unwrap_err(), "cluster.labels has 33 labels; at most 32 are allowed");
    }
}
