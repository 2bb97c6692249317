//! Converts parsed jq text to a [`Node`], if all of its parts have a native form.

use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Term};
use jaq_core::path::{Opt, Part};

use super::native::{Access, Call, Node, Step};
use super::value::V;
use crate::data::Num;

/// Returns `term` as a node. `variables`: the available names, without `$`. `None`: jaq must run it, or report the
/// error.
pub(super) fn lower(term: &Term<&str>, variables: &[&str]) -> Option<Node> {
    let node = |inner: &Term<&str>| lower(inner, variables);
    let boxed = |inner: &Term<&str>| node(inner).map(Box::new);
    Some(match term {
        Term::Id => Node::Input,
        Term::Num(text) => Node::Const(V::Num(Num::parse(text))),
        Term::Str(None, parts) => string(parts, variables)?,
        Term::Arr(None) => Node::Array(Vec::new()),
        Term::Arr(Some(items)) => {
            let mut flat = Vec::new();
            flatten(items, &mut flat);
            Node::Array(flat.into_iter().map(node).collect::<Option<_>>()?)
        }
        Term::Obj(entries) => Node::Object(
            entries
                .iter()
                .map(|(key, value)| entry(key, value.as_ref(), variables))
                .collect::<Option<_>>()?,
        ),
        Term::Neg(inner) => match node(inner)? {
            Node::Const(V::Num(number)) => Node::Const(V::Num(number.neg())),
            other => Node::Neg(Box::new(other)),
        },
        Term::BinOp(left, operator, right) => {
            let (left, right) = (boxed(left)?, boxed(right)?);
            match operator {
                BinaryOp::Pipe(None) => Node::Pipe(left, right),
                BinaryOp::Alt => Node::Alt(left, right),
                BinaryOp::Or => Node::Or(left, right),
                BinaryOp::And => Node::And(left, right),
                BinaryOp::Math(math) => Node::Math(left, *math, right),
                BinaryOp::Cmp(cmp) => Node::Cmp(left, *cmp, right),
                _ => return None,
            }
        }
        Term::IfThenElse(branches, otherwise) => Node::If(
            branches.iter().map(|(when, then)| Some((node(when)?, node(then)?))).collect::<Option<_>>()?,
            match otherwise {
                Some(otherwise) => Some(boxed(otherwise)?),
                None => None,
            },
        ),
        Term::Var(name) => {
            let name = name.strip_prefix('$').filter(|name| variables.contains(name))?;
            Node::Var(name.into())
        }
        Term::Path(head, path) => {
            let steps = path.0.iter().map(|(part, opt)| {
                let access = match part {
                    Part::Index(index) => match node(index)? {
                        Node::Const(V::Str(key)) => Access::Key(key),
                        index => Access::Index(index),
                    },
                    Part::Range(None, None) => return None,
                    Part::Range(from, upto) => {
                        let end = |end: &Option<Term<&str>>| match end {
                            Some(end) => node(end).map(Some),
                            None => Some(None),
                        };
                        Access::Slice(end(from)?, end(upto)?)
                    }
                };
                Some(Step { access, optional: matches!(opt, Opt::Optional) })
            });
            Node::Path(boxed(head)?, steps.collect::<Option<_>>()?)
        }
        Term::Call("has", args) => match &args[..] {
            [key] => Node::Has(boxed(key)?),
            _ => return None,
        },
        Term::Call(name, args) if args.is_empty() => match *name {
            "true" => Node::Const(V::Bool(true)),
            "false" => Node::Const(V::Bool(false)),
            "null" => Node::Const(V::Null),
            "empty" => Node::Call(Call::Empty),
            "not" => Node::Call(Call::Not),
            "length" => Node::Call(Call::Length),
            "tostring" => Node::Call(Call::ToString),
            "tonumber" => Node::Call(Call::ToNumber),
            "type" => Node::Call(Call::Type),
            "keys" => Node::Call(Call::Keys),
            _ => return None,
        },
        _ => return None,
    })
}

fn string(parts: &[StrPart<&str, Term<&str>>], variables: &[&str]) -> Option<Node> {
    let mut nodes = Vec::new();
    let mut literal = String::new();
    for part in parts {
        match part {
            StrPart::Str(text) => literal.push_str(text),
            StrPart::Char(c) => literal.push(*c),
            StrPart::Term(inner) => {
                if !literal.is_empty() {
                    nodes.push(Node::Const(V::from(std::mem::take(&mut literal).as_str())));
                }
                nodes.push(lower(inner, variables)?);
            }
        }
    }
    if nodes.is_empty() {
        return Some(Node::Const(V::from(literal.as_str())));
    }
    if !literal.is_empty() {
        nodes.push(Node::Const(V::from(literal.as_str())));
    }
    Some(Node::Text(nodes))
}

/// `a: b`, `$a`, `a` and so on.
fn entry(key: &Term<&str>, value: Option<&Term<&str>>, variables: &[&str]) -> Option<(Node, Node)> {
    match (key, value) {
        (key, Some(value)) => Some((lower(key, variables)?, lower(value, variables)?)),
        (Term::Var(name), None) => {
            let bare = name.strip_prefix('$')?;
            Some((Node::Const(V::from(bare)), lower(key, variables)?))
        }
        (key, None) => {
            let Node::Const(V::Str(name)) = lower(key, variables)? else { return None };
            let step = Step { access: Access::Key(name.clone()), optional: false };
            Some((Node::Const(V::Str(name)), Node::Path(Box::new(Node::Input), vec![step])))
        }
    }
}

/// The items of `a, b, c`, from left to right.
fn flatten<'t, 's>(list: &'t Term<&'s str>, items: &mut Vec<&'t Term<&'s str>>) {
    let mut left = vec![list];
    while let Some(next) = left.pop() {
        match next {
            Term::BinOp(first, BinaryOp::Comma, second) => left.extend([&**second, &**first]),
            item => items.push(item),
        }
    }
}
