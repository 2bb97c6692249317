//! A replica small enough to check by eye: fields with a maximum per writer and a set of tags.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::replication::{
    DEFAULT_COPIES, Delta, Interest, NodeId, ObjectDigest, ObjectKey, Part, Policy, Replica, View,
};
use edgefaas_cluster::simulation::{SimulatedReplica, Simulation};
use proptest::test_runner::{Config, RngSeed};

/// The seed of a simulation, which it prints.
pub fn seed() -> u64 {
    let seed = match std::env::var("SIMULATION_SEED") {
        Ok(seed) => seed.parse().expect("SIMULATION_SEED is a number"),
        Err(_) => now_nanos(),
    };
    eprintln!("SIMULATION_SEED={seed}");
    seed
}

/// A configuration of property tests that prints its seed.
pub fn seeded() -> Config {
    let mut config = Config::default();
    let seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => now_nanos(),
    };
    eprintln!("PROPTEST_RNG_SEED={seed}");
    config.rng_seed = RngSeed::Fixed(seed);
    config.failure_persistence = None;
    config
}

fn now_nanos() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("the clock is past 1970").as_nanos() as u64
}

pub fn all_of(app: &str) -> Vec<Interest> {
    vec![Interest { app: app.into(), pattern: "*".into() }]
}

pub fn policy(interval_ms: u64) -> Policy {
    Policy { interval: Duration::from_millis(interval_ms), ..Policy::default() }
}

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A node counts one up.
pub fn add(simulation: &mut Simulation<Toy>, node: u64, key: &ObjectKey, interval_ms: u64) {
    simulation.change(NodeId(node), key, policy(interval_ms), |toy| toy.add(key, "n", node, 1));
}

/// The nodes that have an object.
pub fn holders(simulation: &Simulation<Toy>, key: &ObjectKey) -> Vec<u64> {
    let holds = |node: &NodeId| simulation.replica(*node).is_some_and(|toy| toy.objects.contains_key(key));
    simulation.nodes().filter(holds).map(|node| node.0).collect()
}

/// One field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Field {
    pub counts: BTreeMap<u64, u64>,
    pub tags: BTreeSet<String>,
}

/// Fields by name: a state as well as a delta.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(pub BTreeMap<String, Field>);

/// The objects of a node.
#[derive(Debug, Clone, Default)]
pub struct Toy {
    pub objects: BTreeMap<ObjectKey, (Fields, u8)>,
    /// What has reached the disk.
    disk: BTreeMap<ObjectKey, (Fields, u8)>,
    /// How often all digests were asked for.
    pub digests: Cell<u32>,
    /// The digests of objects that did not change since.
    known: RefCell<HashMap<ObjectKey, u64>>,
}

impl Field {
    fn merge(&mut self, other: Self) {
        for (writer, count) in other.counts {
            let ours = self.counts.entry(writer).or_default();
            *ours = count.max(*ours);
        }
        self.tags.extend(other.tags);
    }
}

impl Delta for Fields {
    fn merge(&mut self, other: Self) {
        for (name, field) in other.0 {
            self.0.entry(name).or_default().merge(field);
        }
    }

    fn weight_bytes(&self) -> usize {
        let field = |(name, field): (&String, &Field)| {
            name.len()
                + field.counts.len() * 16
                + field.tags.iter().map(|tag| tag.len() + 24).sum::<usize>()
        };
        self.0.iter().map(field).sum()
    }

    fn encode(&self) -> Bytes {
        let mut text = String::from("toy\n");
        for (name, field) in &self.0 {
            for (writer, count) in &field.counts {
                text += &format!("{name} {writer} {count}\n");
            }
            for tag in &field.tags {
                text += &format!("{name} {tag}\n");
            }
        }
        text.into()
    }

    fn depth(&self) -> u8 {
        0
    }
}

impl Fields {
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(payload).ok()?.strip_prefix("toy\n")?;
        let mut fields = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                [name, writer, count] => {
                    let field = fields.0.entry((*name).to_owned()).or_default();
                    field.counts.insert(writer.parse().ok()?, count.parse().ok()?);
                }
                [name, tag] => {
                    fields.0.entry((*name).to_owned()).or_default().tags.insert((*tag).to_owned());
                }
                _ => return None,
            }
        }
        Some(fields)
    }

    fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&self.encode())
    }
}

