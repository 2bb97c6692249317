//! Changes of fields, applied by the store's one writer.
//!
//! A small field is changed in a copy, which replaces the version that readers see once it is committed. A large field
//! is changed in place, since a copy would cost more than everything else: readers may see such a change before it is
//! on the disk.

pub(crate) mod footprint;
mod quota;
mod unwritten;
mod working;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_crdt::{
    Field, FieldState, FieldType, Hlc, HybridClock, Merged, Operation, Origin as Writer, ReplicaId,
};
use edgefaas_manifest::{ObjectClass, ObjectDurability, Origin};
use edgefaas_platform::Clock;
use fjall::OwnedWriteBatch;

use self::quota::{ObjectSize, uncount};
use self::unwritten::UnwrittenFields;
use self::working::{Before, Deltas, Due, OnDisk, Working};
use super::change::{FieldChange, PeerDelta};
use super::expiry::LastChanges;
use super::key::FieldKey;
use super::table::{Objects, Slot};
use super::watch::ChangeNotice;
use crate::error::{CommitError, FieldRefused, StoreError};
use crate::store::Durability;

/// Smaller fields are copied to be changed, and written as a whole.
const LARGE_FIELD_BYTES: usize = 4096;
/// Maximum number of an update, or amount, in a record that is dropped. A field with a larger one keeps its tombstone until the
/// node restarts, since all later fields would begin above it.
const MAX_DROPPED_NUMBER: u64 = 1 << 40;
/// Maximum clock skew of a peer before a warning is logged.
const SKEW_TOLD: Duration = Duration::from_secs(60);

/// Applies changes in groups: [`apply`](Self::apply) the batches, [`write`](Self::write) their changes, then
/// [`committed`](Self::committed).
pub(crate) struct FieldWriter {
    objects: Arc<Objects>,
    replica: ReplicaId,
    clock: Clock,
    hybrid: HybridClock,
    working: HashMap<FieldKey, Working>,
    sizes: HashMap<Arc<str>, ObjectSize>,
    last_changes: LastChanges,
    /// Fields that are newer than the disk, with the time of the next flush.
    unwritten: UnwrittenFields,
    write_due: Option<Instant>,
    skew_told: bool,
    /// The replica, with the numbers that it used in dropped records.
    writer: Writer,
}

impl FieldWriter {
    pub fn new(objects: Arc<Objects>, last_changes: LastChanges, clock: Clock) -> Self {
        Self {
            replica: objects.replica(),
            writer: objects.replica().into(),
            objects,
            clock,
            hybrid: HybridClock::default(),
            working: HashMap::new(),
            sizes: HashMap::new(),
            last_changes,
            unwritten: UnwrittenFields::default(),
            write_due: None,
            skew_told: false,
        }
    }

    /// The local replica.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// True if a change is slow: it must be on the disk before it is acknowledged, or it changes a document.
    pub fn takes_long(objects: &Objects, changes: &[(FieldKey, FieldChange)]) -> bool {
        changes.iter().any(|(key, change)| {
            let class = || objects.class(key.app(), key.object());
            let is_document = matches!(
                change.field_type(),
                Some(FieldType::List | FieldType::Text | FieldType::Json | FieldType::Map)
            );
            is_document || durability(change, class) == Durability::Synced
        })
    }

