//! Evaluates expressions with at most one output without an interpreter. Nearly all expressions of workflows are of this
//! kind. The results are the same as with jaq: both use the same operators on values ([`super::access`],
//! [`super::arithmetic`]).

use std::sync::Arc;

use jaq_core::ops::{Cmp, Math};
use jaq_core::{Error, ValT as _};

use super::meter::{self, Stop};
use super::value::V;
use super::variables::Variables;
use crate::data::{Fields, Limited, Num};

/// Maximum length of the text of an error, in bytes.
const MESSAGE_BYTES: usize = 100;

/// An expression that runs without jaq.
#[derive(Debug)]
pub(super) enum Node {
    /// `.`
    Input,
    /// A literal.
    Const(V),
    /// `$name`, without `$`.
    Var(Box<str>),
    /// `head.a[0]?`
    Path(Box<Node>, Vec<Step>),
    /// The concatenated texts of the parts. Each part is converted to text as in `"\(…)"`.
    Text(Vec<Node>),
    /// `[…]`, with the items that commas separate.
    Array(Vec<Node>),
    /// `{…}`
    Object(Vec<(Node, Node)>),
    /// `-…`
    Neg(Box<Node>),
    /// `… + …`
    Math(Box<Node>, Math, Box<Node>),
    /// `… < …`
    Cmp(Box<Node>, Cmp, Box<Node>),
    /// `… and …`
    And(Box<Node>, Box<Node>),
    /// `… or …`
    Or(Box<Node>, Box<Node>),
    /// `… // …`
    Alt(Box<Node>, Box<Node>),
    /// `… | …`
    Pipe(Box<Node>, Box<Node>),
    /// `if … then … elif … end`
    If(Vec<(Node, Node)>, Option<Box<Node>>),
    /// `has(…)`
    Has(Box<Node>),
    /// A function without arguments, which depends only on the input.
    Call(Call),
}

/// One access of a path.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) access: Access,
    /// `?`: after an error the path has no output.
    pub(super) optional: bool,
}

#[derive(Debug)]
pub(super) enum Access {
    /// `.name`
    Key(Arc<str>),
    /// `[…]`
    Index(Node),
    /// `[…:…]`
    Slice(Option<Node>, Option<Node>),
}

/// Functions without arguments.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Empty,
    Not,
    Length,
    ToString,
    ToNumber,
    Type,
    Keys,
}

/// The reason why an evaluation has no value.
#[derive(Debug)]
pub(super) enum End {
    /// The expression has no output.
    Empty,
    /// The evaluation failed. The text contains only a short part of the data.
    Error(String),
    /// The evaluation reached a limit.
    Stop(Stop),
    /// Only jaq can evaluate the expression for this input.
    Elsewhere,
}

