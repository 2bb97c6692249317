//! workerd, the runtime of Cloudflare's workers, from the packages of npm. Installed when it is first wanted.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use serde::Deserialize;
use tempfile::TempDir;

use super::hono;
use super::npm::{Scripts, installed};
use crate::functions::{HONO_JS, WORKER_JS};
use crate::process::Process;

/// The version that is measured, which has its date in it.
pub const VERSION: &str = "1.20261117.1";

/// `MODULES` stands for the modules of the worker.
const CONFIG: &str = r#"using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [(name = "worker", worker = (
    modules = [MODULES],
    compatibilityDate = "2026-11-01",
  ))],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "worker")],
);
"#;

/// A worker that is ready to be started.
#[derive(Debug)]
pub struct Workerd {
    program: PathBuf,
    folder: TempDir,
}

/// What it writes to its control descriptor.
#[derive(Deserialize)]
struct Listening {
    port: u16,
}

impl Workerd {
    /// Installs it if it is not there, and writes the greeting as a worker with its configuration.
    ///
    /// # Errors
    /// npm is not there, or has no workerd for this machine.
    pub fn new() -> anyhow::Result<Self> {
        let (program, folder) = (install()?, tempfile::tempdir()?);
        std::fs::write(folder.path().join("worker.js"), WORKER_JS)?;
        Self::with_modules(program, folder, &[("worker.js".to_owned(), "worker.js".to_owned())])
    }

    /// The same with the Hono app.
    ///
    /// # Errors
    /// npm is not there, has no workerd for this machine, or cannot install Hono.
    pub fn with_hono() -> anyhow::Result<Self> {
        let (program, folder, package) = (install()?, tempfile::tempdir()?, hono::hono()?);
        std::fs::write(folder.path().join("worker.js"), HONO_JS)?;
        let mut modules = vec![("worker.js".to_owned(), "worker.js".to_owned())];
        for (number, module) in hono::modules(&package)?.into_iter().enumerate() {
            let file = format!("hono/{module}");
            let copy = folder.path().join(&file);
            std::fs::create_dir_all(copy.parent().context("it is in a folder")?)?;
            std::fs::copy(package.join("dist").join(&module), copy)?;
            // The entry is what `import "hono"` names; the others are found beside it.
            modules.push((if number == 0 { "hono".to_owned() } else { module }, file));
        }
        Self::with_modules(program, folder, &modules)
    }

    /// `modules` has names and files; the first is the worker.
    fn with_modules(
        program: PathBuf,
        folder: TempDir,
        modules: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let modules = modules
            .iter()
            .map(|(name, file)| format!("(name = \"{name}\", esModule = embed \"{file}\")"))
            .collect::<Vec<_>>()
            .join(", ");
        std::fs::write(folder.path().join("config.capnp"), CONFIG.replace("MODULES", &modules))?;
        Ok(Self { program, folder })
    }

    /// Starts it; gives its address too.
    pub fn start(&self) -> anyhow::Result<(Process, SocketAddr)> {
        let mut command = Command::new(&self.program);
        command.args(["serve", "--control-fd=1"]).arg(self.folder.path().join("config.capnp"));
        let process = Process::start(&mut command)?;
        let listening: Listening = serde_json::from_str(&process.first_line)
            .with_context(|| format!("workerd says {}", process.first_line))?;
        Ok((process, ([127, 0, 0, 1], listening.port).into()))
    }
}

/// The program itself: what npm calls `workerd` is a script that starts it.
fn install() -> anyhow::Result<PathBuf> {
    let platform = match std::env::consts::ARCH {
        "x86_64" => "linux-64",
        "aarch64" => "linux-arm64",
        other => bail!("there is no workerd for {other}"),
    };
    let program = format!("@cloudflare/workerd-{platform}/bin/workerd");
    installed("workerd", VERSION, Scripts::Ignored, &program)
}
