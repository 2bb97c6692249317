//! Tables in a terminal of any width: no row wraps. In a pipe they are whole.

use std::path::Path;
use std::process::{Command, Stdio};

use unicode_width::UnicodeWidthStr;

use crate::support::{Running, edgefaas, has, skipped};

/// As long as names may be.
const APP: &str = "measurements-of-the-buildings-in-the-northern-part-of-the-harbour";
const OBJECT: &str = "climate-of-the-hall-17-on-the-floor-3-of-the-building-by-the-water";

/// The output of a command in a terminal of this width.
fn in_terminal(node: &Running, columns: usize, args: &[&str]) -> String {
    let program = edgefaas(&node.data_dir);
    let words = [&["--node", &node.control], args].concat();
    let line = format!(
        "stty cols {columns} rows 24 && exec {} {}",
        program.get_program().to_str().unwrap(),
        words.join(" ")
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => script.env(name, value),
            None => script.env_remove(name),
        };
    }
    let output = script.env("SHELL", "/bin/sh").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap().replace('\r', "");
    assert!(output.status.success(), "{line}: {text}");
    text
}

/// Deploys an app whose names are long; gives the name of its function.
fn deploy(node: &Running, home: &Path) -> String {
    let app = home.join("app");
    std::fs::create_dir(&app).unwrap();
    let function = format!("{}-function", &APP[..54]);
    let manifest = format!(
        "app = \"{}\"\nworkflows = [\"flow.yaml\"]\n[functions.{function}]\nmain = \"f.js\"\n\
         triggers = [{{ mqtt = \"buildings/+/floors/+/halls/+/climate/measurements\" }}, {{ cron = \"*/5 * * * *\" }}]\n\
         permissions = {{ objects = [\"*\"] }}\n",
        &APP[..63]
    );
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    let source = format!(
        "export default async (event, context) => {{\n  const object = context.object('{OBJECT}');\n  \
         await object.counter('{APP}').add(1);\n  await object.counter('people').add(1);\n  return {{ text: 'x'.repeat(200) }};\n}};\n"
    );
    std::fs::write(app.join("f.js"), source).unwrap();
    let workflow = format!(
        "document: {{ dsl: '1.0.3', namespace: default, name: {}, version: '10.20.30', metadata: {{ durable: true }} }}\ndo:\n  - a:\n      set: {{ b: 1 }}\n",
        &APP[..60]
    );
    std::fs::write(app.join("flow.yaml"), workflow).unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);
    function
}

#[test]
fn no_row_is_wider_than_the_terminal() {
    if !has("script", &["--version"]) || !has("stty", &["--version"]) {
        return skipped("script and stty");
    }
    let home = tempfile::tempdir().unwrap();
    let node = &Running::start(&home.path().join("data"), &[]);
    let function = deploy(node, home.path());
    let reply = node.ok(&["-o", "json", "invoke", &function]);
    let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
    let id = reply["invocation_id"].as_str().unwrap();

    // An ended instance is kept.
    node.ok(&["invoke", &APP[..60]]);

    for columns in [60, 80, 100] {
        for args in [
            &["list"][..],
            &["list", "--nodes"],
            &["status"],
            &["objects", "list"],
            &["workflow", "list"],
            &["trace", id],
        ] {
            let text = in_terminal(node, columns, args);
            for line in text.lines() {
                assert!(line.width() <= columns, "{args:?} at {columns}: {} in\n{text}", line.width());
            }
            // The start of names stays.
            let name = if args[0] == "trace" { "function mea" } else { "mea" };
            let has_names = args != ["list", "--nodes"];
            assert!(!has_names || text.contains(name), "{args:?} at {columns}:\n{text}");
        }
    }
    for args in [&["list"][..], &["status"]] {
        let text = node.ok(args);
        assert!(text.contains(&function) && !text.contains('…'), "{args:?}: {text}");
    }
    assert!(node.ok(&["objects", "list"]).contains(OBJECT));
    assert!(node.ok(&["trace", id]).lines().all(|line| line.width() <= 100), "without a terminal");
}