impl Toy {
    /// Adds to a writer's count and gives the delta.
    pub fn add(&mut self, key: &ObjectKey, field: &str, writer: u64, amount: u64) -> Fields {
        self.known.get_mut().remove(key);
        let count = {
            let (fields, _) =
                self.objects.entry(key.clone()).or_insert((Fields::default(), DEFAULT_COPIES));
            let count = fields.0.entry(field.to_owned()).or_default().counts.entry(writer).or_default();
            *count += amount;
            *count
        };
        let field_delta = Field { counts: BTreeMap::from([(writer, count)]), ..Field::default() };
        Fields(BTreeMap::from([(field.to_owned(), field_delta)]))
    }

    /// Adds a tag and gives the delta.
    pub fn tag(&mut self, key: &ObjectKey, field: &str, tag: &str) -> Fields {
        self.known.get_mut().remove(key);
        let tags = BTreeSet::from([tag.to_owned()]);
        let delta = Fields(BTreeMap::from([(field.to_owned(), Field { tags, ..Field::default() })]));
        let (fields, _) = self.objects.entry(key.clone()).or_insert((Fields::default(), DEFAULT_COPIES));
        fields.merge(delta.clone());
        delta
    }

    pub fn fields(&self, key: &ObjectKey) -> Option<&Fields> {
        self.objects.get(key).map(|(fields, _)| fields)
    }

    fn known_digest(&self, key: &ObjectKey, fields: &Fields) -> u64 {
        if let Some(digest) = self.known.borrow().get(key) {
            return *digest;
        }
        let digest = fields.digest();
        self.known.borrow_mut().insert(key.clone(), digest);
        digest
    }

    /// What was merged or written is on disk now.
    pub fn sync(&mut self) {
        self.disk = self.objects.clone();
    }

    /// The process ends: what is on disk is left.
    pub fn restarted(mut self) -> Self {
        self.known.get_mut().clear();
        self.objects = self.disk.clone();
        self
    }
}

impl Replica for Toy {
    type Delta = Fields;

    fn digests(&self, hashes: RangeInclusive<u64>, visit: &mut dyn FnMut(&ObjectKey, ObjectDigest)) {
        self.digests.set(self.digests.get() + 1);
        for (key, (fields, _)) in self.objects.iter().filter(|(key, _)| hashes.contains(&key.hash64())) {
            visit(key, self.known_digest(key, fields).into());
        }
    }

    fn digest(&self, object: &ObjectKey, _: View) -> Option<u64> {
        self.fields(object).map(|fields| self.known_digest(object, fields))
    }

    fn field_digests(&self, object: &ObjectKey, _: View) -> Vec<(String, u64)> {
        let fields = self.fields(object).into_iter().flat_map(|fields| &fields.0);
        fields
            .map(|(name, field)| {
                let alone = Fields(BTreeMap::from([(name.clone(), field.clone())]));
                (name.clone(), alone.digest())
            })
            .collect()
    }

    fn state(&self, object: &ObjectKey, fields: Option<&[String]>, _: Part) -> Option<Fields> {
        let all = self.fields(object)?;
        let Some(names) = fields else {
            return Some(all.clone());
        };
        let some: BTreeMap<String, Field> =
            names.iter().filter_map(|name| Some((name.clone(), all.0.get(name)?.clone()))).collect();
        (!some.is_empty()).then_some(Fields(some))
    }

    fn comes_first(&self, object: &ObjectKey) -> bool {
        object.object.starts_with("first")
    }

    fn copies(&self, object: &ObjectKey) -> u8 {
        self.objects.get(object).map_or(DEFAULT_COPIES, |(_, copies)| *copies)
    }
}

impl SimulatedReplica for Toy {
    fn merge(&mut self, _from: NodeId, object: &ObjectKey, copies: u8, payload: &[u8]) -> bool {
        let Some(delta) = Fields::decode(payload) else {
            return false;
        };
        self.known.get_mut().remove(object);
        let (fields, kept) = self.objects.entry(object.clone()).or_insert((Fields::default(), copies));
        *kept = copies;
        fields.merge(delta);
        true
    }
}
