//! The composition root: everything a node is made of is put together here, and taken apart in order.

use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_broker::{Broker, Hooks, Peer, StorageError, Transport};
use edgefaas_coordinator::{Coordinator, CoordinatorParts, run_schedules, run_timers};
use edgefaas_functions::drain::Drain;
use edgefaas_functions::durable::{DurableParts, DurableQueue, KeepLimits};
use edgefaas_functions::invoker::{Callees, Invoker, InvokerParts};
use edgefaas_functions::logs::{Logs, RingLimits};
use edgefaas_functions::metrics::FunctionFamilies;
use edgefaas_functions::outgoing::HttpClient;
use edgefaas_functions::publisher::Publisher;
use edgefaas_functions::registry::{FunctionMemoryLimits, Registry, SharedInterests};
use edgefaas_functions::secrets::{SecretName, Secrets};
use edgefaas_functions::trace::{TraceLimits, Traces};
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::engine::EngineError;
use edgefaas_isolates::{CacheFolder, Isolates, IsolatesConfig};
use edgefaas_platform::private_files::{self, ExposedFiles};
use edgefaas_state::objects::Recoveries;
use edgefaas_state::store::{
    BrokerStorage, DirLock, Durability, JournalSync, LockError, Store, StoreError,
};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::access::TokenError;
use crate::access::{Access, AccessControl, AccessHook, Policy, PolicyError};
use crate::bridge::{Bridges, ViaHook};
use crate::cluster::{Cluster, ClusterError, ClusterFiles};
use crate::config::{ConfigError, NodeConfig};
use crate::control::{self, ControlParts, NodeFacts};
use crate::gateway::Gateway;
use crate::gateway::auth::{GatewayAuth, HTTP_TOKEN_FILE};
use crate::gateway::body::BodyBudget;
use crate::gateway::http;
use crate::gateway::places::Places;
use crate::gateway::replies::ReplyBudget;
use crate::gateway::socket::GatewaySocket;
use crate::gateway::websocket::{Upgrading, WebSocketGateway};
use crate::listeners::{Addresses, Listeners, accept, connection_slots, handshake, on_this_runtime};
use crate::metrics::Metrics;
use crate::platform::Platform;
use crate::pressure;
use crate::settings::{broker_config, cluster_options, log_plan, max_message_bytes, store_options};
use crate::shares::Shares;
use crate::tls::{self, ClientCertificates, Service, Tls, TlsError};
use crate::trace_export;
use crate::triggers::mqtt::CoordinationHook;
use crate::triggers::mqtt::Targets;
use crate::triggers::{cron, object_change};

/// The key that authenticates compiled code.
const CACHE_KEY_FILE: &str = "cache-key";
/// How long connections may take to end after everything under way has.
const CLOSE_GRACE: Duration = Duration::from_secs(3);
/// A node could not start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The configuration is no good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory can't be had.
    #[error(transparent)]
    DataDir(#[from] LockError),
    /// An address can't be listened on.
    #[error(
        "the {listener} listener cannot use {address}: {reason}; choose another with --{listener} ADDR:PORT"
    )]
    Listen {
        /// Which listener.
        listener: &'static str,
        /// Its address.
        address: SocketAddr,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The store can't be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the broker keeps can't be brought back.
    #[error("the broker cannot start: {0}")]
    Broker(StorageError),
    /// The token can't be had.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Users, rules or keys are no good.
    #[error(transparent)]
    Access(#[from] PolicyError),
    /// Other users can read keys.
    #[error(transparent)]
    Exposed(#[from] ExposedFiles),
    /// Certificates are no good.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The isolates can't be set up.
    #[error(transparent)]
    Isolates(#[from] EngineError),
    /// The cache's folder or key can't be made.
    #[error("the cache {path} cannot be used: {reason}")]
    Cache {
        /// Its folder.
        path: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The node can't take part in its cluster.
    #[error(
        "it cannot take part in its cluster; mend that, or choose another address with --p2p ADDR:PORT"
    )]
    Cluster(#[from] ClusterError),
    /// A thread can't be started.
    #[error("a worker thread could not be started: {0}")]
    Workers(std::io::Error),
}

/// A node ended other than it should.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its parts could not be taken apart in order.
    #[error("the node could not stop in order: {0}")]
    Stop(tokio::task::JoinError),
    /// The store could not be closed.
    #[error("the store could not be closed: {0}")]
    Close(StoreError),
    /// The store takes no writes any more.
    #[error(
        "the store failed, and the node ends: {reason}; start it again: what was acknowledged is on the disk, if the disk is not \
         damaged"
    )]
    Store {
        /// What the writer says.
        reason: String,
    },
}

