//! `listen`: events that an instance waits for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::advance::Run;
use super::scope::event_taken_in;
use super::{Action, Frame, FrameId, Instance, State};
use crate::data::{Data, ITEM_BYTES, List};
use crate::error::{ErrorKind, WorkflowError};
use crate::event::{read, subset, topic_matches};
use crate::expression::{Bounds, Expression};
use crate::program::{DataTest, EventFilter, Kind, Listen, Mode, Program, Until};
use crate::synthesizer::{Firing, Predicate, Rule, Synthesizer};

/// Events that wait for `foreach`.
const MAX_QUEUED: usize = 10_000;
/// Events that one listen collects.
const MAX_EVENTS: usize = 100_000;
/// Memory of a rule beside what it holds: its expressions above all.
const RULE_BYTES: u64 = 1 << 10;

/// What an event must be like, all expressions about it evaluated but those that need the instance.
#[derive(Debug, Clone)]
pub struct ActiveFilter {
    /// Attributes and their values; in `subject` an MQTT topic filter.
    pub attributes: Vec<(String, Value)>,
    /// Parts of the event and the values they must have.
    pub correlate: Vec<(Expression, Value)>,
}

impl ActiveFilter {
    /// The value an attribute must have, as text.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.as_str())
    }
}

/// Whether an event has the attributes of a filter. Evaluates no expression.
pub fn has_attributes_of(filter: &ActiveFilter, event: &Value) -> bool {
    has_attributes(&filter.attributes, event)
}

/// Whether an event has the attributes and the correlated parts of a filter. A condition on its data is looked at by the
/// instance itself.
pub fn accepts(filter: &ActiveFilter, event: &Value, unix_ms: u64) -> bool {
    has_attributes(&filter.attributes, event)
        && filter
            .correlate
            .iter()
            .all(|(from, expected)| from.eval_json(event, unix_ms).is_ok_and(|found| found == *expected))
}

fn has_attributes(attributes: &[(String, Value)], event: &Value) -> bool {
    attributes.iter().all(|(name, wanted)| match (name.as_str(), event.get(name), wanted) {
        ("subject", Some(Value::String(subject)), Value::String(filter)) => topic_matches(filter, subject),
        (_, Some(found), wanted) => found == wanted,
        (_, None, _) => false,
    })
}

/// A listen that waits.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Listening {
    filters: Vec<Resolved>,
    /// What there is so far.
    events: Data,
    /// Filters of an `all` that have had their event.
    matched: Vec<u32>,
    correlation: BTreeMap<String, Data>,
    /// For `foreach`.
    queue: VecDeque<Data>,
    busy: bool,
    taken: u32,
    /// Ends when the queue is empty.
    ending: bool,
}

/// A filter as it was when the listen began.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Resolved {
    attributes: Vec<(String, Value)>,
    expect: Vec<(u32, Data)>,
}

impl Listening {
    /// Of the events that it has, and of those that wait for `foreach`.
    pub(super) fn bytes(&self) -> u64 {
        self.events.bytes() + self.queue.iter().map(item_bytes).sum::<u64>()
    }

    /// How many events it has.
    fn collected(&self) -> usize {
        self.events.items().map_or(0, List::len)
    }

    /// The events as a list.
    fn list(&self) -> Data {
        match &self.events {
            Data::Arr(_) => self.events.clone(),
            _ => Data::list(Vec::new()),
        }
    }
}

/// Memory of an event that is kept, with its place.
fn item_bytes(item: &Data) -> u64 {
    ITEM_BYTES + item.bytes()
}

/// What an event that can be kept, or a rule of such events, gives.
fn kept(value: &Value) -> Data {
    Data::from_json(value).unwrap_or_default()
}

impl Instance {
    /// The rule of a listen that waits.
    pub(super) fn rule_of(&self, frame: FrameId, program: &Program) -> Option<Rule> {
        let node = self.frames.get(&frame)?.node?;
        let Kind::Listen(listen) = &program.node(node).kind else { return None };
        parse_rule(listen.rule.as_ref()?, listen.strategy.filters.len()).ok()
    }

