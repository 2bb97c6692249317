//! What happens when: in order of time, and of planning at the same time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Events of one millisecond are sorted together: with a million timers one heap would not fit into the processor's cache.
const SLOT_US: u64 = 1_000;

/// Events by their time in microseconds.
#[derive(Debug)]
pub(in crate::simulation) struct Agenda<E> {
    /// Events of the current slot and of earlier ones.
    near: BinaryHeap<Reverse<Entry<E>>>,
    later: BTreeMap<u64, Vec<Entry<E>>>,
    slot: u64,
    sequence: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at_us: u64,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at_us, self.sequence) == (other.at_us, other.sequence)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_us, self.sequence).cmp(&(other.at_us, other.sequence))
    }
}

impl<E> Agenda<E> {
    pub(in crate::simulation) fn new() -> Self {
        Self { near: BinaryHeap::new(), later: BTreeMap::new(), slot: 0, sequence: 0 }
    }

    pub(in crate::simulation) fn plan(&mut self, at_us: u64, event: E) {
        self.sequence += 1;
        let entry = Entry { at_us, sequence: self.sequence, event };
        let slot = at_us / SLOT_US;
        if slot <= self.slot {
            self.near.push(Reverse(entry));
        } else {
            self.later.entry(slot).or_default().push(entry);
        }
    }

    /// The next event, if it is due by `end_us`.
    pub(in crate::simulation) fn next(&mut self, end_us: u64) -> Option<(u64, E)> {
        while self.near.is_empty() {
            let (slot, _) = self.later.first_key_value()?;
            if slot * SLOT_US > end_us {
                return None;
            }
            let (slot, entries) = self.later.pop_first()?;
            self.slot = slot;
            self.near = entries.into_iter().map(Reverse).collect();
        }
        if self.near.peek()?.0.at_us > end_us {
            return None;
        }
        self.near.pop().map(|Reverse(entry)| (entry.at_us, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_come_in_order_of_time_and_then_of_planning(
            times in prop::collection::vec(0_u64..9_000, 0..60), after in prop::collection::vec(0_u64..5_000, 0..60)
        ) {
            let mut agenda = Agenda::new();
            let mut expected: Vec<(u64, usize)> = Vec::new();
            for (index, at_us) in times.iter().enumerate() {
                agenda.plan(*at_us, index);
                expected.push((*at_us, index));
            }
            let (mut seen, mut after) = (Vec::new(), after.into_iter());
            while let Some((at_us, index)) = agenda.next(u64::MAX / 2) {
                seen.push((at_us, index));
                if let Some(delay_us) = after.next() {
                    let index = expected.len();
                    agenda.plan(at_us + delay_us, index);
                    expected.push((at_us + delay_us, index));
                }
            }
            expected.sort_unstable();
            prop_assert_eq!(seen, expected);
        }
    }

    #[test]
    fn events_after_the_end_stay() {
        let mut agenda = Agenda::new();
        agenda.plan(10, 'a');
        agenda.plan(5_000, 'b');
        assert_eq!(agenda.next(9), None);
        assert_eq!(agenda.next(10), Some((10, 'a')));
        assert_eq!(agenda.next(4_999), None);
        assert_eq!(agenda.next(5_000), Some((5_000, 'b')));
    }
}
