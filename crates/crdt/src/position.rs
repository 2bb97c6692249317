//! Positions of the elements of lists, texts and arrays: names in a dense order, so that a removed element leaves nothing behind
//! (Andre et al.: Supporting Adaptable Granularity of Changes for Massive-Scale Collaborative Editing, 2013).

use crate::context::Dot;
use crate::trail::Trail;

/// Maximum number of marks of a position.
pub(crate) const MAX_POSITION_DEPTH: usize = 1024;

/// Distance of digits at the end and at the beginning of a sequence.
const WIDE: u128 = 1 << 32;
/// Repeated insertion at one place takes this part of the interval, as a power of two.
const NARROW: u32 = 20;

/// One step of a position. A digit is at least 1, except in a step that others follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub(crate) digit: u64,
    /// Elements that were inserted together, or by one replica one after another, are a run: it has the dot of its first element.
    pub(crate) run: Dot,
    /// The place in the run.
    pub(crate) offset: u64,
}

pub(crate) type Position = Trail<Mark>;

/// An element beside which another is inserted.
#[derive(Debug, Clone)]
pub(crate) struct Neighbour {
    pub(crate) position: Position,
    /// The dot of its value.
    pub(crate) dot: Dot,
}

/// The neighbour beside which insertions follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nearer {
    Left,
    Right,
    Neither,
}

impl Position {
    /// The position `count` places further in its run.
    pub(crate) fn shifted(&self, count: u64) -> Self {
        self.with(Mark { offset: self.step.offset.saturating_add(count), ..self.step })
    }

    /// The dot of the element that was inserted here first, if the elements of its run have consecutive dots.
    pub(crate) fn dot(&self) -> Dot {
        let Mark { run, offset, .. } = self.step;
        Dot { number: run.number.saturating_add(offset), ..run }
    }

    /// True if both positions are in the same run.
    pub(crate) fn is_in_run_of(&self, other: &Self) -> bool {
        (self.depth(), self.step.digit, self.step.run) == (other.depth(), other.step.digit, other.step.run)
            && self.is_beside(other)
    }

    /// The position of a new element, or of the first of several, with the dot `new`. `latest` is the number of a replica's latest
    /// dot. `None` if the position would have more than [`MAX_POSITION_DEPTH`] marks.
    pub(crate) fn between(
        left: Option<&Neighbour>,
        right: Option<&Neighbour>,
        new: Dot,
        latest: impl Fn(Dot) -> u64,
    ) -> Option<Self> {
        // A later place of the run cannot have been used: its element would have a later dot.
        if let Some(Neighbour { position, dot }) = left
            && (dot.replica, dot.number.checked_add(1)) == (new.replica, Some(new.number))
            && *dot == position.dot()
            && !right.is_some_and(|right| follows(*dot, right.dot))
        {
            let next = position.shifted(1);
            if right.is_none_or(|right| next < right.position) {
                return Some(next);
            }
        }
        let nearer = match (left, right) {
            (Some(left), Some(right)) => nearer(left.dot, right.dot, latest),
            _ => Nearer::Neither,
        };
        allocate(left.map(|left| &left.position), right.map(|right| &right.position), nearer, new)
    }
}

fn nearer(left: Dot, right: Dot, latest: impl Fn(Dot) -> u64) -> Nearer {
    let after = |one: Dot, other: Dot| latest(one) == one.number && !follows(one, other);
    match (after(left, right), after(right, left)) {
        (true, false) => Nearer::Left,
        (false, true) => Nearer::Right,
        _ => Nearer::Neither,
    }
}

/// True if a replica wrote one directly after the other. Insertion between the two elements that were inserted last, again and
/// again, needs the middle: there is no side to which room remains.
fn follows(one: Dot, other: Dot) -> bool {
    one.replica == other.replica && other.number.checked_add(1) == Some(one.number)
}

