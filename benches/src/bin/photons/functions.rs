//! The trace's functions: as an app for a node, and as commands that start an instance of them.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use edgefaas_benches::{repository, target_folder};

use crate::backend::TOTAL;
use crate::front::Catalogue;
use crate::trace::{Function, Kind};

/// What was built of the guests.
pub struct Guests {
    hash: Vec<u8>,
    scale: Vec<u8>,
    worker: PathBuf,
}

impl Guests {
    /// Builds the Rust functions with cargo, as components and as a native program.
    pub fn build() -> anyhow::Result<Self> {
        let target = target_folder().join("photons");
        let wasm = ["--target", "wasm32-wasip2", "-p", "photons-hash", "-p", "photons-scale"];
        for arguments in [&wasm[..], &["-p", "worker"]] {
            let status = Command::new("cargo")
                .args(["build", "--release", "--quiet"])
                .args(arguments)
                .current_dir(guests())
                .env("CARGO_TARGET_DIR", &target)
                .status()
                .context("cargo cannot be started")?;
            if !status.success() {
                bail!("benches/guests/photons could not be built: cargo ended with {status}");
            }
        }
        let component = |name: &str| {
            let path = target.join("wasm32-wasip2/release").join(name);
            fs::read(&path).with_context(|| path.display().to_string())
        };
        Ok(Self {
            hash: component("hash.wasm")?,
            scale: component("scale.wasm")?,
            worker: target.join("release/worker"),
        })
    }

    /// Writes an app for a node into `folder`. Each function has code of its own: nothing is shared because two happen
    /// to be alike. `server` is `host:port` of what they ask.
    pub fn write_app(
        &self,
        functions: &[Function],
        isolation: &str,
        server: &str,
        folder: &Path,
    ) -> anyhow::Result<()> {
        let mut manifest = "app = \"photons\"\n".to_owned();
        for function in functions {
            let name = &function.name;
            let (file, code) = match function.kind {
                Kind::Sleep | Kind::Rest => (format!("{name}.mjs"), script(function)?.into_bytes()),
                Kind::Hash => (format!("{name}.wasm"), own_component(&self.hash, name)),
                Kind::Scale => (format!("{name}.wasm"), own_component(&self.scale, name)),
            };
            fs::write(folder.join(&file), code)?;
            let _ = write!(
                manifest,
                "\n[functions.{name}]\nmain = \"{file}\"\nisolation = \"{isolation}\"\nlimits = {{ timeout = \"60s\" }}\n"
            );
            if function.kind == Kind::Rest {
                let _ = writeln!(manifest, "permissions = {{ http = [\"{server}\"] }}");
            }
        }
        Ok(fs::write(folder.join("edgefaas.toml"), manifest)?)
    }

    /// The commands that start an instance of each; scripts are written into `folder`.
    pub fn catalogue(&self, functions: &[Function], folder: &Path) -> anyhow::Result<Catalogue> {
        let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is not UTF-8");
        let mut catalogue = Catalogue::new();
        for function in functions {
            let command = if function.kind.is_js() {
                let file = folder.join(format!("{}.mjs", function.name));
                fs::write(&file, script(function)?)?;
                vec!["node".into(), text(&guests().join("js/worker.mjs"))?, text(&file)?]
            } else {
                vec![text(&self.worker)?, function.kind.name().into()]
            };
            catalogue.insert(function.name.clone(), command);
        }
        Ok(catalogue)
    }
}

/// The body of a function's calls.
pub fn body(function: &Function, url: &str) -> String {
    match function.kind {
        Kind::Sleep => format!(r#"{{"ms":{}}}"#, function.sleep_ms),
        Kind::Rest => format!(r#"{{"url":"{url}"}}"#),
        Kind::Hash | Kind::Scale => String::new(),
    }
}

/// Whether a call was answered as it has to be.
pub fn is_right(kind: Kind, answer: &[u8]) -> bool {
    match kind {
        Kind::Sleep => answer == b"slept",
        Kind::Rest => answer == TOTAL.as_bytes(),
        // SHA-256 in hexadecimal.
        Kind::Hash | Kind::Scale => answer.len() == 64 && answer.iter().all(u8::is_ascii_hexdigit),
    }
}

fn script(function: &Function) -> anyhow::Result<String> {
    let path = guests().join(format!("js/{}.mjs", function.kind.name()));
    let code = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(format!("export const name = \"{}\";\n{code}", function.name))
}

/// The component with a custom section that holds a name (shorter than 64 bytes, so that lengths are one byte).
fn own_component(component: &[u8], name: &str) -> Vec<u8> {
    const SECTION: &[u8] = b"function";
    let content = [&[SECTION.len() as u8], SECTION, name.as_bytes()].concat();
    [component, &[0, content.len() as u8], &content].concat()
}

fn guests() -> PathBuf {
    repository().join("benches/guests/photons")
}
