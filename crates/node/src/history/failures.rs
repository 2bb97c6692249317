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

impl Counts {
    /// True if more than half of at least so many invocations failed.
    fn are_mostly_failures(self, min_invocations: u64) -> bool {
        self.invocations >= min_invocations && self.failures > self.invocations / 2
    }
}

/// The counters of a function or workflow now.
#[derive(Debug)]
pub struct Counted {
    /// The name.
    pub name: Arc<str>,
    /// Its counters.
    pub counts: Counts,
    /// Recent invocations below which failures say nothing.
    pub min_invocations: u64,
}

/// The counters of all functions at some times of the last minutes.
#[derive(Debug, Default)]
pub struct RecentFailures {
    functions: HashMap<Arc<str>, Course>,
}

/// The counters of one function.
#[derive(Debug, Default)]
struct Course {
    marks: VecDeque<Mark>,
    /// Failures up to the last look at which most did not fail. Only a later one begins a warning: good invocations that are not
    /// recent any more leave a larger share to old failures.
    failures_when_fine: u64,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    counts: Counts,
}

impl RecentFailures {
    /// Takes the counters of all functions as they are now; forgets other functions.
    pub fn see(&mut self, now: Instant, functions: impl IntoIterator<Item = Counted>) {
        let mut before = std::mem::take(&mut self.functions);
        for Counted { name, counts, min_invocations } in functions {
            let mut course = before.remove(&name).unwrap_or_default();
            if course.marks.back().is_some_and(|last| counts.invocations < last.counts.invocations) {
                // It was removed and deployed again.
                course = Course::default();
            }
            let marks = &mut course.marks;
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
            if !course.recent(counts).are_mostly_failures(min_invocations) {
                course.failures_when_fine = counts.failures;
            }
            self.functions.insert(name, course);
        }
    }

    /// Invocations in the last 5 minutes, or up to 30 s more, of a function that fails: most of at least `min_invocations` failed, one of
    /// them since it was fine. `None` if it does not fail.
    pub fn failing(&self, function: &str, counts: Counts, min_invocations: u64) -> Option<Counts> {
        let recent = self.recent(function, counts);
        let fine = self.functions.get(function).map(|course| course.failures_when_fine).unwrap_or_default();
        (recent.are_mostly_failures(min_invocations) && counts.failures > fine).then_some(recent)
    }

    /// Invocations in the last 5 minutes, or up to 30 s more, of a function with these counters.
    fn recent(&self, function: &str, counts: Counts) -> Counts {
        self.functions.get(function).map_or(counts, |course| course.recent(counts))
    }
}

impl Course {
    fn recent(&self, counts: Counts) -> Counts {
        let before = self.marks.front().map(|mark| mark.counts).unwrap_or_default();
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
            let seen = Counted { name: name.clone(), counts, min_invocations: 5 };
            recent.see(begun + Duration::from_secs(seconds), [seen]);
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
        assert!(recent.functions["f"].marks.len() <= 12);
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

    #[test]
    fn old_failures_are_no_news_when_good_invocations_leave() {
        let (mut recent, begun) = (RecentFailures::default(), Instant::now());
        let mut see = |seconds: u64, counts: Counts| {
            let seen = Counted { name: "f".into(), counts, min_invocations: 5 };
            recent.see(begun + Duration::from_secs(seconds), [seen]);
            recent.failing("f", counts, 5)
        };
        assert_eq!(see(0, counts(0, 0)), None);
        assert_eq!(see(5, counts(12, 0)), None);
        assert_eq!(see(100, counts(16, 4)), None, "4 of 16");
        for seconds in (105..700).step_by(5) {
            assert_eq!(see(seconds, counts(17, 4)), None, "at {seconds} s");
        }
        // It begins with a failure, and stays while it is recent.
        assert_eq!(see(700, counts(22, 9)), Some(counts(5, 5)));
        for seconds in (705..1000).step_by(5) {
            assert!(see(seconds, counts(22, 9)).is_some(), "at {seconds} s");
        }
        assert_eq!(see(1035, counts(22, 9)), None);
    }
}