/// A node that listens already and is ready to run.
pub struct Node {
    addresses: Addresses,
    drain_grace: Duration,
    /// See [`config::IsolatesSection::programs`].
    max_programs: usize,
    listeners: Listeners,
    isolates: Arc<Isolates>,
    platform: Platform,
    workers: Arc<Workers>,
    invoker: Arc<Invoker>,
    durable: Arc<DurableQueue>,
    coordinator: Arc<Coordinator>,
    // The broker's hook holds it weakly.
    _targets: Arc<Targets>,
    traces: Arc<Traces>,
    http: Arc<HttpClient>,
    drain: Arc<Drain>,
    registry: Arc<Registry>,
    broker: Broker,
    access: Arc<AccessControl>,
    gateway: Arc<Gateway>,
    websocket: Arc<WebSocketGateway>,
    gateway_connections: usize,
    /// See [`config::TracesSection::otlp`].
    otlp: Option<String>,
    bridges: Arc<Bridges>,
    cluster: Arc<Cluster>,
    tls: Option<Arc<Tls>>,
    control: Arc<ControlParts>,
    store: Arc<Store>,
    // Given up last.
    _lock: DirLock,
}

impl Node {
    /// Puts a node together: takes the data directory, binds the listeners, opens the store, brings back
    /// what was deployed. Nothing is served before [`run`](Self::run).
    pub async fn build(config: NodeConfig, platform: Platform) -> Result<Self, BuildError> {
        let started = Instant::now();
        config.check()?;
        let lock = DirLock::take(&config.data_dir)?;
        private_files::check(files_with_keys(&config))?;
        let policy = Policy::load(&config.access, &config.data_dir)?;
        check_credentials(&config, &policy)?;
        let listeners = Listeners {
            http: listen("http", config.http).await?,
            mqtt: listen("mqtt", config.mqtt).await?,
            mqtts: match config.mqtts {
                Some(address) => Some(listen("mqtts", address).await?),
                None => None,
            },
            control: listen("control", config.control).await?,
        };
        let addresses = listeners.addresses(&config);
        let token = control::admin_token(&config.data_dir)?;
        let tls = open_tls(&config)?;

        let clock = platform.clock.clone();
        let plan = Arc::new(config.memory_plan(platform.memory.limit()));
        log_plan(&plan);
        let code_cache = code_cache(&config)?;
        let store = Arc::new(Store::open(&store_options(&config, &plan), clock.clone())?);
        let pool = config.isolates.pool(&platform.machine, &plan);
        let memory_limits = FunctionMemoryLimits {
            max_bytes: pool.max_memory_bytes,
            largest_bytes: usize::try_from(plan.largest_function_bytes()).unwrap_or(usize::MAX),
        };
        let isolates = Arc::new(Isolates::new(&IsolatesConfig {
            pool,
            compiler: platform.compiler.clone(),
            code_cache: Some(code_cache),
        })?);
        let logs = Arc::new(Logs::new(
            clock.clone(),
            RingLimits {
                lines: config.logs.lines_per_function,
                bytes: config.logs.bytes_per_function.as_u64() as usize,
            },
        ));
        let function_metrics = Arc::new(FunctionFamilies::default());
        let metrics = Arc::new(Metrics::new(&function_metrics));
        let secrets = Arc::new(Secrets::open(store.clone())?);
        let registry = Arc::new(Registry::open(
            store.clone(),
            isolates.clone(),
            logs.clone(),
            function_metrics,
            clock.clone(),
            memory_limits,
            platform.dry_run.clone(),
        )?);
        secrets.assign(&named_secrets(&registry)).await;
        let workers = Arc::new(Workers::start(config.worker_count()).map_err(BuildError::Workers)?);
        let coordination = Arc::new(CoordinationHook::new(workers.clone()));
        let access = Arc::new(Access::new(policy, clock.clone()));
        let access_hook = Arc::new(AccessHook(access.clone()));
        // Who may not publish starts no function.
        let via = Arc::new(ViaHook::new(&store.node_id(), &config.broker.bridge_clients));
        let hooks = Hooks {
            publish: vec![access_hook.clone(), via, coordination.clone()],
            session: vec![access_hook],
        };
        let storage = Arc::new(BrokerStorage::new(store.clone()));
        let broker = Broker::open(broker_config(&config, &plan, clock.clone()), hooks, storage.clone())
            .map_err(BuildError::Broker)?;
        let keep = KeepLimits {
            time: config.invocations.keep,
            count: config.invocations.max_kept,
            bytes: config.invocations.max_kept_size.as_u64(),
            memory_bytes: plan.durable_bytes as usize,
        };
        let step_durability = match config.broker.sync {
            JournalSync::Commit => Durability::Synced,
            JournalSync::Interval | JournalSync::Never => Durability::Written,
        };
        let trace_limits = TraceLimits { spans: config.traces.spans, per_second: config.traces.per_second };
        let traces = Arc::new(Traces::new(trace_limits, config.traces.otlp.is_some()));
        let recoveries = Arc::<Recoveries>::default();
        let cluster = Arc::new(Cluster::new(
            cluster_options(&config),
            store.clone(),
            registry.clone(),
            recoveries.clone(),
            clock.clone(),
        ));
        let drain = Arc::<Drain>::default();
        let interests = Arc::<SharedInterests>::default();
        let http = Arc::new(HttpClient::new(plan.answer_bytes as usize));
        let publisher =
            Publisher::open(broker.clone(), store.clone(), logs.clone(), max_message_bytes(&config))?;
        let publisher = Arc::new(publisher);
        let invoker = Arc::new(Invoker::new(InvokerParts {
            registry: registry.clone(),
            isolates: isolates.clone(),
            store: store.clone(),
            logs: logs.clone(),
            secrets: secrets.clone(),
            traces: traces.clone(),
            recoveries,
            interests: interests.clone(),
            clock: clock.clone(),
            broker: broker.clone(),
            publisher: publisher.clone(),
            http: http.clone(),
            drain: drain.clone(),
            event_bytes: plan.event_bytes as usize,
            effect_bytes: plan.effect_bytes as usize,
        }));
        let durable = DurableParts {
            invoker: invoker.clone(),
            publisher: publisher.clone(),
            registry: registry.clone(),
            broker: broker.clone(),
            store: store.clone(),
            logs: logs.clone(),
            workers: workers.clone(),
            drain: drain.clone(),
            clock: clock.clone(),
        };
        let durable = Arc::new(DurableQueue::open(durable, keep)?);
        let coordinator = Arc::new(Coordinator::new(CoordinatorParts {
            registry: registry.clone(),
            invoker: invoker.clone(),
            durable: durable.clone(),
            publisher: publisher.clone(),
            broker: broker.clone(),
            store: store.clone(),
            logs: logs.clone(),
            secrets: secrets.clone(),
            traces: traces.clone(),
            isolates: isolates.clone(),
            http: http.clone(),
            drain: drain.clone(),
            interests,
            workers: workers.clone(),
            clock,
            limits: config.workflows.limits(plan.workflow_bytes),
            durability: step_durability,
            node_id: store.node_id(),
        }));
        let callees: Arc<dyn Callees> = coordinator.clone();
        invoker.set_callees(Arc::downgrade(&callees));
        let targets = Arc::new(Targets {
            registry: registry.clone(),
            invoker: invoker.clone(),
            durable: durable.clone(),
            coordinator: coordinator.clone(),
            publisher,
            drain: drain.clone(),
        });
        coordination.attach(&targets);
        coordinator.recover_all()?;
        let gateway = Arc::new(Gateway {
            auth: GatewayAuth::new(&token, &config.data_dir, access.clone(), addresses.http)?,
            registry: registry.clone(),
            invoker: invoker.clone(),
            durable: durable.clone(),
            coordinator: coordinator.clone(),
            bodies: BodyBudget::new(plan.body_bytes as usize),
            replies: ReplyBudget::new(plan.reply_bytes as usize),
        });
        let gateway_connections = plan.gateway_connections as usize;
        let websocket = WebSocketGateway::new(
            broker.clone(),
            &config.websocket,
            addresses.http_tls,
            config.tls.client_certificates == ClientCertificates::Required,
        );
        let bridges = Bridges::open(
            &config.bridges,
            broker.clone(),
            &*storage,
            store.node_id(),
            config.broker.max_packet.as_u64() as u32,
            platform.clock.clone(),
        );
        let bridges = Arc::new(bridges.map_err(BuildError::Broker)?);
        let (section, data_dir) = (config.access.clone(), config.data_dir.clone());
        let access = Arc::new(AccessControl::new(
            access,
            tls.clone(),
            broker.clone(),
            section,
            data_dir,
            addresses.control_tls.then_some(addresses.control),
        ));
        let control = Arc::new(ControlParts {
            access: access.clone(),
            invoker: invoker.clone(),
            durable: durable.clone(),
            coordinator: coordinator.clone(),
            store: store.clone(),
            isolates: isolates.clone(),
            traces: traces.clone(),
            drain: drain.clone(),
            registry: registry.clone(),
            workers: workers.clone(),
            logs,
            secrets,
            metrics,
            broker: broker.clone(),
            bridges: bridges.clone(),
            cluster: cluster.clone(),
            memory: platform.memory.clone(),
            facts: NodeFacts {
                node_id: store.node_id(),
                data_dir: config.data_dir.display().to_string(),
                addresses,
                started,
                pool,
                machine: platform.machine,
                plan,
            },
            token,
        });
        cluster.start().await?;
        Ok(Self {
            addresses,
            drain_grace: config.drain_grace,
            max_programs: config.isolates.programs,
            listeners,
            isolates,
            platform,
            workers,
            invoker,
            durable,
            coordinator,
            _targets: targets,
            traces,
            http,
            drain,
            registry,
            broker,
            access,
            gateway,
            websocket: Arc::new(websocket),
            gateway_connections,
            otlp: config.traces.otlp,
            bridges,
            cluster,
            tls,
            control,
            store,
            _lock: lock,
        })
    }

