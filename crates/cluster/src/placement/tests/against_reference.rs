//! `place` and `explain` against the literal reading, for generated policies and clusters.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::reference::allowed;
use super::world::{MIB, Member, World};
use crate::placement::{Decision, Health, Load, Policy};

const NAMES: [&str; 7] = ["w0", "w1", "w2", "w3", "w4", "w5", "w6"];
const LABELS: [&str; 4] = ["x", "y", "north", "south"];
const TAGS: [&str; 3] = ["default", "one", "two"];
const STRATEGIES: [&str; 7] =
    ["best-first", "random", "platform", "next-coprime", "least-loaded", "nearest", "data"];

fn limits() -> impl Strategy<Value = String> {
    let percent = select(vec![10, 50, 51, 90, 100]);
    prop_oneof![
        4 => Just(String::new()),
        2 => percent.prop_map(|percent| format!(", invalidate: [{{capacity_used: {percent}}}]")),
        2 => (1..6_u32).prop_map(|count| format!(", invalidate: [{{max_concurrent_invocations: {count}}}]")),
        1 => Just(", invalidate: overload".to_owned()),
        1 => (1..6_u32).prop_map(|count| format!(
            ", invalidate: [overload, {{capacity_used: 90%, max_concurrent_invocations: {count}}}]"
        )),
    ]
}

fn strategy() -> impl Strategy<Value = String> {
    prop_oneof![
        1 => Just(String::new()),
        3 => select(STRATEGIES.to_vec()).prop_map(|strategy| format!(", strategy: {strategy}")),
    ]
}

fn entry() -> impl Strategy<Value = String> {
    let labels = prop_oneof![
        1 => Just(String::new()),
        3 => select(LABELS.to_vec()).prop_map(str::to_owned),
        2 => subsequence(LABELS.to_vec(), 1..3).prop_map(|labels| format!("[{}]", labels.join(", "))),
    ];
    prop_oneof![
        1 => select(NAMES.to_vec()).prop_map(str::to_owned),
        1 => Just("stranger".to_owned()),
        3 => (select(NAMES.to_vec()), limits()).prop_map(|(name, limits)| format!("{{wrk: {name}{limits}}}")),
        3 => (labels, strategy(), limits())
            .prop_map(|(labels, strategy, limits)| format!("{{set: {labels}{strategy}{limits}}}")),
    ]
}

fn block() -> impl Strategy<Value = String> {
    let controller = prop_oneof![
        3 => Just(String::new()),
        1 => Just(", controller: \"*\"".to_owned()),
        4 => (select([NAMES.as_slice(), &["stranger"]].concat()), select(vec!["all", "same", "none"]))
            .prop_map(|(name, tolerance)| format!(", controller: {name}, topology_tolerance: {tolerance}")),
    ];
    let workers = prop_oneof![
        1 => Just("\"*\"".to_owned()),
        2 => vec(entry(), 1..5).prop_map(|entries| format!("[{}]", entries.join(", "))),
    ];
    let prefer = prop_oneof![
        2 => Just(String::new()),
        1 => subsequence(LABELS.to_vec(), 1..3).prop_map(|labels| format!(", prefer: [{}]", labels.join(", "))),
    ];
    let affinity = prop_oneof![
        4 => Just(String::new()),
        1 => select(vec!["divide", "\"!heavy\"", "\"!divide\", heavy"])
            .prop_map(|functions| format!(", affinity: [{functions}]")),
    ];
    let sticky = prop_oneof![3 => Just(""), 1 => Just(", sticky: true")];
    (workers, controller, strategy(), limits(), prefer, affinity, sticky).prop_map(
        |(workers, controller, strategy, limits, prefer, affinity, sticky)| {
            format!("{{workers: {workers}{controller}{strategy}{limits}{prefer}{affinity}{sticky}}}")
        },
    )
}

fn policy() -> impl Strategy<Value = String> {
    let order = prop_oneof![2 => Just(""), 1 => Just(", {strategy: random}"), 1 => Just(", {strategy: best-first}")];
    let followup =
        prop_oneof![1 => Just(""), 1 => Just(", {followup: fail}"), 1 => Just(", {followup: default}")];
    let tag = (vec(block(), 1..4), order, followup)
        .prop_map(|(blocks, order, followup)| format!("[{}{order}{followup}]", blocks.join(", ")));
    let distribution = select(vec!["", "distribution: shared\n", "distribution: isolated\n"]);
    (subsequence(TAGS.to_vec(), 1..4), vec(tag, 3), distribution).prop_map(|(names, tags, distribution)| {
        let tags = names.iter().zip(tags).map(|(name, tag)| format!("{name}: {tag}\n"));
        format!("{distribution}{}", tags.collect::<String>())
    })
}

