//! Lists of watched topics, flat or as the branches of a tree.

use std::collections::BTreeMap;

use edgefaas_api::messages as proto;
use edgefaas_broker::{Broker, Search, TopicFilter, WatchedTopic};
use tonic::Status;

use super::permissions::Permissions;
use super::topic_watch::WatchedTopics;
use super::{SLICE, filter_of, limit_of, listed};

/// The topics that a list is about.
struct Wanted<'a> {
    filter: Option<TopicFilter>,
    search: Search,
    permissions: &'a Permissions,
}

/// The sum of the topics at and below one level.
#[derive(Default)]
struct Sum {
    topics: u64,
    rate: f64,
}

pub(super) fn list(
    watched: &WatchedTopics,
    request: proto::ListTopicsRequest,
    permissions: &Permissions,
) -> Result<proto::ListTopicsResponse, Status> {
    let proto::ListTopicsRequest { filter, search, after, limit, branch } = request;
    let limit = limit_of(limit);
    let search = Search::new(&search);
    let given = filter_of(&filter)?;
    watched.begin();
    let broker = &watched.broker;
    let mut response = proto::ListTopicsResponse::default();
    match branch {
        None => {
            let wanted = Wanted { filter: Some(given), search, permissions };
            response.topics = flat(broker, &wanted, &after, limit + 1);
            response.more = response.topics.len() > limit;
            response.topics.truncate(limit);
        }
        Some(proto::Branch { parent }) => {
            let filter = (!filter.is_empty()).then_some(given);
            let wanted = Wanted { filter, search, permissions };
            response.levels = levels(broker, &wanted, parent.as_deref(), &after, limit + 1);
            response.more = response.levels.len() > limit;
            response.levels.truncate(limit);
        }
    }
    let totals = broker.watch_totals();
    (response.total, response.left_out) = (totals.topics as u64, totals.left_out as u64);
    Ok(response)
}

/// Up to `max` topics behind `after`.
fn flat(broker: &Broker, wanted: &Wanted<'_>, after: &str, max: usize) -> Vec<proto::Topic> {
    let prefix = wanted.filter.as_ref().map(TopicFilter::literal_prefix).unwrap_or_default();
    let mut after = (!after.is_empty()).then(|| after.to_owned());
    let mut topics = Vec::new();
    loop {
        let mut found = Vec::new();
        let room = max - topics.len();
        after = broker.visit_topics(prefix, after.as_deref(), SLICE, |name, topic, rate| {
            if found.len() < room && wanted.accepts(name) {
                found.push((name.to_owned(), topic.clone(), rate));
            }
        });
        topics.extend(
            found.into_iter().filter_map(|(name, topic, rate)| convert(broker, name, &topic, rate)),
        );
        if after.is_none() || topics.len() >= max {
            return topics;
        }
    }
}

/// Up to `max` levels under a topic, or at the top, behind the level `after`. Costs a walk over all topics below `parent`.
fn levels(
    broker: &Broker,
    wanted: &Wanted<'_>,
    parent: Option<&str>,
    after: &str,
    max: usize,
) -> Vec<proto::Level> {
    let prefix = parent.map(|parent| format!("{parent}/")).unwrap_or_default();
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    let mut last: Option<String> = None;
    loop {
        last = broker.visit_topics(&prefix, last.as_deref(), SLICE, |name, _, rate| {
            let Some(below) = name.strip_prefix(&prefix) else { return };
            let level = below.split('/').next().unwrap_or(below);
            // A tree shows topics that begin with `$` only below such a topic.
            if (!after.is_empty() && level <= after)
                || (parent.is_none() && name.starts_with('$'))
                || !wanted.accepts(name)
            {
                return;
            }
            let sum = match sums.get_mut(level) {
                Some(sum) => sum,
                None => sums.entry(level.to_owned()).or_default(),
            };
            sum.topics += 1;
            sum.rate += rate;
            // Only the first ones: a level that goes never comes back, since those before it stay.
            if sums.len() > max {
                sums.pop_last();
            }
        });
        if last.is_none() {
            break;
        }
    }
    let level = |(name, sum): (String, Sum)| {
        let whole = format!("{prefix}{name}");
        let topic = broker.watched_topic(&whole).filter(|_| wanted.accepts(&whole));
        let topic = topic.and_then(|(topic, rate)| convert(broker, whole, &topic, rate));
        proto::Level { name, topics: sum.topics, rate: sum.rate, topic }
    };
    sums.into_iter().map(level).collect()
}

impl Wanted<'_> {
    fn accepts(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(name))
            && self.search.matches(name)
            && self.permissions.may_read(name)
    }
}

/// A topic with its last and its retained message; `None` for one that has neither, as its retained message is gone.
fn convert(broker: &Broker, name: String, topic: &WatchedTopic, rate: f64) -> Option<proto::Topic> {
    let retained = broker.retained(&name);
    let retained_bytes = retained.as_ref().map(|retained| retained.message.payload().len() as u64);
    let last = match topic.last() {
        Some(last) => Some(proto::Message {
            topic: name.clone(),
            payload: last.payload.clone(),
            payload_bytes: last.payload_bytes as u64,
            qos: last.qos as u32,
            retain: last.retain,
            unix_ms: last.unix_ms,
            ..Default::default()
        }),
        None => retained.map(|retained| proto::Message {
            topic: name.clone(),
            payload: listed(retained.message.payload()),
            payload_bytes: retained.message.payload().len() as u64,
            qos: retained.message.qos() as u32,
            retain: true,
            unix_ms: retained.received_unix_ms,
            ..Default::default()
        }),
    };
    last.is_some().then(|| proto::Topic { name, rate, messages: topic.messages(), last, retained_bytes })
}
