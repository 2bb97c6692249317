//! Expressions with exactly one output or none, evaluated on JSON values where they are: nearly all that a
//! workflow has. They mean what jaq makes of the same text. What JSON cannot hold on the way (infinite
//! numbers, whole ones beyond 64 bits) is left to jaq: [`End::Elsewhere`].

use std::borrow::Cow;
use std::cell::Cell;

use jaq_core::ops::{Cmp, Math};
use serde_json::{Map, Value};

use super::Variables;
use super::access::{self, Found};
use super::arithmetic;
use super::meter::{DEPTH, Stop};

/// An expression that needs no jaq.
#[derive(Debug)]
pub(super) enum Node {
    /// `.`
    Input,
    /// A literal.
    Const(Value),
    /// `$name`, without `$`.
    Var(Box<str>),
    /// `head.a[0]?`
    Path(Box<Node>, Vec<Step>),
    /// The text of the parts, each as in `"\(…)"`, in a row.
    Text(Vec<Node>),
    /// `[…]`, items with a comma between them.
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
    /// A function of the input alone.
    Call(Call),
}

/// One access of a path.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) access: Access,
    /// `?`: an error gives no output.
    pub(super) optional: bool,
}

#[derive(Debug)]
pub(super) enum Access {
    /// `.name`
    Key(Box<str>),
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

/// Why there is no value.
#[derive(Debug)]
pub(super) enum End {
    /// It has no output.
    Empty,
    /// What is wrong, with no more of the data than a little.
    Error(String),
    /// A limit.
    Stop(Stop),
    /// jaq is needed.
    Elsewhere,
}

pub(super) type Output<'a> = Result<Cow<'a, Value>, End>;

/// What an expression is evaluated with.
pub(super) struct Scope<'a> {
    pub(super) variables: &'a dyn Variables,
    pub(super) budget: &'a Budget,
}

/// What an evaluation may copy.
pub(super) struct Budget(Cell<u64>);

impl Budget {
    pub(super) fn new() -> Self {
        Self(Cell::new(super::meter::COPIED_BYTES))
    }

    pub(super) fn take(&self, bytes: usize) -> Result<(), End> {
        match self.0.get().checked_sub(bytes as u64) {
            Some(left) => {
                self.0.set(left);
                Ok(())
            }
            None => Err(End::Stop(Stop::Copied)),
        }
    }

    /// A copy, with its size counted and its depth checked.
    pub(super) fn copy(&self, value: &Value) -> Result<Value, End> {
        self.copy_at(value, 0)
    }

    /// The value itself, copied if it is somebody else's.
    pub(super) fn own(&self, value: Cow<'_, Value>) -> Result<Value, End> {
        match value {
            Cow::Owned(value) => Ok(value),
            Cow::Borrowed(value) => self.copy(value),
        }
    }

    fn copy_at(&self, value: &Value, depth: u32) -> Result<Value, End> {
        const ITEM_BYTES: usize = 32;
        if depth > DEPTH {
            return Err(End::Stop(Stop::Depth));
        }
        Ok(match value {
            Value::String(text) => {
                self.take(text.len())?;
                Value::String(text.clone())
            }
            Value::Array(items) => {
                self.take(ITEM_BYTES * items.len())?;
                let mut copy = Vec::with_capacity(items.len());
                for item in items {
                    copy.push(self.copy_at(item, depth + 1)?);
                }
                Value::Array(copy)
            }
            Value::Object(keys) => {
                let mut copy = Map::with_capacity(keys.len());
                for (key, value) in keys {
                    self.take(2 * ITEM_BYTES + key.len())?;
                    copy.insert(key.clone(), self.copy_at(value, depth + 1)?);
                }
                Value::Object(copy)
            }
            plain => plain.clone(),
        })
    }
}

impl Node {
    /// The one output for `input`.
    pub(super) fn eval<'a>(&'a self, input: &'a Value, scope: &Scope<'a>) -> Output<'a> {
        match self {
            Self::Input => Ok(Cow::Borrowed(input)),
            Self::Const(value) => Ok(Cow::Borrowed(value)),
            Self::Var(name) => Ok(scope.variables.value(name).unwrap_or(Cow::Owned(Value::Null))),
            Self::Path(head, steps) => path(head.eval(input, scope)?, steps, input, scope),
            Self::Text(parts) => text(parts, input, scope),
            Self::Array(items) => {
                let mut array = Vec::with_capacity(items.len());
                for item in items {
                    match item.eval(input, scope) {
                        Ok(value) => array.push(scope.budget.own(value)?),
                        Err(End::Empty) => {}
                        Err(end) => return Err(end),
                    }
                }
                Ok(Cow::Owned(Value::Array(array)))
            }
            Self::Object(entries) => object(entries, input, scope),
            Self::Neg(inner) => arithmetic::neg(&*inner.eval(input, scope)?).map(Cow::Owned),
            Self::Math(left, operator, right) => {
                let (left, right) = both(left, right, input, scope)?;
                arithmetic::math(left, *operator, right, scope.budget).map(Cow::Owned)
            }
            Self::Cmp(left, operator, right) => {
                let (left, right) = both(left, right, input, scope)?;
                Ok(bool(access::compare(*operator, &left, &right)?))
            }
            Self::And(left, right) => {
                Ok(bool(is_true(&*left.eval(input, scope)?) && is_true(&*right.eval(input, scope)?)))
            }
            Self::Or(left, right) => {
                Ok(bool(is_true(&*left.eval(input, scope)?) || is_true(&*right.eval(input, scope)?)))
            }
            Self::Alt(left, right) => match left.eval(input, scope) {
                Ok(value) if is_true(&value) => Ok(value),
                Ok(_) | Err(End::Empty) => right.eval(input, scope),
                Err(end) => Err(end),
            },
            Self::Pipe(left, right) => match left.eval(input, scope)? {
                Cow::Borrowed(value) => right.eval(value, scope),
                // The value lives no longer than this call, so what comes of it is copied.
                Cow::Owned(value) => {
                    let inner = Scope { variables: scope.variables, budget: scope.budget };
                    scope.budget.own(right.eval(&value, &inner)?).map(Cow::Owned)
                }
            },
            Self::If(branches, otherwise) => {
                for (when, then) in branches {
                    if is_true(&*when.eval(input, scope)?) {
                        return then.eval(input, scope);
                    }
                }
                match otherwise {
                    Some(otherwise) => otherwise.eval(input, scope),
                    None => Ok(Cow::Borrowed(input)),
                }
            }
            Self::Has(key) => {
                let key = key.eval(input, scope)?;
                Ok(bool(!matches!(access::index(input, &key, scope.budget)?, Found::Nothing)))
            }
            Self::Call(call) => access::call(*call, input, scope.budget),
        }
    }
}

