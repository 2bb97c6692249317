//! The text of policies: what is accepted, and the problems of what is not.

use proptest::prelude::*;

use crate::placement::{
    BlockOrder, Distribution, Fault, Followup, Known, Limits, Place, Policy, Strategy, Target, Tolerance,
    WorkerList, check,
};

fn faults(text: &str) -> Vec<(u32, u32, String)> {
    let error = Policy::parse(text).expect_err(text);
    let all = error.problems.iter();
    all.map(|problem| (problem.place.line, problem.place.column, problem.fault.to_string())).collect()
}

#[test]
fn the_published_example_is_read() {
    let text = r#"
default:
  - controller: "*"
    workers: "*"
    strategy: random
    invalidate: [ { capacity_used: 50 }, { max_concurrent_invocations: 100 } ]
  - followup: default
mongoDB:
  - controller: "AzureWorker2"
    topology_tolerance: "same"
    workers:
      - wrk: node-a
        invalidate: overload
      - set: eu
        strategy: random
        invalidate:
          - capacity_used: 80%
      - set:
    strategy: best-first
  - followup: fail
"#;
    let policy = Policy::parse(text).unwrap();
    assert_eq!(policy.distribution, Distribution::Default);
    let default = policy.tag("default").unwrap();
    assert_eq!(default.place, Place { line: 2, column: 1 });
    assert_eq!(default.followup, Followup::Default);
    let [block] = default.blocks.as_slice() else { panic!("{default:?}") };
    assert_eq!((block.place.line, &block.controller, &block.workers), (3, &None, &WorkerList::All));
    assert_eq!(block.strategy, Strategy::Random);
    let limits =
        Limits { capacity_used_percent: Some(50), max_concurrent_invocations: Some(100), overload: false };
    assert_eq!(block.limits, limits);

    let mongo = policy.tag("mongoDB").unwrap();
    assert_eq!(mongo.followup, Followup::Fail);
    let [block] = mongo.blocks.as_slice() else { panic!("{mongo:?}") };
    let controller = block.controller.as_ref().unwrap();
    assert_eq!((controller.name.text.as_str(), controller.tolerance), ("AzureWorker2", Tolerance::Same));
    let WorkerList::Listed(entries) = &block.workers else { panic!("{block:?}") };
    let Target::Worker(name) = &entries[0].target else { panic!("{entries:?}") };
    assert_eq!((name.text.as_str(), entries[0].limits.overload), ("node-a", true));
    let Target::Set { labels, strategy } = &entries[1].target else { panic!("{entries:?}") };
    assert_eq!((labels[0].text.as_str(), *strategy), ("eu", Some(Strategy::Random)));
    assert_eq!(entries[1].limits.capacity_used_percent, Some(80));
    assert_eq!(entries[2].target, Target::Set { labels: Vec::new(), strategy: None });
}

