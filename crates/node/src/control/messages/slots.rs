//! Subscriptions at a time: some for the holder of the admin token, some for all users, a few for each.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Subscriptions of the holder of the admin token, and of all users together.
pub(super) const MAX_SUBSCRIPTIONS: usize = 16;
/// Subscriptions of one user.
pub(super) const MAX_OF_USER: usize = 4;

/// The slots that are free.
pub(super) struct Slots {
    of_token: Arc<Semaphore>,
    of_users: Arc<Semaphore>,
    by_user: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

/// The slot of a subscription, until it is dropped.
pub(super) struct Slot {
    _shared: OwnedSemaphorePermit,
    _own: Option<OwnedSemaphorePermit>,
}

impl Slots {
    pub fn new() -> Self {
        let all = || Arc::new(Semaphore::new(MAX_SUBSCRIPTIONS));
        Self { of_token: all(), of_users: all(), by_user: Mutex::default() }
    }

    /// Takes a slot for a user, or for the holder of the admin token; `None` if none is free.
    pub fn take(&self, user: Option<&Arc<str>>) -> Option<Slot> {
        let Some(user) = user else {
            return Some(Slot { _shared: self.of_token.clone().try_acquire_owned().ok()?, _own: None });
        };
        let own = {
            let mut by_user = self.by_user.lock();
            by_user.retain(|_, slots| slots.available_permits() < MAX_OF_USER);
            let slots = by_user.entry(user.clone());
            slots
                .or_insert_with(|| Arc::new(Semaphore::new(MAX_OF_USER)))
                .clone()
                .try_acquire_owned()
                .ok()?
        };
        let shared = self.of_users.clone().try_acquire_owned().ok()?;
        Some(Slot { _shared: shared, _own: Some(own) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_slots_to_others_and_all_users_to_the_token() {
        let slots = Slots::new();
        let user = |number: usize| Arc::<str>::from(format!("user-{number}"));
        let mut taken: Vec<_> = (0..20).filter_map(|_| slots.take(Some(&user(0)))).collect();
        assert_eq!(taken.len(), MAX_OF_USER);
        taken.extend(
            (1..20).flat_map(|number| [number; 9]).filter_map(|number| slots.take(Some(&user(number)))),
        );
        assert_eq!(taken.len(), MAX_SUBSCRIPTIONS);
        let of_token: Vec<_> = (0..20).filter_map(|_| slots.take(None)).collect();
        assert_eq!(of_token.len(), MAX_SUBSCRIPTIONS);
        taken.clear();
        assert!(slots.take(Some(&user(7))).is_some());
        assert_eq!(slots.by_user.lock().len(), 1, "users without subscriptions are forgotten");
    }
}
