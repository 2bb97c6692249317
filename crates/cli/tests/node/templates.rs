//! `edgefaas new` with a copied binary, away from any checkout, and the apps that it makes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{Running, copy_program, edgefaas, guest_target, has, has_wasm_target, skipped};

/// A copy of the binary in an empty folder.
fn copied_binary(home: &Path) -> PathBuf {
    let copy = home.join("copied-edgefaas");
    copy_program(&copy);
    copy
}

fn run(program: &Path, folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder).env("EDGEFAAS_DATA_DIR", folder.join("none"));
    command.env("CARGO_TARGET_DIR", guest_target()).output().unwrap()
}

fn ok(program: &Path, folder: &Path, args: &[&str]) -> String {
    let output = run(program, folder, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A package of npm that the tests have.
fn package(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("EDGEFAAS_TEST_NODE_PATH")?;
    Some(Path::new(&path).join(name)).filter(|package| package.exists())
}

fn link(target: &Path, link: &Path) {
    std::fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(target, link).unwrap();
}

#[test]
fn the_apps_in_javascript_and_typescript_work() {
    let home = tempfile::tempdir().unwrap();
    let program = copied_binary(home.path());
    let node = Running::start(&home.path().join("data"), &[]);
    for lang in ["js", "ts"] {
        for template in ["http", "mqtt", "cron", "workflow"] {
            let name = format!("{lang}-{template}");
            ok(&program, home.path(), &["new", &name, "--lang", lang, "--template", template]);
            node.ok(&["deploy", home.path().join(&name).to_str().unwrap()]);
        }
        let (http, workflow) = (format!("/{lang}-http"), format!("/workflows/{lang}-workflow"));
        assert_eq!(node.http("POST", &http, "Ada"), (200, "Hello, Ada! You are number 1.\n".into()));
        let (status, total) = node.http("POST", &workflow, r#"{"pieces": 6}"#);
        let total: serde_json::Value = serde_json::from_str(&total).unwrap();
        assert_eq!((status, &total["total"], &total["free_delivery"]), (200, &24.into(), &true.into()));

        let name = format!("{lang}-mqtt");
        let topic = format!("{name}/north/reading");
        node.ok(&["invoke", &name, "--mqtt", &topic, "-d", r#"{"celsius": 41}"#]);
        assert_eq!(node.ok(&["objects", "get", &name, &name, "latest", "--key", "north"]).trim(), "41");
        assert!(node.ok(&["logs", &name]).contains("north: 41 °C"));
        let name = format!("{lang}-cron");
        node.ok(&["invoke", &name, "--cron"]);
        assert!(node.ok(&["logs", &name]).contains("was due at 2"));
    }
}

#[test]
fn the_hono_app_works_with_the_package() {
    let Some(hono) = package("hono") else { return skipped("the npm package hono") };
    let home = tempfile::tempdir().unwrap();
    let program = copied_binary(home.path());
    let node = Running::start(&home.path().join("data"), &[]);
    for lang in ["js", "ts"] {
        let name = format!("web-{lang}");
        ok(&program, home.path(), &["new", &name, "--lang", lang, "--template", "hono"]);
        let app = home.path().join(&name);
        let missing = node.cli(&["deploy", app.to_str().unwrap()]);
        let missing = String::from_utf8_lossy(&missing.stderr).into_owned();
        assert!(missing.contains("npm install it first"), "{missing}");
        std::fs::create_dir(app.join("node_modules")).unwrap();
        let copied = Command::new("cp").arg("-r").arg(&hono).arg(app.join("node_modules")).status();
        assert!(copied.unwrap().success());
        node.ok(&["deploy", app.to_str().unwrap()]);
        let (status, hello) = node.http("GET", &format!("/{name}/hello/Ada"), "");
        assert_eq!((status, hello.as_str()), (200, r#"{"hello":"Ada","number":1}"#));
    }
}

#[test]
fn the_apps_in_rust_work_without_a_checkout() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    let home = tempfile::tempdir().unwrap();
    let program = copied_binary(home.path());
    let node = Running::start(&home.path().join("data"), &[]);
    for template in ["http", "mqtt", "cron", "workflow"] {
        let name = format!("rust-{template}");
        let made = ok(&program, home.path(), &["new", &name, "--lang", "rust", "--template", template]);
        assert!(made.contains(&format!("wrote {name}/vendor/edgefaas-sdk (")), "{made}");
        let cargo = std::fs::read_to_string(home.path().join(&name).join("Cargo.toml")).unwrap();
        assert!(cargo.contains(r#"edgefaas-sdk = { path = "vendor/edgefaas-sdk" }"#), "{cargo}");
        node.ok(&["deploy", home.path().join(&name).to_str().unwrap()]);
    }
    assert_eq!(node.http("POST", "/rust-http", "Ada"), (200, "Hello, Ada! You are number 1.\n".into()));
    node.ok(&["invoke", "rust-mqtt", "--mqtt", "rust-mqtt/north/reading", "-d", r#"{"celsius": 41}"#]);
    assert!(node.ok(&["logs", "rust-mqtt"]).contains("north: 41 °C"));
    node.ok(&["invoke", "rust-cron", "--cron"]);
    assert!(node.ok(&["logs", "rust-cron"]).contains("run "));
    let (status, total) = node.http("POST", "/workflows/rust-workflow", r#"{"pieces": 6}"#);
    assert!(status == 200 && total.contains("24"), "{total}");
    // The tests of the app itself run natively.
    let tests = Command::new("cargo")
        .args(["test", "--quiet"])
        .current_dir(home.path().join("rust-http"))
        .env("CARGO_TARGET_DIR", guest_target())
        .output()
        .unwrap();
    assert!(tests.status.success(), "{}", String::from_utf8_lossy(&tests.stdout));
}

/// The commands of the app's README. The only test that is skipped also where nothing else may be: four components take a minute of
/// two cores. The page of Python is run with the first of these templates everywhere (`tests/docs`).
#[test]
fn the_apps_in_python_work() {
    if !has("componentize-py", &["--version"]) {
        return println!("skipped: needs componentize-py on the path (pip install componentize-py)");
    }
    let home = tempfile::tempdir().unwrap();
    let program = copied_binary(home.path());
    let node = Running::start(&home.path().join("data"), &[]);
    for template in ["http", "mqtt", "cron", "workflow"] {
        let name = format!("py-{template}");
        let made = ok(&program, home.path(), &["new", &name, "--lang", "python", "--template", template]);
        assert!(made.contains(&format!("wrote {name}/wit (2 files)\n")), "{made}");
        let readme = std::fs::read_to_string(home.path().join(&name).join("README.md")).unwrap();
        let line = readme.lines().find_map(|line| line.strip_prefix("componentize-py ")).unwrap();
        let args = line.split('#').next().unwrap().split_whitespace();
        let built =
            Command::new("componentize-py").args(args).current_dir(home.path().join(&name)).output();
        let built = built.unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        node.ok(&["deploy", home.path().join(&name).to_str().unwrap()]);
    }
    assert_eq!(node.http("POST", "/py-http", "Ada"), (200, "Hello, Ada! You are number 1.\n".into()));
    node.ok(&["invoke", "py-mqtt", "--mqtt", "py-mqtt/north/reading", "-d", r#"{"celsius": 41}"#]);
    assert_eq!(node.ok(&["objects", "get", "py-mqtt", "py-mqtt", "latest-north"]).trim(), "41");
    node.ok(&["invoke", "py-cron", "--cron"]);
    assert!(node.ok(&["logs", "py-cron"]).contains("run "));
    let (status, total) = node.http("POST", "/workflows/py-workflow", r#"{"pieces": 6}"#);
    assert!(status == 200 && total.contains("24"), "{total}");
}

#[test]
fn type_errors_are_warnings_and_strictly_errors() {
    let (Some(typescript), true) = (package("typescript"), has("node", &["--version"])) else {
        return skipped("Node.js and the npm package typescript");
    };
    let home = tempfile::tempdir().unwrap();
    let program = copied_binary(home.path());
    for lang in ["js", "ts"] {
        ok(&program, home.path(), &["new", lang, "--lang", lang]);
        let app = home.path().join(lang);
        let compiler = typescript.parent().unwrap().join(".bin/tsc");
        link(&compiler, &app.join("node_modules/.bin/tsc"));
        ok(&program, &app, &["build", "--strict"]);

        let wrong = app.join(format!("functions/{lang}.{lang}"));
        let source = std::fs::read_to_string(&wrong).unwrap().replace("event.text()", "event.txt()");
        std::fs::write(&wrong, source).unwrap();
        let place = format!("functions/{lang}.{lang}:4:22: Property 'txt' does not exist");
        let place = if lang == "js" { place.replace(":4:", ":3:") } else { place };
        let built = run(&program, &app, &["build"]);
        let warned = String::from_utf8_lossy(&built.stderr).into_owned();
        assert!(built.status.success() && warned.contains(&format!("warning: {place}")), "{warned}");
        let strict = run(&program, &app, &["build", "--strict"]);
        let refused = String::from_utf8_lossy(&strict.stderr).into_owned();
        assert!(
            strict.status.code() == Some(7) && refused.contains(&format!("error: {place}")),
            "{refused}"
        );
    }
    let node = Running::start(&home.path().join("data"), &[]);
    let app = home.path().join("ts");
    assert_eq!(node.cli(&["deploy", app.to_str().unwrap(), "--strict"]).status.code(), Some(7));
    node.ok(&["deploy", app.to_str().unwrap()]);
}

#[test]
fn a_template_that_a_language_lacks_is_refused_with_what_there_is() {
    let home = tempfile::tempdir().unwrap();
    let output = edgefaas(home.path())
        .args(["new", "x", "--lang", "rust", "--template", "hono"])
        .current_dir(home.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let expected =
        "there is no template hono in rust; choose one of http, mqtt, cron, workflow, or --lang js";
    assert!(stderr.contains(expected), "{stderr}");
    assert!(!home.path().join("x").exists());
}
