//! Groups of changes: the open one, to which changes are appended, and closed ones, which the store writes.

use std::collections::HashMap;

use super::change::{Change, Space, Ticket};

/// Changes that are stored together.
#[derive(Debug)]
pub struct Group {
    pub(super) number: u64,
    /// Entries under keys that were never used before; `changes` has none of them.
    pub fresh: Vec<Change>,
    /// The other entries, in the order in which they were appended: the last change of a key counts.
    pub changes: Vec<Change>,
    /// An acknowledgement or a caller waits until the group is on the disk. Otherwise it is enough for now that it
    /// reaches the operating system.
    pub awaited: bool,
}

/// The way in which a change is appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Append {
    /// Nothing waits for the change.
    Lazy,
    /// An acknowledgement or a caller waits until it is on the disk.
    Awaited,
    /// An acknowledgement or a caller waits, and the key of the change was never used before.
    Fresh,
}

/// The group to which changes are appended.
#[derive(Debug)]
pub(super) struct OpenGroup {
    number: u64,
    /// `None` for a change that was rolled back.
    changes: Vec<Option<(Change, Append)>>,
    /// Bytes on the disk.
    bytes: usize,
    /// Bytes in memory, where a shared value counts once.
    memory_bytes: usize,
    /// Address and length of the last value.
    last_value: (usize, usize),
    /// Positions in `changes` of entries that the store does not have.
    fresh: HashMap<Vec<u8>, usize>,
}

impl OpenGroup {
    pub(super) fn new() -> OpenGroup {
        OpenGroup {
            number: 1,
            changes: Vec::new(),
            bytes: 0,
            memory_bytes: 0,
            last_value: (0, 0),
            fresh: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Bytes that the group takes on the disk.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that the group takes in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// All changes that were appended until now.
    pub(super) fn ticket(&self) -> Ticket {
        Ticket(if self.changes.is_empty() { self.number - 1 } else { self.number })
    }

    /// Closes the group, which must not be empty, and opens the next one.
    pub(super) fn close(&mut self) -> ClosedGroup {
        let number = self.number;
        self.number += 1;
        (self.bytes, self.memory_bytes, self.last_value) = (0, 0, (0, 0));
        self.fresh.clear();
        ClosedGroup { number, changes: std::mem::take(&mut self.changes) }
    }

    /// Counts what a change takes. Called before [`append`](Self::append).
    pub(super) fn count(&mut self, change: &Change) {
        let value = change.value.as_ref().map_or((0, 0), |value| (value.as_ptr() as usize, value.len()));
        self.bytes += change.key.len() + value.1;
        self.memory_bytes += size_of::<Change>() + 2 * change.key.len();
        if value != self.last_value {
            self.memory_bytes += value.1;
            self.last_value = value;
        }
    }

    /// Adds a change. One that deletes a fresh entry of this group takes that entry back: the store writes neither.
    pub(super) fn append(&mut self, change: Change, append: Append) -> Ticket {
        let ticket = Ticket(self.number);
        if append == Append::Fresh {
            let at = self.changes.len();
            self.fresh.insert(change.key.clone(), at);
            self.changes.push(Some((change, append)));
        } else if change.space == Space::Queue
            && let Some(&at) = self.fresh.get(&change.key)
        {
            // The store gets the last value of the entry, or nothing.
            match change.value {
                Some(_) => self.changes[at] = Some((change, Append::Fresh)),
                None => {
                    self.fresh.remove(&change.key);
                    self.changes[at] = None;
                }
            }
        } else {
            self.changes.push(Some((change, append)));
        }
        ticket
    }
}

/// A group that takes no more changes.
pub(super) struct ClosedGroup {
    number: u64,
    changes: Vec<Option<(Change, Append)>>,
}

impl ClosedGroup {
    /// Sorts the changes for the store. Costs a walk over all of them: no lock is held meanwhile.
    pub(super) fn sort(self) -> Group {
        let mut group =
            Group { number: self.number, fresh: Vec::new(), changes: Vec::new(), awaited: false };
        for (change, append) in self.changes.into_iter().flatten() {
            group.awaited |= append != Append::Lazy;
            match append {
                Append::Fresh => group.fresh.push(change),
                Append::Lazy | Append::Awaited => group.changes.push(change),
            }
        }
        group
    }
}