#[test]
fn the_list_form_of_the_artefact_is_read() {
    let text = "- distribution: isolated\n- one:\n    - workers:\n        - set:\n  strategy: random\n  followup: fail\n- two:\n    - workers: [a, b]\n";
    let policy = Policy::parse(text).unwrap();
    assert_eq!(policy.distribution, Distribution::Isolated);
    let names: Vec<&str> = policy.tags.iter().map(|tag| tag.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!((policy.tags[0].order, policy.tags[0].followup), (BlockOrder::Random, Followup::Fail));
    assert_eq!(policy.tags[1].followup, Followup::Default);
}

#[test]
fn additions_are_read() {
    let text = "t:\n  - workers: [{set: [gpu, eu]}]\n    strategy: data\n    prefer: [ssd, near]\n    affinity: [divide, \"!heavy\"]\n    sticky: true\n  - strategy: random\n";
    let policy = Policy::parse(text).unwrap();
    let tag = policy.tag("t").unwrap();
    assert_eq!((tag.order, tag.blocks.len()), (BlockOrder::Random, 1));
    let block = &tag.blocks[0];
    assert_eq!((block.strategy, block.sticky), (Strategy::Data, true));
    let prefer: Vec<&str> = block.prefer.iter().map(|name| name.text.as_str()).collect();
    assert_eq!(prefer, ["ssd", "near"]);
    let affinity: Vec<_> =
        block.affinity.iter().map(|one| (one.function.text.as_str(), one.rule)).collect();
    use crate::placement::AffinityRule::{Runs, RunsNot};
    assert_eq!(affinity, [("divide", Runs), ("heavy", RunsNot)]);
}

#[test]
fn every_problem_has_its_place_and_a_remedy() {
    let cases: &[(&str, u32, u32, &str)] = &[
        ("", 1, 1, "the policy is empty"),
        ("~\n", 1, 1, "the policy is empty"),
        ("{}\n", 1, 1, "the policy is empty"),
        ("a: [1, 2\nb: 3\n", 2, 2, "not valid YAML"),
        ("a:\n  - workers: *\n", 2, 14, "write \"*\""),
        ("a:\n  - workers: [*]\n", 2, 15, "write \"*\""),
        ("a:\n  - workers: &x [a]\n", 2, 14, "anchors and aliases"),
        ("a:\n  - affinity: [!heavy]\n", 2, 16, "in quotes"),
        ("a: []\n---\nb: []\n", 2, 1, "a second document"),
        (
            "a:\n  - workers: \"*\"\na:\n  - workers: \"*\"\n",
            3,
            1,
            "the key `a` occurs twice; the first one is in line 1",
        ),
        ("? [a]\n: 1\n", 1, 5, "keys are text"),
        ("a: 5\n", 1, 4, "`a` is a single value; write a list of blocks"),
        ("a:\n", 1, 1, "the tag `a` has no block"),
        ("a:\n  - followup: fail\n", 1, 1, "has no block"),
        ("a:\n  - workers\n", 2, 5, "write a block such as"),
        ("a:\n  - workes: \"*\"\n", 2, 5, "did you mean `workers`?"),
        ("a:\n  - workers: \"*\"\n    strategy: besd-first\n", 3, 15, "did you mean `best-first`?"),
        ("a:\n  - workers: \"*\"\n  - strategy: nearest\n", 3, 15, "`nearest` is no value of `strategy`"),
        ("a:\n  - workers: []\n", 2, 14, "write \"*\" for all workers"),
        ("a:\n  - workers: all\n", 2, 14, "`workers` is a single value"),
        ("a:\n  - workers: [\"a b\"]\n", 2, 15, "`a b` cannot be a node"),
        ("a:\n  - workers: [{wrk: n, set: m}]\n", 2, 24, "names workers already"),
        ("a:\n  - workers: [{wrk: n, strategy: random}]\n", 2, 24, "an entry with one worker"),
        ("a:\n  - workers: [{strategy: random}]\n", 2, 15, "without `wrk` and `set`"),
        ("a:\n  - workers: [{set: [x, x]}]\n", 2, 25, "`x` is listed twice in `set`"),
        ("a:\n  - workers: \"*\"\n    invalidate: [{capacity_used: 0}]\n", 3, 34, "a number from 1 to 100"),
        (
            "a:\n  - workers: \"*\"\n    invalidate: [{capacity_used: 101%}]\n",
            3,
            34,
            "a number from 1 to 100",
        ),
        (
            "a:\n  - workers: \"*\"\n    invalidate: [{max_concurrent_invocations: -1}]\n",
            3,
            47,
            "from 1 to 1000000",
        ),
        ("a:\n  - workers: \"*\"\n    invalidate: [overlod]\n", 3, 18, "did you mean `overload`?"),
        ("a:\n  - workers: \"*\"\n    invalidate: [{overload: 5}]\n", 3, 29, "write nothing after it"),
        (
            "a:\n  - workers: \"*\"\n    invalidate: [{capacity_used: 5}, {capacity_used: 6}]\n",
            3,
            39,
            "`capacity_used` is set twice",
        ),
        (
            "a:\n  - workers: \"*\"\n    topology_tolerance: same\n",
            3,
            5,
            "needs a `controller` with a name",
        ),
        (
            "a:\n  - workers: \"*\"\n    controller: n\n    topology_tolerance: some\n",
            4,
            25,
            "did you mean `same`?",
        ),
        ("a:\n  - workers: \"*\"\n    followup: fail\n", 3, 5, "write it as the last entry of the tag"),
        (
            "a:\n  - workers: \"*\"\n  - followup: fail\n  - followup: fail\n",
            4,
            5,
            "set twice; the first one is in line 3",
        ),
        ("a:\n  - workers: \"*\"\n    sticky: yes\n", 3, 13, "`yes` is no value of `sticky`"),
        ("a:\n  - workers: \"*\"\n    affinity: [f, \"!f\"]\n", 3, 19, "must run and must not run"),
        ("a:\n  - workers: \"*\"\n    affinity: [\"!\"]\n", 3, 16, "the name of a function"),
        ("a:\n  - workers: \"*\"\n    prefer: []\n", 3, 13, "add a name, or remove the key"),
        ("strategy: []\n", 1, 1, "cannot be a tag"),
        ("distribution: share\n", 1, 15, "did you mean `shared`?"),
        ("- one: [workers: \"*\"]\n  two: [workers: \"*\"]\n", 2, 3, "an entry that has a tag already"),
        ("- followup: fail\n", 1, 3, "an entry without a tag"),
        ("a b:\n  - workers: \"*\"\n", 1, 1, "cannot be a tag"),
    ];
    let mut missing = Vec::new();
    for (text, line, column, part) in cases {
        let found = faults(text);
        let expected =
            found.iter().any(|(l, c, message)| l == line && c == column && message.contains(part));
        if !expected {
            missing.push(format!("{text:?}: {found:?}, not {line}:{column} {part:?}"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn all_problems_are_reported_in_order() {
    let text = "distribution: no\na:\n  - workes: \"*\"\n    strategy: x\nb:\n  - workers: []\n";
    let lines: Vec<u32> = faults(text).into_iter().map(|(line, ..)| line).collect();
    assert_eq!(lines, [1, 3, 4, 6]);
    let report = Policy::parse(text).unwrap_err().report("policy.yaml", text);
    assert!(report.starts_with("policy.yaml:1:15: `no` is no value of `distribution`"), "{report}");
    assert!(report.contains("  |   - workes: \"*\"\n  |     ^\n"), "{report}");
}

#[test]
fn large_and_deep_texts_are_refused() {
    let fault = |text: &str| Policy::parse(text).unwrap_err().problems.remove(0).fault;
    let large = format!("a:\n  - workers: \"*\"\n# {}\n", "x".repeat(256 * 1024));
    assert!(matches!(fault(&large), Fault::TooLarge { .. }));
    let deep = format!("a: {}{}", "[".repeat(17), "]".repeat(17));
    assert!(matches!(fault(&deep), Fault::TooDeep { .. }));
    let deeper = format!("a: {}{}", "[".repeat(5_000), "]".repeat(5_000));
    assert!(matches!(fault(&deeper), Fault::TooDeep { .. } | Fault::Syntax { .. }));
    let long = format!("a: [{}]", "b,".repeat(30_000));
    assert!(matches!(fault(&long), Fault::TooManyValues { .. }));
    let error = Policy::parse("t:\n  - workers: [\"\u{e4}\0b\"]\n").unwrap_err();
    assert_eq!(
        (error.problems[0].fault.clone(), error.problems[0].place),
        (Fault::Nul, Place { line: 2, column: 17 })
    );
    let blocks = format!("a:\n{}", "  - workers: \"*\"\n".repeat(65));
    assert!(matches!(fault(&blocks), Fault::TooMany { max: 64, .. }));
    let bomb = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n";
    assert!(matches!(fault(bomb), Fault::Anchor));
}

#[test]
fn a_message_is_safe_to_print() {
    let (_, _, message) = faults("\"a\\x1b[31m\": 1\n").remove(0);
    assert!(message.chars().all(|c| !c.is_control()), "{message:?}");
    assert!(faults(&format!("{}: []\n", "x".repeat(10_000)))[0].2.len() < 300);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "([a-z:\\-\"*\\[\\]{}!&, \n]|  - |workers|set|wrk|strategy|: ){0,60}") {
        if let Err(error) = Policy::parse(&text) {
            prop_assert!(!error.problems.is_empty());
            prop_assert!(!error.report("file", &text).is_empty());
        }
    }
}

#[test]
fn policies_of_the_documentation_are_valid_and_without_warnings() {
    let page = include_str!("../../../../../docs/placement.md");
    let between = |begin: &str, end: &'static str| {
        let rests: Vec<&str> = page.split(begin).skip(1).collect();
        rests.into_iter().filter_map(move |rest| rest.split(end).next())
    };
    let examples = between("```yaml\n", "```").chain(between("<<'YAML'\n", "YAML\n"));
    let examples: Vec<&str> = examples.filter(|example| !example.contains("BLOCK")).collect();
    assert_eq!(examples.len(), 4);
    for example in examples {
        let policy =
            Policy::parse(example).unwrap_or_else(|error| panic!("{}", error.report("page", example)));
        assert_eq!(check(&policy, &Known::default()), [], "{example}");
    }
}
