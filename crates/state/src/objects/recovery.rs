//! Recovery of objects from peers after the node has joined a cluster: patterns that are transferred, and patterns that
//! are missing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// An app and a pattern of its objects' names.
type AppPattern = (String, String);

/// What a member of a cluster lacks of the objects that its functions use: for each pattern, the members whose objects have
/// not all been transferred.
#[derive(Default)]
pub struct Recoveries {
    /// `None` while the node is in no cluster: no peer exists to recover from.
    state: Mutex<Option<State>>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    wanted: HashSet<AppPattern>,
    /// The members that a pattern is lacking from, and none when it is complete. A pattern that is not in it is new.
    lacks: HashMap<AppPattern, Arc<[u64]>>,
}

impl State {
    fn is_complete(&self, app: &str, pattern: &str) -> bool {
        let lacks = self.lacks.get(&(app.to_owned(), pattern.to_owned()));
        lacks.is_some_and(|members| members.is_empty())
    }
}

/// A pattern with objects that this node lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lacking {
    /// The app of the objects.
    pub app: String,
    /// The pattern of their names.
    pub pattern: String,
    /// The members whose objects have not all come; empty for a moment after the pattern is new.
    pub members: Arc<[u64]>,
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
            let State { wanted, lacks } = state;
            lacks.retain(|pattern, _| wanted.contains(pattern));
        }
        self.changed.notify_waiters();
    }

    /// Objects of these patterns are missing from these members; from none if all of them have been transferred.
    pub fn set_lacks(&self, patterns: impl IntoIterator<Item = (String, String)>, members: Vec<u64>) {
        if let Some(state) = &mut *self.state.lock() {
            let members: Arc<[u64]> = members.into();
            let State { wanted, lacks } = state;
            let wanted = patterns.into_iter().filter(|pattern| wanted.contains(pattern));
            lacks.extend(wanted.map(|pattern| (pattern, members.clone())));
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
        !patterns.into_iter().all(|pattern| state.is_complete(app, pattern))
    }

    /// Completes at the next change of what is transferred, also at one between this call and the first poll.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// The wanted patterns that are not transferred yet, sorted.
    pub fn lacking(&self) -> Vec<Lacking> {
        let state = self.state.lock();
        let Some(state) = &*state else { return Vec::new() };
        let lacking = |(app, pattern): &AppPattern| {
            let members = state.lacks.get(&(app.clone(), pattern.clone())).cloned();
            let is_new = members.is_none();
            let members = members.unwrap_or_default();
            (is_new || !members.is_empty()).then(|| Lacking {
                app: app.clone(),
                pattern: pattern.clone(),
                members,
            })
        };
        let mut lacking: Vec<Lacking> = state.wanted.iter().filter_map(lacking).collect();
        lacking.sort();
        lacking
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
            if !self.lacks(app, patterns.iter().map(String::as_str)) {
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
        recoveries.set_lacks([of_app("x"), of_app("gone")], vec![]);
        recoveries.set_lacks([of_app("y")], vec![1, 2]);
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        assert_eq!(recoveries.lacking().len(), 1);
        let y = Lacking { app: "a".into(), pattern: "y".into(), members: [1, 2].into() };
        assert_eq!(recoveries.lacking(), [y]);
        assert!(!recoveries.lacks("a", ["x"]) && recoveries.lacks("a", ["x", "y"]));
        recoveries.set_lacks([of_app("y")], vec![]);
        waiting.await;
        recoveries.wait_for("a", &patterns).await;
        // A pattern that was not wanted for a while has to be transferred again.
        recoveries.set_wanted([of_app("x")]);
        recoveries.set_wanted([of_app("x"), of_app("y")]);
        assert_eq!(recoveries.lacking().len(), 1);
        recoveries.end_all();
        recoveries.wait_for("a", &patterns).await;
    }
}
