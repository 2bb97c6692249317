//! Each rule of the language, on a small cluster.

use super::world::{MIB, Member, World};
use crate::placement::{Decision, Health, WorkerSet};

/// Two in the north and two in the south; this node is `n1`.
fn four() -> Vec<Member> {
    vec![
        Member::new("n1", "north").labels(&["ssd"]),
        Member::new("n2", "north").load(|load| load.rtt_us = 500),
        Member::new("s1", "south").load(|load| load.rtt_us = 82_000).labels(&["gpu"]),
        Member::new("s2", "south").load(|load| load.rtt_us = 82_000).labels(&["gpu", "ssd"]),
    ]
}

fn on(policy: &str) -> World {
    World::new(policy, "t", four())
}

fn change(mut world: World, name: &str, change: impl FnOnce(&mut Member)) -> World {
    change(world.members.iter_mut().find(|member| member.name == name).expect("a member"));
    world
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn fill(member: &mut Member) {
    member.load.permits_free = 0;
}

#[test]
fn without_a_tag_and_a_default_a_call_stays_here() {
    let mut world = on("t: [workers: [s1]]");
    world.tag = None;
    assert!(!world.prepare().function.has_policy());
    assert_eq!(world.prepare().decide(&world, 0), Decision::Local);
    assert_eq!(world.always().as_deref(), Some("n1"));
    let world = change(world, "n1", fill);
    assert_eq!(world.always().as_deref(), Some("n1"), "as without a cluster: it waits here");
    let world = change(world, "n1", |member| member.has_code = false);
    assert_eq!(world.always().as_deref(), Some("n2"), "the nearest with the code");
}

#[test]
fn the_default_tag_is_for_functions_without_a_tag_and_with_an_unknown_one() {
    let mut world = on("default: [workers: [s1]]");
    assert_eq!(world.always().as_deref(), Some("s1"));
    world.tag = None;
    assert_eq!(world.always().as_deref(), Some("s1"));
}

#[test]
fn blocks_are_tried_in_order_and_then_the_followup() {
    let text =
        "t:\n  - workers: [s1]\n    strategy: best-first\n  - workers: [s2]\n    strategy: best-first\n";
    let full = |text: &str| change(change(on(text), "s1", fill), "s2", fill);
    assert_eq!(on(text).always().as_deref(), Some("s1"));
    assert_eq!(change(on(text), "s1", fill).always().as_deref(), Some("s2"));
    assert_eq!(full(&format!("{text}  - followup: fail\n")).always(), None);
    assert_eq!(
        full(&format!("{text}  - followup: default\n")).always().as_deref(),
        Some("n1"),
        "no policy applies"
    );
    let default = "default: [{workers: [n2], strategy: best-first}, followup: fail]\n";
    assert_eq!(full(&format!("{text}{default}")).always().as_deref(), Some("n2"));
    assert_eq!(change(full(&format!("{text}{default}")), "n2", fill).always(), None);
}

#[test]
fn a_random_order_of_blocks_uses_each() {
    let world = on("t: [{workers: [s1]}, {workers: [s2]}, {workers: [n2]}, strategy: random]");
    assert_eq!(world.sometimes(200), names(&["n2", "s1", "s2"]));
}

#[test]
fn platform_spreads_functions_and_keeps_each_on_one_worker() {
    let mut world = on("t: [workers: \"*\"]");
    let mut used = std::collections::BTreeSet::new();
    for function in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"] {
        world.function = function.into();
        used.insert(world.always().unwrap());
    }
    assert_eq!(used.len(), 4, "{used:?}");
    let home = world.always().unwrap();
    let next = change(world.clone(), &home, fill).always().unwrap();
    assert_ne!(home, next);
    // All are full: any healthy one. With `next-coprime`, and with limits, the next block.
    let all_full = |text: &str| {
        let mut world = World::new(text, "t", four());
        world.members.iter_mut().for_each(fill);
        change(world, "s2", |member| member.load.health = Health::Draining)
    };
    assert_eq!(all_full("t: [workers: \"*\"]").sometimes(100), names(&["n1", "n2", "s1"]));
    assert_eq!(all_full("t: [{workers: \"*\", strategy: next-coprime}, followup: fail]").always(), None);
    assert_eq!(all_full("t: [{workers: \"*\", invalidate: overload}, followup: fail]").always(), None);
}

