//! The states of all keys, with three indexes: by key, by due time, and by last use.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::charged::Charged;
use super::key_state::KeyState;

/// Memory of a key's state, without its contents: the entry in each of the maps, which are at least half full.
const SLOT_BYTES: usize = 2 * (size_of::<Slot>() + size_of::<(Key, u64)>() + 6 * size_of::<u64>());

/// A key. If the rule has no `key`, there is one state, for `None`.
pub(super) type Key = Option<Charged>;

/// The states of all keys. Every step takes O(log n).
#[derive(Debug, Default)]
pub(super) struct Keys {
    ids: HashMap<Key, u64>,
    /// By id. Ids grow in the order in which keys are added.
    slots: BTreeMap<u64, Slot>,
    /// The due time, and the slot's id.
    due: BTreeSet<(i64, u64)>,
    /// The slot's id by its last use; the least recently used is first.
    used: BTreeMap<u64, u64>,
    next: u64,
    held: Size,
}

/// Totals of all states.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    events: usize,
    times: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Slot {
    key: Key,
    cell: KeyState,
    due: Option<i64>,
    used: u64,
}

impl Size {
    fn of(key: &Key, cell: &KeyState) -> Self {
        Self { events: cell.events(), times: cell.times(), bytes: slot_bytes(key, cell) }
    }

    fn add(&mut self, other: Self) {
        self.events += other.events;
        self.times += other.times;
        self.bytes += other.bytes;
    }

    fn take(&mut self, other: Self) {
        self.events = self.events.saturating_sub(other.events);
        self.times = self.times.saturating_sub(other.times);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

/// Memory of a key with its state.
pub(super) fn slot_bytes(key: &Key, cell: &KeyState) -> usize {
    SLOT_BYTES + key.as_ref().map_or(0, Charged::bytes) + cell.bytes()
}

impl Keys {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number of events in all states.
    pub(super) fn events(&self) -> usize {
        self.held.events
    }

    /// The number of event times in all states.
    pub(super) fn times(&self) -> usize {
        self.held.times
    }

    /// The memory of all keys and states, in bytes. The sum is kept up to date.
    pub(super) fn bytes(&self) -> usize {
        self.held.bytes
    }

    pub(super) fn id(&self, key: &Key) -> Option<u64> {
        self.ids.get(key).copied()
    }

    /// Adds a key that does not exist yet; it counts as just used.
    pub(super) fn add(&mut self, key: Key, cell: KeyState) -> u64 {
        let (id, used) = (self.stamp(), self.stamp());
        self.held.add(Size::of(&key, &cell));
        self.ids.insert(key.clone(), id);
        self.used.insert(used, id);
        self.slots.insert(id, Slot { key, cell, due: None, used });
        id
    }

    /// Makes a key the most recently used one.
    pub(super) fn touch(&mut self, id: u64) {
        let stamp = self.stamp();
        if let Some(slot) = self.slots.get_mut(&id) {
            self.used.remove(&slot.used);
            slot.used = stamp;
            self.used.insert(stamp, id);
        }
    }

    /// Changes a state. `step` returns the next due time and its result.
    pub(super) fn change<T>(
        &mut self,
        id: u64,
        step: impl FnOnce(&mut KeyState, &Key) -> (Option<i64>, T),
    ) -> Option<T> {
        let slot = self.slots.get_mut(&id)?;
        let before = Size::of(&slot.key, &slot.cell);
        let (due, result) = step(&mut slot.cell, &slot.key);
        self.held.add(Size::of(&slot.key, &slot.cell));
        self.held.take(before);
        if due != slot.due {
            if let Some(old) = slot.due {
                self.due.remove(&(old, id));
            }
            self.due.extend(due.map(|due| (due, id)));
            slot.due = due;
        }
        Some(result)
    }

    /// The earliest due time, and the id of its key.
    pub(super) fn first_due(&self) -> Option<(i64, u64)> {
        self.due.first().copied()
    }

    pub(super) fn due_of(&self, id: u64) -> Option<i64> {
        self.slots.get(&id)?.due
    }

    /// The least recently used key.
    pub(super) fn oldest(&self) -> Option<(u64, &KeyState)> {
        let (_, id) = self.used.first_key_value()?;
        self.slots.get(id).map(|slot| (*id, &slot.cell))
    }

    pub(super) fn cell(&self, id: u64) -> Option<&KeyState> {
        self.slots.get(&id).map(|slot| &slot.cell)
    }

    /// Removes a key with its state.
    pub(super) fn remove(&mut self, id: u64) -> Option<KeyState> {
        let slot = self.slots.remove(&id)?;
        self.ids.remove(&slot.key);
        self.used.remove(&slot.used);
        if let Some(due) = slot.due {
            self.due.remove(&(due, id));
        }
        self.held.take(Size::of(&slot.key, &slot.cell));
        Some(slot.cell)
    }

    /// All keys with their states, the least recently used first.
    pub(super) fn by_use(&self) -> impl Iterator<Item = (&Key, &KeyState)> {
        self.used.values().filter_map(|id| self.slots.get(id)).map(|slot| (&slot.key, &slot.cell))
    }

    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
