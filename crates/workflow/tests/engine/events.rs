//! listen: one, any, all, until, foreach, correlation, and rules over many events.

use edgefaas_workflow::Status;
use serde_json::{Value, json};

use crate::host::Host;

fn listens(to: &str, more: &str) -> String {
    format!("do: [hear: {{listen: {{to: {to}}}{more}}}]")
}

#[test]
fn one_event() {
    let mut host = Host::run(&listens("{one: {with: {type: a, data: '${ .x > 1 }'}}}", ""), json!({}));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("b", json!({"x": 5}));
    host.send_event("a", json!({"x": 1}));
    host.send_event("a", json!("no object"));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("a", json!({"x": 2}));
    assert_eq!(host.output(), json!([{"x": 2}]));
    assert!(host.listens.is_empty());
}

#[test]
fn what_is_read_of_an_event() {
    for (read, expression) in [("data", ".[0]"), ("raw", ".[0]"), ("envelope", ".[0].data")] {
        let tasks = format!(
            "do: [hear: {{listen: {{to: {{one: {{with: {{type: a}}}}}}, read: {read}}}, output: {{as: '{expression}'}}}}]"
        );
        let mut host = Host::run(&tasks, json!({}));
        host.send_event("a", json!({"x": 2}));
        assert_eq!(host.output(), json!({"x": 2}), "{read}");
    }
}

#[test]
fn any_and_all() {
    let mut host = Host::run(&listens("{any: [{with: {type: a}}, {with: {type: b}}]}", ""), json!({}));
    host.send_event("b", json!(1));
    assert_eq!(host.output(), json!([1]));

    let mut host = Host::run(&listens("{any: []}", ""), json!({}));
    host.send_event("whatever", json!(1));
    assert_eq!(host.output(), json!([1]));

    let mut host = Host::run(&listens("{all: [{with: {type: a}}, {with: {type: b}}]}", ""), json!({}));
    host.send_event("b", json!(1));
    host.send_event("b", json!(2));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("a", json!(3));
    assert_eq!(host.output(), json!([1, 3]));
}

#[test]
fn until_a_condition_an_event_or_never() {
    let mut host =
        Host::run(&listens("{any: [{with: {type: a}}], until: '${ length >= 3 }'}", ""), json!({}));
    (1..=4).for_each(|n| host.send_event("a", json!(n)));
    assert_eq!(host.output(), json!([1, 2, 3]));

    let until = "{any: [{with: {type: a}}], until: {one: {with: {type: stop, data: {really: true}}}}}";
    let mut host = Host::run(&listens(until, ""), json!({}));
    host.send_event("a", json!(1));
    host.send_event("stop", json!({"really": false}));
    host.send_event("a", json!(2));
    host.send_event("stop", json!({"really": true, "more": 1}));
    assert_eq!(host.output(), json!([1, 2]));

    let mut host = Host::run(
        &listens("{any: [{with: {type: a}}], until: false}", ", timeout: {after: 10s}"),
        json!({}),
    );
    (1..=100).for_each(|n| host.send_event("a", json!(n)));
    assert_eq!(host.status(), Status::Waiting);
    host.until(10_000);
    assert_eq!(host.fault().short_kind(), "timeout");
}

#[test]
fn foreach_takes_one_event_after_another() {
    let tasks = "
do:
  - hear:
      listen: {to: {any: [{with: {type: a}}], until: {one: {with: {type: stop}}}}}
      foreach:
        item: reading
        at: n
        do: [work: {call: work, with: {reading: '${ $reading }', n: '${ $n }', here: '${ . }'}}]
        output: {as: '${ {n: $n, made: .} }'}
        export: {as: '${ ($context // []) + [.n] }'}
  - after: {set: '${ {all: ., context: $context} }'}
";
    let mut host = Host::run(tasks, json!({}));
    host.send_event("a", json!("x"));
    host.send_event("a", json!("y"));
    host.send_event("stop", json!(null));
    host.send_event("a", json!("too late"));
    assert_eq!(host.asks(), ["work"]);
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"reading": "x", "n": 0, "here": "x"}));
    host.answer("work", Ok(json!("X")));
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"reading": "y", "n": 1, "here": "y"}));
    host.answer("work", Ok(json!("Y")));
    let all = json!([{"n": 0, "made": "X"}, {"n": 1, "made": "Y"}]);
    assert_eq!(host.output(), json!({"all": all, "context": [0, 1]}));
}