#[test]
fn random_uses_all_usable_workers_equally() {
    let world = change(on("t: [{workers: \"*\", strategy: random}]"), "n2", fill);
    let prepared = world.prepare();
    let mut counts = std::collections::BTreeMap::new();
    for random in 0..3_000 {
        *counts.entry(prepared.place(&world, random).unwrap()).or_insert(0) += 1;
    }
    assert_eq!(counts.len(), 3, "{counts:?}");
    assert!(counts.values().all(|count| (850..1_150).contains(count)), "{counts:?}");
}

#[test]
fn the_least_loaded_of_two_and_never_the_worst() {
    let text = "t: [{workers: \"*\", strategy: least-loaded}]";
    let busy = change(on(text), "s1", |member| member.load.running = 9);
    assert_eq!(busy.sometimes(200), names(&["n1", "n2", "s2"]));
    let pressed = change(on(text), "n2", |member| member.load.pressure_permille = 1);
    assert_eq!(pressed.sometimes(200), names(&["n1", "s1", "s2"]));
    let two = World::new(text, "t", four()[..2].to_vec());
    assert_eq!(two.always().as_deref(), Some("n1"), "of equal ones this node");
}

#[test]
fn nearest_is_here_and_then_by_the_round_trip() {
    let text = "t: [{workers: \"*\", strategy: nearest}]";
    assert_eq!(on(text).always().as_deref(), Some("n1"));
    let away = change(on(text), "n1", fill);
    assert_eq!(away.always().as_deref(), Some("n2"));
    let south = change(away, "n2", fill);
    assert_eq!(south.sometimes(50), names(&["s1", "s2"]), "equally near");
    let loaded = change(south.clone(), "s1", |member| member.load.running = 1);
    assert_eq!(loaded.always().as_deref(), Some("s2"));
    let farther = change(south, "s2", |member| member.load.rtt_us = 110_000);
    assert_eq!(farther.always().as_deref(), Some("s1"));
}

#[test]
fn data_is_a_holder_then_its_zone_then_the_nearest() {
    let text = "t: [{workers: \"*\", strategy: data}]";
    let held = change(on(text), "s2", |member| member.has_data = true);
    assert_eq!(held.always().as_deref(), Some("s2"));
    let beside = change(held, "s2", fill);
    assert_eq!(beside.always().as_deref(), Some("s1"));
    assert_eq!(on(text).always().as_deref(), Some("n1"), "no member holds them");
}

#[test]
fn a_set_is_workers_with_all_labels_and_a_zone_is_a_label() {
    let first = |workers: &str| {
        on(&format!("t: [{{workers: {workers}, strategy: random}}, followup: fail]")).sometimes(100)
    };
    assert_eq!(first("[{set: south}]"), names(&["s1", "s2"]));
    assert_eq!(first("[{set: [south, ssd]}]"), names(&["s2"]));
    assert_eq!(first("[{set: [north, gpu]}]"), names(&[]));
    assert_eq!(first("[set:]"), names(&["n1", "n2", "s1", "s2"]));
    assert_eq!(first("[n2, {set: gpu}]"), names(&["n2", "s1", "s2"]));
}

#[test]
fn a_set_with_its_own_strategy_is_one_entry() {
    let text = "t: [{workers: [{set: gpu, strategy: random}, n2], strategy: best-first}]";
    assert_eq!(on(text).sometimes(100), names(&["s1", "s2"]));
    let full = change(change(on(text), "s1", fill), "s2", fill);
    assert_eq!(full.always().as_deref(), Some("n2"));
    // Without a strategy it stands for its workers in the order of their names.
    assert_eq!(
        on("t: [{workers: [{set: gpu}, n2], strategy: best-first}]").always().as_deref(),
        Some("s1")
    );
}

