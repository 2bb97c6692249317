//! What starts by itself: `schedule`'s cron, every and after, and the rules over events whose time comes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_broker::topic::TopicFilter;
use edgefaas_workflow::Event;
use edgefaas_workflow::instance::{FrameId, schedule_rule};
use edgefaas_workflow::synthesizer::{Firing, Queue, Rule, SynthesisError, Synthesizer};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::drive::Queued;
use super::events::{has_rule, input_of_firing};
use super::{Coordinator, Start};
use crate::dispatch::Dispatcher;
use crate::ingress::cron::next_after;
use crate::registry::LiveWorkflow;

/// The wall clock is looked at again at least this often.
const RECHECK: Duration = Duration::from_secs(30);
/// Time between two looks at the queues that rules are about.
const QUEUE_INTERVAL: Duration = Duration::from_millis(250);

/// The rules of workflows that start by several events.
#[derive(Default)]
pub(super) struct StartRules {
    rules: Mutex<HashMap<Arc<str>, Arc<StartRule>>>,
}

/// The rule of one workflow. Its lock is never held while an expression is evaluated.
pub(super) struct StartRule {
    digest: [u8; 32],
    rule: Rule,
    synthesizer: Mutex<Synthesizer>,
}

impl StartRule {
    /// Counts an event. Says whether the rule is due earlier than before.
    pub fn handle(
        &self,
        source: usize,
        event: &Arc<Value>,
        now_ms: u64,
    ) -> Result<(Vec<Firing>, bool), SynthesisError> {
        let reading = self.rule.read(event)?;
        let mut synthesizer = self.synthesizer.lock();
        let before = synthesizer.due_ms();
        let firings = synthesizer.count(source, event, reading, now_ms)?;
        let due = synthesizer.due_ms();
        Ok((firings, due.is_some_and(|due| before.is_none_or(|before| due < before))))
    }
}

impl StartRules {
    /// The rule of a workflow as it is deployed now.
    pub fn of(&self, workflow: &LiveWorkflow, now_ms: u64) -> Option<Arc<StartRule>> {
        let known = self.rules.lock().get(&workflow.name).cloned();
        if let Some(known) = known.filter(|known| known.digest == workflow.digest) {
            return Some(known);
        }
        // Compiled without the lock.
        let rule = schedule_rule(workflow.program.schedule.as_ref()?).ok()?;
        let synthesizer = Mutex::new(Synthesizer::new(rule.clone(), now_ms));
        let new = Arc::new(StartRule { digest: workflow.digest, rule, synthesizer });
        let mut rules = self.rules.lock();
        let known = rules.entry(workflow.name.clone()).or_insert_with(|| new.clone());
        // Another thread may have been faster.
        if known.digest != workflow.digest {
            *known = new;
        }
        Some(known.clone())
    }

    fn all(&self) -> Vec<(Arc<str>, Arc<StartRule>)> {
        self.rules.lock().iter().map(|(name, rule)| (name.clone(), rule.clone())).collect()
    }

    fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.rules.lock().retain(|name, _| keep(name));
    }

    fn due_ms(&self) -> Option<u64> {
        self.all().iter().filter_map(|(_, rule)| rule.synthesizer.lock().due_ms()).min()
    }

    fn tick(&self, now_ms: u64) -> Vec<(Arc<str>, Firing)> {
        let mut fired = Vec::new();
        for (name, rule) in self.all() {
            let firings = rule.synthesizer.lock().tick(now_ms);
            fired.extend(firings.into_iter().map(|firing| (name.clone(), firing)));
        }
        fired
    }
}

/// A queue that the rule of somebody is about.
pub(super) struct Watched {
    instance: Ulid,
    frame: FrameId,
    queue: Queue,
    /// The length that was told last.
    told: Option<u64>,
}

impl Coordinator {
    pub(super) fn watch_queue(&self, instance: Ulid, frame: FrameId, queue: Queue) {
        self.watched.lock().push(Watched { instance, frame, queue, told: None });
        self.rules_due.notify_one();
    }

