//! A bounded resource that functions share: nobody takes all of it, and what is released goes to the function that holds
//! least.
//!
//! An owner that holds something may take more as long as it then holds at most [`FREE_FACTOR`] times the free rest
//! (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). Alone it has 7/8 of the
//! pool, one of two has 7/15, one of eight has 7/57; the rest is free for the next function that comes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// How much more than the free rest an owner may hold.
const FREE_FACTOR: usize = 7;
/// Requests of one owner that may wait for their share; further ones are refused.
const MAX_WAITING_PER_OWNER: usize = 1024;
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The pool. Clones are the same pool.
#[derive(Debug, Clone)]
pub struct FairPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// What is shared, in the plural, for errors.
    what: &'static str,
    capacity: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    /// Those that hold something or wait.
    owners: HashMap<Arc<str>, Owner>,
    /// Waiters of all owners.
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
    give: oneshot::Sender<Share>,
}

/// A part of the pool; returned when it is dropped.
#[derive(Debug)]
pub struct Share {
    pool: FairPool,
    owner: Arc<str>,
    amount: usize,
}

/// Why an owner gets nothing of the pool.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// Too many requests of the owner wait already.
    #[error(
        "{owner} has {held} of the node's {capacity} {what}, and {waiting} more wait for one; try again later"
    )]
    QueueFull {
        /// The function or workflow.
        owner: Arc<str>,
        /// What the pool consists of.
        what: &'static str,
        /// How much the owner holds.
        held: usize,
        /// How much the pool has.
        capacity: usize,
        /// How many requests of the owner wait.
        waiting: usize,
    },
    /// None was free in time.
    #[error(
        "{owner} has {held} of the node's {capacity} {what}, and none was free for it within {MAX_WAIT:?}; try again later"
    )]
    TimedOut {
        /// The function or workflow.
        owner: Arc<str>,
        /// What the pool consists of.
        what: &'static str,
        /// How much the owner holds.
        held: usize,
        /// How much the pool has.
        capacity: usize,
    },
}

impl FairPool {
    /// A pool of `capacity` units, called `what` in errors.
    pub fn new(what: &'static str, capacity: usize) -> Self {
        Self(Arc::new(Inner { what, capacity, state: Mutex::default() }))
    }

    /// How many units there are.
    pub fn capacity(&self) -> usize {
        self.0.capacity
    }

    /// `amount` units for `owner`, if it may have them now.
    pub fn try_take(&self, owner: &Arc<str>, amount: usize) -> Option<Share> {
        let taken = self.0.state.lock().take(self.0.capacity, owner, amount);
        taken.then(|| self.share(owner.clone(), amount))
    }

    /// `amount` units for `owner`. Waits while its share is used up. Dropping the future gives up its place.
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
        let (id, given) = {
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
            let (give, given) = oneshot::channel();
            entry.waiting.insert(id, Waiter { amount, give });
            (state.next_waiter, state.waiting) = (id + 1, state.waiting + 1);
            (id, given)
        };
        let place = Place { pool: self, owner, id };
        let given = tokio::time::timeout(wait, given).await;
        drop(place);
        match given {
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

    /// Gives the free rest to those that wait.
    fn grant(&self, state: &mut State) {
        while let Some((owner, waiter)) = state.next(self.0.capacity) {
            let share = self.share(owner, waiter.amount);
            // The waiter has gone.
            if let Err(unwanted) = waiter.give.send(share) {
                state.give_back(&unwanted.owner, unwanted.amount);
                unwanted.forget();
            }
        }
    }
}

impl State {
    fn held(&self, owner: &Arc<str>) -> usize {
        self.owners.get(owner).map_or(0, |owner| owner.held)
    }

    /// Whether an owner that holds `held` may have `amount` more.
    fn may_have(&self, capacity: usize, held: usize, amount: usize) -> bool {
        let free = capacity - self.used;
        amount <= free && (held == 0 || held + amount <= FREE_FACTOR * free)
    }

    /// Whether an owner with so much has no more than everybody's equal part.
    fn is_within_equal_part(&self, capacity: usize, held: usize, amount: usize) -> bool {
        held == 0 || (held + amount) * self.owners.len() <= capacity
    }