    /// Where it listens; the ports are the real ones even where 0 was configured.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// What is deployed on it.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The token of the control port.
    pub fn token(&self) -> &str {
        &self.control.token
    }

    /// Users, rules and certificates, to be changed while the node runs.
    pub fn access(&self) -> Arc<AccessControl> {
        self.access.clone()
    }

    /// The fingerprint of the certificate, if there is anything that speaks TLS.
    pub fn fingerprint(&self) -> Option<String> {
        self.tls.as_ref().map(|tls| tls.fingerprint())
    }

    /// Serves until `shutdown` fires, then drains: stops listening, lets what runs finish within the
    /// grace period, closes connections, writes everything to the disk.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), RunError> {
        let Listeners { http, mqtt, mqtts, control } = self.listeners;
        // In the order in which they end: listeners, then connections.
        let listening = CancellationToken::new();
        let connected = CancellationToken::new();
        let mut tasks = JoinSet::new();

        let (workers, gateway) = (self.workers.clone(), self.gateway.clone());
        let open = connected.clone();
        let slots = Arc::new(Semaphore::new(connection_slots(control::MAX_CONNECTIONS)));
        let websocket = self.websocket;
        let secure = self.tls.clone().filter(|_| self.addresses.http_tls);
        // One address does not take the places of all others, MQTT's included.
        let shares = Shares::new((connection_slots(control::MAX_CONNECTIONS) / 4).max(8));
        // Many devices may have one address: theirs are more, and leave the gateway its own.
        let mqtt_shares = Shares::new((connection_slots(control::MAX_CONNECTIONS) / 2).max(8));
        let places = Places::new(self.gateway_connections);
        tasks.spawn(accept(http, slots.clone(), shares, listening.clone(), move |stream, peer, slot| {
            workers.spawn_connection(on_this_runtime(stream, slot, {
                let (gateway, open) = (gateway.clone(), open.clone());
                let (secure, upgrading) = (secure.clone(), Upgrading::new(websocket.clone(), peer));
                let places = places.clone();
                move |stream| async move {
                    let _ = stream.set_nodelay(true);
                    let place = tokio::select! {
                        place = places.admit(peer.ip()) => place,
                        () = open.cancelled() => return,
                    };
                    let Ok(place) = place else {
                        // Boxed: few connections come here, and the others need no room for it.
                        Box::pin(http::refuse(&stream, secure.is_some())).await;
                        return;
                    };
                    let socket = GatewaySocket::new(stream);
                    let stream = socket.clone();
                    match secure {
                        None => http::serve(stream, socket, place, gateway, upgrading, open).await,
                        Some(tls) => {
                            let shaken = tokio::select! {
                                shaken = handshake(&tls, Service::Http, stream, peer, &open) => shaken,
                                () = place.given_up() => None,
                            };
                            if let Some(stream) = shaken {
                                http::serve(stream, socket, place, gateway, upgrading, open).await;
                            }
                        }
                    }
                }
            }));
        }));
        let (workers, broker) = (self.workers.clone(), self.broker.clone());
        let open = connected.clone();
        tasks.spawn(accept(
            mqtt,
            slots.clone(),
            mqtt_shares.clone(),
            listening.clone(),
            move |stream, peer, slot| {
                workers.spawn_connection(on_this_runtime(stream, slot, {
                    let (broker, open) = (broker.clone(), open.clone());
                    move |stream| async move {
                        let _ = stream.set_nodelay(true);
                        broker.serve_tcp(stream, Peer::tcp(peer), open).await;
                    }
                }));
            },
        ));
        if let (Some(mqtts), Some(tls)) = (mqtts, self.tls.clone()) {
            let (workers, broker) = (self.workers.clone(), self.broker.clone());
            let open = connected.clone();
            tasks.spawn(accept(
                mqtts,
                slots,
                mqtt_shares,
                listening.clone(),
                move |stream, address, slot| {
                    workers.spawn_connection(on_this_runtime(stream, slot, {
                        let (broker, tls, open) = (broker.clone(), tls.clone(), open.clone());
                        move |stream| async move {
                            let _ = stream.set_nodelay(true);
                            let shaken = handshake(&tls, Service::Mqtt, stream, address, &open).await;
                            let Some(stream) = shaken else { return };
                            let certificate = tls::client_certificate(&stream);
                            let peer = Peer { address, transport: Transport::Tls, certificate };
                            broker.serve(stream, peer, open).await;
                        }
                    }));
                },
            ));
        }
        let access = self.access.clone();
        let expiring = listening.clone();
        tasks.spawn(async move { access.end_expired(expiring).await });
        tasks.spawn(object_change::run(
            self.registry.clone(),
            self.store.objects().clone(),
            self.invoker.clone(),
            self.workers.clone(),
            listening.clone(),
        ));
        tasks.spawn(cron::run(
            self.registry.clone(),
            self.invoker.clone(),
            self.workers.clone(),
            self.platform.clock.clone(),
            listening.clone(),
        ));
        tasks.spawn(run_schedules(self.coordinator.clone(), listening.clone()));
        if let Some(collector) = self.otlp {
            tasks.spawn(trace_export::run(
                self.traces.clone(),
                self.http.clone(),
                collector,
                listening.clone(),
            ));
        }
        tasks.spawn(run_timers(self.coordinator.clone(), listening.clone()));
        let bridges = self.bridges;
        // They end with the clients' connections: what these still publish is to go out.
        for bridge in bridges.tasks(&connected) {
            self.workers.spawn_connection(bridge);
        }
        tasks.spawn(async move { bridges.forget_old().await });
        let (broker, open) = (self.broker.clone(), connected.clone());
        tasks.spawn(async move { broker.maintain(open).await });
        tasks.spawn(self.durable.clone().run(listening.clone()));
        tasks.spawn(pressure::watch(
            self.platform.memory.clone(),
            self.isolates,
            self.registry.clone(),
            self.max_programs,
            listening.clone(),
        ));
        let registry = self.registry.clone();
        let (warming, most) = (self.workers.clone(), self.max_programs);
        tasks.spawn(async move {
            let _ = warming.run(async move { registry.warm(most).await }).await;
        });
        let secure = self.tls.filter(|_| self.addresses.control_tls);
        let mut serving = JoinSet::new();
        serving.spawn(control::serve(control, secure, self.control, connected.clone(), CLOSE_GRACE));

