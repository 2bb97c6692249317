//! A bounded resource that functions share: no function can take all of it, and released units go to the function that holds
//! the least.
//!
//! An owner that holds units may take more if it then holds at most [`FREE_FACTOR`] times the free units (dynamic
//! thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). A single owner can have 7/8 of the pool,
//! each of two 7/15, each of eight 7/57. The rest stays free for the next owner.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum ratio between the units of an owner and the free units.
const FREE_FACTOR: usize = 7;
/// Maximum number of waiting requests of one owner.
const MAX_WAITING_PER_OWNER: usize = 1024;
/// Maximum wait for a share.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The pool. Clones share the same units.
#[derive(Debug, Clone)]
pub struct FairPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The plural name of the units, for errors.
    what: &'static str,
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// Owners that hold units or wait.
    owners: HashMap<Arc<str>, Owner>,
    /// Number of waiters of all owners.
    waiting: usize,
    next_waiter: u64,
}

#[derive(Debug, Default)]
struct Owner {
    held: usize,
    waiting: BTreeMap<u64, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    amount: usize,
    share: oneshot::Sender<Share>,
}

/// Units of the pool. Dropping the share returns them.
#[derive(Debug)]
pub struct Share {
    pool: FairPool,
    owner: Arc<str>,
    amount: usize,
}

/// Errors of taking a share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// Too many requests of the owner wait already.
    #[error(
        "{owner} has {held} of the node's {capacity} {what}, and {waiting} more requests wait; try again later"
    )]
    QueueFull {
        /// The function or workflow.
        owner: Arc<str>,
        /// The plural name of the units.
        what: &'static str,
        /// Number of units that the owner holds.
        held: usize,
        /// Number of units of the pool.
        capacity: usize,
        /// Number of waiting requests of the owner.
        waiting: usize,
    },
    /// No units became free in time.
    #[error(
        "{owner} has {held} of the node's {capacity} {what}, and none was free for it within {MAX_WAIT:?}; try again later"
    )]
    TimedOut {
        /// The function or workflow.
        owner: Arc<str>,
        /// The plural name of the units.
        what: &'static str,
        /// Number of units that the owner holds.
        held: usize,
        /// Number of units of the pool.
        capacity: usize,
    },
}

impl FairPool {
    /// A pool of `capacity` units, called `what` in errors.
    pub fn new(what: &'static str, capacity: usize) -> Self {
        Self(Arc::new(Inner { what, capacity, state: Mutex::default() }))
    }

    /// Number of units of the pool.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// Takes `amount` units for `owner`, if it may have them now.
    pub fn try_take(&self, owner: &Arc<str>, amount: usize) -> Option<Share> {
        let taken = self.0.state.lock().take(self.0.capacity, owner, amount);
        taken.then(|| self.share(owner.clone(), amount))
    }

    /// Takes `amount` units for `owner`. Waits while its share is used up. Dropping the future cancels the wait.
    ///
    /// # Errors
    /// [`ShareError::QueueFull`] immediately, [`ShareError::TimedOut`] after 30 s.
    pub async fn take(&self, owner: &Arc<str>, amount: usize) -> Result<Share, ShareError> {
        self.take_within(owner, amount, MAX_WAIT).await
    }

    async fn take_within(
        &self,
        owner: &Arc<str>,
        amount: usize,
        wait: Duration,
    ) -> Result<Share, ShareError> {
        let (id, share) = {
            let mut state = self.0.state.lock();
            if state.take(self.0.capacity, owner, amount) {
                drop(state);
                return Ok(self.share(owner.clone(), amount));
            }
            let id = state.next_waiter;
            let entry = state.owners.entry(owner.clone()).or_default();
            let (held, waiting) = (entry.held, entry.waiting.len());
            if waiting >= MAX_WAITING_PER_OWNER {
                let (owner, Inner { what, capacity, .. }) = (owner.clone(), &*self.0);
                return Err(ShareError::QueueFull { owner, what, held, capacity: *capacity, waiting });
            }
            let (sender, share) = oneshot::channel();
            entry.waiting.insert(id, Waiter { amount, share: sender });
            (state.next_waiter, state.waiting) = (id + 1, state.waiting + 1);
            (id, share)
        };
        let guard = WaitGuard { pool: self, owner, id };
        let granted = tokio::time::timeout(wait, share).await;
        drop(guard);
        match granted {
            Ok(Ok(share)) => Ok(share),
            _ => {
                let held = self.0.state.lock().held(owner);
                let (owner, Inner { what, capacity, .. }) = (owner.clone(), &*self.0);
                Err(ShareError::TimedOut { owner, what, held, capacity: *capacity })
            }
        }
    }

