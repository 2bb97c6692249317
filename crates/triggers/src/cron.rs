//! Cron triggers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edgefaas_functions::invocation::{Invocation, Principal};
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::registry::{Firing, LeftToOthers, LiveFunction, Registry, ScheduleRoute};
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::{CronTick, Event, Trigger};
use edgefaas_manifest::next_after;
use edgefaas_platform::Clock;
use tokio_util::sync::CancellationToken;

/// Maximum time between two readings of the wall clock. The clock may be set during a sleep; a Raspberry Pi starts without the
/// right time.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// Runs the cron triggers until `cancel` fires. Schedules are in the machine's time zone.
///
/// Each schedule has one due time. When it has passed, however long ago, the schedule fires once, and the next due time is
/// computed from now: a clock that jumps ahead causes one invocation, not thousands.
pub async fn run(
    registry: Arc<Registry>,
    invoker: Arc<Invoker>,
    workers: Arc<Workers>,
    clock: Clock,
    cancel: CancellationToken,
) {
    let mut changes = registry.changes();
    let mut firing = FiringParts { registry, invoker, workers, left: LeftToOthers::default() };
    loop {
        changes.borrow_and_update();
        let mut planned = plan_all(&firing.registry, clock.now_unix_ms());
        loop {
            let now_ms = clock.now_unix_ms();
            let wait = planned
                .iter()
                .filter_map(|next| next.due_unix_ms)
                .min()
                .map_or(CLOCK_CHECK_INTERVAL, |due| {
                    Duration::from_millis(due.saturating_sub(now_ms)).min(CLOCK_CHECK_INTERVAL)
                });
            let check = firing.left.next_check().map(|at| at.saturating_duration_since(Instant::now()));
            let wait = check.map_or(wait, |check| check.min(wait));
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // Fire what is due now: the new plan contains only later times.
                    for next in &mut planned {
                        next.fire_if_due(&mut firing, clock.now_unix_ms());
                    }
                    break;
                }
                () = tokio::time::sleep(wait) => {}
            }
            for next in &mut planned {
                next.fire_if_due(&mut firing, clock.now_unix_ms());
            }
            firing.fire_lost();
        }
    }
}

/// What a schedule fires with.
struct FiringParts {
    registry: Arc<Registry>,
    invoker: Arc<Invoker>,
    workers: Arc<Workers>,
    left: LeftToOthers<Occurrence>,
}

/// A due time of a schedule.
struct Occurrence {
    function: Arc<LiveFunction>,
    schedule: String,
    due_unix_ms: u64,
}

impl FiringParts {
    /// Fires an occurrence on one of the nodes of a cluster that run the function.
    fn fire(&mut self, occurrence: Occurrence) {
        let Occurrence { function, schedule, due_unix_ms } = &occurrence;
        let key = format!("{} {schedule}", function.name);
        match self.registry.firing(&function.app, &key, *due_unix_ms) {
            Firing::Here => {}
            Firing::On(node_id) => return self.left.leave(Instant::now(), node_id, occurrence),
            Firing::Elsewhere => return,
        }
        let tick = CronTick { schedule: schedule.clone(), scheduled_unix_ms: *due_unix_ms };
        let event = Event { trigger: Trigger::Cron(tick), body: Bytes::new() };
        let invocation = Invocation::new(function.name.to_string(), Principal::Schedule, event);
        match self.invoker.admit_to(function.clone(), invocation) {
            Ok(admitted) => {
                let invoker = self.invoker.clone();
                // The result is not used; failures are in the function's log.
                self.workers.spawn(async move { drop(invoker.run(admitted).await) });
            }
            Err(error) => self.invoker.log_dropped(&function.name, &error),
        }
    }

    /// Fires occurrences whose node was lost: it may not have fired them.
    fn fire_lost(&mut self) {
        let registry = self.registry.clone();
        let lost = self.left.take_lost(Instant::now(), |node_id| registry.is_connected(node_id));
        for occurrence in lost {
            // Its revision may have been replaced.
            let Some(function) = registry.routes().function(&occurrence.function.name).cloned() else {
                continue;
            };
            self.fire(Occurrence { function, ..occurrence });
        }
    }
}

/// A schedule and its due time; `None` if no time is left.
struct Planned {
    function: Arc<LiveFunction>,
    schedule: String,
    cron: croner::Cron,
    due_unix_ms: Option<u64>,
    planned_at_unix_ms: u64,
}

fn plan_all(registry: &Registry, now_ms: u64) -> Vec<Planned> {
    let plan = |route: &ScheduleRoute| Planned {
        function: route.function.clone(),
        schedule: route.schedule.clone(),
        cron: route.cron.clone(),
        due_unix_ms: next_after(&route.cron, now_ms),
        planned_at_unix_ms: now_ms,
    };
    registry.routes().schedules().iter().map(plan).collect()
}

impl Planned {
    fn fire_if_due(&mut self, firing: &mut FiringParts, now_ms: u64) {
        if now_ms < self.planned_at_unix_ms {
            // The clock was set back: the due time may be far in the future now.
            self.plan(now_ms);
        }
        let Some(due_unix_ms) = self.due_unix_ms.filter(|due| *due <= now_ms) else { return };
        self.plan(now_ms);
        let (function, schedule) = (self.function.clone(), self.schedule.clone());
        firing.fire(Occurrence { function, schedule, due_unix_ms });
    }

    fn plan(&mut self, now_ms: u64) {
        self.due_unix_ms = next_after(&self.cron, now_ms);
        self.planned_at_unix_ms = now_ms;
    }
}
