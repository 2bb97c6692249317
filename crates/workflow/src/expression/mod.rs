//! The DSL's runtime expressions: jq.
//!
//! Most are paths, comparisons and constructions with one output; those are evaluated here ([`native`]). All others run
//! with jaq ([`guarded`]). Every step is counted ([`meter`]), since jq text can loop without end and fill any memory.

mod guard;
mod guarded;
mod library;
mod lower;
mod meter;
mod native;
mod operators;
mod regex_cost;
mod source;
mod template;
mod tree;
mod value;
mod weight;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use jaq_core::compile::Undefined as Kind;
use jaq_core::load::parse::Term;
use serde_json::Value;

use self::guarded::{Guard, Undefined};
use self::native::{End, Node};
use self::source::Wrong;
pub use self::template::Template;
pub(crate) use self::weight::LINEAR_BYTES;
use crate::data::{Data, Limited};

/// What a message shows of an expression, in bytes.
const EXCERPT_BYTES: usize = 80;

/// What `$name` stands for.
pub trait Variables {
    /// The value of `name`, which is without `$`. None is null.
    fn value(&self, name: &str) -> Option<Data>;
}

/// No variables at all.
impl Variables for () {
    fn value(&self, _: &str) -> Option<Data> {
        None
    }
}

/// A compiled expression. A clone shares it.
#[derive(Clone, Debug)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    /// jq text, without `${ }`.
    source: String,
    variables: Vec<String>,
    quick_bytes: u64,
    native: Option<Node>,
    /// For jaq. With a native form: made when that one first needs it.
    guarded: OnceLock<Option<Guard>>,
}

/// Text that is no expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// What is wrong.
    pub message: String,
    /// Where, in bytes from the start of `text`.
    pub offset: usize,
    /// The text as it was given.
    pub text: String,
}

/// Why an expression has no value. Messages show at most 100 bytes of the data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// An error of jq's, or `error(…)`.
    #[error("`{expression}`: {message}")]
    Failed {
        /// The start of the expression.
        expression: String,
        /// What went wrong.
        message: String,
    },
    /// It has more than one output.
    #[error("`{expression}` has several values, and one is wanted; put `[` and `]` around it for an array")]
    Several {
        /// The start of the expression.
        expression: String,
    },
    /// It did not end within a limit.
    #[error("an expression may take {limit} and this one takes more")]
    Budget {
        /// The limit, with its unit.
        limit: &'static str,
    },
    /// A value became too large, or came too large.
    #[error("{what} has more than {limit}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit, with its unit.
        limit: &'static str,
    },
}

/// What one evaluation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// What jq's `now` gives, in milliseconds since the Unix epoch.
    pub now_unix_ms: u64,
    /// The largest value that it may make, in bytes; no more than the limits for all: 16 MiB for a string, 64 MiB for any other.
    pub memory_bytes: u64,
}

impl Bounds {
    /// With the limits for all.
    pub fn at(now_unix_ms: u64) -> Self {
        Self { now_unix_ms, memory_bytes: u64::MAX }
    }
}

impl Expression {
    /// Compiles jq text, with or without `${ }` around it: at most 64 KiB, and no deeper than 64 brackets.
    /// `variables`: names, without `$`, that may be used; any other is an error.
    pub fn parse(source: &str, variables: &[&str]) -> Result<Self, ExpressionError> {
        let inside = expression_text(source).unwrap_or(source);
        let start = source::offset_of(source, inside.as_ptr().addr()).unwrap_or_default();
        let (native, guarded, quick_bytes) = source::parse(inside, |term| compile(inside, term, variables))
            .map_err(|wrong| ExpressionError {
                message: wrong.message,
                offset: start + wrong.offset,
                text: source.to_owned(),
            })?;
        Ok(Self(Arc::new(Compiled {
            source: inside.to_owned(),
            variables: variables.iter().map(|name| (*name).to_owned()).collect(),
            quick_bytes,
            native,
            guarded,
        })))
    }

