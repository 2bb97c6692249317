//! Rust functions on a real node, and what they may do wrong.

use crate::support::{Running, has_wasm_target, repository, skipped};

#[test]
fn a_rust_function_that_misbehaves_is_contained_and_told() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let app = repository().join("crates/cli/tests/node/guests/misbehave");
    node.ok(&["deploy", app.to_str().unwrap()]);
    for (what, status, title, words) in [
        ("fail", 500, "Function failed", "as asked"),
        ("panic", 500, "Function trapped", "src/lib.rs:"),
        ("exit", 500, "Function trapped", "exit code 1"),
        ("trap", 500, "Function trapped", "unreachable"),
        ("loop", 504, "Function timed out", "3s"),
        ("memory", 500, "Function ran out of memory", "16777216"),
        ("stack", 500, "Function overflowed its stack", ""),
        ("large", 500, "Reply too large", "1048577"),
    ] {
        let (found, body) = node.http("POST", "/fn/misbehave", what);
        let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(found, status, "{what}: {problem}");
        assert_eq!(problem["title"], title, "{what}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{what}: {problem}");
        assert_eq!(node.http("POST", "/fn/misbehave", "nothing"), (200, "well".into()), "after {what}");
    }
    let log = node.ok(&["logs", "misbehave"]);
    assert!(log.contains("panicked at src/lib.rs"), "{log}");
    assert!(log.contains("from stdout") && log.contains("from the log"), "{log}");
}

#[test]
fn compiling_has_a_bound_on_its_memory() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("node.toml");
    std::fs::write(&config, "[isolates]\ncompile_memory = \"32MiB\"\n").unwrap();
    let data = home.path().join("data");
    let node = Running::start(&data, &["--config", config.to_str().unwrap()]);
    let app = home.path().join("hello.js");
    std::fs::write(&app, "export default () => 'hello'").unwrap();
    let output = crate::support::edgefaas(&data)
        .args(["--node", &node.control, "deploy", app.to_str().unwrap()])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(stderr.contains("more than 32 MiB") && stderr.contains("isolates.compile_memory"), "{stderr}");
    // Another function is none the worse.
    assert_eq!(node.http("GET", "/fn/hello", "").0, 404);
}

#[test]
fn a_new_rust_app_is_deployed_and_called() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    let made = crate::support::edgefaas(home.path())
        .args(["new", "greeter", "--lang", "rust"])
        .current_dir(home.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    node.ok(&["deploy", home.path().join("greeter").to_str().unwrap()]);
    let answer = node.ok(&["invoke", "greeter", "-d", "Ada"]);
    assert_eq!(answer, "Hello, Ada! You are number 1.\n");
    assert_eq!(node.http("POST", "/greeter", ""), (200, "Hello, world! You are number 2.\n".into()));
}

#[test]
fn a_new_javascript_app_is_deployed_and_called() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    let made = crate::support::edgefaas(home.path())
        .args(["new", "greeter", "--lang", "js"])
        .current_dir(home.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    node.ok(&["deploy", home.path().join("greeter").to_str().unwrap()]);
    assert_eq!(node.ok(&["invoke", "greeter", "-d", "Ada"]), "Hello, Ada! You are number 1.\n");
    let status = node.ok(&["-o", "json", "status"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["functions"], 1, "{status}");
}
