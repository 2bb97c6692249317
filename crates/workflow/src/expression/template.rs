//! JSON values with expressions in them.

use std::sync::Arc;

use serde_json::Value;

use super::meter::DEPTH;
use super::{Bounds, EvalError, Expression, ExpressionError, Variables, expression_text};
use crate::data::{Data, Fields};

/// Which strings of a value are expressions (specification, section "Evaluate").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Those in `${ }`.
    #[default]
    Strict,
    /// All strings. One that is not jq, or whose evaluation fails, is itself.
    Loose,
}

/// A JSON value in which strings of the form `${ … }` are expressions, at any depth: values of objects and
/// items of arrays, not keys.
#[derive(Clone, Debug)]
pub struct Template(Part);

#[derive(Clone, Debug)]
enum Part {
    /// A value without expressions, in its original form and in its evaluated form.
    Literal(Value, Data),
    Expression(Expression),
    /// An expression, and the text that is its value if it fails.
    Loose(Expression, Data),
    Array(Vec<Part>),
    Object(Vec<(Arc<str>, Part)>),
}

impl Template {
    /// Compiles the expressions in `value`, which may use `variables` (names without `$`). Err: the JSON pointer
    /// of the string within `value`, and what is wrong with it.
    pub fn parse(value: &Value, variables: &[&str], mode: Mode) -> Result<Self, (String, ExpressionError)> {
        part(value, Names { variables, mode }, &mut String::new(), 0).map(Self)
    }

    /// As [`Template::parse`], but a string at the top is an expression with or without `${ }`: the DSL's
    /// `input.from: .x`.
    pub fn parse_expression_or_template(
        value: &Value,
        variables: &[&str],
        mode: Mode,
    ) -> Result<Self, (String, ExpressionError)> {
        match value {
            Value::String(text) => match Expression::parse(text, variables) {
                Ok(expression) => Ok(Self(Part::Expression(expression))),
                Err(error) => Err((String::new(), error)),
            },
            other => Self::parse(other, variables, mode),
        }
    }

    /// The value, if it contains no expressions.
    pub fn literal(&self) -> Option<&Value> {
        match &self.0 {
            Part::Literal(value, _) => Some(value),
            _ => None,
        }
    }

    /// Like [`Expression::quick_bytes`], for all of its expressions together.
    pub(crate) fn quick_bytes(&self) -> u64 {
        self.0.quick_bytes()
    }

    /// Calls `look` for each of its expressions.
    pub(crate) fn each_expression(&self, look: &mut dyn FnMut(&Expression)) {
        self.0.each_expression(look);
    }

    /// Returns the value, with each expression replaced by its result; see [`Expression::eval`].
    pub fn eval(&self, input: &Data, variables: &dyn Variables, bounds: Bounds) -> Result<Data, EvalError> {
        let mut left_bytes = bounds.memory_bytes;
        self.0.eval(input, variables, bounds, &mut left_bytes)
    }
}

impl Part {
    fn quick_bytes(&self) -> u64 {
        let least = |bytes: &mut dyn Iterator<Item = u64>| bytes.min().unwrap_or(super::LINEAR_BYTES);
        match self {
            Self::Literal(..) => super::LINEAR_BYTES,
            Self::Expression(expression) | Self::Loose(expression, _) => expression.quick_bytes(),
            Self::Array(items) => least(&mut items.iter().map(Self::quick_bytes)),
            Self::Object(keys) => least(&mut keys.iter().map(|(_, part)| part.quick_bytes())),
        }
    }

    fn each_expression(&self, look: &mut dyn FnMut(&Expression)) {
        match self {
            Self::Literal(..) => {}
            Self::Expression(expression) | Self::Loose(expression, _) => look(expression),
            Self::Array(items) => items.iter().for_each(|item| item.each_expression(look)),
            Self::Object(keys) => keys.iter().for_each(|(_, part)| part.each_expression(look)),
        }
    }

