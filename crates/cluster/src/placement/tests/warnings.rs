//! Warnings about valid policies.

use proptest::prelude::*;

use super::against_reference::world;
use crate::placement::{Known, KnownFunction, Policy, Worker, Workers, check};

fn warnings(text: &str) -> Vec<(u32, String)> {
    let worker = |node_id, name: &str, zone: &str, labels: &[&str]| Worker {
        node_id,
        name: name.into(),
        zone: Some(zone.into()),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
    };
    let local = worker(1, "pi-1", "north", &["camera"]);
    let workers = Workers::new(local, [worker(2, "pi-2", "south", &["gpu"])]);
    let function = |name: &str, tag: &str| KnownFunction { name: name.into(), tag: Some(tag.into()) };
    let functions = [function("divide", "t"), KnownFunction { name: "plain".into(), tag: None }];
    let known = Known { workers: Some(&workers), functions: Some(&functions) };
    let policy = Policy::parse(text).unwrap_or_else(|error| panic!("{error}"));
    check(&policy, &known)
        .into_iter()
        .map(|warning| (warning.place.line, warning.kind.to_string()))
        .collect()
}

#[track_caller]
fn only(text: &str, line: u32, part: &str) {
    match warnings(text).as_slice() {
        [(at, message)] if *at == line && message.contains(part) => {}
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn unknown_names_are_named_with_the_nearest() {
    only("t:\n - workers: [pi-1, pi-3]\n", 2, "no member has the name `pi-3`; did you mean `pi-1`?");
    only("t:\n - workers: \"*\"\n   controller: pi-22\n", 3, "did you mean `pi-2`?");
    only("t:\n - workers: [pi-1, {set: camra}]\n", 2, "label or the zone `camra`; did you mean `camera`?");
    only("t:\n - workers: \"*\"\n   prefer: [nort]\n", 3, "did you mean `north`?");
    only(
        "t:\n - workers: \"*\"\n   affinity: [\"!divid\"]\n",
        3,
        "function `divid`; did you mean `divide`?",
    );
}

#[test]
fn a_misspelt_tag_is_named_on_both_sides() {
    let found = warnings("tt: [workers: \"*\"]\n");
    assert_eq!(found.len(), 2, "{found:?}");
    let missing = "the policy has no tag `t` and no tag `default`: calls of `divide` run as without a policy; did you mean `tt`?";
    assert_eq!(found[0], (0, missing.to_owned()));
    assert_eq!(
        found[1],
        (1, "no deployed function has `placement = \"tt\"`; did you mean `t`?".to_owned())
    );
    only("tt: [workers: \"*\"]\ndefault: [workers: \"*\"]\n", 1, "no deployed function");
    assert_eq!(warnings("default: [workers: \"*\"]\n"), []);
}

#[test]
fn a_block_that_an_earlier_one_covers_is_unreachable() {
    let pair = |first: &str, second: &str| {
        let found = warnings(&format!("t:\n - {{{first}}}\n - {{{second}}}\n"));
        let is = |part: &str| found.iter().any(|(line, message)| *line == 3 && message.contains(part));
        is("is never used: the block in line 2")
    };
    let all = "workers: \"*\", strategy: random";
    assert!(pair(all, all));
    assert!(pair(all, "workers: [pi-1], strategy: nearest"));
    assert!(pair("workers: [{set:}], strategy: random", "workers: [{set: gpu}], strategy: random"));
    assert!(pair(
        "workers: [{set: gpu}], strategy: random",
        "workers: [{set: [gpu, south]}], strategy: random"
    ));
    assert!(!pair(
        "workers: [{set: [gpu, south]}], strategy: random",
        "workers: [{set: gpu}], strategy: random"
    ));
    assert!(!pair("workers: [pi-1], strategy: random", all));
    // Limits.
    assert!(!pair(&format!("{all}, invalidate: [{{capacity_used: 50}}]"), all));
    assert!(pair(
        &format!("{all}, invalidate: [{{capacity_used: 50}}]"),
        &format!("{all}, invalidate: [{{capacity_used: 40}}]")
    ));
    assert!(!pair(
        &format!("{all}, invalidate: [{{capacity_used: 40}}]"),
        &format!("{all}, invalidate: [{{capacity_used: 50}}]")
    ));
    // Full workers are used by `platform` only.
    assert!(!pair(all, "workers: \"*\""));
    assert!(pair("workers: \"*\"", all));
    // Controllers.
    assert!(pair(&format!("{all}, controller: pi-1"), all));
    assert!(!pair(&format!("{all}, controller: pi-1, topology_tolerance: none"), all));
    let same = format!("{all}, controller: pi-1, topology_tolerance: same");
    assert!(pair(&same, &same));
    // Affinity.
    assert!(!pair(&format!("{all}, affinity: [divide]"), all));
    assert!(pair(all, &format!("{all}, affinity: [divide]")));
    // In a random order each block is used.
    assert_eq!(warnings("t: [{workers: \"*\"}, {workers: \"*\"}, strategy: random]"), []);
}

#[test]
fn an_entry_with_the_workers_of_an_earlier_one_has_no_effect() {
    only(
        "t:\n - workers:\n    - pi-1\n    - wrk: pi-1\n",
        4,
        "the entry in line 3 has its workers already",
    );
    only("t:\n - workers:\n    - set: gpu\n    - set: [gpu, south]\n", 4, "the entry in line 3");
    only("t:\n - workers:\n    - set:\n    - pi-1\n", 4, "the entry in line 3");
    let limited = "t:\n - workers:\n    - set:\n    - wrk: pi-1\n      invalidate: [{capacity_used: 50}]\n";
    assert_eq!(warnings(limited), []);
}

#[test]
fn full_workers_before_the_next_block_are_a_surprise() {
    only("t:\n - workers: [pi-1, pi-2]\n - workers: \"*\"\n", 2, "write `invalidate: overload`");
    only("t:\n - workers: [{set: north}]\n - workers: [pi-2]\n", 2, "write `invalidate: overload`");
    assert_eq!(warnings("t:\n - workers: [pi-1]\n - workers: \"*\"\n"), []);
    assert_eq!(warnings("t:\n - {workers: [pi-1], invalidate: overload}\n - workers: [pi-2]\n"), []);
}

#[test]
fn a_tag_that_fits_nobody_is_named() {
    let text = "t:\n - {workers: [{set: [gpu, north]}], strategy: random}\n - followup: fail\n";
    let found = warnings(text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].1.contains("tag `t` fits no member"), "{found:?}");
    assert!(found[1].1.contains("block 1 of tag `t` fits no member"), "{found:?}");
    only("t:\n - {workers: [{set: [gpu, north]}], strategy: random}\n", 2, "block 1");
}

#[test]
fn without_a_cluster_only_the_text_is_checked() {
    let policy = Policy::parse("t: [{workers: [x, {set: y}], affinity: [z]}, followup: fail]").unwrap();
    assert_eq!(check(&policy, &Known::default()), []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_048, ..ProptestConfig::default() })]

    /// A block that is never used can be removed: the decisions are the same.
    #[test]
    fn an_unreachable_block_has_no_influence(world in world(), random: u64) {
        use crate::placement::WarningKind::UnreachableBlock;
        let mut without = world.clone();
        let mut removed = false;
        for tag in &mut without.policy.tags {
            let unreachable: Vec<usize> = check(&world.policy, &Known::default())
                .into_iter()
                .filter_map(|warning| match warning.kind {
                    UnreachableBlock { tag: name, number, .. } if name == tag.name => Some(number),
                    _ => None,
                })
                .collect();
            removed |= !unreachable.is_empty();
            let mut number = 0;
            tag.blocks.retain(|_| {
                number += 1;
                !unreachable.contains(&number)
            });
        }
        // About one policy of six has such a block.
        if !removed {
            return Ok(());
        }
        let allowed = super::reference::allowed(&without);
        prop_assert_eq!(&allowed, &super::reference::allowed(&world));
        prop_assert_eq!(world.prepare().place(&world, random).is_some(), !allowed.is_empty());
    }
}
