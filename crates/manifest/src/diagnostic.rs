//! Errors in a manifest, in the layout of a compiler's.

use std::fmt;
use std::ops::Range;

/// Further problems are counted, not shown.
const MAX_SHOWN: usize = 20;
/// Further problems are not even counted: each needs a pass over the whole text, which may be one line of a megabyte.
const MAX_PROBLEMS: usize = 100;
/// A longer source line is cut around the position of the problem.
const MAX_FRAME_COLUMNS: usize = 100;

/// An invalid manifest, with its problems in the order of the file.
///
/// `Display` shows each problem with its position, the source line and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", Report(self))]
pub struct ManifestError {
    /// The file's name as the caller gave it.
    pub file: String,
    /// The problems; never empty.
    pub problems: Vec<Problem>,
}

/// One problem of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The problem.
    pub message: String,
    /// The remedy.
    pub help: Option<String>,
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// The source line, ready to be shown: no control characters, cut if it is long.
    frame: String,
    /// Where the mark under the frame starts, in characters, and how long it is.
    mark: (usize, usize),
}

/// Collects problems while a manifest is read.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<(Range<usize>, String, Option<String>)>);

impl Problems {
    pub(super) fn add(&mut self, span: &Range<usize>, message: String, help: Option<String>) {
        if self.0.len() < MAX_PROBLEMS {
            self.0.push((span.clone(), message, help));
        }
    }

    /// The error, or nothing if there are no problems.
    pub(super) fn into_error(mut self, file: &str, text: &str) -> Option<ManifestError> {
        if self.0.is_empty() {
            return None;
        }
        self.0.sort_by_key(|(span, ..)| span.start);
        let problems =
            self.0.into_iter().map(|(span, message, help)| locate(text, span, message, help)).collect();
        Some(ManifestError { file: file.to_owned(), problems })
    }
}

fn locate(text: &str, span: Range<usize>, message: String, help: Option<String>) -> Problem {
    let start = floor_char_boundary(text, span.start);
    let end = floor_char_boundary(text, span.end).max(start);
    let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
    let source = text[line_start..line_end].trim_end_matches('\r');

    let before = text[line_start..start].chars().count();
    let marked = text[start..end.min(line_end)].chars().count().max(1);
    let cut =
        if before + marked > MAX_FRAME_COLUMNS { before.saturating_sub(MAX_FRAME_COLUMNS / 2) } else { 0 };
    let mut frame: String = if cut > 0 { "…".into() } else { String::new() };
    let omitted = cut.saturating_sub(frame.chars().count());
    frame.extend(source.chars().skip(cut).take(MAX_FRAME_COLUMNS).map(printable));
    if source.chars().count() > cut + MAX_FRAME_COLUMNS {
        frame.push('…');
    }
    let mark_start = if cut > 0 { before - omitted } else { before };
    let mark_length = marked.min(MAX_FRAME_COLUMNS.saturating_sub(before - cut)).max(1);
    Problem {
        message,
        help,
        line: text[..line_start].matches('\n').count() + 1,
        column: before + 1,
        frame,
        mark: (mark_start, mark_length),
    }
}

fn printable(character: char) -> char {
    match character {
        '\t' => ' ',
        character if character.is_control() => '\u{fffd}',
        character => character,
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

struct Report<'a>(&'a ManifestError);

impl fmt::Display for Report<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ManifestError { file, problems } = self.0;
        for (index, problem) in problems.iter().take(MAX_SHOWN).enumerate() {
            if index > 0 {
                out.write_str("\n\n")?;
            }
            let Problem { message, help, line, column, frame, mark: (start, length) } = problem;
            let number = line.to_string();
            let gutter = " ".repeat(number.len());
            writeln!(out, "error: {message}")?;
            writeln!(out, "{gutter}--> {file}:{line}:{column}")?;
            writeln!(out, "{gutter} |")?;
            writeln!(out, "{number} | {frame}")?;
            write!(out, "{gutter} | {}{}", " ".repeat(*start), "^".repeat(*length))?;
            if let Some(help) = help {
                write!(out, "\n{gutter} = help: {help}")?;
            }
        }
        match problems.len() {
            hidden if hidden > MAX_SHOWN => write!(out, "\n\nand {} more errors", hidden - MAX_SHOWN),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_around_the_problem() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let mut problems = Problems::default();
        problems.add(&(500..501), "here".into(), None);
        let error = problems.into_error("f", &text).unwrap();
        let shown = error.to_string();
        let mut lines = shown.lines().skip(3);
        let (frame, mark) = (lines.next().unwrap(), lines.next().unwrap());
        assert_eq!(error.problems[0].column, 501);
        assert_eq!(frame.chars().position(|c| c == 'X'), mark.chars().position(|c| c == '^'));
        assert!(frame.chars().count() < 120, "{frame}");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut problems = Problems::default();
        problems.add(&(0..1), "here".into(), None);
        let shown = problems.into_error("f", "\u{1b}[31mred\r\n").unwrap().to_string();
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        assert!(!shown.contains('\r'), "{shown:?}");
    }

    #[test]
    fn a_position_past_the_end_or_inside_a_character_does_not_panic() {
        let mut problems = Problems::default();
        problems.add(&(99..200), "past".into(), None);
        problems.add(&(1..2), "inside".into(), None);
        assert_eq!(problems.into_error("f", "é").unwrap().problems.len(), 2);
    }
}