    /// Adds the rule of a listen, whose frame holds it and its events.
    pub(super) fn add_rule(&mut self, frame: FrameId, synthesizer: Synthesizer) {
        self.hold_rule(frame, synthesizer.bytes());
        self.synthesizers.insert(frame, synthesizer);
    }

    /// The frame of a listen holds a rule with so many bytes of events.
    pub(super) fn hold_rule(&mut self, frame: FrameId, bytes: usize) {
        self.hold(frame, RULE_BYTES + bytes as u64);
    }

    /// Changes the rule of a listen, if it has one. Its frame then holds what the rule does.
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

/// A rule that was checked when the definition was compiled.
pub(crate) fn parse_rule(rule: &Value, sources: usize) -> Result<Rule, String> {
    let compile = |text: &str| {
        let expression = Expression::parse(text, &[]).map_err(|error| error.to_string())?;
        let predicate: Predicate = Arc::new(move |event: &Value| {
            expression.eval_json(event, 0).map_err(|error| error.to_string())
        });
        Ok(predicate)
    };
    Rule::parse(rule, sources.max(1), &compile).map_err(|error| error.to_string())
}

impl Run<'_> {
    /// Says which events are waited for.
    pub(super) fn begin_listening(&mut self, id: FrameId) -> Result<(), WorkflowError> {
        let Some((frame, listen)) = self.listen_of(id) else { return Ok(()) };
        let mut filters = Vec::new();
        for filter in wanted(listen) {
            let scope = self.scope(
                frame.parent,
                frame.node.map(|node| self.program.node(node)),
                Some(&frame.input),
                None,
            );
            let mut resolved = Resolved { attributes: Vec::new(), expect: Vec::new() };
            for (name, template) in &filter.attributes {
                resolved.attributes.push((name.clone(), scope.json(template, &frame.input)?));
            }
            for (index, correlation) in filter.correlate.iter().enumerate() {
                if let Some(expect) = &correlation.expect {
                    resolved.expect.push((index as u32, scope.template(expect, &frame.input)?));
                }
            }
            filters.push(resolved);
        }
        if let Some(rule) = &listen.rule {
            let rule = parse_rule(rule, listen.strategy.filters.len());
            let rule = rule.map_err(|reason| WorkflowError::new(ErrorKind::Configuration, reason))?;
            let synthesizer = Synthesizer::new(rule, self.environment.now_ms);
            self.instance.add_rule(id, synthesizer);
        }
        if let Some(listening) = self.listening(id) {
            listening.filters = filters;
        }
        self.listen_again(id)
    }

    /// Says it once more.
    pub(super) fn listen_again(&mut self, id: FrameId) -> Result<(), WorkflowError> {
        let Some((frame, listen)) = self.listen_of(id) else { return Ok(()) };
        let State::Listen(listening) = &frame.state else { return Ok(()) };
        let active = |(filter, resolved): (&EventFilter, &Resolved)| ActiveFilter {
            attributes: resolved.attributes.clone(),
            correlate: resolved
                .expect
                .iter()
                .filter_map(|(index, value)| {
                    Some((filter.correlate.get(*index as usize)?.from.clone(), value.to_json()))
                })
                .collect(),
        };
        let filters = wanted(listen).zip(&listening.filters).map(active).collect();
        let queue = self
            .instance
            .rule_of(id, self.program)
            .and_then(|rule| rule.queue().map(|(queue, _)| queue.clone()));
        self.actions.push(Action::Listen { frame: id, filters, queue });
        Ok(())
    }

    fn listen_of(&self, id: FrameId) -> Option<(&Frame, &'_ Listen)> {
        let frame = self.frame(id)?;
        match &self.program.node(frame.node?).kind {
            Kind::Listen(listen) => Some((frame, listen)),
            _ => None,
        }
    }

    fn listening(&mut self, id: FrameId) -> Option<&mut Listening> {
        match self.frame_mut(id) {
            Some(Frame { state: State::Listen(listening), .. }) => Some(listening),
            _ => None,
        }
    }

