//! What an instance does is linear in its data, and where its turns are cut changes nothing.

use edgefaas_workflow::instance::NextTask;
use edgefaas_workflow::{Event, Instance, Status};
use serde_json::{Value, json};

use crate::host::{Host, START_UNIX_MS, around, environment, program};

fn whole(steps: u32, text: &str) -> String {
    let document = format!(
        "{{dsl: '1.0.0', namespace: test, name: test, version: '1.0.0', metadata: {{steps: {steps}}}}}"
    );
    format!("document: {document}\n{text}")
}

fn run(text: &str) -> Host {
    let mut host = Host::new(text, json!({}));
    host.rebuilds = false;
    host.start();
    host
}

#[test]
fn a_list_that_the_context_collects_is_not_copied() {
    // 40,000 kB in the end: to copy it once an iteration would be 800 GB, and more steps than a turn has.
    let text = whole(
        80_010,
        r#"
output: {as: '[($context.l | length), ($context.l[39999] | length)]'}
do:
  - a:
      set: {n: '${ (.n // 0) + 1 }'}
      export: {as: '{ l: (($context.l // []) + ["0123456789" * 100]) }'}
      then: b
  - b:
      switch:
        - more: {when: '${ .n < 40000 }', then: a}
        - done: {then: end}
"#,
    );
    let host = run(&text);
    assert_eq!(host.output(), json!([40_000, 1_000]));
    assert!(host.continues <= 80_010 / 2_000 + 4, "{} turns", host.continues);
}

#[test]
fn a_loop_collects_its_results() {
    let text = whole(
        100_010,
        "
output: {as: '$context.l | [length, .[0], .[99999]]'}
do:
  - all:
      for: {each: i, in: '[range(100000)]'}
      do:
        - one: {set: '${ {l: $i} }', export: {as: '{l: (($context.l // []) + [. ])}'}}
",
    );
    let host = run(&text);
    assert_eq!(host.output(), json!([100_000, {"l": 0}, {"l": 99_999}]));
    assert!(host.continues <= 100_010 / 2_000 + 4, "{} turns", host.continues);
}

#[test]
fn a_list_that_is_handed_from_task_to_task_is_not_copied() {
    let text = whole(
        60_010,
        "
output: {as: '.l | length'}
do:
  - a: {set: {l: '${ (.l // []) + [.n] }', n: '${ (.n // 0) + 1 }'}, then: b}
  - b: {switch: [{more: {when: '.n < 30000', then: a}}, {done: {then: end}}]}
",
    );
    let host = run(&text);
    assert_eq!(host.output(), json!(30_000));
    assert!(host.continues <= 60_010 / 2_000 + 4, "{} turns", host.continues);
}

#[test]
fn where_a_turn_is_cut_changes_nothing() {
    let text = around(
        "
do:
  - first: {set: {n: 1}, export: {as: '{seen: [.n]}'}}
  - each:
      for: {each: x, in: '[range(20)]'}
      do:
        - try:
            try: [{odd: {if: '$x % 2 == 1', raise: {error: {type: 'https://x.test/odd', status: 500}}}}]
            catch: {do: [{note: {set: '${ {odd: $x} }', export: {as: '{seen: ($context.seen + [$x])}'}}}]}
  - all:
      fork:
        branches:
          - a: {do: [{w: {wait: 1s}}, {x: {set: {a: 1}}}, {y: {set: '${ {a: (.a + 1)} }'}}]}
          - b: {do: [{v: {wait: 1s}}, {z: {emit: {event: {with: {type: told}}}}}]}
          - c: {listen: {to: {any: [{with: {type: x}}]}}, metadata: {events: {silence: 1s}}}
  - last: {set: {seen: '${ $context.seen }', before: '${ . }'}}
",
    );
    let program = program(&text);
    let (secrets, runtime) = (json!({}), json!({}));
    // What is done and what comes of it, if so many tasks are a slice.
    let run = |slice: u32| -> (Vec<String>, Vec<Vec<u8>>) {
        let input = std::sync::Arc::new(Value::Null);
        let mut instance = Instance::new("one".into(), input, 7, START_UNIX_MS);
        let (mut actions, mut states) = (Vec::new(), Vec::new());
        for (now_ms, event) in
            [(0, Event::Start), (500, Event::Continue), (1_000, Event::Tick), (1_500, Event::Tick)]
        {
            let environment = environment(now_ms, &secrets, &runtime);
            let mut done = 0;
            let mut goes_on = |_: NextTask| {
                done += 1;
                done % (slice + 1) != 0
            };
            let mut more = instance.begin(&program, event, &environment, &mut goes_on);
            while instance.is_paused() {
                more.extend(instance.resume(&program, &environment, &mut goes_on));
            }
            actions.extend(more.iter().map(|action| format!("{action:?}")));
            states.push(instance.to_bytes(now_ms).unwrap());
        }
        assert_eq!(instance.status(), Status::Completed);
        (actions, states)
    };
    let whole = run(u32::MAX - 1);
    for slice in [1, 2, 3, 7, 50] {
        assert_eq!(run(slice), whole, "slices of {slice} tasks");
    }
}

