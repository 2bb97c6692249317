//! Bytes that there are for something, over all who have some of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

/// So many bytes and no more.
#[derive(Debug, Clone)]
pub struct Budget {
    most: usize,
    taken: Arc<AtomicUsize>,
}

/// Bytes of a budget; given back when it is dropped.
#[derive(Debug)]
pub struct Taken {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    /// Nothing of it is taken yet.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// How many bytes there are for all.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Bytes that are not taken.
    pub fn free(&self) -> usize {
        self.most.saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// So many of them, if there are.
    pub fn take(&self, bytes: usize) -> Option<Taken> {
        let taken = Taken { budget: self.clone(), bytes };
        let before = self.taken.fetch_add(bytes, Ordering::Relaxed);
        (before.saturating_add(bytes) <= self.most).then_some(taken)
    }
}

impl Taken {
    /// Changes how many bytes these are, also beyond the budget: for what exists already.
    pub fn resize(&mut self, bytes: usize) {
        match bytes >= self.bytes {
            true => self.budget.taken.fetch_add(bytes - self.bytes, Ordering::Relaxed),
            false => self.budget.taken.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
        };
        self.bytes = bytes;
    }

    /// The same bytes, which hold what they have taken for as long as anybody has them.
    pub fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Held { bytes, _taken: self })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Held {
    bytes: Bytes,
    _taken: Taken,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_as_much_as_there_is_and_it_comes_back() {
        let budget = Budget::new(10);
        let six = budget.take(6).unwrap();
        assert!(budget.take(5).is_none());
        let held = six.hold(Bytes::from_static(b"sixsix"));
        let part = held.slice(1..3);
        drop(held);
        assert!(budget.take(5).is_none(), "a part of it is still there");
        assert_eq!(part, "ix");
        drop(part);
        assert!(budget.take(10).is_some());
    }
}
