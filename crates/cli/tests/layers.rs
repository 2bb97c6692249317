//! Arrows between crates go down (`ARCHITECTURE.md` has the layers), and examples in docs are run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Crates by layer, from the ground up. A crate may use those of lower layers.
const LAYERS: [&[&str]; 10] = [
    &["platform", "js-abi", "testnet"],
    &["broker", "cluster", "crdt", "dashboard", "isolates", "workflow"],
    &["api", "manifest"],
    &["state"],
    &["client", "functions"],
    &["coordinator", "rollout"],
    &["triggers"],
    &["node"],
    &["cli"],
    &["benches"],
];

fn layer(name: &str) -> usize {
    let name = name.strip_prefix("edgefaas-").unwrap_or("cli");
    let found = LAYERS.iter().position(|layer| layer.contains(&name));
    found
        .unwrap_or_else(|| panic!("crate `{name}` is in no layer: give it one here and in ARCHITECTURE.md"))
}

/// The crates of the workspace, as `cargo metadata` describes them.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

#[test]
fn no_crate_uses_one_of_its_own_layer_or_above() {
    let packages = packages();
    let mut arrows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &packages {
        let name = package["name"].as_str().expect("a name").to_owned();
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        // Tests may use what they like.
        let ours = dependencies
            .iter()
            .filter(|one| one["kind"].as_str() != Some("dev"))
            .filter_map(|one| one["name"].as_str())
            .filter(|name| name.starts_with("edgefaas"));
        arrows.insert(name, ours.map(str::to_owned).collect());
    }
    assert!(arrows.len() >= 16, "all crates of the workspace are looked at: {arrows:?}");
    for (user, used) in &arrows {
        for used in used {
            assert!(
                layer(used) < layer(user),
                "`{user}` (layer {}) uses `{used}` (layer {}): imports go down",
                layer(user),
                layer(used)
            );
        }
    }
}

/// `doctest = false` spares each run of the tests some ten seconds a crate; a crate whose docs have an example must not say it.
#[test]
fn examples_in_docs_are_run() {
    let packages = packages();
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().expect("targets"));
    let untested = targets.filter(|target| target["kind"][0] == "lib" && target["doctest"] == false);
    let mut files = 0;
    for target in untested {
        let root = Path::new(target["src_path"].as_str().expect("a path"));
        let mut folders = vec![root.parent().expect("a folder").to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path()) {
                if entry.is_dir() {
                    folders.push(entry);
                } else if entry.extension().is_some_and(|extension| extension == "rs") {
                    files += 1;
                    let source = std::fs::read_to_string(&entry).expect("a source");
                    let example = first_example(&source);
                    assert!(
                        example.is_none(),
                        "{}:{example:?}: `doctest = false` hides it",
                        entry.display()
                    );
                }
            }
        }
    }
    assert!(files > 300, "the sources are looked at: {files}");
    assert_eq!(first_example("/// ```text\n/// a\n/// ```\n/// ```\n/// a();\n/// ```"), Some(4));
    assert_eq!(first_example("//! ```no_run\n//! a();\n//! ```"), Some(1));
}

/// The line of the first example in docstrings: a block of code that names no other language than Rust.
fn first_example(source: &str) -> Option<usize> {
    let mut is_open = false;
    for (at, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            is_open = false;
            continue;
        };
        let Some(language) = text.trim_start().strip_prefix("```") else { continue };
        let rust = ["", "rust", "no_run", "ignore", "should_panic", "compile_fail"];
        let first = language.split(',').next().unwrap_or_default().trim();
        if !is_open && rust.contains(&first) {
            return Some(at + 1);
        }
        is_open = !is_open;
    }
    None
}