#[test]
fn the_nearest_limit_counts() {
    let text = "t: [{workers: [{wrk: n2, invalidate: [{capacity_used: 80}]}, {set: south}], strategy: best-first, invalidate: [{capacity_used: 50}, {max_concurrent_invocations: 3}]}]";
    let used = |name: &str, percent: u64| {
        change(on(text), name, |member| member.load.memory_free_bytes = (100 - percent) * MIB)
    };
    assert_eq!(used("n2", 79).always().as_deref(), Some("n2"), "its own limit");
    assert_eq!(used("n2", 80).always().as_deref(), Some("s1"), "from the limit on");
    let both = change(used("n2", 80), "s1", |member| member.load.memory_free_bytes = 50 * MIB);
    assert_eq!(both.always().as_deref(), Some("s2"), "the block's");
    let many = change(on(text), "n2", |member| (member.load.running, member.load.queued) = (2, 1));
    assert_eq!(many.always().as_deref(), Some("s1"), "the block's other limit holds for it, too");
    let sent = change(on(text), "n2", |member| member.load.in_flight = 3);
    assert_eq!(
        sent.always().as_deref(),
        Some("s1"),
        "calls of this node count before a heartbeat tells of them"
    );
}

#[test]
fn a_wrk_entry_is_nearer_than_a_set_and_a_worker_has_its_first_place() {
    let text = "t: [{workers: [{set: south}, {wrk: s1, invalidate: [{max_concurrent_invocations: 1}]}], strategy: best-first}]";
    assert_eq!(on(text).always().as_deref(), Some("s1"));
    let one = change(on(text), "s1", |member| member.load.running = 1);
    assert_eq!(one.always().as_deref(), Some("s2"));
}

#[test]
fn overload_is_always_checked() {
    let text = "t: [{workers: [s1, s2], strategy: best-first}]";
    let short = change(on(text), "s1", |member| member.load.memory_free_bytes = MIB - 1);
    assert_eq!(short.always().as_deref(), Some("s2"));
    for health in [Health::Away, Health::Draining, Health::Failing] {
        let unwell = change(on(text), "s1", |member| member.load.health = health);
        assert_eq!(unwell.always().as_deref(), Some("s2"));
    }
    let backing_off = change(on(text), "s1", |member| member.load.back_off_until_ms = 1_001);
    assert_eq!(backing_off.always().as_deref(), Some("s2"));
    let refused = change(on(text), "s1", |member| member.has_refused = true);
    assert_eq!(refused.always().as_deref(), Some("s2"));
    let without = change(on(text), "s1", |member| member.has_code = false);
    assert_eq!(without.always().as_deref(), Some("s2"));
}

#[test]
fn a_controller_that_is_there_puts_its_zone_first() {
    let text = "t: [{controller: s1, workers: \"*\", strategy: random}]";
    assert_eq!(on(text).sometimes(100), names(&["s1", "s2"]));
    let one = change(on(text), "s1", fill);
    assert_eq!(one.always().as_deref(), Some("s2"));
    let north = change(one, "s2", fill);
    assert_eq!(north.sometimes(100), names(&["n1", "n2"]));
    let listed = on("t: [{controller: s1, workers: [n2, s1], strategy: random}]");
    assert_eq!(listed.sometimes(100), names(&["n2", "s1"]), "only where workers are \"*\"");
}

#[test]
fn topology_tolerance_says_what_happens_without_the_controller() {
    let away = |tolerance: &str| {
        let text = format!(
            "t: [{{controller: s1, topology_tolerance: {tolerance}, workers: \"*\", strategy: random}}, followup: fail]"
        );
        change(on(&text), "s1", |member| member.load.health = Health::Away)
    };
    assert_eq!(away("all").sometimes(100), names(&["n1", "n2"]), "this node's zone comes first");
    assert_eq!(away("same").sometimes(100), names(&["s2"]));
    assert_eq!(change(away("same"), "s2", fill).always(), None, "and no other zone");
    assert_eq!(away("none").always(), None);
    let refusal = away("none").explain(0).steps.pop().unwrap();
    assert!(refusal.contains("controller away in 1 block(s)"), "{refusal}");
    // Each block has its own.
    let text = "t: [{controller: s1, topology_tolerance: none, workers: \"*\"}, {controller: s1, topology_tolerance: same, workers: \"*\"}]";
    let both = change(on(text), "s1", |member| member.load.health = Health::Away);
    assert_eq!(both.always().as_deref(), Some("s2"));
}

#[test]
fn preferred_labels_come_first_and_are_not_required() {
    let text = "t: [{workers: \"*\", strategy: random, prefer: [gpu, ssd]}]";
    assert_eq!(on(text).sometimes(100), names(&["s1", "s2"]));
    let ssd = change(change(on(text), "s1", fill), "s2", fill);
    assert_eq!(ssd.always().as_deref(), Some("n1"));
    assert_eq!(change(ssd, "n1", fill).always().as_deref(), Some("n2"));
}

