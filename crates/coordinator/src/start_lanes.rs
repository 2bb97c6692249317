//! Lanes: queues of start events whose filters need jaq or whose rules have state, one for each workflow.
//!
//! ```text
//! publish hook --reserve, record--> lane of the workflow --one at a time--> evaluation --> starts
//! ```
//!
//! Such an expression may take its whole time limit, and neither the publisher nor another workflow may wait for it. So
//! the hook only records the event (on the disk for durable workflows, before the acknowledgement) and adds it to the
//! lane of its workflow. A lane evaluates its events in order, one at a time, on a thread that serves no connections.
//! At most [`EVALUATIONS`] lanes evaluate at the same time, and they take turns after each event.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use edgefaas_functions::durable::Digest;
use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_platform::{Budget, Taken};
use edgefaas_workflow::instance::{ActiveFilter, start_filter};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::inbox::NoRoomForEvent;

/// Maximum number of concurrent evaluations, over all workflows.
const EVALUATIONS: usize = 2;

/// The lanes of all workflows with waiting events.
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
    /// True while a task evaluates the events.
    pub(crate) draining: bool,
}

/// Reserved room for an event in a lane.
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
    /// The number of its entry on the disk, if it is recorded.
    pub number: Option<u64>,
}

/// Time, depth and trace of an event.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(crate) struct Arrival {
    /// Time of the monotonic clock.
    pub now_ms: u64,
    pub unix_ms: u64,
    /// The size of its message's payload.
    pub payload_bytes: usize,
    pub depth: u8,
    pub trace_parent: Option<String>,
    /// Digest of its topic.
    #[serde(default)]
    pub topic: Digest,
}

impl Lanes {
    /// Empty lanes, each for at most `lane_bytes` bytes of events.
    pub fn new(lane_bytes: usize) -> Self {
        Self { lanes: Mutex::default(), turns: Semaphore::new(EVALUATIONS), lane_bytes }
    }

    pub fn of(&self, workflow: &Arc<str>) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        // Drops the lanes of former workflows without events.
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
    /// The lane or the node has no room.
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

    /// Number of waiting events, over all workflows.
    pub fn waiting(&self) -> usize {
        self.lanes.lock().values().map(|lane| lane.queue.lock().waiting.len()).sum()
    }
}

/// The filter of a start event that was read from the disk.
pub(crate) fn filter_of(workflow: &LiveWorkflow, source: u32) -> Option<Arc<ActiveFilter>> {
    let on = workflow.program.schedule.as_ref()?.on.as_ref()?;
    start_filter(on.filters.get(source as usize)?).map(Arc::new)
}
