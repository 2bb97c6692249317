//! Guard of a running invocation: if its future is dropped, the invocation counts as cancelled, with the CPU time that it has
//! used.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_isolates::Usage;

use super::Invoker;
use crate::invocation::{Invocation, InvocationError, Outcome, Timing};
use crate::registry::LiveFunction;

/// Progress of an invocation.
#[derive(Default)]
pub(super) struct Progress {
    /// Times of the phases that have ended.
    pub timing: Timing,
    /// The usage of the isolate, while it runs.
    pub usage: Option<Usage>,
}

/// Counts the invocation as cancelled when it is dropped before [`finish`](Self::finish).
pub(super) struct Unfinished<'a> {
    pub progress: Progress,
    invoker: &'a Invoker,
    function: &'a Arc<LiveFunction>,
    since: Instant,
    /// Taken when the invocation ends.
    id: Option<String>,
    traced: Option<(Invocation, u64)>,
}

impl<'a> Unfinished<'a> {
    /// The guard of an invocation that was admitted at `since`.
    pub fn new(
        invoker: &'a Invoker,
        function: &'a Arc<LiveFunction>,
        id: String,
        traced: Option<(Invocation, u64)>,
        since: Instant,
    ) -> Self {
        Self { progress: Progress::default(), invoker, function, since, id: Some(id), traced }
    }

    /// The invocation has ended. Returns its id, its trace and its times.
    pub fn finish(mut self) -> (String, Option<(Invocation, u64)>, Timing) {
        (self.id.take().unwrap_or_default(), self.traced.take(), self.progress.timing)
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let mut timing = self.progress.timing;
        match &self.progress.usage {
            Some(usage) => {
                self.function.metrics.record_cancelled_use(usage);
                timing.execution = self.since.elapsed().saturating_sub(timing.queue);
            }
            // It was waiting.
            None if timing.queue.is_zero() => timing.queue = self.since.elapsed(),
            // It was committing.
            None => {}
        }
        let error = InvocationError::Cancelled { function: self.function.name.to_string() };
        let outcome = Outcome { id, result: Err(error), timing, node: None };
        self.invoker.cancelled(self.function, &outcome);
        self.invoker.end_trace(self.traced.take(), self.function, &outcome, Duration::ZERO);
    }
}
