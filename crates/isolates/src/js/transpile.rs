//! TypeScript to JavaScript.

use std::fmt;
use std::path::Path;

use oxc::allocator::Allocator;
use oxc::ast::ast::Program;
use oxc::codegen::{Codegen, CodegenOptions};
use oxc::diagnostics::OxcDiagnostic;
use oxc::parser::{ParseOptions, Parser};
use oxc::semantic::{Scoping, SemanticBuilder};
use oxc::span::SourceType;
use oxc::transformer::{TransformOptions, Transformer};
use serde::{Deserialize, Serialize};

use super::graph::without_suffix;
use super::stack::SourceMap;

/// The maximum of a module's text.
pub(super) const MAX_SOURCE_BYTES: usize = 8 << 20;

/// A module as the engine evaluates it.
#[derive(Debug, Clone)]
pub(super) struct Transpiled {
    /// JavaScript.
    pub code: String,
    /// Maps positions in `code` to positions in the user's text; `None` if `code` is the user's own text.
    pub map: Option<SourceMap>,
}

/// A module's text is not JavaScript or TypeScript.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyntaxError {
    /// The module's path.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// The error.
    pub message: String,
    /// The lines before the position, with a mark below it.
    pub frame: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}\n{}", self.file, self.line, self.column, self.message, self.frame)
    }
}

impl std::error::Error for SyntaxError {}

impl SyntaxError {
    pub(super) fn at(file: &str, source: &str, offset: usize, message: impl Into<String>) -> Self {
        let (line, column) = position(source, offset);
        Self {
            // A file of a package may have any name, and a message has lines of its own.
            file: file.replace(|c: char| c.is_control(), "\u{fffd}"),
            line,
            column,
            message: message.into(),
            frame: frame(source, line, column),
        }
    }
}

/// Checks that `source` is a module, by the extension of `path`, for the fuzzer. Recursive, without a bound on its stack.
///
/// # Errors
/// The syntax error.
pub fn check(path: &str, source: &str) -> Result<(), SyntaxError> {
    transpile(path, source).map(drop)
}

/// Makes JavaScript of the module `path`: TypeScript loses its types, JSON becomes the default export, and
/// JavaScript stays as it is. Recursive, without a bound: untrusted text is transpiled in a
/// [child process](crate::compile).
pub(super) fn transpile(path: &str, source: &str) -> Result<Transpiled, SyntaxError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(SyntaxError::at(path, "", 0, too_large(source.len() as u64)));
    }
    let extension = Path::new(without_suffix(path)).extension().and_then(|extension| extension.to_str());
    match extension {
        Some("json") => json_module(path, source),
        Some("ts" | "mts") => script_module(path, source, SourceType::ts()),
        Some("js" | "mjs" | "cjs") => script_module(path, source, SourceType::mjs()),
        _ => {
            let message = "not a module: the file must end in .js, .mjs, .cjs, .ts, .mts or .json";
            Err(SyntaxError::at(path, source, 0, message))
        }
    }
}

/// The error text for a module of `bytes`.
pub(super) fn too_large(bytes: u64) -> String {
    format!("the module has {bytes} bytes; the limit is {MAX_SOURCE_BYTES}, so split or minify it")
}

/// Parses and checks a script, and takes its types out.
pub(super) fn checked<'a>(
    allocator: &'a Allocator,
    path: &str,
    source: &'a str,
    kind: SourceType,
    options: ParseOptions,
) -> Result<(Program<'a>, Scoping), SyntaxError> {
    let parsed = Parser::new(allocator, source, kind).with_options(options).parse();
    if let Some(error) = parsed.diagnostics.errors().next() {
        return Err(from_diagnostic(path, source, error));
    }
    let mut program = parsed.program;
    let semantic = SemanticBuilder::new()
        .with_check_syntax_error(true)
        .with_enum_eval(kind.is_typescript())
        .build(&program);
    if let Some(error) = semantic.diagnostics.errors().next() {
        return Err(from_diagnostic(path, source, error));
    }
    let scoping = semantic.semantic.into_scoping();
    if !kind.is_typescript() {
        return Ok((program, scoping));
    }
    let options = TransformOptions::default();
    let transformed =
        Transformer::new(allocator, Path::new(path), &options).build_with_scoping(scoping, &mut program);
    if let Some(error) = transformed.diagnostics.errors().next() {
        return Err(from_diagnostic(path, source, error));
    }
    Ok((program, transformed.scoping))
}

