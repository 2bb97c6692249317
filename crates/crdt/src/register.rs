//! A register whose last writer wins.

use bytes::Bytes;
use postcard::Error;

use crate::wire::{Reader, Wire};
use crate::{Hlc, ReplicaId, Timestamp};

/// A value and when it was written; the later write wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Register {
    pub(crate) written: Option<Written>,
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

    /// When the value was written; a clock that reads it back from a store should observe it.
    pub fn written_at(&self) -> Option<Timestamp> {
        self.written.as_ref().map(|written| written.at)
    }

    /// Sets the value and returns it as a delta. The timestamp is `now`, or just after the value that it
    /// replaces if that has a later time, because the writer has seen that value.
    pub fn set(&mut self, value: Bytes, replica: ReplicaId, now: Hlc) -> Self {
        let hlc = match &self.written {
            Some(current) => now.max(current.at.hlc.successor()),
            None => now,
        };
        self.written = Some(Written { at: Timestamp { hlc, replica }, value });
        self.clone()
    }

    /// Merges another state or delta; true if this changed anything.
    pub fn merge(&mut self, other: Self) -> bool {
        let newer = other.written > self.written;
        if newer {
            self.written = other.written;
        }
        newer
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
