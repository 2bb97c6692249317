//! Lists of steps that share their beginnings: positions of elements, and paths in JSON documents.

use std::cmp::Ordering;
use std::sync::Arc;

/// At least one step. Trails are ordered step by step; a beginning comes before what continues it.
#[derive(Debug, Clone)]
pub(crate) struct Trail<T> {
    above: Option<Arc<Trail<T>>>,
    pub(crate) step: T,
    depth: usize,
}

impl<T: Ord + Clone> Trail<T> {
    pub(crate) fn new(above: Option<Arc<Self>>, step: T) -> Self {
        let depth = above.as_ref().map_or(0, |above| above.depth) + 1;
        Self { above, step, depth }
    }

    /// The number of steps.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The same trail with another last step.
    pub(crate) fn with(&self, step: T) -> Self {
        Self { above: self.above.clone(), step, depth: self.depth }
    }

    /// The first `depth` steps; of a shorter trail all. `depth` is at least 1.
    pub(crate) fn beginning(&self, depth: usize) -> &Self {
        let mut at = self;
        while at.depth > depth
            && let Some(above) = &at.above
        {
            at = above;
        }
        at
    }

    /// The first `depth` steps, to be continued; `None` for 0.
    pub(crate) fn beginning_to_continue(&self, depth: usize) -> Option<Arc<Self>> {
        if depth >= self.depth {
            return Some(Arc::new(self.clone()));
        }
        let mut at = self.above.as_ref();
        while let Some(above) = at.filter(|above| above.depth > depth) {
            at = above.above.as_ref();
        }
        at.cloned()
    }

    /// True if `other` is this trail or continues it.
    pub(crate) fn is_beginning_of(&self, other: &Self) -> bool {
        other.depth >= self.depth && other.beginning(self.depth) == self
    }

    /// True if both have the same steps but perhaps the last.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        match (&self.above, &other.above) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs) || ours == theirs,
            _ => false,
        }
    }

    /// The number of steps that both begin with. Takes time for those that they do not share in memory.
    pub(crate) fn shared(&self, other: &Self) -> usize {
        let mut shared = self.depth.min(other.depth);
        let (mut ours, mut theirs) = (self.beginning(shared), other.beginning(shared));
        loop {
            if ours.step != theirs.step {
                shared = ours.depth - 1;
            }
            match (&ours.above, &theirs.above) {
                (Some(above), Some(other)) if !Arc::ptr_eq(above, other) => (ours, theirs) = (above, other),
                _ => return shared,
            }
        }
    }

    /// The steps from the first to the last.
    pub(crate) fn steps(&self) -> Vec<&T> {
        self.steps_after(0)
    }

    /// The steps after the first `depth`.
    pub(crate) fn steps_after(&self, depth: usize) -> Vec<&T> {
        let mut steps = Vec::with_capacity(self.depth - depth.min(self.depth));
        let mut at = Some(self);
        while let Some(trail) = at.filter(|trail| trail.depth > depth) {
            steps.push(&trail.step);
            at = trail.above.as_deref();
        }
        steps.reverse();
        steps
    }
}

impl<T: Ord + Clone> Ord for Trail<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        let depth = self.depth.min(other.depth);
        let (mut ours, mut theirs) = (self.beginning(depth), other.beginning(depth));
        let mut order = self.depth.cmp(&other.depth);
        loop {
            // The first step that differs decides; the loop goes from the last to the first.
            order = ours.step.cmp(&theirs.step).then(order);
            match (&ours.above, &theirs.above) {
                (Some(above), Some(other)) if !Arc::ptr_eq(above, other) => (ours, theirs) = (above, other),
                _ => return order,
            }
        }
    }
}

impl<T: Ord + Clone> PartialOrd for Trail<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord + Clone> PartialEq for Trail<T> {
    fn eq(&self, other: &Self) -> bool {
        self.depth == other.depth && self.cmp(other) == Ordering::Equal
    }
}

impl<T: Ord + Clone> Eq for Trail<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn trail(steps: &[u8]) -> Trail<u8> {
        let (last, above) = steps.split_last().unwrap();
        Trail::new((!above.is_empty()).then(|| Arc::new(trail(above))), *last)
    }

    #[test]
    fn trails_are_ordered_as_lists_are() {
        let mut lists = vec![];
        for a in 1..4u8 {
            lists.push(vec![a]);
            for b in 1..4 {
                lists.push(vec![a, b]);
                lists.extend((1..4).map(|c| vec![a, b, c]));
            }
        }
        for one in &lists {
            for other in &lists {
                assert_eq!(trail(one).cmp(&trail(other)), one.cmp(other), "{one:?} {other:?}");
                assert_eq!(trail(one).is_beginning_of(&trail(other)), other.starts_with(one));
                let shared = one.iter().zip(other).take_while(|(one, other)| one == other).count();
                assert_eq!(trail(one).shared(&trail(other)), shared);
            }
            assert_eq!(trail(one).steps(), one.iter().collect::<Vec<_>>());
            assert_eq!(trail(one).steps_after(1), one[1..].iter().collect::<Vec<_>>());
        }
    }
}
