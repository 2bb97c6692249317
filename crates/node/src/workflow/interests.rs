//! Who waits for which events: by topic, by type, by correlated values; never by going through all who wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use edgefaas_broker::FilterTrie;
use edgefaas_broker::topic::TopicFilter;
use edgefaas_workflow::event::MQTT_TYPE;
use edgefaas_workflow::expression::Expression;
use edgefaas_workflow::instance::{ActiveFilter, FrameId, accepts};
use serde_json::Value;
use ulid::Ulid;

/// Who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A workflow that starts.
    Start(Arc<str>),
    /// An instance that goes on.
    Instance(Ulid, FrameId),
}

/// A filter of somebody who waits.
#[derive(Debug, Clone)]
pub(crate) struct Interest {
    pub waiter: Waiter,
    /// The index of the filter among the waiter's.
    pub source: u32,
    pub filter: Arc<ActiveFilter>,
}

/// Everybody who waits.
#[derive(Default)]
pub(crate) struct Interests {
    /// Groups by the topic filter of MQTT messages.
    topics: FilterTrie<usize>,
    /// Groups by the type of CloudEvents.
    types: HashMap<String, Vec<usize>>,
    groups: HashMap<usize, Group>,
    ids: HashMap<GroupKey, usize>,
    next: usize,
    /// The groups a waiter is in, to take it out of them.
    members: HashMap<(Ulid, FrameId), Vec<(usize, String)>>,
}

/// What all of a group have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    found_by: FoundBy,
    /// The expressions whose values tell the members apart.
    from: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FoundBy {
    Topic(String),
    Type(String),
}

struct Group {
    key: GroupKey,
    from: Vec<Expression>,
    /// By the values of `from`, as JSON.
    members: BTreeMap<String, Vec<Interest>>,
}

impl Interests {
    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Adds a waiter's filter.
    pub fn add(&mut self, interest: Interest) {
        let kind = interest.filter.attribute("type");
        let subject = interest.filter.attribute("subject");
        let found_by = match (kind, subject) {
            (Some(kind), _) if kind != MQTT_TYPE => FoundBy::Type(kind.to_owned()),
            (_, Some(subject)) => FoundBy::Topic(subject.to_owned()),
            _ => FoundBy::Topic("#".to_owned()),
        };
        let correlate: Vec<_> =
            interest.filter.correlate.iter().filter(|(from, _)| from.is_native()).collect();
        let from: Vec<Expression> = correlate.iter().map(|(from, _)| from.clone()).collect();
        let values: Vec<&Value> = correlate.iter().map(|(_, value)| value).collect();
        let values = serde_json::to_string(&values).unwrap_or_default();
        let key = GroupKey { found_by, from: from.iter().map(|from| from.source().to_owned()).collect() };
        let group = match self.ids.get(&key) {
            Some(group) => *group,
            None => {
                let group = self.next;
                match &key.found_by {
                    // Filters were looked at when the definition was compiled, computed ones may be wrong: they match nothing.
                    FoundBy::Topic(filter) => match TopicFilter::new(filter.as_str()) {
                        Ok(filter) => self.topics.insert(&filter, group),
                        Err(_) => return,
                    },
                    FoundBy::Type(kind) => self.types.entry(kind.clone()).or_default().push(group),
                }
                self.next += 1;
                self.ids.insert(key.clone(), group);
                self.groups.insert(group, Group { key, from, members: BTreeMap::new() });
                group
            }
        };
        // Those that start are replaced as a whole.
        if let Waiter::Instance(id, frame) = &interest.waiter {
            self.members.entry((*id, *frame)).or_default().push((group, values.clone()));
        }
        if let Some(group) = self.groups.get_mut(&group) {
            group.members.entry(values).or_default().push(interest);
        }
    }

    /// A listen has ended.
    pub fn remove(&mut self, id: Ulid, frame: FrameId) {
        for (group, values) in self.members.remove(&(id, frame)).unwrap_or_default() {
            self.take_out(group, &values, &Waiter::Instance(id, frame));
        }
    }

    fn take_out(&mut self, id: usize, values: &str, waiter: &Waiter) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        if let Some(members) = group.members.get_mut(values) {
            members.retain(|member| member.waiter != *waiter);
            if members.is_empty() {
                group.members.remove(values);
            }
        }
        if !group.members.is_empty() {
            return;
        }
        if let Some(group) = self.groups.remove(&id) {
            self.ids.remove(&group.key);
            match &group.key.found_by {
                FoundBy::Topic(filter) => {
                    if let Ok(filter) = TopicFilter::new(filter.as_str()) {
                        self.topics.remove(&filter, |found| *found == id);
                    }
                }
                FoundBy::Type(kind) => {
                    if let Some(groups) = self.types.get_mut(kind) {
                        groups.retain(|found| *found != id);
                        if groups.is_empty() {
                            self.types.remove(kind);
                        }
                    }
                }
            }
        }
    }

    /// True if somebody may wait for a message on this topic as such.
    pub fn wants_topic(&self, topic: &str) -> bool {
        let mut wants = false;
        self.topics.for_each_match(topic, |_| wants = true);
        wants
    }

    /// True if somebody waits for events of some type that are no mere messages.
    pub fn wants_events(&self) -> bool {
        !self.types.is_empty()
    }

    /// Those that an event is for, each once for each of its filters. `topic` is that of a mere message.
    pub fn matching(&self, topic: Option<&str>, event: &Value, unix_ms: u64) -> Vec<Interest> {
        let mut groups: Vec<usize> = Vec::new();
        if let Some(topic) = topic {
            self.topics.for_each_match(topic, |group| groups.push(*group));
        } else {
            let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
            groups.extend(self.types.get(kind).into_iter().flatten());
            // Filters that name no type but a subject.
            if let Some(subject) = event.get("subject").and_then(Value::as_str) {
                self.topics.for_each_match(subject, |group| groups.push(*group));
            }
        }
        let mut found = Vec::new();
        for group in groups.into_iter().filter_map(|id| self.groups.get(&id)) {
            let values: Result<Vec<Value>, _> =
                group.from.iter().map(|from| from.eval_json(event, unix_ms)).collect();
            let Ok(values) = values else { continue };
            let values = serde_json::to_string(&values).unwrap_or_default();
            let members = group.members.get(&values).map(Vec::as_slice).unwrap_or_default();
            found.extend(members.iter().filter(|member| accepts(&member.filter, event, unix_ms)).cloned());
        }
        found
    }
}
