//! `listen`: events that an instance waits for.

use std::sync::Arc;

use serde_json::Value;

use super::action::{Action, NoteKind};
use super::depth::event_taken_in;
use super::event::FrameId;
use super::filter::{ActiveFilter, has_attributes, has_patterns};
use super::frame::{Frame, State};
use super::listen_state::{Listening, Resolved, item_bytes};
use super::rules::{firing_value, parse_rule};
use super::run::Run;
use super::work::Work;
use crate::data::{Data, Fields};
use crate::error::{ErrorKind, WorkflowError};
use crate::event::{read, subset};
use crate::expression::Expression;
use crate::program::{Consume, DataTest, EventFilter, Kind, Listen, Mode, Read, Until};
use crate::synthesizer::{Firing, Synthesizer};

/// Maximum number of events that wait for `foreach`.
const MAX_QUEUED: usize = 10_000;
/// Maximum number of events that one listen collects.
const MAX_EVENTS: usize = 100_000;

/// The value of an event, or of a rule's firing, whose depth was checked.
fn kept(value: &Value) -> Data {
    Data::from_json(value).unwrap_or_default()
}

impl Run<'_> {
    /// Subscribes to the events of a listen; `topic` is that of an operation, which the definition does not have.
    pub(super) fn begin_listening(
        &mut self,
        id: FrameId,
        topic: Option<String>,
    ) -> Result<(), WorkflowError> {
        let Some((frame, listen)) = self.listen_of(id) else { return Ok(()) };
        let mut filters = Vec::new();
        for filter in wanted(listen) {
            let scope = self.frame_scope(frame);
            let mut resolved = Resolved { attributes: Vec::new(), expect: Vec::new() };
            for (name, template) in &filter.attributes {
                resolved.attributes.push((name.clone(), scope.json(template, &frame.input)?));
            }
            if let Some(topic) = &topic {
                resolved.attributes.push(("subject".to_owned(), Value::from(topic.as_str())));
            }
            for (index, correlation) in filter.correlate.iter().enumerate() {
                if let Some(expect) = &correlation.expect {
                    resolved.expect.push((index as u32, scope.template(expect, &frame.input)?));
                }
            }
            filters.push(resolved);
        }
        let consumes = listen.consume.is_some();
        let (node, correlates) = (frame.node, wanted(listen).any(|filter| !filter.correlate.is_empty()));
        if let Some(rule) = &listen.rule {
            let rule = parse_rule(rule, listen.strategy.filters.len());
            let rule =
                rule.map_err(|error| WorkflowError::new(ErrorKind::Configuration, error.to_string()))?;
            let synthesizer = Synthesizer::new(rule, self.environment.now_ms);
            self.instance.add_rule(id, synthesizer);
        }
        if let Some(listening) = self.listening(id) {
            listening.filters = filters;
        }
        if correlates {
            self.note(NoteKind::CorrelationStarted, id, node, &Data::Null);
        }
        self.listen_again(id)?;
        if consumes {
            self.begin_consuming(id)?;
        }
        Ok(())
    }

    /// Begins the time of a subscription, or ends it if it wants no message.
    fn begin_consuming(&mut self, id: FrameId) -> Result<(), WorkflowError> {
        let Some((frame, Listen { consume: Some(consume), .. })) = self.listen_of(id) else {
            return Ok(());
        };
        let duration = consume.duration.as_ref();
        let ms =
            duration.map(|duration| self.duration(duration, frame.parent, &frame.input)).transpose()?;
        let due_ms = ms.map(|ms| self.environment.now_ms.saturating_add(ms));
        if let Some(frame) = self.frame_mut(id) {
            frame.due_ms = due_ms;
        }
        self.check_end(id);
        self.go_on(id);
        Ok(())
    }

    /// The time of a subscription is over: it has the messages that it has got.
    pub(super) fn consumed(&mut self, id: FrameId) {
        if let Some(listening) = self.listening(id) {
            listening.ending = true;
        }
        self.go_on(id);
    }

    /// Notes the correlated values of a listen that has ended.
    fn note_correlation(&mut self, id: FrameId) {
        if !self.environment.observed {
            return;
        }
        let Some((frame, listen)) = self.listen_of(id) else { return };
        let State::Listen(listening) = &frame.state else { return };
        let mut keys: Fields = listening
            .correlation
            .iter()
            .map(|(name, value)| (Arc::from(name.as_str()), value.clone()))
            .collect();
        for (filter, resolved) in wanted(listen).zip(&listening.filters) {
            for (index, value) in &resolved.expect {
                if let Some(correlation) = filter.correlate.get(*index as usize) {
                    keys.insert(Arc::from(correlation.name.as_str()), value.clone());
                }
            }
        }
        if wanted(listen).any(|filter| !filter.correlate.is_empty()) {
            let node = frame.node;
            self.note(NoteKind::CorrelationCompleted, id, node, &Data::object_of(keys));
        }
    }

    /// Subscribes again.
    pub(super) fn listen_again(&mut self, id: FrameId) -> Result<(), WorkflowError> {
        let Some((frame, listen)) = self.listen_of(id) else { return Ok(()) };
        let State::Listen(listening) = &frame.state else { return Ok(()) };
        let active = |(filter, resolved): (&EventFilter, &Resolved)| ActiveFilter {
            attributes: resolved.attributes.clone(),
            patterns: filter.patterns.clone(),
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

    /// Processes an event that may match a filter. An event that nests too deep is ignored.
    pub(super) fn message(&mut self, id: FrameId, source: u32, event: Arc<Value>) {
        let Some(data) = event_taken_in(&event) else { return };
        match self.take(id, source, &event, &data) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.fail_listen(id, error),
        }
        let Some((_, listen)) = self.listen_of(id) else { return };
        let (filters, how) = (listen.strategy.filters.len(), listen.read);
        if source as usize >= filters {
            let needed = match &listen.strategy.until {
                Some(Until::Events(needed)) => needed.len(),
                _ => 0,
            };
            if let Some(listening) = self.listening(id) {
                let of_until =
                    listening.matched.iter().filter(|source| **source as usize >= filters).count();
                listening.ending = of_until >= needed;
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

    /// True if the listen accepts the event.
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
        let of_until = source as usize >= listen.strategy.filters.len();
        let all = match (of_until, &listen.strategy.until) {
            (true, until) => matches!(until, Some(Until::Events(_))),
            (false, _) => listen.strategy.mode == Mode::All && listen.rule.is_none(),
        };
        if listening.ending || (all && listening.matched.contains(&source)) {
            return Ok(false);
        }
        if !has_attributes(&resolved.attributes, json) || !has_patterns(&filter.patterns, json) {
            return Ok(false);
        }
        let scope = self.frame_scope(frame);
        let data = event.get("data").cloned().unwrap_or_default();
        let fits = match &filter.data {
            None => true,
            Some(DataTest::Contains(wanted)) => subset(wanted, json.get("data").unwrap_or(&Value::Null)),
            // A condition that fails on the data does not match.
            Some(DataTest::Condition(condition)) => scope.is_true(condition, &data).unwrap_or(false),
            Some(DataTest::Message(condition)) => {
                scope.is_true(condition, &kept(&read(json, Read::Message))).unwrap_or(false)
            }
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

    pub(super) fn fired(&mut self, id: FrameId, firings: Vec<Firing>) {
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

    /// Delivers an event or a firing that the listen has accepted.
    fn deliver(&mut self, id: FrameId, item: Data) {
        let Some((_, listen)) = self.listen_of(id) else { return };
        let foreach = listen.foreach.is_some();
        let all = listen.strategy.mode == Mode::All && listen.rule.is_none();
        let one = listen.strategy.until.is_none() && !all;
        let Some(listening) = self.listening(id) else { return };
        // The single event of this listen is already queued for `foreach` or being processed.
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

    /// Ends the listen if it is complete.
    fn check_end(&mut self, id: FrameId) {
        let Some((frame, listen)) = self.listen_of(id) else { return };
        let State::Listen(listening) = &frame.state else { return };
        let strategy = &listen.strategy;
        let ends = match (&strategy.until, strategy.mode) {
            _ if listen.consume.is_some() => match self.has_consumed(frame, listen, listening) {
                Ok(ends) => ends,
                Err(error) => return self.fail_listen(id, error),
            },
            (Some(Until::Condition(condition)), _) => {
                let scope = self.frame_scope(frame);
                match scope.is_true(condition, &listening.seen(listen.foreach.is_some())) {
                    Ok(ends) => ends,
                    Err(error) => return self.fail_listen(id, error),
                }
            }
            (Some(Until::Event(_) | Until::Events(_) | Until::Never), _) => false,
            (None, Mode::All) if listen.rule.is_none() => listening.collected() >= strategy.filters.len(),
            (None, _) => true,
        };
        if let Some(listening) = self.listening(id)
            && ends
        {
            // Drops the events that arrived after the last one.
            listening.queue.clear();
            listening.ending = true;
        }
    }

    /// True if a subscription has all messages that it wants.
    fn has_consumed(
        &self,
        frame: &Frame,
        listen: &Listen,
        listening: &Listening,
    ) -> Result<bool, WorkflowError> {
        let Some(Consume { amount, condition, until, .. }) = &listen.consume else { return Ok(false) };
        let (scope, messages) = (self.frame_scope(frame), listening.seen(listen.foreach.is_some()));
        let is = |expression: &Option<Expression>, default: bool| match expression {
            Some(expression) => scope.is_true(expression, &messages),
            None => Ok(default),
        };
        let is_enough = amount.is_some_and(|amount| listening.collected() as u64 >= amount);
        Ok(is_enough || is(until, false)? || !is(condition, true)?)
    }

    /// Begins `foreach` for the next event, or ends the listen.
    fn go_on(&mut self, id: FrameId) {
        let unix_ms = self.environment.unix_ms;
        let Some(listening) = self.listening(id) else { return };
        if listening.busy {
            return;
        }
        let Some(item) = listening.queue.pop_front() else {
            if listening.ending {
                let output = listening.list();
                self.note_correlation(id);
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

    /// The tasks of `foreach` have ended for an event.
    pub(super) fn event_done(&mut self, id: FrameId, index: u32, item: Data, output: Data) {
        match self.event_output(id, index, &item, output) {
            Ok(output) => {
                let is_seen = self.listen_of(id).is_some_and(|(_, listen)| listen.has_end_condition());
                let Some(listening) = self.listening(id) else { return };
                let (output_bytes, bytes) = (item_bytes(&output), item_bytes(&item));
                listening.events.push(output);
                listening.busy = false;
                match is_seen {
                    true => listening.worked_on.push(item),
                    false => self.instance.release(id, bytes),
                }
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
            scope.raw_input = Some(&frame.raw);
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
        self.push(Work::Fail { parent, slot, node, raw, error });
    }
}

/// All filters of a listen: its own filters, then those of `until`.
fn wanted(listen: &Listen) -> impl Iterator<Item = &EventFilter> {
    let until = match &listen.strategy.until {
        Some(Until::Event(filters) | Until::Events(filters)) => filters.as_slice(),
        _ => &[],
    };
    listen.strategy.filters.iter().chain(until)
}
