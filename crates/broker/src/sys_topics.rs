//! Figures of the broker, published under `$SYS/broker/`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use edgefaas_platform::Clock;

use crate::client::Origin;
use crate::message::Message;
use crate::moment::Moment;
use crate::monitor::QueueFigures;
use crate::router::Router;
use crate::stats::BrokerStats;
use crate::topic::TopicName;

/// The largest number of filters whose figures are published.
const MAX_FILTERS: usize = 1000;

/// Publishes figures at an interval, unchanged ones once.
pub(crate) struct SysTopics {
    started: Instant,
    clock: Clock,
    interval: Duration,
    /// `None` for never.
    due: Option<Instant>,
    before: Option<BrokerStats>,
    /// Topics of filters whose figures are retained.
    queues: HashSet<String>,
}

impl SysTopics {
    /// `interval`: zero for no figures. `started`: of the broker.
    pub(crate) fn new(interval: Duration, started: Instant, clock: Clock) -> SysTopics {
        let due = (!interval.is_zero()).then(Instant::now);
        SysTopics { started, clock, interval, due, before: None, queues: HashSet::new() }
    }

    /// Time of the next publication of figures.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Publishes figures if they are due.
    pub(crate) fn publish_due(
        &mut self,
        router: &Router,
        stats: impl FnOnce() -> BrokerStats,
        now: Instant,
    ) {
        let Some(at) = self.due.filter(|at| *at <= now) else { return };
        self.publish(router, &stats());
        // A round that was missed is not made up for.
        self.due = Some((at + self.interval).max(now));
    }

    fn publish(&mut self, router: &Router, stats: &BrokerStats) {
        let now = Moment::now(&self.clock);
        let publish = |topic: &str, value: String| {
            let Ok(topic) = TopicName::new(topic) else { return };
            let message = Message::new(topic, value).with_retain(true);
            let _ = router.publish(&Origin::Broker, None, message, Vec::new(), &now, None);
        };
        let before = self.before.replace(*stats);
        let uptime = now.instant.saturating_duration_since(self.started).as_secs();
        publish("$SYS/broker/uptime", format!("{uptime} seconds"));
        if before.is_none() {
            publish("$SYS/broker/version", format!("edgefaas version {}", env!("CARGO_PKG_VERSION")));
        }
        for (name, value) in figures(stats) {
            let same = before.as_ref().is_some_and(|before| {
                figures(before).iter().any(|(other, last)| *other == name && *last == value)
            });
            if !same {
                publish(&format!("$SYS/broker/{name}"), value.to_string());
            }
        }
        let mut queues = router.monitor().all(now.instant);
        queues.retain(|figures| !figures.filter.as_str().starts_with("$SYS"));
        // The busiest ones, if there are too many.
        if queues.len() > MAX_FILTERS {
            queues.sort_by_key(|figures| std::cmp::Reverse((figures.waiting, figures.messages_in)));
            queues.truncate(MAX_FILTERS);
        }
        let mut gone = std::mem::take(&mut self.queues);
        for figures in queues {
            let topic = queue_topic(&figures);
            publish(&topic, queue_json(&figures));
            gone.remove(&topic);
            self.queues.insert(topic);
        }
        for topic in gone {
            publish(&topic, String::new());
        }
    }
}

/// The figures by mosquitto's names, where it has them.
fn figures(stats: &BrokerStats) -> [(&'static str, u64); 19] {
    [
        ("clients/total", stats.sessions),
        ("clients/connected", stats.connections),
        ("clients/disconnected", stats.sessions.saturating_sub(stats.connections)),
        ("clients/expired", stats.sessions_expired),
        ("clients/refused", stats.connections_refused),
        ("bytes/received", stats.bytes_in),
        ("bytes/sent", stats.bytes_out),
        ("publish/messages/received", stats.messages_in),
        ("publish/messages/sent", stats.messages_out),
        ("publish/messages/dropped", stats.messages_dropped),
        ("publish/messages/rejected", stats.messages_rejected),
        ("publish/messages/consumed", stats.messages_consumed),
        ("retained messages/count", stats.retained),
        ("subscriptions/count", stats.subscriptions),
        ("shared_subscriptions/count", stats.shared_subscriptions),
        ("store/messages/bytes", stats.stored_bytes),
        ("buffered/bytes", stats.buffered_bytes),
        ("connections/total", stats.connections_total),
        ("protocol_errors", stats.protocol_errors),
    ]
}

/// `$SYS/broker/queues/FILTER`, with the wildcards that no topic may have as `%2B` and `%23`.
fn queue_topic(figures: &QueueFigures) -> String {
    let filter = figures.filter.as_str().replace('%', "%25").replace('+', "%2B").replace('#', "%23");
    format!("$SYS/broker/queues/{filter}")
}

fn queue_json(figures: &QueueFigures) -> String {
    let QueueFigures { subscribers, messages_in, messages_out, waiting, dropped, rate_per_second, .. } =
        figures;
    format!(
        r#"{{"subscribers":{subscribers},"in":{messages_in},"out":{messages_out},"waiting":{waiting},"dropped":{dropped},"rate":{rate_per_second:.1}}}"#
    )
}
