//! Hybrid logical time: close to the wall clock, but it never runs backwards and is never behind a write that was
//! seen (Kulkarni et al.: Logical Physical Clocks, 2014).

use serde::{Deserialize, Serialize};

use crate::ReplicaId;

/// A point in hybrid logical time; ordered by wall time, then by the logical part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Hlc {
    /// Milliseconds since the Unix epoch.
    pub wall_ms: u64,
    /// Orders events of the same millisecond.
    pub logical: u32,
}

impl Hlc {
    /// The smallest time after this one; the end of time is its own successor.
    pub fn successor(self) -> Self {
        match (self.logical.checked_add(1), self.wall_ms.checked_add(1)) {
            (Some(logical), _) => Self { logical, ..self },
            (None, Some(wall_ms)) => Self { wall_ms, logical: 0 },
            (None, None) => self,
        }
    }
}

/// The time and the replica of a write. The replica breaks ties, so any two writes are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// The time of the write.
    pub hlc: Hlc,
    /// The replica that wrote.
    pub replica: ReplicaId,
}

/// A replica's clock. It holds no time source: the wall clock's reading is passed in.
///
/// If the wall clock jumps back (a Raspberry Pi starts without a clock), the logical part counts on from the last
/// time. A remote write far in the future moves this clock to that time. The caller must check how far ahead a remote
/// write may be before it calls [`observe`](Self::observe).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HybridClock {
    last: Hlc,
}

impl HybridClock {
    /// The time of a local event, later than every time returned or observed before.
    pub fn tick(&mut self, now_ms: u64) -> Hlc {
        let now = Hlc { wall_ms: now_ms, logical: 0 };
        self.last = now.max(self.last.successor());
        self.last
    }

    /// The last time that was returned or observed.
    pub fn latest(&self) -> Hlc {
        self.last
    }

    /// Observes a time of another replica, or a time that was read from the store.
    pub fn observe(&mut self, seen: Hlc, now_ms: u64) {
        self.last = self.last.max(seen).max(Hlc { wall_ms: now_ms, logical: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_grow_when_the_wall_clock_stands_still_or_jumps_back() {
        let mut clock = HybridClock::default();
        let times: Vec<Hlc> = [10, 10, 3, 11, 0].into_iter().map(|now| clock.tick(now)).collect();
        let expected = [(10, 0), (10, 1), (10, 2), (11, 0), (11, 1)];
        assert_eq!(times, expected.map(|(wall_ms, logical)| Hlc { wall_ms, logical }));
    }

    #[test]
    fn a_tick_is_later_than_what_was_observed() {
        let mut clock = HybridClock::default();
        clock.observe(Hlc { wall_ms: 500, logical: 7 }, 20);
        assert_eq!(clock.tick(21), Hlc { wall_ms: 500, logical: 8 });
    }

    #[test]
    fn the_logical_part_carries_into_the_wall_time() {
        let full = Hlc { wall_ms: 5, logical: u32::MAX };
        assert_eq!(full.successor(), Hlc { wall_ms: 6, logical: 0 });
        let end = Hlc { wall_ms: u64::MAX, logical: u32::MAX };
        assert_eq!(end.successor(), end);
    }
}
