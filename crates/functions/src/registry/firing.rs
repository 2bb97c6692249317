//! Which node of a cluster fires an occurrence of a schedule, and occurrences whose node was lost before it could.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LiveApp;

/// The time after which an occurrence that was left to another node counts as fired if that node is still connected: longer
/// than a silent node counts as connected.
const CHECK_AFTER: Duration = Duration::from_secs(6);
/// Occurrences that are remembered; of more the oldest are forgotten.
const MAX_LEFT: usize = 1024;

/// Chooses the nodes of a cluster that fire occurrences of schedules.
pub struct FiringNodes {
    /// The member that fires an occurrence: its app, an identification of the schedule in it, and its due time in milliseconds
    /// since the Unix epoch. `None` for this node.
    pub choose: ChooseNode,
    /// Whether a member is connected.
    pub is_connected: Arc<dyn Fn(u64) -> bool + Send + Sync>,
}

/// See [`FiringNodes::choose`].
pub type ChooseNode = Arc<dyn Fn(&LiveApp, &str, u64) -> Option<u64> + Send + Sync>;

/// The node that fires an occurrence of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firing {
    /// This one.
    Here,
    /// A connected member.
    On(u64),
    /// Other ones: this node does not run the app.
    Elsewhere,
}

/// Occurrences of schedules that were left to other nodes a short time ago.
#[derive(Debug)]
pub struct LeftToOthers<T> {
    /// By time.
    left: VecDeque<(Instant, u64, T)>,
}

impl<T> Default for LeftToOthers<T> {
    fn default() -> Self {
        Self { left: VecDeque::new() }
    }
}

impl<T> LeftToOthers<T> {
    /// Remembers an occurrence that a member fires.
    pub fn leave(&mut self, now: Instant, node_id: u64, occurrence: T) {
        if self.left.len() >= MAX_LEFT {
            self.left.pop_front();
        }
        self.left.push_back((now + CHECK_AFTER, node_id, occurrence));
    }

    /// The time of the next check.
    pub fn next_check(&self) -> Option<Instant> {
        self.left.front().map(|(at, ..)| *at)
    }

    /// The occurrences that are due for a check and whose nodes are not connected any more: they may not have fired.
    pub fn take_lost(&mut self, now: Instant, is_connected: impl Fn(u64) -> bool) -> Vec<T> {
        let due = self.left.partition_point(|(at, ..)| *at <= now);
        self.left
            .drain(..due)
            .filter(|(_, node_id, _)| !is_connected(*node_id))
            .map(|(.., occurrence)| occurrence)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occurrences_of_nodes_that_are_lost_come_back() {
        let (mut left, begun) = (LeftToOthers::default(), Instant::now());
        let second = Duration::from_secs(1);
        left.leave(begun, 1, "of 1");
        left.leave(begun, 2, "of 2");
        left.leave(begun + second, 1, "later");
        assert_eq!(left.next_check(), Some(begun + CHECK_AFTER));
        let lost = |node_id: u64| node_id != 1;
        assert!(left.take_lost(begun + second, lost).is_empty(), "no check is due");
        assert_eq!(left.take_lost(begun + CHECK_AFTER, lost), ["of 1"]);
        assert_eq!(left.next_check(), Some(begun + second + CHECK_AFTER));
        assert!(left.take_lost(begun + 2 * CHECK_AFTER, |_| true).is_empty());
        (0..2 * MAX_LEFT).for_each(|_| left.leave(begun, 1, "many"));
        assert_eq!(left.left.len(), MAX_LEFT);
    }
}
