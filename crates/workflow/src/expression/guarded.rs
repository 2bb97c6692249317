//! Expressions run by jaq, with steps counted and values limited.

use std::collections::BTreeSet;

use jaq_core::load::parse::{Def, Term};
use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Exn, Filter, Vars};
use serde_json::Value;

use super::library::{self, Guarded};
use super::meter::{self, Stop};
use super::number::Limited;
use super::value::V;
use super::{EvalError, Variables, guard, tree};

/// What a message shows of what went wrong, in bytes.
const MESSAGE_BYTES: usize = 100;
/// The function that the whole text becomes.
const MAIN: &str = "main";

/// jq text made ready for jaq.
pub(super) struct Guard {
    filter: Filter<Guarded>,
    /// The variables it uses, without `$`.
    variables: Vec<String>,
}

/// A name that jq text uses and nobody defines.
pub(super) struct Undefined {
    pub(super) name: String,
    /// Where it is in memory: within the text.
    pub(super) address: usize,
    pub(super) kind: jaq_core::compile::Undefined,
}

impl Guard {
    /// `variables`: the names that may be used, without `$`.
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
        let term = guard::term(term);
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

    /// The one output. None: there is none.
    pub(super) fn eval(
        &self,
        source: &str,
        input: &Value,
        variables: &dyn Variables,
        now_unix_ms: u64,
    ) -> Result<Option<Value>, EvalError> {
        // Values first: looking one up is somebody else's code, which may evaluate too.
        let mut values = Vec::with_capacity(self.variables.len());
        for name in &self.variables {
            values.push(variables.value(name));
        }
        meter::start(now_unix_ms);
        let result = self.run(input, &values).map(|output| output.map(|value| value.to_json()));
        match (meter::stopped(), result) {
            (Some(stop), _) => Err(of_stop(stop)),
            (None, Ok(output)) => Ok(output),
            (None, Err(Failure::Several)) => Err(EvalError::Several { expression: super::excerpt(source) }),
            (None, Err(Failure::Error(message))) => {
                Err(EvalError::Failed { expression: super::excerpt(source), message })
            }
        }
    }

    fn run(
        &self,
        input: &Value,
        values: &[Option<std::borrow::Cow<'_, Value>>],
    ) -> Result<Option<V>, Failure> {
        let stopped = |_: Stop| Failure::Several;
        let input = V::from_json(input).map_err(stopped)?;
        let mut vars = Vec::with_capacity(values.len());
        for value in values {
            vars.push(match value {
                Some(value) => V::from_json(value).map_err(stopped)?,
                None => V::Null,
            });
        }
        let context = Ctx::<Guarded>::new(&self.filter.lut, Vars::new(vars));
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
        Ok(error) => Failure::Error(match error.into_val() {
            V::Str(text) => Limited::of(MESSAGE_BYTES, &text),
            other => Limited::of(MESSAGE_BYTES, &other),
        }),
        Err(_) => Failure::Error("a `break` has no label".into()),
    }
}

/// The error that says which limit it was.
pub(super) fn of_stop(stop: Stop) -> EvalError {
    match stop {
        Stop::Steps => EvalError::Budget { limit: "2,000,000 steps" },
        Stop::Wall => EvalError::Budget { limit: "50 ms" },
        Stop::Stack => {
            EvalError::Budget { limit: "1 MiB of stack: its functions call themselves too deeply" }
        }
        Stop::Chain => {
            EvalError::Budget { limit: "3,000 calls of functions that pass functions to themselves" }
        }
        Stop::Allocated => EvalError::Budget { limit: "128 MiB of memory" },
        Stop::Copied => EvalError::TooLarge { what: "what it copies", limit: "32 MiB" },
        Stop::StringBytes => EvalError::TooLarge { what: "a string", limit: "16 MiB" },
        Stop::Items => EvalError::TooLarge { what: "an array or an object", limit: "1,000,000 items" },
        Stop::ValueBytes => EvalError::TooLarge { what: "a value", limit: "64 MiB" },
        Stop::Depth => EvalError::TooLarge { what: "the nesting of a value", limit: "256 levels" },
    }
}
