//! Scheduled starts: cron, every and after of `schedule`, and event rules that are due.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_broker::topic::TopicFilter;
use edgefaas_broker::{Change, Space};
use edgefaas_functions::registry::{Firing as Fires, LiveWorkflow, Occurrence, has_rule};
use edgefaas_functions::trace::Entry;
use edgefaas_manifest::next_after;
use edgefaas_workflow::Event;
use edgefaas_workflow::instance::{FrameId, schedule_rule};
use edgefaas_workflow::synthesizer::{Firing, Queue};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::instance::{Running, Start};
use super::rule_log;
use super::start_rules::{OverShare, StartRule, Watched, input_of_firing};

/// Maximum interval between two reads of the wall clock.
const RECHECK: Duration = Duration::from_secs(30);
/// Interval between two reads of the queue lengths that rules watch.
const QUEUE_INTERVAL: Duration = Duration::from_millis(250);

impl Coordinator {
    pub(super) fn watch_queue(&self, instance: Ulid, frame: FrameId, queue: Queue) {
        self.watched.lock().push(Watched { instance, frame, queue, notified_length: None });
        self.rules_due.notify_one();
    }

    pub(super) fn unwatch_queue(&self, instance: Ulid, frame: FrameId) {
        self.watched.lock().retain(|watched| watched.instance != instance || watched.frame != frame);
    }

    /// Notes the end of an instance. `schedule.after` counts from it.
    pub(super) fn after_end(&self, workflow: &Arc<str>) {
        let mut ends = self.ends.lock();
        if let Some(end) = ends.get_mut(workflow) {
            *end = Some(self.clock.instant());
            drop(ends);
            self.rules_due.notify_one();
        }
    }
}

/// A workflow with a time schedule.
struct Planned {
    workflow: Arc<LiveWorkflow>,
    by: By,
}

enum By {
    Cron { cron: Box<croner::Cron>, due_unix_ms: Option<u64>, planned_unix_ms: u64 },
    Every { every: Duration, due: Instant },
    After { after: Duration, due: Option<Instant> },
}

/// Starts due workflows until `cancel` fires.
pub async fn run(coordinator: Arc<Coordinator>, cancel: CancellationToken) {
    let mut changes = coordinator.registry.changes();
    let mut planned: Vec<Planned> = Vec::new();
    let sleeper = coordinator.clock.sleeper();
    loop {
        changes.borrow_and_update();
        planned = plan(&coordinator, planned);
        // A new rule makes the share of each smaller.
        coordinator.rules_tick();
        let queues = coordinator.start_queues();
        loop {
            let wait = next_wait(&coordinator, &planned);
            let watches = !coordinator.watched.lock().is_empty() || !queues.is_empty();
            let at_most = if watches { QUEUE_INTERVAL } else { RECHECK };
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
                () = coordinator.rules_due.notified() => {}
                () = sleeper.sleep(wait, at_most) => {}
            }
            planned.iter_mut().for_each(|planned| planned.start_if_due(&coordinator));
            coordinator.rules_tick();
            coordinator.look_at_queues(&queues);
        }
    }
}

fn plan(coordinator: &Arc<Coordinator>, before: Vec<Planned>) -> Vec<Planned> {
    let routes = coordinator.registry.routes();
    let (now, unix_ms) = (coordinator.clock.instant(), coordinator.clock.now_unix_ms());
    let mut kept: Vec<Planned> = before
        .into_iter()
        .filter(|planned| {
            routes
                .workflow(&planned.workflow.name)
                .is_some_and(|workflow| workflow.digest == planned.workflow.digest)
        })
        .collect();
    coordinator.ends.lock().retain(|name, _| routes.workflow(name).is_some());
    let now_ms = coordinator.time.now_ms();
    coordinator.rules.retain(|name| routes.workflow(name).is_some());
    for workflow in routes.workflows().filter(|workflow| routes.runs_here(&workflow.app)) {
        if has_rule(&workflow.program) {
            // The silence of a rule counts from the deploy.
            coordinator.rules.of(workflow, now_ms);
        }
        let Some(schedule) = &workflow.program.schedule else { continue };
        if kept.iter().any(|planned| planned.workflow.name == workflow.name) {
            continue;
        }
        let mut add = |by: By| kept.push(Planned { workflow: workflow.clone(), by });
        if let Some(cron) =
            schedule.cron.as_deref().and_then(|cron| edgefaas_manifest::parse_cron(cron).ok())
        {
            let due_unix_ms = next_after(&cron, unix_ms);
            add(By::Cron { cron: Box::new(cron), due_unix_ms, planned_unix_ms: unix_ms });
        }
        if let Some(every_ms) = schedule.every_ms {
            let every = Duration::from_millis(every_ms);
            add(By::Every { every, due: now + every });
        }
        if let Some(after_ms) = schedule.after_ms {
            coordinator.ends.lock().insert(workflow.name.clone(), None);
            add(By::After { after: Duration::from_millis(after_ms), due: Some(now) });
        }
    }
    kept
}

