//! Arrows between crates go down. `ARCHITECTURE.md` has the layers.

use std::collections::BTreeMap;
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

#[test]
fn no_crate_uses_one_of_its_own_layer_or_above() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let mut arrows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in packages {
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
