//! A field that a group of batches changes, from the first change to the commit.

use std::sync::Arc;
use std::time::Duration;

use edgefaas_crdt::{Field, FieldState, FieldType, StateDelta, Value};
use edgefaas_manifest::Origin;
use fjall::OwnedWriteBatch;
use parking_lot::RwLock;

use super::LARGE_FIELD_BYTES;
use super::unwritten::Unwritten;
use crate::objects::key::FieldKey;
use crate::objects::record;
use crate::objects::table::{Objects, Slot, Stored};

/// A field that the group has touched.
pub(super) struct Working {
    pub slot: Arc<Slot>,
    content: Content,
    pub deltas: Deltas,
    stage: Stage,
    pub on_disk: OnDisk,
    pub size: SizeCount,
    /// The value before the group, if a subscription covers the field; the inner `None` stands for a field that did not exist.
    pub previous: Option<Option<Value>>,
    pub origin: Origin,
    /// Greatest depth of the call chains that changed the field.
    pub depth: u8,
    /// The field existed, and was not deleted, before the group.
    pub was_live: bool,
    /// The record is dropped if the field is deleted when the group is written.
    pub drops: bool,
}

/// Location of the group's changes.
enum Content {
    /// A copy has the changes; readers see them after the commit.
    Copy(FieldState),
    /// The slot has the changes; readers see them before the commit.
    InPlace,
}

/// Changes of the group: this node's own, and those of other members.
#[derive(Debug, Clone, Default)]
pub(super) struct Deltas {
    pub own: Option<StateDelta>,
    pub others: Option<StateDelta>,
}

/// Progress of the group with the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The field was read.
    Untouched,
    /// Operations were applied, and none changed it.
    Unchanged(Due),
    Changed(Due),
}

/// Deadline for a change to be on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// The change is written with the group.
    Now,
    /// The change may stay in memory for this duration.
    Within(Duration),
}

/// The record of the field on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDisk {
    /// No record exists.
    Nothing,
    /// The record lacks more than the deltas of the group.
    Outdated,
    /// The record lacks only the deltas of the group.
    Current,
}

/// Bytes that the field counts for its object's quota.
#[derive(Debug, Default)]
pub(super) struct SizeCount {
    /// Growth of its record by the last write.
    pub grown_bytes: i64,
    /// Counted bytes until the growth is known: the bytes before the group, and the growth in memory.
    pub counted_bytes: u64,
    /// Counted bytes before the group.
    pub carried_bytes: u64,
    /// Size of the field in memory before the group, in bytes.
    start_bytes: u64,
}

/// A field before a batch, to be restored if the batch is refused.
pub(super) enum Before {
    /// The group had not touched it.
    Untouched,
    Copy(Box<FieldState>, Option<StateDelta>),
    /// The field is too large for a second copy: it is reloaded from the disk, and the changes of the group are here.
    Reload(Deltas),
}

impl Working {
    /// An existing field. `unwritten` if the disk lacks changes of earlier groups.
    pub fn stored(slot: Arc<Slot>, unwritten: Option<&Unwritten>, is_watched: bool) -> Self {
        let stored = slot.0.read();
        // Changes that the disk lacks could not be reloaded if a batch fails.
        let is_small = unwritten.is_some() || stored.field.size_bytes() < LARGE_FIELD_BYTES;
        let content = if is_small { Content::Copy(stored.field.clone()) } else { Content::InPlace };
        let previous = is_watched.then(|| stored.field.live().map(Field::value));
        let was_live = stored.field.live().is_some();
        let start_bytes = stored.field.size_bytes() as u64;
        drop(stored);
        let (on_disk, carried_bytes) = match unwritten {
            Some(unwritten) => (OnDisk::Outdated, unwritten.counted_bytes),
            None => (OnDisk::Current, 0),
        };
        let size = SizeCount { counted_bytes: carried_bytes, carried_bytes, start_bytes, grown_bytes: 0 };
        Self { size, was_live, ..Self::new(slot, content, on_disk, previous) }
    }

    /// A field that does not exist yet.
    pub fn made(field_type: FieldType, previous: Option<Option<Value>>) -> Self {
        let field = FieldState::empty(field_type);
        let slot = Arc::new(Slot(RwLock::new(Stored::new(field.clone()))));
        Self::new(slot, Content::Copy(field), OnDisk::Nothing, previous)
    }

