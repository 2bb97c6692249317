//! Index of the workflows and instances that wait for events: by topic, by type, by correlated values.
//!
//! A lookup does not visit all waiters. It has three steps, so that no lock of the index is held while expressions are
//! evaluated: find the groups that an event may match ([`Interests::candidates`]), evaluate their expressions
//! ([`Candidate::values`]), and find the members with these values ([`Interests::members`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use edgefaas_broker::FilterTrie;
use edgefaas_broker::topic::TopicFilter;
use edgefaas_workflow::event::{LIFECYCLE_TYPES, MQTT_TYPE};
use edgefaas_workflow::expression::Expression;
use edgefaas_workflow::instance::{ActiveFilter, FrameId, has_attributes_of};
use parking_lot::RwLock;
use serde_json::Value;
use ulid::Ulid;

/// A workflow or instance that waits for events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiter {
    /// A workflow, by name: the event starts an instance.
    Start(Arc<str>),
    /// A `listen` task of an instance: the event continues it.
    Instance(Ulid, FrameId),
}

/// A filter of a waiter.
#[derive(Debug, Clone)]
pub struct Interest {
    /// The waiter.
    pub waiter: Waiter,
    /// The index of the filter in the waiter's list of filters.
    pub source: u32,
    /// The filter that an event has to match.
    pub filter: Arc<ActiveFilter>,
}

/// The index of all filters.
#[derive(Default)]
pub struct Interests {
    /// Groups by the topic filter of MQTT messages.
    topics: FilterTrie<usize>,
    /// Groups by the type of CloudEvents.
    types: HashMap<String, Vec<usize>>,
    /// Groups that every event may match: their filters name neither a type nor a topic.
    any: Vec<usize>,
    groups: HashMap<usize, Group>,
    ids: HashMap<GroupKey, usize>,
    next: usize,
    /// The groups and values of each instance, for removal.
    members: HashMap<(Ulid, FrameId), Vec<(usize, String)>>,
}

/// The common properties of the filters in a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    found_by: FoundBy,
    /// The correlation expressions. Their values identify the members of the group.
    from: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FoundBy {
    Topic(String),
    Type(String),
    /// Neither: each event is looked at.
    Any,
}

struct Group {
    key: GroupKey,
    from: Arc<[Expression]>,
    /// By the values of `from`, as JSON.
    members: BTreeMap<String, Vec<Interest>>,
}

/// A group of filters that an event may match.
pub struct Candidate {
    group: usize,
    from: Arc<[Expression]>,
}

/// A group and the values that its members must have.
pub struct Found {
    group: usize,
    values: String,
}

impl Candidate {
    /// Evaluates the expressions of the group; `None` if one fails.
    fn values(self, event: &Value, unix_ms: u64) -> Option<Found> {
        let values: Result<Vec<Value>, _> =
            self.from.iter().map(|from| from.eval_json(event, unix_ms)).collect();
        let values = serde_json::to_string(&values.ok()?).unwrap_or_default();
        Some(Found { group: self.group, values })
    }
}

/// A filter with its key in the index.
struct IndexedInterest {
    interest: Interest,
    key: GroupKey,
    from: Vec<Expression>,
    values: String,
}

