//! What is wrong with definitions, told with its place; and texts that are none.

mod any;
mod any_document;
mod flowcharts;
mod refused;
mod specification;

use proptest::prelude::*;

/// A definition that has something of everything.
const WHOLE: &str = include_str!("whole.yaml");

#[test]
fn the_whole_is_a_definition() {
    if let Err(error) = edgefaas_workflow::compile(WHOLE, "whole.yaml") {
        panic!("{error}");
    }
    (0..=255).for_each(|seed| assert!(any::definition(WHOLE, seed)));
}

#[test]
fn seeds_of_the_fuzzer() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/workflow");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        any::run(&std::fs::read(entry.unwrap().path()).unwrap());
        seeds += 1;
    }
    assert!(seeds > 0);
}

#[test]
fn seeds_of_documents() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/api_document");
    let mut seeds = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let seed = std::fs::read(entry.unwrap().path()).unwrap();
        // Also each beginning, and each seed without one of its bytes.
        for at in 0..=seed.len() {
            any_document::run(&seed[..at]);
            any_document::run(&[&seed[..at], seed.get(at + 1..).unwrap_or_default()].concat());
        }
        seeds += 1;
    }
    assert!(seeds > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        any::run(&bytes);
    }

    #[test]
    fn words_of_the_language(words in prop::collection::vec(word(), 0..60), seed in any::<u8>()) {
        any::definition(&words.concat(), seed);
    }

    #[test]
    fn lines_moved_and_changed(
        changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 1..6),
        seed in any::<u8>(),
    ) {
        let mut lines: Vec<String> = WHOLE.lines().map(str::to_owned).collect();
        for (index, change) in changes {
            let at = index.index(lines.len());
            let line = lines[at].clone();
            match change {
                Change::Remove => drop(lines.remove(at)),
                Change::Repeat => lines.insert(at, line),
                Change::Deeper => lines[at] = format!("  {line}"),
                Change::Higher => lines[at] = line.strip_prefix("  ").unwrap_or(&line).to_owned(),
                Change::Value(value) => {
                    if let Some((key, _)) = line.split_once(": ") {
                        lines[at] = format!("{key}: {value}");
                    }
                }
                Change::Character(position, character) => {
                    let cut = line.char_indices().nth(position.index(line.len().max(1))).map_or(line.len(), |(at, _)| at);
                    lines[at].insert(cut, character);
                }
            }
            if lines.is_empty() {
                break;
            }
        }
        any::definition(&lines.join("\n"), seed);
    }
}

#[derive(Debug, Clone)]
enum Change {
    Remove,
    Repeat,
    Deeper,
    Higher,
    Value(&'static str),
    Character(prop::sample::Index, char),
}

fn change() -> impl Strategy<Value = Change> {
    let values = prop::sample::select(vec![
        "null",
        "true",
        "-1",
        "1e400",
        "[]",
        "{}",
        "''",
        "'${ . }'",
        "'${'",
        "x",
        "[{a: {set: {}}}]",
        "{use: x}",
        "'P1D'",
        "99999999999999999999",
        "'${ $nobody }'",
        "'\u{0}'",
    ]);
    prop_oneof![
        Just(Change::Remove),
        Just(Change::Repeat),
        Just(Change::Deeper),
        Just(Change::Higher),
        values.prop_map(Change::Value),
        (any::<prop::sample::Index>(), any::<char>()).prop_map(|(at, c)| Change::Character(at, c)),
    ]
}

fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "document: {dsl: '1.0.0', namespace: a, name: b, version: '1'}\n",
        "do:\n",
        "  - a:\n",
        "      ",
        "set: ",
        "{x: 1}\n",
        "call: f\n",
        "with: ",
        "{",
        "}",
        "[",
        "]",
        ", ",
        ": ",
        "- ",
        "'",
        "\"",
        "${ .x }",
        "for: ",
        "in: ",
        "each: ",
        "try: ",
        "catch: ",
        "retry: ",
        "\n",
        "  ",
        "listen: ",
        "to: ",
        "one: ",
        "type: ",
        "&a ",
        "*a",
        "!t ",
        "|\n",
        "# ",
        "---\n",
        "then: ",
        "end\n",
        "if: ",
        "é",
        "\t",
    ])
}