    /// A field that earlier groups changed and this group writes.
    pub fn unwritten(slot: Arc<Slot>, counted_bytes: u64) -> Self {
        let size = SizeCount { counted_bytes, ..SizeCount::default() };
        let (stage, depth) = (Stage::Changed(Due::Now), slot.0.read().depth);
        let was_live = slot.0.read().field.live().is_some();
        Self { size, stage, depth, was_live, ..Self::new(slot, Content::InPlace, OnDisk::Outdated, None) }
    }

    fn new(slot: Arc<Slot>, content: Content, on_disk: OnDisk, previous: Option<Option<Value>>) -> Self {
        Self {
            slot,
            content,
            deltas: Deltas::default(),
            stage: Stage::Untouched,
            on_disk,
            size: SizeCount::default(),
            previous,
            origin: Origin::Local,
            depth: 0,
            was_live: false,
            drops: false,
        }
    }

    /// True if an operation was applied, whether it changed the field or not.
    pub fn is_touched(&self) -> bool {
        self.stage != Stage::Untouched
    }

    /// True if the group has changed it.
    pub fn is_changed(&self) -> bool {
        matches!(self.stage, Stage::Changed(_))
    }

    /// Notes an applied operation. If one operation of the group is due now, all are.
    pub fn touch(&mut self, due: Due, changes: bool) {
        let due = match (self.stage, due) {
            (Stage::Untouched, due) => due,
            (_, Due::Now) => Due::Now,
            (Stage::Unchanged(due) | Stage::Changed(due), Due::Within(_)) => due,
        };
        self.stage = if changes || self.is_changed() { Stage::Changed(due) } else { Stage::Unchanged(due) };
    }

    /// Time at which the change must be on the disk; [`Due::Now`] once it was written.
    pub fn due(&self) -> Due {
        match self.stage {
            Stage::Untouched => Due::Now,
            Stage::Unchanged(due) | Stage::Changed(due) => due,
        }
    }

    /// True if the group has to write the field; with `all`, also if the field may wait.
    pub fn has_to_be_written(&self, all: bool) -> bool {
        matches!(self.stage, Stage::Changed(due) if all || due == Due::Now)
    }

    /// Applies `change` to the field as the group sees it.
    pub fn field<R>(&mut self, change: impl FnOnce(&mut FieldState) -> R) -> R {
        match &mut self.content {
            Content::Copy(field) => change(field),
            Content::InPlace => change(&mut self.slot.0.write().field),
        }
    }

    /// Replaces a deleted field, whose tombstone nobody needs, by an empty one of another type.
    pub fn begin_again(&mut self, field_type: FieldType) {
        self.field(|field| *field = FieldState::empty(field_type));
        self.deltas = Deltas::default();
        if self.on_disk == OnDisk::Current {
            // The record has a field that the deltas do not lead to.
            self.on_disk = OnDisk::Outdated;
        }
    }

    /// True if the group drops the field: the field is deleted, and the record is to be dropped.
    pub fn is_dropped(&self) -> bool {
        self.drops && self.read(FieldState::is_deleted)
    }

    /// Reads the field as the group sees it.
    pub fn read<R>(&self, read: impl FnOnce(&FieldState) -> R) -> R {
        match &self.content {
            Content::Copy(field) => read(field),
            Content::InPlace => read(&self.slot.0.read().field),
        }
    }

    /// Change of the number of the object's fields by the group, and of its tombstones.
    pub fn counts(&self) -> (i64, i64) {
        let (existed, was_live) = (self.on_disk != OnDisk::Nothing, self.was_live);
        let (is_live, is_deleted) =
            self.read(|field| (self.is_touched() && field.live().is_some(), field.is_deleted()));
        let is_live = if self.is_touched() { is_live } else { was_live };
        let tombstones = i64::from(is_deleted && !self.drops) - i64::from(existed && !was_live);
        (i64::from(is_live) - i64::from(was_live), tombstones)
    }

    /// Publishes the copy to readers and returns the field before the group; `None` if it was changed in place.
    pub fn publish(&mut self) -> Option<FieldState> {
        let mut stored = self.slot.0.write();
        stored.depth = self.depth;
        match std::mem::replace(&mut self.content, Content::InPlace) {
            Content::Copy(field) => Some(std::mem::replace(&mut stored.field, field)),
            Content::InPlace => None,
        }
    }