        let committer = self.store.committer();
        let reason = tokio::select! {
            () = shutdown.cancelled() => None,
            reason = committer.failed() => Some(reason),
        };
        if let Some(reason) = reason {
            // Nothing can be finished in order, nor acknowledged.
            return Err(RunError::Store { reason });
        }

        listening.cancel();
        let drain = async {
            self.coordinator.settled(self.drain_grace / 2).await;
            if !self.drain.drain(self.drain_grace).await {
                let left = self.drain.count();
                tracing::warn!(left, grace = ?self.drain_grace, "invocations were cut off");
            }
            connected.cancel();
            // Clients that do not take their farewell are cut off.
            let _ = tokio::time::timeout(CLOSE_GRACE, self.workers.connections_ended()).await;
        };
        tokio::join!(drain, async { while serving.join_next().await.is_some() {} });
        self.cluster.stop().await;
        tasks.shutdown().await;
        let (workers, store) = (self.workers, self.store);
        let closed = tokio::task::spawn_blocking(move || {
            workers.stop();
            store.close()
        })
        .await;
        closed.map_err(RunError::Stop)?.map_err(RunError::Close)
    }
}

async fn listen(listener: &'static str, address: SocketAddr) -> Result<TcpListener, BuildError> {
    TcpListener::bind(address).await.map_err(|reason| BuildError::Listen { listener, address, reason })
}