impl IndexedInterest {
    fn new(interest: Interest) -> Self {
        let kind = interest.filter.attribute("type");
        let subject = interest.filter.attribute("subject");
        let found_by = match (kind, subject) {
            (Some(kind), _) if kind != MQTT_TYPE => FoundBy::Type(kind.to_owned()),
            (_, Some(subject)) => FoundBy::Topic(subject.to_owned()),
            (Some(_), None) => FoundBy::Topic("#".to_owned()),
            (None, None) => FoundBy::Any,
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

/// The interests of instances, which change while messages are matched.
#[derive(Default)]
pub struct SharedInterests {
    all: RwLock<Interests>,
    /// True if `all` is not empty. Changed while `all` is locked.
    any: AtomicBool,
}

impl SharedInterests {
    /// Adds the filters of a `listen` task.
    pub fn add(&self, interests: impl IntoIterator<Item = Interest>) {
        let indexed: Vec<IndexedInterest> = interests.into_iter().map(IndexedInterest::new).collect();
        let mut all = self.all.write();
        indexed.into_iter().for_each(|indexed| all.put(indexed));
        self.any.store(!all.is_empty(), Relaxed);
    }

    /// Removes the filters of a `listen` task.
    pub fn remove(&self, id: Ulid, frame: FrameId) {
        let mut all = self.all.write();
        all.remove(id, frame);
        self.any.store(!all.is_empty(), Relaxed);
    }

    /// True if no instance waits. Takes no lock, so that a message costs one atomic load while no instance waits.
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

    /// See [`Interests::matching`]. The index is locked while groups and members are looked up, but not while expressions are
    /// evaluated.
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
    /// True if the index has no filters.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Adds a filter. A filter with an invalid topic filter matches nothing and is not added.
    pub fn add(&mut self, interest: Interest) {
        self.put(IndexedInterest::new(interest));
    }

    fn put(&mut self, indexed: IndexedInterest) {
        let IndexedInterest { interest, key, from, values } = indexed;
        let group = match self.ids.get(&key) {
            Some(group) => *group,
            None => {
                let group = self.next;
                match &key.found_by {
                    // Literal filters were checked when the definition was compiled. A computed one may be invalid.
                    FoundBy::Topic(filter) => match TopicFilter::new(filter.as_str()) {
                        Ok(filter) => self.topics.insert(&filter, group),
                        Err(_) => return,
                    },
                    FoundBy::Type(kind) => self.types.entry(kind.clone()).or_default().push(group),
                    FoundBy::Any => self.any.push(group),
                }
                self.next += 1;
                self.ids.insert(key.clone(), group);
                self.groups.insert(group, Group { key, from: from.into(), members: BTreeMap::new() });
                group
            }
        };
        // `Waiter::Start` is never removed: a deploy replaces the whole index.
        if let Waiter::Instance(id, frame) = &interest.waiter {
            self.members.entry((*id, *frame)).or_default().push((group, values.clone()));
        }
        if let Some(group) = self.groups.get_mut(&group) {
            group.members.entry(values).or_default().push(interest);
        }
    }

    /// Removes the filters of a `listen` task.
    pub fn remove(&mut self, id: Ulid, frame: FrameId) {
        for (group, values) in self.members.remove(&(id, frame)).unwrap_or_default() {
            self.remove_member(group, &values, &Waiter::Instance(id, frame));
        }
    }

    fn remove_member(&mut self, id: usize, values: &str, waiter: &Waiter) {
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
                FoundBy::Any => self.any.retain(|found| *found != id),
            }
        }
    }

    /// True if a filter may match a message on this topic.
    pub fn wants_topic(&self, topic: &str) -> bool {
        // The node's own topics are for filters that name them.
        let mut wants = !self.any.is_empty() && !topic.starts_with('$');
        self.topics.for_each_match(topic, |_| wants = true);
        wants
    }

    /// True if a filter names a type of CloudEvents other than that of MQTT messages.
    pub fn wants_events(&self) -> bool {
        !self.types.is_empty() || !self.any.is_empty()
    }

    /// The filters whose attributes and native correlations match an event. The caller has to check the rest of each filter.
    /// `topic` is the topic of an MQTT message; `None` for other CloudEvents.
    pub fn matching(&self, topic: Option<&str>, event: &Value, unix_ms: u64) -> Vec<Interest> {
        let found = self.candidates(topic, event).into_iter();
        let found: Vec<Found> = found.filter_map(|candidate| candidate.values(event, unix_ms)).collect();
        let mut members = self.members(&found);
        members.retain(|member| has_attributes_of(&member.filter, event));
        members
    }

    /// The groups that an event may match.
    fn candidates(&self, topic: Option<&str>, event: &Value) -> Vec<Candidate> {
        let mut groups: Vec<usize> = Vec::new();
        if let Some(topic) = topic {
            self.topics.for_each_match(topic, |group| groups.push(*group));
            if !topic.starts_with('$') {
                groups.extend(&self.any);
            }
        } else {
            let kind = event.get("type").and_then(Value::as_str).unwrap_or_default();
            groups.extend(self.types.get(kind).into_iter().flatten());
            // A workflow that looks at every event does not see those about itself.
            if !kind.starts_with(LIFECYCLE_TYPES) {
                groups.extend(&self.any);
            }
            // Filters with a subject and without a type.
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

    /// The members of these groups with these values.
    fn members(&self, found: &[Found]) -> Vec<Interest> {
        let members = |found: &Found| self.groups.get(&found.group)?.members.get(&found.values);
        found.iter().filter_map(members).flatten().cloned().collect()
    }
}
