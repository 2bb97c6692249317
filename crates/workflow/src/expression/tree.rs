//! Properties of parsed jq text: its calls and its depth.

use std::collections::BTreeSet;

use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Pattern, Term};
use jaq_core::path::{Opt, Part, Path};

/// The names of all functions that `term` calls.
pub(super) fn calls(term: &Term<&str>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    visit(term, &mut |inner| {
        // `@json "…"` calls `@json`.
        if let Term::Call(name, _) | Term::Str(Some(name), _) = inner {
            names.insert((*name).to_owned());
        }
    });
    names
}

/// The constant keys that are read from a variable, `$name.key` or `$name["key"]`. An access that may fail, `$name.key?`,
/// does not count.
pub(super) fn keys_of(term: &Term<&str>, variable: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    visit(term, &mut |inner| {
        if let Term::Path(head, Path(parts)) = inner
            && matches!(**head, Term::Var(name) if name == variable)
            && let Some((Part::Index(Term::Str(None, text)), Opt::Essential)) = parts.first()
            && let [StrPart::Str(key)] = text.as_slice()
        {
            keys.insert((*key).to_owned());
        }
    });
    keys
}

/// Calls `look` for `term` and all terms in it.
pub(super) fn visit<'t, 's>(term: &'t Term<&'s str>, look: &mut impl FnMut(&'t Term<&'s str>)) {
    let mut left = vec![term];
    while let Some(next) = left.pop() {
        look(next);
        children(next, &mut left);
    }
}

/// The depth of the tree. `a, b, c` counts as one level, because it is flattened.
pub(super) fn depth(term: &Term<&str>) -> usize {
    let mut deepest = 0;
    let mut left = vec![(term, 1)];
    let mut inner = Vec::new();
    while let Some((next, depth)) = left.pop() {
        deepest = deepest.max(depth);
        children(next, &mut inner);
        let is_list = matches!(next, Term::BinOp(_, BinaryOp::Comma, _));
        for child in inner.drain(..) {
            let same = is_list && matches!(child, Term::BinOp(_, BinaryOp::Comma, _));
            left.push((child, if same { depth } else { depth + 1 }));
        }
    }
    deepest
}

fn children<'t, 's>(term: &'t Term<&'s str>, into: &mut Vec<&'t Term<&'s str>>) {
    match term {
        Term::Id | Term::Recurse | Term::Num(_) | Term::Break(_) | Term::Var(_) | Term::Arr(None) => {}
        Term::Str(_, parts) => into.extend(parts.iter().filter_map(|part| match part {
            StrPart::Term(inner) => Some(inner),
            _ => None,
        })),
        Term::Arr(Some(inner)) | Term::Neg(inner) | Term::Label(_, inner) => into.push(inner),
        Term::Obj(entries) => {
            for (key, value) in entries {
                into.push(key);
                into.extend(value);
            }
        }
        Term::BinOp(left, operator, right) => {
            into.push(left);
            if let BinaryOp::Pipe(Some(bound)) = operator {
                pattern(bound, into);
            }
            into.push(right);
        }
        Term::Fold(_, items, bound, args) => {
            into.push(items);
            pattern(bound, into);
            into.extend(args);
        }
        Term::TryCatch(inner, catch) => {
            into.push(inner);
            into.extend(catch.as_deref());
        }
        Term::IfThenElse(branches, otherwise) => {
            for (when, then) in branches {
                into.push(when);
                into.push(then);
            }
            into.extend(otherwise.as_deref());
        }
        Term::Def(defs, inner) => {
            into.extend(defs.iter().map(|def| &def.body));
            into.push(inner);
        }
        Term::Call(_, args) => into.extend(args),
        Term::Path(head, Path(parts)) => {
            into.push(head);
            for (part, _) in parts {
                match part {
                    Part::Index(index) => into.push(index),
                    Part::Range(from, upto) => into.extend(from.iter().chain(upto)),
                }
            }
        }
    }
}

fn pattern<'t, 's>(bound: &'t Pattern<&'s str>, into: &mut Vec<&'t Term<&'s str>>) {
    let mut left = vec![bound];
    while let Some(next) = left.pop() {
        match next {
            Pattern::Var(_) => {}
            Pattern::Arr(items) => left.extend(items),
            Pattern::Obj(entries) => {
                for (key, inner) in entries {
                    into.push(key);
                    left.push(inner);
                }
            }
        }
    }
}