#[test]
fn foreach_of_one_event_takes_one() {
    let tasks = "
do:
  - hear: {listen: {to: {one: {with: {type: a}}}}, foreach: {do: [work: {call: work, with: '${ $item }'}]}}
";
    let mut host = Host::run(tasks, json!({}));
    host.send_event("a", json!(1));
    host.send_event("a", json!(2));
    host.answer("work", Ok(json!("one")));
    assert_eq!(host.output(), json!(["one"]));
}

#[test]
fn until_with_foreach_sees_the_events_and_forgets_what_came_after() {
    let tasks = "
do:
  - hear:
      listen: {to: {any: [{with: {type: a}}], until: '. == [1, 2]'}}
      foreach: {do: [work: {call: work, with: '${ $item }'}]}
";
    let mut host = Host::run(tasks, json!({}));
    (1..=4).for_each(|n| host.send_event("a", json!(n)));
    host.answer("work", Ok(json!("first")));
    assert_eq!(host.status(), Status::Running);
    host.answer("work", Ok(json!("second")));
    assert_eq!(host.output(), json!(["first", "second"]));
}

#[test]
fn until_with_foreach_sees_what_an_iteration_exports() {
    let tasks = "
do:
  - hear:
      listen: {to: {any: [{with: {type: a}}], until: '$context.last == 2'}}
      foreach: {do: [keep: {set: '${ $item * 10 }'}], export: {as: '${ {last: $item} }'}}
";
    let mut host = Host::run(tasks, json!({}));
    (1..=3).for_each(|n| host.send_event("a", json!(n)));
    assert_eq!(host.output(), json!([10, 20]));
}

#[test]
fn an_error_in_foreach_ends_the_listen() {
    let tasks = "
do:
  - guarded:
      try:
        - hear:
            listen: {to: {any: [{with: {type: a}}], until: false}}
            foreach: {do: [bad: {set: '${ .x.y }'}]}
      catch: {as: e, do: [note: {set: '${ $e.instance }'}]}
";
    let mut host = Host::run(tasks, json!({}));
    host.send_event("a", json!({"x": null}));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("a", json!({"x": 5}));
    assert_eq!(host.output(), json!("/do/0/guarded/try/0/hear/foreach/do/0/bad"));
}

#[test]
fn the_first_event_decides_which_others_belong_to_it() {
    let to = "{all: [
      {with: {type: order}, correlate: {id: {from: .data.id}}},
      {with: {type: paid}, correlate: {id: {from: .data.order}}}]}";
    let mut host = Host::run(&listens(to, ""), json!({}));
    host.send_event("order", json!({"id": 7}));
    host.send_event("paid", json!({"order": 8}));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("paid", json!({"order": 7}));
    assert_eq!(host.output(), json!([{"id": 7}, {"order": 7}]));
}

#[test]
fn correlation_with_the_workflow() {
    let to = "{one: {with: {type: paid}, correlate: {id: {from: .data.order, expect: .id}}}}";
    let mut host = Host::run(&listens(to, ""), json!({"id": 7}));
    let filter = &host.listens.values().next().unwrap()[0];
    assert_eq!((filter.attribute("type"), filter.correlate[0].1.clone()), (Some("paid"), json!(7)));
    host.send_event("paid", json!({"order": 8}));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("paid", json!({"order": 7}));
    assert_eq!(host.output(), json!([{"order": 7}]));
}

#[test]
fn topics_and_computed_attributes() {
    let to = "{one: {with: {type: mqtt.publish, subject: 'rooms/+/temp', source: '${ .node }'}}}";
    let mut host = Host::run(&listens(to, ""), json!({"node": "/n1"}));
    let event = |subject: &str, source: &str| json!({"specversion": "1.0", "id": "1", "source": source, "type": "mqtt.publish", "subject": subject, "data": 21});
    host.send(event("rooms/a/humidity", "/n1"));
    host.send(event("rooms/a/temp", "/n2"));
    assert_eq!(host.status(), Status::Waiting);
    host.send(event("rooms/a/temp", "/n1"));
    assert_eq!(host.output(), json!([21]));
}

