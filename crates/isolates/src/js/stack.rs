//! Stacks of JavaScript errors in terms of the user's files.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Frames of the engine's own prelude have this in front.
const PRELUDE_PREFIX: &str = "edgefaas:";

/// Maps positions in evaluated code to positions in the user's text; lines and columns from 0.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SourceMap {
    /// Sorted by generated line and column.
    points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Point {
    generated: (u32, u32),
    original: (u32, u32),
}

impl SourceMap {
    /// Keeps the positions of `map`.
    pub fn new(map: &oxc_sourcemap::SourceMap<'_>) -> Self {
        let points = map.get_tokens().map(|token| Point {
            generated: (token.get_dst_line(), token.get_dst_col()),
            original: (token.get_src_line(), token.get_src_col()),
        });
        let mut points: Vec<Point> = points.collect();
        points.sort_by_key(|point| point.generated);
        Self { points }
    }

    fn original(&self, line: u32, column: u32) -> Option<(u32, u32)> {
        let next = self.points.partition_point(|point| point.generated <= (line, column));
        let point = self.points.get(next.checked_sub(1)?)?;
        (point.generated.0 == line).then_some(point.original)
    }
}

/// The user's files by their paths.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Files(HashMap<String, Positions>);

/// Positions in a file's evaluated code.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Positions {
    /// None if the code is the user's own text.
    map: Option<SourceMap>,
    /// Lines of the code before the user's text.
    lines_before: u32,
}

/// A stack as it is shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The first frame in the user's files as FILE:LINE:COL.
    pub location: Option<String>,
    /// All frames but those of the prelude.
    pub stack: Option<String>,
}

impl Files {
    /// Adds a file, with a map if it was transpiled and the lines of its code before the user's text.
    pub fn insert(&mut self, path: String, map: Option<SourceMap>, lines_before: u32) {
        self.0.insert(path, Positions { map, lines_before });
    }

    /// Turns QuickJS's stack into the user's.
    pub fn show(&self, stack: &str) -> Shown {
        let mut shown = Shown::default();
        let mut lines = Vec::new();
        for line in stack.lines().filter(|line| !line.trim().is_empty()) {
            let Some(frame) = Frame::parse(line) else {
                lines.push(line.to_owned());
                continue;
            };
            if frame.file.starts_with(PRELUDE_PREFIX) {
                continue;
            }
            let position = self.position(&frame);
            lines.push(frame.with(&position));
            if shown.location.is_none() && self.0.contains_key(frame.file) {
                shown.location = Some(position);
            }
        }
        shown.stack = (!lines.is_empty()).then(|| lines.join("\n"));
        shown
    }

    /// Turns the stacks inside of a text, such as a log line.
    pub fn show_text<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
        if !text.contains("    at ") {
            return text.into();
        }
        let lines = text.lines().filter_map(|line| match Frame::parse(line) {
            Some(frame) if frame.file.starts_with(PRELUDE_PREFIX) => None,
            Some(frame) => Some(frame.with(&self.position(&frame))),
            None => Some(line.to_owned()),
        });
        lines.collect::<Vec<_>>().join("\n").into()
    }

    fn position(&self, frame: &Frame<'_>) -> String {
        let positions = self.0.get(frame.file);
        let map = positions.and_then(|positions| positions.map.as_ref());
        let original =
            map.and_then(|map| map.original(frame.line.saturating_sub(1), frame.column.saturating_sub(1)));
        let lines_before = positions.map_or(0, |positions| positions.lines_before);
        let (line, column) = original.map_or_else(
            || (frame.line.saturating_sub(lines_before).max(1), frame.column),
            |(line, column)| (line + 1, column + 1),
        );
        format!("{}:{line}:{column}", frame.file)
    }
}

/// `    at NAME (FILE:LINE:COL)` or `    at FILE:LINE:COL`; in a log it may be indented, and brackets may follow.
struct Frame<'a> {
    before: &'a str,
    file: &'a str,
    line: u32,
    column: u32,
    after: &'a str,
}

impl<'a> Frame<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix("    ")?.trim_start_matches(' ').strip_prefix("at ")?;
        let begin = text.len() - rest.len();
        let frame = rest.trim_end_matches([' ', '{', '}', ']', ',']);
        let (start, position) = match (frame.find(" ("), frame.strip_suffix(')')) {
            (Some(open), Some(inner)) => (open + 2, &inner[open + 2..]),
            _ => (0, frame),
        };
        let before = &text[..begin + start];
        let after = &rest[start + position.len()..];
        let (rest, column) = position.rsplit_once(':')?;
        let (file, line) = rest.rsplit_once(':')?;
        Some(Self { before, file, line: line.parse().ok()?, column: column.parse().ok()?, after })
    }

    fn with(&self, position: &str) -> String {
        format!("{}{position}{}", self.before, self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_lead_to_the_users_text() {
        let source =
            "interface A {\n  x: number;\n}\nexport function f(a: A): never {\n  throw new Error();\n}\n";
        let module = crate::js::transpile::transpile("f.ts", source).unwrap();
        let line = module.code.lines().position(|line| line.contains("throw")).unwrap() + 1;
        let mut files = Files::default();
        files.insert("f.ts".into(), module.map, 0);
        files.insert("g.js".into(), None, 0);
        let stack = format!(
            "    at call (edgefaas:dispatch:3:4)\n    at map (native)\n    at f (f.ts:{line}:8)\n    at g.js:7:9\n"
        );
        let shown = files.show(&stack);
        assert_eq!(shown.location.as_deref(), Some("f.ts:5:9"));
        assert_eq!(shown.stack.unwrap(), "    at map (native)\n    at f (f.ts:5:9)\n    at g.js:7:9");
        let text = format!("Error: x\n{stack}");
        assert!(files.show_text(&text).contains("(f.ts:5:9)"));
        let inner = format!("[\n  Error: x\n      at f (f.ts:{line}:8) {{\n    code: 1\n  }}\n]");
        assert_eq!(files.show_text(&inner), "[\n  Error: x\n      at f (f.ts:5:9) {\n    code: 1\n  }\n]");
    }
}
