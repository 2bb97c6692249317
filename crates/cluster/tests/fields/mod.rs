//! A replica with the fields of stateful objects, in memory.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::Rc;

use bytes::Bytes;
use edgefaas_cluster::replication::{
    DeletionTimes, Delta, NodeId, ObjectDigest, ObjectKey, Part, Replica, View,
};
use edgefaas_cluster::simulation::SimulatedReplica;
use edgefaas_crdt::{
    Field, FieldState, Hlc, HybridClock, Merged, Operation, Origin, ReplicaId, StateDelta, Value,
};
use xxhash_rust::xxh3::Xxh3Default;

/// Changes of the fields of an object.
#[derive(Debug, Clone, Default)]
pub struct Changes(BTreeMap<String, StateDelta>);

type Fields = BTreeMap<String, FieldState>;

/// The objects of a node.
pub struct Store {
    objects: BTreeMap<ObjectKey, Fields>,
    /// What has reached the disk.
    disk: BTreeMap<ObjectKey, Fields>,
    origin: Origin,
    clock: HybridClock,
    /// The wall clock of this node.
    wall: Wall,
    /// Clocks of other nodes that this one follows.
    followed_ms: Cell<u64>,
    agreed_ms: u64,
    /// Payloads are lost, as on a full disk; the nodes that sent them.
    pub is_full: bool,
    pub lost_from: Vec<NodeId>,
}

/// The time of the simulation, and the error of a node's clock.
#[derive(Clone)]
pub struct Wall {
    pub now_ms: Rc<Cell<u64>>,
    pub ahead_ms: u64,
}

impl Wall {
    fn now(&self) -> u64 {
        self.now_ms.get() + self.ahead_ms
    }
}

impl Store {
    pub fn new(node: u64, wall: Wall) -> Self {
        Self {
            objects: BTreeMap::new(),
            disk: BTreeMap::new(),
            origin: ReplicaId::new(node, 0).into(),
            clock: HybridClock::default(),
            wall,
            followed_ms: Cell::new(0),
            agreed_ms: 0,
            is_full: false,
            lost_from: Vec::new(),
        }
    }

    /// The process starts again with what is on the disk.
    pub fn restarted(self) -> Self {
        let ReplicaId { node, incarnation } = self.origin.replica;
        let origin = ReplicaId::new(node, incarnation + 1).into();
        Self { objects: self.disk.clone(), disk: self.disk, origin, ..Self::new(node, self.wall) }
    }

    /// All changes so far are on the disk.
    pub fn sync(&mut self) {
        self.disk.clone_from(&self.objects);
    }

    pub fn operate(
        &mut self,
        object: &ObjectKey,
        name: &str,
        operation: Operation,
    ) -> Option<(Hlc, Changes)> {
        let now = self.tick(object, name);
        let field_type = operation.field_type();
        let fields = self.objects.entry(object.clone()).or_default();
        let state = fields.entry(name.to_owned()).or_insert_with(|| FieldState::empty(field_type));
        let delta = state.apply_local(name, operation, self.origin, now).ok()?;
        Some((now, Changes([(name.to_owned(), delta)].into())))
    }

    /// Deletes a field; `None` if there is none.
    pub fn delete(&mut self, object: &ObjectKey, name: &str) -> Option<(Hlc, Changes)> {
        self.value(object, name)?;
        let now = self.tick(object, name);
        let state = self.objects.get_mut(object)?.get_mut(name)?;
        let delta = state.delete(self.origin.replica, now);
        Some((now, Changes([(name.to_owned(), delta)].into())))
    }

    pub fn value(&self, object: &ObjectKey, name: &str) -> Option<Value> {
        self.objects.get(object)?.get(name)?.live().map(Field::value)
    }

    /// Times of the deletions whose tombstones are here.
    pub fn deleted_ms(&self) -> impl Iterator<Item = u64> {
        let states = self.objects.values().flat_map(|fields| fields.values());
        states.filter(|state| state.is_deleted()).map(FieldState::deleted_at_ms)
    }

    pub fn tombstones(&self) -> usize {
        self.deleted_ms().count()
    }

    /// Drops the tombstones of deletions up to this time.
    pub fn drop_tombstones(&mut self, droppable_ms: u64, agreed_ms: u64) {
        self.agreed_ms = self.agreed_ms.max(agreed_ms);
        let origin = &mut self.origin;
        for fields in self.objects.values_mut() {
            fields.retain(|_, state| {
                let drops = state.is_deleted() && state.deleted_at_ms() <= droppable_ms;
                if drops {
                    origin.dropped_numbers = origin.dropped_numbers.max(state.highest_of(origin.replica));
                    origin.dropped_generations = origin.dropped_generations.max(state.generation());
                }
                !drops
            });
        }
        self.objects.retain(|_, fields| !fields.is_empty());
        self.sync();
    }

    fn tick(&mut self, object: &ObjectKey, name: &str) -> Hlc {
        let stored = self.objects.get(object).and_then(|fields| fields.get(name));
        self.clock.observe(stored.map(FieldState::latest).unwrap_or_default(), 0);
        self.clock.observe(Hlc { wall_ms: self.followed_ms.get(), logical: 0 }, 0);
        self.clock.tick(self.wall.now())
    }

