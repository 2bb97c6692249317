//! The clock as a way in: cron triggers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::invocation::{Invocation, Principal};
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::registry::{LiveFunction, Registry, ScheduleRoute};
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::{CronTick, Event, Trigger};
use edgefaas_manifest::next_after;
use edgefaas_platform::Clock;
use tokio_util::sync::CancellationToken;

/// The wall clock is looked at again at least this often: it may be set while we sleep, and a Pi starts
/// without one.
const RECHECK: Duration = Duration::from_secs(30);

/// Fires cron triggers until `cancel` does. Schedules are in the machine's time zone.
///
/// Each schedule has one next time. When that has come, however long ago, it fires once and the next time
/// is looked for from now on: a clock that jumps ahead costs one tick, not thousands.
pub async fn run(
    registry: Arc<Registry>,
    invoker: Arc<Invoker>,
    workers: Arc<Workers>,
    clock: Clock,
    cancel: CancellationToken,
) {
    let mut changes = registry.changes();
    loop {
        changes.borrow_and_update();
        let mut pending = pending(&registry, clock.now_unix_ms());
        loop {
            let now_ms = clock.now_unix_ms();
            let wait = pending
                .iter()
                .filter_map(|next| next.due_unix_ms)
                .min()
                .map_or(RECHECK, |due| Duration::from_millis(due.saturating_sub(now_ms)).min(RECHECK));
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // What has come due in this moment is not to be planned away.
                    for next in &mut pending {
                        next.fire_if_due(&invoker, &workers, clock.now_unix_ms());
                    }
                    break;
                }
                () = tokio::time::sleep(wait) => {}
            }
            for next in &mut pending {
                next.fire_if_due(&invoker, &workers, clock.now_unix_ms());
            }
        }
    }
}

/// A schedule and when it is due next; never, if it has no further time.
struct Pending {
    function: Arc<LiveFunction>,
    schedule: String,
    cron: croner::Cron,
    due_unix_ms: Option<u64>,
    planned_at_unix_ms: u64,
}

fn pending(registry: &Registry, now_ms: u64) -> Vec<Pending> {
    let plan = |route: &ScheduleRoute| Pending {
        function: route.function.clone(),
        schedule: route.schedule.clone(),
        cron: route.cron.clone(),
        due_unix_ms: next_after(&route.cron, now_ms),
        planned_at_unix_ms: now_ms,
    };
    registry.routes().schedules().iter().map(plan).collect()
}

impl Pending {
    fn fire_if_due(&mut self, invoker: &Arc<Invoker>, workers: &Workers, now_ms: u64) {
        if now_ms < self.planned_at_unix_ms {
            // The clock was set back: what was planned may be far away now.
            self.plan(now_ms);
        }
        let Some(due) = self.due_unix_ms.filter(|due| *due <= now_ms) else { return };
        self.plan(now_ms);
        let event = Event {
            trigger: Trigger::Cron(CronTick { schedule: self.schedule.clone(), scheduled_unix_ms: due }),
            body: Bytes::new(),
        };
        let invocation = Invocation::new(self.function.name.to_string(), Principal::Schedule, event);
        match invoker.admit_to(self.function.clone(), invocation) {
            Ok(admitted) => {
                let invoker = invoker.clone();
                // Nobody waits for the answer; failures are in the function's log.
                workers.spawn(async move { drop(invoker.run(admitted).await) });
            }
            Err(error) => invoker.log_dropped(&self.function.name, &error),
        }
    }

    fn plan(&mut self, now_ms: u64) {
        self.due_unix_ms = next_after(&self.cron, now_ms);
        self.planned_at_unix_ms = now_ms;
    }
}
