//! A limit in bytes for the data of several holders.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit in bytes. Clones share it.
#[derive(Debug, Clone)]
pub struct Budget {
    max_bytes: usize,
    taken: Arc<AtomicUsize>,
}

/// Bytes of a budget; a drop returns them.
#[derive(Debug)]
pub struct Taken {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    /// A budget of which no bytes are taken.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, taken: Arc::default() }
    }

    /// Takes 0 bytes, which may grow.
    pub fn take_none(&self) -> Taken {
        Taken { budget: self.clone(), bytes: 0 }
    }

    /// The limit, in bytes.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Bytes that are not taken.
    pub fn free(&self) -> usize {
        self.max_bytes.saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Takes `bytes`; `None` if fewer are free.
    pub fn take(&self, bytes: usize) -> Option<Taken> {
        let taken = Taken { budget: self.clone(), bytes };
        let before = self.taken.fetch_add(bytes, Ordering::Relaxed);
        (before.saturating_add(bytes) <= self.max_bytes).then_some(taken)
    }
}

impl Taken {
    /// Takes `bytes` more; false if fewer are free.
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

    /// The taken bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets the taken bytes, also beyond the limit: for data that exists already.
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
    fn bytes_are_taken_up_to_the_limit_and_returned() {
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