fn script_module(path: &str, source: &str, kind: SourceType) -> Result<Transpiled, SyntaxError> {
    let allocator = Allocator::default();
    let (program, _) = checked(&allocator, path, source, kind, ParseOptions::default())?;
    if !kind.is_typescript() {
        return Ok(Transpiled { code: source.to_owned(), map: None });
    }
    let options = CodegenOptions { source_map_path: Some(path.into()), ..CodegenOptions::default() };
    let printed = Codegen::new().with_options(options).build(&program);
    let map = printed.map.map(|map| SourceMap::new(&map));
    Ok(Transpiled { code: printed.code, map })
}

fn json_module(path: &str, source: &str) -> Result<Transpiled, SyntaxError> {
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(source) {
        let (line, column) = (error.line().max(1) as u32, error.column().max(1) as u32);
        return Err(SyntaxError {
            file: path.to_owned(),
            line,
            column,
            message: error.to_string(),
            frame: frame(source, line, column),
        });
    }
    // Parsed as JSON and not as an expression, for the sake of "__proto__".
    let text = serde_json::to_string(source).unwrap_or_default();
    Ok(Transpiled { code: format!("export default JSON.parse({text});\n"), map: None })
}

pub(super) fn from_diagnostic(path: &str, source: &str, error: &OxcDiagnostic) -> SyntaxError {
    let offset = error.labels.first().map_or(0, |label| label.offset() as usize);
    let help = error.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
    SyntaxError::at(path, source, offset, format!("{}{help}", error.message))
}

/// Line and column, from 1, of an offset in bytes.
fn position(source: &str, offset: usize) -> (u32, u32) {
    let mut offset = offset.min(source.len());
    while !source.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &source[..offset];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line = before.matches('\n').count() + 1;
    let column = before[line_start..].chars().count() + 1;
    (line as u32, column as u32)
}

/// Two lines before the position, its line, and a mark.
fn frame(source: &str, line: u32, column: u32) -> String {
    const MAX_CHARS: usize = 160;
    let first = line.saturating_sub(2).max(1);
    let width = line.to_string().len();
    let mut frame = String::new();
    for (number, text) in (1_u32..).zip(source.lines()).skip(first as usize - 1) {
        if number > line {
            break;
        }
        let text: String = text.chars().take(MAX_CHARS).map(|c| if c == '\t' { ' ' } else { c }).collect();
        frame.push_str(&format!("{number:>width$} | {text}\n"));
    }
    if column as usize <= MAX_CHARS {
        frame.push_str(&format!("{:>width$} | {}^", "", " ".repeat(column as usize - 1)));
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_vanish() {
        let source = "import type { A } from './a';\nimport { B } from './b';\nimport { c } from './c';\n\
                      export { d } from './d';\nenum E { X = 4 }\nexport const x: B = c(E.X as number);\n";
        let module = transpile("f.ts", source).unwrap();
        assert!(!module.code.contains("number"), "{}", module.code);
        assert!(module.map.is_some());
    }

    #[test]
    fn javascript_stays_as_it_is() {
        let source = "import x from 'x';\nexport default () => import('./y.js');\n";
        let module = transpile("f.js", source).unwrap();
        assert_eq!(module.code, source);
    }

    #[test]
    fn a_syntax_error_shows_its_place() {
        let error = transpile("functions/f.ts", "const a = 1;\nconst b = ;\n").unwrap_err();
        assert_eq!((error.line, error.column), (2, 11));
        assert_eq!(error.frame, "1 | const a = 1;\n2 | const b = ;\n  |           ^");
        assert!(error.to_string().starts_with("functions/f.ts:2:11: "), "{error}");
    }

    #[test]
    fn errors_that_only_semantics_can_see_are_seen() {
        let error = transpile("f.js", "const a = 1;\nconst a = 2;\n").unwrap_err();
        assert_eq!(error.line, 1);
        assert!(error.message.contains("already been declared"), "{error}");
    }

    #[test]
    fn text_that_is_too_large_is_refused() {
        let error = transpile("f.js", &" ".repeat(MAX_SOURCE_BYTES + 1)).unwrap_err();
        assert!(error.message.contains("8388609 bytes"), "{error}");
    }

    #[test]
    fn json_is_checked() {
        assert!(transpile("d.json", "{\"a\": 1}").unwrap().code.contains("JSON.parse"));
        assert_eq!(transpile("d.json", "{\n \"a\": ,\n}").unwrap_err().line, 2);
    }
}