/// A new position between two others.
fn allocate(
    mut left: Option<&Position>,
    mut right: Option<&Position>,
    nearer: Nearer,
    run: Dot,
) -> Option<Position> {
    let mut above = None;
    for depth in 1..=MAX_POSITION_DEPTH {
        let low = left.filter(|left| left.depth() >= depth).map(|left| left.beginning(depth).step);
        let high = right.filter(|right| right.depth() >= depth).map(|right| right.beginning(depth).step);
        if let (Some(low), Some(high)) = (low, high)
            && low == high
        {
            above = left.and_then(|left| left.beginning_to_continue(depth));
            continue;
        }
        if let Some(digit) = digit(low.map(|low| low.digit), high.map(|high| high.digit), nearer) {
            return Some(Position::new(above, Mark { digit, run, offset: 0 }));
        }
        match (low, high) {
            // All that continues the left position is before the right one.
            (Some(_), _) => {
                above = left.and_then(|left| left.beginning_to_continue(depth));
                right = None;
            }
            (None, Some(high)) if high.digit == 0 => {
                above = right.and_then(|right| right.beginning_to_continue(depth));
                left = None;
            }
            (None, _) => {
                let bridge = Position::new(above, Mark { digit: 0, run, offset: 0 });
                above = bridge.beginning_to_continue(depth);
                (left, right) = (None, None);
            }
        }
    }
    None
}

/// A digit between two others; `None` if there is none.
fn digit(low: Option<u64>, high: Option<u64>, nearer: Nearer) -> Option<u64> {
    let (from, to) = (u128::from(low.unwrap_or(0)), high.map_or(1 << 64, u128::from));
    let room = to.saturating_sub(from);
    if room < 2 {
        return None;
    }
    let narrow = (room >> NARROW).max(1);
    let digit = match (low, high, nearer) {
        (None, None, _) => 1 << 63,
        (Some(_), None, _) => from + WIDE.min(room / 2),
        (None, Some(_), _) => to - WIDE.min(room / 2),
        (.., Nearer::Left) => from + narrow,
        (.., Nearer::Right) => to - narrow,
        (.., Nearer::Neither) => from + room / 2,
    };
    u64::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplicaId;

    fn dot(number: u64) -> Dot {
        Dot { replica: ReplicaId::new(1, 1), number }
    }

    fn at(marks: &[(u64, u64, u64)]) -> Position {
        let mut above = None;
        for (digit, run, offset) in marks {
            let next = Position::new(above, Mark { digit: *digit, run: dot(*run), offset: *offset });
            above = Some(std::sync::Arc::new(next));
        }
        (*above.unwrap()).clone()
    }

    /// Also where there is no digit between.
    #[test]
    fn there_is_always_a_position_between() {
        let all = [
            at(&[(0, 1, 0), (1, 1, 0)]),
            at(&[(0, 1, 0), (5, 1, 0)]),
            at(&[(1, 2, 0)]),
            at(&[(1, 2, 1)]),
            at(&[(1, 2, 1), (0, 3, 0), (7, 4, 0)]),
            at(&[(1, 2, 1), (1, 3, 0)]),
            at(&[(1, 2, 1), (u64::MAX, 3, 0)]),
            at(&[(1, 2, 2)]),
            at(&[(1, 3, 0)]),
            at(&[(2, 2, 0)]),
            at(&[(u64::MAX, 2, 0)]),
        ];
        assert!(all.is_sorted());
        for nearer in [Nearer::Left, Nearer::Right, Nearer::Neither] {
            for left in 0..=all.len() {
                for right in left..=all.len() {
                    let (left, right) = (left.checked_sub(1).map(|left| &all[left]), all.get(right));
                    let new = allocate(left, right, nearer, dot(9)).unwrap();
                    assert!(left.is_none_or(|left| *left < new), "{left:?} {new:?}");
                    assert!(right.is_none_or(|right| new < *right), "{right:?} {new:?}");
                    assert!(new.step.digit > 0);
                }
            }
        }
    }
}