impl From<Stop> for End {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

impl From<Error<V>> for End {
    fn from(error: Error<V>) -> Self {
        // An operator that a limit stops returns an error without a message.
        match meter::stopped() {
            Some(stop) => Self::Stop(stop),
            None => Self::Error(message(error)),
        }
    }
}

/// The text of an error, cut to [`MESSAGE_BYTES`], since it can contain data of the workflow.
pub(super) fn message(error: Error<V>) -> String {
    match error.into_val() {
        V::Str(text) => Limited::of(MESSAGE_BYTES, &text),
        other => Limited::of(MESSAGE_BYTES, &other),
    }
}

pub(super) type Output = Result<V, End>;

impl Node {
    /// Evaluates the expression for `input`.
    pub(super) fn eval(&self, input: &V, variables: &dyn Variables) -> Output {
        let eval = |node: &Node| node.eval(input, variables);
        meter::tick()?;
        Ok(match self {
            Self::Input => input.clone(),
            Self::Const(value) => value.clone(),
            Self::Var(name) => variables.value(name).unwrap_or_default(),
            Self::Path(head, steps) => path(eval(head)?, steps, input, variables)?,
            Self::Text(parts) => text(parts, input, variables)?,
            Self::Array(items) => {
                let mut array = Vec::with_capacity(items.len());
                for item in items {
                    match eval(item) {
                        Ok(value) => array.push(value),
                        Err(End::Empty) => {}
                        Err(end) => return Err(end),
                    }
                }
                V::array(array)?
            }
            Self::Object(entries) => object(entries, input, variables)?,
            Self::Neg(inner) => (-eval(inner)?)?,
            Self::Math(left, operator, right) => {
                let (left, right) = both(left, right, input, variables)?;
                match operator {
                    Math::Add => left + right,
                    Math::Sub => left - right,
                    Math::Mul => left * right,
                    Math::Div => left / right,
                    Math::Rem => left % right,
                }?
            }
            Self::Cmp(left, operator, right) => {
                let (left, right) = both(left, right, input, variables)?;
                let order = left.order(&right)?;
                V::Bool(match operator {
                    Cmp::Lt => order.is_lt(),
                    Cmp::Le => order.is_le(),
                    Cmp::Gt => order.is_gt(),
                    Cmp::Ge => order.is_ge(),
                    Cmp::Eq => order.is_eq(),
                    Cmp::Ne => order.is_ne(),
                })
            }
            Self::And(left, right) => V::Bool(eval(left)?.is_true() && eval(right)?.is_true()),
            Self::Or(left, right) => V::Bool(eval(left)?.is_true() || eval(right)?.is_true()),
            Self::Alt(left, right) => match eval(left) {
                Ok(value) if value.is_true() => value,
                Ok(_) | Err(End::Empty) => eval(right)?,
                Err(end) => return Err(end),
            },
            Self::Pipe(left, right) => right.eval(&eval(left)?, variables)?,
            Self::If(branches, otherwise) => {
                for (when, then) in branches {
                    if eval(when)?.is_true() {
                        return eval(then);
                    }
                }
                match otherwise {
                    Some(otherwise) => eval(otherwise)?,
                    None => input.clone(),
                }
            }
            Self::Has(key) => V::Bool(input.index_opt(&eval(key)?)?.is_some()),
            Self::Call(call) => function(*call, input)?,
        })
    }

