use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{
    Broker, BrokerConfig, Entry, Hooks, Journal, PublishHook, Publishing, Space, Storage, StorageError,
    Verdict,
};
use edgefaas_crdt::Operation;
use edgefaas_isolates::{Isolates, IsolatesConfig};
use edgefaas_platform::Budget;
use edgefaas_state::objects::{FieldKey, Recoveries};
use edgefaas_state::store::{BrokerStorage, Store, StoreOptions};
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::config::NodeConfig;
use crate::dispatch::{DispatcherParts, Workers};
use crate::journal::{InvocationJournal, KeepLimits};
use crate::logs::{Logs, RingLimits};
use crate::metrics::Metrics;
use crate::platform::Platform;
use crate::registry::{FunctionMemoryLimits, Registry};
use crate::secrets::Secrets;
use crate::trace::{TraceLimits, Traces};
use crate::workflow::{Coordinator, WorkflowLimits};

/// The node's store, which learns of what the broker has to store only once it is released: a disk that takes long.
struct HeldBack {
    storage: BrokerStorage,
    is_held: AtomicBool,
}

impl Storage for HeldBack {
    fn scan(&self, space: Space, from: &[u8], limit: usize) -> Result<Vec<Entry>, StorageError> {
        self.storage.scan(space, from, limit)
    }

    fn wake(&self, journal: &Arc<Journal>) {
        if !self.is_held.load(SeqCst) {
            self.storage.wake(journal);
        }
    }
}

/// Records every message, as a durable trigger that comes between the question and the message.
struct Records;

impl PublishHook for Records {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        publishing.record(b"x-a-record".to_vec(), Some(b"value".to_vec()));
        Verdict::Forward
    }
}

struct Parts {
    dispatcher: Arc<Dispatcher>,
    storage: Arc<HeldBack>,
}

impl Parts {
    fn open(data_dir: &std::path::Path, hooks: Hooks, is_held: bool) -> Self {
        let Platform { clock, compiler, machine, memory, dry_run } = Platform::system();
        let config = NodeConfig::default();
        let plan = Arc::new(config.memory_plan(memory.limit()));
        let store = Arc::new(Store::open(&StoreOptions::small(data_dir), clock.clone()).unwrap());
        let mut isolates = config.isolates;
        isolates.max = Some(1);
        let pool = isolates.pool(&machine, &plan);
        let isolates =
            Arc::new(Isolates::new(&IsolatesConfig { pool, compiler, code_cache: None }).unwrap());
        let logs = Arc::new(Logs::new(clock.clone(), RingLimits { lines: 100, bytes: 10_000 }));
        let registry = Registry::open(
            store.clone(),
            isolates.clone(),
            logs.clone(),
            Arc::new(Metrics::default()),
            clock.clone(),
            FunctionMemoryLimits { max_bytes: 1 << 20, largest_bytes: 1 << 20 },
            dry_run,
        );
        let workers = Arc::new(Workers::start(1).unwrap());
        let keep =
            KeepLimits { time: Duration::from_secs(60), count: 10, bytes: 10_000, memory_bytes: 10_000 };
        let limits = WorkflowLimits::within(1 << 20);
        let coordinator =
            Coordinator::new(workers.clone(), clock.clone(), limits, Durability::Written, "node");
        let is_held = AtomicBool::new(is_held);
        let storage = Arc::new(HeldBack { storage: BrokerStorage::new(store.clone()), is_held });
        let dispatcher = Arc::new(Dispatcher::new(DispatcherParts {
            registry: Arc::new(registry.unwrap()),
            isolates,
            logs,
            secrets: Arc::new(Secrets::open(store.clone()).unwrap()),
            journal: Arc::new(
                InvocationJournal::open(store.clone(), workers, clock.clone(), keep).unwrap(),
            ),
            coordinator: Arc::new(coordinator),
            traces: Arc::new(Traces::new(TraceLimits { spans: 0, per_second: 0 }, false)),
            recoveries: Arc::<Recoveries>::default(),
            clock,
            broker: Broker::open(BrokerConfig::default(), hooks, storage.clone()).unwrap(),
            max_message_bytes: 1 << 20,
            plan,
            store,
        }));
        Self { dispatcher, storage }
    }

    fn release(&self) {
        self.storage.is_held.store(false, SeqCst);
        self.storage.wake(self.dispatcher.broker().journal());
    }

    fn value(&self) -> i64 {
        let read = self.dispatcher.store().objects().read(&key(), |field| {
            field.and_then(|field| field.counter("n").ok()).map_or(0, |counter| counter.value())
        });
        read.unwrap()
    }
}

fn key() -> FieldKey {
    FieldKey::new("app", "object", "n")
}

fn message(retain: bool) -> Message {
    let topic = TopicName::new("out").unwrap();
    Message::new(topic, "x").with_qos(QoS::AtLeastOnce).with_retain(retain)
}

/// What `kill -9` leaves: the files as they are now.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, to) = (entry.unwrap(), to);
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[tokio::test]
async fn changes_and_messages_are_on_the_disk_together_when_the_call_is_answered() {
    let (dir, after_kill) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let node = Parts::open(dir.path(), Hooks::default(), true);
    let mut effects = Effects::of(0, &Budget::new(1 << 20));
    effects.operate(node.dispatcher.store().objects(), key(), Operation::CounterAdd(1), 0).unwrap();
    effects.publish(message(true)).unwrap();
    node.dispatcher.commit_effects(&"f".into(), effects, 0).await.unwrap();
    // The broker has written nothing yet.
    copy(dir.path(), after_kill.path());
    let again = Parts::open(after_kill.path(), Hooks::default(), false);
    assert_eq!(again.value(), 1);
    let cancel = CancellationToken::new();
    let running = tokio::spawn(again.dispatcher.clone().run_journal(cancel.clone()));
    let published = async {
        while again.dispatcher.broker().stats().retained == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), published).await.expect("the message is published");
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_message_is_published_once_when_the_broker_has_written_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = Parts::open(dir.path(), Hooks::default(), false);
    let mut effects = Effects::of(0, &Budget::new(1 << 20));
    effects.publish(message(true)).unwrap();
    node.dispatcher.commit_effects(&"f".into(), effects, 0).await.unwrap();
    let broker = node.dispatcher.broker();
    // Everything before it is stored with it.
    let ticket = broker.record(vec![crate::journal::forget_outgoing(u64::MAX)]).unwrap();
    broker.durable(ticket).await.unwrap();
    let left = node.dispatcher.store().spaces().invocations.iter().count();
    assert_eq!((left, broker.stats().retained), (0, 1));
}

#[tokio::test]
async fn an_answer_waits_for_what_the_broker_keeps_unforeseen() {
    let dir = tempfile::tempdir().unwrap();
    let hooks = Hooks { publish: vec![Arc::new(Records)], ..Hooks::default() };
    let node = Parts::open(dir.path(), hooks, true);
    let source = "f".into();
    let mut effects = Effects::of(0, &Budget::new(1 << 20));
    effects.publish(message(false)).unwrap();
    let mut committed = Box::pin(node.dispatcher.commit_effects(&source, effects, 0));
    assert_eq!((&mut committed).now_or_never(), None, "nothing is written yet");
    node.release();
    committed.await.unwrap();

    // What nobody waits for is not waited for.
    node.storage.is_held.store(true, SeqCst);
    let mut effects = Effects::of(0, &Budget::new(1 << 20));
    effects.publish(message(false).with_qos(QoS::AtMostOnce)).unwrap();
    let committed = node.dispatcher.commit_effects(&source, effects, 0).now_or_never();
    assert_eq!(committed, Some(Ok(())));
}