    fn share(&self, owner: Arc<str>, amount: usize) -> Share {
        Share { pool: self.clone(), owner, amount }
    }

    fn release(&self, owner: &Arc<str>, amount: usize) {
        let mut state = self.0.state.lock();
        state.give_back(owner, amount);
        self.grant(&mut state);
    }

    /// Grants free units to waiters.
    fn grant(&self, state: &mut State) {
        while let Some((owner, waiter)) = state.next(self.0.capacity) {
            let share = self.share(owner, waiter.amount);
            // The waiter was dropped.
            if let Err(returned) = waiter.share.send(share) {
                state.give_back(&returned.owner, returned.amount);
                returned.forget();
            }
        }
    }
}

impl State {
    fn held(&self, owner: &Arc<str>) -> usize {
        self.owners.get(owner).map_or(0, |owner| owner.held)
    }

    /// True if an owner that holds `held` units may have `amount` more.
    fn may_have(&self, capacity: usize, held: usize, amount: usize) -> bool {
        let free = capacity - self.used;
        amount <= free && (held == 0 || held + amount <= FREE_FACTOR * free)
    }

    /// True if an owner with `held + amount` units has at most an equal share: the capacity divided by the number of owners.
    fn is_within_equal_share(&self, capacity: usize, held: usize, amount: usize) -> bool {
        held == 0 || (held + amount) * self.owners.len() <= capacity
    }

    /// Takes units without waiting. Fails if a waiter has priority.
    fn take(&mut self, capacity: usize, owner: &Arc<str>, amount: usize) -> bool {
        let (held, has_waiters) =
            self.owners.get(owner).map_or((0, false), |owner| (owner.held, !owner.waiting.is_empty()));
        let has_priority = self.is_within_equal_share(capacity, held, amount)
            || !self.has_waiter_below_equal_share(capacity);
        if has_waiters || !has_priority || !self.may_have(capacity, held, amount) {
            return false;
        }
        self.used += amount;
        match self.owners.get_mut(owner) {
            Some(owner) => owner.held += amount,
            None => {
                self.owners.insert(owner.clone(), Owner { held: amount, ..Owner::default() });
            }
        }
        true
    }

    /// True if an owner waits that would have at most an equal share.
    fn has_waiter_below_equal_share(&self, capacity: usize) -> bool {
        let is_below = |owner: &Owner| {
            let first = owner.waiting.first_key_value();
            first.is_some_and(|(_, first)| self.is_within_equal_share(capacity, owner.held, first.amount))
        };
        self.waiting > 0 && self.owners.values().any(is_below)
    }

    /// Grants units to the next waiter: the first one of the owner that holds the fewest units. If not enough units are free for
    /// it, no other waiter is served before it.
    fn next(&mut self, capacity: usize) -> Option<(Arc<str>, Waiter)> {
        if self.waiting == 0 {
            return None;
        }
        let queues = self.owners.iter().filter_map(|(name, owner)| {
            let (id, first) = owner.waiting.first_key_value()?;
            Some((owner.held, *id, first.amount, name))
        });
        let (held, id, amount, name) = queues.min()?;
        let name = name.clone();
        if !self.may_have(capacity, held, amount) {
            return None;
        }
        let owner = self.owners.get_mut(&name)?;
        let waiter = owner.waiting.remove(&id)?;
        owner.held += amount;
        (self.used, self.waiting) = (self.used + amount, self.waiting - 1);
        Some((name, waiter))
    }

    fn give_back(&mut self, owner: &Arc<str>, amount: usize) {
        self.used -= amount;
        if let Some(entry) = self.owners.get_mut(owner) {
            entry.held -= amount;
            self.forget_if_idle(owner);
        }
    }

    fn forget_if_idle(&mut self, owner: &Arc<str>) {
        if self.owners.get(owner).is_some_and(|owner| owner.held == 0 && owner.waiting.is_empty()) {
            self.owners.remove(owner);
        }
    }
}

impl Share {
    /// Number of units.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Adds `amount` units, if the owner may have them now.
    pub fn try_grow(&mut self, amount: usize) -> bool {
        let Some(mut more) = self.pool.try_take(&self.owner, amount) else { return false };
        self.amount += std::mem::take(&mut more.amount);
        true
    }

    /// Drops a share whose units were returned already.
    fn forget(mut self) {
        self.amount = 0;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.pool.clone().release(&self.owner, self.amount);
        }
    }
}

