//! What starts by itself: `schedule`'s cron, every and after, and the rules over events whose time comes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_broker::topic::TopicFilter;
use edgefaas_functions::registry::{LiveWorkflow, has_rule};
use edgefaas_manifest::next_after;
use edgefaas_platform::{Budget, Taken};
use edgefaas_workflow::Event;
use edgefaas_workflow::instance::{FrameId, schedule_rule};
use edgefaas_workflow::synthesizer::{Firing, Queue, Rule, SynthesisError, Synthesizer};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::drive::Queued;
use super::events::input_of_firing;
use super::{Coordinator, Start};

/// The wall clock is looked at again at least this often.
const RECHECK: Duration = Duration::from_secs(30);
/// Time between two looks at the queues that rules are about.
const QUEUE_INTERVAL: Duration = Duration::from_millis(250);

/// Start rules hold one in so many bytes of the node's budget for workflows, all together.
const RULES_SHARE: usize = 4;

/// The rules of workflows that start by several events. What they hold is charged to the node's budget for workflows; all
/// of them together hold a quarter of it at most, in equal shares.
pub(super) struct StartRules {
    rules: Mutex<HashMap<Arc<str>, Arc<StartRule>>>,
    budget: Budget,
}

/// The rule of one workflow. Its lock is never held while an expression is evaluated.
pub(super) struct StartRule {
    digest: [u8; 32],
    rule: Rule,
    held: Mutex<Held>,
}

/// What a rule holds.
struct Held {
    synthesizer: Synthesizer,
    /// Its part of the node's budget, returned with the rule.
    taken: Taken,
    /// It was trimmed and has not been well within its share since.
    is_over: bool,
}

/// What came of an event, or of the time.
pub(super) struct Counted {
    pub firings: Vec<Firing>,
    /// The rule is due earlier than before.
    pub is_due_earlier: bool,
    /// The rule exceeds its share since now.
    pub exceeds: Option<OverShare>,
}

/// A start rule was trimmed to its share of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the rule of the schedule keeps more than {share_bytes} bytes of events, its share of workflows.memory: from now on \
     its oldest events are dropped"
)]
pub(super) struct OverShare {
    share_bytes: usize,
}

impl Held {
    /// Lets go of what exceeds the rule's share, and charges the rest. Gives an error once, until the rule is well within
    /// its share again.
    fn settle(&mut self, share_bytes: usize) -> Option<OverShare> {
        let has_trimmed = self.synthesizer.trim(share_bytes);
        let bytes = self.synthesizer.bytes();
        self.taken.resize(bytes);
        if has_trimmed {
            let was_over = std::mem::replace(&mut self.is_over, true);
            return (!was_over).then_some(OverShare { share_bytes });
        }
        // A key that was let go leaves room for some events, which is no news.
        self.is_over &= bytes > share_bytes / 2;
        None
    }
}

impl StartRule {
    fn new(digest: [u8; 32], rule: Rule, budget: &Budget, now_ms: u64) -> Self {
        let synthesizer = Synthesizer::new(rule.clone(), now_ms);
        let mut held = Held { synthesizer, taken: budget.nothing(), is_over: false };
        held.settle(usize::MAX);
        Self { digest, rule, held: Mutex::new(held) }
    }

    /// Counts an event.
    ///
    /// # Errors
    /// It cannot be counted; nothing has changed.
    pub fn handle(
        &self,
        source: usize,
        event: &Arc<Value>,
        now_ms: u64,
        share_bytes: usize,
    ) -> Result<Counted, SynthesisError> {
        let reading = self.rule.read(event)?;
        let mut held = self.held.lock();
        let before = held.synthesizer.due_ms();
        let firings = held.synthesizer.count(source, event, reading, now_ms)?;
        let exceeds = held.settle(share_bytes);
        let due = held.synthesizer.due_ms();
        let is_due_earlier = due.is_some_and(|due| before.is_none_or(|before| due < before));
        Ok(Counted { firings, is_due_earlier, exceeds })
    }

    fn tick(&self, now_ms: u64, share_bytes: usize) -> Counted {
        let mut held = self.held.lock();
        let firings = held.synthesizer.tick(now_ms);
        let exceeds = held.settle(share_bytes);
        Counted { firings, is_due_earlier: false, exceeds }
    }
}

impl StartRules {
    /// No rules yet. What they hold will be charged to `budget`.
    pub fn new(budget: &Budget) -> Self {
        Self { rules: Mutex::default(), budget: budget.clone() }
    }

    /// What each rule may hold, in bytes.
    pub fn share_bytes(&self) -> usize {
        self.budget.most() / RULES_SHARE / self.rules.lock().len().max(1)
    }

