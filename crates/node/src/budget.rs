//! Bytes that there are for something, over all who have some of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
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
        drop(six);
        assert!(budget.take(10).is_some());
    }
}
