//! Compiles `emit` and `listen` tasks, and the events of a schedule.

use super::compile::Compiler;
use super::tasks::settled;
use super::{
    Correlation, DataTest, Emit, EventFilter, Foreach, Listen, Mode, Pattern, Read, Strategy, Until,
};
use crate::document::Located;
use crate::event::{TEXTS, check_attribute};
use crate::expression::{Template, expression_text};

/// Maximum number of filters of one strategy.
const MAX_FILTERS: usize = 64;

impl Compiler {
    pub(super) fn emit(&mut self, value: &Located, metadata: Option<&Located>) -> Option<Emit> {
        let value = self.reader.object(value, "`emit`")?;
        if let Some(metadata) = value.get("metadata") {
            let help =
                "write it beside `emit`, with the same indentation: metadata: {topic: alarms/kitchen}";
            let message = "`emit` has no key `metadata`: it is a key of the task";
            self.reader.problems.add_with_help(metadata.place, message, help);
        } else {
            self.reader.check_keys(value, "`emit`", &["event"]);
        }
        let event = self.reader.required(value, "event", "`emit`")?;
        self.reader.check_keys(event, "`event`", &["with"]);
        let with = self.reader.required(event, "with", "`event`")?;
        let with = self.reader.object(with, "`with`")?;
        let kind = self.reader.required(with, "type", "an event");
        // Its problems are those of `with`.
        let kind = kind.and_then(|kind| {
            let kind = Template::parse(&kind.to_json(), &self.reader.variables(), self.reader.mode).ok()?;
            Some(kind.literal()?.as_str()?.to_owned())
        });
        let event = self.reader.template(with, "`with`");
        for name in TEXTS {
            let Some(value) = with.get(name) else { continue };
            let parsed = Template::parse(&value.to_json(), &self.reader.variables(), self.reader.mode);
            if let Ok(template) = parsed
                && let Some(Err(error)) = template.literal().map(|literal| check_attribute(name, literal))
            {
                self.reader.deploy_problems.add(value.place, error.to_string());
            }
        }
        let topic = metadata.and_then(|metadata| metadata.get("topic"));
        let topic = topic.map(|topic| self.reader.text_template(topic, "`metadata.topic`"));
        let qos = metadata.and_then(|metadata| metadata.get("qos"));
        let qos = qos.map(|qos| self.reader.number(qos, "`metadata.qos`", 0, 2));
        Some(Emit { event: event?, kind, topic: settled(topic)?, qos: settled(qos)?.unwrap_or(1) as u8 })
    }

    pub(super) fn listen(
        &mut self,
        value: &Located,
        task: &Located,
        path: &str,
        depth: usize,
    ) -> Option<Listen> {
        let value = self.reader.object(value, "`listen`")?;
        // Some examples of the specification have `output` here: see `data`.
        self.reader.check_keys(value, "`listen`", &["to", "read", "output"]);
        let to = self.reader.required(value, "to", "`listen`")?;
        let strategy = self.strategy(to, false)?;
        let read = match value.get("read").map(|read| (read, read.text())) {
            None | Some((_, Some("data"))) => Read::Data,
            Some((_, Some("envelope"))) => Read::Envelope,
            Some((_, Some("raw"))) => Read::Raw,
            Some((read, _)) => {
                self.reader.problems.add(read.place, "`read` is data, envelope or raw");
                return None;
            }
        };
        let foreach = task.get("foreach").map(|foreach| self.foreach(foreach, path, depth));
        let rule = task.get("metadata").and_then(|metadata| metadata.get("events"));
        let rule = rule.map(|rule| self.rule(rule, &strategy));
        let (foreach, rule) = (settled(foreach)?, settled(rule)?);
        Some(Listen { strategy, read, foreach, rule, consume: None, operation: None })
    }

    pub(super) fn foreach(&mut self, value: &Located, path: &str, depth: usize) -> Option<Foreach> {
        let value = self.reader.object(value, "`foreach`")?;
        self.reader.check_keys(value, "`foreach`", &["item", "at", "do", "output", "export"]);
        let item = self.reader.variable(value.get("item"), "`item`", "item");
        let at = self.reader.variable(value.get("at"), "`at`", "index");
        let before = self.reader.scope.len();
        self.reader.scope.extend([item.clone(), at.clone()]);
        let tasks = self.reader.required(value, "do", "`foreach`");
        let block = tasks.and_then(|tasks| self.block(tasks, &format!("{path}/foreach/do"), depth + 1));
        let output = value.get("output").and_then(|output| output.get("as"));
        let output = output.map(|of| self.reader.expression_or_template(of, "`output.as`"));
        let export = value.get("export").and_then(|export| export.get("as"));
        let export = export.map(|of| self.reader.expression_or_template(of, "`export.as`"));
        self.reader.scope.truncate(before);
        Some(Foreach { item, at, block: block?, output: settled(output)?, export: settled(export)? })
    }