    /// The keys of a path that starts at the input and has only keys, as in `.a.b`. `None` for other expressions.
    pub(super) fn keys(&self) -> Option<impl Iterator<Item = &str>> {
        let Self::Path(head, steps) = self else { return None };
        let plain = matches!(**head, Self::Input)
            && steps.iter().all(|step| matches!(step.access, Access::Key(_)) && !step.optional);
        plain.then(|| {
            steps.iter().filter_map(|step| match &step.access {
                Access::Key(key) => Some(&**key),
                _ => None,
            })
        })
    }
}

/// The values of both sides. jq combines every output of one side with every output of the other. If one side has no
/// output, the pair has none, even if the other side fails.
fn both(left: &Node, right: &Node, input: &V, variables: &dyn Variables) -> Result<(V, V), End> {
    let left = present(left.eval(input, variables))?;
    let right = present(right.eval(input, variables))?;
    Ok((left?, right?))
}

/// Separates the failure of an expression from other ends. The inner error is a failure. The outer error is any other end:
/// no output, a limit, or an input that needs jaq.
fn present<T>(output: Result<T, End>) -> Result<Result<T, End>, End> {
    match output {
        Ok(value) => Ok(Ok(value)),
        Err(End::Error(message)) => Ok(Err(End::Error(message))),
        Err(end) => Err(end),
    }
}

fn text(parts: &[Node], input: &V, variables: &dyn Variables) -> Output {
    let mut text = String::new();
    let mut failed = None;
    for part in parts {
        match present(part.eval(input, variables))? {
            Ok(value) => {
                let part = value.into_string();
                if let Some(stop) = meter::stopped() {
                    return Err(stop.into());
                }
                let part = part.as_str().unwrap_or_default();
                meter::string(text.len() + part.len())?;
                text.push_str(part);
            }
            Err(end) => failed = failed.or(Some(end)),
        }
    }
    match failed {
        Some(end) => Err(end),
        None => Ok(V::string(text)?),
    }
}

fn object(entries: &[(Node, Node)], input: &V, variables: &dyn Variables) -> Output {
    let mut fields = Fields::with_capacity(entries.len());
    let mut failed = None;
    for (key, value) in entries {
        let key = present(key.eval(input, variables))?;
        let value = present(value.eval(input, variables))?;
        let entry = key.and_then(|key| match key {
            V::Str(key) => Ok((key, value?)),
            other => Err(Error::typ(other, "object key, which is a string").into()),
        });
        match present(entry)? {
            Ok((key, value)) => fields.insert(key, value),
            Err(end) => failed = failed.or(Some(end)),
        }
    }
    match failed {
        Some(end) => Err(end),
        None => Ok(V::object(fields)?),
    }
}

fn path(mut at: V, steps: &[Step], input: &V, variables: &dyn Variables) -> Output {
    // All indices are evaluated first, as in jq: if one of them has no output, the path has none, even if another part of
    // the path fails.
    let mut indices = Vec::new();
    for step in steps {
        let mut index = |node: &Node| -> Result<(), End> {
            indices.push(present(node.eval(input, variables))?);
            Ok(())
        };
        match &step.access {
            Access::Key(_) => {}
            Access::Index(node) => index(node)?,
            Access::Slice(from, upto) => {
                for end in [from, upto].into_iter().flatten() {
                    index(end)?;
                }
            }
        }
    }
    let indices: Vec<V> = indices.into_iter().collect::<Result<_, _>>()?;
    let mut indices = indices.into_iter();
    for step in steps {
        let next = match &step.access {
            Access::Key(name) => match &at {
                V::Obj(object) => Ok(object.fields().get(name).cloned().unwrap_or_default()),
                V::Null => Ok(V::Null),
                other => Err(Error::index(other.clone(), V::Str(name.clone()))),
            },
            Access::Index(_) => at.index(&indices.next().unwrap_or_default()),
            Access::Slice(from, upto) => {
                let mut end = |end: &Option<Node>| end.as_ref().and_then(|_| indices.next());
                let (from, upto) = (end(from), end(upto));
                at.range(from.as_ref()..upto.as_ref())
            }
        };
        at = match next.map_err(End::from) {
            Err(End::Error(_)) if step.optional => return Err(End::Empty),
            next => next?,
        };
    }
    Ok(at)
}

/// Calls a function with `input`.
fn function(call: Call, input: &V) -> Output {
    Ok(match call {
        Call::Empty => return Err(End::Empty),
        Call::Not => V::Bool(!input.is_true()),
        Call::Length => super::library::length(input)?,
        Call::ToString => match input {
            V::Str(_) => input.clone(),
            other => other.json_text()?,
        },
        Call::ToNumber => match input {
            V::Num(_) => input.clone(),
            V::Str(text) => {
                meter::work(text.len() as u64)?;
                match serde_json::from_str(text) {
                    Ok(serde_json::Value::Number(number)) => V::Num(Num::of(&number)),
                    // jaq accepts more forms, and reports the error.
                    _ => return Err(End::Elsewhere),
                }
            }
            other => return Err(Error::typ(other.clone(), "string").into()),
        },
        Call::Type => V::from(match input {
            V::Null => "null",
            V::Bool(_) => "boolean",
            V::Num(_) => "number",
            V::Str(_) => "string",
            V::Arr(_) => "array",
            V::Obj(_) => "object",
        }),
        Call::Keys => match input {
            V::Arr(array) => V::array((0..array.items().len()).map(V::from).collect())?,
            V::Obj(object) => {
                let keys = object.fields().iter().map(|(key, _)| V::Str(key.clone())).collect();
                V::array(super::value::sort(keys, V::order)?)?
            }
            other => {
                return Err(Error::typ(other.clone(), "array or object, which have values").into());
            }
        },
    })
}