    fn visible(&self, object: &ObjectKey, view: View) -> impl Iterator<Item = (&String, &FieldState)> {
        let fields = self.objects.get(object).into_iter().flatten();
        fields.filter(move |(_, state)| match state.is_deleted() {
            true => state.deleted_at_ms() > view.without_ms,
            false => view.part == Part::Whole,
        })
    }
}

impl Delta for Changes {
    fn merge(&mut self, other: Self) {
        for (name, delta) in other.0 {
            match self.0.get_mut(&name) {
                Some(before) => drop(before.merge(delta)),
                None => drop(self.0.insert(name, delta)),
            }
        }
    }

    fn weight_bytes(&self) -> usize {
        self.0.iter().map(|(name, delta)| name.len() + delta.size_bytes()).sum()
    }

    fn encode(&self) -> Bytes {
        let encoded: Vec<(&String, Vec<u8>)> =
            self.0.iter().map(|(name, delta)| (name, delta.encode())).collect();
        let mut bytes = Vec::new();
        for (name, delta) in encoded {
            for part in [name.as_bytes(), &delta] {
                bytes.extend((part.len() as u32).to_le_bytes());
                bytes.extend(part);
            }
        }
        bytes.into()
    }

    fn depth(&self) -> u8 {
        0
    }
}

fn decode(mut payload: &[u8]) -> Option<Changes> {
    let mut changes = Changes::default();
    let mut part = || {
        let (length, rest) = payload.split_first_chunk::<4>()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        payload = rest;
        Some(part)
    };
    while let Some(name) = part() {
        let delta = StateDelta::decode(part()?).ok()?;
        changes.0.insert(String::from_utf8(name.to_vec()).ok()?, delta);
    }
    Some(changes)
}

impl Replica for Store {
    type Delta = Changes;

    fn digests(&self, hashes: RangeInclusive<u64>, visit: &mut dyn FnMut(&ObjectKey, ObjectDigest)) {
        for (object, fields) in self.objects.iter().filter(|(object, _)| hashes.contains(&object.hash64()))
        {
            let Some(whole) = self.digest(object, View::ALL) else { continue };
            let times = fields.values().filter(|state| state.is_deleted()).map(FieldState::deleted_at_ms);
            let times: Vec<u64> = times.collect();
            let deletions = times.iter().min().zip(times.iter().max());
            let deletions =
                deletions.map(|(oldest, newest)| DeletionTimes { oldest_ms: *oldest, newest_ms: *newest });
            visit(object, ObjectDigest { whole, deletions });
        }
    }

    fn digest(&self, object: &ObjectKey, view: View) -> Option<u64> {
        let fields = self.field_digests(object, view);
        let mut digest = Xxh3Default::new();
        for (name, field) in &fields {
            digest.update(name.as_bytes());
            digest.update(&field.to_le_bytes());
        }
        (!fields.is_empty()).then(|| digest.digest())
    }

    fn field_digests(&self, object: &ObjectKey, view: View) -> Vec<(String, u64)> {
        self.visible(object, view).map(|(name, state)| (name.clone(), state.digest())).collect()
    }

    fn state(&self, object: &ObjectKey, fields: Option<&[String]>, part: Part) -> Option<Changes> {
        let wanted = |name: &String| fields.is_none_or(|fields| fields.contains(name));
        let fields = self.visible(object, View { part, without_ms: 0 }).filter(|(name, _)| wanted(name));
        let changes: BTreeMap<_, _> =
            fields.map(|(name, state)| (name.clone(), StateDelta::from(state.clone()))).collect();
        (!changes.is_empty()).then_some(Changes(changes))
    }

    fn copies(&self, _: &ObjectKey) -> u8 {
        2
    }

    fn clock_ms(&self) -> u64 {
        self.clock.latest().wall_ms.max(self.followed_ms.get()).max(self.wall.now())
    }

    fn follow_clock(&self, clock_ms: u64) -> bool {
        self.followed_ms.set(self.followed_ms.get().max(clock_ms));
        true
    }
}

impl SimulatedReplica for Store {
    fn merge(&mut self, from: NodeId, object: &ObjectKey, _: u8, payload: &[u8]) -> bool {
        let Some(changes) = decode(payload) else { return false };
        if self.is_full {
            self.lost_from.push(from);
            return true;
        }
        for (name, delta) in changes.0 {
            let known = self.objects.get(object).and_then(|fields| fields.get(&name));
            if known.is_none()
                && delta.tombstone_ms().is_some_and(|deleted_ms| deleted_ms <= self.agreed_ms)
            {
                continue;
            }
            self.clock.observe(delta.latest(), 0);
            let is_live = delta.is_live();
            let field_type = delta.field_type();
            let fields = self.objects.entry(object.clone()).or_default();
            let state = fields.entry(name.clone()).or_insert_with(|| FieldState::empty(field_type));
            let merged = state.merge(delta);
            let is_agreed = state.is_deleted() && state.deleted_at_ms() <= self.agreed_ms;
            if merged == Merged::Unchanged && is_live && is_agreed {
                let now = self.tick(object, &name);
                if let Some(state) = self.objects.get_mut(object).and_then(|fields| fields.get_mut(&name)) {
                    state.delete_again(now);
                }
            }
        }
        true
    }
}
