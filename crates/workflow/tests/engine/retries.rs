//! Trying again, to the millisecond.

use edgefaas_workflow::{ErrorKind, Status};
use serde_json::json;

use crate::host::{Host, around, error, program};

fn tries(retry: &str, more: &str) -> String {
    format!(
        "
do:
  - guarded:
      try:
        - work: {{call: work}}
      catch: {{retry: {retry}{more}}}
"
    )
}

/// Lets every attempt fail at once, and says when the others came.
fn attempts(host: &mut Host) -> Vec<u64> {
    let mut times = Vec::new();
    while !host.status().is_ended() {
        if host.asked.is_empty() {
            let due_ms = host.instance.due_ms().expect("it waits for the next attempt");
            host.until(due_ms);
            times.push(host.now_ms);
        } else {
            host.answer("work", Err(error(ErrorKind::Communication, 503)));
        }
        assert!(times.len() < 100);
    }
    times
}

#[test]
fn waits_are_exact() {
    for (retry, times) in [
        ("{delay: 2s, limit: {attempt: {count: 3}}}", vec![2_000, 4_000, 6_000]),
        ("{delay: 2s, backoff: {constant: {}}, limit: {attempt: {count: 2}}}", vec![2_000, 4_000]),
        ("{delay: 1s, backoff: {linear: {}}, limit: {attempt: {count: 3}}}", vec![1_000, 3_000, 6_000]),
        (
            "{delay: 1s, backoff: {linear: {increment: 500ms}}, limit: {attempt: {count: 3}}}",
            vec![1_000, 2_500, 4_500],
        ),
        (
            "{delay: 1s, backoff: {exponential: {}}, limit: {attempt: {count: 4}}}",
            vec![1_000, 3_000, 7_000, 15_000],
        ),
        (
            "{delay: {seconds: 1}, backoff: {exponential: {multiplier: 3}}, limit: {attempt: {count: 3}}}",
            vec![1_000, 4_000, 13_000],
        ),
        ("{delay: PT1S, limit: {duration: PT3S}}", vec![1_000, 2_000, 3_000]),
        ("{delay: 1s, backoff: {exponential: {}}, limit: {duration: 8s}}", vec![1_000, 3_000, 7_000]),
        ("{delay: 3s, limit: {duration: 3s}}", vec![3_000]),
        ("{delay: '${ {seconds: .wait} }', limit: {attempt: {count: 2}}}", vec![4_000, 8_000]),
    ] {
        let mut host = Host::run(&tries(retry, ""), json!({"wait": 4}));
        assert_eq!(attempts(&mut host), times, "{retry}");
        assert_eq!(host.fault().status, 503, "the last error goes on: {retry}");
        assert_eq!(host.fault().instance.as_deref(), Some("/do/0/guarded/try/0/work"));
    }
}

#[test]
fn without_a_wait_it_is_tried_again_at_once() {
    let mut host = Host::run(&tries("{limit: {attempt: {count: 3}}}", ""), json!({}));
    assert_eq!(attempts(&mut host), [0; 0]);
    assert_eq!(host.asked_ever.len(), 4);
}

#[test]
fn a_policy_by_name() {
    let text = format!(
        "use: {{retries: {{mine: {{delay: 1s, limit: {{attempt: {{count: 2}}}}}}}}}}{}",
        tries("mine", "")
    );
    let mut host = Host::run(&text, json!({}));
    assert_eq!(attempts(&mut host), [1_000, 2_000]);
}

#[test]
fn the_handler_comes_when_all_was_tried() {
    let more = ", as: err, do: [note: {set: '${ {status: $err.status, x: .x} }'}]";
    let mut host = Host::run(&tries("{delay: 1s, limit: {attempt: {count: 2}}}", more), json!({"x": 1}));
    assert_eq!(attempts(&mut host), [1_000, 2_000]);
    assert_eq!(host.output(), json!({"status": 503, "x": 1}));
}

#[test]
fn what_works_the_second_time_is_the_output() {
    let mut host = Host::run(&tries("{delay: 1s, limit: {attempt: {count: 2}}}", ""), json!({"x": 1}));
    host.answer("work", Err(error(ErrorKind::Communication, 503)));
    assert_eq!(host.status(), Status::Waiting);
    host.until(999);
    assert!(host.asked.is_empty());
    host.until(1_000);
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"x": 1}));
    host.answer("work", Ok(json!("done")));
    assert_eq!(host.output(), json!("done"));
}

#[test]
fn conditions_for_another_attempt() {
    for (retry, again) in [
        ("{delay: 1s, limit: {attempt: {count: 1}}, when: '$error.status == 503'}", 1),
        ("{delay: 1s, limit: {attempt: {count: 1}}, when: '$error.status == 500'}", 0),
        ("{delay: 1s, limit: {attempt: {count: 1}}, exceptWhen: '$error.status >= 500'}", 0),
    ] {
        let mut host = Host::run(&tries(retry, ""), json!({}));
        assert_eq!(attempts(&mut host).len(), again, "{retry}");
        assert_eq!(host.fault().status, 503, "{retry}");
    }
}

#[test]
fn jitter_is_within_its_bounds_and_the_same_for_the_same_seed() {
    let text = tries("{delay: 1s, jitter: {from: 100ms, to: 300ms}, limit: {attempt: {count: 20}}}", "");
    let program = program(&around(&text));
    let times = |seed: u64| {
        let mut host = Host::of(program.clone(), json!({}), seed);
        host.start();
        attempts(&mut host)
    };
    let first = times(1);
    let waits: Vec<u64> =
        std::iter::once(first[0]).chain(first.windows(2).map(|pair| pair[1] - pair[0])).collect();
    assert!(waits.iter().all(|wait| (1_100..=1_300).contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
    assert_eq!(first, times(1));
    assert_ne!(first, times(2));
}

#[test]
fn an_attempt_may_take_so_long() {
    let retry = "{delay: 1s, limit: {attempt: {count: 1, duration: 5s}}}";
    let more = ", as: err, do: [note: {set: '${ $err | {kind: .type, status, instance} }'}]";
    let mut host = Host::run(&tries(retry, more), json!({}));
    host.until(4_999);
    assert_eq!(host.asks(), ["work"]);
    host.until(5_000);
    assert_eq!((host.asks(), host.cancelled.len()), (vec![], 1));
    host.until(6_000);
    assert_eq!(host.asks(), ["work"]);
    host.until(11_000);
    let kind = "https://serverlessworkflow.io/spec/1.0.0/errors/timeout";
    assert_eq!(host.output(), json!({"kind": kind, "status": 408, "instance": "/do/0/guarded"}));
}

#[test]
fn a_retry_of_a_whole_list_begins_at_its_start() {
    let tasks = "
do:
  - guarded:
      try:
        - first: {call: first}
        - second: {call: second}
      catch: {retry: {delay: 1s, limit: {attempt: {count: 1}}}}
";
    let mut host = Host::run(tasks, json!({}));
    host.answer("first", Ok(json!(1)));
    host.answer("second", Err(error(ErrorKind::Communication, 500)));
    host.until(1_000);
    assert_eq!(host.asks(), ["first"]);
    host.answer("first", Ok(json!(2)));
    host.answer("second", Ok(json!(3)));
    assert_eq!(host.output(), json!(3));
}
