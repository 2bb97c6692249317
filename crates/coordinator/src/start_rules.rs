//! Start rules: the rules of workflows that several events start, and the events they hold.

use std::collections::HashMap;
use std::sync::Arc;

use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_platform::{Budget, Taken};
use edgefaas_workflow::instance::{FrameId, schedule_rule};
use edgefaas_workflow::program::{Program, Read};
use edgefaas_workflow::synthesizer::{Firing, Queue, Rule, State, SynthesisError, Synthesizer};
use parking_lot::Mutex;
use serde_json::Value;
use ulid::Ulid;

use super::rule_log::Logged;

/// All start rules together hold at most one byte in this many of the node's budget for workflows.
const RULES_SHARE: usize = 4;

/// The rules of workflows that several events start. Their events are charged to the node's budget for workflows:
/// together at most a quarter of it, in equal shares.
pub(crate) struct StartRules {
    pub(crate) rules: Mutex<HashMap<Arc<str>, Arc<StartRule>>>,
    pub(crate) budget: Budget,
}

/// The rule of one workflow. Its lock is never held while an expression is evaluated.
pub(crate) struct StartRule {
    pub(crate) digest: [u8; 32],
    pub(crate) rule: Rule,
    /// The time at which it began: its windows count from it.
    pub(crate) since_ms: u64,
    held: Mutex<Held>,
    /// Held from an event, or a time at which it fires, until that is recorded. Only for durable workflows.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// Its records on the disk.
    pub(crate) log: Mutex<Logged>,
}

/// The events of a rule, with their charge.
struct Held {
    pub(crate) synthesizer: Synthesizer,
    /// The rule's part of the node's budget, returned with the rule.
    pub(crate) taken: Taken,
    /// The rule was trimmed, and has not been below half of its share since.
    pub(crate) is_over: bool,
}

/// Result of an event or of a tick.
pub(crate) struct Counted {
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
pub(crate) struct OverShare {
    pub(crate) share_bytes: usize,
}

impl Held {
    /// Trims the rule to its share, and charges the remaining bytes. Returns the error once, until the rule is below
    /// half of its share.
    fn settle(&mut self, share_bytes: usize) -> Option<OverShare> {
        let has_trimmed = self.synthesizer.trim(share_bytes);
        let bytes = self.synthesizer.bytes();
        self.taken.resize(bytes);
        if has_trimmed {
            let was_over = std::mem::replace(&mut self.is_over, true);
            return (!was_over).then_some(OverShare { share_bytes });
        }
        // A trimmed key frees room for some events; that alone does not clear the state.
        self.is_over &= bytes > share_bytes / 2;
        None
    }
}

impl StartRule {
    fn new(digest: [u8; 32], rule: Rule, budget: &Budget, now_ms: u64) -> Self {
        let synthesizer = Synthesizer::new(rule.clone(), now_ms);
        Self::with(digest, rule, synthesizer, budget, now_ms)
    }

    fn with(
        digest: [u8; 32],
        rule: Rule,
        synthesizer: Synthesizer,
        budget: &Budget,
        since_ms: u64,
    ) -> Self {
        let mut held = Held { synthesizer, taken: budget.take_none(), is_over: false };
        held.settle(usize::MAX);
        Self {
            digest,
            rule,
            since_ms,
            held: Mutex::new(held),
            turn: tokio::sync::Mutex::default(),
            log: Mutex::default(),
        }
    }

    /// Its state at a time, for the disk.
    pub fn state(&self, now_ms: u64) -> State {
        self.held.lock().synthesizer.state(now_ms)
    }

    /// Number of events that it keeps.
    pub fn events(&self) -> usize {
        self.held.lock().synthesizer.counts().events
    }

    /// Counts an event.
    ///
    /// # Errors
    /// The event cannot be counted. The rule is unchanged.
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

    /// The length of the queue that the rule watches.
    pub fn queue_length(&self, length: u64, now_ms: u64) -> Vec<Firing> {
        self.held.lock().synthesizer.queue_length(length, now_ms)
    }

    pub fn tick(&self, now_ms: u64, share_bytes: usize) -> Counted {
        let mut held = self.held.lock();
        let firings = held.synthesizer.tick(now_ms);
        let exceeds = held.settle(share_bytes);
        Counted { firings, is_due_earlier: false, exceeds }
    }
}

impl StartRules {
    /// A set without rules. The events of later rules are charged to `budget`.
    pub fn new(budget: &Budget) -> Self {
        Self { rules: Mutex::default(), budget: budget.clone() }
    }

    /// The share of each rule, in bytes.
    pub fn share_bytes(&self) -> usize {
        self.budget.max_bytes() / RULES_SHARE / self.rules.lock().len().max(1)
    }

