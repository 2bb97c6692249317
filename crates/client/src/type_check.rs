//! Type errors of an app, found by the TypeScript compiler that the app has installed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::Command;

use crate::app::App;
use crate::exit::{Exit, Failure};
use crate::output;

/// The compiler, below the app folder.
const COMPILER: &str = "node_modules/.bin/tsc";
/// Files that name the sources to check; the first that exists counts.
const PROJECTS: [&str; 2] = ["tsconfig.json", "jsconfig.json"];
/// Time limit of the compiler.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Maximum of its output, in bytes. The rest is dropped.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// Maximum of type errors that are shown.
const MAX_SHOWN: usize = 20;

/// Consequence of type errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeErrors {
    /// They are shown.
    Warn,
    /// They fail the command.
    Refuse,
}

impl TypeErrors {
    /// The consequence that `--strict` selects.
    pub fn of(strict: bool) -> Self {
        if strict { Self::Refuse } else { Self::Warn }
    }
}

/// Shows the type errors of an app, or fails with them. Does nothing if the app has no compiler installed, or names no sources.
///
/// # Errors
/// With [`TypeErrors::Refuse`]: a type error, or the compiler does not run.
pub async fn check(app: &App, consequence: TypeErrors) -> anyhow::Result<()> {
    if app.is_file {
        return Ok(());
    }
    let problems = problems(&app.root).await;
    if problems.is_empty() {
        return Ok(());
    }
    if consequence == TypeErrors::Refuse {
        return Err(Failure::new(Exit::Invalid, problems.join("\n")));
    }
    show(&problems);
    Ok(())
}

/// Shows problems as warnings.
pub fn show(problems: &[String]) {
    for problem in problems {
        eprintln!("warning: {}", output::indented(problem));
    }
}

/// The type errors of the app in a folder, each with its file, line and column. Dropping the future ends the compiler.
pub async fn problems(root: &Path) -> Vec<String> {
    let compiler = root.join(COMPILER);
    let project = PROJECTS.iter().find(|name| root.join(name).is_file());
    let (true, Some(project)) = (compiler.exists(), project) else { return Vec::new() };
    match tokio::time::timeout(TIME_LIMIT, run(root, compiler, project)).await {
        Ok(Ok(problems)) => problems,
        Ok(Err(error)) => vec![format!("the types are not checked: {COMPILER} cannot be run: {error}")],
        Err(_) => vec![format!("the types are not checked: {COMPILER} took more than {TIME_LIMIT:?}")],
    }
}

async fn run(root: &Path, compiler: PathBuf, project: &str) -> std::io::Result<Vec<String>> {
    // A relative program is looked up from the child's folder on some systems, and from ours on others.
    let mut child = Command::new(compiler.canonicalize()?)
        .args(["--noEmit", "--pretty", "false", "--project", project])
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut text = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = stdout.take(MAX_OUTPUT_BYTES);
        stdout.read_to_end(&mut text).await?;
        tokio::io::copy(&mut stdout.into_inner(), &mut tokio::io::sink()).await?;
    }
    let status = child.wait().await?;
    let problems = parse(&String::from_utf8_lossy(&text));
    if !status.success() && problems.is_empty() {
        return Ok(vec![format!("the types are not checked: {COMPILER} ended with {status}")]);
    }
    Ok(problems)
}

/// The compiler's errors with places as `FILE:LINE:COLUMN`; lines that are indented belong to the one before.
fn parse(text: &str) -> Vec<String> {
    let mut problems: Vec<String> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match problems.last_mut() {
            Some(last) if line.starts_with(' ') => {
                last.push('\n');
                last.push_str(line);
            }
            _ => problems.push(placed(line).unwrap_or_else(|| line.to_owned())),
        }
    }
    if problems.len() > MAX_SHOWN {
        let more = problems.len() - MAX_SHOWN;
        problems.truncate(MAX_SHOWN);
        problems.push(format!("and {more} more type errors; `{COMPILER}` shows all of them"));
    }
    problems
}

/// `file.ts(1,2): error TS1: text` as `file.ts:1:2: text (TS1)`.
fn placed(line: &str) -> Option<String> {
    let (place, rest) = line.split_once("): error ")?;
    let (file, position) = place.rsplit_once('(')?;
    let (row, column) = position.split_once(',')?;
    let (code, message) = rest.split_once(": ")?;
    Some(format!("{file}:{row}:{column}: {message} ({code})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_their_places() {
        let text = "functions/a (b).ts(12,3): error TS2322: Type 'string' is not assignable.\n  Detail: x\n\
                    error TS18003: No inputs were found.\n";
        assert_eq!(
            parse(text),
            [
                "functions/a (b).ts:12:3: Type 'string' is not assignable. (TS2322)\n  Detail: x",
                "error TS18003: No inputs were found."
            ]
        );
    }

    #[test]
    fn many_errors_are_counted() {
        let text = (0..30).map(|row| format!("a.ts({row},1): error TS1: x\n")).collect::<String>();
        let problems = parse(&text);
        assert_eq!(problems.len(), MAX_SHOWN + 1);
        assert!(problems[MAX_SHOWN].starts_with("and 10 more type errors"), "{}", problems[MAX_SHOWN]);
    }
}
