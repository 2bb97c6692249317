//! Who waits for which events: by topic, by type, by correlated values; never by going through all who wait.
//!
//! Finding has three steps, so that no lock of the index is held while expressions are evaluated: the groups that an event
//! may concern ([`Interests::candidates`]), the values of their expressions ([`Candidate::values`]), and the members with
//! these values ([`Interests::members`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use edgefaas_broker::FilterTrie;
use edgefaas_broker::topic::TopicFilter;
use edgefaas_workflow::event::MQTT_TYPE;
use edgefaas_workflow::expression::Expression;
use edgefaas_workflow::instance::{ActiveFilter, FrameId, has_attributes_of};
use parking_lot::RwLock;
use serde_json::Value;
use ulid::Ulid;

/// Who waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiter {
    /// A workflow that starts.
    Start(Arc<str>),
    /// An instance that goes on.
    Instance(Ulid, FrameId),
}

/// A filter of somebody who waits.
#[derive(Debug, Clone)]
pub struct Interest {
    /// Who waits.
    pub waiter: Waiter,
    /// The index of the filter among the waiter's.
    pub source: u32,
    /// What an event has to fit.
    pub filter: Arc<ActiveFilter>,
}

/// Everybody who waits.
#[derive(Default)]
pub struct Interests {
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
    from: Arc<[Expression]>,
    /// By the values of `from`, as JSON.
    members: BTreeMap<String, Vec<Interest>>,
}

/// A group of filters that an event may concern.
pub struct Candidate {
    group: usize,
    from: Arc<[Expression]>,
}

/// The members of a group that an event concerns.
pub struct Found {
    group: usize,
    values: String,
}

impl Candidate {
    /// Evaluates the expressions of the group; nothing if one has no value.
    fn values(self, event: &Value, unix_ms: u64) -> Option<Found> {
        let values: Result<Vec<Value>, _> =
            self.from.iter().map(|from| from.eval_json(event, unix_ms)).collect();
        let values = serde_json::to_string(&values.ok()?).unwrap_or_default();
        Some(Found { group: self.group, values })
    }
}

/// A filter with its place in the index.
struct Placed {
    interest: Interest,
    key: GroupKey,
    from: Vec<Expression>,
    values: String,
}

impl Placed {
    fn of(interest: Interest) -> Self {
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
        Self { interest, key, from, values }
    }
}

/// Interests that change while messages pass: those of instances.
#[derive(Default)]
pub struct SharedInterests {
    all: RwLock<Interests>,
    /// There are some; changed with `all` locked.
    any: AtomicBool,
}

impl SharedInterests {
    /// Adds the filters of a listen.
    pub fn add(&self, interests: impl IntoIterator<Item = Interest>) {
        let placed: Vec<Placed> = interests.into_iter().map(Placed::of).collect();
        let mut all = self.all.write();
        placed.into_iter().for_each(|placed| all.put(placed));
        self.any.store(!all.is_empty(), Relaxed);
    }

    /// A listen has ended.
    pub fn remove(&self, id: Ulid, frame: FrameId) {
        let mut all = self.all.write();
        all.remove(id, frame);
        self.any.store(!all.is_empty(), Relaxed);
    }

    /// Whether there are none. Takes no lock, so that a message costs one look while nobody waits for events.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Relaxed)
    }

    /// See [`Interests::wants_topic`].
    pub fn wants_topic(&self, topic: &str) -> bool {
        self.all.read().wants_topic(topic)
    }

    /// See [`Interests::wants_events`].
    pub fn wants_events(&self) -> bool {
        self.all.read().wants_events()
    }

    /// See [`Interests::matching`]. The index is locked while groups and members are looked up, and not between.
    pub fn matching(&self, topic: Option<&str>, event: &Value, unix_ms: u64) -> Vec<Interest> {
        let candidates = self.all.read().candidates(topic, event);
        if candidates.is_empty() {
            return Vec::new();
        }
        let found: Vec<Found> =
            candidates.into_iter().filter_map(|candidate| candidate.values(event, unix_ms)).collect();
        let mut members = self.all.read().members(&found);
        members.retain(|member| has_attributes_of(&member.filter, event));
        members
    }
}

impl Interests {
    /// Nobody waits.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Adds a waiter's filter.
    pub fn add(&mut self, interest: Interest) {
        self.put(Placed::of(interest));
    }

    fn put(&mut self, placed: Placed) {
        let Placed { interest, key, from, values } = placed;
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
                self.groups.insert(group, Group { key, from: from.into(), members: BTreeMap::new() });
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

    /// Those that an event may be for, each once for each of its filters: attributes and native correlations fit, all
    /// else of their filters is left to the caller. `topic` is that of a mere message.
    pub fn matching(&self, topic: Option<&str>, event: &Value, unix_ms: u64) -> Vec<Interest> {
        let found = self.candidates(topic, event).into_iter();
        let found: Vec<Found> = found.filter_map(|candidate| candidate.values(event, unix_ms)).collect();
        let mut members = self.members(&found);
        members.retain(|member| has_attributes_of(&member.filter, event));
        members
    }

    /// The groups that an event may concern.
    fn candidates(&self, topic: Option<&str>, event: &Value) -> Vec<Candidate> {
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
        let candidate = |group: usize| {
            let from = self.groups.get(&group)?.from.clone();
            Some(Candidate { group, from })
        };
        groups.into_iter().filter_map(candidate).collect()
    }

    /// The members of groups with these values.
    fn members(&self, found: &[Found]) -> Vec<Interest> {
        let members = |found: &Found| self.groups.get(&found.group)?.members.get(&found.values);
        found.iter().filter_map(members).flatten().cloned().collect()
    }
}