    /// An event has come that a filter may take. One that nests too deep to be kept is none that is waited for.
    pub(super) fn message(&mut self, id: FrameId, source: u32, event: Arc<Value>) {
        let Some(data) = event_taken_in(&event) else { return };
        match self.take(id, source, &event, &data) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.fail_listen(id, error),
        }
        let Some((_, listen)) = self.listen_of(id) else { return };
        let (filters, how) = (listen.strategy.filters.len(), listen.read);
        let ends = source as usize >= filters;
        if ends {
            if let Some(listening) = self.listening(id) {
                listening.ending = true;
            }
            return self.go_on(id);
        }
        let now_ms = self.environment.now_ms;
        let handled = self.instance.change_rule(id, |rule| rule.handle(source as usize, &event, now_ms));
        match handled {
            None => self.deliver(id, kept(&read(&event, how))),
            Some(Ok(firings)) => self.fired(id, firings),
            Some(Err(error)) => {
                self.fail_listen(id, WorkflowError::new(ErrorKind::Expression, error.to_string()));
            }
        }
    }

    /// Whether the event is one of those that are waited for.
    fn take(
        &mut self,
        id: FrameId,
        source: u32,
        json: &Value,
        event: &Data,
    ) -> Result<bool, WorkflowError> {
        let Some((frame, listen)) = self.listen_of(id) else { return Ok(false) };
        let State::Listen(listening) = &frame.state else { return Ok(false) };
        let (Some(filter), Some(resolved)) =
            (wanted(listen).nth(source as usize), listening.filters.get(source as usize))
        else {
            return Ok(false);
        };
        let all = listen.strategy.mode == Mode::All && listen.rule.is_none();
        if listening.ending || (all && listening.matched.contains(&source)) {
            return Ok(false);
        }
        if !has_attributes(&resolved.attributes, json) {
            return Ok(false);
        }
        let scope = self.scope(
            frame.parent,
            frame.node.map(|node| self.program.node(node)),
            Some(&frame.input),
            None,
        );
        let data = event.get("data").cloned().unwrap_or_default();
        let fits = match &filter.data {
            None => true,
            Some(DataTest::Contains(wanted)) => subset(wanted, json.get("data").unwrap_or(&Value::Null)),
            // Data that the condition does not fit is not meant.
            Some(DataTest::Condition(condition)) => scope.is_true(condition, &data).unwrap_or(false),
        };
        if !fits {
            return Ok(false);
        }
        let mut learned = Vec::new();
        for (index, correlation) in filter.correlate.iter().enumerate() {
            let Ok(found) = scope.expression(&correlation.from, event) else { return Ok(false) };
            let expected =
                resolved.expect.iter().find(|(of, _)| *of as usize == index).map(|(_, value)| value);
            match expected.or_else(|| listening.correlation.get(&correlation.name)) {
                Some(expected) if *expected != found => return Ok(false),
                Some(_) => {}
                None => learned.push((correlation.name.clone(), found)),
            }
        }
        if let Some(listening) = self.listening(id) {
            listening.correlation.extend(learned);
            if all {
                listening.matched.push(source);
            }
        }
        Ok(true)
    }

    fn fired(&mut self, id: FrameId, firings: Vec<Firing>) {
        let Some((_, listen)) = self.listen_of(id) else { return };
        let how = listen.read;
        for firing in firings {
            self.deliver(id, kept(&firing_value(&firing, how)));
        }
    }

    pub(super) fn queue_length(&mut self, id: FrameId, length: u64) {
        let now_ms = self.environment.now_ms;
        if let Some(firings) = self.instance.change_rule(id, |rule| rule.queue_length(length, now_ms)) {
            self.fired(id, firings);
        }
    }

    /// Rules go on from what they were when the instance failed. Their frames hold them still.
    pub(super) fn restore_rules(&mut self, rules: BTreeMap<FrameId, crate::synthesizer::State>) {
        for (id, state) in rules {
            let Some(rule) = self.instance.rule_of(id, self.program) else { continue };
            self.instance.release(id, RULE_BYTES + state.bytes() as u64);
            self.instance.add_rule(id, Synthesizer::restore(rule, state, self.environment.now_ms));
        }
    }

    /// Rules whose time has come.
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

    /// What a listen has waited for is here.
    fn deliver(&mut self, id: FrameId, item: Data) {
        let Some((_, listen)) = self.listen_of(id) else { return };
        let foreach = listen.foreach.is_some();
        let all = listen.strategy.mode == Mode::All && listen.rule.is_none();
        let one = listen.strategy.until.is_none() && !all;
        let Some(listening) = self.listening(id) else { return };
        // The one that is waited for is with `foreach` already.
        let has_one = one && (listening.busy || !listening.queue.is_empty());
        if listening.ending || has_one {
            return;
        }
        let bytes = item_bytes(&item);
        match foreach {
            true => listening.queue.push_back(item),
            false => listening.events.push(item),
        }
        if listening.queue.len() > MAX_QUEUED || listening.collected() > MAX_EVENTS {
            let detail =
                format!("more than {MAX_QUEUED} events wait, or more than {MAX_EVENTS} were collected");
            return self.fail_listen(id, WorkflowError::new(ErrorKind::Runtime, detail));
        }
        self.instance.hold(id, bytes);
        if !foreach {
            self.check_end(id);
        }
        self.go_on(id);
    }

    /// Whether that was all.
    fn check_end(&mut self, id: FrameId) {
        let Some((frame, listen)) = self.listen_of(id) else { return };
        let State::Listen(listening) = &frame.state else { return };
        let strategy = &listen.strategy;
        let ends = match (&strategy.until, strategy.mode) {
            (Some(Until::Condition(condition)), _) => {
                let scope = self.scope(
                    frame.parent,
                    frame.node.map(|node| self.program.node(node)),
                    Some(&frame.input),
                    None,
                );
                match scope.is_true(condition, &listening.list()) {
                    Ok(ends) => ends,
                    Err(error) => return self.fail_listen(id, error),
                }
            }
            (Some(Until::Event(_) | Until::Never), _) => false,
            (None, Mode::All) if listen.rule.is_none() => listening.collected() >= strategy.filters.len(),
            (None, _) => true,
        };
        if let Some(listening) = self.listening(id)
            && ends
        {
            // What came after the event that was the last is not wanted.
            listening.queue.clear();
            listening.ending = true;
        }
    }

    /// Begins with the next event of `foreach`, or ends.
    fn go_on(&mut self, id: FrameId) {
        let unix_ms = self.environment.unix_ms;
        let Some(listening) = self.listening(id) else { return };
        if listening.busy {
            return;
        }
        let Some(item) = listening.queue.pop_front() else {
            if listening.ending {
                let output = listening.list();
                self.actions.push(Action::Unlisten { frame: id });
                self.finish_composed(id, output);
            }
            return;
        };
        listening.busy = true;
        let index = listening.taken;
        listening.taken += 1;
        let Some((frame, Listen { foreach: Some(foreach), .. })) = self.listen_of(id) else { return };
        let variables = vec![
            (Arc::from(foreach.item.as_str()), item.clone()),
            (Arc::from(foreach.at.as_str()), Data::from(index)),
        ];
        let list = Frame {
            node: frame.node,
            parent: Some(id),
            slot: index,
            started_unix_ms: unix_ms,
            raw: item.clone(),
            input: item.clone(),
            due_ms: None,
            timeout_ms: None,
            variables,
            state: State::List,
            held_bytes: 0,
        };
        let list = self.add(list);
        self.enter_list(list, 0, item);
    }

    /// `foreach` has done with an event.
    pub(super) fn event_done(&mut self, id: FrameId, index: u32, item: Data, output: Data) {
        match self.event_output(id, index, &item, output) {
            Ok(output) => {
                let Some(listening) = self.listening(id) else { return };
                let output_bytes = item_bytes(&output);
                listening.events.push(output);
                listening.busy = false;
                self.instance.release(id, item_bytes(&item));
                self.instance.hold(id, output_bytes);
                self.check_end(id);
                self.go_on(id);
            }
            Err(error) => self.fail_listen(id, error),
        }
    }

    fn event_output(
        &mut self,
        id: FrameId,
        index: u32,
        item: &Data,
        output: Data,
    ) -> Result<Data, WorkflowError> {
        let Some((frame, Listen { foreach: Some(foreach), .. })) = self.listen_of(id) else {
            return Ok(Data::Null);
        };
        let index = Data::from(index);
        let extra = [(foreach.item.as_str(), item), (foreach.at.as_str(), &index)];
        let node = frame.node.map(|node| self.program.node(node));
        let scope = |output| {
            let mut scope = self.scope(frame.parent, node, Some(&frame.input), Some(output));
            scope.extra = &extra;
            scope
        };
        let made = match &foreach.output {
            Some(template) => scope(&output).template(template, &output)?,
            None => output.clone(),
        };
        let context = match &foreach.export {
            Some(template) => Some(scope(&made).template(template, &made)?),
            None => None,
        };
        if let Some(context) = context {
            self.instance.context = context;
        }
        Ok(made)
    }

    fn fail_listen(&mut self, id: FrameId, error: WorkflowError) {
        let Some(frame) = self.frame(id) else { return };
        let (Some(parent), Some(node)) = (frame.parent, frame.node) else { return };
        let (slot, raw) = (frame.slot, frame.raw.clone());
        self.cancel_below(Some(id));
        self.cancel(id);
        self.push(super::Work::Fail { parent, slot, node, raw, error });
    }
}

