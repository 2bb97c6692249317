//! The languages of docs/components.md: a call of each function of the table, after the page's commands have built and deployed it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A node, and commands that would download: here they check that the version that they name is installed.
pub const BEFORE: &str = r#"
edgefaas run >~/node.log 2>&1 & until_true is_ready 7070
npm() {
  local package
  [ "$1" = install ]
  for package in "${@:2}"; do
    grep -q "\"version\": \"${package##*@}\"" "$EDGEFAAS_TEST_COMPONENT_TOOLS/${package%@*}/package.json"
  done
  ln -s "$EDGEFAAS_TEST_COMPONENT_TOOLS" node_modules
}
pip() { [ "$*" = "install componentize-py==$(componentize-py --version | cut -d' ' -f2)" ]; }
cargo() { [ "$*" = "install wit-bindgen-cli@$(wit-bindgen --version | cut -d' ' -f2)" ]; }
go() {
  [ "$*" != "mod tidy" ] || command go mod edit -replace "go.bytecodealliance.org/pkg=$EDGEFAAS_TEST_GO_MODULE"
  command go "$@"
}
export GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-mod=mod
"#;

/// Calls each function of the table and compares its answer.
pub fn calls(page: &str) -> String {
    let lines = page.lines().skip_while(|line| !line.starts_with("| language | toolchain |")).skip(2);
    let rows: Vec<&str> = lines.take_while(|line| line.starts_with("| ")).collect();
    assert!(rows.len() >= 6, "{} rows", rows.len());
    let mut script = String::new();
    for row in rows {
        let cells: Vec<&str> =
            row.trim_matches('|').split(" | ").map(|cell| cell.trim_matches([' ', '`'])).collect();
        let [_, toolchain, _, function, answer] = cells[..] else { panic!("five cells: {row}") };
        for version in toolchain.split([' ', ',']).filter(|word| word.matches('.').count() == 2) {
            let is_used = ["=", "@"].iter().any(|sign| page.contains(&format!("{sign}{version}")));
            assert!(is_used, "no command has {version}: {row}");
        }
        let _ = writeln!(
            script,
            "answer=$(curl -s http://127.0.0.1:8080/fn/{function} -d Ada)
[ \"$answer\" = '{answer}' ] || {{ echo \"{function} answers: $answer\" >&2; exit 1; }}"
        );
    }
    script
}

/// The folder of npm packages that make components: `components/node_modules` beside the tests' other packages.
pub fn npm_packages() -> Option<PathBuf> {
    let packages = PathBuf::from(std::env::var_os("EDGEFAAS_TEST_NODE_PATH")?);
    Some(packages.with_file_name("components").join("node_modules")).filter(|folder| folder.exists())
}

/// The source of the Go module that `wit-bindgen go` requires, in the crate of that generator, which `manifest` names.
pub fn go_module(manifest: &Path) -> PathBuf {
    let mut command = Command::new("cargo");
    command
        .args(["metadata", "--format-version", "1", "--offline", "--locked", "--manifest-path"])
        .arg(manifest);
    let metadata: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let generator = packages.iter().find(|package| package["name"] == "wit-bindgen-go").unwrap();
    Path::new(generator["manifest_path"].as_str().unwrap()).with_file_name("src").join("pkg")
}
