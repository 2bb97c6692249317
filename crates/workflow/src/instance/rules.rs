//! Rules over several events: of a `listen`, and of the schedule that starts a workflow.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::event::FrameId;
use super::run::Run;
use super::state::Instance;
use crate::event::read;
use crate::expression::Expression;
use crate::program::{Kind, Program, Read, Schedule};
use crate::synthesizer::{self, Firing, Predicate, Rule, RuleError, Synthesizer};

/// Memory of a rule without its events, mainly its expressions.
const RULE_BYTES: u64 = 1 << 10;

impl Instance {
    /// The rule of a waiting listen.
    pub(super) fn rule_of(&self, frame: FrameId, program: &Program) -> Option<Rule> {
        let node = self.frames.get(&frame)?.node?;
        let Kind::Listen(listen) = &program.node(node).kind else { return None };
        parse_rule(listen.rule.as_ref()?, listen.strategy.filters.len()).ok()
    }

    /// Adds the rule of a listen. Its frame is charged with the rule and its events.
    pub(super) fn add_rule(&mut self, frame: FrameId, synthesizer: Synthesizer) {
        self.hold_rule(frame, synthesizer.bytes());
        self.synthesizers.insert(frame, synthesizer);
    }

    /// Charges the frame of a listen with a rule and `bytes` bytes of events.
    pub(super) fn hold_rule(&mut self, frame: FrameId, bytes: usize) {
        self.hold(frame, RULE_BYTES + bytes as u64);
    }

    /// Changes the rule of a listen, if it has one, and updates the memory that its frame is charged with.
    pub(super) fn change_rule<T>(
        &mut self,
        frame: FrameId,
        step: impl FnOnce(&mut Synthesizer) -> T,
    ) -> Option<T> {
        let synthesizer = self.synthesizers.get_mut(&frame)?;
        let before = synthesizer.bytes() as u64;
        let result = step(synthesizer);
        let after = synthesizer.bytes() as u64;
        match after >= before {
            true => self.hold(frame, after - before),
            false => self.release(frame, before - after),
        }
        Some(result)
    }
}

/// Compiles a rule that was checked when the definition was compiled.
pub(super) fn parse_rule(rule: &Value, sources: usize) -> Result<Rule, RuleError> {
    let compile = |text: &str| {
        let expression = Expression::parse(text, &[])?;
        let predicate: Predicate = Arc::new(move |event: &Value| expression.eval_json(event, 0));
        Ok(predicate)
    };
    Rule::parse(rule, sources.max(1), &compile)
}

impl Run<'_> {
    /// Restores the rules in their state at the failure of the instance. Their frames are already charged with them.
    pub(super) fn restore_rules(&mut self, rules: BTreeMap<FrameId, synthesizer::State>) {
        for (id, state) in rules {
            let Some(rule) = self.instance.rule_of(id, self.program) else { continue };
            self.instance.release(id, RULE_BYTES + state.bytes() as u64);
            self.instance.add_rule(id, Synthesizer::restore(rule, state, self.environment.now_ms));
        }
    }

    /// Processes the rules whose timers are due.
    pub(super) fn tick_rules(&mut self) {
        let now_ms = self.environment.now_ms;
        let due = |synthesizer: &Synthesizer| synthesizer.due_ms().is_some_and(|due| due <= now_ms);
        let frames: Vec<FrameId> =
            self.instance.synthesizers.iter().filter(|(_, rule)| due(rule)).map(|(id, _)| *id).collect();
        for id in frames {
            if let Some(firings) = self.instance.change_rule(id, |rule| rule.tick(now_ms)) {
                self.fired(id, firings);
            }
        }
    }
}

/// The value of a firing for the workflow: its facts and its events.
pub fn firing_value(firing: &Firing, how: Read) -> Value {
    let mut value = match &firing.facts {
        Value::Object(facts) => facts.clone(),
        _ => serde_json::Map::new(),
    };
    value.insert("key".to_owned(), firing.key.clone().unwrap_or_default());
    value.insert("events".to_owned(), firing.events.iter().map(|event| read(event, how)).collect());
    if firing.dropped > 0 {
        value.insert("dropped".to_owned(), json!(firing.dropped));
    }
    Value::Object(value)
}

/// The rule that starts a workflow from the events of a schedule: the schedule's own rule, or one that collects an
/// event of each filter.
///
/// # Errors
/// `NoEvents` if the schedule has only times; `Rule` if the rule is invalid, which the compiler has checked.
pub fn schedule_rule(schedule: &Schedule) -> Result<Rule, ScheduleRuleError> {
    let on = schedule.on.as_ref().ok_or(ScheduleRuleError::NoEvents)?;
    if let Some(rule) = &schedule.rule {
        return Ok(parse_rule(rule, on.filters.len())?);
    }
    let mut rule = json!({"all": true});
    let key = on.filters.first().and_then(|filter| filter.correlate.first());
    if let Some(key) = key {
        rule["key"] = Value::from(format!("${{ {} }}", key.from.source()));
    }
    Ok(parse_rule(&rule, on.filters.len())?)
}

/// A schedule without a rule for its events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleRuleError {
    /// The schedule starts workflows by time only.
    #[error("the schedule has no events; add `on`")]
    NoEvents,
    /// Its rule is invalid.
    #[error(transparent)]
    Rule(#[from] RuleError),
}
