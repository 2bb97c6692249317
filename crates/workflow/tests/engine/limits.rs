//! Timeouts, cancelling, retrying what has failed, and instances that were never started.

use edgefaas_workflow::{ErrorKind, Event, Instance, Status};
use serde_json::json;

use crate::host::{Host, around, error};

#[test]
fn a_task_has_its_time() {
    let tasks = "do: [slow: {call: slow, timeout: {after: 2s}}]";
    let mut host = Host::run(tasks, json!({}));
    assert_eq!(host.instance.due_ms(), Some(2_000));
    host.until(2_000);
    let fault = host.fault();
    assert_eq!((fault.short_kind(), fault.status), ("timeout", 408));
    assert_eq!(fault.instance.as_deref(), Some("/do/0/slow"));
    assert_eq!(host.cancelled.len(), 1);
}

#[test]
fn what_is_in_time_knows_no_timeout() {
    let mut host = Host::run("do: [quick: {call: quick, timeout: {after: 2s}}, b: {wait: 10s}]", json!(1));
    host.until(1_999);
    host.answer("quick", Ok(json!(2)));
    host.until(11_999);
    assert_eq!(host.output(), json!(2));
}

#[test]
fn timeouts_of_composites_and_by_name() {
    let tasks = "
use: {timeouts: {short: {after: {seconds: 1}}}}
do:
  - guarded:
      try:
        - outer: {timeout: short, do: [a: {wait: 800ms}, b: {call: slow}]}
      catch: {errors: {with: {type: timeout}}, as: e, do: [note: {set: '${ $e.instance }'}]}
";
    let mut host = Host::run(tasks, json!({}));
    host.until(999);
    assert_eq!(host.asks(), ["slow"]);
    host.until(1_000);
    assert_eq!(host.output(), json!("/do/0/guarded/try/0/outer"));
    assert_eq!(host.cancelled.len(), 1);
}

#[test]
fn a_computed_timeout() {
    let mut host =
        Host::run("do: [a: {call: f, timeout: {after: '${ .limit }'}}]", json!({"limit": "PT3S"}));
    host.until(2_999);
    assert_eq!(host.status(), Status::Running);
    host.until(3_000);
    assert_eq!(host.fault().short_kind(), "timeout");
}

#[test]
fn the_whole_has_its_time_and_gets_it_again() {
    let tasks = "timeout: {after: 5s}\ndo: [a: {wait: 2s}, b: {call: slow}]";
    let mut host = Host::run(tasks, json!({"x": 1}));
    host.until(5_000);
    assert_eq!(host.fault().short_kind(), "timeout");
    assert_eq!(host.instance.due_ms(), None);
    host.now_ms = 60_000;
    host.event(Event::Retry);
    assert_eq!(host.asks(), ["slow"]);
    assert_eq!(host.instance.due_ms(), Some(65_000));
    host.answer("slow", Ok(json!(1)));
    assert_eq!(host.output(), json!(1));
}

#[test]
fn a_late_tick_after_the_end_does_nothing() {
    // Both are due when the tick comes; the first ends the instance.
    let tasks = "
do:
  - both:
      fork:
        branches:
          - a: {call: f, timeout: {after: 1s}}
          - b: {do: [w: {wait: 2s}, c: {call: g}]}
";
    let mut host = Host::run(tasks, json!({}));
    host.now_ms = 10_000;
    host.event(Event::Tick);
    assert_eq!(host.fault().instance.as_deref(), Some("/do/0/both/fork/branches/0/a"));
    assert!(host.asked.is_empty());
    host.event(Event::Tick);
    assert!(host.asked.is_empty());
}

#[test]
fn cancelled_is_over() {
    let tasks =
        "do: [both: {fork: {branches: [a: {call: f}, b: {listen: {to: {one: {with: {type: x}}}}}]}}]";
    let mut host = Host::run(tasks, json!({}));
    let frame = *host.asked.keys().next().unwrap();
    host.event(Event::Cancel);
    assert_eq!(host.status(), Status::Cancelled);
    assert_eq!((host.cancelled.len(), host.listens.len()), (1, 0));
    host.event(Event::Ended { frame, result: Ok(std::sync::Arc::new(json!(1))) });
    host.event(Event::Retry);
    assert_eq!(host.status(), Status::Cancelled);
    assert!(host.instance.result().is_none());
}

