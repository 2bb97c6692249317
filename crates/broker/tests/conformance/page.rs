//! Keeps `docs/mqtt-conformance.md` in step with the tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What a test shows; says so when the test fails.
pub struct Covers(pub &'static [&'static str]);

impl Drop for Covers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this test shows {}", self.0.join(", "));
        }
    }
}

const STATEMENTS: &str = include_str!("statements.txt");

enum Line<'a> {
    Heading(&'a str),
    Statement { id: &'a str, says: &'a str, reason: &'a str },
}

fn lines() -> impl Iterator<Item = Line<'static>> {
    let written =
        STATEMENTS.lines().filter(|line| !line.is_empty() && !line.starts_with("# ") && *line != "#");
    written.map(|line| match line.strip_prefix("## ") {
        Some(heading) => Line::Heading(heading),
        None => {
            let fields: Vec<&str> = line.split('|').map(str::trim).collect();
            let [id, says, reason] = fields[..] else { panic!("{line:?} has three fields") };
            Line::Statement { id, says, reason }
        }
    })
}

/// The tests of each statement, as the sources of this suite say.
fn tests() -> BTreeMap<String, Vec<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the sources")
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let module = file.file_stem().expect("a name").to_string_lossy().into_owned();
        if matches!(&module[..], "main" | "page") {
            continue;
        }
        let source = std::fs::read_to_string(file).expect("readable");
        let mut pieces = source.split("covers!(");
        let mut before = pieces.next().unwrap_or_default();
        for piece in pieces {
            let (inside, after) = piece.split_once(");").expect("the macro ends");
            let (_, function) = before.rsplit_once("async fn ").expect("it stands in a test");
            let name = function.split('(').next().expect("a name");
            for id in inside.split('"').skip(1).step_by(2) {
                found.entry(id.to_owned()).or_default().push(format!("{module}::{name}"));
            }
            before = after;
        }
    }
    found
}

fn page(tests: &BTreeMap<String, Vec<String>>) -> String {
    let (mut tables, mut counts) = (String::new(), BTreeMap::<&str, usize>::new());
    let mut total = 0;
    for line in lines() {
        match line {
            Line::Heading(heading) => {
                write!(tables, "\n## {heading}\n\n| Statement | In short | Shown by |\n|---|---|---|\n")
                    .unwrap();
            }
            Line::Statement { id, says, reason } => {
                total += 1;
                let shown = match tests.get(id) {
                    Some(tests) => {
                        *counts.entry("covered").or_default() += 1;
                        let tests: Vec<String> = tests.iter().map(|test| format!("`{test}`")).collect();
                        tests.join(", ")
                    }
                    None => {
                        let (kind, reason) = reason.split_once(": ").unwrap_or(("", reason));
                        *counts.entry(kind).or_default() += 1;
                        let status =
                            if kind == "elsewhere" { "not covered here" } else { "not applicable" };
                        let who = if kind == "client" { " to a server" } else { "" };
                        format!("{status}{who}: {reason}")
                    }
                };
                writeln!(tables, "| {id} | {says} | {shown} |").unwrap();
            }
        }
    }
    let count = |kind| counts.get(kind).copied().unwrap_or_default();
    format!(
        "# MQTT conformance\n\n\
         The numbered normative statements of [MQTT 5.0](https://docs.oasis-open.org/mqtt/mqtt/v5.0/mqtt-v5.0.html), \
         all 251, and\nthose of [MQTT 3.1.1](https://docs.oasis-open.org/mqtt/mqtt/v3.1.1/mqtt-v3.1.1.html) that \
         differ, with the tests in\n`crates/broker/tests/conformance` that show them. The texts are ours and short; \
         the standard's words count. Beside what a\ntest names, every packet that the broker sends in any of them is \
         checked for reserved flags, reason codes, allowed and\nrepeated properties, and lengths.\n\n\
         Of {total} statements {} are covered, {} bind clients only, {} bind features that the broker does not \
         offer, and\n{} are tested elsewhere.\n\n\
         This page is made by `EDGEFAAS_UPDATE_DOCS=1 cargo test --release -p edgefaas-broker --test conformance \
         page`; the same\ntest fails when it is not up to date.\n{tables}",
        count("covered"),
        count("client"),
        count("unused"),
        count("elsewhere"),
    )
}

#[test]
fn every_statement_has_a_test_or_a_reason() {
    let tests = tests();
    let known: BTreeMap<&str, &str> = lines()
        .filter_map(|line| match line {
            Line::Statement { id, reason, .. } => Some((id, reason)),
            Line::Heading(_) => None,
        })
        .collect();
    assert_eq!(
        known.keys().filter(|id| id.starts_with("MQTT-")).count(),
        251,
        "the statements of MQTT 5.0"
    );
    let unknown: Vec<&String> = tests.keys().filter(|id| !known.contains_key(&id[..])).collect();
    assert!(unknown.is_empty(), "no such statements: {unknown:?}");
    for (id, reason) in known {
        let kind = reason.split_once(": ").map_or("", |(kind, _)| kind);
        let reasoned = matches!(kind, "client" | "unused" | "elsewhere");
        assert!(reasoned || reason.is_empty(), "{id}: {reason:?} starts with none of the known reasons");
        assert!(tests.contains_key(id) || reasoned, "{id} has neither a test nor a reason");
        assert!(!(tests.contains_key(id) && reasoned), "{id} has a test and a reason for having none");
    }
}

#[test]
fn the_page_is_in_step() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/mqtt-conformance.md");
    let expected = page(&tests());
    if std::env::var_os("EDGEFAAS_UPDATE_DOCS").is_some() {
        std::fs::write(&file, &expected).expect("writable");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == expected, "docs/mqtt-conformance.md is not up to date; see its head for the command");
}
