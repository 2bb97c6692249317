//! Packages as npm installs them: CommonJS, conditions, modules of Node.js, and modules that are left out.

mod common_js;
mod left_out;
mod limits;
mod node_names;
mod refused;
mod traces;
mod urls;

use edgefaas_isolates::ModuleGraph;
use edgefaas_isolates::js::{CollectError, collect};

use crate::json;
use crate::support::{Bench, call};

/// An app folder.
pub struct App(tempfile::TempDir);

impl App {
    /// An app with these files, of which the function is `main.js` or another one that is named.
    pub fn new(files: &[(&str, &str)]) -> Self {
        let app = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            app.write(path, text);
        }
        app
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn path(&self, path: &str) -> std::path::PathBuf {
        self.0.path().join(path)
    }

    pub fn collect(&self) -> Result<ModuleGraph, CollectError> {
        collect(&self.path("main.js"), self.0.path())
    }

    /// The paths of the modules that are deployed, without those of the engine, sorted.
    pub fn modules(&self) -> Vec<String> {
        let graph = self.collect().unwrap();
        let paths = graph.modules.into_iter().map(|module| module.path);
        let mut paths: Vec<_> = paths.filter(|path| !path.starts_with("edgefaas:")).collect();
        paths.sort();
        paths
    }

    /// The message with which the app is refused.
    pub fn refused(&self) -> String {
        self.collect().unwrap_err().to_string()
    }

    /// The answer of the function.
    pub async fn answer(&self) -> serde_json::Value {
        let bench = Bench::new();
        let program = bench.prepare(&self.collect().unwrap()).await.unwrap();
        json(bench.run(&program, call("")).await.result)
    }
}
