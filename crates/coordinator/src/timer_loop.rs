//! Wake-up of instances whose timer is due.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::coordinator::Coordinator;
use super::event_queue::Queued;

const MAX_SLEEP: Duration = Duration::from_secs(60);

/// Wakes instances until `cancel` fires.
pub async fn run(coordinator: Arc<Coordinator>, cancel: CancellationToken) {
    let sleeper = coordinator.clock.sleeper();
    loop {
        let now_ms = coordinator.time.now_ms();
        let due = coordinator.timers.take_due(now_ms);
        if due.is_empty() {
            let next = coordinator.timers.next();
            let wait = next.map(|due| Duration::from_millis(due.saturating_sub(now_ms)));
            tokio::select! {
                () = cancel.cancelled() => return,
                () = coordinator.timers.changed.notified() => {}
                () = sleeper.sleep(wait, MAX_SLEEP) => {}
            }
            continue;
        }
        for id in due {
            let Some(running) = coordinator.find(id) else { continue };
            running.timer_fired();
            let advancing = coordinator.clone();
            coordinator.workers.spawn(async move {
                advancing.advance(&running, Queued::now(edgefaas_workflow::Event::Tick)).await
            });
        }
        tokio::task::yield_now().await;
        if cancel.is_cancelled() {
            return;
        }
    }
}
