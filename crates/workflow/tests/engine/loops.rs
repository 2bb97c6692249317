//! for, one after another and at the same time.

use edgefaas_workflow::{ErrorKind, Event, Status};
use serde_json::json;

use crate::host::{Host, error};

#[test]
fn a_loop_hands_its_output_from_one_to_the_next() {
    let tasks = "
do:
  - sum: {for: {each: n, at: i, in: '${ .numbers }'}, do: [add: {set: {sum: '${ .sum + $n * $i }'}}]}
";
    assert_eq!(Host::run(tasks, json!({"numbers": [5, 6, 7]})).output(), json!({"sum": 20}));
}

#[test]
fn a_loop_over_nothing_gives_its_input() {
    let tasks = "do: [none: {for: {in: .list}, do: [never: {call: never}]}]";
    for list in [json!([]), json!(null)] {
        assert_eq!(Host::run(tasks, json!({"list": list})).output(), json!({"list": list}));
    }
    let parallel = "do: [none: {for: {in: .list}, metadata: {parallel: 3}, do: [never: {call: never}]}]";
    assert_eq!(Host::run(parallel, json!({"list": null})).output(), json!([]));
}

#[test]
fn while_is_asked_before_each() {
    let tasks = "
do:
  - sum: {for: {in: '[10, 20, 30]'}, while: '.sum < $item + 5', do: [add: {set: {sum: '${ .sum + $item }'}}]}
";
    assert_eq!(Host::run(tasks, json!({"sum": 0})).output(), json!({"sum": 60}));
    assert_eq!(Host::run(tasks, json!({"sum": 14})).output(), json!({"sum": 44}));
    assert_eq!(Host::run(tasks, json!({"sum": 15})).output(), json!({"sum": 15}));
}

#[test]
fn loops_in_loops_have_their_own_names() {
    let tasks = "
do:
  - rows:
      for: {each: row, at: y, in: '[[1, 2], [3]]'}
      do:
        - cells:
            for: {each: cell, at: x, in: '$row'}
            do: [add: {set: '${ . + [[$y, $x, $cell]] }'}]
";
    assert_eq!(Host::run(tasks, json!([])).output(), json!([[0, 0, 1], [0, 1, 2], [1, 0, 3]]));
}

#[test]
fn exit_leaves_one_iteration() {
    let tasks = "
do:
  - each:
      for: {in: '[1, 2, 3]'}
      do:
        - skip: {switch: [two: {when: '$item == 2', then: exit}]}
        - add: {set: '${ . + [$item] }'}
";
    assert_eq!(Host::run(tasks, json!([])).output(), json!([1, 3]));
}

#[test]
fn at_the_same_time_so_many_and_no_more() {
    let tasks = "
do:
  - each:
      for: {in: .list}
      metadata: {parallel: 2}
      do: [work: {call: work, with: {item: '${ $item }', index: '${ $index }', all: '${ .list | length }'}}]
";
    let mut host = Host::run(tasks, json!({"list": ["a", "b", "c", "d"]}));
    let asked =
        |host: &Host| host.asked.values().map(|asked| asked.body()["item"].clone()).collect::<Vec<_>>();
    assert_eq!(asked(&host), ["a", "b"]);
    let first = *host.asked.keys().next().unwrap();
    let second = *host.asked.keys().nth(1).unwrap();
    host.ended(second, Ok(json!("B")));
    assert_eq!(asked(&host), ["a", "c"]);
    let third = *host.asked.keys().nth(1).unwrap();
    host.ended(third, Ok(json!("C")));
    assert_eq!(asked(&host), ["a", "d"]);
    host.answer("work", Ok(json!("A")));
    assert!(!host.asked.contains_key(&first));
    host.answer("work", Ok(json!(null)));
    assert_eq!(host.output(), json!(["A", "B", "C", null]));
    assert_eq!(host.asked_ever[3].1.body(), json!({"item": "d", "index": 3, "all": 4}));
}

#[test]
fn one_that_fails_ends_the_others() {
    let tasks = "
do:
  - guarded:
      try:
        - each: {for: {in: '[1, 2, 3]'}, metadata: {parallel: 3}, do: [work: {call: work}]}
      catch: {do: [note: {set: {caught: true}}]}
";
    let mut host = Host::run(tasks, json!({}));
    assert_eq!(host.asked.len(), 3);
    host.answer("work", Ok(json!(1)));
    host.answer("work", Err(error(ErrorKind::Communication, 500)));
    assert_eq!(host.output(), json!({"caught": true}));
    assert_eq!(host.cancelled.len(), 1);
}

#[test]
fn thousands_at_the_same_time() {
    let tasks = "
do:
  - each: {for: {in: '[range(3000)]'}, metadata: {parallel: 10000}, do: [work: {set: '${ $item * 2 }'}]}
  - sum: {set: '${ add }'}
";
    let mut host = Host::new(&crate::host::around(tasks), json!({}));
    host.rebuilds = false;
    host.start();
    assert_eq!(host.output(), json!(8_997_000));
}

#[test]
fn a_failed_iteration_is_retried_and_its_siblings_with_it() {
    let tasks = "
do:
  - each: {for: {in: '[1, 2, 3]'}, metadata: {parallel: 3}, do: [work: {call: work, with: '${ $item }'}]}
";
    let mut host = Host::run(tasks, json!({}));
    let frames: Vec<_> = host.asked.keys().copied().collect();
    host.ended(frames[0], Ok(json!("one")));
    host.ended(frames[1], Err(error(ErrorKind::Communication, 500)));
    assert_eq!(host.status(), Status::Faulted);
    assert_eq!(host.cancelled, [frames[2]]);
    host.event(Event::Retry);
    let mut bodies: Vec<_> = host.asked.values().map(|asked| asked.body()).collect();
    bodies.sort_by_key(|body| body.as_u64());
    assert_eq!(bodies, [json!(2), json!(3)]);
    while let Some((frame, body)) = host.asked.iter().next().map(|(frame, asked)| (*frame, asked.body())) {
        host.ended(frame, Ok(body));
    }
    assert_eq!(host.output(), json!(["one", 2, 3]));
}
