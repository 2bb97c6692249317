//! Preparing the functions of a deploy together.

use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::{Boxed, Isolates, script_of};
use crate::host::LogLevel;
use crate::js;
use crate::program::{FunctionSource, PrepareError, Preparing, Program, ProgramKind};

/// A function of many that were prepared.
pub struct PreparedFunction {
    /// The program, if it was to be loaded.
    pub program: Option<Program>,
    /// Log lines of the top-level code.
    pub log: Vec<(LogLevel, String)>,
    /// The time that compiling or evaluating took.
    pub took: Duration,
}

impl Isolates {
    /// Does the same as [`prepare`](Self::prepare) for many functions. JavaScript is evaluated anew: many functions in one child
    /// process, and one such process a core. The first `max_loaded` functions have a program afterwards, the others are
    /// in the cache.
    ///
    /// # Errors
    /// That of the first function that fails, with its index.
    pub fn prepare_all<'a>(
        &'a self,
        functions: &'a [Preparing<'a>],
        max_loaded: usize,
    ) -> Boxed<'a, Result<Vec<PreparedFunction>, (usize, PrepareError)>> {
        Box::pin(self.compile_and_link_all(functions, max_loaded))
    }

    async fn compile_and_link_all(
        &self,
        functions: &[Preparing<'_>],
        max_loaded: usize,
    ) -> Result<Vec<PreparedFunction>, (usize, PrepareError)> {
        let mut scripts = self.evaluate_scripts(functions, max_loaded).await;
        let mut prepared = Vec::with_capacity(functions.len());
        for (index, (script, function)) in scripts.drain(..).zip(functions).enumerate() {
            prepared.push(match script {
                Some(script) => script.map_err(|error| (index, error))?,
                None => {
                    let program = self.compile_and_link(*function).await.map_err(|error| (index, error))?;
                    let (log, took) = (program.prepare_log().to_vec(), program.prepare_time());
                    PreparedFunction { program: (index < max_loaded).then_some(program), log, took }
                }
            });
        }
        Ok(prepared)
    }

    /// The functions of JavaScript, up to one that fails.
    async fn evaluate_scripts(
        &self,
        functions: &[Preparing<'_>],
        max_loaded: usize,
    ) -> Vec<Option<Result<PreparedFunction, PrepareError>>> {
        let mut all: Vec<Option<_>> = functions.iter().map(|_| None).collect();
        let scripts = functions.iter().enumerate().filter_map(|(index, function)| match function.source {
            FunctionSource::JavaScript(graph) => Some((index, script_of(function, graph))),
            FunctionSource::Component(_) => None,
        });
        let scripts: Vec<_> = scripts.collect();
        let Some((first, _)) = scripts.first() else { return all };
        let javascript = match self.javascript().await {
            Ok(javascript) => javascript,
            Err(error) => {
                all[*first] = Some(Err(error));
                return all;
            }
        };
        let _running = self.epoch.running();
        let mut batches: Vec<Boxed<'_, _>> = Vec::new();
        for batch in js::batches(&scripts, self.pool) {
            batches.push(Box::pin(async move {
                let scripts: Vec<_> = batch.iter().map(|(_, script)| *script).collect();
                let loaded = batch.iter().filter(|(index, _)| *index < max_loaded).count();
                (batch, javascript.prepare_scripts(&scripts, loaded).await)
            }));
        }
        let mut batches = stream::iter(batches).buffered(js::parallel_children(self.pool));
        while let Some((batch, prepared)) = batches.next().await {
            for ((index, _), prepared) in batch.iter().zip(prepared) {
                let is_failed = prepared.is_err();
                all[*index] = Some(prepared.map_err(PrepareError::from).map(|prepared| {
                    let js::PreparedScript { program, lines: log, took } = prepared;
                    let kind = |program| ProgramKind::JavaScript(javascript.clone(), program);
                    let isolation = functions[*index].isolation;
                    let program = program.map(|program| self.program(kind(program), isolation, took));
                    PreparedFunction { program, log, took }
                }));
                if is_failed {
                    return all;
                }
            }
        }
        all
    }
}
