//! Log lines about exports.

use std::time::Duration;

use tokio::time::Instant;

use super::answer::{ExportError, PartialSuccess};

/// Minimum time between two lines about spans that a collector has rejected.
const REJECTED_INTERVAL: Duration = Duration::from_secs(60);

/// Reports failed exports once, until one succeeds, and rejected spans once a minute.
pub(super) struct Reports {
    collector: String,
    failing: bool,
    rejected: Rejected,
}

/// Spans that were rejected since the last line about them.
#[derive(Default)]
struct Rejected {
    spans: u64,
    reported: Option<Instant>,
}

impl Reports {
    pub fn new(collector: String) -> Self {
        Self { collector, failing: false, rejected: Rejected::default() }
    }

    /// Reports the end of an export of `spans` spans.
    pub fn report(&mut self, spans: usize, exported: Result<PartialSuccess, ExportError>, now: Instant) {
        let collector = &*self.collector;
        let partial = match exported {
            Ok(partial) => partial,
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(collector, %error, spans, "spans could not be exported");
                }
                return;
            }
        };
        self.failing = false;
        if partial.is_whole() {
            return;
        }
        if let Some(rejected) = self.rejected.due(partial.rejected_spans, now) {
            let reason = partial.message;
            tracing::warn!(collector, rejected, %reason, "the collector did not accept all spans");
        }
    }
}

impl Rejected {
    /// Counts rejected spans. Returns their number since the last line if one is due.
    fn due(&mut self, spans: u64, now: Instant) -> Option<u64> {
        self.spans = self.spans.saturating_add(spans);
        if self.reported.is_some_and(|reported| now.duration_since(reported) < REJECTED_INTERVAL) {
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.spans))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_spans_are_reported_once_a_minute() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut rejected = Rejected::default();
        assert_eq!(rejected.due(3, at(0)), Some(3));
        assert_eq!(rejected.due(4, at(1)), None);
        assert_eq!(rejected.due(5, at(59)), None);
        assert_eq!(rejected.due(6, at(60)), Some(15));
        assert_eq!(rejected.due(0, at(121)), Some(0));
    }
}
