//! A register whose last writer wins.

use bytes::Bytes;
use postcard::Error;

use crate::wire::{Reader, Wire};
use crate::{Hlc, ReplicaId, Timestamp};

/// A value and when it was written; the later write wins. A deletion is a write of nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Register {
    pub(crate) written: Option<Written>,
    /// The latest deletion. A value is later than it.
    pub(crate) deleted: Option<Timestamp>,
}

/// Ordered by time; the value only decides between writes that claim the same time and replica, which
/// no well-behaved replica makes, so that even then all replicas agree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Written {
    pub(crate) at: Timestamp,
    pub(crate) value: Bytes,
}

impl Register {
    /// The value; none if it was never set.
    pub fn get(&self) -> Option<&Bytes> {
        self.written.as_ref().map(|written| &written.value)
    }

    /// When the value was written or deleted; a clock that reads it back from a store should observe it.
    pub fn written_at(&self) -> Option<Timestamp> {
        let written = self.written.as_ref().map(|written| written.at);
        written.max(self.deleted)
    }

    /// Sets the value and returns it as a delta. The timestamp is `now`, or just after the value that it
    /// replaces if that has a later time, because the writer has seen that value.
    pub fn set(&mut self, value: Bytes, replica: ReplicaId, now: Hlc) -> Self {
        let written = Some(Written { at: self.next(replica, now), value });
        self.written.clone_from(&written);
        Self { written, deleted: None }
    }

    /// Deletes the value and returns the deletion as a delta.
    pub(crate) fn delete(&mut self, replica: ReplicaId, now: Hlc) -> Self {
        let deletion = Self { written: None, deleted: Some(self.next(replica, now)) };
        self.clone_from(&deletion);
        deletion
    }

    /// Merges another state or delta; true if this changed anything.
    pub fn merge(&mut self, other: Self) -> bool {
        let is_newer =
            |written: &Written| Some(written.at) > self.deleted && Some(written) > self.written.as_ref();
        let newer = other.written.filter(is_newer);
        let mut changed = newer.is_some();
        self.written = newer.or(self.written.take());
        if other.deleted > self.deleted {
            self.deleted = other.deleted;
            changed = true;
            self.written = self.written.take().filter(|written| Some(written.at) > self.deleted);
        }
        changed
    }

    fn next(&self, replica: ReplicaId, now: Hlc) -> Timestamp {
        let hlc = match self.written_at() {
            Some(current) => now.max(current.hlc.successor()),
            None => now,
        };
        Timestamp { hlc, replica }
    }
}

impl Wire for Written {
    fn write(&self, out: &mut Vec<u8>) {
        self.at.write(out);
        self.value.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(Self { at: Timestamp::read(from)?, value: Bytes::read(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ReplicaId = ReplicaId::new(1, 0);
    const B: ReplicaId = ReplicaId::new(2, 0);

    fn at(wall_ms: u64) -> Hlc {
        Hlc { wall_ms, logical: 0 }
    }

    #[test]
    fn a_local_write_wins_over_what_it_saw_even_if_its_clock_is_behind() {
        let (mut a, mut b) = (Register::default(), Register::default());
        let ahead = a.set("ahead".into(), A, at(1_000));
        b.merge(ahead);
        let behind = b.set("behind".into(), B, at(5));
        a.merge(behind);
        assert_eq!(a.get().unwrap(), "behind");
        assert_eq!(a, b);
    }

    #[test]
    fn writes_of_the_same_time_are_decided_by_the_replica() {
        let (mut a, mut b) = (Register::default(), Register::default());
        let (x, y) = (a.set("x".into(), A, at(7)), b.set("y".into(), B, at(7)));
        assert!(a.merge(y));
        assert!(!b.merge(x));
        assert_eq!(a, b);
        assert_eq!(a.get().unwrap(), "y");
    }
}