    pub(super) fn unwatch_queue(&self, instance: Ulid, frame: FrameId) {
        self.watched.lock().retain(|watched| watched.instance != instance || watched.frame != frame);
    }

    /// An instance of a workflow has ended: the next one may be due some time after.
    pub(super) fn after_end(&self, workflow: &Arc<str>) {
        let mut ends = self.ends.lock();
        if let Some(end) = ends.get_mut(workflow) {
            *end = Some(Instant::now());
            drop(ends);
            self.rules_due.notify_one();
        }
    }
}

/// A workflow that starts by the clock.
struct Planned {
    workflow: Arc<LiveWorkflow>,
    by: By,
}

enum By {
    Cron { cron: Box<croner::Cron>, due_unix_ms: Option<u64>, planned_unix_ms: u64 },
    Every { every: Duration, due: Instant },
    After { after: Duration, due: Option<Instant> },
}

/// Starts what is due until `cancel` fires.
pub(crate) async fn run(dispatcher: Arc<Dispatcher>, cancel: CancellationToken) {
    let mut changes = dispatcher.registry().changes();
    let mut planned: Vec<Planned> = Vec::new();
    loop {
        changes.borrow_and_update();
        planned = plan(&dispatcher, planned);
        let queues = dispatcher.start_queues();
        loop {
            let wait = next_wait(&dispatcher, &planned, &queues);
            let coordinator = dispatcher.coordinator();
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    break;
                }
                () = coordinator.rules_due.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            planned.iter_mut().for_each(|planned| planned.start_if_due(&dispatcher));
            dispatcher.rules_tick();
            dispatcher.look_at_queues(&queues);
        }
    }
}