    /// Applies all changes of a batch, or none. With `lazy`, changes of durability `memory` may be written later.
    /// `depth` is the depth of the call chain of the operations. Returns the durability that the batch needs for its fields.
    pub fn apply(
        &mut self,
        changes: Vec<(FieldKey, FieldChange)>,
        depth: u8,
        lazy: bool,
    ) -> Result<Durability, CommitError> {
        let mut durability = Durability::Written;
        // A failed change leaves its field unchanged, so a single change needs no rollback.
        let mut before = (changes.len() > 1).then(HashMap::new);
        for (key, change) in changes {
            if let Some(before) = &mut before
                && let Entry::Vacant(entry) = before.entry(key.clone())
            {
                entry.insert(match self.working.get(&key) {
                    None => Before::Untouched,
                    Some(working) => working.before(),
                });
            }
            match self.apply_one(key, change, depth, lazy) {
                Ok(needed) => durability = durability.max(needed),
                Err(error) => {
                    for (key, before) in before.into_iter().flatten() {
                        self.take_back(key, before)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(durability)
    }

    /// Records the requests for shares in their fields, so that other members grant them.
    pub fn record_share_requests(&mut self) {
        for (key, amount) in self.objects.take_share_requests() {
            let want = FieldChange::Operate(Operation::BoundedCounterWant(amount));
            if let Err(error) = self.apply(vec![(key, want)], 0, false) {
                tracing::warn!(%error, "a share of a bounded counter could not be requested");
            }
        }
    }

    /// True if a write is due.
    pub fn has_writes(&self, now: Instant) -> bool {
        self.is_due(now)
            || self.last_changes.has_writes()
            || self.working.values().any(|working| working.has_to_be_written(false))
    }

    /// Time of the next lazy flush.
    pub fn due(&self) -> Option<Instant> {
        self.write_due
    }

    /// Adds the due writes to `batch`; all writes if `all`.
    pub fn write(&mut self, batch: &mut OwnedWriteBatch, all: bool, now: Instant) {
        let all = all || self.is_due(now);
        self.last_changes.write(batch);
        for (key, working) in &mut self.working {
            if working.has_to_be_written(all) {
                working.write(&self.objects, batch, key);
                if working.is_dropped() {
                    let (number, generation) =
                        working.read(|field| (field.highest_of(self.replica), field.generation()));
                    self.writer.dropped_numbers = self.writer.dropped_numbers.max(number);
                    self.writer.dropped_generations = self.writer.dropped_generations.max(generation);
                }
            }
        }
        if !all {
            return;
        }
        let rest = self.unwritten.iter().filter(|(key, _)| !self.working.contains_key(*key));
        let rest: Vec<_> = rest.map(|(key, unwritten)| (key.clone(), unwritten.counted_bytes)).collect();
        for (key, counted) in rest {
            // The slot is in memory, since the disk does not have the field.
            let Ok(Some(slot)) = self.objects.slot(&key) else { continue };
            let mut working = Working::unwritten(slot, counted);
            working.write(&self.objects, batch, &key);
            self.working.insert(key, working);
        }
    }

    /// Publishes the group after its commit: readers, watches and peers see it from now on, including fields that are
    /// only in memory.
    pub fn committed(&mut self, now: Instant) {
        let mut for_peers = Vec::new();
        let peers = self.objects.are_peers_wanted();
        for (key, mut working) in self.working.drain() {
            if !working.is_changed() {
                uncount(&mut self.sizes, &key, &working);
                continue;
            }
            let is_dropped = working.is_dropped();
            let before = working.publish();
            self.unwritten.remove(&key);
            let due = working.due();
            if let Due::Within(wait) = due {
                self.unwritten.add(key.clone(), &working);
                let due = now + wait;
                self.write_due = Some(self.write_due.map_or(due, |before| before.min(due)));
            }
            if let Some(size) = self.sizes.get_mut(key.object_prefix())
                && due == Due::Now
            {
                let counted = size.bytes.saturating_sub(working.size.counted_bytes);
                size.bytes = counted.saturating_add_signed(working.size.grown_bytes);
            }
            if peers && let Some(delta) = working.deltas.own.take() {
                for_peers.push((key.clone(), PeerDelta { delta, depth: working.depth }));
            }
            let Working { slot, on_disk, origin, depth, previous, .. } = working;
            match is_dropped {
                true => self.objects.dropped(&key),
                false => self.objects.changed(key.clone(), slot.clone(), due == Due::Now),
            }
            // A watch may have begun after the change was applied. A subscriber that read the old value has to be
            // notified.
            let has_begun = previous.is_none() && self.objects.watches().covers(&key);
            if previous.is_none() && !has_begun {
                continue;
            }
            let stored = slot.0.read();
            let (field_type, value) =
                (stored.field.field().field_type(), stored.field.live().map(Field::value));
            drop(stored);
            let previous = match (previous, before) {
                (Some(previous), _) => previous,
                (None, _) if on_disk == OnDisk::Nothing => None,
                (None, Some(before)) => before.live().map(Field::value),
                // A large field was changed in place: its previous value is gone.
                (None, None) => None,
            };
            if previous != value {
                self.objects.watches().tell(ChangeNotice {
                    key,
                    field_type,
                    previous,
                    value,
                    origin,
                    depth,
                });
            }
        }
        if !for_peers.is_empty() {
            self.objects.add_for_peers(for_peers);
        }
        if self.unwritten.is_empty() {
            self.write_due = None;
        } else if self.unwritten.is_full() {
            self.write_due = Some(now);
        }
    }

    /// Postpones a due flush until `at`, since the disk has no room for it. The fields stay in memory.
    pub fn postpone(&mut self, at: Instant) {
        self.write_due = Some(at);
        self.objects.count_postponed();
    }

    /// Number of fields that are not written yet.
    pub fn unwritten(&self) -> usize {
        self.unwritten.len()
    }

    /// Bytes of all fields that are not written yet. The disk must have room for them.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten.bytes()
    }

    /// Discards the applied changes after a failed write, which ends all writing.
    pub fn abandon(&mut self) {
        self.working.clear();
        self.write_due = None;
    }

    /// True if a lazy flush is due.
    pub fn is_due(&self, now: Instant) -> bool {
        self.write_due.is_some_and(|due| due <= now)
    }

    fn apply_one(
        &mut self,
        key: FieldKey,
        change: FieldChange,
        depth: u8,
        lazy: bool,
    ) -> Result<Durability, CommitError> {
        let class = self.objects.class(key.app(), key.object());
        let Some(change) = self.unless_alive(&key, change, class.ttl).map_err(failed)? else {
            return Ok(Durability::Written);
        };
        if let FieldChange::Operate(operation) = &change {
            self.check_quota(&key, operation, class.quota_bytes)?;
        }
        let durability = durability(&change, || class);
        let is_removal = matches!(change, FieldChange::Delete | FieldChange::Drop { .. });
        let lazy = lazy
            && class.durability == ObjectDurability::Memory
            && durability == Durability::Written
            && !is_removal;
        let working = match self.working.entry(key.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let watched = self.objects.watches().covers(&key);
                let slot = self.objects.slot(&key).map_err(failed)?;
                let working = match (slot, change.field_type()) {
                    (Some(slot), _) => {
                        self.hybrid.observe(slot.0.read().field.latest(), 0);
                        Working::stored(slot, self.unwritten.get(&key), watched)
                    }
                    (None, Some(field_type)) => Working::made(field_type, watched.then_some(None)),
                    // There is nothing to remove.
                    (None, None) => return Ok(durability),
                };
                entry.insert(working)
            }
        };
        if !working.is_touched() && working.on_disk != OnDisk::Nothing && self.objects.is_folded(&key) {
            let (node, last) = (self.replica.node, self.replica.incarnation - 1);
            if working.field(|field| field.fold(node, last)) {
                // No delta describes this change.
                working.on_disk = OnDisk::Outdated;
            }
        }
        let counted = working.counts();
        let mut tombstone = None;
        if working.is_dropped()
            && let FieldChange::Operate(operation) = &change
        {
            // A tombstone that is not written reserves neither its type nor its numbers.
            let state = working.read(FieldState::clone);
            let Writer { dropped_numbers, dropped_generations, .. } = &mut self.writer;
            *dropped_numbers = (*dropped_numbers).max(state.highest_of(self.replica));
            *dropped_generations = (*dropped_generations).max(state.generation());
            working.begin_again(operation.field_type());
            tombstone = Some(state);
        }
        let now_ms = self.clock.now_unix_ms();
        let observed = Hlc { wall_ms: self.objects.deletions().observed_ms(), logical: 0 };
        self.hybrid.observe(observed, 0);
        let imported = matches!(change, FieldChange::Import(_));
        let depth = match &change {
            // The node changes shares by itself: the field remains as deep as it is.
            FieldChange::Operate(Operation::BoundedCounterWant(_) | Operation::BoundedCounterGrant) => {
                working.slot.0.read().depth
            }
            FieldChange::Operate(_) | FieldChange::Delete => depth,
            FieldChange::Merge { depth, .. } => *depth,
            FieldChange::Import(_)
            | FieldChange::Expire
            | FieldChange::Touch
            | FieldChange::Forget
            | FieldChange::Drop { .. } => 0,
        };
        let mut changes = false;
        match change {
            FieldChange::Operate(operation) => {
                let now = self.hybrid.tick(now_ms);
                let writer = self.writer;
                let applied = working.field(|field| field.apply_local(key.field(), operation, writer, now));
                match applied {
                    Ok(delta) => {
                        changes = !delta.is_empty();
                        working.origin = Origin::Local;
                        working.deltas.add_own(delta);
                    }
                    Err(error) => {
                        // The request is recorded with this group.
                        self.objects.request_share(&key, &error);
                        if let Some(tombstone) = tombstone {
                            working.field(|field| *field = tombstone);
                        }
                        if !working.is_changed() {
                            self.working.remove(&key);
                        }
                        let object = key.object().to_owned();
                        return Err(FieldRefused::Apply { object, error }.into());
                    }
                }
            }
            FieldChange::Merge { delta, .. } | FieldChange::Import(delta) => {
                let latest = delta.latest();
                if !self.skew_told && latest.wall_ms > now_ms + SKEW_TOLD.as_millis() as u64 {
                    self.skew_told = true;
                    let ahead_s = (latest.wall_ms - now_ms) / 1000;
                    tracing::warn!(
                        ahead_s,
                        field = ?key,
                        "a peer's clock is ahead of this node's: last writers win by it; set the clocks"
                    );
                }
                self.hybrid.observe(latest, now_ms);
                self.objects.count_merge();
                let for_log = delta.clone();
                match working.field(|field| field.merge(delta)) {
                    Merged::Unchanged
                        if for_log.is_live() && working.read(|field| is_agreed(field, &self.objects)) =>
                    {
                        // The sender lacks a deletion that all were believed to have.
                        let now = self.hybrid.tick(now_ms);
                        let again = working.field(|field| field.delete_again(now));
                        working.deltas.add_own(again);
                        changes = true;
                    }
                    Merged::Unchanged => {}
                    Merged::Changed => changes = true,
                    Merged::TypeConflict { kept, lost } => {
                        changes = true;
                        self.objects.count_conflict();
                        tracing::warn!(field = ?key, %kept, %lost, "two nodes made a field with different types; one is lost");
                    }
                }
                if imported {
                    working.deltas.add_own(for_log);
                } else {
                    if working.deltas.own.is_none() {
                        working.origin = Origin::Remote;
                    }
                    working.deltas.add_others(for_log);
                }
            }
            FieldChange::Delete => {
                let now = self.hybrid.tick(now_ms);
                let replica = self.replica;
                let delta = working.field(|field| field.delete(replica, now));
                changes = !delta.is_empty();
                working.origin = Origin::Local;
                working.deltas.add_own(delta);
                let number = working.read(|field| field.highest_of(replica));
                working.drops |= !self.objects.keeps_tombstones() && number <= MAX_DROPPED_NUMBER;
            }
            // Became a deletion, or nothing.
            FieldChange::Expire | FieldChange::Touch | FieldChange::Forget => {}
            FieldChange::Drop { up_to_ms } => {
                let replica = self.replica;
                let is_due = |field: &FieldState| {
                    field.is_deleted()
                        && field.deleted_at_ms() <= up_to_ms
                        && field.highest_of(replica) <= MAX_DROPPED_NUMBER
                };
                changes = working.read(is_due);
                working.drops |= changes;
            }
        }
        if let Some(size) = self.sizes.get_mut(key.object_prefix()) {
            // Unwritten changes count by their size in memory; otherwise a group could exceed the quota as a whole.
            let bytes = working.field(|field| field.size_bytes()) as u64;
            let before_bytes = working.size.counted_bytes;
            size.bytes = size.bytes.saturating_sub(before_bytes) + working.size.count(bytes);
        }
        working.touch(if lazy { Due::Within(class.write_interval) } else { Due::Now }, changes);
        if let Some(size) = self.sizes.get_mut(key.object_prefix()) {
            let now = working.counts();
            size.count((now.0 - counted.0, now.1 - counted.1));
        }
        if changes {
            working.depth = working.depth.max(depth);
            working.drops &= is_removal;
        }
        if changes
            && !is_removal
            && let Some(ttl) = class.ttl
        {
            self.last_changes.touch(key.object_prefix(), now_ms, ttl).map_err(failed)?;
        }
        self.objects.deletions().note_clock(self.hybrid.latest().wall_ms);
        Ok(durability)
    }

    /// Handles the changes that depend on the last change of an object, and gives the change of the field that is to be
    /// made.
    fn unless_alive(
        &mut self,
        key: &FieldKey,
        change: FieldChange,
        ttl: Option<Duration>,
    ) -> Result<Option<FieldChange>, StoreError> {
        if !matches!(change, FieldChange::Expire | FieldChange::Touch | FieldChange::Forget) {
            return Ok(Some(change));
        }
        let (object, now_ms) = (key.object_prefix(), self.clock.now_unix_ms());
        let Some(ttl) = ttl else {
            if matches!(change, FieldChange::Forget) {
                self.last_changes.forget(object);
            }
            return Ok(None);
        };
        if matches!(change, FieldChange::Touch) {
            self.last_changes.touch(object, now_ms, ttl)?;
            return Ok(None);
        }
        let is_expired = self.last_changes.is_expired(object, now_ms, ttl)?;
        match change {
            FieldChange::Expire if is_expired => return Ok(Some(FieldChange::Delete)),
            FieldChange::Forget if is_expired => self.last_changes.forget(object),
            _ => {}
        }
        Ok(None)
    }

    /// Rolls a field back to its state before a refused batch.
    fn take_back(&mut self, key: FieldKey, before: Before) -> Result<(), CommitError> {
        // The size is computed again after the rollback.
        self.sizes.remove(key.object_prefix());
        let Some(working) = self.working.get_mut(&key) else { return Ok(()) };
        match before {
            Before::Untouched => {
                let changed_in_place = working.in_place();
                self.working.remove(&key);
                if let Some(slot) = changed_in_place {
                    self.read_back(&key, &slot, None)?;
                }
            }
            Before::Copy(field, own) => working.restore(*field, own),
            Before::Reload(deltas) => {
                working.deltas = deltas.clone();
                let slot = working.slot.clone();
                self.read_back(&key, &slot, Some(deltas))?;
            }
        }
        Ok(())
    }

    fn read_back(&self, key: &FieldKey, slot: &Slot, deltas: Option<Deltas>) -> Result<(), CommitError> {
        let stored = self.objects.load(key).map_err(failed)?;
        let mut now = slot.0.write();
        if let Some(stored) = stored {
            now.field = stored.field;
        }
        let Deltas { own, others } = deltas.unwrap_or_default();
        for delta in own.into_iter().chain(others) {
            now.field.merge(delta);
        }
        Ok(())
    }
}

/// True if the field is deleted, and all members are believed to know that.
fn is_agreed(field: &FieldState, objects: &Objects) -> bool {
    field.is_deleted() && field.deleted_at_ms() <= objects.deletions().agreed_ms()
}

/// Durability that a change of an object of this class needs.
fn durability(change: &FieldChange, class: impl FnOnce() -> ObjectClass) -> Durability {
    // A spent share must survive a power cut before readers see it.
    let spends = match change {
        FieldChange::Operate(operation) => spends_shares(operation),
        FieldChange::Delete | FieldChange::Expire => false,
        FieldChange::Touch | FieldChange::Forget => return Durability::Written,
        FieldChange::Merge { .. } | FieldChange::Import(_) | FieldChange::Drop { .. } => {
            return Durability::Written;
        }
    };
    let synced = spends || class().durability == ObjectDurability::Synced;
    if synced { Durability::Synced } else { Durability::Written }
}

/// True if the operation changes a bounded counter, also inside a map.
fn spends_shares(operation: &Operation) -> bool {
    match operation {
        Operation::MapUpdate(_, inner) => spends_shares(inner),
        other => other.field_type() == FieldType::BoundedCounter,
    }
}

fn failed(error: StoreError) -> CommitError {
    CommitError::Failed((&error).into())
}