    /// `left_bytes`: the memory that the remaining expressions may allocate together, in bytes.
    fn eval(
        &self,
        input: &Data,
        variables: &dyn Variables,
        bounds: Bounds,
        left_bytes: &mut u64,
    ) -> Result<Data, EvalError> {
        let mut eval = |part: &Self| part.eval(input, variables, bounds, left_bytes);
        match self {
            Self::Literal(_, data) => Ok(data.clone()),
            Self::Expression(expression) => {
                expression_value(expression, input, variables, bounds, left_bytes)
            }
            Self::Loose(expression, text) => {
                match expression_value(expression, input, variables, bounds, left_bytes) {
                    Err(EvalError::Failed { .. } | EvalError::Several { .. }) => Ok(text.clone()),
                    result => result,
                }
            }
            Self::Array(items) => items.iter().map(eval).collect::<Result<_, _>>().map(Data::list),
            Self::Object(keys) => {
                let mut object = Fields::with_capacity(keys.len());
                for (key, value) in keys {
                    object.insert(key.clone(), eval(value)?);
                }
                Ok(Data::object_of(object))
            }
        }
    }
}

fn expression_value(
    expression: &Expression,
    input: &Data,
    variables: &dyn Variables,
    bounds: Bounds,
    left_bytes: &mut u64,
) -> Result<Data, EvalError> {
    let bounds = Bounds { memory_bytes: *left_bytes, ..bounds };
    let value = expression.eval_within(input, variables, bounds)?;
    if !value.is_shared_with(input) {
        *left_bytes = left_bytes.saturating_sub(value.bytes());
    }
    Ok(value)
}

/// The meaning of strings and variables in a value.
#[derive(Clone, Copy)]
struct Names<'n> {
    variables: &'n [&'n str],
    mode: Mode,
}

fn part(
    value: &Value,
    names: Names<'_>,
    pointer: &mut String,
    depth: u32,
) -> Result<Part, (String, ExpressionError)> {
    if depth > DEPTH {
        let message = format!("the value nests more than {DEPTH} levels deep");
        return Err((pointer.clone(), ExpressionError { message, offset: 0, text: String::new() }));
    }
    let literal = |part: &Part| matches!(part, Part::Literal(..));
    let made = match value {
        Value::String(text) if expression_text(text).is_some() => {
            let parsed = Expression::parse(text, names.variables);
            return parsed.map(Part::Expression).map_err(|error| (pointer.clone(), error));
        }
        Value::String(text) if names.mode == Mode::Loose => Expression::parse(text, names.variables)
            .ok()
            .map(|expression| Part::Loose(expression, Data::from(text.as_str()))),
        Value::Array(items) => {
            let mut parts = Vec::with_capacity(items.len());
            for (at, item) in items.iter().enumerate() {
                parts.push(within(pointer, &at.to_string(), |pointer| {
                    part(item, names, pointer, depth + 1)
                })?);
            }
            if parts.iter().all(literal) { None } else { Some(Part::Array(parts)) }
        }
        Value::Object(keys) => {
            let mut parts = Vec::with_capacity(keys.len());
            for (key, value) in keys {
                let made = within(pointer, key, |pointer| part(value, names, pointer, depth + 1))?;
                parts.push((Arc::from(key.as_str()), made));
            }
            if parts.iter().all(|(_, part)| literal(part)) { None } else { Some(Part::Object(parts)) }
        }
        _ => None,
    };
    Ok(made.unwrap_or_else(|| {
        // The depth was checked above.
        Part::Literal(value.clone(), Data::from_json(value).unwrap_or_default())
    }))
}

/// Calls `f` with `name` appended to `pointer`, escaped as in RFC 6901.
fn within<T>(pointer: &mut String, name: &str, f: impl FnOnce(&mut String) -> T) -> T {
    let len = pointer.len();
    pointer.push('/');
    pointer.push_str(&name.replace('~', "~0").replace('/', "~1"));
    let result = f(pointer);
    pointer.truncate(len);
    result
}