prop_compose! {
    fn load()(
        health in prop_oneof![
            8 => Just(Health::Up), 1 => Just(Health::Draining), 1 => Just(Health::Failing), 2 => Just(Health::Away)
        ],
        memory_free in select(vec![0, 1, 10, 49, 50, 51, 100]),
        permits_free in prop_oneof![1 => Just(0_u32), 3 => 1..10_u32],
        running in 0..6_u32,
        queued in 0..2_u32,
        in_flight in 0..8_u32,
        pressure_permille in select(vec![0_u16, 300, 900]),
        rtt_us in select(vec![200_u32, 900, 1_500, 4_000, 4_900, 80_000]),
        back_off_until_ms in select(vec![0_u64, 0, 0, 1_000, 1_001]),
    ) -> Load {
        Load {
            health,
            memory_free_bytes: memory_free * MIB,
            memory_total_bytes: 100 * MIB,
            permits_free,
            permits_total: 10,
            running,
            queued,
            in_flight,
            pressure_permille,
            rtt_us,
            back_off_until_ms,
        }
    }
}

prop_compose! {
    fn member()(
        load in load(),
        zone in select(vec![None, Some("north"), Some("south")]),
        labels in subsequence(vec!["x", "y"], 0..=2),
        has_code in prop::bool::weighted(0.85),
        has_data in prop::bool::weighted(0.3),
        has_refused in prop::bool::weighted(0.1),
        runs in subsequence(vec!["divide", "heavy"], 0..=2),
    ) -> Member {
        Member {
            name: String::new(),
            zone: zone.map(str::to_owned),
            labels: labels.into_iter().map(str::to_owned).collect(),
            load,
            has_code,
            has_data,
            has_refused,
            runs: runs.into_iter().map(str::to_owned).collect(),
        }
    }
}

prop_compose! {
    pub(super) fn world()(
        text in policy(),
        mut members in vec(member(), 1..NAMES.len()),
        rotation in 0..NAMES.len(),
        function in "[a-z]{1,6}",
        tag in select(vec![None, Some("one"), Some("two"), Some("unknown")]),
        key in prop::option::of(any::<u64>()),
    ) -> World {
        for (index, member) in members.iter_mut().enumerate() {
            member.name = NAMES[(index + rotation) % NAMES.len()].to_owned();
        }
        World {
            policy: Policy::parse(&text).unwrap_or_else(|error| panic!("{}", error.report("generated", &text))),
            members,
            function,
            tag: tag.map(str::to_owned),
            key,
            memory_bytes: 2 * MIB,
            now_ms: 1_000,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, max_shrink_iters: 4_096, ..ProptestConfig::default() })]

    #[test]
    fn a_decision_is_one_that_the_language_allows(world in world(), randoms in vec(any::<u64>(), 8)) {
        let allowed = allowed(&world);
        let prepared = world.prepare();
        for random in randoms {
            match prepared.place(&world, random) {
                Some(name) => prop_assert!(allowed.contains(&name), "{name} is not of {allowed:?}"),
                None => prop_assert!(allowed.is_empty(), "refused, but {allowed:?} may be used"),
            }
        }
    }

    #[test]
    fn an_explanation_has_the_same_decision(world in world(), random: u64) {
        let decision = world.prepare().decide(&world, random);
        let explanation = world.explain(random);
        prop_assert_eq!(explanation.decision, decision);
        let last = explanation.steps.last().expect("a step");
        match decision {
            Decision::Refused(_) => prop_assert!(last.starts_with("refused: "), "{}", last),
            _ => prop_assert!(last.contains(" is chosen "), "{}", last),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn every_allowed_worker_is_chosen_by_some_random_number(world in world()) {
        // The rarest outcome has a probability over 1 in 500.
        let found = world.sometimes(10_000);
        prop_assert_eq!(found, allowed(&world).into_iter().collect::<Vec<_>>());
    }
}