/// jq's truth: everything but null and false.
pub(super) fn is_true(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}

pub(super) fn bool<'a>(value: bool) -> Cow<'a, Value> {
    Cow::Owned(Value::Bool(value))
}

/// Both values. As jq pairs all outputs of one with all of the other, no output of either is none of the pair,
/// even if the other is an error.
fn both<'a>(
    left: &'a Node,
    right: &'a Node,
    input: &'a Value,
    scope: &Scope<'a>,
) -> Result<(Cow<'a, Value>, Cow<'a, Value>), End> {
    let left = present(left.eval(input, scope))?;
    let right = present(right.eval(input, scope))?;
    Ok((left?, right?))
}

/// The outer error: no output, or the end of all.
fn present<T>(output: Result<T, End>) -> Result<Result<T, End>, End> {
    match output {
        Ok(value) => Ok(Ok(value)),
        Err(End::Error(message)) => Ok(Err(End::Error(message))),
        Err(end) => Err(end),
    }
}

fn text<'a>(parts: &'a [Node], input: &'a Value, scope: &Scope<'a>) -> Output<'a> {
    let mut text = String::new();
    let mut failed = None;
    for part in parts {
        match present(part.eval(input, scope))? {
            Ok(value) => access::write_text(&mut text, &value, scope.budget)?,
            Err(end) => failed = failed.or(Some(end)),
        }
    }
    match failed {
        Some(end) => Err(end),
        None => Ok(Cow::Owned(Value::String(text))),
    }
}

fn object<'a>(entries: &'a [(Node, Node)], input: &'a Value, scope: &Scope<'a>) -> Output<'a> {
    let mut object = Map::with_capacity(entries.len());
    let mut failed = None;
    for (key, value) in entries {
        let key = present(key.eval(input, scope))?;
        let value = present(value.eval(input, scope))?;
        let entry = key.and_then(|key| Ok((access::key(key)?, scope.budget.own(value?)?)));
        match present(entry)? {
            Ok((key, value)) => {
                object.insert(key, value);
            }
            Err(end) => failed = failed.or(Some(end)),
        }
    }
    match failed {
        Some(end) => Err(end),
        None => Ok(Cow::Owned(Value::Object(object))),
    }
}

fn path<'a>(mut at: Cow<'a, Value>, steps: &'a [Step], input: &'a Value, scope: &Scope<'a>) -> Output<'a> {
    // All indices first, as in jq: if one has no output, the path has none, even if it fails elsewhere.
    let mut indices = Vec::new();
    for step in steps {
        let mut index = |node: &'a Node| -> Result<(), End> {
            if !matches!(node, Node::Const(_)) {
                indices.push(present(node.eval(input, scope))?);
            }
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
    let indices: Vec<Cow<'a, Value>> = indices.into_iter().collect::<Result<_, _>>()?;
    let mut indices = indices.into_iter();
    let mut value_of = |node: &'a Node| match node {
        Node::Const(value) => Cow::Borrowed(value),
        _ => indices.next().unwrap_or(Cow::Owned(Value::Null)),
    };
    for step in steps {
        let next = match &step.access {
            Access::Key(name) => {
                at = match at {
                    Cow::Borrowed(Value::Object(keys)) => match keys.get(&**name) {
                        Some(value) => Cow::Borrowed(value),
                        None => Cow::Owned(Value::Null),
                    },
                    Cow::Owned(Value::Object(mut keys)) => {
                        Cow::Owned(keys.get_mut(&**name).map(Value::take).unwrap_or_default())
                    }
                    other if matches!(*other, Value::Null) => other,
                    _ if step.optional => return Err(End::Empty),
                    other => return Err(access::no_index(&other, &Value::String(name.to_string()))),
                };
                continue;
            }
            Access::Index(node) => {
                let index = value_of(node);
                access::step(at, |value| access::index(value, &index, scope.budget), scope.budget)
            }
            Access::Slice(from, upto) => {
                let from = from.as_ref().map(&mut value_of);
                let upto = upto.as_ref().map(&mut value_of);
                let slice =
                    |value: &Value| access::slice(value, from.as_deref(), upto.as_deref(), scope.budget);
                slice(&at).map(Cow::Owned)
            }
        };
        at = match next {
            Err(End::Error(_)) if step.optional => return Err(End::Empty),
            next => next?,
        };
    }
    Ok(at)
}
