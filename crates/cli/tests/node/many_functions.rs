//! More functions than stay in memory.

use std::collections::BTreeSet;
use std::path::Path;

use crate::durable::eventually;
use crate::support::Running;

/// Snapshots of them take some 80 MB; at most 24 MiB stay in memory without calls.
const FUNCTIONS: usize = 120;
const MAX_IDLE: usize = 60;

/// An app with many functions, and one that counts its calls in a reused instance.
fn write_app(app: &Path) {
    std::fs::create_dir(app).unwrap();
    let mut manifest =
        String::from("app = \"many\"\n[functions.counter]\nmain = \"counter.js\"\nisolation = \"reuse\"\n");
    std::fs::write(app.join("counter.js"), "let calls = 0; export default () => ++calls;").unwrap();
    for number in 0..FUNCTIONS {
        manifest += &format!("[functions.f{number}]\nmain = \"f{number}.js\"\n");
        let source = format!(
            "const own = {{ number: {number} }};
             export default (event) => [own.number, event.text(), globalThis.left ??= event.text()];"
        );
        std::fs::write(app.join(format!("f{number}.js")), source).unwrap();
    }
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
}

fn call_all(node: &Running, text: &str) {
    for number in 0..FUNCTIONS {
        let answer = node.http("POST", &format!("/fn/f{number}"), text);
        assert_eq!(answer, (200, format!("[{number},\"{text}\",\"{text}\"]")));
    }
}

/// The entries of the code cache that a process has mapped.
fn mapped(node: &Running) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", node.process_id())).unwrap();
    let names = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    names.filter(|name| name.ends_with(".native")).collect::<BTreeSet<_>>().len()
}

fn remove_entries(folder: &Path) -> usize {
    let mut removed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            removed += remove_entries(&path);
        } else if path.extension().is_some_and(|extension| extension == "native") {
            std::fs::remove_file(path).unwrap();
            removed += 1;
        }
    }
    removed
}

#[test]
fn functions_without_calls_leave_memory_and_answer_again() {
    let home = tempfile::tempdir().unwrap();
    let (app, data) = (home.path().join("app"), home.path().join("data"));
    write_app(&app);
    let node = Running::start(&data, &[]);
    node.ok(&["deploy", app.to_str().unwrap()]);
    let counted = |calls: usize| assert_eq!(node.http("POST", "/fn/counter", ""), (200, calls.to_string()));
    counted(1);
    counted(2);
    for round in ["first", "second"] {
        call_all(&node, round);
        eventually("snapshots without calls leave memory", || mapped(&node) < MAX_IDLE);
    }
    counted(3);
    // Those that have left memory have their files open.
    assert!(remove_entries(&data) > FUNCTIONS);
    call_all(&node, "third");
    counted(4);
    node.kill();

    // Without the cache all are evaluated again.
    let node = Running::start(&data, &[]);
    call_all(&node, "fourth");
    eventually("snapshots without calls leave memory", || mapped(&node) < MAX_IDLE);
    call_all(&node, "fifth");
    node.kill();
    let node = Running::start(&data, &[]);
    call_all(&node, "sixth");
}