#[test]
fn affinity_looks_at_the_functions_that_run_there_now() {
    let text = "t: [{workers: \"*\", strategy: random, affinity: [divide, \"!heavy\"]}, followup: fail]";
    assert_eq!(on(text).always(), None);
    let runs = |world, name: &str, functions: &[&str]| {
        change(world, name, |member| member.runs = names(functions))
    };
    let world = runs(runs(on(text), "s1", &["divide", "heavy"]), "s2", &["divide"]);
    assert_eq!(world.always().as_deref(), Some("s2"));
}

#[test]
fn a_sticky_key_keeps_its_worker_while_others_come_and_go() {
    let mut world = on("t: [{workers: \"*\", strategy: random, sticky: true}]");
    assert_eq!(world.sometimes(200).len(), 4, "without a key the strategy chooses");
    let mut used = std::collections::BTreeSet::new();
    for key in 0..50 {
        world.key = Some(key);
        let home = world.always().unwrap();
        let other = if home == "s1" { "s2" } else { "s1" };
        assert_eq!(change(world.clone(), other, fill).always().as_ref(), Some(&home));
        assert_ne!(change(world.clone(), &home, fill).always().as_ref(), Some(&home));
        used.insert(home);
    }
    assert_eq!(used.len(), 4);
}

#[test]
fn isolated_closes_workers_of_other_zones_but_not_those_without_a_zone() {
    let text = "distribution: isolated\nt: [{workers: \"*\", strategy: random}]";
    let world = change(on(text), "s1", |member| member.zone = None);
    assert_eq!(world.sometimes(100), names(&["n1", "n2", "s1"]));
}

#[test]
fn an_explanation_tells_why() {
    let text = "t:\n  - controller: s1\n    topology_tolerance: none\n    workers: \"*\"\n  - workers: [s1, s2, n2]\n    strategy: best-first\n    invalidate: [{capacity_used: 50}]\n";
    let world = change(on(text), "s1", |member| member.load.health = Health::Away);
    let world = change(world, "s2", |member| member.load.memory_free_bytes = 20 * MIB);
    let steps = world.explain(7).steps;
    let expected = [
        "tag `t` (line 1)",
        "block 1 of tag `t` (line 2)",
        "  controller `s1` is away: the block is refused (`topology_tolerance: none`)",
        "  no worker of the block is usable",
        "block 2 of tag `t` (line 5)",
        "  s1 is skipped: it is away",
        "  s2 is skipped: it uses 80.0 % of its memory, `capacity_used` is 50",
        "  usable: n2",
        "  n2 is chosen by strategy `best-first`",
    ];
    assert_eq!(steps, expected);
}

#[test]
fn an_explanation_of_a_sticky_block_names_the_calls_with_a_key() {
    let steps = on("t: [{workers: [s1], strategy: random, sticky: true}]").explain(7).steps;
    let at = steps.iter().position(|step| step.contains("the block is `sticky`")).expect("a step");
    assert!(steps[at].contains("this call has no key"), "{steps:?}");
    assert_eq!(steps[at + 1], "  s1 is chosen by strategy `random`");
}

#[test]
fn a_refusal_counts_its_reasons() {
    let world = on("t: [{workers: [s1, s2, n2], strategy: best-first}, followup: fail]");
    let world = change(change(world, "s1", fill), "s2", fill);
    let world = change(world, "n2", |member| member.load.health = Health::Away);
    let Decision::Refused(refusal) = world.prepare().decide(&world, 3) else { panic!("it is refused") };
    assert_eq!(refusal.to_string(), "no usable worker: 1 away, 2 full");
    let nobody = on("t: [{workers: [x]}, followup: fail]");
    let Decision::Refused(refusal) = nobody.prepare().decide(&nobody, 3) else { panic!("it is refused") };
    assert_eq!(refusal.to_string(), "the policy names no member of the cluster");
}

#[test]
fn sets_of_workers_keep_their_order() {
    let set: WorkerSet = [700, 3, 64, 63, 1_023, 9_000].into_iter().collect();
    assert_eq!(set.iter().collect::<Vec<_>>(), [3, 63, 64, 700, 1_023]);
    assert_eq!(
        (set.len(), set.contains(64), set.contains(65), set.contains(9_000)),
        (5, true, false, false)
    );
}
