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

    /// No bytes, to which others may be added.
    pub fn nothing(&self) -> Taken {
        Taken { budget: self.clone(), bytes: 0 }
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
    /// Takes more of them; false if there are not so many.
    pub fn grow(&mut self, bytes: usize) -> bool {
        match self.budget.take(bytes) {
            Some(mut more) => {
                self.bytes += std::mem::take(&mut more.bytes);
                true
            }
            None => false,
        }
    }

    /// Bytes that are not taken.
    pub fn free(&self) -> usize {
        self.budget.free()
    }

    /// How many these are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

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
        let mut more = budget.take(1).unwrap();
        assert!(more.grow(2) && !more.grow(2));
        assert_eq!((more.bytes(), budget.free()), (3, 1));
        drop((six, more));
        assert!(budget.take(10).is_some());
    }
}
