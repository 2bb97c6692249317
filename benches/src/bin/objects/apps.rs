//! What is deployed: functions that may use all objects, in JavaScript and in Rust, and how the objects are kept.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use edgefaas_benches::functions::{Guest, OBJECTS_JS};
use tempfile::TempDir;

/// The app.
pub const APP: &str = "bench";
/// The function in JavaScript.
pub const JS: &str = "objects-js";
/// The function in Rust.
pub const RUST: &str = "objects-rust";
/// The counter of an object.
pub const FIELD: &str = "n";

/// A folder with an app.
pub struct App {
    folder: TempDir,
    manifest: String,
}

impl App {
    /// The JavaScript function. Objects whose names fit a pattern are kept as the text beside it says, a part of the manifest.
    pub fn new(classes: &[(&str, &str)]) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("objects.js"), OBJECTS_JS)?;
        let mut manifest = format!("app = \"{APP}\"\n");
        function(&mut manifest, JS, "objects.js", None);
        for (pattern, settings) in classes {
            let _ = write!(manifest, "\n[objects.\"{pattern}\"]\n{settings}\n");
        }
        let app = Self { folder, manifest };
        app.write()?;
        Ok(app)
    }

    /// A JavaScript function that uses no objects. Once it is there, the engine has been compiled.
    pub fn other() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("other.js"), "export default () => 0;\n")?;
        let manifest = "app = \"other\"\n[functions.other]\nmain = \"other.js\"\n".to_owned();
        let app = Self { folder, manifest };
        app.write()?;
        Ok(app)
    }

    /// The same function in Rust beside it, which reaches a Redis server.
    pub fn with_rust(mut self, redis: Option<SocketAddr>) -> anyhow::Result<Self> {
        std::fs::copy(Guest::Objects.build()?, self.folder.path().join("objects.wasm"))?;
        function(&mut self.manifest, RUST, "objects.wasm", redis);
        self.write()?;
        Ok(self)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self) -> anyhow::Result<()> {
        Ok(std::fs::write(self.path().join("edgefaas.toml"), &self.manifest)?)
    }
}

fn function(manifest: &mut String, name: &str, main: &str, redis: Option<SocketAddr>) {
    let tcp = redis.map_or(String::new(), |server| format!(", tcp = [\"{server}\"]"));
    let _ = write!(
        manifest,
        "\n[functions.{name}]\nmain = \"{main}\"\npermissions = {{ objects = [\"*\"]{tcp} }}\nlimits = {{ timeout = \"10m\", \
         memory = \"128MiB\", queue = {{ capacity = 100000 }} }}\n"
    );
}