/// Whoever can reach the broker from elsewhere must be able to prove who they are, or nobody needs to.
fn check_credentials(config: &NodeConfig, policy: &Policy) -> Result<(), ConfigError> {
    if policy.has_credentials() || config.access.allow_anonymous == Some(true) {
        if let Some((_, address, _)) = config.wide_mqtt().find(|(listener, ..)| *listener == "mqtt") {
            tracing::warn!("passwords and tokens cross mqtt = {address} as they are; mqtts encrypts them");
        }
        return Ok(());
    }
    match config.wide_mqtt().find(|(_, _, certified)| !certified) {
        Some((listener, address, _)) => Err(ConfigError::NoCredentials { listener, address }),
        None => Ok(()),
    }
}

/// TLS, if there is anything that speaks it.
fn open_tls(config: &NodeConfig) -> Result<Option<Arc<Tls>>, TlsError> {
    let addresses = config.tls_addresses();
    if addresses.is_empty() {
        return Ok(None);
    }
    let addresses = addresses.into_iter().map(|address| address.ip()).collect();
    Ok(Some(Arc::new(Tls::open(config.tls.clone(), &config.data_dir, addresses)?)))
}

/// The secrets that deployed apps name.
fn named_secrets(registry: &Registry) -> Vec<SecretName> {
    let routes = registry.routes();
    let named = routes.apps().flat_map(|app| {
        let of_functions = app.functions.iter().flat_map(|function| &function.spec.secrets);
        let of_workflows = app.workflows.iter().flat_map(|workflow| &workflow.program.secrets);
        let named = of_functions.chain(of_workflows);
        named.map(move |name| SecretName { app: Some(app.name.to_string()), name: name.clone() })
    });
    let mut named: Vec<SecretName> = named.collect();
    named.sort_unstable();
    named.dedup();
    named
}

