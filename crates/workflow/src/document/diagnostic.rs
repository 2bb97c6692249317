//! Problems of a definition. Each has a place and may have a suggestion how to fix it.

use std::fmt;

use super::Place;

/// Maximum number of problems that a message shows. It only counts further problems.
const SHOWN: usize = 20;

/// The problems of a definition, in the order of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", Report(self))]
pub struct DefinitionError {
    /// The name of the file, from the caller.
    pub file: String,
    /// The problems; never empty.
    pub problems: Vec<Problem>,
}

/// One problem of a definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The place in the text.
    pub place: Place,
    /// Description of the problem.
    pub message: String,
    /// Suggestion how to fix the problem.
    pub help: Option<String>,
    /// The line of the text, cut to 120 characters.
    source: String,
}

/// Collects the problems of a definition while it is read.
#[derive(Debug, Default)]
pub struct Problems {
    found: Vec<(Place, String, Option<String>)>,
}

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, place: Place, message: impl Into<String>) {
        self.found.push((place, message.into(), None));
    }

    /// Adds a problem with a suggestion how to fix it.
    pub fn add_with_help(&mut self, place: Place, message: impl Into<String>, help: impl Into<String>) {
        self.found.push((place, message.into(), Some(help.into())));
    }

    /// Number of problems.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// True if there are no problems.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Converts the problems to an error; `None` if there are none. Duplicates are removed. Warnings are converted in the same
    /// way.
    pub fn into_error(mut self, file: &str, text: &str) -> Option<DefinitionError> {
        if self.found.is_empty() {
            return None;
        }
        self.found.sort_by_key(|(place, ..)| *place);
        self.found.dedup();
        let lines: Vec<&str> = text.lines().collect();
        let problems = self.found.into_iter().map(|(place, message, help)| {
            let line = lines.get(place.line.saturating_sub(1)).copied().unwrap_or_default();
            let source = line.chars().take(120).map(|c| if c.is_control() { ' ' } else { c }).collect();
            Problem { place, message, help, source }
        });
        Some(DefinitionError { file: file.to_owned(), problems: problems.collect() })
    }
}

struct Report<'a>(&'a DefinitionError);

impl fmt::Display for Report<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DefinitionError { file, problems } = self.0;
        for (index, problem) in problems.iter().take(SHOWN).enumerate() {
            let Place { line, column } = problem.place;
            if index > 0 {
                writeln!(out)?;
            }
            write!(out, "{file}:{line}:{column}: {}", problem.message)?;
            if !problem.source.trim().is_empty() {
                write!(out, "\n  | {}", problem.source)?;
                write!(out, "\n  | {}^", " ".repeat(column.saturating_sub(1).min(120)))?;
            }
            if let Some(help) = &problem.help {
                write!(out, "\n  = {help}")?;
            }
        }
        match problems.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(out, "\nand {more} more"),
        }
    }
}
