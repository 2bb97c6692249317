//! Connections of sessions: each user has a share of those of the control port, so that nobody shuts out the command line and health checks.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::access::Role;

/// Maximum number of connections of all sessions; a half of those of the port.
pub(super) const MAX_SESSION_CONNECTIONS: usize = 64;
/// Maximum number of connections of the sessions of one user; a browser has six.
pub(super) const MAX_SESSION_CONNECTIONS_OF_USER: usize = 24;

/// Maximum number of those of users that do not administer.
const MAX_SESSION_CONNECTIONS_OF_OTHERS: usize = 48;

/// The places of the connections of sessions.
#[derive(Debug, Default)]
pub(in crate::control) struct SessionSlots(Mutex<Held>);

/// The places that are held.
#[derive(Debug, Default)]
struct Held {
    /// By user; the holder of the admin token has an empty name.
    by_user: HashMap<String, usize>,
    /// Those of users that do not administer.
    of_others: usize,
}

/// The place of one connection; a drop frees it.
#[derive(Debug)]
pub(in crate::control) struct SessionSlot {
    slots: Arc<SessionSlots>,
    user: String,
    administers: bool,
}

impl SessionSlots {
    /// A place for a connection of a user with this role; `None` if the user, all users together, or those that do not administer have
    /// the maximum.
    pub fn take(self: &Arc<Self>, user: &str, role: Role) -> Option<SessionSlot> {
        let administers = role == Role::Administer;
        let mut held = self.0.lock();
        let all: usize = held.by_user.values().sum();
        let own = held.by_user.get(user).copied().unwrap_or_default();
        let is_full = all >= MAX_SESSION_CONNECTIONS
            || own >= MAX_SESSION_CONNECTIONS_OF_USER
            || (!administers && held.of_others >= MAX_SESSION_CONNECTIONS_OF_OTHERS);
        if is_full {
            return None;
        }
        held.by_user.insert(user.to_owned(), own + 1);
        held.of_others += usize::from(!administers);
        Some(SessionSlot { slots: self.clone(), user: user.to_owned(), administers })
    }
}

impl Drop for SessionSlot {
    fn drop(&mut self) {
        let mut held = self.slots.0.lock();
        held.of_others -= usize::from(!self.administers);
        if let Some(own) = held.by_user.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                held.by_user.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_places_to_others_and_all_of_them_to_administrators() {
        let slots = Arc::<SessionSlots>::default();
        let mut held: Vec<_> = std::iter::from_fn(|| slots.take("ada", Role::Look)).collect();
        assert_eq!(held.len(), MAX_SESSION_CONNECTIONS_OF_USER);
        for user in ["bob", "cyd"] {
            held.extend(std::iter::from_fn(|| slots.take(user, Role::Operate)));
        }
        assert_eq!(held.len(), MAX_SESSION_CONNECTIONS_OF_OTHERS);
        let administrators: Vec<_> = std::iter::from_fn(|| slots.take("eve", Role::Administer)).collect();
        assert_eq!(administrators.len(), MAX_SESSION_CONNECTIONS - MAX_SESSION_CONNECTIONS_OF_OTHERS);
        held.clear();
        assert!(slots.take("ada", Role::Look).is_some());
        drop(administrators);
        let left = slots.0.lock();
        assert!(left.by_user.is_empty() && left.of_others == 0, "{left:?}");
    }
}