    /// The rule of a workflow as it is deployed now.
    pub fn of(&self, workflow: &LiveWorkflow, now_ms: u64) -> Option<Arc<StartRule>> {
        let known = self.rules.lock().get(&workflow.name).cloned();
        if let Some(known) = known.filter(|known| known.digest == workflow.digest) {
            return Some(known);
        }
        // Compiled without the lock.
        let rule = schedule_rule(workflow.program.schedule.as_ref()?).ok()?;
        Some(self.add(&workflow.name, StartRule::new(workflow.digest, rule, &self.budget, now_ms)))
    }

    fn add(&self, workflow: &Arc<str>, rule: StartRule) -> Arc<StartRule> {
        let new = Arc::new(rule);
        let mut rules = self.rules.lock();
        let known = rules.entry(workflow.clone()).or_insert_with(|| new.clone());
        // Another thread may have been faster.
        if known.digest != new.digest {
            *known = new;
        }
        known.clone()
    }

    fn all(&self) -> Vec<(Arc<str>, Arc<StartRule>)> {
        self.rules.lock().iter().map(|(name, rule)| (name.clone(), rule.clone())).collect()
    }

    fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.rules.lock().retain(|name, _| keep(name));
    }

    fn due_ms(&self) -> Option<u64> {
        self.all().iter().filter_map(|(_, rule)| rule.held.lock().synthesizer.due_ms()).min()
    }

    /// Does what is due, and brings all rules within their shares.
    fn tick(&self, now_ms: u64) -> Vec<(Arc<str>, Counted)> {
        let share_bytes = self.share_bytes();
        self.all().into_iter().map(|(name, rule)| (name, rule.tick(now_ms, share_bytes))).collect()
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
pub async fn run(coordinator: Arc<Coordinator>, cancel: CancellationToken) {
    let mut changes = coordinator.registry.changes();
    let mut planned: Vec<Planned> = Vec::new();
    loop {
        changes.borrow_and_update();
        planned = plan(&coordinator, planned);
        // With another rule, each has a smaller share.
        coordinator.rules_tick();
        let queues = coordinator.start_queues();
        loop {
            let wait = next_wait(&coordinator, &planned, &queues);
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
            planned.iter_mut().for_each(|planned| planned.start_if_due(&coordinator));
            coordinator.rules_tick();
            coordinator.look_at_queues(&queues);
        }
    }
}

fn plan(coordinator: &Arc<Coordinator>, before: Vec<Planned>) -> Vec<Planned> {
    let routes = coordinator.registry.routes();
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

fn next_wait(
    coordinator: &Arc<Coordinator>,
    planned: &[Planned],
    queues: &[(Arc<LiveWorkflow>, Queue)],
) -> Duration {
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
    fn start_if_due(&mut self, coordinator: &Arc<Coordinator>) {
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
            coordinator.start_alone(Start::new(
                self.workflow.clone(),
                Value::Object(Default::default()),
                0,
            ));
        }
    }
}

impl Coordinator {
    /// Starts an instance that nobody waits for.
    pub(super) fn start_alone(self: &Arc<Self>, start: Start) {
        let workflow = start.workflow.clone();
        match self.enter_workflow(start) {
            Ok(running) => self.spawn_drive(running, Queued::now(Event::Start)),
            Err(error) => {
                workflow.figures.rejected.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let text = format!("not started: {error}");
                self.logs.add(&workflow.name, "", edgefaas_isolates::LogLevel::Warn, text);
                self.after_end(&workflow.name);
            }
        }
    }

    fn rules_tick(self: &Arc<Self>) {
        let ticked = self.rules.tick(self.time.now_ms());
        let mut fired = Vec::new();
        for (name, counted) in ticked {
            self.log_exceeded(&name, counted.exceeds);
            fired.extend(counted.firings.into_iter().map(|firing| (name.clone(), firing)));
        }
        self.start_fired(fired);
    }

    /// Writes it to the log of a workflow that its rule exceeds its share.
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
                self.start_alone(Start::new(workflow.clone(), input, 0));
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
            if length != watched.told {
                watched.told = length;
                changed.extend(length.map(|length| (watched.instance, watched.frame, length)));
            }
        }
        for (id, frame, length) in changed {
            if let Some(running) = self.find(id) {
                self.spawn_drive(running, Queued::now(Event::QueueLength { frame, length }));
            }
        }
        for (workflow, queue) in queues {
            let Some(length) = self.queue_length(queue) else { continue };
            let now_ms = self.time.now_ms();
            let Some(rule) = self.rules.of(workflow, now_ms) else { continue };
            let firings = rule.held.lock().synthesizer.queue_length(length, now_ms);
            self.start_fired(firings.into_iter().map(|firing| (workflow.name.clone(), firing)).collect());
        }
    }

    /// How many wait: invocations of a function, or messages for subscribers of a filter.
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