#[test]
fn an_instance_knows_how_much_it_holds() {
    let mut host = Host::run("do: [a: {call: f}, b: {call: g, with: 1}, c: {set: {}}]", json!({}));
    let small = host.instance.bytes();
    host.answer("f", Ok(Value::from("x".repeat(100_000))));
    let large = host.instance.bytes();
    assert!((100_000..110_000).contains(&(large - small)), "{small}, then {large}");
    let bytes = host.instance.to_bytes(0).unwrap();
    let copy = Instance::from_bytes(&bytes, &host.program, 0).unwrap();
    assert!(copy.bytes().abs_diff(large) < 1_000, "{large}, then {}", copy.bytes());
    host.answer("g", Ok(json!(1)));
    assert!(host.instance.bytes() <= small, "{small}, then {}", host.instance.bytes());

    // Branches share what they were given.
    let fork = "do: [all: {fork: {branches: [a: {wait: 1s}, b: {wait: 1s}, c: {wait: 1s}]}}]";
    let host = Host::run(fork, Value::from("x".repeat(100_000)));
    assert!(host.instance.bytes() < 110_000, "{}", host.instance.bytes());
}

#[test]
fn a_refusal_is_an_error_of_the_next_task() {
    let tasks = "
do:
  - guarded:
      try: [{a: {call: f}}, {b: {call: g}}]
      catch: {errors: {with: {status: 503}}, as: e, do: [{note: {set: '${ $e.detail }'}}]}
";
    let mut host = Host::run(tasks, json!({}));
    let error = edgefaas_workflow::WorkflowError::over_budget("16 MiB are used up");
    host.event(Event::Refuse { error });
    host.answer("f", Ok(json!(1)));
    assert_eq!(host.output(), json!("16 MiB are used up"));
}

/// An event of 10 kB that a rule is about.
fn large(number: u64) -> Value {
    json!({"n": number, "text": "x".repeat(10_000)})
}

#[test]
fn events_that_a_rule_keeps_are_held_by_the_instance() {
    let tasks = "
do:
  - collect:
      listen: {to: {any: [{with: {type: x}}]}}
      metadata: {events: {count: 20, within: 1h}}
      output: {as: '.[0].count'}
";
    // Rebuilt from its bytes before each event, and never.
    let sizes = |rebuilds: bool| -> Vec<usize> {
        let mut host = Host::new(&around(tasks), json!({}));
        host.rebuilds = rebuilds;
        host.start();
        let mut sizes = vec![host.instance.bytes()];
        for number in 0..19 {
            host.send_event("x", large(number));
            sizes.push(host.instance.bytes());
            assert!(host.instance.written_bytes() >= (number + 1) * 10_000);
        }
        for pair in sizes.windows(2) {
            assert!((10_000..13_000).contains(&(pair[1] - pair[0])), "{sizes:?}");
        }
        // They grow too old.
        host.until(3_600_000);
        sizes.push(host.instance.bytes());
        assert_eq!(sizes[20], sizes[0]);
        (0..20).for_each(|number| host.send_event("x", large(number)));
        assert_eq!(host.output(), json!(20));
        sizes.push(host.instance.bytes());
        assert!(sizes[21] < sizes[0], "{sizes:?}");
        sizes
    };
    // Room for more work is not kept by what was rebuilt.
    let is_about = |(lived, rebuilt): (&usize, &usize)| lived.abs_diff(*rebuilt) < 1_000;
    let (lived, rebuilt) = (sizes(false), sizes(true));
    assert!(lived.iter().zip(&rebuilt).all(is_about), "{lived:?}, {rebuilt:?}");
}

#[test]
fn rules_of_what_has_failed_are_held_until_it_is_retried() {
    let tasks = "
do:
  - all:
      fork:
        branches:
          - a: {call: a}
          - b:
              listen: {to: {any: [{with: {type: x}}]}}
              metadata: {events: {window: {every: 1h}}}
";
    for rebuilds in [false, true] {
        let mut host = Host::new(&around(tasks), json!({}));
        host.rebuilds = rebuilds;
        host.start();
        let empty = host.instance.bytes();
        (0..5).for_each(|number| host.send_event("x", large(number)));
        let held = host.instance.bytes();
        assert!(held - empty >= 50_000, "{empty}, then {held}");
        host.answer("a", Err(crate::host::error(edgefaas_workflow::ErrorKind::Runtime, 500)));
        assert!(host.instance.bytes() >= 50_000, "{}", host.instance.bytes());
        host.event(Event::Retry);
        assert!(host.instance.bytes().abs_diff(held) < 1_000, "{held}, then {}", host.instance.bytes());
        host.event(Event::Cancel);
        assert!(host.instance.bytes() < empty, "{}", host.instance.bytes());
    }
}
