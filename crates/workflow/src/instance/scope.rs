//! What expressions see.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use super::{Environment, FrameId, Instance};
use crate::error::{ErrorKind, WorkflowError};
use crate::expression::{EvalError, Expression, Template, Variables};
use crate::program::{Node, Program};

/// Values nest at most so deep: what reads the journal takes 128 levels, and an instance has some around each value.
const MAX_DEPTH: u32 = 100;
/// What a listen makes of an event, and a rule of several, has some levels more.
const EVENT_DEPTH: u32 = MAX_DEPTH - 8;

/// The variables at one place of an instance.
pub(super) struct Scope<'a> {
    pub program: &'a Program,
    pub instance: &'a Instance,
    pub environment: &'a Environment<'a>,
    /// Where names are looked up that tasks around this one have given.
    pub frame: Option<FrameId>,
    pub node: Option<&'a Node>,
    pub started_unix_ms: u64,
    pub input: Option<&'a Value>,
    pub output: Option<&'a Value>,
    /// Names of this place alone.
    pub extra: &'a [(&'a str, &'a Value)],
}

impl Scope<'_> {
    pub fn template(&self, template: &Template, input: &Value) -> Result<Value, WorkflowError> {
        bounded(template.eval(input, self, self.environment.unix_ms).map_err(expression_error)?)
    }

    pub fn expression(&self, expression: &Expression, input: &Value) -> Result<Value, WorkflowError> {
        bounded(expression.eval(input, self, self.environment.unix_ms).map_err(expression_error)?)
    }

    pub fn is_true(&self, expression: &Expression, input: &Value) -> Result<bool, WorkflowError> {
        expression.is_true(input, self, self.environment.unix_ms).map_err(expression_error)
    }
}

impl Variables for Scope<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, Value>> {
        if let Some((_, value)) = self.extra.iter().find(|(extra, _)| *extra == name) {
            return Some(Cow::Borrowed(value));
        }
        match name {
            "context" => Some(Cow::Borrowed(&self.instance.context)),
            "input" => self.input.map(Cow::Borrowed),
            "output" => self.output.map(Cow::Borrowed),
            "secrets" => Some(Cow::Borrowed(self.environment.secrets)),
            "runtime" => Some(Cow::Borrowed(self.environment.runtime)),
            "workflow" => Some(Cow::Owned(self.workflow())),
            "task" => self.node.map(|node| Cow::Owned(self.task(node))),
            "authorization" => Some(Cow::Owned(Value::Null)),
            _ => self.named(name),
        }
    }
}

impl Scope<'_> {
    fn named(&self, name: &str) -> Option<Cow<'_, Value>> {
        let mut at = self.frame;
        while let Some(frame) = at.and_then(|id| self.instance.frames.get(&id)) {
            if let Some((_, value)) = frame.variables.iter().find(|(known, _)| **known == *name) {
                return Some(Cow::Borrowed(value));
            }
            at = frame.parent;
        }
        None
    }

    fn workflow(&self) -> Value {
        let Program { namespace, name, version, .. } = self.program;
        json!({
            "id": &*self.instance.id,
            "definition": {"document": {"namespace": namespace, "name": name, "version": version}},
            "input": &*self.instance.input,
            "startedAt": moment(self.instance.started_unix_ms),
        })
    }

    fn task(&self, node: &Node) -> Value {
        json!({
            "name": node.name,
            "reference": node.path,
            "input": self.input,
            "output": self.output,
            "startedAt": moment(self.started_unix_ms),
        })
    }
}

/// The value, or an error if it nests too deep to be kept.
pub(super) fn bounded(value: Value) -> Result<Value, WorkflowError> {
    match nests_within(&value, MAX_DEPTH) {
        true => Ok(value),
        false => Err(too_deep()),
    }
}

/// As [`bounded`], of what is not to be changed.
pub(super) fn check_depth(value: &Value) -> Result<(), WorkflowError> {
    if nests_within(value, MAX_DEPTH) { Ok(()) } else { Err(too_deep()) }
}

/// Whether an event can be kept.
pub(super) fn can_be_kept(event: &Value) -> bool {
    nests_within(event, EVENT_DEPTH)
}

fn too_deep() -> WorkflowError {
    WorkflowError::new(ErrorKind::Runtime, format!("a value nests more than {MAX_DEPTH} levels deep"))
}

fn nests_within(value: &Value, levels: u32) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| nests_within(item, levels - 1)),
        Value::Object(fields) => levels > 0 && fields.values().all(|field| nests_within(field, levels - 1)),
        _ => true,
    }
}

/// A time in RFC 3339.
pub(super) fn rfc3339(unix_ms: u64) -> String {
    let time =
        i64::try_from(unix_ms).ok().and_then(DateTime::<Utc>::from_timestamp_millis).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn moment(unix_ms: u64) -> Value {
    json!({"iso8601": rfc3339(unix_ms), "epoch": {"seconds": unix_ms / 1000, "milliseconds": unix_ms}})
}

pub(super) fn expression_error(error: EvalError) -> WorkflowError {
    WorkflowError::new(ErrorKind::Expression, error.to_string())
}
