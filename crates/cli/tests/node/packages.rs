//! Packages from npm, unmodified, on a node: every row of the table in docs/javascript.md.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Running, echo_server, repository, skipped};

/// A row of the table.
struct Row {
    package: String,
    version: String,
    top_level: String,
    expression: String,
    result: Value,
}

fn table() -> Vec<Row> {
    let page = std::fs::read_to_string(repository().join("docs/javascript.md")).unwrap();
    let lines = page.lines().skip_while(|line| !line.starts_with("| package | version |")).skip(2);
    let rows = lines.take_while(|line| line.starts_with("| ")).map(|line| {
        let cells =
            line.trim_matches('|').split(" | ").map(|cell| cell.trim_matches([' ', '`']).to_owned());
        let cells: Vec<String> = cells.collect();
        let Ok([package, version, top_level, expression, result]) = <[String; 5]>::try_from(cells) else {
            panic!("five cells: {line}")
        };
        let result = serde_json::from_str(&result).unwrap_or_else(|error| panic!("{package}: {error}"));
        Row { package, version, top_level, expression, result }
    });
    rows.collect()
}

/// The folder in which the tests' packages are installed, if it has all of these.
fn installed(rows: &[Row]) -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("EDGEFAAS_TEST_NODE_PATH")?);
    let has = |package: &str| folder.join(package).join("package.json").exists();
    rows.iter().all(|row| has(&row.package)).then_some(folder)
}

fn installed_version(folder: &Path, package: &str) -> String {
    let text = std::fs::read_to_string(folder.join(package).join("package.json")).unwrap();
    let package: Value = serde_json::from_str(&text).unwrap();
    package["version"].as_str().unwrap().to_owned()
}

#[test]
fn the_packages_of_the_documentation_run_unmodified() {
    let rows = table();
    assert!(rows.len() >= 25, "{} rows", rows.len());
    let Some(packages) = installed(&rows) else { return skipped("the npm packages of docs/javascript.md") };
    // Beside the packages, so that they can be linked and not copied.
    let home = tempfile::tempdir_in(packages.parent().unwrap()).unwrap();
    let app = home.path().join("app");
    std::fs::create_dir_all(&app).unwrap();
    let linked =
        Command::new("cp").arg("-al").arg(&packages).arg(app.join("node_modules")).status().unwrap();
    assert!(linked.success());
    let echo = echo_server(1);
    let mut manifest = "app = \"packages\"\n".to_owned();
    for (index, row) in rows.iter().enumerate() {
        let Row { package, version, top_level, expression, .. } = row;
        assert_eq!(*version, installed_version(&packages, package), "{package}");
        let source = format!("{top_level};\nexport default async (event) => ({expression});\n");
        std::fs::write(app.join(format!("f{index}.js")), source).unwrap();
        manifest += &format!("[functions.f{index}]\nmain = \"f{index}.js\"\n");
        if package == "axios" {
            manifest += &format!("permissions = {{ http = [\"{echo}\"] }}\n");
        }
    }
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    node.ok(&["deploy", app.to_str().unwrap()]);
    let mut wrong = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let (status, answer) = node.http("POST", &format!("/fn/f{index}"), &echo);
        let result: Value = serde_json::from_str(&answer).unwrap_or(Value::String(answer));
        if (status, &result) != (200, &row.result) {
            wrong.push(format!("{}: {status} {result}, expected {}", row.package, row.result));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn packages_that_need_node_are_refused_with_a_remedy() {
    let home = tempfile::tempdir().unwrap();
    let app = home.path().join("app");
    let write = |path: &str, text: &str| {
        let path = app.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("edgefaas.toml", "app = \"a\"\n[functions.f]\nmain = \"f.js\"\n");
    write("f.js", "import express from 'express'; export default () => express();");
    write("node_modules/express/index.js", "module.exports = require('./lib/express');");
    write("node_modules/express/lib/express.js", "var http = require('http');\nmodule.exports = http;");
    let node = Running::start(&home.path().join("data"), &[]);
    let refused = node.cli(&["deploy", app.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    for part in [
        "node_modules/express/lib/express.js:1:12",
        "\"http\" belongs to Node.js",
        "use Hono",
        "imported by node_modules/express/index.js, by f.js",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