#[cfg(test)]
mod tests {
    use edgefaas_workflow::synthesizer::Predicate;
    use serde_json::json;

    use super::*;

    const MAX_BYTES: usize = 400_000;

    fn rule(value: &Value) -> Rule {
        let by_room = |_: &str| -> Result<Predicate, String> {
            Ok(Arc::new(|event: &Value| Ok(event.get("room").cloned().unwrap_or_default())))
        };
        Rule::parse(value, 1, &by_room).unwrap()
    }

    fn add(rules: &StartRules, name: &str, value: &Value) -> Arc<StartRule> {
        let mut digest = [0; 32];
        digest[0] = value.to_string().len() as u8;
        rules.add(&name.into(), StartRule::new(digest, rule(value), &rules.budget, 0))
    }

    /// An event of about 1 kB.
    fn event(room: usize) -> Arc<Value> {
        Arc::new(json!({"room": room, "text": "x".repeat(500)}))
    }

    fn held(rules: &StartRules) -> usize {
        rules.budget.most() - rules.budget.free()
    }

    #[test]
    fn rules_hold_a_quarter_of_the_budget_in_equal_shares() {
        let rules = StartRules::new(&Budget::new(MAX_BYTES));
        let window = json!({"window": {"every": "1h"}});
        let first = add(&rules, "first", &window);
        let share_bytes = rules.share_bytes();
        assert_eq!((share_bytes, held(&rules)), (MAX_BYTES / 4, 0));
        let mut news = Vec::new();
        for number in 0..500 {
            news.extend(first.handle(0, &event(number), 1, share_bytes).unwrap().exceeds);
            assert!(held(&rules) <= MAX_BYTES / 4);
        }
        assert!(held(&rules) > MAX_BYTES / 5);
        assert_eq!(news, [OverShare { share_bytes }], "it is said once");

        // Another one halves the shares, and the first gives up what it has too much.
        let second = add(&rules, "second", &window);
        rules.tick(2);
        assert!(held(&rules) <= MAX_BYTES / 8);
        (0..500).for_each(|number| drop(second.handle(0, &event(number), 2, rules.share_bytes()).unwrap()));
        assert!((MAX_BYTES / 5..=MAX_BYTES / 4).contains(&held(&rules)), "{}", held(&rules));

        // A rule that is removed or replaced returns all of it.
        drop(second);
        rules.retain(|name| name == "first");
        assert!(held(&rules) <= MAX_BYTES / 8);
        drop(first);
        add(&rules, "first", &json!({"window": {"every": "2h", "empty": false}}));
        assert_eq!(held(&rules), 0);
    }

    #[test]
    fn what_has_fired_is_returned() {
        let rules = StartRules::new(&Budget::new(MAX_BYTES));
        let window = add(&rules, "window", &json!({"window": {"every": "1s"}}));
        let count = add(&rules, "count", &json!({"count": 3}));
        for number in 0..2 {
            window.handle(0, &event(number), 1, rules.share_bytes()).unwrap();
            count.handle(0, &event(number), 1, rules.share_bytes()).unwrap();
        }
        assert!(held(&rules) >= 4 * 500);
        assert_eq!(count.handle(0, &event(2), 1, rules.share_bytes()).unwrap().firings.len(), 1);
        assert!(held(&rules) < 4 * 1_000);
        let ticked = rules.tick(1_000);
        assert_eq!(ticked.iter().map(|(_, counted)| counted.firings.len()).sum::<usize>(), 1);
        assert_eq!(held(&rules), 0);
    }

    #[test]
    fn a_key_that_is_let_go_is_said_once() {
        let rules = StartRules::new(&Budget::new(MAX_BYTES));
        let rule = add(&rules, "keyed", &json!({"key": "${ .room }", "count": 1_000, "within": "1h"}));
        let count = |room: usize, now_ms: u64| {
            rule.handle(0, &event(room), now_ms, rules.share_bytes()).unwrap().exceeds.is_some()
        };
        let news = (0..2_000).filter(|number| count(number / 3, 1)).count();
        assert_eq!(news, 1);
        assert!(held(&rules) <= MAX_BYTES / 4);
        // All are too old, and there are too many again.
        rules.tick(4_000_000);
        assert_eq!(held(&rules), 0);
        let news = (0..2_000).filter(|number| count(number / 3, 4_000_001)).count();
        assert_eq!(news, 1);
    }
}
