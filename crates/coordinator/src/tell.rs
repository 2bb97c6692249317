//! Telling instances of events that were published, in their order.

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
use super::root::Charge;
use super::turn::YieldTimer;

/// Bytes of an event that waits, beside the event.
const WAITING_BYTES: usize = 256;
/// Time between two log lines of a workflow about dropped events.
const LOG_INTERVAL_MS: u64 = 10_000;

impl Running {
    /// Reserves room for an event, which others may wait for as well, that comes with a message of this QoS.
    ///
    /// # Errors
    /// There is no room, in the budgets or, for what has to be recorded, on the disk.
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
    /// Counts an event that a workflow does not get; says whether it is time for a line in the log.
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

    /// Tells an instance of events in the order of these calls.
    pub(crate) fn tell_in_order(self: &Arc<Self>, running: &Arc<Running>, queued: Queued) {
        {
            let mut inbox = running.inbox.lock();
            inbox.arrivals.push(queued);
            if std::mem::replace(&mut inbox.draining, true) {
                return;
            }
        }
        let (coordinator, running) = (self.clone(), running.clone());
        let drain: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { coordinator.tell_arrivals(&running).await });
        self.workers.spawn(drain);
    }

    async fn tell_arrivals(self: &Arc<Self>, running: &Arc<Running>) {
        loop {
            let arrivals = {
                let mut inbox = running.inbox.lock();
                if inbox.arrivals.is_empty() {
                    inbox.draining = false;
                    // A flood is over: its memory is not kept.
                    inbox.arrivals = Vec::new();
                    return;
                }
                std::mem::take(&mut inbox.arrivals)
            };
            // What they make it do is not to hold up those behind them.
            if running.is_durable() {
                if let Some(asked) = self.step_durable(running, arrivals).await {
                    self.spawn_asked(running, asked);
                }
            } else {
                let mut timer = YieldTimer::start();
                for queued in arrivals {
                    timer.yield_if_due().await;
                    if let Some(asked) = self.step(running, queued).await {
                        self.spawn_asked(running, asked);
                    }
                }
            }
            // Publishers may wait for the room that these had.
            self.room_is_free();
        }
    }
}