fn plan(dispatcher: &Arc<Dispatcher>, before: Vec<Planned>) -> Vec<Planned> {
    let coordinator = dispatcher.coordinator();
    let routes = dispatcher.registry().routes();
    let (now, unix_ms) = (Instant::now(), coordinator.clock.now_unix_ms());
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
    for workflow in routes.workflows() {
        if has_rule(&workflow.program) {
            // Silence counts from the deploy on.
            coordinator.rules.of(workflow, now_ms);
        }
        let Some(schedule) = &workflow.program.schedule else { continue };
        if kept.iter().any(|planned| planned.workflow.name == workflow.name) {
            continue;
        }
        let mut add = |by: By| kept.push(Planned { workflow: workflow.clone(), by });
        if let Some(cron) = schedule.cron.as_deref().and_then(|cron| crate::manifest::parse_cron(cron).ok())
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

fn next_wait(
    dispatcher: &Arc<Dispatcher>,
    planned: &[Planned],
    queues: &[(Arc<LiveWorkflow>, Queue)],
) -> Duration {
    let coordinator = dispatcher.coordinator();
    let (now, unix_ms) = (Instant::now(), coordinator.clock.now_unix_ms());
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
    let watched = (!coordinator.watched.lock().is_empty() || !queues.is_empty()).then_some(QUEUE_INTERVAL);
    waits.chain(rules).chain(watched).chain([RECHECK]).min().unwrap_or(RECHECK)
}

impl Planned {
    fn start_if_due(&mut self, dispatcher: &Arc<Dispatcher>) {
        let coordinator = dispatcher.coordinator();
        let now = Instant::now();
        let is_due = match &mut self.by {
            By::Cron { cron, due_unix_ms, planned_unix_ms } => {
                let unix_ms = coordinator.clock.now_unix_ms();
                let is_due = due_unix_ms.is_some_and(|due| due <= unix_ms);
                // A clock that was set back, or ahead, costs one start and not thousands.
                if is_due || unix_ms < *planned_unix_ms {
                    (*due_unix_ms, *planned_unix_ms) = (next_after(cron, unix_ms), unix_ms);
                }
                is_due
            }
            By::Every { every, due } => {
                let is_due = *due <= now;
                if is_due {
                    *due = (*due + *every).max(now);
                }
                is_due
            }
            By::After { after, due } => {
                let mut ends = coordinator.ends.lock();
                let ended = ends.get_mut(&self.workflow.name).and_then(Option::take);
                if let Some(ended) = ended {
                    *due = Some(ended + *after);
                }
                let is_due = due.is_some_and(|due| due <= now);
                if is_due {
                    *due = None;
                }
                is_due
            }
        };
        if is_due {
            dispatcher.start_alone(Start::new(self.workflow.clone(), Value::Object(Default::default()), 0));
        }
    }
}

impl Dispatcher {
    /// Starts an instance that nobody waits for.
    pub(super) fn start_alone(self: &Arc<Self>, start: Start) {
        let workflow = start.workflow.clone();
        match self.enter_workflow(start) {
            Ok(running) => self.spawn_drive(running, Queued::now(Event::Start)),
            Err(error) => {
                workflow.figures.rejected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let text = format!("not started: {error}");
                self.logs().add(&workflow.name, "", edgefaas_isolates::LogLevel::Warn, text);
                self.coordinator().after_end(&workflow.name);
            }
        }
    }

    fn rules_tick(self: &Arc<Self>) {
        let coordinator = self.coordinator();
        let fired = coordinator.rules.tick(coordinator.time.now_ms());
        self.start_fired(fired);
    }

    fn start_fired(self: &Arc<Self>, fired: Vec<(Arc<str>, Firing)>) {
        let routes = self.registry().routes();
        for (name, firing) in fired {
            if let Some(workflow) = routes.workflow(&name) {
                let input = input_of_firing(&workflow.program, &firing);
                self.start_alone(Start::new(workflow.clone(), input, 0));
            }
        }
    }

    /// Workflows that a queue's length starts.
    fn start_queues(&self) -> Vec<(Arc<LiveWorkflow>, Queue)> {
        let routes = self.registry().routes();
        let queue = |workflow: &Arc<LiveWorkflow>| {
            let schedule = workflow.program.schedule.as_ref().filter(|schedule| schedule.rule.is_some())?;
            let rule = schedule_rule(schedule).ok()?;
            Some((workflow.clone(), rule.queue()?.0.clone()))
        };
        routes.workflows().filter_map(queue).collect()
    }

    fn look_at_queues(self: &Arc<Self>, queues: &[(Arc<LiveWorkflow>, Queue)]) {
        let coordinator = self.coordinator();
        let mut changed = Vec::new();
        for watched in coordinator.watched.lock().iter_mut() {
            let length = self.queue_length(&watched.queue);
            if length != watched.told {
                watched.told = length;
                changed.extend(length.map(|length| (watched.instance, watched.frame, length)));
            }
        }
        for (id, frame, length) in changed {
            if let Some(running) = coordinator.find(id) {
                self.spawn_drive(running, Queued::now(Event::QueueLength { frame, length }));
            }
        }
        for (workflow, queue) in queues {
            let Some(length) = self.queue_length(queue) else { continue };
            let now_ms = coordinator.time.now_ms();
            let Some(rule) = coordinator.rules.of(workflow, now_ms) else { continue };
            let firings = rule.synthesizer.lock().queue_length(length, now_ms);
            self.start_fired(firings.into_iter().map(|firing| (workflow.name.clone(), firing)).collect());
        }
    }

    /// How many wait: invocations of a function, or messages for subscribers of a filter.
    fn queue_length(&self, queue: &Queue) -> Option<u64> {
        match queue {
            Queue::Function(name) => {
                let routes = self.registry().routes();
                let function = routes.function(name)?;
                Some(u64::from(function.admission.load().1) + self.journal().pending(&function.name))
            }
            Queue::Filter(filter) => {
                let filter = TopicFilter::new(filter.as_str()).ok()?;
                self.broker().queue(&filter).map(|figures| figures.waiting)
            }
        }
    }
}