/// Removes a waiter from the queue when its future is dropped or its time is over.
struct WaitGuard<'a> {
    pool: &'a FairPool,
    owner: &'a Arc<str>,
    id: u64,
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.0.state.lock();
        if let Some(owner) = state.owners.get_mut(self.owner)
            && owner.waiting.remove(&self.id).is_some()
        {
            state.waiting -= 1;
            state.forget_if_idle(self.owner);
            // It may have been the next waiter, which blocked the others.
            self.pool.grant(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn name(owner: &str) -> Arc<str> {
        owner.into()
    }

    /// Takes single units until none is granted.
    fn take_all(pool: &FairPool, owner: &Arc<str>) -> Vec<Share> {
        std::iter::from_fn(|| pool.try_take(owner, 1)).collect()
    }

    #[test]
    fn a_single_owner_gets_most_units_and_the_next_ones_find_some() {
        let pool = FairPool::new("requests", 512);
        let (a, b, c) = (name("a"), name("b"), name("c"));
        let of_a = take_all(&pool, &a);
        assert_eq!(of_a.len(), 448);
        let (of_b, of_c) = (take_all(&pool, &b), take_all(&pool, &c));
        assert!(of_b.len() >= 50 && of_c.len() >= 5, "{} {}", of_b.len(), of_c.len());
        drop((of_a, of_b, of_c));
        assert!(pool.0.state.lock().owners.is_empty());
        assert_eq!(take_all(&pool, &c).len(), 448);
    }

    #[tokio::test]
    async fn released_units_go_to_the_owner_that_holds_the_fewest() {
        let pool = FairPool::new("requests", 512);
        let (a, b) = (name("a"), name("b"));
        let mut of_a = take_all(&pool, &a);
        let mut of_b = take_all(&pool, &b);
        let mut more_of_a = Box::pin(pool.take(&a, 1));
        assert!(more_of_a.as_mut().now_or_never().is_none());
        // Each unit that `a` releases goes to `b`, until both have the same number.
        loop {
            // A task that never yields uses up its budget of tokio, and then finds nothing ready.
            tokio::task::yield_now().await;
            let mut next = Box::pin(pool.take(&b, 1));
            if of_b.len() >= 230 {
                break;
            }
            match next.as_mut().now_or_never() {
                Some(share) => of_b.push(share.unwrap()),
                None => {
                    of_a.pop();
                    if let Some(share) = next.now_or_never() {
                        of_b.push(share.unwrap());
                    }
                }
            }
        }
        assert!((230..=260).contains(&of_a.len()), "{}", of_a.len());
        assert!(more_of_a.as_mut().now_or_never().is_none());
        drop(of_b);
        tokio::task::yield_now().await;
        assert!(more_of_a.now_or_never().is_some(), "b has released all its units");
    }

    #[tokio::test]
    async fn small_amounts_do_not_overtake_a_waiting_large_one() {
        let pool = FairPool::new("bytes", 64);
        let (a, b) = (name("a"), name("b"));
        let mut of_a = take_all(&pool, &a);
        assert_eq!(of_a.len(), 56);
        let mut large = Box::pin(pool.take(&b, 16));
        assert!(large.as_mut().now_or_never().is_none());
        of_a.truncate(49);
        // 15 units are free. Without the waiter, `a` could take more.
        assert!(pool.try_take(&a, 1).is_none());
        of_a.pop();
        assert!(large.now_or_never().is_some_and(|share| share.is_ok()));
    }

    #[tokio::test]
    async fn waits_are_bounded_in_number_and_time_and_removed_when_dropped() {
        let pool = FairPool::new("requests", 8);
        let (a, b) = (name("a"), name("b"));
        let of_a = take_all(&pool, &a);
        let mut waiting: Vec<_> = (0..MAX_WAITING_PER_OWNER).map(|_| Box::pin(pool.take(&a, 1))).collect();
        for waits in &mut waiting {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        let refused = pool.take(&a, 1).await.unwrap_err();
        assert!(matches!(refused, ShareError::QueueFull { held: 7, waiting: 1024, .. }), "{refused}");
        assert!(pool.try_take(&b, 1).is_some(), "owners have separate queues");
        drop(waiting);
        assert_eq!(pool.0.state.lock().waiting, 0);
        let late = pool.take_within(&a, 1, Duration::ZERO).await.unwrap_err();
        assert!(late.to_string().starts_with("a has 7 of the node's 8 requests"), "{late}");
        drop(of_a);
        assert!(pool.0.state.lock().owners.is_empty());
    }
}
