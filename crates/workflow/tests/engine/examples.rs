//! Whole workflows with the shapes of the specification's examples, in our own words.

use edgefaas_workflow::{ErrorKind, Status};
use serde_json::json;

use crate::host::{Host, error};

#[test]
fn order_processing() {
    let tasks = "
do:
  - sort:
      switch:
        - goods: {when: '.type == \"goods\"', then: ship}
        - download: {when: '.type == \"download\"', then: unlock}
        - rest: {then: ask}
  - ship:
      do:
        - reserve: {call: reserve, with: {sku: '${ .sku }'}}
        - send: {call: send}
      then: end
  - unlock: {call: unlock, then: end}
  - ask: {raise: {error: {type: 'https://example.com/errors/order', status: 400, detail: '${ \"no order: \" + .type }'}}}
";
    let mut host = Host::run(tasks, json!({"type": "goods", "sku": "k1"}));
    host.answer("reserve", Ok(json!({"place": 4})));
    host.answer("send", Ok(json!({"sent": true})));
    assert_eq!(host.output(), json!({"sent": true}));
    let mut host = Host::run(tasks, json!({"type": "download"}));
    host.answer("unlock", Ok(json!({"url": "x"})));
    assert_eq!(host.output(), json!({"url": "x"}));
    assert_eq!(Host::run(tasks, json!({"type": "gift"})).fault().detail.as_deref(), Some("no order: gift"));
}

#[test]
fn a_request_that_is_tried_again_while_the_server_is_away() {
    let tasks = "
use:
  retries:
    patient: {delay: {seconds: 1}, backoff: {exponential: {}}, limit: {attempt: {count: 3}}}
do:
  - pet:
      try:
        - get: {call: http, with: {method: get, endpoint: 'https://pets.example/{id}'}}
      catch:
        errors: {with: {type: communication, status: 503}}
        retry: patient
  - name: {set: '${ {name: .name} }'}
";
    let mut host = Host::run(tasks, json!({"id": 3}));
    host.answer("https://pets.example/3", Err(error(ErrorKind::Communication, 503)));
    host.until(1_000);
    host.answer("https://pets.example/3", Err(error(ErrorKind::Communication, 503)));
    host.until(3_000);
    host.answer("https://pets.example/3", Ok(json!({"name": "Rex"})));
    assert_eq!(host.output(), json!({"name": "Rex"}));

    let mut host = Host::run(tasks, json!({"id": 3}));
    host.answer("https://pets.example/3", Err(error(ErrorKind::Communication, 404)));
    assert_eq!(host.fault().status, 404);
}

#[test]
fn patients_are_watched() {
    let tasks = "
do:
  - watch:
      listen:
        to:
          any:
            - with: {type: vitals.temperature, data: '${ .celsius > 38 }'}
            - with: {type: vitals.pulse, data: '${ .bpm < 60 or .bpm > 100 }'}
          until: {one: {with: {type: patient.left}}}
      foreach:
        item: alarm
        do: [call: {call: nurse, with: '${ $alarm }'}]
  - report: {set: {alarms: '${ length }', answers: '${ . }'}}
";
    let mut host = Host::run(tasks, json!({}));
    host.send_event("vitals.temperature", json!({"celsius": 37}));
    host.send_event("vitals.pulse", json!({"bpm": 120}));
    host.send_event("vitals.temperature", json!({"celsius": 39.5}));
    host.answer("nurse", Ok(json!("coming")));
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"celsius": 39.5}));
    host.send_event("patient.left", json!({}));
    host.answer("nurse", Ok(json!("again?")));
    assert_eq!(host.output(), json!({"alarms": 2, "answers": ["coming", "again?"]}));
}

#[test]
fn readings_are_collected() {
    let tasks = "
do:
  - collect:
      listen:
        to:
          any: [{with: {type: reading}, correlate: {room: {from: .data.room, expect: .room}}}]
          until: length == 3
  - store: {call: store, with: {mean: '${ map(.celsius) | add / length }'}}
";
    let mut host = Host::run(tasks, json!({"room": "a"}));
    for (room, celsius) in [("a", 20), ("b", 50), ("a", 22), ("b", 50), ("a", 24)] {
        host.send_event("reading", json!({"room": room, "celsius": celsius}));
    }
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"mean": 22.0}));
}

#[test]
fn two_have_to_agree() {
    let tasks = "
do:
  - approve:
      fork:
        branches:
          - manager: {listen: {to: {one: {with: {type: approved, data: {by: manager}}}}}}
          - finance: {listen: {to: {one: {with: {type: approved, data: {by: finance}}}}}}
      timeout: {after: {days: 2}}
  - pay: {call: pay}
";
    let mut host = Host::run(tasks, json!({}));
    host.send_event("approved", json!({"by": "finance"}));
    host.send_event("approved", json!({"by": "guest"}));
    assert_eq!(host.status(), Status::Waiting);
    host.send_event("approved", json!({"by": "manager"}));
    assert_eq!(
        host.asked.values().next().unwrap().body(),
        json!([[{"by": "manager"}], [{"by": "finance"}]])
    );

    let mut host = Host::run(tasks, json!({}));
    host.until(2 * 86_400_000);
    assert_eq!(host.fault().instance.as_deref(), Some("/do/0/approve"));
    assert!(host.listens.is_empty());
}

#[test]
fn a_part_is_a_workflow_of_its_own() {
    let tasks = "
do:
  - customer: {run: {workflow: {namespace: test, name: find-customer, version: '1.0.0', input: {id: '${ .customer }'}}}, output: {as: .id}}
  - each:
      for: {each: n, in: '[1, 2]'}
      do: [invoice: {run: {workflow: {name: invoice, input: {customer: '${ . }', n: '${ $n }'}}}}]
";
    let mut host = Host::run(tasks, json!({"customer": "c1"}));
    host.answer("find-customer", Ok(json!({"id": "c1", "name": "Ada"})));
    host.answer("invoice", Ok(json!("first")));
    assert_eq!(host.asked.values().next().unwrap().body(), json!({"customer": "first", "n": 2}));
    host.answer("invoice", Ok(json!("second")));
    assert_eq!(host.output(), json!("second"));
}

#[test]
fn what_was_done_is_undone() {
    let tasks = "
do:
  - trip:
      try:
        - flight: {call: book-flight, export: {as: '${ {done: [\"flight\"]} }'}}
        - hotel: {call: book-hotel, export: {as: '${ {done: ($context.done + [\"hotel\"])} }'}}
        - car: {call: book-car}
      catch:
        as: reason
        do:
          - undo:
              for: {each: what, in: '$context.done | reverse'}
              do: [cancel: {call: cancel, with: {what: '${ $what }'}}]
          - tell: {raise: {error: {type: 'https://example.com/trip', status: 409, detail: '${ $reason.detail }'}}}
";
    let mut host = Host::run(tasks, json!({}));
    host.answer("book-flight", Ok(json!({})));
    host.answer("book-hotel", Ok(json!({})));
    host.answer("book-car", Err(error(ErrorKind::Runtime, 500)));
    for what in ["hotel", "flight"] {
        assert_eq!(host.asked.values().next().unwrap().body(), json!({"what": what}));
        host.answer("cancel", Ok(json!({})));
    }
    let fault = host.fault();
    assert_eq!((fault.status, fault.detail.as_deref()), (409, Some("it did not work")));
    assert_eq!(fault.instance.as_deref(), Some("/do/0/trip/catch/do/1/tell"));
}
