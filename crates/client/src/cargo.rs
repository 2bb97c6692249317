//! Builds a Rust function with the user's own cargo.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use edgefaas_platform::regular_file;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Command;

use crate::exit::{Exit, Failure};
use crate::progress::Step;

const TARGET: &str = "wasm32-wasip2";

/// Builds the crate in `folder` and gives the path of its component.
///
/// Dropping the future ends cargo. A failed build's error has cargo's own output.
pub async fn build(folder: &Path, step: &Step) -> anyhow::Result<PathBuf> {
    let manifest = folder.join("Cargo.toml");
    // Cargo's messages have absolute paths with links resolved.
    let found = manifest.canonicalize();
    // Cargo would wait for the writer of a pipe.
    let found = found.and_then(|found| regular_file::open(&found).map(|_| found));
    let manifest = found.map_err(|error| {
        let message = format!(
            "{}: {error}; `main` names a .js, .mjs or .ts file, a .wasm component or the folder of a Rust \
             crate",
            manifest.display()
        );
        Failure::new(Exit::Invalid, message)
    })?;
    let mut child = command(folder).spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => Failure::new(
            Exit::Invalid,
            "cargo is needed to build a Rust function and is not installed; get it from https://rustup.rs",
        ),
        _ => Failure::new(Exit::Failed, format!("cargo cannot be started: {error}")),
    })?;
    let stdout = child.stdout.take().context("cargo's stdout is piped")?;
    let stderr = child.stderr.take().context("cargo's stderr is piped")?;
    let (found, output, status) =
        tokio::join!(find_artifact(stdout, &manifest), show(stderr, step), child.wait());
    let output = output?;
    if !status?.success() {
        return Err(Failure::new(Exit::Invalid, failed(folder, &output)));
    }
    match found? {
        Found::Component(path) => Ok(path),
        Found::Other => {
            let message = format!(
                "{} builds no component: add `crate-type = [\"cdylib\"]` under [lib]",
                manifest.display()
            );
            Err(Failure::new(Exit::Invalid, message))
        }
        Found::Nothing => {
            let message = format!(
                "{} builds no library; name the folder of the function's own crate, not of a workspace",
                manifest.display()
            );
            Err(Failure::new(Exit::Invalid, message))
        }
    }
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new("cargo");
    command
        .args(["build", "--release", "--target", TARGET, "--message-format", "json-render-diagnostics"])
        // Cargo looks for rust-toolchain.toml and .cargo/config.toml there.
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    if std::env::var_os("CARGO_TERM_COLOR").is_none() && console::colors_enabled_stderr() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    command
}

enum Found {
    Component(PathBuf),
    /// Cargo built the crate, but not as a component.
    Other,
    Nothing,
}

#[derive(Deserialize)]
struct BuildMessage {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    filenames: Vec<PathBuf>,
    target: Option<BuildTarget>,
}

#[derive(Deserialize)]
struct BuildTarget {
    crate_types: Vec<String>,
}

async fn find_artifact(stdout: impl AsyncRead + Unpin, manifest: &Path) -> anyhow::Result<Found> {
    let mut found = Found::Nothing;
    let mut lines = BufReader::new(stdout).lines();
    while let Some(line) = lines.next_line().await? {
        // Build scripts may print other lines.
        let Ok(message) = serde_json::from_str::<BuildMessage>(&line) else { continue };
        if message.reason != "compiler-artifact" || message.manifest_path != manifest {
            continue;
        }
        let cdylib =
            message.target.is_some_and(|target| target.crate_types.iter().any(|kind| kind == "cdylib"));
        let wasm =
            message.filenames.into_iter().find(|file| file.extension().is_some_and(|end| end == "wasm"));
        match wasm {
            Some(path) if cdylib => found = Found::Component(path),
            _ if matches!(found, Found::Nothing) => found = Found::Other,
            _ => {}
        }
    }
    Ok(found)
}

/// Shows cargo's last line while it runs and keeps all lines.
async fn show(stderr: impl AsyncRead + Unpin, step: &Step) -> std::io::Result<String> {
    let mut output = String::new();
    let mut lines = BufReader::new(stderr).lines();
    while let Some(line) = lines.next_line().await? {
        step.detail(console::strip_ansi_codes(line.trim()));
        output.push_str(&line);
        output.push('\n');
    }
    Ok(output)
}

fn failed(folder: &Path, output: &str) -> String {
    let plain = console::strip_ansi_codes(output);
    let remedy = if plain.contains("target may not be installed") {
        format!("\n\nthe target {TARGET} is not installed; run: rustup target add {TARGET}")
    } else {
        String::new()
    };
    format!("cargo build failed in {}:\n{}{remedy}", folder.display(), output.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn found(lines: &str) -> Found {
        find_artifact(lines.as_bytes(), Path::new("/app/Cargo.toml")).await.unwrap()
    }

    #[tokio::test]
    async fn the_component_is_the_crates_own() {
        let dependency = r#"{"reason":"compiler-artifact","manifest_path":"/other/Cargo.toml","target":{"crate_types":["cdylib"]},"filenames":["/t/other.wasm"]}"#;
        let own = r#"{"reason":"compiler-artifact","manifest_path":"/app/Cargo.toml","target":{"crate_types":["cdylib","rlib"]},"filenames":["/t/libapp.rlib","/t/app.wasm"]}"#;
        let program = r#"{"reason":"compiler-artifact","manifest_path":"/app/Cargo.toml","target":{"crate_types":["bin"]},"filenames":["/t/app.wasm"]}"#;
        let done = r#"{"reason":"build-finished","success":true}"#;
        let all = [dependency, "noise of a build script", own, done].join("\n");
        assert!(matches!(found(&all).await, Found::Component(path) if path == Path::new("/t/app.wasm")));
        assert!(matches!(found(&[dependency, program].join("\n")).await, Found::Other));
        assert!(matches!(found(dependency).await, Found::Nothing));
    }

    #[test]
    fn a_missing_target_is_named() {
        let output = "error[E0463]: can't find crate for `core`\n  = note: the `wasm32-wasip2` target may not \
                      be installed\n";
        assert!(failed(Path::new("f"), output).ends_with("run: rustup target add wasm32-wasip2"));
    }
}
