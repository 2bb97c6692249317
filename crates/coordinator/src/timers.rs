//! When which instance goes on by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::Coordinator;
use super::drive::Queued;

/// Instances that are woken at a time.
const AT_ONCE: usize = 256;
/// The longest sleep.
const LONGEST: Duration = Duration::from_secs(60);

/// Times by the node's own clock, in milliseconds.
#[derive(Default)]
pub(super) struct Timers {
    due: Mutex<BTreeSet<(u64, Ulid)>>,
    changed: Notify,
}

impl Timers {
    /// Moves an instance from one time to another.
    pub fn set(&self, id: Ulid, before: Option<u64>, due: Option<u64>) {
        if before == due {
            return;
        }
        let mut all = self.due.lock();
        let first = all.first().map(|(due, _)| *due);
        if let Some(before) = before {
            all.remove(&(before, id));
        }
        if let Some(due) = due {
            all.insert((due, id));
            if first.is_none_or(|first| due < first) {
                self.changed.notify_one();
            }
        }
    }

    fn take_due(&self, now_ms: u64) -> Vec<Ulid> {
        let mut all = self.due.lock();
        let mut taken = Vec::new();
        while taken.len() < AT_ONCE
            && let Some((_, id)) = all.first().filter(|(due, _)| *due <= now_ms).copied()
        {
            all.pop_first();
            taken.push(id);
        }
        taken
    }

    fn next(&self) -> Option<u64> {
        self.due.lock().first().map(|(due, _)| *due)
    }
}

/// Wakes instances until `cancel` fires.
pub async fn run(coordinator: Arc<Coordinator>, cancel: CancellationToken) {
    loop {
        let now_ms = coordinator.time.now_ms();
        let due = coordinator.timers.take_due(now_ms);
        if due.is_empty() {
            let wait = coordinator
                .timers
                .next()
                .map_or(LONGEST, |due| Duration::from_millis(due.saturating_sub(now_ms)));
            tokio::select! {
                () = cancel.cancelled() => return,
                () = coordinator.timers.changed.notified() => {}
                () = tokio::time::sleep(wait.min(LONGEST)) => {}
            }
            continue;
        }
        for id in due {
            let Some(running) = coordinator.find(id) else { continue };
            running.timer_fired();
            let driving = coordinator.clone();
            coordinator.workers.spawn(async move {
                driving.drive(&running, Queued::now(edgefaas_workflow::Event::Tick)).await
            });
        }
        tokio::task::yield_now().await;
        if cancel.is_cancelled() {
            return;
        }
    }
}
