//! Compiles jq text to the native form, or to the form that jaq interprets.

use std::sync::OnceLock;

use jaq_core::compile::Undefined as Kind;
use jaq_core::load::parse::Term;

use super::interpreted::{Interpreted, Undefined};
use super::native::Node;
use super::source::{self, Wrong};
use super::{cost, library, lower, tree};

/// The native form, if there is one; the interpreted form, which is compiled now only if there is no native form; the
/// quick bytes (see [`cost`]).
type Forms = (Option<Node>, OnceLock<Option<Interpreted>>, u64);

/// Compiles the parsed tree of `text`. `variables`: the available names, without `$`.
pub(super) fn compile(text: &str, term: Term<&str>, variables: &[&str]) -> Result<Forms, Wrong> {
    refuse(text, &term)?;
    let quick_bytes = cost::quick_bytes(&term);
    if let Some(native) = lower::lower(&term, variables) {
        return Ok((Some(native), OnceLock::new(), quick_bytes));
    }
    match Interpreted::compile(term, variables) {
        Ok(interpreted) => Ok((None, OnceLock::from(Some(interpreted)), quick_bytes)),
        Err(undefined) => Err(match undefined.first() {
            Some(undefined) => Wrong {
                message: unknown(undefined, variables),
                offset: source::offset_of(text, undefined.address).unwrap_or_default(),
            },
            None => Wrong { message: "jaq cannot compile it".into(), offset: 0 },
        }),
    }
}

/// Returns an error if the expression calls a function or reads a variable that is excluded on purpose.
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
            "$__loc__" | "$__prog_args" => "an expression is not a file",
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
