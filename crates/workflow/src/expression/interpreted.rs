//! Expressions that jaq evaluates, with step counting and limits on values.

use std::collections::BTreeSet;

use jaq_core::load::parse::{Def, Term};
use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Exn, Filter, Vars};

use super::error::EvalError;
use super::library::{self, JaqData};
use super::meter;
use super::value::V;
use super::variables::Variables;
use super::{instrument, native, tree};

/// The name of the function that contains the whole text.
const MAIN: &str = "main";

/// jq text that is compiled for jaq, with step counting.
pub(super) struct Interpreted {
    filter: Filter<JaqData>,
    /// The variables it uses, without `$`.
    variables: Vec<String>,
}

/// An undefined name in jq text.
pub(super) struct Undefined {
    pub(super) name: String,
    /// Its address in memory, within the text.
    pub(super) address: usize,
    pub(super) kind: jaq_core::compile::Undefined,
}

impl Interpreted {
    /// Compiles `term`. `variables`: the available names, without `$`.
    pub(super) fn compile(term: Term<&str>, variables: &[&str]) -> Result<Self, Vec<Undefined>> {
        let mut called = tree::calls(&term);
        let mut used = BTreeSet::new();
        tree::visit(&term, &mut |inner| {
            if let Term::Var(name) = inner {
                used.insert(name.strip_prefix('$').unwrap_or(name));
            }
        });
        used.retain(|name| variables.contains(name));

        let used: Vec<String> = used.into_iter().map(str::to_owned).collect();
        let globals: Vec<String> = used.iter().map(|name| format!("${name}")).collect();
        let term = instrument::term(term);
        called.append(&mut tree::calls(&term));
        let main = Def { name: MAIN, args: Vec::new(), body: term };
        let arena = Arena::default();
        let modules = Loader::new(library::definitions(&called).into_iter().chain([main]))
            .load(&arena, File { code: MAIN, path: () })
            .map_err(|_| Vec::new())?;
        let filter = Compiler::default()
            .with_funs(library::natives())
            .with_global_vars(globals.iter().map(String::as_str))
            .compile(modules)
            .map_err(|errors| {
                let undefined = errors.into_iter().flat_map(|(_, errors)| errors);
                undefined
                    .map(|(name, kind)| Undefined {
                        name: name.to_owned(),
                        address: name.as_ptr().addr(),
                        kind,
                    })
                    .collect::<Vec<_>>()
            })?;
        Ok(Self { filter, variables: used })
    }

    /// The single output; `None` if there is no output. The caller has started the meter.
    pub(super) fn eval(
        &self,
        source: &str,
        input: &V,
        variables: &dyn Variables,
    ) -> Result<Option<V>, EvalError> {
        let values = self.variables.iter().map(|name| variables.value(name).unwrap_or_default()).collect();
        let result = self.run(input.clone(), values);
        match (meter::stopped(), result) {
            (Some(stop), _) => Err(stop.into()),
            (None, Ok(output)) => Ok(output),
            (None, Err(Failure::Several)) => Err(EvalError::several(source)),
            (None, Err(Failure::Error(message))) => Err(EvalError::failed(source, message)),
        }
    }

    fn run(&self, input: V, values: Vec<V>) -> Result<Option<V>, Failure> {
        let context = Ctx::<JaqData>::new(&self.filter.lut, Vars::new(values));
        let mut outputs = self.filter.id.run((context, input));
        let first = match outputs.next() {
            None => return Ok(None),
            Some(first) => first.map_err(failure)?,
        };
        match outputs.next() {
            None => Ok(Some(first)),
            Some(Err(error)) => Err(failure(error)),
            Some(Ok(_)) => Err(Failure::Several),
        }
    }
}

enum Failure {
    Several,
    Error(String),
}

fn failure(exception: Exn<'_, V>) -> Failure {
    match exception.get_err() {
        Ok(error) => Failure::Error(native::message(error)),
        Err(_) => Failure::Error("a `break` has no label".into()),
    }
}