/// All filters of a listen: its own, then those that end it.
fn wanted(listen: &Listen) -> impl Iterator<Item = &EventFilter> {
    let until = match &listen.strategy.until {
        Some(Until::Event(filters)) => filters.as_slice(),
        _ => &[],
    };
    listen.strategy.filters.iter().chain(until)
}

/// What a rule has found, as the workflow sees it: what it is about, and the events.
pub fn firing_value(firing: &Firing, how: crate::program::Read) -> Value {
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

/// A filter of a schedule as it is without an instance; nothing if it depends on one.
pub fn start_filter(filter: &EventFilter) -> Option<ActiveFilter> {
    let attribute = |(name, template): &(String, crate::expression::Template)| {
        Some((name.clone(), template.eval(&Data::Null, &(), Bounds::at(0)).ok()?.to_json()))
    };
    let expected = |correlation: &crate::program::Correlation| {
        let expect = correlation.expect.as_ref()?.eval(&Data::Null, &(), Bounds::at(0)).ok()?;
        Some((correlation.from.clone(), expect.to_json()))
    };
    Some(ActiveFilter {
        attributes: filter.attributes.iter().map(attribute).collect::<Option<_>>()?,
        correlate: filter.correlate.iter().filter_map(expected).collect(),
    })
}

impl EventFilter {
    /// Whether all of its expressions are evaluated without jaq, in a time that is bounded by their length.
    pub fn is_native(&self) -> bool {
        let condition = match &self.data {
            Some(DataTest::Condition(condition)) => condition.is_native(),
            Some(DataTest::Contains(_)) | None => true,
        };
        condition && self.correlate.iter().all(|correlation| correlation.from.is_native())
    }

    /// Whether an event's data is what a schedule's filter wants.
    pub fn takes(&self, event: &Value) -> bool {
        let data = event.get("data").unwrap_or(&Value::Null);
        match &self.data {
            None => true,
            Some(DataTest::Contains(wanted)) => subset(wanted, data),
            Some(DataTest::Condition(condition)) => {
                Data::from_json(data).is_ok_and(|data| condition.is_true(&data, &(), 0).unwrap_or(false))
            }
        }
    }
}

/// The rule by which a schedule's events start a workflow: its own, or one of each filter that belong together.
///
/// # Errors
/// There is none.
pub fn schedule_rule(schedule: &crate::program::Schedule) -> Result<Rule, String> {
    let on = schedule.on.as_ref().ok_or("the schedule has no events")?;
    if let Some(rule) = &schedule.rule {
        return parse_rule(rule, on.filters.len());
    }
    let mut rule = json!({"all": true});
    let key = on.filters.first().and_then(|filter| filter.correlate.first());
    if let Some(key) = key {
        rule["key"] = Value::from(format!("${{ {} }}", key.from.source()));
    }
    parse_rule(&rule, on.filters.len())
}
