//! Events that may start workflows whose filters or rules have expressions that need jaq, or state.
//!
//! ```text
//! publish hook --reserve, record--> lane of the workflow --one at a time--> evaluation --> starts
//! ```
//!
//! Such an expression may take its whole limit, and nothing else is to wait for it: neither the publisher nor another
//! workflow. So the hook only records the event (for durable workflows on the disk, before it is acknowledged) and puts it
//! into the lane of its workflow. A lane evaluates its events in their order, one at a time, on a thread that serves no
//! connections. At most [`EVALUATIONS`] lanes do at the same time, and they take turns after each event.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_platform::{Budget, Taken};
use edgefaas_workflow::instance::{ActiveFilter, start_filter};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::inbox::NoRoomForEvent;

/// Events that are evaluated at the same time, over all workflows.
const EVALUATIONS: usize = 2;
/// The lanes of all workflows that have some.
pub(crate) struct Lanes {
    pub(crate) lanes: Mutex<HashMap<Arc<str>, Arc<Lane>>>,
    pub(crate) turns: Semaphore,
    pub(crate) lane_bytes: usize,
}

/// The events of one workflow.
pub(crate) struct Lane {
    pub(crate) workflow: Arc<str>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) budget: Budget,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) waiting: VecDeque<(StartEvent, Option<LaneRoom>)>,
    /// A task works on them.
    pub(crate) draining: bool,
}

/// Room for an event in a lane.
pub(crate) struct LaneRoom {
    pub(crate) lane: Arc<Lane>,
    pub(crate) _of_lane: Taken,
    pub(crate) _of_node: Taken,
}

/// An event that may start a workflow.
pub(crate) struct StartEvent {
    /// The index of the filter.
    pub source: u32,
    pub filter: Arc<ActiveFilter>,
    pub event: Arc<Value>,
    pub arrival: Arrival,
    /// Its entry on the disk, if it has one.
    pub number: Option<u64>,
}

/// The circumstances of an event.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Arrival {
    /// By the node's own clock.
    pub now_ms: u64,
    pub unix_ms: u64,
    /// The size of its message's payload.
    pub payload_bytes: usize,
    pub depth: u8,
    pub trace_parent: Option<String>,
}

impl Lanes {
    /// No lanes yet; each may have `lane_bytes` of events.
    pub fn new(lane_bytes: usize) -> Self {
        Self { lanes: Mutex::default(), turns: Semaphore::new(EVALUATIONS), lane_bytes }
    }

    pub fn of(&self, workflow: &Arc<str>) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        // Of workflows that were deployed before and have no events any more.
        if lanes.len() > 16 && lanes.len().is_power_of_two() && !lanes.contains_key(workflow) {
            let is_used =
                |lane: &Arc<Lane>| Arc::strong_count(lane) > 1 || !lane.queue.lock().waiting.is_empty();
            lanes.retain(|_, lane| is_used(lane));
        }
        let new = || {
            let budget = Budget::new(self.lane_bytes);
            Arc::new(Lane { workflow: workflow.clone(), queue: Mutex::default(), budget })
        };
        lanes.entry(workflow.clone()).or_insert_with(new).clone()
    }

    /// Reserves room for an event.
    ///
    /// # Errors
    /// The lane has none, or the node.
    pub fn reserve(
        &self,
        workflow: &Arc<str>,
        event_bytes: usize,
        node: &Budget,
    ) -> Result<LaneRoom, NoRoomForEvent> {
        let lane = self.of(workflow);
        let full = |budget: &Budget| NoRoomForEvent::Filters { max_bytes: budget.max_bytes() };
        let of_lane = lane.budget.take(event_bytes).ok_or(full(&lane.budget))?;
        let of_node = node.take(event_bytes).ok_or(full(node))?;
        Ok(LaneRoom { lane, _of_lane: of_lane, _of_node: of_node })
    }

    /// Events that wait, over all workflows.
    pub fn waiting(&self) -> usize {
        self.lanes.lock().values().map(|lane| lane.queue.lock().waiting.len()).sum()
    }
}

/// The filter of a start event that was read from the disk.
pub(crate) fn filter_of(workflow: &LiveWorkflow, source: u32) -> Option<Arc<ActiveFilter>> {
    let on = workflow.program.schedule.as_ref()?.on.as_ref()?;
    start_filter(on.filters.get(source as usize)?).map(Arc::new)
}
