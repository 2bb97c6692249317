//! `wasmtime serve`, of the version that the node has inside. Installed with cargo when it is first wanted, which takes
//! some minutes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::process::Process;
use crate::target_folder;

/// The version that is measured: that of the workspace.
pub const VERSION: &str = "48.0.8";

/// What serving a compiled component takes, and compiling it. `serve` can't be built without `component-model-async`.
const FEATURES: &str = "run,serve,compile,cranelift,component-model,component-model-async,pooling-allocator,parallel-compilation";

/// Instances come from a pool, as in the node. Compiling and serving have to agree.
const POOLING: [&str; 2] = ["-O", "pooling-allocator=y"];

/// A component that is compiled and ready to be served.
#[derive(Debug)]
pub struct WasmtimeServe {
    program: PathBuf,
    folder: TempDir,
}

impl WasmtimeServe {
    /// Installs it if it is not there, and compiles the component.
    ///
    /// # Errors
    /// It can't be built here.
    pub fn new(component: &Path) -> anyhow::Result<Self> {
        let program = install()?;
        let folder = tempfile::tempdir()?;
        let wasmtime = Self { program, folder };
        let compiled = Command::new(&wasmtime.program)
            .arg("compile")
            .args(POOLING)
            .arg(component)
            .arg("-o")
            .arg(wasmtime.compiled())
            .status()
            .context("wasmtime cannot be started")?;
        if !compiled.success() {
            bail!("{} could not be compiled: wasmtime ended with {compiled}", component.display());
        }
        Ok(wasmtime)
    }

    /// Starts it; gives its address too.
    pub fn start(&self) -> anyhow::Result<(Process, SocketAddr)> {
        let mut command = Command::new(&self.program);
        command.arg("serve").args(POOLING).args(["--allow-precompiled", "--addr", "127.0.0.1:0"]);
        // What Rust's standard library imports is not in the world of the proxy.
        command.args(["-S", "cli=y"]);
        let process = Process::start_on_stderr(command.arg(self.compiled()))?;
        let line = process.first_line.trim();
        let address = line.rsplit_once("http://").map(|(_, address)| address.trim_end_matches('/'));
        let address = address.with_context(|| format!("wasmtime says {line}"))?.parse()?;
        Ok((process, address))
    }

    fn compiled(&self) -> PathBuf {
        self.folder.path().join("component.cwasm")
    }
}

/// The program, built if it is not there yet.
fn install() -> anyhow::Result<PathBuf> {
    let root = target_folder().join("wasmtime").join(VERSION);
    let program = root.join("bin/wasmtime");
    if !program.is_file() {
        let built = Command::new("cargo")
            .args(["install", "wasmtime-cli", "--quiet", "--locked", "--version", VERSION, "--root"])
            .arg(&root)
            .args(["--no-default-features", "--features", FEATURES])
            // As in the node: without it starting an instance is many small functions.
            .args(["--config", "profile.release.package.wasmtime.codegen-units=1"])
            .args(["--config", "profile.release.debug=false"])
            .env("CARGO_TARGET_DIR", root.join("build"))
            .status()
            .context("cargo cannot be started")?;
        if !built.success() {
            bail!("wasmtime could not be built: cargo ended with {built}");
        }
    }
    Ok(program)
}
