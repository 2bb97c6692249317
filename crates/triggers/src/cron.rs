//! Cron triggers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::invocation::{Invocation, Principal};
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::registry::{Firing, LiveFunction, Occurrence, Registry, ScheduleRoute};
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
    let sleeper = clock.sleeper();
    loop {
        changes.borrow_and_update();
        let mut planned = plan_all(&registry, clock.now_unix_ms());
        loop {
            let now_ms = clock.now_unix_ms();
            let due = planned.iter().filter_map(|next| next.due_unix_ms).min();
            let wait = due.map(|due| Duration::from_millis(due.saturating_sub(now_ms)));
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    // Fire what is due now: the new plan contains only later times.
                    for next in &mut planned {
                        next.fire_if_due(&registry, &invoker, &workers, &clock);
                    }
                    break;
                }
                () = sleeper.sleep(wait, CLOCK_CHECK_INTERVAL) => {}
            }
            for next in &mut planned {
                next.fire_if_due(&registry, &invoker, &workers, &clock);
            }
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
    fn fire_if_due(
        &mut self,
        registry: &Registry,
        invoker: &Arc<Invoker>,
        workers: &Arc<Workers>,
        clock: &Clock,
    ) {
        let now_ms = clock.now_unix_ms();
        if now_ms < self.planned_at_unix_ms {
            // The clock was set back: the due time may be far in the future now.
            self.plan(now_ms);
        }
        let Some(due) = self.due_unix_ms.filter(|due| *due <= now_ms) else { return };
        self.plan(now_ms);
        if !clock.fires(Duration::from_millis(now_ms - due)) {
            return;
        }
        // Of the nodes of a cluster that run the function, one fires.
        let schedule = self.function.schedule_id(&self.schedule);
        let fails = match registry.fires_here(&self.function.app, &schedule, Occurrence::At(due)) {
            Firing::Elsewhere => return,
            Firing::Here => None,
            Firing::IfOthersFail(fails) => Some(fails),
        };
        let event = Event {
            trigger: Trigger::Cron(CronTick { schedule: self.schedule.clone(), scheduled_unix_ms: due }),
            body: Bytes::new(),
        };
        let invocation = Invocation::new(self.function.name.to_string(), Principal::Schedule, event);
        let (function, invoker) = (self.function.clone(), invoker.clone());
        let Some(fails) = fails else { return fire(invoker, workers, function, invocation) };
        let workers = workers.clone();
        tokio::spawn(async move {
            if fails.await.is_ok() {
                fire(invoker, &workers, function, invocation);
            }
        });
    }

    fn plan(&mut self, now_ms: u64) {
        self.due_unix_ms = next_after(&self.cron, now_ms);
        self.planned_at_unix_ms = now_ms;
    }
}

fn fire(invoker: Arc<Invoker>, workers: &Workers, function: Arc<LiveFunction>, invocation: Invocation) {
    match invoker.admit_to(function.clone(), invocation) {
        Ok(admitted) => {
            // The result is not used; failures are in the function's log.
            workers.spawn(async move { drop(invoker.run(admitted).await) });
        }
        Err(error) => invoker.log_dropped(&function.name, &error),
    }
}
