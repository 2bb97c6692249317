//! Recovery of objects from peers after the node has joined a cluster: patterns that are transferred, and patterns that
//! are missing.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// An app and a pattern of its objects' names.
type AppPattern = (String, String);

/// Patterns whose objects have been transferred from the peers, on a member of a cluster.
#[derive(Default)]
pub struct Recoveries {
    /// `None` while the node is in no cluster: no peer exists to recover from.
    state: Mutex<Option<State>>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    wanted: HashSet<AppPattern>,
    done: HashSet<AppPattern>,
}

impl Recoveries {
    /// The node is now a member of a cluster; nothing is transferred yet.
    pub fn begin(&self) {
        *self.state.lock() = Some(State::default());
        self.changed.notify_waiters();
    }

    /// Replaces the patterns that the node is interested in, each with its app. A pattern that was removed and is added
    /// again has to be recovered again.
    pub fn set_wanted(&self, patterns: impl IntoIterator<Item = (String, String)>) {
        if let Some(state) = &mut *self.state.lock() {
            state.wanted = patterns.into_iter().collect();
            let State { wanted, done } = state;
            done.retain(|pattern| wanted.contains(pattern));
        }
        self.changed.notify_waiters();
    }

    /// All objects of a pattern have been transferred.
    pub fn end(&self, app: String, pattern: String) {
        if let Some(state) = &mut *self.state.lock() {
            state.done.insert((app, pattern));
        }
        self.changed.notify_waiters();
    }

    /// The node is no longer a member of a cluster.
    pub fn end_all(&self) {
        *self.state.lock() = None;
        self.changed.notify_waiters();
    }

    /// True if objects of one of these patterns of an app are not transferred yet, including patterns of a function that was
    /// deployed a moment ago.
    pub fn lacks<'a>(&self, app: &str, patterns: impl IntoIterator<Item = &'a str>) -> bool {
        let state = self.state.lock();
        let Some(state) = &*state else { return false };
        let is_done = |pattern: &str| state.done.contains(&(app.to_owned(), pattern.to_owned()));
        !patterns.into_iter().all(is_done)
    }

    /// Completes at the next change of what is transferred, also at one between this call and the first poll.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Number of wanted patterns that are not transferred yet.
    pub fn missing(&self) -> usize {
        self.state
            .lock()
            .as_ref()
            .map_or(0, |state| state.wanted.len() - state.done.len().min(state.wanted.len()))
    }

    /// True while the node is a member of a cluster.
    pub fn is_active(&self) -> bool {
        self.state.lock().is_some()
    }

    /// Waits until all of these patterns of an app's objects are transferred, including patterns of a function that was
    /// deployed a moment ago.
    pub async fn wait_for(&self, app: &str, patterns: &[String]) {
        loop {
            let changed = self.changed.notified();
            let is_done = |state: &State| {
                patterns.iter().all(|pattern| state.done.contains(&(app.to_owned(), pattern.clone())))
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

    fn of_app(pattern: &str) -> AppPattern {
        ("a".into(), pattern.into())
    }

    #[tokio::test]
    async fn nobody_waits_without_a_cluster_and_all_wait_for_what_has_not_come() {
        let recoveries = Recoveries::default();
        let patterns = ["x".to_owned(), "y".to_owned()];
        recoveries.wait_for("a", &patterns).await;
        recoveries.begin();
        // The pattern is not wanted yet.
        let mut waiting = std::pin::pin!(recoveries.wait_for("a", &patterns));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        recoveries.set_wanted([of_app("x"), of_app("y")]);
        recoveries.end("a".into(), "x".into());
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(recoveries.missing(), 1);
        assert!(!recoveries.lacks("a", ["x"]) && recoveries.lacks("a", ["x", "y"]));
        recoveries.end("a".into(), "y".into());
        waiting.await;
        recoveries.wait_for("a", &patterns).await;
        // A pattern that was not wanted for a while has to be transferred again.
        recoveries.set_wanted([of_app("x")]);
        recoveries.set_wanted([of_app("x"), of_app("y")]);
        assert_eq!(recoveries.missing(), 1);
        recoveries.end_all();
        recoveries.wait_for("a", &patterns).await;
    }
}