/// The time until something is due.
fn next_wait(coordinator: &Arc<Coordinator>, planned: &[Planned]) -> Option<Duration> {
    let (now, unix_ms) = (coordinator.clock.instant(), coordinator.clock.now_unix_ms());
    let ends = coordinator.ends.lock().clone();
    let waits = planned.iter().filter_map(|planned| match &planned.by {
        By::Cron { due_unix_ms, .. } => {
            Some(Duration::from_millis((*due_unix_ms)?.saturating_sub(unix_ms)))
        }
        By::Every { due, .. } => Some(due.saturating_duration_since(now)),
        By::After { after, due } => {
            let due = due.or_else(|| Some((*ends.get(&planned.workflow.name)?)? + *after))?;
            Some(due.saturating_duration_since(now))
        }
    });
    let rules = coordinator.rules.due_ms();
    let rules = rules.map(|due| Duration::from_millis(due.saturating_sub(coordinator.time.now_ms())));
    waits.chain(rules).min()
}

impl Planned {
    fn start_if_due(&mut self, coordinator: &Arc<Coordinator>) {
        let now = coordinator.clock.instant();
        let mut occurrence = Occurrence::OfInterval;
        // How late it is, if it is due.
        let late = match &mut self.by {
            By::Cron { cron, due_unix_ms, planned_unix_ms } => {
                let unix_ms = coordinator.clock.now_unix_ms();
                let late_ms = due_unix_ms.and_then(|due| unix_ms.checked_sub(due));
                occurrence = Occurrence::At(due_unix_ms.unwrap_or_default());
                // A clock that was set back or ahead causes one start, not thousands.
                if late_ms.is_some() || unix_ms < *planned_unix_ms {
                    (*due_unix_ms, *planned_unix_ms) = (next_after(cron, unix_ms), unix_ms);
                }
                late_ms.map(Duration::from_millis)
            }
            By::Every { every, due } => {
                let late = now.checked_duration_since(*due);
                if late.is_some() {
                    *due = (*due + *every).max(now);
                }
                late
            }
            By::After { after, due } => {
                let mut ends = coordinator.ends.lock();
                let ended = ends.get_mut(&self.workflow.name).and_then(Option::take);
                if let Some(ended) = ended {
                    *due = Some(ended + *after);
                }
                let late = due.and_then(|due| now.checked_duration_since(due));
                if let Some(late) = late {
                    *due = (!coordinator.clock.fires(late)).then_some(now + *after);
                }
                late
            }
        };
        let workflow = &self.workflow;
        if !late.is_some_and(|late| coordinator.clock.fires(late)) {
            return;
        }
        let mut start = Start::new(workflow.clone(), Value::Object(Default::default()), 0);
        start.entry = Entry::Schedule;
        match coordinator.registry.fires_here(&workflow.app, &workflow.name, occurrence) {
            Fires::Here => coordinator.start_alone(start),
            Fires::Elsewhere => {
                // Another node runs it now; this one may be chosen later.
                if let By::After { after, due } = &mut self.by {
                    *due = Some(now + *after);
                }
            }
            Fires::IfOthersFail(fails) => {
                let coordinator = coordinator.clone();
                tokio::spawn(async move {
                    if fails.await.is_ok() {
                        coordinator.start_alone(start);
                    }
                });
            }
        }
    }
}

impl Coordinator {
    /// Starts an instance without a waiter.
    pub(super) fn start_alone(self: &Arc<Self>, start: Start) {
        if let Some(running) = self.enter_alone(start) {
            self.spawn_advance(running, Queued::now(Event::Start));
        }
    }

    /// Registers an instance without a waiter; a refusal is logged.
    fn enter_alone(self: &Arc<Self>, start: Start) -> Option<Arc<Running>> {
        let workflow = start.workflow.clone();
        match self.enter_workflow(start) {
            Ok(running) => Some(running),
            Err(error) => {
                self.count_rejected(&workflow);
                let text = format!("not started: {error}");
                self.logs.add(&workflow.name, "", edgefaas_isolates::LogLevel::Warn, text);
                self.after_end(&workflow.name);
                None
            }
        }
    }

