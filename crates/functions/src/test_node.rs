//! A node without ports, from the store to the durable queue, for unit tests.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use edgefaas_broker::{Broker, BrokerConfig, Entry, Hooks, Space, Storage, StorageError, Wal};
use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::{Compiler, Isolates, IsolatesConfig};
use edgefaas_platform::Clock;
use edgefaas_state::objects::Recoveries;
use edgefaas_state::store::{BrokerStorage, Store, StoreOptions};

use crate::drain::Drain;
use crate::durable::{DurableParts, DurableQueue, KeepLimits};
use crate::invoker::{Invoker, InvokerParts};
use crate::logs::{Logs, RingLimits};
use crate::metrics::FunctionFamilies;
use crate::outgoing::HttpClient;
use crate::publisher::Publisher;
use crate::registry::{FunctionMemoryLimits, Registry, SharedInterests};
use crate::secrets::Secrets;
use crate::trace::{TraceLimits, Traces};
use crate::workers::Workers;

/// The broker's storage. While it is paused, it does not write the write-ahead log, as on a slow disk.
pub(crate) struct PausableStorage {
    storage: BrokerStorage,
    pub is_paused: AtomicBool,
}

impl Storage for PausableStorage {
    fn scan(&self, space: Space, from: &[u8], limit: usize) -> Result<Vec<Entry>, StorageError> {
        self.storage.scan(space, from, limit)
    }

    fn wake(&self, wal: &Arc<Wal>) {
        if !self.is_paused.load(SeqCst) {
            self.storage.wake(wal);
        }
    }
}

/// The parts that tests use.
pub(crate) struct TestNode {
    pub store: Arc<Store>,
    pub registry: Arc<Registry>,
    pub publisher: Arc<Publisher>,
    pub workers: Arc<Workers>,
    pub broker: Broker,
    pub invoker: Arc<Invoker>,
    pub durable: Arc<DurableQueue>,
    pub storage: Arc<PausableStorage>,
}

impl TestNode {
    /// Opens the data directory.
    pub fn open(data_dir: &Path, clock: Clock, hooks: Hooks, keep: KeepLimits) -> Self {
        let store = Arc::new(Store::open(&StoreOptions::small(data_dir), clock.clone()).unwrap());
        let pool = PoolConfig { max_isolates: 1, max_memory_bytes: 1 << 20, ..PoolConfig::default() };
        let isolates =
            IsolatesConfig { pool, compiler: Compiler::InProcess, code_cache: None, clock: clock.clone() };
        let isolates = Arc::new(Isolates::new(&isolates).unwrap());
        let logs = Arc::new(Logs::new(clock.clone(), RingLimits { lines: 100, bytes: 10_000 }));
        let registry = Registry::open(
            store.clone(),
            isolates.clone(),
            logs.clone(),
            Arc::new(FunctionFamilies::default()),
            clock.clone(),
            FunctionMemoryLimits { max_bytes: 1 << 20, largest_bytes: 1 << 20 },
            None,
        );
        let registry = Arc::new(registry.unwrap());
        let workers = Arc::new(Workers::start(1).unwrap());
        let storage = Arc::new(PausableStorage {
            storage: BrokerStorage::new(store.clone()),
            is_paused: AtomicBool::new(false),
        });
        let broker = Broker::open(BrokerConfig::default(), hooks, storage.clone()).unwrap();
        let publisher = Publisher::open(broker.clone(), store.clone(), logs.clone(), 1 << 20).unwrap();
        let (publisher, drain) = (Arc::new(publisher), Arc::<Drain>::default());
        let invoker = Arc::new(Invoker::new(InvokerParts {
            registry: registry.clone(),
            isolates,
            store: store.clone(),
            logs: logs.clone(),
            secrets: Arc::new(Secrets::open(store.clone()).unwrap()),
            traces: Arc::new(Traces::new(TraceLimits { spans: 0, per_second: 0 }, false)),
            recoveries: Arc::<Recoveries>::default(),
            interests: Arc::<SharedInterests>::default(),
            clock: clock.clone(),
            broker: broker.clone(),
            publisher: publisher.clone(),
            http: Arc::new(HttpClient::new(1 << 20)),
            drain: drain.clone(),
            event_bytes: 1 << 20,
            effect_bytes: 1 << 20,
        }));
        let parts = DurableParts {
            invoker: invoker.clone(),
            publisher: publisher.clone(),
            registry: registry.clone(),
            broker: broker.clone(),
            store: store.clone(),
            logs,
            workers: workers.clone(),
            drain,
            clock,
        };
        let durable = Arc::new(DurableQueue::open(parts, keep).unwrap());
        Self { store, registry, publisher, workers, broker, invoker, durable, storage }
    }
}