    /// Takes without waiting, and without overtaking those that wait with better right.
    fn take(&mut self, capacity: usize, owner: &Arc<str>, amount: usize) -> bool {
        let (held, queues) =
            self.owners.get(owner).map_or((0, false), |owner| (owner.held, !owner.waiting.is_empty()));
        let goes_first =
            self.is_within_equal_part(capacity, held, amount) || !self.has_poor_waiter(capacity);
        if queues || !goes_first || !self.may_have(capacity, held, amount) {
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

    /// Whether somebody waits who has less than an equal part.
    fn has_poor_waiter(&self, capacity: usize) -> bool {
        let poor = |owner: &Owner| {
            let first = owner.waiting.first_key_value();
            first.is_some_and(|(_, first)| self.is_within_equal_part(capacity, owner.held, first.amount))
        };
        self.waiting > 0 && self.owners.values().any(poor)
    }

    /// Grants the next waiter what it waits for: the first one of the owner that holds least. One that has less than an equal
    /// part and needs more than there is lets nobody pass who has more.
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
    /// How much it is.
    pub fn amount(&self) -> usize {
        self.amount
    }

    /// Adds `amount` to it, if the owner may have it now.
    pub fn try_grow(&mut self, amount: usize) -> bool {
        let Some(mut more) = self.pool.try_take(&self.owner, amount) else { return false };
        self.amount += std::mem::take(&mut more.amount);
        true
    }

    /// Its amount was returned already.
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

/// A place in the queue, which nobody keeps who no longer waits.
struct Place<'a> {
    pool: &'a FairPool,
    owner: &'a Arc<str>,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.0.state.lock();
        if let Some(owner) = state.owners.get_mut(self.owner)
            && owner.waiting.remove(&self.id).is_some()
        {
            state.waiting -= 1;
            state.forget_if_idle(self.owner);
            // It may have been the one that the others waited for.
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

    /// Takes one at a time until no more is given.
    fn greedy(pool: &FairPool, owner: &Arc<str>) -> Vec<Share> {
        std::iter::from_fn(|| pool.try_take(owner, 1)).collect()
    }

    #[test]
    fn alone_it_is_nearly_all_and_the_next_one_finds_some() {
        let pool = FairPool::new("requests", 512);
        let (a, b, c) = (name("a"), name("b"), name("c"));
        let of_a = greedy(&pool, &a);
        assert_eq!(of_a.len(), 448);
        let (of_b, of_c) = (greedy(&pool, &b), greedy(&pool, &c));
        assert!(of_b.len() >= 50 && of_c.len() >= 5, "{} {}", of_b.len(), of_c.len());
        drop((of_a, of_b, of_c));
        assert!(pool.0.state.lock().owners.is_empty());
        assert_eq!(greedy(&pool, &c).len(), 448);
    }

    #[tokio::test]
    async fn what_is_released_goes_to_the_one_that_has_least() {
        let pool = FairPool::new("requests", 512);
        let (a, b) = (name("a"), name("b"));
        let mut of_a = greedy(&pool, &a);
        let mut of_b = greedy(&pool, &b);
        let mut more_of_a = Box::pin(pool.take(&a, 1));
        assert!(more_of_a.as_mut().now_or_never().is_none());
        // Each one that ends is b's, until both have the same.
        loop {
            // A task that polls for long without a wait finds nothing ready.
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
        assert!(more_of_a.now_or_never().is_some(), "b has gone");
    }

    #[tokio::test]
    async fn a_large_amount_is_not_overtaken_for_ever_by_small_ones() {
        let pool = FairPool::new("bytes", 64);
        let (a, b) = (name("a"), name("b"));
        let mut of_a = greedy(&pool, &a);
        assert_eq!(of_a.len(), 56);
        let mut large = Box::pin(pool.take(&b, 16));
        assert!(large.as_mut().now_or_never().is_none());
        of_a.truncate(49);
        // 15 are free, and a would have two of them.
        assert!(pool.try_take(&a, 1).is_none());
        of_a.pop();
        assert!(large.now_or_never().is_some_and(|share| share.is_ok()));
    }

    #[tokio::test]
    async fn waiting_has_an_end_and_a_bound_and_those_that_left_are_forgotten() {
        let pool = FairPool::new("requests", 8);
        let (a, b) = (name("a"), name("b"));
        let of_a = greedy(&pool, &a);
        let mut waiting: Vec<_> = (0..MAX_WAITING_PER_OWNER).map(|_| Box::pin(pool.take(&a, 1))).collect();
        for waits in &mut waiting {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        let refused = pool.take(&a, 1).await.unwrap_err();
        assert!(matches!(refused, ShareError::QueueFull { held: 7, waiting: 1024, .. }), "{refused}");
        assert!(pool.try_take(&b, 1).is_some(), "a's queue is not b's");
        drop(waiting);
        assert_eq!(pool.0.state.lock().waiting, 0);
        let late = pool.take_within(&a, 1, Duration::ZERO).await.unwrap_err();
        assert!(late.to_string().starts_with("a has 7 of the node's 8 requests"), "{late}");
        drop(of_a);
        assert!(pool.0.state.lock().owners.is_empty());
    }
}
