//! Messages that pass the broker during a test.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_broker::{Broker, TopicFilter};
use edgefaas_node::{LocalSubscription, Received};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Limits of the messages that are kept, the newest ones.
const MAX_MESSAGES: usize = 10_000;
const MAX_BYTES: usize = 64 << 20;
/// Topic of the message that marks the beginning of a test. A subscription to `#` does not get it.
pub const BEGIN_TOPIC: &str = "$edgefaas-test/begin";
/// Topics of the node whose messages tests see. A subscription to `#` does not get them either. Events of each task would take the
/// places of the test's own messages.
pub const OWN_TOPICS: [&str; 5] = [
    "$faas/dead/#",
    "$faas/fn/+/result/#",
    "$faas/wf/+/result/#",
    "$faas/events/emitted/#",
    "$faas/events/workflow/+/workflow/#",
];
/// Number of other topics that a failed wait names.
const MAX_TOPICS: usize = 10;

/// A message.
#[derive(Debug, Clone)]
pub struct Seen {
    pub number: u64,
    pub topic: String,
    pub qos: u8,
    pub retain: bool,
    pub payload: Bytes,
}

/// Subscribes to all topics and keeps the messages.
pub struct Messages {
    kept: Arc<Mutex<Kept>>,
    arrived: watch::Receiver<u64>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Kept {
    messages: VecDeque<Seen>,
    bytes: usize,
    next: u64,
    /// The first message of the current test.
    since: u64,
}

impl Kept {
    fn push(&mut self, mut seen: Seen) {
        seen.number = self.next;
        self.next += 1;
        if seen.topic == BEGIN_TOPIC {
            self.since = self.next;
            self.messages.clear();
            self.bytes = 0;
            return;
        }
        self.bytes += seen.payload.len();
        self.messages.push_back(seen);
        while self.messages.len() > MAX_MESSAGES || self.bytes > MAX_BYTES {
            let Some(oldest) = self.messages.pop_front() else { break };
            self.bytes -= oldest.payload.len();
        }
    }

    fn find(&self, filter: &TopicFilter, skip: &[u64]) -> Option<Seen> {
        let fits = |seen: &&Seen| filter.matches(&seen.topic) && !skip.contains(&seen.number);
        self.messages.iter().find(fits).cloned()
    }
}

/// True if tests see the messages of all topics of this filter.
pub fn is_seen(filter: &str) -> bool {
    let is_part = |own: &&str| {
        let mut levels = filter.split('/');
        own.split('/').all(|level| match level {
            "#" => true,
            "+" => levels.next().is_some_and(|level| level != "#"),
            level => levels.next() == Some(level),
        })
    };
    !filter.starts_with('$') || OWN_TOPICS.iter().any(is_part)
}

impl Messages {
    /// Subscribes at the broker; returns when the subscription holds.
    pub async fn subscribe(broker: &Broker) -> anyhow::Result<Self> {
        let mut subscription = LocalSubscription::open(
            broker,
            "edgefaas-test",
            &[&["#", BEGIN_TOPIC], &OWN_TOPICS[..]].concat(),
        )
        .await?;
        let (sender, arrived) = watch::channel(0);
        let kept = Arc::<Mutex<Kept>>::default();
        let keeping = kept.clone();
        let task = tokio::spawn(async move {
            while let Ok(received) = subscription.next().await {
                let Received { topic, payload, qos, retain, .. } = received;
                let mut kept = keeping.lock();
                kept.push(Seen { number: 0, topic, qos, retain, payload });
                let next = kept.next;
                drop(kept);
                let _ = sender.send(next);
            }
        });
        Ok(Self { kept, arrived, _task: AbortOnDropHandle::new(task) })
    }

    /// The first message of a filter since the test began, except those of `skip`; waits for it up to `within`.
    pub async fn find(&self, filter: &TopicFilter, skip: &[u64], within: Duration) -> Option<Seen> {
        let mut arrived = self.arrived.clone();
        let wait = async {
            loop {
                arrived.borrow_and_update();
                if let Some(seen) = self.kept.lock().find(filter, skip) {
                    return Some(seen);
                }
                arrived.changed().await.ok()?;
            }
        };
        tokio::time::timeout(within, wait).await.ok().flatten()
    }

    /// Waits until the message that marks the beginning of a test, published after `before`, has arrived.
    pub async fn begun(&self, before: u64) {
        let mut arrived = self.arrived.clone();
        let _ = arrived.wait_for(|_| self.kept.lock().since > before).await;
    }

    /// Number of messages so far.
    pub fn count(&self) -> u64 {
        self.kept.lock().next
    }

    /// Topics of the messages since the test began, up to [`MAX_TOPICS`], without those of the node.
    pub fn topics(&self) -> BTreeSet<String> {
        let kept = self.kept.lock();
        kept.messages
            .iter()
            .map(|seen| seen.topic.clone())
            .filter(|topic| !topic.starts_with('$'))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .take(MAX_TOPICS)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_of_the_node_that_tests_do_not_see_are_known() {
        for seen in
            ["#", "+/a", "$faas/dead/f", "$faas/dead/#", "$faas/wf/+/result/1", "$faas/wf/w/result/#"]
        {
            assert!(is_seen(seen), "{seen}");
        }
        for unseen in
            ["$SYS/#", "$faas/#", "$faas/events/#", "$faas/wf/#", "$faas/events/workflow/w/task/#"]
        {
            assert!(!is_seen(unseen), "{unseen}");
        }
    }
}
