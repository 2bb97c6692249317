//! Step counting: inserts a call of [`TICK`] into parsed jq text wherever an evaluation could run without end or grow
//! exponentially. The tree is rewritten, not the text, so no jq text can name the inserted functions.

use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Def, Pattern, Term};
use jaq_core::path::{Part, Path};

use super::tree;

/// Passes its input on and counts a step. This name is not valid in jq text.
pub(super) const TICK: &str = "!tick";

/// Like [`TICK`], for a function that can pass functions to itself, which nests them.
pub(super) const TICK_CHAIN: &str = "!tick_chain";

/// Counts the cost of a regular expression. This name is not valid in jq text.
pub(super) const REGEX_COST: &str = "!regex_cost";

/// The basic functions on regular expressions, which all others use, and their replacements. The originals have no
/// limits.
pub(super) const REGEX: [(&str, &str); 3] =
    [("matches", "!matches"), ("split_matches", "!split_matches"), ("split_", "!split_")];

/// Functions that would use the time zone of the machine, and their replacements.
const UTC: [(&str, &str); 2] = [("localtime", "gmtime"), ("strflocaltime", "strftime")];

/// `def` with step counting.
pub(super) fn definition(def: Def<&str>) -> Def<&str> {
    // A function's body: each call of it is a step.
    let takes_functions = def.args.iter().any(|arg| !arg.starts_with('$'));
    let step = if takes_functions && tree::calls(&def.body).contains(def.name) {
        Term::Call(TICK_CHAIN, Vec::new())
    } else {
        tick()
    };
    Def { name: def.name, args: def.args, body: pipe(step, term(def.body)) }
}

/// Defines `to`, which counts the cost and calls `from`.
pub(super) fn regex(from: &'static str, to: &'static str) -> Def<&'static str> {
    let (pattern, flags) = (|| Term::Var("$pattern"), || Term::Var("$flags"));
    let body = pipe(Term::Call(REGEX_COST, vec![pattern()]), Term::Call(from, vec![pattern(), flags()]));
    Def { name: to, args: vec!["$pattern", "$flags"], body }
}

/// Returns `source` with step counting.
pub(super) fn term<'s>(source: Term<&'s str>) -> Term<&'s str> {
    let boxed = |inner: Box<Term<&'s str>>| Box::new(term(*inner));
    match source {
        Term::Id | Term::Num(_) | Term::Break(_) | Term::Var(_) => source,
        Term::Recurse => pipe(source, tick()),
        Term::Str(format, parts) => Term::Str(format, parts.into_iter().map(part).collect()),
        Term::Arr(items) => Term::Arr(items.map(boxed)),
        Term::Obj(entries) => {
            Term::Obj(entries.into_iter().map(|(key, value)| (term(key), value.map(term))).collect())
        }
        Term::Neg(inner) => Term::Neg(boxed(inner)),
        Term::BinOp(left, BinaryOp::Comma, right) => {
            let mut items = Vec::new();
            flatten(Term::BinOp(left, BinaryOp::Comma, right), &mut items);
            // The step comes before each item, not after the list, so that the last item stays a tail call.
            balanced(items.into_iter().map(|item| pipe(tick(), term(item))).collect())
        }
        Term::BinOp(left, BinaryOp::Pipe(Some(bound)), right) => {
            Term::BinOp(boxed(left), BinaryOp::Pipe(Some(pattern(bound))), boxed(right))
        }
        Term::BinOp(left, operator, right) => Term::BinOp(boxed(left), operator, boxed(right)),
        Term::Label(name, inner) => Term::Label(name, boxed(inner)),
        Term::Fold(name, items, bound, args) => {
            Term::Fold(name, boxed(items), pattern(bound), args.into_iter().map(term).collect())
        }
        Term::TryCatch(inner, catch) => Term::TryCatch(boxed(inner), catch.map(boxed)),
        Term::IfThenElse(branches, otherwise) => Term::IfThenElse(
            branches.into_iter().map(|(when, then)| (term(when), term(then))).collect(),
            otherwise.map(boxed),
        ),
        Term::Def(defs, inner) => Term::Def(defs.into_iter().map(definition).collect(), boxed(inner)),
        Term::Call(name, args) => {
            let generates = name == "range" && args.len() == 3;
            let name = REGEX.iter().chain(&UTC).find(|(old, _)| *old == name).map_or(name, |(_, new)| new);
            let call = Term::Call(name, args.into_iter().map(term).collect());
            if generates { pipe(call, tick()) } else { call }
        }
        Term::Path(head, Path(parts)) => {
            let generates = parts.iter().any(|(part, _)| matches!(part, Part::Range(None, None)));
            let parts = parts.into_iter().map(|(part, optional)| {
                let part = match part {
                    Part::Index(index) => Part::Index(term(index)),
                    Part::Range(from, upto) => Part::Range(from.map(term), upto.map(term)),
                };
                (part, optional)
            });
            let path = Term::Path(boxed(head), Path(parts.collect()));
            if generates { pipe(path, tick()) } else { path }
        }
    }
}

/// The items of `a, b, c`, from left to right. Not recursive, because there may be thousands of items.
pub(super) fn flatten<'s>(list: Term<&'s str>, items: &mut Vec<Term<&'s str>>) {
    let mut left = vec![list];
    while let Some(next) = left.pop() {
        match next {
            Term::BinOp(first, BinaryOp::Comma, second) => {
                left.push(*second);
                left.push(*first);
            }
            item => items.push(item),
        }
    }
}

/// Converts `a, b, c, d` to `(a, b), (c, d)`. The depth is the logarithm of the number of items.
fn balanced(mut items: Vec<Term<&str>>) -> Term<&str> {
    while items.len() > 1 {
        let mut pairs = Vec::with_capacity(items.len().div_ceil(2));
        let mut rest = items.into_iter();
        while let Some(first) = rest.next() {
            pairs.push(match rest.next() {
                Some(second) => Term::BinOp(Box::new(first), BinaryOp::Comma, Box::new(second)),
                None => first,
            });
        }
        items = pairs;
    }
    items.pop().unwrap_or_default()
}

fn tick<'s>() -> Term<&'s str> {
    Term::Call(TICK, Vec::new())
}

fn pipe<'s>(left: Term<&'s str>, right: Term<&'s str>) -> Term<&'s str> {
    Term::BinOp(Box::new(left), BinaryOp::Pipe(None), Box::new(right))
}

fn part<'s>(part: StrPart<&'s str, Term<&'s str>>) -> StrPart<&'s str, Term<&'s str>> {
    match part {
        StrPart::Term(inner) => StrPart::Term(term(inner)),
        other => other,
    }
}

fn pattern(bound: Pattern<&str>) -> Pattern<&str> {
    match bound {
        Pattern::Var(name) => Pattern::Var(name),
        Pattern::Arr(items) => Pattern::Arr(items.into_iter().map(pattern).collect()),
        Pattern::Obj(entries) => {
            Pattern::Obj(entries.into_iter().map(|(key, inner)| (term(key), pattern(inner))).collect())
        }
    }
}
