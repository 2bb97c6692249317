use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Hooks, PublishHook, Publishing, Storage, Verdict};
use edgefaas_crdt::Operation;
use edgefaas_platform::{Budget, Clock};
use edgefaas_state::objects::FieldKey;
use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::durable::{KeepLimits, Retention};
use crate::test_node::TestNode;

/// Stores a record with every message, like a durable trigger that was added after [`Invoker::is_stored`].
struct RecordingHook;

impl PublishHook for RecordingHook {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        publishing.record(b"x-a-record".to_vec(), Some(b"value".to_vec()));
        Verdict::Forward
    }
}

const LISTED: Retention = Retention { time: Duration::from_secs(60), count: 10, bytes: 10_000 };
const KEEP: KeepLimits = KeepLimits {
    time: Duration::from_secs(60),
    count: 10,
    bytes: 10_000,
    memory_bytes: 10_000,
    listed: LISTED,
    dead: LISTED,
};

fn open(data_dir: &std::path::Path, hooks: Hooks, is_paused: bool) -> TestNode {
    let node = TestNode::open(data_dir, Clock::system(), hooks, KEEP);
    node.storage.is_paused.store(is_paused, SeqCst);
    node
}

fn resume(node: &TestNode) {
    node.storage.is_paused.store(false, SeqCst);
    node.storage.wake(node.broker.wal());
}

fn value(node: &TestNode) -> i64 {
    let read = node.store.objects().read(&key(), |field| {
        field.and_then(|field| field.counter("n").ok()).map_or(0, |counter| counter.value())
    });
    read.unwrap()
}

fn key() -> FieldKey {
    FieldKey::new("app", "object", "n")
}

fn message(retain: bool) -> Message {
    let topic = TopicName::new("out").unwrap();
    Message::new(topic, "x").with_qos(QoS::AtLeastOnce).with_retain(retain)
}

/// Copies a data directory: the state of the disk after `kill -9`.
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
    let node = open(dir.path(), Hooks::default(), true);
    let mut effects = Effects::of(0, &Budget::new(1 << 20));
    effects.operate(node.store.objects(), key(), Operation::CounterAdd(1), 0).unwrap();
    effects.publish(message(true)).unwrap();
    node.invoker.commit_effects(&"f".into(), effects, 0).await.unwrap();
    // The broker's write-ahead log was not written yet.
    copy(dir.path(), after_kill.path());
    let restarted = open(after_kill.path(), Hooks::default(), false);
    assert_eq!(value(&restarted), 1);
    let cancel = CancellationToken::new();
    let running = tokio::spawn(restarted.durable.clone().run(cancel.clone()));
    let published = async {
        while restarted.broker.stats().retained == 0 {
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
    let node = open(dir.path(), Hooks::default(), false);
    let mut effects = Effects::of(0, &Budget::new(1 << 20));
    effects.publish(message(true)).unwrap();
    node.invoker.commit_effects(&"f".into(), effects, 0).await.unwrap();
    let broker = &node.broker;
    // When this later record is durable, all earlier ones are too.
    let ticket = broker.record(vec![crate::publisher::delete_outgoing(u64::MAX)]).unwrap();
    broker.durable(ticket).await.unwrap();
    let outgoing = node.store.spaces().invocations.iter().count();
    assert_eq!((outgoing, broker.stats().retained), (0, 1));
}

#[tokio::test]
async fn a_commit_waits_for_a_message_that_the_broker_stores_unexpectedly() {
    let dir = tempfile::tempdir().unwrap();
    let hooks = Hooks { publish: vec![Arc::new(RecordingHook)], ..Hooks::default() };
    let node = open(dir.path(), hooks, true);
    let source = "f".into();
    let mut effects = Effects::of(0, &Budget::new(1 << 20));
    effects.publish(message(false)).unwrap();
    let mut committed = Box::pin(node.invoker.commit_effects(&source, effects, 0));
    assert_eq!((&mut committed).now_or_never(), None, "nothing is written yet");
    resume(&node);
    committed.await.unwrap();

    // The commit does not wait for a message with QoS 0.
    node.storage.is_paused.store(true, SeqCst);
    let mut effects = Effects::of(0, &Budget::new(1 << 20));
    effects.publish(message(false).with_qos(QoS::AtMostOnce)).unwrap();
    let committed = node.invoker.commit_effects(&source, effects, 0).now_or_never();
    assert_eq!(committed, Some(Ok(())));
}
