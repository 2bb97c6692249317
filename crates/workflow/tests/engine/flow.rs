//! Lists of tasks, jumps, conditions, forks.

use edgefaas_workflow::Status;
use edgefaas_workflow::instance::NoteKind;
use serde_json::{Value, json};

use crate::host::Host;

/// What a workflow without calls gives.
fn output(tasks: &str, input: Value) -> Value {
    Host::run(tasks, input).output()
}

#[test]
fn tasks_hand_their_output_on() {
    let tasks = "
do:
  - first: {set: {a: '${ .x + 1 }'}}
  - second: {do: [inner: {set: {a: '${ .a * 2 }', name: '${ $task.name }'}}]}
";
    assert_eq!(output(tasks, json!({"x": 1})), json!({"a": 4, "name": "inner"}));
}

#[test]
fn then_at_the_top() {
    let tasks = |then: &str| {
        format!(
            "
do:
  - a: {{set: {{was: a}}, then: {then}}}
  - b: {{set: {{was: '${{ .was + \"b\" }}'}}}}
  - c: {{set: {{was: '${{ .was + \"c\" }}'}}}}
"
        )
    };
    // The task that is jumped over would be unreachable, were there no other way to it.
    let jump = "
do:
  - a: {if: .go, set: {was: a}, then: c}
  - b: {set: {was: '${ .was + \"b\" }'}}
  - c: {set: {was: '${ .was + \"c\" }'}}
";
    assert_eq!(output(&tasks("continue"), json!({})), json!({"was": "abc"}));
    assert_eq!(output(jump, json!({"go": true})), json!({"was": "ac"}));
    assert_eq!(output(jump, json!({"go": false, "was": ""})), json!({"was": "bc"}));
}

#[test]
fn exit_leaves_the_list_and_end_the_workflow() {
    let tasks = |then: &str| {
        format!(
            "
do:
  - outer:
      do:
        - a: {{if: 'true', set: {{was: a}}, then: {then}}}
        - b: {{set: {{was: b}}}}
  - after: {{set: {{was: '${{ .was + \"!\" }}'}}}}
"
        )
    };
    assert_eq!(output(&tasks("exit"), json!({})), json!({"was": "a!"}));
    assert_eq!(output(&tasks("end"), json!({})), json!({"was": "a"}));
    assert_eq!(output(&tasks("continue"), json!({})), json!({"was": "b!"}));
}

#[test]
fn a_jump_back_is_a_loop() {
    let tasks = "
do:
  - count: {set: {n: '${ .n + 1 }'}}
  - more: {switch: [again: {when: .n < 5, then: count}]}
  - done: {set: {n: '${ .n }', over: true}}
";
    assert_eq!(output(tasks, json!({"n": 0})), json!({"n": 5, "over": true}));
}

#[test]
fn what_is_skipped_passes_its_input_on() {
    let host = Host::run(
        "
do:
  - a: {if: '${ .go }', set: {was: a}, output: {as: '{other: 1}'}, export: {as: '{seen: true}'}, then: end}
  - b: {set: '${ {input: ., context: $context} }'}
",
        json!({"go": false}),
    );
    assert_eq!(host.output(), json!({"input": {"go": false}, "context": null}));
    assert_eq!(host.noted(NoteKind::Skipped), ["a"]);
}

#[test]
fn switch_takes_the_first_case_that_fits() {
    let tasks = "
do:
  - choose:
      switch:
        - large: {when: .n > 10, then: big}
        - medium: {when: '${ .n > 5 }', then: middle}
  - none: {set: {size: none}, then: end}
  - middle: {set: {size: middle}, then: end}
  - big: {set: {size: big}}
";
    for (n, size) in [(20, "big"), (7, "middle"), (1, "none")] {
        assert_eq!(output(tasks, json!({"n": n})), json!({"size": size}));
    }
    let default = "
do:
  - choose: {switch: [large: {when: .n > 10, then: end}, rest: {then: other}]}
  - other: {set: {size: other}}
";
    assert_eq!(output(default, json!({"n": 1})), json!({"size": "other"}));
    assert_eq!(output(default, json!({"n": 11})), json!({"n": 11}));
}

#[test]
fn fork_gives_all_outputs_in_order() {
    let tasks = "
do:
  - all:
      fork:
        branches:
          - slow: {call: slow}
          - nothing: {set: '${ null }'}
          - quick: {call: quick}
  - after: {set: '${ {all: .} }'}
";
    let mut host = Host::run(tasks, json!({"x": 1}));
    assert_eq!(host.asks(), ["slow", "quick"]);
    host.answer("quick", Ok(json!("q")));
    assert_eq!(host.status(), Status::Running);
    host.answer("slow", Ok(json!("s")));
    assert_eq!(host.output(), json!({"all": ["s", null, "q"]}));
}

#[test]
fn in_a_competition_the_others_are_cancelled() {
    let tasks = "
do:
  - race:
      fork:
        compete: true
        branches:
          - one: {call: one}
          - two: {do: [inner: {call: two}]}
          - three: {wait: 10s}
";
    let mut host = Host::run(tasks, json!({}));
    let one = *host.asked.keys().next().unwrap();
    host.answer("two", Ok(json!(2)));
    assert_eq!(host.output(), json!(2));
    assert_eq!(host.cancelled, [one]);
    assert_eq!(host.noted(NoteKind::Cancelled).len(), 2);

    let mut host = Host::run(tasks, json!({"x": 1}));
    host.until(10_000);
    assert_eq!(host.output(), json!({"x": 1}));
    assert_eq!(host.cancelled.len(), 2);
}

#[test]
fn end_in_a_branch_ends_everything() {
    let tasks = "
do:
  - all:
      fork:
        branches:
          - waits: {call: one}
          - ends: {do: [last: {set: {was: last}, then: end}]}
  - never: {set: {was: never}}
";
    let host = Host::run(tasks, json!({}));
    assert_eq!(host.output(), json!({"was": "last"}));
    assert_eq!(host.cancelled.len(), 1);
}

#[test]
fn steps_have_a_limit_and_turns() {
    let text = "
document: {dsl: '1.0.0', namespace: test, name: test, version: '1.0.0', metadata: {steps: 5000}}
do:
  - again: {set: {n: '${ .n + 1 }'}, then: again}
";
    let mut host = Host::new(text, json!({"n": 0}));
    host.start();
    let fault = host.fault();
    assert!(fault.detail.as_deref().unwrap_or_default().contains("5000 steps"), "{fault}");
    assert_eq!(fault.instance.as_deref(), Some("/do/0/again"));
    assert_eq!(host.continues, 2, "2,000 steps are a turn");
}

#[test]
fn an_event_between_two_turns_asks_for_no_second_turn() {
    let tasks = "
do:
  - both:
      fork:
        branches:
          - waits: {call: one}
          - counts: {for: {in: '[range(5000)]'}, do: [step: {set: '${ $item }'}]}
";
    let mut host = Host::new(&crate::host::around(tasks), json!({}));
    assert!(host.step(edgefaas_workflow::Event::Start));
    let frame = *host.asked.keys().next().unwrap();
    host.asked.clear();
    let result = Ok(std::sync::Arc::new(json!(1)));
    assert!(
        !host.step(edgefaas_workflow::Event::Ended { frame, result }),
        "one turn was asked for already"
    );
}
