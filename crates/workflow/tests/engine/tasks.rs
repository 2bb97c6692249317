//! wait, set and emit.

use edgefaas_workflow::Status;
use edgefaas_workflow::instance::Content;
use serde_json::json;

use crate::host::Host;

#[test]
fn all_forms_of_a_wait() {
    for (wait, ms) in [
        ("{seconds: 2}", 2_000),
        ("{days: 1, hours: 1, minutes: 1, seconds: 1, milliseconds: 1}", 90_061_001),
        ("PT1M30S", 90_000),
        ("P1DT1H", 90_000_000),
        ("250ms", 250),
        ("2m", 120_000),
        ("'${ .pause }'", 4_000),
        ("'${ {seconds: .n} }'", 3_000),
        ("{seconds: '${ .n }'}", 3_000),
    ] {
        let mut host = Host::run(&format!("do: [a: {{wait: {wait}}}]"), json!({"pause": "4s", "n": 3}));
        assert_eq!(host.status(), Status::Waiting, "{wait}");
        assert_eq!(host.instance.due_ms(), Some(ms), "{wait}");
        host.until(ms - 1);
        assert_eq!(host.status(), Status::Waiting, "{wait}");
        host.until(ms);
        assert_eq!(host.output(), json!({"pause": "4s", "n": 3}), "{wait}");
    }
}

#[test]
fn no_wait_at_all() {
    let mut host = Host::run("do: [a: {wait: 0s}]", json!(1));
    host.until(0);
    assert_eq!(host.output(), json!(1));
}

#[test]
fn waits_are_told() {
    let host = Host::run("do: [o: {do: [a: {wait: 10s}]}]", json!(1));
    assert_eq!(host.instance.current(&host.program), [("/do/0/o/do/0/a", 1)].into());
}

#[test]
fn set_takes_objects_and_expressions() {
    for (set, output) in [
        (
            "{a: 1, b: {c: '${ .x }', d: [1, '${ .x + 1 }']}, e: 'text ${ .x }'}",
            json!({"a": 1, "b": {"c": 5, "d": [1, 6]}, "e": "text ${ .x }"}),
        ),
        ("'${ .x }'", json!(5)),
        ("'${ empty }'", json!(null)),
    ] {
        assert_eq!(Host::run(&format!("do: [a: {{set: {set}}}]"), json!({"x": 5})).output(), output);
    }
}

#[test]
fn emit_fills_in_what_an_event_needs() {
    let tasks = "
do:
  - tell: {emit: {event: {with: {type: order.placed, data: {id: '${ .id }'}}}}}
  - more:
      emit: {event: {with: {type: other, id: mine, source: /me, time: '2026-01-01T00:00:00Z', subject: x, extra: 1}}}
      metadata: {topic: '${ \"orders/\" + .data.id }', qos: 2}
  - after: {set: '${ . }'}
";
    let host = Host::run(tasks, json!({"id": "7"}));
    let sent = host.events_sent();
    let wanted = json!({
        "type": "order.placed",
        "data": {"id": "7"},
        "specversion": "1.0",
        "id": "one-1",
        "source": "/workflows/test",
        "time": "2026-01-01T00:00:00.000Z",
        "datacontenttype": "application/json",
    });
    assert_eq!(sent[0], wanted);
    assert_eq!(sent[1]["id"], json!("mine"));
    assert_eq!(host.output(), sent[1]);
    let topics: Vec<_> =
        host.published.iter().map(|sent| (sent.topic.as_deref(), sent.qos, sent.retain)).collect();
    assert_eq!(topics, [(None, 1, false), (Some("orders/7"), 2, false)]);
    assert!(matches!(host.published[0].content, Content::CloudEvent(_)));
}