#[test]
fn what_has_not_started_starts_after_anything() {
    let mut host = Host::new(&around("do: [a: {set: {b: 1}}]"), json!({}));
    host.event(Event::Tick);
    host.event(Event::Continue);
    assert_eq!(host.status(), Status::Pending);
    let bytes = host.instance.to_bytes(0).unwrap();
    host.instance = Instance::from_bytes(&bytes, &host.program, 0).unwrap();
    host.start();
    assert_eq!(host.output(), json!({"b": 1}));
    host.start();
    assert_eq!(host.output(), json!({"b": 1}));
}

#[test]
fn a_failed_task_is_tried_again_in_its_place() {
    let tasks = "
do:
  - outer:
      do:
        - first: {call: first, export: {as: '{first: .}'}}
        - second: {call: second, with: {x: '${ . }', context: '${ $context }'}}
  - third: {set: '${ {third: .} }'}
";
    let mut host = Host::run(tasks, json!({}));
    host.answer("first", Ok(json!(1)));
    host.answer("second", Err(error(ErrorKind::Communication, 500)));
    assert_eq!(host.fault().instance.as_deref(), Some("/do/0/outer/do/1/second"));
    host.event(Event::Retry);
    assert_eq!(host.asks(), ["second"]);
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"x": 1, "context": {"first": 1}}));
    host.answer("second", Ok(json!(2)));
    assert_eq!(host.output(), json!({"third": 2}));
}

#[test]
fn branches_that_had_not_begun_begin_with_the_retry() {
    let tasks = "
do:
  - all:
      fork:
        branches:
          - bad: {set: '${ $secrets.late.value }'}
          - good: {call: good}
          - other: {wait: 1s}
";
    let mut host = Host::new(&around(tasks), json!({"x": 1}));
    host.secrets = json!({"late": 5});
    host.start();
    assert_eq!(host.fault().instance.as_deref(), Some("/do/0/all/fork/branches/0/bad"));
    assert!(host.asked.is_empty());
    host.secrets = json!({"late": {"value": 6}});
    host.event(Event::Retry);
    host.answer("good", Ok(json!("g")));
    host.until(1_000);
    assert_eq!(host.output(), json!([6, "g", {"x": 1}]));
}

#[test]
fn waits_of_what_has_failed_go_on_where_they_were() {
    let tasks = "do: [all: {fork: {branches: [a: {wait: 10s}, b: {call: b}]}}]";
    let mut host = Host::run(tasks, json!({}));
    host.until(4_000);
    host.answer("b", Err(error(ErrorKind::Runtime, 500)));
    host.until(100_000);
    assert_eq!(host.status(), Status::Faulted);
    host.event(Event::Retry);
    assert_eq!(host.instance.due_ms(), Some(106_000));
    host.answer("b", Ok(json!("b")));
    host.until(106_000);
    assert_eq!(host.output(), json!([{}, "b"]));
}

#[test]
fn an_output_that_failed_is_made_again() {
    let text = around("output: {as: '$secrets.late.value + .'}\ndo: [a: {call: f}]");
    let mut host = Host::new(&text, json!({}));
    host.secrets = json!({"late": 5});
    host.start();
    host.answer("f", Ok(json!(1)));
    assert_eq!(host.fault().instance.as_deref(), Some("/output"));
    host.secrets = json!({"late": {"value": 6}});
    host.event(Event::Retry);
    assert_eq!(host.output(), json!(7));
    assert_eq!(host.asked_ever.len(), 1);
}

#[test]
fn a_retry_gives_its_steps_again_and_no_id_twice() {
    let text = "
document: {dsl: '1.0.0', namespace: test, name: test, version: '1.0.0', metadata: {steps: 3}}
do:
  - tell: {emit: {event: {with: {type: told}}}, then: tell}
";
    let mut host = Host::new(text, json!({}));
    host.start();
    host.fault();
    host.event(Event::Retry);
    host.fault();
    let mut ids: Vec<String> = host.events_sent().iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(ids.len(), 6);
    ids.dedup();
    assert_eq!(ids.len(), 6, "{ids:?}");
}