    /// The jq text, without `${ }`.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// True if it is evaluated without jaq.
    pub fn is_native(&self) -> bool {
        self.0.native.is_some()
    }

    /// Bytes of data with which it is evaluated within about a millisecond; 0 if that cannot be said.
    pub(crate) fn quick_bytes(&self) -> u64 {
        self.0.quick_bytes
    }

    /// The value for `input`; null if the expression has no output. `now_unix_ms` is what jq's `now` gives.
    pub fn eval(
        &self,
        input: &Data,
        variables: &dyn Variables,
        now_unix_ms: u64,
    ) -> Result<Data, EvalError> {
        self.eval_within(input, variables, Bounds::at(now_unix_ms))
    }

    /// As [`eval`](Self::eval), with other bounds.
    pub fn eval_within(
        &self,
        input: &Data,
        variables: &dyn Variables,
        bounds: Bounds,
    ) -> Result<Data, EvalError> {
        meter::start(bounds);
        let value = self.value(input, variables, bounds).map(Data::exact);
        meter::finish();
        value
    }

    /// jq's truth: everything but false and null.
    pub fn is_true(
        &self,
        input: &Data,
        variables: &dyn Variables,
        now_unix_ms: u64,
    ) -> Result<bool, EvalError> {
        Ok(self.eval(input, variables, now_unix_ms)?.is_true())
    }

    /// As [`eval`](Self::eval), without variables, for an input that is not kept.
    pub fn eval_json(&self, input: &Value, now_unix_ms: u64) -> Result<Value, EvalError> {
        // Nearly all are paths into an event, of which only the end is wanted.
        let mut at = Some(input);
        if let Some(keys) = self.0.native.as_ref().and_then(Node::keys) {
            for key in keys {
                at = match at {
                    Some(Value::Object(fields)) => Some(fields.get(key).unwrap_or(&Value::Null)),
                    Some(Value::Null) => at,
                    // An error, with a message.
                    _ => None,
                };
            }
            if let Some(value) = at {
                return Ok(value.clone());
            }
        }
        let input = Data::from_json(input).map_err(|_| guarded::of_stop(meter::Stop::Depth))?;
        self.eval(&input, &(), now_unix_ms).map(|value| value.to_json())
    }

    /// The one output, with the meter running.
    fn value(&self, input: &Data, variables: &dyn Variables, bounds: Bounds) -> Result<Data, EvalError> {
        if let Some(native) = &self.0.native {
            match native.eval(input, variables) {
                Ok(value) => return Ok(value),
                Err(End::Empty) => return Ok(Data::Null),
                Err(End::Elsewhere) => {
                    meter::finish();
                    meter::start(bounds);
                }
                Err(end) => return Err(self.ended(end)),
            }
        }
        let guarded = self.0.guarded.get_or_init(|| self.0.guard());
        let Some(guarded) = guarded else {
            return Err(self.ended(End::Error("it does not compile".into())));
        };
        Ok(guarded.eval(&self.0.source, input, variables)?.unwrap_or_default())
    }

    fn ended(&self, end: End) -> EvalError {
        match end {
            End::Stop(stop) => guarded::of_stop(stop),
            End::Error(message) => EvalError::Failed { expression: excerpt(&self.0.source), message },
            End::Empty | End::Elsewhere => {
                EvalError::Failed { expression: excerpt(&self.0.source), message: "it has no value".into() }
            }
        }
    }
}

impl Compiled {
    fn guard(&self) -> Option<Guard> {
        let variables: Vec<&str> = self.variables.iter().map(String::as_str).collect();
        let guard = |term: Term<&str>| {
            Guard::compile(term, &variables).map_err(|_| Wrong { message: String::new(), offset: 0 })
        };
        source::parse(&self.source, guard).ok()
    }
}

/// `${ … }` around the whole of `text`, apart from white space → what is inside, without white space around it.
pub fn expression_text(text: &str) -> Option<&str> {
    Some(text.trim().strip_prefix("${")?.strip_suffix('}')?.trim())
}