fn ruled(rule: &str, more: &str) -> Host {
    let to = "{any: [{with: {type: a}}]}";
    Host::run(&listens(to, &format!(", metadata: {{events: {rule}}}{more}")), json!({}))
}

#[test]
fn a_rule_counts() {
    let mut host = ruled("{count: 3}", "");
    (1..=3).for_each(|n| host.send_event("a", json!(n)));
    let output = host.output();
    assert_eq!(output[0]["events"], json!([1, 2, 3]));
    assert_eq!((&output[0]["kind"], &output[0]["key"]), (&json!("count"), &Value::Null));
    assert_eq!(output.as_array().map(Vec::len), Some(1));
}

#[test]
fn a_rule_with_keys() {
    let mut host = ruled("{count: 2, key: '${ .data.room }'}", "");
    for (room, n) in [("x", 1), ("y", 2), ("z", 3), ("y", 4)] {
        host.send_event("a", json!({"room": room, "n": n}));
    }
    let output = host.output();
    assert_eq!(output[0]["key"], json!("y"));
    assert_eq!(output[0]["events"], json!([{"room": "y", "n": 2}, {"room": "y", "n": 4}]));
}

#[test]
fn a_rule_for_silence_needs_a_clock() {
    let mut host = ruled("{silence: 30s}", "");
    host.until(20_000);
    host.send_event("a", json!(1));
    assert_eq!(host.instance.due_ms(), Some(50_000));
    host.until(49_999);
    assert_eq!(host.status(), Status::Waiting);
    host.until(50_000);
    assert_eq!(host.output()[0]["kind"], json!("silence"));
}

#[test]
fn a_rule_over_a_value() {
    let mut host = ruled("{threshold: {value: '${ .data.t }', above: 30}}", "");
    host.send_event("a", json!({"t": 31}));
    assert_eq!(host.output()[0]["events"], json!([{"t": 31}]));
}

#[test]
fn a_rule_with_foreach() {
    let tasks = "
do:
  - hear:
      listen: {to: {any: [{with: {type: a}}], until: {one: {with: {type: stop}}}}}
      metadata: {events: {count: 2}}
      foreach: {do: [sum: {set: '${ .events | add }'}]}
";
    let mut host = Host::run(tasks, json!({}));
    (1..=5).for_each(|n| host.send_event("a", json!(n)));
    host.send_event("stop", json!(0));
    assert_eq!(host.output(), json!([3, 7]));
}

#[test]
fn attributes_match_regular_expressions() {
    let filter = r"{one: {with: {type: 'com\.(a|b)\..*', source: '/test', subject: '^room/[0-9]+$'}}}";
    let event = |kind: &str, subject: &str| json!({"specversion": "1.0", "id": "1", "source": "/test", "type": kind, "subject": subject, "data": kind});
    let mut host = Host::run(&listens(filter, ""), json!({}));
    for (kind, subject) in
        [("com.c.x", "room/1"), ("xcom.a.x", "room/1"), ("com.a.x", "room/x"), ("com.a.x", "room/1/2")]
    {
        host.send(event(kind, subject));
        assert_eq!(host.status(), Status::Waiting, "{kind} {subject}");
    }
    host.send(event("com.b.x", "room/12"));
    assert_eq!(host.output(), json!(["com.b.x"]));
}

#[test]
fn a_filter_of_data_alone() {
    let mut host = Host::run(&listens("{one: {with: {data: '${ .alarm }'}}}", ""), json!({}));
    host.send_event("x", json!({"alarm": false}));
    host.send_event("y", json!({"alarm": true}));
    assert_eq!(host.output(), json!([{"alarm": true}]));
    let mut host = Host::run(&listens("{one: {with: {data: {by: ada}}}}", ""), json!({}));
    host.send_event("x", json!({"by": "bob"}));
    host.send_event("y", json!({"by": "ada", "n": 1}));
    assert_eq!(host.output(), json!([{"by": "ada", "n": 1}]));
}

#[test]
fn until_all_of_some_events() {
    let to = "{any: [{with: {type: a}}], until: {all: [{with: {type: x}}, {with: {type: y}}]}}";
    let mut host = Host::run(&listens(to, ""), json!({}));
    host.send_event("a", json!(1));
    host.send_event("x", json!(0));
    host.send_event("x", json!(0));
    host.send_event("a", json!(2));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("y", json!(0));
    assert_eq!(host.output(), json!([1, 2]));
}
