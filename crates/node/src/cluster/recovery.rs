//! Which objects a node has from its peers as they were when it came, and which not yet.

use std::collections::HashSet;

use edgefaas_cluster::replication::Interest;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The interests whose objects peers may have, and this node not yet.
#[derive(Default)]
pub struct Recoveries {
    missing: Mutex<HashSet<Interest>>,
    changed: Notify,
}

impl Recoveries {
    /// What the node begins to look for.
    pub fn begin(&self, interests: impl IntoIterator<Item = Interest>) {
        self.missing.lock().extend(interests);
    }

    /// It has what there is of it.
    pub fn end(&self, interest: &Interest) {
        self.missing.lock().remove(interest);
        self.changed.notify_waiters();
    }

    /// Nothing is looked for any more.
    pub fn end_all(&self) {
        self.missing.lock().clear();
        self.changed.notify_waiters();
    }

    /// How many are looked for.
    pub fn missing(&self) -> usize {
        self.missing.lock().len()
    }

    /// Waits until none of these patterns of an app's objects is looked for.
    pub async fn wait_for(&self, app: &str, patterns: &[String]) {
        loop {
            let changed = self.changed.notified();
            let is_missing =
                |interest: &Interest| interest.app == app && patterns.contains(&interest.pattern);
            if !self.missing.lock().iter().any(is_missing) {
                return;
            }
            changed.await;
        }
    }
}
