//! Connections of sessions: each user has a share of those of the control port, so that nobody shuts out the command line and health checks.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of connections of all sessions; a half of those of the port.
pub(super) const MAX_SESSION_CONNECTIONS: usize = 64;
/// Maximum number of connections of the sessions of one user; a browser has six.
pub(super) const MAX_SESSION_CONNECTIONS_OF_USER: usize = 24;

/// Connections of sessions by user; the holder of the admin token has an empty name.
#[derive(Debug, Default)]
pub(in crate::control) struct SessionSlots(Mutex<HashMap<String, usize>>);

/// The place of one connection; a drop frees it.
#[derive(Debug)]
pub(in crate::control) struct SessionSlot {
    slots: Arc<SessionSlots>,
    user: String,
}

impl SessionSlots {
    /// A place for a connection of a user; `None` if the user or all users together have the maximum.
    pub fn take(self: &Arc<Self>, user: &str) -> Option<SessionSlot> {
        let mut held = self.0.lock();
        if held.values().sum::<usize>() >= MAX_SESSION_CONNECTIONS {
            return None;
        }
        let own = held.entry(user.to_owned()).or_default();
        if *own >= MAX_SESSION_CONNECTIONS_OF_USER {
            return None;
        }
        *own += 1;
        Some(SessionSlot { slots: self.clone(), user: user.to_owned() })
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let mut held = self.slots.0.lock();
        if let Some(own) = held.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_places_to_others() {
        let slots = Arc::<SessionSlots>::default();
        let held: Vec<_> = std::iter::from_fn(|| slots.take("ada")).collect();
        assert_eq!(held.len(), MAX_SESSION_CONNECTIONS_OF_USER);
        let other = slots.take("bob");
        assert!(other.is_some());
        drop(held);
        assert!(slots.take("ada").is_some());
        drop(other);
        assert!(slots.0.lock().is_empty());
    }
}
