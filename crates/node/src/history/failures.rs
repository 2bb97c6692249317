//! Invocations and failures of each function in the last minutes, from its counters.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time that recent invocations are of, and the time between two marks.
pub const RECENT: Duration = Duration::from_secs(300);
const MARK_INTERVAL: Duration = Duration::from_secs(30);

/// Counts of the invocations of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// All that have ended.
    pub invocations: u64,
    /// Those that failed.
    pub failures: u64,
}

/// The counters of all functions at some times of the last minutes.
#[derive(Debug, Default)]
pub struct RecentFailures {
    functions: HashMap<Arc<str>, VecDeque<Mark>>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    counts: Counts,
}

impl RecentFailures {
    /// Takes the counters of all functions as they are now; forgets other functions.
    pub fn see(&mut self, now: Instant, functions: impl IntoIterator<Item = (Arc<str>, Counts)>) {
        let mut before = std::mem::take(&mut self.functions);
        for (name, counts) in functions {
            let mut marks = before.remove(&name).unwrap_or_default();
            if marks.back().is_some_and(|last| counts.invocations < last.counts.invocations) {
                // It was removed and deployed again.
                marks.clear();
            }
            if marks.is_empty() {
                // The counters of a function begin with it.
                marks.push_back(Mark { at: now, counts: Counts::default() });
            }
            let is_due = |last: &Mark| now.saturating_duration_since(last.at) >= MARK_INTERVAL;
            if marks.back().is_some_and(is_due) {
                marks.push_back(Mark { at: now, counts });
            }
            // The first one is the last before the recent time.
            while marks.get(1).is_some_and(|next| now.saturating_duration_since(next.at) >= RECENT) {
                marks.pop_front();
            }
            self.functions.insert(name, marks);
        }
    }

    /// Invocations in the last 5 minutes, or up to 30 s more, of a function with these counters.
    pub fn recent(&self, function: &str, counts: Counts) -> Counts {
        let first = self.functions.get(function).and_then(VecDeque::front);
        let before = first.map(|mark| mark.counts).unwrap_or_default();
        match counts.invocations.checked_sub(before.invocations) {
            Some(invocations) => {
                Counts { invocations, failures: counts.failures.saturating_sub(before.failures) }
            }
            None => counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(invocations: u64, failures: u64) -> Counts {
        Counts { invocations, failures }
    }

    #[test]
    fn old_invocations_are_not_recent() {
        let (mut recent, begun) = (RecentFailures::default(), Instant::now());
        let name: Arc<str> = "f".into();
        let see = |recent: &mut RecentFailures, seconds, counts| {
            recent.see(begun + Duration::from_secs(seconds), [(name.clone(), counts)]);
        };
        assert_eq!(recent.recent("f", counts(5, 5)), counts(5, 5), "before it is seen");
        see(&mut recent, 0, counts(5, 5));
        assert_eq!(recent.recent("f", counts(6, 5)), counts(6, 5), "and of its first sight");
        for seconds in (5..=300).step_by(5) {
            see(&mut recent, seconds, counts(6, 5));
        }
        assert_eq!(recent.recent("f", counts(7, 6)), counts(7, 6));
        for seconds in (305..=335).step_by(5) {
            see(&mut recent, seconds, counts(7, 6));
        }
        assert_eq!(recent.recent("f", counts(7, 6)), counts(1, 1));
        assert!(recent.functions["f"].len() <= 12);
        for seconds in (340..=700).step_by(5) {
            see(&mut recent, seconds, counts(7, 6));
        }
        assert_eq!(recent.recent("f", counts(7, 6)), counts(0, 0));
        // Removed, and deployed again.
        see(&mut recent, 705, counts(2, 1));
        assert_eq!(recent.recent("f", counts(3, 2)), counts(3, 2));
        recent.see(begun, []);
        assert!(recent.functions.is_empty());
    }
}
