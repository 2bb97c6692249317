//! The variables that expressions of an instance see.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::Value;

use super::depth::bounded;
use super::event::{Environment, FrameId};
use super::state::Instance;
use crate::data::{Data, Num};
use crate::error::{ErrorKind, WorkflowError};
use crate::expression::{Bounds, EvalError, Expression, Template, Variables};
use crate::program::{Node, Program};

/// The variables of expressions in one frame or task.
pub(super) struct Scope<'a> {
    pub program: &'a Program,
    pub instance: &'a Instance,
    pub environment: &'a Environment<'a>,
    /// The frame from which variables of the surrounding tasks are looked up.
    pub frame: Option<FrameId>,
    pub node: Option<&'a Node>,
    pub started_unix_ms: u64,
    pub input: Option<&'a Data>,
    pub output: Option<&'a Data>,
    /// The input before `input.from`; `None` if it is the same as `input`.
    pub raw_input: Option<&'a Data>,
    /// The output before `output.as`; `None` if it is the same as `output`.
    pub raw_output: Option<&'a Data>,
    /// `$authorization`
    pub authorization: Option<&'a Data>,
    /// Additional variables.
    pub extra: &'a [(&'a str, &'a Data)],
}

impl Scope<'_> {
    /// Like [`template`](Self::template), for values that leave the instance.
    pub fn json(&self, template: &Template, input: &Data) -> Result<Value, WorkflowError> {
        self.template(template, input).map(|value| value.to_json())
    }

    fn bounds(&self) -> Bounds {
        let Environment { unix_ms, memory_bytes, .. } = *self.environment;
        Bounds { now_unix_ms: unix_ms, memory_bytes }
    }

    pub fn template(&self, template: &Template, input: &Data) -> Result<Data, WorkflowError> {
        bounded(template.eval(input, self, self.bounds()).map_err(expression_error)?)
    }

    pub fn expression(&self, expression: &Expression, input: &Data) -> Result<Data, WorkflowError> {
        bounded(expression.eval_within(input, self, self.bounds()).map_err(expression_error)?)
    }

    pub fn is_true(&self, expression: &Expression, input: &Data) -> Result<bool, WorkflowError> {
        let value = expression.eval_within(input, self, self.bounds()).map_err(expression_error)?;
        Ok(value.is_true())
    }
}

impl Variables for Scope<'_> {
    fn value(&self, name: &str) -> Option<Data> {
        if let Some((_, value)) = self.extra.iter().find(|(extra, _)| *extra == name) {
            return Some((*value).clone());
        }
        match name {
            "context" => Some(self.instance.context.clone()),
            "input" => self.input.cloned(),
            "output" => self.output.cloned(),
            "secrets" => Data::from_json(self.environment.secrets).ok(),
            "runtime" => Data::from_json(self.environment.runtime).ok(),
            "workflow" => Some(self.workflow()),
            "task" => self.node.map(|node| self.task(node)),
            "authorization" => self.authorization.cloned(),
            _ => self.named(name),
        }
    }
}

impl Scope<'_> {
    fn named(&self, name: &str) -> Option<Data> {
        let mut at = self.frame;
        while let Some(frame) = at.and_then(|id| self.instance.frames.get(&id)) {
            if let Some((_, value)) = frame.variables.iter().find(|(known, _)| **known == *name) {
                return Some(value.clone());
            }
            at = frame.parent;
        }
        None
    }

    fn workflow(&self) -> Data {
        Data::of([
            ("id", Data::Str(self.instance.id.clone())),
            ("definition", self.program.definition.clone()),
            ("input", self.instance.input.clone()),
            ("startedAt", moment(self.instance.started_unix_ms)),
        ])
    }

    fn task(&self, node: &Node) -> Data {
        let or = |raw: Option<&Data>, other: Option<&Data>| raw.or(other).cloned().unwrap_or_default();
        Data::of([
            ("name", node.name.as_str().into()),
            ("reference", node.path.as_str().into()),
            ("definition", self.program.definition_at(&node.path)),
            ("input", or(self.raw_input, self.input)),
            ("output", or(self.raw_output, self.output)),
            ("startedAt", moment(self.started_unix_ms)),
        ])
    }
}

/// A time in RFC 3339.
pub(super) fn rfc3339(unix_ms: u64) -> String {
    let time =
        i64::try_from(unix_ms).ok().and_then(DateTime::<Utc>::from_timestamp_millis).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn moment(unix_ms: u64) -> Data {
    let number = |number: u64| Data::Num(Num::Int(number.into()));
    let epoch = Data::of([("seconds", number(unix_ms / 1000)), ("milliseconds", number(unix_ms))]);
    Data::of([("iso8601", rfc3339(unix_ms).as_str().into()), ("epoch", epoch)])
}

pub(super) fn expression_error(error: EvalError) -> WorkflowError {
    WorkflowError::new(ErrorKind::Expression, error.to_string())
}

/// A string without quotes, any other value as JSON.
pub(super) fn text(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