#[test]
fn bytes_that_are_no_instance() {
    let host = Host::run("do: [a: {call: f}]", json!({}));
    let bytes = host.instance.to_bytes(0).unwrap();
    assert!(Instance::from_bytes(&bytes[..bytes.len() / 2], &host.program, 0).is_err());
    assert!(Instance::from_bytes(b"[]", &host.program, 0).is_err());
    let longer = Host::run("do: [a: {set: {}}, b: {do: [c: {call: f}]}]", json!({}));
    let bytes = longer.instance.to_bytes(0).unwrap();
    assert!(Instance::from_bytes(&bytes, &host.program, 0).is_err());
}

/// A value that nests so deep.
fn nested(levels: usize) -> serde_json::Value {
    (0..levels).fold(json!(1), |value, _| json!([value]))
}

#[test]
fn values_nest_so_deep_and_no_deeper() {
    for tasks in [
        "do: [a: {set: {x: ['${ . }']}, then: a}]",
        "do: [a: {set: '${ {x: .} }', then: a}]",
        "do: [a: {fork: {branches: [b: {do: [c: {set: '${ . }'}]}]}, then: a}]",
        "do: [a: {for: {in: '[1]'}, metadata: {parallel: 1}, do: [b: {set: '${ . }'}], then: a}]",
        "do: [a: {set: {}, export: {as: '[$context]'}, then: a}]",
    ] {
        let fault = Host::run(tasks, json!({})).fault();
        let detail = fault.detail.as_deref().unwrap_or_default();
        assert!(detail.contains("levels deep"), "{tasks}: {fault}");
        assert!(fault.instance.as_deref().unwrap_or_default().starts_with("/do/0/a"), "{tasks}: {fault}");
    }
}

#[test]
fn what_comes_from_outside_nests_so_deep_and_no_deeper() {
    let mut host = Host::run("do: [a: {call: f}, b: {call: g}]", nested(100));
    host.answer("f", Ok(nested(101)));
    assert_eq!(host.fault().short_kind(), "runtime");
    assert_eq!(Host::run("do: [a: {set: {}}]", nested(101)).fault().instance.as_deref(), Some("/input"));

    let mut host = Host::run("do: [a: {listen: {to: {one: {with: {type: a}}}}}]", json!({}));
    host.send_event("a", nested(100));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("a", nested(90));
    assert_eq!(host.output(), json!([nested(90)]));
}

#[test]
fn what_is_asked_for_again_has_its_time_again() {
    let tasks = "
do:
  - all:
      fork:
        branches:
          - a: {call: a, timeout: {after: 3s}}
          - b: {call: b, timeout: {after: 3s}}
          - c: {listen: {to: {any: [{with: {type: x}}]}}, metadata: {events: {silence: 5s}}}
";
    let mut host = Host::run(tasks, json!({}));
    host.until(3_000);
    assert_eq!(host.fault().instance.as_deref(), Some("/do/0/all/fork/branches/0/a"));
    host.until(60_000);
    host.event(Event::Retry);
    assert_eq!((host.asks(), host.instance.due_ms()), (vec!["b", "a"], Some(62_000)));
    host.until(62_999);
    host.answer("a", Ok(json!(1)));
    host.answer("b", Ok(json!(2)));
    assert_eq!(host.output()[2][0]["kind"], json!("silence"));
}

#[test]
fn a_rule_that_is_due_when_all_ends_says_nothing_more() {
    let tasks = "
do:
  - all:
      fork:
        branches:
          - c: {listen: {to: {any: [{with: {type: x}}]}}, metadata: {events: {silence: 3s}}}
          - a: {call: a, timeout: {after: 3s}}
";
    let mut host = Host::run(tasks, json!({}));
    host.until(3_000);
    assert_eq!(host.fault().short_kind(), "timeout");
    assert!(host.listens.is_empty());
}