    /// Compiles a strategy: `one`, `any` or `all` of its filters. `starts` is true for the events of a schedule and of `until`,
    /// which must not have an `until` themselves.
    pub(super) fn strategy(&mut self, value: &Located, starts: bool) -> Option<Strategy> {
        let value = self.reader.object(value, "what is listened to")?;
        self.reader.check_keys(value, "what is listened to", &["one", "any", "all", "until"]);
        let found: Vec<_> = [("one", Mode::One), ("any", Mode::Any), ("all", Mode::All)]
            .into_iter()
            .filter_map(|(key, mode)| value.get(key).map(|filters| (mode, filters)))
            .collect();
        let [(mode, filters)] = found.as_slice() else {
            self.reader.problems.add(value.place, "what is listened to is one of one, any and all");
            return None;
        };
        let filters = match (mode, filters.items()) {
            (Mode::One, _) => vec![self.filter(filters)?],
            (_, Some(items)) if items.len() <= MAX_FILTERS => {
                let read: Vec<_> = items.iter().map(|item| self.filter(item)).collect();
                read.into_iter().collect::<Option<Vec<_>>>()?
            }
            (_, Some(_)) => {
                self.reader
                    .problems
                    .add(filters.place, format!("there are more than {MAX_FILTERS} filters"));
                return None;
            }
            (_, None) => {
                self.reader.problems.add(filters.place, "the filters are a list: - with: {type: …}");
                return None;
            }
        };
        let filters = match (filters.is_empty(), mode) {
            (true, Mode::All) => {
                self.reader.problems.add(value.place, "`all` of no filters");
                return None;
            }
            // An empty list of filters matches all events.
            (true, _) => vec![EventFilter {
                attributes: Vec::new(),
                patterns: Vec::new(),
                data: None,
                correlate: Vec::new(),
            }],
            (false, _) => filters,
        };
        let until = match value.get("until") {
            None => None,
            Some(until) if *mode != Mode::Any || starts => {
                self.reader.problems.add(until.place, "`until` belongs to `any` of a `listen` task");
                None
            }
            Some(until) => Some(self.until(until)?),
        };
        Some(Strategy { mode: *mode, filters, until })
    }

    fn until(&mut self, value: &Located) -> Option<Until> {
        if value.to_json() == serde_json::Value::Bool(false) {
            return Some(Until::Never);
        }
        if !value.is_object() {
            return self.reader.expression(value, "`until`").map(Until::Condition);
        }
        let strategy = self.strategy(value, true)?;
        Some(match strategy.mode {
            Mode::All => Until::Events(strategy.filters),
            Mode::One | Mode::Any => Until::Event(strategy.filters),
        })
    }

    fn filter(&mut self, value: &Located) -> Option<EventFilter> {
        let value = self.reader.object(value, "an event filter")?;
        self.reader.check_keys(value, "an event filter", &["with", "correlate"]);
        let with = self.reader.required(value, "with", "an event filter")?;
        let with = self.reader.object(with, "`with`")?;
        let (mut attributes, mut patterns) = (Vec::new(), Vec::new());
        let mut data = None;
        for (key, attribute) in with.entries() {
            if key.text == "data" {
                data = Some(match attribute.text().and_then(expression_text) {
                    Some(_) => DataTest::Condition(self.reader.expression(attribute, "`data`")?),
                    None => DataTest::Contains(attribute.to_json()),
                });
                continue;
            }
            if let Some(text) = attribute.text().filter(|text| is_pattern(&key.text, text)) {
                match Pattern::parse(text) {
                    Ok(pattern) => {
                        patterns.push((key.text.clone(), pattern));
                        continue;
                    }
                    // In a stored definition of an earlier version it is the value itself.
                    Err(error) => {
                        let message = format!("`{}`: {error}", key.text);
                        self.reader.deploy_problems.add(attribute.place, message);
                    }
                }
            }
            let template = self.reader.template(attribute, &format!("`{}`", key.text))?;
            if key.text == "subject"
                && let Some(filter) = template.literal().and_then(|literal| literal.as_str())
                && let Some(reason) = topic_filter_problem(filter)
            {
                self.reader
                    .problems
                    .add(attribute.place, format!("`{filter}` is not a topic filter: {reason}"));
            }
            attributes.push((key.text.clone(), template));
        }
        if with.entries().is_empty() {
            let help = "name an attribute of the event, such as its `type`, or a condition on its `data`";
            self.reader.problems.add_with_help(with.place, "an event filter needs a property", help);
        }
        let mut correlate = Vec::new();
        if let Some(keys) = value.get("correlate") {
            let keys = self.reader.object(keys, "`correlate`")?;
            for (key, correlation) in keys.entries() {
                self.reader.check_keys(correlation, "a correlation", &["from", "expect"]);
                let from = self.reader.required(correlation, "from", "a correlation")?;
                let from = self.reader.expression(from, "`from`")?;
                let expect = correlation.get("expect");
                let expect = expect.map(|expect| self.reader.expression_or_template(expect, "`expect`"));
                correlate.push(Correlation { name: key.text.clone(), from, expect: settled(expect)? });
            }
        }
        Some(EventFilter { attributes, patterns, data, correlate })
    }
}

/// True if the value of an attribute is a regular expression. `subject` is an MQTT topic filter unless it starts with `^`; other
/// values are regular expressions if they have a sign of them and are not wholly an expression in `${ }`.
fn is_pattern(attribute: &str, text: &str) -> bool {
    match attribute {
        "subject" => text.starts_with('^'),
        _ => expression_text(text).is_none() && Pattern::is_meant(text),
    }
}

/// The reason why an MQTT topic filter is invalid (MQTT 5, section 4.7.1).
fn topic_filter_problem(filter: &str) -> Option<&'static str> {
    let levels: Vec<&str> = filter.split('/').collect();
    let last = levels.len() - 1;
    let wrong = |(index, level): (usize, &&str)| match *level {
        "+" => None,
        "#" if index == last => None,
        level if level.contains('#') => Some("`#` stands alone, at the end"),
        level if level.contains('+') => Some("`+` stands alone between slashes"),
        _ => None,
    };
    match filter.is_empty() || filter.len() > 65_535 || filter.contains('\0') {
        true => Some("it is empty, too long or has a null character"),
        false => levels.iter().enumerate().find_map(wrong),
    }
}
