//! What the control port shows and steers.

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
use edgefaas_state::store::Store;

use crate::access::AccessControl;
use crate::bridge::Bridges;
use crate::cluster::Cluster;
use crate::listeners::Addresses;
use crate::memory_plan::MemoryPlan;
use crate::metrics::{Metrics, NodeReading};

/// What the control port shows and steers.
pub struct ControlParts {
    /// Users, rules and certificates.
    pub access: Arc<AccessControl>,
    /// Runs functions.
    pub invoker: Arc<Invoker>,
    /// Durable invocations.
    pub durable: Arc<DurableQueue>,
    /// Runs workflows.
    pub coordinator: Arc<Coordinator>,
    /// The store, with the objects.
    pub store: Arc<Store>,
    /// Where functions run.
    pub isolates: Arc<Isolates>,
    /// Spans of invocations and workflows.
    pub traces: Arc<Traces>,
    /// Says whether the node stops.
    pub drain: Arc<Drain>,
    /// Holds functions.
    pub registry: Arc<Registry>,
    /// Where functions run.
    pub workers: Arc<Workers>,
    /// What they logged.
    pub logs: Arc<Logs>,
    /// What they may be told.
    pub secrets: Arc<Secrets>,
    /// The figures.
    pub metrics: Arc<Metrics>,
    /// The broker.
    pub broker: Broker,
    /// The cluster, if the node is in one.
    pub cluster: Arc<Cluster>,
    /// To other brokers.
    pub bridges: Arc<Bridges>,
    /// The memory that the process may use.
    pub memory: ProcessMemory,
    /// The node's facts.
    pub facts: NodeFacts,
    /// The token that every call needs.
    pub token: String,
}

/// What does not change while a node runs.
#[derive(Debug, Clone)]
pub struct NodeFacts {
    /// The node's id.
    pub node_id: String,
    /// Where it keeps everything.
    pub data_dir: String,
    /// Where it listens.
    pub addresses: Addresses,
    /// When it started.
    pub started: Instant,
    /// The pool of isolates.
    pub pool: PoolConfig,
    /// What it was sized to.
    pub machine: Machine,
    /// How its memory is shared out.
    pub plan: Arc<MemoryPlan>,
}

impl ControlParts {
    /// The node's figures of now.
    pub(super) fn reading(&self) -> NodeReading {
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
        }
    }
}

/// Resident memory of this process, in bytes; 0 where the system does not say.
pub fn rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