/// Steps of all evaluations on this thread so far; wraps around.
pub(crate) fn spent() -> u64 {
    meter::spent()
}

fn excerpt(source: &str) -> String {
    Limited::of(EXCERPT_BYTES, &source)
}

type Forms = (Option<Node>, OnceLock<Option<Guard>>, u64);

fn compile(text: &str, term: Term<&str>, variables: &[&str]) -> Result<Forms, Wrong> {
    refuse(text, &term)?;
    let quick_bytes = weight::quick_bytes(&term);
    if let Some(native) = lower::lower(&term, variables) {
        return Ok((Some(native), OnceLock::new(), quick_bytes));
    }
    match Guard::compile(term, variables) {
        Ok(guard) => Ok((None, OnceLock::from(Some(guard)), quick_bytes)),
        Err(undefined) => Err(match undefined.first() {
            Some(undefined) => Wrong {
                message: unknown(undefined, variables),
                offset: source::offset_of(text, undefined.address).unwrap_or_default(),
            },
            None => Wrong { message: "jaq cannot compile it".into(), offset: 0 },
        }),
    }
}

/// Err: it calls what is not there on purpose.
fn refuse(text: &str, term: &Term<&str>) -> Result<(), Wrong> {
    let mut refused = None;
    tree::visit(term, &mut |inner| {
        let name = match inner {
            Term::Call(name, _) => *name,
            Term::Var(name @ ("$ENV" | "$__loc__" | "$__prog_args")) => *name,
            _ => return,
        };
        let why = match name {
            "$ENV" => "an expression sees no environment",
            "$__loc__" | "$__prog_args" => "an expression is no file",
            _ => match library::REFUSED.iter().find(|(refused, _)| *refused == name) {
                Some((_, why)) => why,
                None => return,
            },
        };
        let offset = source::offset_of(text, name.as_ptr().addr()).unwrap_or_default();
        refused = Some(Wrong { message: format!("there is no `{name}`: {why}"), offset });
    });
    refused.map_or(Ok(()), Err)
}

fn unknown(undefined: &Undefined, variables: &[&str]) -> String {
    let name = undefined.name.as_str();
    let near = |names: &mut dyn Iterator<Item = String>| {
        let names = names.map(|near| (strsim::damerau_levenshtein(name, &near), near));
        match names.filter(|(distance, _)| *distance <= 2).min() {
            Some((_, near)) => format!("; is it `{near}`?"),
            None => String::new(),
        }
    };
    match undefined.kind {
        Kind::Filter(arguments) => {
            let other = library::names().any(|known| known == name);
            let near = near(&mut library::names().map(str::to_owned));
            match (other, arguments) {
                (true, 0) => format!("function `{name}` takes arguments"),
                (true, _) => format!("function `{name}` does not take {arguments} arguments"),
                (false, _) => format!("there is no function `{name}`{near}"),
            }
        }
        Kind::Mod => format!("there is no module `{name}`: there are no modules"),
        Kind::Label => format!("there is no `label {name}` around this `break`"),
        _ => {
            let near = near(&mut variables.iter().map(|known| format!("${known}")));
            if near.is_empty() && !variables.is_empty() {
                let known =
                    variables.iter().map(|known| format!("`${known}`")).collect::<Vec<_>>().join(", ");
                return format!("there is no variable `{name}` here; there are {known}");
            }
            format!("there is no variable `{name}` here{near}")
        }
    }
}

impl std::error::Error for ExpressionError {}

impl fmt::Display for ExpressionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.text.floor_char_boundary(self.offset.saturating_sub(EXCERPT_BYTES / 2));
        let around = Limited::of(EXCERPT_BYTES, &self.text.get(from..).unwrap_or_default());
        let cut = if from > 0 { "…" } else { "" };
        write!(out, "in the expression `{cut}{around}`, at byte {}: {}", self.offset, self.message)
    }
}

impl fmt::Debug for Compiled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Compiled").field("source", &self.source).field("native", &self.native).finish()
    }
}
