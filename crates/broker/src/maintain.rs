//! What is due without anybody asking: the end of sessions, delayed wills, tidying, and the figures under
//! `$SYS/broker/`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use crate::broker::Shared;
use crate::client::Origin;
use crate::message::Message;
use crate::monitor::QueueFigures;
use crate::publish::forget_expired;
use crate::stats::BrokerStats;
use crate::stored;
use crate::topic::TopicName;
use crate::wal::{Change, Space, Ticket};

/// Messages of ended sessions that are deleted at a time.
const PURGED_AT_ONCE: usize = 512;
/// How often there is something to purge is looked at, while there is.
const PURGE_PAUSE: Duration = Duration::from_millis(20);
/// Retained messages that are looked at for their expiry at a time.
const LOOKED_THROUGH_AT_ONCE: usize = 2048;
/// Time between two such looks, and between the last one and the first.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// The same where the disk is full, and time between two looks at what waits for sessions.
const SHORT_LOOK_INTERVAL: Duration = Duration::from_secs(3);
/// Messages for one session that are deleted at a time since they have expired.
const EXPIRED_AT_ONCE: usize = 512;
/// Most filters whose figures are published.
const PUBLISHED_FILTERS: usize = 1000;

/// Runs for ever.
pub(crate) async fn run(shared: &Shared) {
    let sys_interval = shared.config.sys_interval;
    let mut sys_at = (!sys_interval.is_zero()).then(Instant::now);
    let mut before = None;
    let mut queues = HashSet::new();
    let (mut look_at, mut looked_to) = (Instant::now() + LOOK_INTERVAL, None);
    let mut queues_at = Instant::now() + SHORT_LOOK_INTERVAL;
    loop {
        let now = Instant::now();
        while let Some(fired) = shared.timers.fire(now) {
            shared.fired(fired);
        }
        let purging = purge(shared);
        if let Some(at) = sys_at.filter(|at| *at <= now) {
            let stats = shared.stats();
            publish_figures(shared, &stats, before.replace(stats), &mut queues);
            // Late is late: no rounds are made up for.
            sys_at = Some((at + sys_interval).max(now));
        }
        if queues_at <= now {
            let pause = if expire_queued(shared) { PURGE_PAUSE } else { SHORT_LOOK_INTERVAL };
            queues_at = now + pause;
            if shared.wal.is_full() {
                look_at = look_at.min(now + SHORT_LOOK_INTERVAL);
            }
        }
        if look_at <= now {
            looked_to = expire_retained(shared, looked_to);
            look_at = now + if looked_to.is_some() { LOOK_PAUSE } else { LOOK_INTERVAL };
        }
        let due =
            [shared.timers.next(), sys_at, Some(look_at), purging.then(|| Instant::now() + PURGE_PAUSE)];
        let due = due.into_iter().flatten().fold(queues_at, Instant::min);
        tokio::select! {
            () = shared.timers.changed.notified() => {}
            () = sleep_until(due.into()) => {}
        }
    }
}

/// Looks through a part of what is retained for messages that have expired; says where to go on, if not at the beginning.
fn expire_retained(shared: &Shared, after: Option<TopicName>) -> Option<TopicName> {
    let now = Instant::now();
    let slice = shared.retained.read().expired(after.as_ref(), LOOKED_THROUGH_AT_ONCE, now);
    if !slice.topics.is_empty() {
        let mut transaction = shared.wal.begin();
        let mut retained = shared.retained.write();
        for topic in &slice.topics {
            retained.expire(topic, now);
        }
        forget_expired(&mut retained, &mut transaction);
    }
    slice.after
}

/// Deletes messages that have expired while they waited for sessions; true if there may be more.
fn expire_queued(shared: &Shared) -> bool {
    let now = Instant::now();
    let mailboxes: Vec<_> =
        shared.sessions.lock().mailboxes().map(|(mailbox, _)| mailbox.clone()).collect();
    let mut more = false;
    for mailbox in mailboxes {
        let mut transaction = shared.wal.begin();
        let expired = mailbox.expire(EXPIRED_AT_ONCE, now, &mut transaction);
        drop(transaction);
        shared.counters.messages_dropped.add(expired as u64);
        more |= expired == EXPIRED_AT_ONCE;
    }
    more
}

/// Deletes some of the messages of sessions that are over; true if there may be more.
fn purge(shared: &Shared) -> bool {
    let progress = shared.wal.progress();
    let ready = |(_, ended): &(u64, Ticket)| progress.of(*ended).is_some();
    let Some((session, _)) = shared.purges.lock().iter().copied().find(ready) else {
        // What was stored last for them is on its way still.
        return !shared.purges.lock().is_empty();
    };
    let from = stored::queue_key(session, 0);
    let Ok(entries) = shared.wal.storage().scan(Space::Queue, &from, PURGED_AT_ONCE) else {
        return false;
    };
    let own = |key: &[u8]| stored::parse_queue_key(key).is_some_and(|(of, _)| of == session);
    let keys: Vec<Vec<u8>> = entries.into_iter().map(|(key, _)| key).take_while(|key| own(key)).collect();
    if keys.is_empty() {
        shared.purges.lock().retain(|(purged, _)| *purged != session);
    }
    let mut transaction = shared.wal.begin();
    for key in keys {
        transaction.append(Change { space: Space::Queue, key, value: None }, false);
    }
    drop(transaction);
    !shared.purges.lock().is_empty()
}

/// `published`: the topics of filters whose figures are retained.
fn publish_figures(
    shared: &Shared,
    stats: &BrokerStats,
    before: Option<BrokerStats>,
    published: &mut HashSet<String>,
) {
    let now = shared.now();
    let publish = |topic: &str, value: String| {
        let Ok(topic) = TopicName::new(topic) else { return };
        let message = Message::new(topic, value).with_retain(true);
        let _ = shared.publish(&Origin::Broker, None, message, Vec::new(), &now, None);
    };
    let uptime = now.instant.saturating_duration_since(shared.started).as_secs();
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
    let mut queues = shared.monitor.all(now.instant);
    queues.retain(|figures| !figures.filter.as_str().starts_with("$SYS"));
    // The busiest, where there are too many.
    if queues.len() > PUBLISHED_FILTERS {
        queues.sort_by_key(|figures| std::cmp::Reverse((figures.waiting, figures.messages_in)));
        queues.truncate(PUBLISHED_FILTERS);
    }
    let mut gone = std::mem::take(published);
    for figures in queues {
        let topic = queue_topic(&figures);
        publish(&topic, queue_json(&figures));
        gone.remove(&topic);
        published.insert(topic);
    }
    for topic in gone {
        publish(&topic, String::new());
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
