//! The composition root: creates all parts of a node, and stops them in order.

mod background;
mod cache_folder;
mod error;
mod serving;
mod startup_checks;

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_broker::{Broker, Hooks};
use edgefaas_coordinator::{Coordinator, CoordinatorParts};
use edgefaas_functions::drain::Drain;
use edgefaas_functions::durable::{DurableParts, DurableQueue};
use edgefaas_functions::invoker::{Invoker, InvokerParts, WorkflowRunner};
use edgefaas_functions::logs::Logs;
use edgefaas_functions::metrics::FunctionFamilies;
use edgefaas_functions::outgoing::HttpClient;
use edgefaas_functions::publisher::Publisher;
use edgefaas_functions::registry::{Registry, SharedInterests};
use edgefaas_functions::secrets::Secrets;
use edgefaas_functions::trace::Traces;
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::{Isolates, IsolatesConfig};
use edgefaas_platform::{ClockControl, private_files};
use edgefaas_rollout::{Firings, Rollout, RolloutParts};
use edgefaas_state::objects::Recoveries;
use edgefaas_state::store::{BrokerStorage, DirLock, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use self::cache_folder::CACHE_KEY_FILE;
use self::cache_folder::cache_folder;
pub use self::error::{BuildError, RunError};
use self::serving::Stages;
use self::startup_checks::{check_credentials, files_with_keys};
use crate::access::{Access, AccessControl, AccessHook, Policy};
use crate::advance::{Advance, Watched};
use crate::bridge::{Bridges, LoopPreventionHook};
use crate::cluster::{Cluster, LoadSources, PolicyPlacer, artefacts, begin_policy, calls};
use crate::config::{ConfigError, NodeConfig};
use crate::control::{self, ClusterCommands, ControlParts, NodeFacts};
use crate::gateway::Gateway;
use crate::gateway::auth::GatewayAuth;
use crate::gateway::reply_budget::ReplyBudget;
use crate::gateway::request_body::BodyBudget;
use crate::gateway::websocket::WebSocketGateway;
use crate::health::Health;
use crate::history::History;
use crate::listeners::{Addresses, Listeners};
use crate::metrics::Metrics;
use crate::platform::Platform;
use crate::settings::{
    broker_config, cluster_options, function_memory_limits, keep_limits, log_limits, log_plan,
    max_message_bytes, step_durability, store_options, trace_limits,
};
use crate::settings_list::SettingsList;
use crate::tls::{ClientCertificates, Tls};
use crate::trace_export::config::Collector;
use edgefaas_cluster::calls::CallLimits;
use edgefaas_functions::remote::{Elsewhere, Executor, ExecutorParts, RememberLimits, Remembered};
use edgefaas_triggers::mqtt::{Targets, TriggerHook};

/// Maximum time for connections to end, after the running invocations.
const CLOSE_GRACE: Duration = Duration::from_secs(3);
/// Time that the export of the last spans, and the storing of the last samples, have when the node stops.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// A node whose sockets listen and that is ready to run.
pub struct Node {
    listeners: Listeners,
    parts: Parts,
    // Released last.
    _lock: DirLock,
}

/// The parts of a running node.
struct Parts {
    addresses: Addresses,
    drain_grace: Duration,
    /// See [`config::IsolatesSection::programs`](crate::config::IsolatesSection::programs).
    max_programs: usize,
    isolates: Arc<Isolates>,
    platform: Platform,
    workers: Arc<Workers>,
    invoker: Arc<Invoker>,
    durable: Arc<DurableQueue>,
    coordinator: Arc<Coordinator>,
    // The broker's hook has a weak reference.
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
    /// See [`config::TracesSection::otlp`](crate::config::TracesSection::otlp).
    otlp: Option<Collector>,
    bridges: Arc<Bridges>,
    cluster: Arc<Cluster>,
    placer: Arc<PolicyPlacer>,
    executor: Arc<Executor>,
    rollout: Arc<Rollout>,
    tls: Option<Arc<Tls>>,
    control: Arc<ControlParts>,
    store: Arc<Store>,
}

/// A future that this crate compiles, and not its user.
type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Node {
    /// Creates a node: locks the data directory, binds the listeners, opens the store and restores deployed apps. No
    /// connection is accepted before [`run`](Self::run).
    ///
    /// # Errors
    /// The first part that cannot be created.
    // Boxed: the crate that polls a future compiles it, and that would be the binary.
    pub fn build(config: NodeConfig, platform: Platform) -> Boxed<Result<Self, BuildError>> {
        Box::pin(Self::assemble(config, platform))
    }

    async fn assemble(config: NodeConfig, platform: Platform) -> Result<Self, BuildError> {
        let started = Instant::now();
        config.check()?;
        let lock = DirLock::take(&config.data_dir)?;
        private_files::check(files_with_keys(&config))?;
        let policy = Policy::load(&config.access, &config.data_dir)?;
        check_credentials(&config, &policy)?;
        let listeners = Listeners::bind(&config).await?;
        let addresses = listeners.addresses(&config);
        let token = control::admin_token(&config.data_dir)?;
        let tls = Tls::open_for(&config)?.map(Arc::new);

        let clock = platform.clock.clone();
        let plan = Arc::new(config.memory_plan(platform.memory.limit()));
        log_plan(&plan);
        let code_cache = cache_folder(&config)?;
        let store = Arc::new(Store::open(&store_options(&config, &plan), clock.clone())?);
        let pool = config.isolates.pool(&platform.machine, &plan);
        let isolates = Arc::new(Isolates::new(&IsolatesConfig {
            pool,
            compiler: platform.compiler.clone(),
            code_cache: Some(code_cache),
            clock: clock.clone(),
        })?);
        let logs = Arc::new(Logs::new(clock.clone(), log_limits(&config)));
        let function_metrics = Arc::new(FunctionFamilies::default());
        let metrics = Arc::new(Metrics::new(&function_metrics));
        let history = Arc::new(History::open(store.clone(), clock.clone())?);
        let secrets = Arc::new(Secrets::open(store.clone())?);
        let registry = Arc::new(Registry::open(
            store.clone(),
            isolates.clone(),
            logs.clone(),
            function_metrics,
            clock.clone(),
            function_memory_limits(&plan, pool.max_memory_bytes),
            platform.dry_run.clone(),
        )?);
        secrets.assign(&registry.named_secrets()).await;
        let workers = Arc::new(Workers::start(config.worker_count()).map_err(BuildError::Workers)?);
        let coordination = Arc::new(TriggerHook::new(workers.clone()));
        let access = Arc::new(Access::new(policy, clock.clone()));
        let access_hook = Arc::new(AccessHook(access.clone()));
        // A client without publish permission cannot trigger a function: access comes first.
        let via = Arc::new(LoopPreventionHook::new(&store.node_id(), &config.broker.bridge_clients));
        let hooks = Hooks {
            publish: vec![access_hook.clone(), via, coordination.clone()],
            session: vec![access_hook],
        };
        let storage = Arc::new(BrokerStorage::new(store.clone()));
        let broker = Broker::open(broker_config(&config, &plan, clock.clone()), hooks, storage.clone())
            .map_err(BuildError::Broker)?;
        let collector = config.traces.collector().map_err(ConfigError::from)?;
        let traces = Arc::new(Traces::new(trace_limits(&config), collector.is_some()));
        let recoveries = Arc::<Recoveries>::default();
        let drain = Arc::<Drain>::default();
        let firings = Arc::<Firings>::default();
        let cluster = Arc::new(Cluster::new(
            cluster_options(&config),
            store.clone(),
            LoadSources {
                isolates: isolates.clone(),
                registry: registry.clone(),
                drain: drain.clone(),
                firings: firings.clone(),
            },
            recoveries.clone(),
            clock.clone(),
        ));
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
        let durable = Arc::new(DurableQueue::open(durable, keep_limits(&config, &plan))?);
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
            durability: step_durability(&config),
            node_id: store.node_id(),
        }));
        let placer = Arc::new(PolicyPlacer::new(cluster.clone(), registry.clone()));
        let remote_calls = calls(&cluster, CallLimits::default());
        placer.set_calls(remote_calls.clone());
        invoker.set_elsewhere(Elsewhere { placer: placer.clone(), calls: remote_calls });
        let auth = GatewayAuth::new(&token, &config.data_dir, access.clone(), addresses.http)?;
        let auth = Arc::new(auth);
        let hiding = auth.clone();
        let executor = Arc::new(Executor::new(ExecutorParts {
            invoker: invoker.clone(),
            registry: registry.clone(),
            publisher: publisher.clone(),
            store: store.clone(),
            traces: traces.clone(),
            workers: workers.clone(),
            clock: platform.clock.clone(),
            remembered: Arc::new(Remembered::open(store.clone(), RememberLimits::default())?),
            placer: placer.clone(),
            remove_credentials: Arc::new(move |headers| hiding.remove_credentials(headers)),
        }));
        let workflows: Arc<dyn WorkflowRunner> = coordinator.clone();
        invoker.set_workflow_runner(Arc::downgrade(&workflows));
        let targets = Arc::new(Targets {
            registry: registry.clone(),
            invoker: invoker.clone(),
            durable: durable.clone(),
            coordinator: coordinator.clone(),
            publisher,
            drain: drain.clone(),
        });
        coordination.attach(&targets);
        let gateway = Arc::new(Gateway {
            auth,
            registry: registry.clone(),
            invoker: invoker.clone(),
            durable: durable.clone(),
            coordinator: coordinator.clone(),
            bodies: BodyBudget::new(plan.body_bytes as usize),
            replies: ReplyBudget::new(plan.reply_bytes as usize),
            cors: config.gateway.cors.clone(),
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
        let access = Arc::new(AccessControl::new(
            access,
            tls.clone(),
            broker.clone(),
            config.access.clone(),
            config.data_dir.clone(),
            addresses.control_tls.then_some(addresses.control),
        ));
        let artefacts = artefacts(
            &cluster,
            registry.clone(),
            store.clone(),
            &config.data_dir,
            config.cluster.artefact_rate.map(|rate| rate.as_u64()),
        );
        let rollout = Arc::new(Rollout::new(RolloutParts {
            registry: registry.clone(),
            store: store.clone(),
            secrets: secrets.clone(),
            members: cluster.members(),
            firings,
            artefacts: artefacts.clone(),
        }));
        registry.set_fires_here(rollout.fires_here());
        let apps = ClusterCommands {
            rollout: rollout.clone(),
            registry: registry.clone(),
            secrets: secrets.clone(),
            store: store.clone(),
            placer: placer.clone(),
            cluster: cluster.clone(),
        };
        let control = Arc::new(ControlParts {
            apps,
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
            artefacts,
            health: Arc::new(Health {
                drain: drain.clone(),
                store: store.clone(),
                workers: workers.clone(),
            }),
            history,
            memory: platform.memory.clone(),
            facts: NodeFacts {
                node_id: store.node_id(),
                data_dir: config.data_dir.display().to_string(),
                addresses,
                started,
                pool,
                machine: platform.machine,
                plan,
                settings: Arc::new(SettingsList::of(&config)),
            },
            #[cfg(feature = "dashboard")]
            dashboard: config.dashboard.clone(),
            token,
        });
        cluster.start().await?;
        begin_policy(&store, &placer, &cluster);
        // It places the steps of instances at once.
        coordinator.recover_all()?;
        let parts = Parts {
            addresses,
            drain_grace: config.drain_grace,
            max_programs: config.isolates.programs,
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
            otlp: collector,
            bridges,
            cluster,
            placer,
            executor,
            rollout,
            tls,
            control,
            store,
        };
        Ok(Self { listeners, parts, _lock: lock })
    }

    /// Listen addresses. A configured port 0 is replaced by the real port.
    pub fn addresses(&self) -> Addresses {
        self.parts.addresses
    }

    /// The MQTT broker.
    pub fn broker(&self) -> &Broker {
        &self.parts.broker
    }

    /// Advances the time of the node by the control of its clock, which [`Platform::clock`] is of. Call it in the runtime that
    /// [runs](Self::run) the node.
    pub fn advance(&self, control: ClockControl) -> Advance {
        let Parts { registry, invoker, durable, coordinator, workers, store, .. } = &self.parts;
        Advance::new(
            control,
            Watched {
                registry: registry.clone(),
                invoker: invoker.clone(),
                durable: durable.clone(),
                coordinator: coordinator.clone(),
                workers: workers.clone(),
                store: store.clone(),
                runtime: tokio::runtime::Handle::current(),
            },
        )
    }

    /// Deployed apps.
    pub fn registry(&self) -> &Registry {
        &self.parts.registry
    }

    /// The admin token, for the control port.
    pub fn token(&self) -> &str {
        &self.parts.control.token
    }

    /// Changes of users, rules and certificates while the node runs.
    pub fn access(&self) -> Arc<AccessControl> {
        self.parts.access.clone()
    }

    /// Health of the node while it runs.
    pub fn health(&self) -> Arc<Health> {
        self.parts.control.health.clone()
    }

    /// Maximum time of the [drain](Self::run), without the last writes to the disk.
    pub fn drain_time(&self) -> Duration {
        self.parts.drain_grace / 2 + self.parts.drain_grace + CLOSE_GRACE + LAST_GRACE
    }

    /// The fingerprint of the server's certificate, if a listener speaks TLS.
    pub fn fingerprint(&self) -> Option<String> {
        self.parts.tls.as_ref().map(|tls| tls.fingerprint())
    }

    /// Serves until `shutdown` fires, then drains: closes the listeners, waits for running invocations within the grace period, closes
    /// connections, writes everything to the disk.
    pub fn run(self, shutdown: CancellationToken) -> Boxed<Result<(), RunError>> {
        Box::pin(self.serve(shutdown))
    }

    async fn serve(self, shutdown: CancellationToken) -> Result<(), RunError> {
        // Dropped last.
        let Self { _lock, listeners, parts } = self;
        let stages = Stages::default();
        let mut tasks = JoinSet::new();
        let mut control = JoinSet::new();
        parts.serve_clients(&mut tasks, &stages, listeners.clients);
        parts.spawn_background(&mut tasks, &stages);
        control.spawn(parts.serve_control(listeners.control, &stages));
        let failed = tokio::select! {
            () = shutdown.cancelled() => None,
            reason = parts.store.committer().failed() => Some(reason),
        };
        if let Some(reason) = failed {
            // Without the store no invocation can be committed and no message acknowledged, so the node does not drain.
            return Err(RunError::Store { reason });
        }
        tokio::join!(parts.drain(&stages), async { while control.join_next().await.is_some() {} });
        parts.cluster.stop().await;
        tasks.shutdown().await;
        let Parts { workers, store, .. } = parts;
        let closed = tokio::task::spawn_blocking(move || {
            workers.stop();
            store.close()
        })
        .await;
        closed.map_err(RunError::Stop)?.map_err(RunError::Close)
    }
}

impl Parts {
    /// Closes the listeners, waits for running invocations, then closes the connections.
    async fn drain(&self, stages: &Stages) {
        stages.listening.cancel();
        self.coordinator.settled(self.drain_grace / 2).await;
        if !self.drain.drain(self.drain_grace).await {
            let left = self.drain.count();
            tracing::warn!(left, grace = ?self.drain_grace, "invocations were cut off");
        }
        stages.connected.cancel();
        // Connections that are still open then are cut off.
        stages.calls.close();
        let ended = async { tokio::join!(self.workers.connections_ended(), stages.calls.wait()) };
        let _ = tokio::time::timeout(CLOSE_GRACE, ended).await;
        stages.settled.cancel();
        stages.last.close();
        let _ = tokio::time::timeout(LAST_GRACE, stages.last.wait()).await;
    }
}