    fn rules_tick(self: &Arc<Self>) {
        let (now_ms, share_bytes) = (self.time.now_ms(), self.rules.share_bytes());
        let routes = self.registry.routes();
        for (name, rule) in self.rules.all() {
            let durable = routes.workflow(&name).filter(|workflow| workflow.program.durable);
            // An event of a durable workflow is being recorded: it has fired all that was due, or notifies this task.
            let turn = durable.map(|_| rule.turn.try_lock());
            if matches!(turn, Some(Err(_))) {
                continue;
            }
            let counted = rule.tick(now_ms, share_bytes);
            self.log_exceeded(&name, counted.exceeds);
            match durable {
                Some(workflow) => self.start_recorded(workflow, &rule, now_ms, counted.firings),
                None => self.start_fired(
                    counted.firings.into_iter().map(|firing| (name.clone(), firing)).collect(),
                ),
            }
        }
    }

    /// Starts the instances of a durable workflow whose rule has fired, in one batch with the record of the time.
    fn start_recorded(
        self: &Arc<Self>,
        workflow: &Arc<LiveWorkflow>,
        rule: &StartRule,
        now_ms: u64,
        firings: Vec<Firing>,
    ) {
        if firings.is_empty() {
            return;
        }
        let (mut changes, mut started) = (Vec::new(), Vec::new());
        for firing in firings {
            let input = input_of_firing(&workflow.program, &firing);
            let start = Start { entry: Entry::Message, ..Start::new(workflow.clone(), input, 0) };
            let Some(running) = self.enter_alone(start) else { continue };
            let entries = self.start_entries(&running, &mut running.state.lock(), None);
            let put =
                |(key, value): (_, Vec<u8>)| Change { space: Space::Hook, key, value: Some(value.into()) };
            changes.extend(entries.into_iter().map(put));
            started.push(running);
        }
        changes.push(rule_log::counted_tick(workflow, rule, self.next_start_event(), now_ms));
        let ticket = self.broker.record(changes);
        for running in started {
            let queued = match ticket {
                Some(ticket) => Queued::recorded(Event::Start, 0, ticket),
                None => Queued::now(Event::Start),
            };
            self.spawn_advance(running, queued);
        }
    }

    /// Logs that the rule of a workflow exceeds its share.
    pub(super) fn log_exceeded(&self, workflow: &Arc<str>, exceeds: Option<OverShare>) {
        if let Some(error) = exceeds {
            self.logs.add(workflow, "", edgefaas_isolates::LogLevel::Warn, error.to_string());
        }
    }

    fn start_fired(self: &Arc<Self>, fired: Vec<(Arc<str>, Firing)>) {
        let routes = self.registry.routes();
        for (name, firing) in fired {
            if let Some(workflow) = routes.workflow(&name) {
                let input = input_of_firing(&workflow.program, &firing);
                let start = Start { entry: Entry::Message, ..Start::new(workflow.clone(), input, 0) };
                self.start_alone(start);
            }
        }
    }

    /// Workflows that a queue's length starts.
    fn start_queues(&self) -> Vec<(Arc<LiveWorkflow>, Queue)> {
        let routes = self.registry.routes();
        let queue = |workflow: &Arc<LiveWorkflow>| {
            let schedule = workflow.program.schedule.as_ref().filter(|schedule| schedule.rule.is_some())?;
            let rule = schedule_rule(schedule).ok()?;
            Some((workflow.clone(), rule.queue()?.0.clone()))
        };
        routes.workflows().filter_map(queue).collect()
    }

    fn look_at_queues(self: &Arc<Self>, queues: &[(Arc<LiveWorkflow>, Queue)]) {
        let mut changed = Vec::new();
        for watched in self.watched.lock().iter_mut() {
            let length = self.queue_length(&watched.queue);
            if length != watched.notified_length {
                watched.notified_length = length;
                changed.extend(length.map(|length| (watched.instance, watched.frame, length)));
            }
        }
        for (id, frame, length) in changed {
            if let Some(running) = self.find(id) {
                self.spawn_advance(running, Queued::now(Event::QueueLength { frame, length }));
            }
        }
        for (workflow, queue) in queues {
            let Some(length) = self.queue_length(queue) else { continue };
            let now_ms = self.time.now_ms();
            let Some(rule) = self.rules.of(workflow, now_ms) else { continue };
            let firings = rule.queue_length(length, now_ms);
            self.start_fired(firings.into_iter().map(|firing| (workflow.name.clone(), firing)).collect());
        }
    }

    /// The queue length: waiting invocations of a function, or waiting messages for the subscribers of a filter.
    fn queue_length(&self, queue: &Queue) -> Option<u64> {
        match queue {
            Queue::Function(name) => {
                let routes = self.registry.routes();
                let function = routes.function(name)?;
                Some(u64::from(function.admission.load().1) + self.durable.pending(&function.name))
            }
            Queue::Filter(filter) => {
                let filter = TopicFilter::new(filter.as_str()).ok()?;
                self.broker.queue(&filter).map(|figures| figures.waiting)
            }
        }
    }
}
