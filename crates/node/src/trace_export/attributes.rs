//! Attributes of spans and of the node, and what a span says about its end.

use edgefaas_functions::trace::conventions::Value;
use edgefaas_functions::trace::{Role, TraceSpan};

/// A value of an attribute.
#[derive(Clone, Copy)]
pub(super) enum Attribute<'a> {
    Text(&'a str),
    Number(u64),
}

/// The attributes of a span, by name.
pub(super) fn attributes(span: &TraceSpan) -> impl Iterator<Item = (&'static str, Attribute<'_>)> {
    let [queue, start, execution, state] = span.phases_us;
    let own = [
        ("edgefaas.kind", Attribute::Text(span.kind.word())),
        ("edgefaas.id", Attribute::Text(&span.id)),
        ("edgefaas.input", Attribute::Text(&span.input)),
        ("edgefaas.output", Attribute::Text(&span.output)),
        ("edgefaas.queue_us", Attribute::Number(queue)),
        ("edgefaas.start_us", Attribute::Number(start)),
        ("edgefaas.execution_us", Attribute::Number(execution)),
        ("edgefaas.state_us", Attribute::Number(state)),
    ];
    let node = span.node.as_deref().map(|node| ("edgefaas.node", Attribute::Text(node)));
    let conventional = span.attributes.iter().map(|(name, value)| (*name, value.into()));
    own.into_iter().chain(node).chain(conventional)
}

impl<'a> From<&'a Value> for Attribute<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Text(text) => Self::Text(text),
            Value::Word(word) => Self::Text(word),
            Value::Number(number) => Self::Number(*number),
        }
    }
}

/// The attributes of the node.
pub(super) const RESOURCE: [(&str, Attribute<'_>); 2] = [
    ("service.name", Attribute::Text("edgefaas")),
    ("service.version", Attribute::Text(env!("CARGO_PKG_VERSION"))),
];

/// The end of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End<'a> {
    Ok,
    Failed(&'a str),
}

impl<'a> End<'a> {
    /// The end of a span. A server has failed with a status of 500 or higher, a client also with one from 400.
    pub fn of(span: &'a TraceSpan) -> Self {
        let failed = |number: u64| match span.role {
            Role::Server => number >= 500,
            Role::Client => number >= 400,
            Role::Internal | Role::Producer | Role::Consumer => false,
        };
        let has_failed = span.attributes.iter().any(|(name, value)| {
            *name == "http.response.status_code"
                && matches!(value, Value::Number(number) if failed(*number))
        });
        match &span.error {
            Some(error) => Self::Failed(error),
            None if has_failed => Self::Failed(""),
            None => Self::Ok,
        }
    }

    /// `Status.StatusCode` in OTLP.
    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 1,
            Self::Failed(_) => 2,
        }
    }

    /// The error.
    pub fn message(self) -> &'a str {
        match self {
            Self::Ok => "",
            Self::Failed(message) => message,
        }
    }
}
