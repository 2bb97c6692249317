//! What instances work on, as opposed to waiting for a time, a message or another instance.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::coordinator::Coordinator;
use super::event_queue::Turns;
use super::run_state::End;

/// Work of instances outside of functions: requests and scripts.
#[derive(Debug, Default)]
pub(crate) struct OutsideWork(Arc<AtomicUsize>);

/// A request or a script that runs.
pub(crate) struct Outside(Arc<AtomicUsize>);

impl OutsideWork {
    pub(crate) fn begin(&self) -> Outside {
        self.0.fetch_add(1, Ordering::Relaxed);
        Outside(self.0.clone())
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Coordinator {
    /// Names of workflows with a turn of an instance that is computed or stored, and what else instances work on, without functions.
    /// Visits every instance.
    pub fn at_work(&self) -> Vec<String> {
        let instances: Vec<_> = self.instances.lock().values().cloned().collect();
        let mut at_work: Vec<String> = instances
            .into_iter()
            .filter(|running| {
                let state = running.state.lock();
                let is_unreported =
                    state.instance.status().is_ended() && matches!(state.end, End::Open { .. });
                matches!(state.turns, Turns::Busy { .. }) || is_unreported
            })
            .map(|running| running.workflow.name.to_string())
            .collect();
        at_work.sort();
        at_work.dedup();
        if self.outside.0.load(Ordering::Relaxed) > 0 {
            at_work.push("a request or a script of a workflow".to_owned());
        }
        if self.lanes.waiting() > 0 {
            at_work.push("the filter of an event".to_owned());
        }
        at_work
    }
}
