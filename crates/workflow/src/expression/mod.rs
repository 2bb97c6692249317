//! Runtime expressions of the DSL, written in jq.
//!
//! Most expressions are paths, comparisons and constructions with one output. [`native`] evaluates them without an
//! interpreter. jaq evaluates all others ([`interpreted`]). [`meter`] counts every step, since a jq program can loop without
//! end and allocate unlimited memory.

mod access;
mod arithmetic;
mod compile;
mod error;
mod instrument;
mod interpreted;
mod library;
mod lower;
mod meter;
mod native;

mod cost;
mod regex_cost;
mod source;
mod template;
mod tree;
mod value;
mod variables;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use jaq_core::load::parse::Term;
use serde_json::Value;

pub(crate) use self::cost::LINEAR_BYTES;
pub use self::error::{EvalError, ExpressionError};
use self::interpreted::Interpreted;
pub use self::meter::Bounds;
use self::native::{End, Node};
use self::source::Wrong;
pub use self::template::{Mode, Template};
pub use self::variables::Variables;
use crate::data::Data;

/// A compiled expression. Clones share it.
#[derive(Clone, Debug)]
pub struct Expression(Arc<Compiled>);

struct Compiled {
    /// The jq text, without `${ }`.
    source: String,
    variables: Vec<String>,
    quick_bytes: u64,
    secrets: Vec<String>,
    native: Option<Node>,
    /// The form that jaq runs. If there is a native form, this one is compiled at the first fallback.
    interpreted: OnceLock<Option<Interpreted>>,
}

impl Expression {
    /// Compiles jq text, with or without `${ }` around it. The text has at most 64 KiB and at most 64 nested brackets.
    /// `variables` are the names, without `$`, that the expression may use; any other variable is an error.
    pub fn parse(source: &str, variables: &[&str]) -> Result<Self, ExpressionError> {
        let inside = expression_text(source).unwrap_or(source);
        let start = source::offset_of(source, inside.as_ptr().addr()).unwrap_or_default();
        let ((native, interpreted, quick_bytes), secrets) = source::parse(inside, |term| {
            let secrets = tree::keys_of(&term, "$secrets");
            Ok((compile::compile(inside, term, variables)?, secrets))
        })
        .map_err(|wrong| ExpressionError {
            message: wrong.message,
            offset: start + wrong.offset,
            text: source.to_owned(),
        })?;
        Ok(Self(Arc::new(Compiled {
            source: inside.to_owned(),
            variables: variables.iter().map(|name| (*name).to_owned()).collect(),
            quick_bytes,
            secrets: secrets.into_iter().collect(),
            native,
            interpreted,
        })))
    }

    /// The jq text, without `${ }`.
    pub fn source(&self) -> &str {
        &self.0.source
    }

    /// True if the expression has a native form, which is evaluated without jaq.
    pub fn is_native(&self) -> bool {
        self.0.native.is_some()
    }

    /// The size of data, in bytes, with which an evaluation takes at most about one millisecond; 0 if this is unknown.
    pub(crate) fn quick_bytes(&self) -> u64 {
        self.0.quick_bytes
    }

    /// The secrets that it names as `$secrets.NAME` or `$secrets["NAME"]`, each once.
    pub(crate) fn secrets(&self) -> &[String] {
        &self.0.secrets
    }

    /// Evaluates the expression for `input`. The value is null if the expression has no output. `now_unix_ms` is the time for
    /// jq's `now`.
    pub fn eval(
        &self,
        input: &Data,
        variables: &dyn Variables,
        now_unix_ms: u64,
    ) -> Result<Data, EvalError> {
        self.eval_within(input, variables, Bounds::at(now_unix_ms))
    }

    /// Same as [`eval`](Self::eval), with other bounds.
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

    /// Evaluates the expression as a condition. As in jq, every value except false and null is true.
    pub fn is_true(
        &self,
        input: &Data,
        variables: &dyn Variables,
        now_unix_ms: u64,
    ) -> Result<bool, EvalError> {
        Ok(self.eval(input, variables, now_unix_ms)?.is_true())
    }

    /// Same as [`eval`](Self::eval) for JSON, without variables.
    pub fn eval_json(&self, input: &Value, now_unix_ms: u64) -> Result<Value, EvalError> {
        // Nearly all of these expressions are paths into an event. For a path, only the value at its end is copied.
        let mut at = Some(input);
        if let Some(keys) = self.0.native.as_ref().and_then(Node::keys) {
            for key in keys {
                at = match at {
                    Some(Value::Object(fields)) => Some(fields.get(key).unwrap_or(&Value::Null)),
                    Some(Value::Null) => at,
                    // The path does not fit the input. The evaluation below gives an error with a message.
                    _ => None,
                };
            }
            if let Some(value) = at {
                return Ok(value.clone());
            }
        }
        let input = Data::from_json(input).map_err(|_| EvalError::from(meter::Stop::Depth))?;
        self.eval(&input, &(), now_unix_ms).map(|value| value.to_json())
    }

    /// Evaluates the expression. The caller starts and finishes the meter.
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
        let interpreted = self.0.interpreted.get_or_init(|| self.0.interpreted_form());
        let Some(interpreted) = interpreted else {
            return Err(self.ended(End::Error("it does not compile".into())));
        };
        Ok(interpreted.eval(&self.0.source, input, variables)?.unwrap_or_default())
    }

    fn ended(&self, end: End) -> EvalError {
        match end {
            End::Stop(stop) => stop.into(),
            End::Error(message) => EvalError::failed(&self.0.source, message),
            End::Empty | End::Elsewhere => EvalError::failed(&self.0.source, "it has no value"),
        }
    }
}

impl Compiled {
    fn interpreted_form(&self) -> Option<Interpreted> {
        let variables: Vec<&str> = self.variables.iter().map(String::as_str).collect();
        let compile = |term: Term<&str>| {
            Interpreted::compile(term, &variables).map_err(|_| Wrong { message: String::new(), offset: 0 })
        };
        source::parse(&self.source, compile).ok()
    }
}

/// The text inside `${ … }`, without surrounding white space. `None` if the trimmed `text` does not start with `${` and end
/// with `}`.
pub fn expression_text(text: &str) -> Option<&str> {
    Some(text.trim().strip_prefix("${")?.strip_suffix('}')?.trim())
}

/// Number of steps of all evaluations on this thread so far. The number wraps around.
pub(crate) fn spent() -> u64 {
    meter::spent()
}

impl fmt::Debug for Compiled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Compiled").field("source", &self.source).field("native", &self.native).finish()
    }
}
