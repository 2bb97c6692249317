//! Dependencies of the control port: parts and facts of the node that it reads and changes.

use std::sync::Arc;
use std::time::Instant;

use edgefaas_broker::Broker;
use edgefaas_coordinator::Coordinator;
use edgefaas_functions::drain::Drain;
use edgefaas_functions::durable::DurableQueue;
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::logs::Logs;
use edgefaas_functions::registry::Registry;
use edgefaas_functions::secrets::Secrets;
use edgefaas_functions::trace::Traces;
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::{Isolates, Machine, ProcessMemory};
use edgefaas_rollout::transfer::Artefacts;
use edgefaas_state::store::Store;

use super::rollouts::ClusterCommands;
use crate::access::AccessControl;
use crate::bridge::Bridges;
use crate::cluster::Cluster;
#[cfg(feature = "dashboard")]
use crate::config::DashboardSection;
use crate::health::Health;
use crate::history::History;
use crate::listeners::Addresses;
use crate::memory_plan::MemoryPlan;
use crate::metrics::{Metrics, NodeReading};
use crate::settings_list::SettingsList;

/// Parts of the node that the control port reads and changes.
pub struct ControlParts {
    /// Apps and secrets of the cluster.
    pub apps: ClusterCommands,
    /// Users, rules and certificates.
    pub access: Arc<AccessControl>,
    /// Invocations of functions.
    pub invoker: Arc<Invoker>,
    /// Durable invocations.
    pub durable: Arc<DurableQueue>,
    /// Workflow instances.
    pub coordinator: Arc<Coordinator>,
    /// The store, with the objects.
    pub store: Arc<Store>,
    /// The pool of isolates.
    pub isolates: Arc<Isolates>,
    /// Spans of invocations and workflows.
    pub traces: Arc<Traces>,
    /// State of the node's shutdown.
    pub drain: Arc<Drain>,
    /// Deployed functions.
    pub registry: Arc<Registry>,
    /// The worker threads.
    pub workers: Arc<Workers>,
    /// Logs of functions.
    pub logs: Arc<Logs>,
    /// Secrets of functions.
    pub secrets: Arc<Secrets>,
    /// The node's metrics.
    pub metrics: Arc<Metrics>,
    /// The broker.
    pub broker: Broker,
    /// The cluster membership.
    pub cluster: Arc<Cluster>,
    /// Parts of revisions from and to members.
    pub artefacts: Artefacts,
    /// Bridges to other brokers.
    pub bridges: Arc<Bridges>,
    /// Health of the node.
    pub health: Arc<Health>,
    /// Samples, events and warnings.
    pub history: Arc<History>,
    /// Memory of the process.
    pub memory: ProcessMemory,
    /// The node's facts.
    pub facts: NodeFacts,
    /// Settings of the dashboard.
    #[cfg(feature = "dashboard")]
    pub dashboard: DashboardSection,
    /// The token that every call requires.
    pub token: String,
}

/// Facts that do not change while the node runs.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node's id.
    pub node_id: String,
    /// The data directory.
    pub data_dir: String,
    /// Listen addresses.
    pub addresses: Addresses,
    /// Time of the start.
    pub started: Instant,
    /// The pool of isolates.
    pub pool: PoolConfig,
    /// The machine that the pool is sized for.
    pub machine: Machine,
    /// The memory plan.
    pub plan: Arc<MemoryPlan>,
    /// The settings in force.
    pub settings: Arc<SettingsList>,
}

impl ControlParts {
    /// Current figures of the node.
    pub(crate) fn reading(&self) -> NodeReading {
        NodeReading {
            uptime: self.facts.started.elapsed(),
            rss_bytes: rss_bytes(),
            memory_limit_bytes: self.facts.plan.limit.bytes,
            guests: self.isolates.memory().reading(),
            isolates_running: self.isolates.running(),
            functions: self.registry.routes().functions().count(),
            broker: self.broker.stats(),
            store: self.store.committer().reading(),
            space: self.store.committer().space(),
            durable: self.durable.reading(),
            workflows: self.coordinator.reading(),
            bridges: self.bridges.status(),
            objects: self.store.objects().reading(),
            cluster: self.cluster.reading(),
            artefacts: self.artefacts.traffic(),
        }
    }
}

/// Resident memory of this process, in bytes; 0 if the system does not report it.
pub fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