    /// The rule of a workflow in its deployed revision.
    pub fn of(&self, workflow: &LiveWorkflow, now_ms: u64) -> Option<Arc<StartRule>> {
        let known = self.rules.lock().get(&workflow.name).cloned();
        if let Some(known) = known.filter(|known| known.digest == workflow.digest) {
            return Some(known);
        }
        // Compiled without the lock.
        let rule = schedule_rule(workflow.program.schedule.as_ref()?).ok()?;
        Some(self.add(&workflow.name, StartRule::new(workflow.digest, rule, &self.budget, now_ms)))
    }

    /// Adds the rule of a workflow with a state from the disk, if there is one.
    pub fn restored(
        &self,
        workflow: &LiveWorkflow,
        state: Option<State>,
        now_ms: u64,
    ) -> Option<Arc<StartRule>> {
        let rule = schedule_rule(workflow.program.schedule.as_ref()?).ok()?;
        let synthesizer = match state {
            Some(state) => Synthesizer::restore(rule.clone(), state, now_ms),
            None => Synthesizer::new(rule.clone(), now_ms),
        };
        let rule = StartRule::with(workflow.digest, rule, synthesizer, &self.budget, now_ms);
        Some(self.add(&workflow.name, rule))
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

    pub fn all(&self) -> Vec<(Arc<str>, Arc<StartRule>)> {
        self.rules.lock().iter().map(|(name, rule)| (name.clone(), rule.clone())).collect()
    }

    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.rules.lock().retain(|name, _| keep(name));
    }

    pub fn due_ms(&self) -> Option<u64> {
        self.all().iter().filter_map(|(_, rule)| rule.held.lock().synthesizer.due_ms()).min()
    }

    /// Fires due rules, and trims all rules to their shares.
    #[cfg(test)]
    fn tick(&self, now_ms: u64) -> Vec<(Arc<str>, Counted)> {
        let share_bytes = self.share_bytes();
        self.all().into_iter().map(|(name, rule)| (name, rule.tick(now_ms, share_bytes))).collect()
    }
}

/// A queue that an instance watches.
pub(crate) struct Watched {
    pub(crate) instance: Ulid,
    pub(crate) frame: FrameId,
    pub(crate) queue: Queue,
    /// The last length that was sent to the instance.
    pub(crate) notified_length: Option<u64>,
}

/// The input of an instance that a rule starts: the match of the rule or, for `all` without a rule, the events.
pub(crate) fn input_of_firing(program: &Program, firing: &Firing) -> Value {
    let has_own = program.schedule.as_ref().is_some_and(|schedule| schedule.rule.is_some());
    match has_own {
        true => Value::Array(vec![edgefaas_workflow::instance::firing_value(firing, Read::Envelope)]),
        false => firing.events.iter().map(|event| (**event).clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_workflow::expression::ExpressionError;
    use edgefaas_workflow::synthesizer::Predicate;
    use serde_json::json;

    use super::*;

    const MAX_BYTES: usize = 400_000;

    fn rule(value: &Value) -> Rule {
        let by_room = |_: &str| -> Result<Predicate, ExpressionError> {
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
        rules.budget.max_bytes() - rules.budget.free()
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
        assert_eq!(news, [OverShare { share_bytes }], "it is reported once");

        // A second rule halves the shares, and the first is trimmed.
        let second = add(&rules, "second", &window);
        rules.tick(2);
        assert!(held(&rules) <= MAX_BYTES / 8);
        (0..500).for_each(|number| drop(second.handle(0, &event(number), 2, rules.share_bytes()).unwrap()));
        assert!((MAX_BYTES / 5..=MAX_BYTES / 4).contains(&held(&rules)), "{}", held(&rules));

        // A removed or replaced rule returns its whole charge.
        drop(second);
        rules.retain(|name| name == "first");
        assert!(held(&rules) <= MAX_BYTES / 8);
        drop(first);
        add(&rules, "first", &json!({"window": {"every": "2h", "empty": false}}));
        assert_eq!(held(&rules), 0);
    }

    #[test]
    fn a_fired_rule_frees_its_events() {
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
    fn a_trimmed_key_is_reported_once() {
        let rules = StartRules::new(&Budget::new(MAX_BYTES));
        let rule = add(&rules, "keyed", &json!({"key": "${ .room }", "count": 1_000, "within": "1h"}));
        let count = |room: usize, now_ms: u64| {
            rule.handle(0, &event(room), now_ms, rules.share_bytes()).unwrap().exceeds.is_some()
        };
        let news = (0..2_000).filter(|number| count(number / 3, 1)).count();
        assert_eq!(news, 1);
        assert!(held(&rules) <= MAX_BYTES / 4);
        // All events have expired, and the limit is exceeded again.
        rules.tick(4_000_000);
        assert_eq!(held(&rules), 0);
        let news = (0..2_000).filter(|number| count(number / 3, 4_000_001)).count();
        assert_eq!(news, 1);
    }
}
