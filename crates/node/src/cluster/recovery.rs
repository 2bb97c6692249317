//! Which objects a node has from its peers as they were when it came, and which not yet.

use std::collections::HashSet;

use edgefaas_cluster::replication::Interest;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The interests whose objects have come from the peers, in a node that is a member of a cluster.
#[derive(Default)]
pub struct Recoveries {
    /// None while the node is in no cluster: there is nothing that could come.
    state: Mutex<Option<State>>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    wanted: HashSet<Interest>,
    done: HashSet<Interest>,
}

impl Recoveries {
    /// The node takes part in a cluster from now on: it has nothing yet.
    pub fn begin(&self) {
        *self.state.lock() = Some(State::default());
    }

    /// What the node looks for now; what it had of anything else does not count any more.
    pub fn set_wanted(&self, interests: impl IntoIterator<Item = Interest>) {
        if let Some(state) = &mut *self.state.lock() {
            state.wanted = interests.into_iter().collect();
            let State { wanted, done } = state;
            done.retain(|interest| wanted.contains(interest));
        }
    }

    /// It has what there is of it.
    pub fn end(&self, interest: Interest) {
        if let Some(state) = &mut *self.state.lock() {
            state.done.insert(interest);
        }
        self.changed.notify_waiters();
    }

    /// The node takes no part in a cluster any more.
    pub fn end_all(&self) {
        *self.state.lock() = None;
        self.changed.notify_waiters();
    }

    /// How many are looked for and have not come.
    pub fn missing(&self) -> usize {
        self.state
            .lock()
            .as_ref()
            .map_or(0, |state| state.wanted.len() - state.done.len().min(state.wanted.len()))
    }

    /// Whether there may be anything to wait for.
    pub fn is_active(&self) -> bool {
        self.state.lock().is_some()
    }

    /// Waits until all of these patterns of an app's objects have come. A function that went live in this moment is waited
    /// for too: what has not been looked for has not come.
    pub async fn wait_for(&self, app: &str, patterns: &[String]) {
        loop {
            let changed = self.changed.notified();
            let is_done = |state: &State| {
                let interest =
                    |pattern: &String| Interest { app: app.to_owned(), pattern: pattern.clone() };
                patterns.iter().all(|pattern| state.done.contains(&interest(pattern)))
            };
            if self.state.lock().as_ref().is_none_or(is_done) {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interest(pattern: &str) -> Interest {
        Interest { app: "a".into(), pattern: pattern.into() }
    }

    #[tokio::test]
    async fn nobody_waits_without_a_cluster_and_all_wait_for_what_has_not_come() {
        let recoveries = Recoveries::default();
        let patterns = ["x".to_owned(), "y".to_owned()];
        recoveries.wait_for("a", &patterns).await;
        recoveries.begin();
        // Not even looked for yet.
        let mut waiting = std::pin::pin!(recoveries.wait_for("a", &patterns));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        recoveries.set_wanted([interest("x"), interest("y")]);
        recoveries.end(interest("x"));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(recoveries.missing(), 1);
        recoveries.end(interest("y"));
        waiting.await;
        recoveries.wait_for("a", &patterns).await;
        // What was not wanted for a while has to come again.
        recoveries.set_wanted([interest("x")]);
        recoveries.set_wanted([interest("x"), interest("y")]);
        assert_eq!(recoveries.missing(), 1);
        recoveries.end_all();
        recoveries.wait_for("a", &patterns).await;
    }
}
