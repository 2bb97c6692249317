//! Compiles tasks.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::compile::{Compiler, Named};
use super::unreachable::unreachable;
use super::{
    Backoff, Block, Case, DataFlow, DurationSpec, Flow, For, Fork, Kind, Node, NodeId, Retry, Try,
};
use crate::document::{Key, Located};
use crate::expression::{LINEAR_BYTES, Template};

/// Maximum number of tasks of a definition.
const MAX_TASKS: usize = 10_000;
/// The size of data, in bytes, that is validated against a schema within about a millisecond.
const SCHEMA_BYTES: u64 = 16 << 10;
/// Maximum nesting depth of tasks.
const MAX_DEPTH: usize = 32;
/// Maximum number of parallel iterations of a loop.
const MAX_PARALLEL: u64 = 10_000;

/// Keys that are valid in every task.
const COMMON: [&str; 7] = ["if", "input", "output", "export", "timeout", "then", "metadata"];
/// The keys that select the kind of a task, each with its additional keys.
const KINDS: [(&str, &[&str]); 12] = [
    ("call", &["with"]),
    ("do", &[]),
    ("emit", &[]),
    ("for", &["while", "do"]),
    ("fork", &[]),
    ("listen", &["foreach"]),
    ("raise", &[]),
    ("run", &[]),
    ("set", &[]),
    ("switch", &[]),
    ("try", &["catch"]),
    ("wait", &[]),
];

impl Compiler {
    /// Compiles a list of tasks. `None` if the list or one of its tasks is invalid.
    pub fn block(&mut self, value: &Located, path: &str, depth: usize) -> Option<Block> {
        let Some(items) = value.items() else {
            let help = "a list of tasks, each with its name: - greet: {call: hello}";
            let message = format!("tasks are a list, not {}", value.kind());
            self.reader.problems.add_with_help(value.place, message, help);
            return None;
        };
        if items.is_empty() {
            self.reader.problems.add(value.place, "there are no tasks in the list");
            return None;
        }
        let named: Vec<Option<(&Key, &Located)>> = items.iter().map(|item| self.named(item)).collect();
        let names: Vec<&str> =
            named.iter().map(|named| named.map_or("", |(key, _)| key.text.as_str())).collect();
        self.check_names(&named);
        let mut tasks = Vec::new();
        let mut whole = true;
        for (index, named) in named.iter().enumerate() {
            let Some((key, task)) = named else {
                whole = false;
                continue;
            };
            let path = format!("{path}/{index}/{}", escape(&key.text));
            match self.task(key, task, &path, &names, depth) {
                Some(id) => tasks.push(id),
                None => whole = false,
            }
        }
        if !whole {
            return None;
        }
        for position in unreachable(&self.nodes, &tasks) {
            if let Some(Some((key, _))) = named.get(position) {
                let help = "remove it, or lead to it by `then`";
                let message = format!("nothing leads to task `{}`", key.text);
                self.reader.problems.add_with_help(key.place, message, help);
            }
        }
        Some(Block { tasks })
    }

    /// Reports duplicate names.
    fn check_names(&mut self, named: &[Option<(&Key, &Located)>]) {
        let mut names = BTreeSet::new();
        for (key, _) in named.iter().flatten() {
            if !names.insert(&key.text) {
                self.reader
                    .problems
                    .add(key.place, format!("there is a task `{}` in this list already", key.text));
            }
        }
    }

