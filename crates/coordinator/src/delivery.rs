//! Delivery of published events to instances, in order.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use edgefaas_broker::QoS;
use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_isolates::LogLevel;
use edgefaas_platform::Taken;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::inbox::NoRoomForEvent;
use super::instance::Running;
use super::root_budget::Charge;
use super::turn::YieldTimer;

/// Overhead of a waiting event, in bytes.
const WAITING_BYTES: usize = 256;
/// Time between two log lines of a workflow about dropped events.
const LOG_INTERVAL_MS: u64 = 10_000;

impl Running {
    /// Reserves room for an event that a message of this QoS carries. Several instances may share the event.
    ///
    /// # Errors
    /// The budgets have no room or, for an event that must be recorded, the disk has none.
    pub(super) fn reserve(
        &self,
        event: &Arc<Taken>,
        qos: QoS,
        disk_is_full: impl FnOnce() -> bool,
    ) -> Result<Charge, NoRoomForEvent> {
        if qos > QoS::AtMostOnce && self.is_durable() && disk_is_full() {
            return Err(NoRoomForEvent::DiskFull);
        }
        Ok(self.root.charge_event(event, WAITING_BYTES)?)
    }
}

impl Coordinator {
    /// Counts an event that is dropped. Returns true if a log line is due.
    pub(super) fn count_dropped(&self, workflow: &LiveWorkflow) -> bool {
        self.figures.events_dropped.fetch_add(1, Relaxed);
        let now_ms = self.time.now_ms();
        let logged_ms = workflow.figures.drop_logged_ms.load(Relaxed);
        let is_due = logged_ms == 0 || now_ms.saturating_sub(logged_ms) >= LOG_INTERVAL_MS;
        is_due
            && workflow
                .figures
                .drop_logged_ms
                .compare_exchange(logged_ms, now_ms.max(1), Relaxed, Relaxed)
                .is_ok()
    }
}

impl Coordinator {
    /// Drops an event for which a workflow has no room.
    pub(super) fn drop_event(&self, workflow: &LiveWorkflow, instance: &str, reason: &NoRoomForEvent) {
        if self.count_dropped(workflow) {
            let text = format!(
                "an event is dropped: {reason} (a line at most every {} s; metric workflow_events_dropped)",
                LOG_INTERVAL_MS / 1000
            );
            self.logs.add(&workflow.name, instance, LogLevel::Warn, text);
        }
    }

    /// Delivers events to an instance in the order of the calls.
    pub(crate) fn deliver_in_order(self: &Arc<Self>, running: &Arc<Running>, queued: Queued) {
        {
            let mut inbox = running.inbox.lock();
            inbox.arrivals.push(queued);
            if std::mem::replace(&mut inbox.draining, true) {
                return;
            }
        }
        let (coordinator, running) = (self.clone(), running.clone());
        let drain: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { coordinator.deliver_arrivals(&running).await });
        self.workers.spawn(drain);
    }

    async fn deliver_arrivals(self: &Arc<Self>, running: &Arc<Running>) {
        loop {
            let arrivals = {
                let mut inbox = running.inbox.lock();
                if inbox.arrivals.is_empty() {
                    inbox.draining = false;
                    // The burst is over, and its memory is freed.
                    inbox.arrivals = Vec::new();
                    return;
                }
                std::mem::take(&mut inbox.arrivals)
            };
            // A pending call must not delay the events behind it.
            if running.is_durable() {
                if let Some(pending) = self.step_durable(running, arrivals, &mut None).await {
                    self.spawn_call(running, pending);
                }
            } else {
                let mut timer = YieldTimer::start();
                for queued in arrivals {
                    timer.yield_if_due().await;
                    if let Some(pending) = self.step(running, queued, &mut None).await {
                        self.spawn_call(running, pending);
                    }
                }
            }
            // Publishers may wait for the room of these events.
            self.notify_publishers();
        }
    }
}