    /// The slot, if the field is changed in place.
    pub fn in_place(&self) -> Option<Arc<Slot>> {
        matches!(self.content, Content::InPlace).then(|| self.slot.clone())
    }

    pub fn before(&self) -> Before {
        match &self.content {
            Content::Copy(field) => Before::Copy(Box::new(field.clone()), self.deltas.own.clone()),
            Content::InPlace => Before::Reload(self.deltas.clone()),
        }
    }

    /// Rolls the copy back to its state before a batch.
    pub fn restore(&mut self, field: FieldState, own: Option<StateDelta>) {
        self.content = Content::Copy(field);
        self.deltas.own = own;
    }

    /// Adds the record of the field to `batch`: the deltas of a large field, else the whole field.
    pub fn write(&mut self, objects: &Objects, batch: &mut OwnedWriteBatch, key: &FieldKey) {
        if self.is_changed() {
            self.stage = Stage::Changed(Due::Now);
        }
        let space = objects.space();
        if self.is_dropped() {
            self.drop_record(objects, batch, key);
            return;
        }
        let mut stored = self.slot.0.write();
        stored.is_folded |= objects.is_folded(key);
        let before_bytes = stored.base_bytes + stored.changes_bytes;
        let field = match &self.content {
            Content::Copy(field) => field,
            Content::InPlace => &stored.field,
        };
        let is_large = field.size_bytes() >= LARGE_FIELD_BYTES && !field.is_deleted();
        if is_large
            && stored.changes_follow
            && self.on_disk == OnDisk::Current
            && let Some(delta) = self.deltas.merged()
        {
            let change = record::encode_change(&delta, self.depth);
            if stored.changes_bytes + change.len() as u64 <= stored.base_bytes {
                let number = stored.next_change;
                stored.next_change += 1;
                stored.changes_bytes += change.len() as u64;
                self.size.grown_bytes = change.len() as i64;
                batch.insert(space, record::change_key(key.as_bytes(), number), change);
                return;
            }
        }
        let base = record::encode_base(field, is_large, self.depth);
        if stored.changes_follow {
            for number in 0..stored.next_change {
                batch.remove(space, record::change_key(key.as_bytes(), number));
            }
        }
        let key_bytes = if self.on_disk == OnDisk::Nothing { key.as_bytes().len() as i64 } else { 0 };
        self.size.grown_bytes = base.len() as i64 - before_bytes as i64 + key_bytes;
        stored.base_bytes = base.len() as u64;
        (stored.changes_bytes, stored.next_change, stored.changes_follow) = (0, 0, is_large);
        batch.insert(space, key.as_bytes(), base);
    }

    fn drop_record(&mut self, objects: &Objects, batch: &mut OwnedWriteBatch, key: &FieldKey) {
        let mut stored = self.slot.0.write();
        for number in 0..stored.next_change {
            batch.remove(objects.space(), record::change_key(key.as_bytes(), number));
        }
        batch.remove(objects.space(), key.as_bytes());
        if self.on_disk != OnDisk::Nothing {
            let bytes = stored.base_bytes + stored.changes_bytes + key.as_bytes().len() as u64;
            self.size.grown_bytes = -(bytes as i64);
        }
        (stored.base_bytes, stored.changes_bytes, stored.next_change) = (0, 0, 0);
        stored.changes_follow = false;
    }
}

impl Deltas {
    pub fn add_own(&mut self, delta: StateDelta) {
        merge_into(&mut self.own, delta);
    }

    pub fn add_others(&mut self, delta: StateDelta) {
        merge_into(&mut self.others, delta);
    }

    /// Both deltas merged.
    fn merged(&self) -> Option<StateDelta> {
        let mut merged = self.own.clone();
        if let Some(others) = self.others.clone() {
            merge_into(&mut merged, others);
        }
        merged
    }
}

impl SizeCount {
    /// Updates the counted bytes for a new size in memory; returns them.
    pub fn count(&mut self, bytes: u64) -> u64 {
        self.counted_bytes = self.carried_bytes + bytes.saturating_sub(self.start_bytes);
        self.counted_bytes
    }
}

fn merge_into(deltas: &mut Option<StateDelta>, delta: StateDelta) {
    match deltas {
        Some(before) => drop(before.merge(delta)),
        None => *deltas = Some(delta),
    }
}