    fn named<'a>(&mut self, item: &'a Located) -> Option<(&'a Key, &'a Located)> {
        match item.entries() {
            [(key, task)] => Some((key, task)),
            _ => {
                let help = "write `- name: {…}`, with what belongs to the task below its name";
                self.reader.problems.add_with_help(item.place, "a task is one name and what it does", help);
                None
            }
        }
    }

    pub(super) fn task(
        &mut self,
        key: &Key,
        task: &Located,
        path: &str,
        siblings: &[&str],
        depth: usize,
    ) -> Option<NodeId> {
        if depth > MAX_DEPTH {
            self.reader.problems.add(key.place, format!("tasks are nested more than {MAX_DEPTH} deep"));
            return None;
        }
        let task = self.reader.object(task, &format!("task `{}`", key.text))?;
        let of_kind: Vec<_> = KINDS
            .iter()
            .filter(|(kind, _)| task.get(kind).is_some() && (*kind != "do" || task.get("for").is_none()))
            .collect();
        let (kind, more) = match of_kind.as_slice() {
            [(kind, more)] => (*kind, *more),
            [] => {
                let known: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
                let near =
                    task.entries().iter().find_map(|(key, _)| super::reader::near(&key.text, &known));
                let help = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("a task has one of {}", known.join(", ")),
                };
                let message = format!("task `{}` does nothing that is known", key.text);
                self.reader.problems.add_with_help(key.place, message, help);
                return None;
            }
            several => {
                let names: Vec<&str> = several.iter().map(|(kind, _)| *kind).collect();
                let message = format!("task `{}` is {} at once", key.text, names.join(" and "));
                self.reader.problems.add_with_help(key.place, message, "make a task of each");
                return None;
            }
        };
        let known: Vec<&str> = std::iter::once(kind).chain(COMMON).chain(more.iter().copied()).collect();
        self.reader.check_keys(task, &format!("`{kind}`"), &known);
        // `quick_bytes` and `secrets` cover the expressions of this task only. Each inner task restores them when it ends.
        let around = std::mem::replace(&mut self.reader.quick_bytes, LINEAR_BYTES);
        let secrets_around = std::mem::take(&mut self.reader.secrets);
        let condition = task.get("if").map(|value| self.reader.expression(value, "`if`"));
        let data = self.data(task);
        let timeout = task.get("timeout").and_then(|timeout| self.timeout(timeout));
        let then = task.get("then").map_or(Some(Flow::Continue), |then| self.flow(then, siblings));
        if self.nodes.len() >= MAX_TASKS {
            self.reader.problems.add(key.place, format!("there are more than {MAX_TASKS} tasks"));
            return None;
        }
        // The id of a task is smaller than those of its inner tasks.
        let id = self.nodes.len() as NodeId;
        self.nodes.push(Node {
            name: key.text.clone(),
            path: path.to_owned(),
            kind: Kind::Switch(Vec::new()),
            condition: None,
            data,
            timeout,
            then: then.unwrap_or(Flow::Continue),
            quick_bytes: 0,
            secrets: Vec::new(),
        });
        let kind = self.kind(kind, task, path, siblings, depth);
        let mut quick_bytes = std::mem::replace(&mut self.reader.quick_bytes, around);
        let secrets = std::mem::replace(&mut self.reader.secrets, secrets_around);
        let condition = match condition {
            Some(condition) => Some(condition?),
            None => None,
        };
        let node = self.nodes.get_mut(id as usize)?;
        node.kind = kind?;
        node.condition = condition;
        let data = &node.data;
        if [&data.input_schema, &data.output_schema, &data.export_schema]
            .iter()
            .any(|schema| schema.is_some())
        {
            quick_bytes = quick_bytes.min(SCHEMA_BYTES);
        }
        node.quick_bytes = quick_bytes;
        node.secrets = secrets.into_iter().collect();
        Some(id)
    }

    fn data(&mut self, task: &Located) -> DataFlow {
        let mut data = DataFlow::default();
        if let Some(input) = task.get("input") {
            self.reader.check_keys(input, "`input`", &["schema", "from"]);
            data.input_schema = input.get("schema").and_then(|schema| self.reader.schema(schema));
            data.from =
                input.get("from").and_then(|from| self.reader.expression_or_template(from, "`input.from`"));
        }
        let in_listen = || task.get("listen").and_then(|listen| listen.get("output"));
        if let Some(output) = task.get("output").or_else(in_listen) {
            self.reader.check_keys(output, "`output`", &["schema", "as"]);
            data.output_schema = output.get("schema").and_then(|schema| self.reader.schema(schema));
            data.output =
                output.get("as").and_then(|of| self.reader.expression_or_template(of, "`output.as`"));
        }
        if let Some(export) = task.get("export") {
            self.reader.check_keys(export, "`export`", &["schema", "as"]);
            data.export_schema = export.get("schema").and_then(|schema| self.reader.schema(schema));
            data.export =
                export.get("as").and_then(|of| self.reader.expression_or_template(of, "`export.as`"));
        }
        data
    }

    fn flow(&mut self, value: &Located, siblings: &[&str]) -> Option<Flow> {
        let target = self.reader.text(value, "`then`")?;
        match (target.as_str(), siblings.iter().position(|name| *name == target)) {
            (_, Some(position)) => Some(Flow::Goto(position as u32)),
            ("continue", None) => Some(Flow::Continue),
            ("exit", None) => Some(Flow::Exit),
            ("end", None) => Some(Flow::End),
            (_, None) => {
                let help = match super::reader::near(&target, siblings) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "`then` names a task of the same list, or is continue, exit or end".to_owned(),
                };
                let message = format!("there is no task `{target}` in this list");
                self.reader.problems.add_with_help(value.place, message, help);
                None
            }
        }
    }

    fn kind(
        &mut self,
        kind: &str,
        task: &Located,
        path: &str,
        siblings: &[&str],
        depth: usize,
    ) -> Option<Kind> {
        let value = task.get(kind)?;
        let metadata = task.get("metadata");
        match kind {
            "do" => self.block(value, &format!("{path}/do"), depth + 1).map(Kind::Do),
            "fork" => self.fork(value, path, depth).map(Kind::Fork),
            "for" => self.for_loop(value, task, path, depth).map(Kind::For),
            "switch" => self.switch(value, siblings).map(Kind::Switch),
            "try" => self.try_catch(value, task, path, depth).map(Kind::Try),
            "wait" => self.reader.duration(value, "`wait`").map(Kind::Wait),
            "set" => self.set(value).map(Kind::Set),
            "raise" => self.raise(value).map(Kind::Raise),
            "emit" => self.emit(value, metadata).map(Kind::Emit),
            "listen" => self.listen(value, task, path, depth).map(Kind::Listen),
            "call" => self.call(value, task, path, depth),
            "run" => self.run(value),
            _ => None,
        }
    }

    fn set(&mut self, value: &Located) -> Option<Template> {
        match value.is_object() || value.text().is_some() {
            true => self.reader.template(value, "`set`"),
            false => {
                let message = format!("`set` is an object or an expression, not {}", value.kind());
                self.reader.problems.add(value.place, message);
                None
            }
        }
    }

    fn fork(&mut self, value: &Located, path: &str, depth: usize) -> Option<Fork> {
        let value = self.reader.object(value, "`fork`")?;
        self.reader.check_keys(value, "`fork`", &["branches", "compete"]);
        let compete = self.reader.boolean(value.get("compete"), "`compete`", false);
        let branches = self.reader.required(value, "branches", "`fork`")?;
        let Some(items) = branches.items().filter(|items| !items.is_empty()) else {
            self.reader.problems.add(branches.place, "`branches` is a list of tasks");
            return None;
        };
        let named: Vec<Option<(&Key, &Located)>> = items.iter().map(|item| self.named(item)).collect();
        self.check_names(&named);
        let mut ids = Vec::new();
        for (index, named) in named.iter().enumerate() {
            let Some((key, task)) = named else { continue };
            let path = format!("{path}/fork/branches/{index}/{}", escape(&key.text));
            // A branch has no sibling tasks that its `then` could name.
            ids.extend(self.task(key, task, &path, &[], depth + 1));
        }
        (ids.len() == items.len()).then_some(Fork { branches: ids, compete })
    }

    fn for_loop(&mut self, value: &Located, task: &Located, path: &str, depth: usize) -> Option<For> {
        let value = self.reader.object(value, "`for`")?;
        self.reader.check_keys(value, "`for`", &["each", "in", "at"]);
        let each = self.reader.variable(value.get("each"), "`each`", "item");
        let at = self.reader.variable(value.get("at"), "`at`", "index");
        let items = self.reader.required(value, "in", "`for`");
        let items = items.and_then(|items| self.reader.expression(items, "`in`"));
        let before = self.reader.scope.len();
        self.reader.scope.extend([each.clone(), at.clone()]);
        let condition = match task.get("while") {
            Some(value) => Some(self.reader.expression(value, "`while`")),
            None => None,
        };
        let block = self.reader.required(task, "do", "`for`");
        let block = block.and_then(|block| self.block(block, &format!("{path}/do"), depth + 1));
        self.reader.scope.truncate(before);
        let parallel = task.get("metadata").and_then(|metadata| metadata.get("parallel"));
        let parallel = match parallel {
            Some(value) => Some(self.reader.number(value, "`metadata.parallel`", 1, MAX_PARALLEL)? as u32),
            None => None,
        };
        if let (Some(_), Some(Some(_))) = (parallel, &condition) {
            let help = "a loop with a condition goes through its items one after another";
            let place = task.get("while").map_or(task.place, |value| value.place);
            self.reader.problems.add_with_help(
                place,
                "`while` and `metadata.parallel` exclude each other",
                help,
            );
        }
        Some(For {
            each,
            at,
            items: items?,
            condition: condition.map_or(Some(None), |c| c.map(Some))?,
            block: block?,
            parallel,
        })
    }

    fn switch(&mut self, value: &Located, siblings: &[&str]) -> Option<Vec<Case>> {
        let Some(items) = value.items().filter(|items| !items.is_empty()) else {
            let help = "switch: [ - large: {when: .x > 5, then: big}, - other: {then: small} ]";
            self.reader.problems.add_with_help(value.place, "`switch` is a list of cases", help);
            return None;
        };
        let mut cases: Vec<Case> = Vec::new();
        let mut whole = true;
        for item in items {
            let (key, case) = self.named(item)?;
            if cases.last().is_some_and(|case| case.when.is_none()) {
                self.reader
                    .problems
                    .add(key.place, "this case comes after one without a condition, and is never taken");
            }
            self.reader.check_keys(case, "a case", &["when", "then"]);
            let when = case.get("when").map(|when| self.reader.expression(when, "`when`"));
            let then =
                self.reader.required(case, "then", "a case").and_then(|then| self.flow(then, siblings));
            match (when, then) {
                (None, Some(then)) => cases.push(Case { name: key.text.clone(), when: None, then }),
                (Some(Some(when)), Some(then)) => {
                    cases.push(Case { name: key.text.clone(), when: Some(when), then });
                }
                _ => whole = false,
            }
        }
        whole.then_some(cases)
    }

    fn try_catch(&mut self, value: &Located, task: &Located, path: &str, depth: usize) -> Option<Try> {
        let block = self.block(value, &format!("{path}/try"), depth + 1);
        let catch = self.reader.required(task, "catch", "`try`")?;
        let catch = self.reader.object(catch, "`catch`")?;
        let known = ["errors", "as", "when", "exceptWhen", "retry", "do"];
        self.reader.check_keys(catch, "`catch`", &known);
        let mut with = Vec::new();
        if let Some(errors) = catch.get("errors") {
            self.reader.check_keys(errors, "`errors`", &["with"]);
            let filter = errors.get("with");
            if let Some(filter) = filter {
                let fields = ["type", "status", "instance", "title", "detail"];
                self.reader.check_keys(filter, "an error", &fields);
                for (key, value) in filter.entries() {
                    self.error_field(key, value);
                }
                with = filter
                    .entries()
                    .iter()
                    .map(|(key, value)| (key.text.clone(), Self::plain(value)))
                    .collect();
            }
        }
        let variable = self.reader.variable(catch.get("as"), "`as`", "error");
        let before = self.reader.scope.len();
        self.reader.scope.push(variable.clone());
        let when = catch.get("when").map(|when| self.reader.expression(when, "`when`"));
        let except_when = catch.get("exceptWhen").map(|when| self.reader.expression(when, "`exceptWhen`"));
        let retry = catch.get("retry").map(|retry| self.retry(retry));
        let handler =
            catch.get("do").map(|tasks| self.block(tasks, &format!("{path}/catch/do"), depth + 1));
        self.reader.scope.truncate(before);
        Some(Try {
            block: block?,
            with,
            variable,
            when: settled(when)?,
            except_when: settled(except_when)?,
            retry: settled(retry)?,
            handler: settled(handler)?,
        })
    }

    /// Checks a field of `catch.errors.with`: `status` is a number from 100 to 599, any other field is a text.
    fn error_field(&mut self, key: &Key, value: &Located) {
        let plain = value.to_json();
        if key.text == "status" {
            if !plain.as_u64().is_some_and(|status| (100..=599).contains(&status)) {
                self.reader.problems.add(value.place, "`status` is a number from 100 to 599");
            }
        } else {
            self.reader.text(value, &format!("`{}`", key.text));
        }
    }

    fn retry(&mut self, value: &Located) -> Option<Arc<Retry>> {
        let Some(name) = value.text() else { return self.retry_policy(value).map(Arc::new) };
        match self.uses.retries.get(name) {
            Some(Named { policy, secrets }) => {
                self.reader.secrets.extend(secrets.iter().cloned());
                policy.clone()
            }
            None => {
                self.reader
                    .problems
                    .add(value.place, format!("there is no retry policy `{name}` in `use.retries`"));
                None
            }
        }
    }

    /// Compiles a retry policy. Reports a policy that never retries, or that retries without a limit and without a delay.
    pub fn retry_policy(&mut self, value: &Located) -> Option<Retry> {
        let value = self.reader.object(value, "`retry`")?;
        self.reader.check_keys(
            value,
            "`retry`",
            &["when", "exceptWhen", "limit", "backoff", "jitter", "delay"],
        );
        // Policies of `use.retries` are compiled outside of a task, so that no `catch` has declared the error's variable.
        let before = self.reader.scope.len();
        if !self.reader.scope.iter().any(|name| name == "error") {
            self.reader.scope.push("error".to_owned());
        }
        let when = value.get("when").map(|when| self.reader.expression(when, "`when`"));
        let except_when = value.get("exceptWhen").map(|when| self.reader.expression(when, "`exceptWhen`"));
        self.reader.scope.truncate(before);
        let delay = value.get("delay").map(|delay| self.reader.duration(delay, "`delay`"));
        let backoff = value.get("backoff").map_or(Some(Backoff::Constant), |backoff| self.backoff(backoff));
        let mut retry = Retry {
            when: settled(when)?,
            except_when: settled(except_when)?,
            max_attempts: None,
            attempt_duration: None,
            max_duration: None,
            delay: settled(delay)?.unwrap_or(DurationSpec::Fixed(0)),
            backoff: backoff?,
            jitter: None,
        };
        if let Some(limit) = value.get("limit") {
            self.reader.check_keys(limit, "`limit`", &["attempt", "duration"]);
            if let Some(attempt) = limit.get("attempt") {
                self.reader.check_keys(attempt, "`attempt`", &["count", "duration"]);
                if let Some(count) = attempt.get("count") {
                    retry.max_attempts = Some(self.reader.number(count, "`count`", 1, 1_000_000)? as u32);
                }
                if let Some(duration) = attempt.get("duration") {
                    retry.attempt_duration = Some(self.reader.duration(duration, "`duration`")?);
                }
            }
            if let Some(duration) = limit.get("duration") {
                retry.max_duration = Some(self.reader.duration(duration, "`duration`")?);
            }
        }
        if let Some(jitter) = value.get("jitter") {
            self.reader.check_keys(jitter, "`jitter`", &["from", "to"]);
            let from = jitter.get("from").map(|from| self.reader.duration(from, "`from`"));
            let from = settled(from)?.unwrap_or(DurationSpec::Fixed(0));
            let to = self.reader.required(jitter, "to", "`jitter`")?;
            let to = self.reader.duration(to, "`to`")?;
            if let (DurationSpec::Fixed(from), DurationSpec::Fixed(to)) = (&from, &to)
                && from > to
            {
                self.reader.problems.add(jitter.place, "`jitter` ends before it starts");
            }
            retry.jitter = Some((from, to));
        }
        if let (Some(DurationSpec::Fixed(limit_ms)), DurationSpec::Fixed(delay)) =
            (&retry.max_duration, &retry.delay)
            && delay > limit_ms
        {
            let message = format!(
                "the first retry would come after {delay} ms, and `limit.duration` is {limit_ms} ms"
            );
            self.reader.problems.add_with_help(
                value.place,
                message,
                "it never tries again; shorten `delay`",
            );
        }
        let endless = retry.max_attempts.is_none() && retry.max_duration.is_none();
        if endless && matches!(retry.delay, DurationSpec::Fixed(0)) {
            let message = "this would try again without end and without a wait";
            self.reader.problems.add_with_help(
                value.place,
                message,
                "give `limit.attempt.count` or `delay`",
            );
        }
        Some(retry)
    }

    fn backoff(&mut self, value: &Located) -> Option<Backoff> {
        self.reader.check_keys(value, "`backoff`", &["constant", "linear", "exponential"]);
        let [(key, shape)] = value.entries() else {
            self.reader.problems.add(value.place, "`backoff` is one of constant, linear, exponential");
            return None;
        };
        match key.text.as_str() {
            "constant" => Some(Backoff::Constant),
            "linear" => {
                let increment = shape.get("increment");
                let increment = increment.map(|value| self.reader.fixed_duration(value, "`increment`"));
                Some(Backoff::Linear(settled(increment)?))
            }
            "exponential" => {
                let Some(factor) = shape.get("multiplier").or(shape.get("factor")) else {
                    return Some(Backoff::Exponential(2.0));
                };
                let number = factor.to_json().as_f64().filter(|number| (1.0..=1000.0).contains(number));
                if number.is_none() {
                    self.reader.problems.add(factor.place, "the multiplier is a number from 1 to 1000");
                }
                number.map(Backoff::Exponential)
            }
            _ => None,
        }
    }

    fn raise(&mut self, value: &Located) -> Option<Template> {
        let value = self.reader.object(value, "`raise`")?;
        self.reader.check_keys(value, "`raise`", &["error"]);
        let error = self.reader.required(value, "error", "`raise`")?;
        let error = match error.text() {
            None => error.clone(),
            Some(name) => match self.uses.errors.get(name) {
                Some(error) => error.clone(),
                None => {
                    self.reader
                        .problems
                        .add(error.place, format!("there is no error `{name}` in `use.errors`"));
                    return None;
                }
            },
        };
        self.reader.check_keys(&error, "an error", &["type", "status", "title", "detail", "instance"]);
        self.reader.required(&error, "type", "an error")?;
        let status = self.reader.required(&error, "status", "an error")?;
        let plain = status.to_json();
        let computed =
            plain.as_str().is_some_and(|text| crate::expression::expression_text(text).is_some());
        if !computed && !plain.as_u64().is_some_and(|status| (100..=599).contains(&status)) {
            self.reader.problems.add(status.place, "`status` is a number from 100 to 599");
        }
        self.reader.template(&error, "`error`")
    }

    /// Checks a rule over several events (`metadata.events`) and returns it for the synthesizer. `None` if it is invalid.
    pub fn rule(&mut self, value: &Located, strategy: &super::Strategy) -> Option<Value> {
        let rule = value.to_json();
        let compile = |text: &str| {
            crate::expression::Expression::parse(text, &[])
                .map(|_| Arc::new(|_: &Value| Ok(json!(null))) as crate::synthesizer::Predicate)
        };
        match crate::synthesizer::Rule::parse(&rule, strategy.filters.len().max(1), &compile) {
            Ok(_) => Some(rule),
            Err(error) => {
                let place = value.place_of(error.pointer());
                self.reader.problems.add(place, format!("`metadata.events`: {error}"));
                None
            }
        }
    }
}

/// Converts an optional value: `Some(None)` if the value is missing, `None` if it is invalid.
pub(super) fn settled<T>(value: Option<Option<T>>) -> Option<Option<T>> {
    match value {
        None => Some(None),
        Some(None) => None,
        Some(value) => Some(value),
    }
}

/// Escapes a name for use as a part of a JSON pointer (RFC 6901, section 3).
pub(super) fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