/// The files whose content no other user may read: the node's own ones and the private keys that the configuration names.
fn files_with_keys(config: &NodeConfig) -> impl Iterator<Item = PathBuf> {
    let own = [control::TOKEN_FILE, HTTP_TOKEN_FILE, tls::KEY_FILE, CACHE_KEY_FILE];
    let own = own.map(|name| config.data_dir.join(name));
    let of_bridges =
        config.bridges.iter().flat_map(|bridge| [bridge.key.clone(), bridge.password_file.clone()]);
    let of_tokens = config.access.jwt.as_ref().and_then(|jwt| jwt.secret.clone());
    own.into_iter()
        .chain(ClusterFiles::new(&config.data_dir).keys())
        .chain(config.tls.key.clone())
        .chain(of_tokens)
        .chain(of_bridges.flatten())
}

/// Compiled code has one in so many bytes of its file system, and leaves twice as much free, or less.
const CACHE_SHARE: u64 = 4;
const MAX_CACHE_RESERVE_BYTES: u64 = 256 << 20;

/// The folder for compiled code and the key that says it was compiled here.
fn code_cache(config: &NodeConfig) -> Result<CacheFolder, BuildError> {
    let path = config.cache_dir.clone().unwrap_or_else(|| config.data_dir.join("cache"));
    let failed = |reason| BuildError::Cache { path: path.clone(), reason };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
    let disk = rustix::fs::statvfs(&path).map_err(|error| failed(error.into()))?;
    let total_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
    let max_bytes = config.isolates.code_cache.as_u64().min(total_bytes / CACHE_SHARE);
    let reserve_bytes = (total_bytes / CACHE_SHARE * 2).min(MAX_CACHE_RESERVE_BYTES);
    // What is in it can be made again; the store may need the room for its start.
    if disk.f_bavail.saturating_mul(disk.f_frsize) < reserve_bytes / 2 {
        tracing::warn!(path = %path.display(), "compiled code makes way: the disk is almost full");
        for entry in std::fs::read_dir(&path).map_err(failed)?.flatten() {
            // One that stays does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    // Beside the store and not in the cache, which may lie where others write.
    let file = config.data_dir.join(CACHE_KEY_FILE);
    if let Some(key) = std::fs::read(&file).ok().and_then(|key| key.try_into().ok()) {
        return Ok(CacheFolder { path, key, max_bytes, reserve_bytes });
    }
    // Without its old key the cache is worth nothing, and is made anew.
    let key: [u8; 32] = rand::random();
    let mut open = std::fs::OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o600);
    std::io::Write::write_all(&mut open.open(&file).map_err(failed)?, &key).map_err(failed)?;
    Ok(CacheFolder { path, key, max_bytes, reserve_bytes })
}
