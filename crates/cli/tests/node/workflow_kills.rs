//! Workflows over `kill -9`: traces of durable instances, and rules that have not fired.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde_json::{Value, json};

use crate::support::{PATIENCE, Running, look_again};
use crate::workflows::{App, HEAD, instances, publish, received, subscribe, subscribed, wait_for};

/// The spans of an instance: names with their ids and status, in the order of their ids.
fn spans(node: &Running, id: &str) -> Vec<(String, String, String)> {
    // There are none before the first step is stored.
    let found: Value =
        serde_json::from_slice(&node.cli(&["trace", id, "-o", "json"]).stdout).unwrap_or_default();
    let text = |span: &Value, key: &str| span[key].as_str().unwrap().to_owned();
    let of = |span: &Value| (text(span, "span_id"), text(span, "name"), text(span, "status"));
    let mut spans: Vec<_> = found["spans"].as_array().into_iter().flatten().map(of).collect();
    spans.sort();
    spans
}

#[test]
fn the_trace_of_a_durable_instance_survives_a_kill() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut node = Running::start(&data, &[]);
    let flow = format!(
        "document: {{ {HEAD}, name: flow, metadata: {{ durable: true }} }}
do:
  - a: {{ set: {{ x: 1 }} }}
  - hold: {{ listen: {{ to: {{ one: {{ with: {{ type: mqtt.publish, subject: go }} }} }} }} }}
  - again: {{ listen: {{ to: {{ one: {{ with: {{ type: mqtt.publish, subject: on }} }} }} }} }}
  - b: {{ set: {{ x: 2 }} }}
"
    );
    let app = App::new("app = \"flow\"\nworkflows = [\"*.yaml\"]\n", &[("flow.yaml", &flow)]);
    node.ok(&["deploy", app.path()]);
    publish(&node, "$faas/wf/flow/invoke", "{}", "1");
    let at = |node: &Running, task: &str| {
        let waits = |found: &[Value]| found.len() == 1 && found[0]["tasks"] == json!([task]);
        wait_for(node, task, waits)[0]["id"].as_str().unwrap().to_owned()
    };
    let id = at(&node, "/do/1/hold");
    let names = |spans: &[(String, String, String)]| {
        let mut names: Vec<String> = spans
            .iter()
            .map(|(_, name, status)| format!("{name} {status}").trim_end().to_owned())
            .collect();
        names.sort();
        names
    };
    for (task, topic, shown) in [
        ("/do/1/hold", "go", &["flow waiting", "listen hold waiting", "set a"][..]),
        ("/do/2/again", "on", &["flow waiting", "listen again waiting", "listen hold", "set a"]),
    ] {
        at(&node, task);
        // The list shows a task before that is stored, and the trace after it.
        let until = std::time::Instant::now() + PATIENCE;
        while names(&spans(&node, &id)) != shown {
            assert!(std::time::Instant::now() < until, "{:?} at {task}", spans(&node, &id));
            look_again();
        }
        let before = spans(&node, &id);
        node.kill();
        node = Running::start(&data, &[]);
        at(&node, task);
        assert_eq!(spans(&node, &id), before, "the trace after the kill at {task}");
        publish(&node, topic, "1", "1");
    }
    wait_for(&node, "it ends", <[Value]>::is_empty);
    let until = std::time::Instant::now() + PATIENCE;
    let all = ["flow", "listen again", "listen hold", "set a", "set b"];
    while names(&spans(&node, &id)) != all {
        assert!(std::time::Instant::now() < until, "{:?}", spans(&node, &id));
        look_again();
    }
}

#[test]
fn what_a_rule_has_counted_survives_each_kill() {
    const COUNT: u32 = 12;
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut node = Running::start(&data, &[]);
    let flow = format!(
        "document: {{ {HEAD}, name: flow, metadata: {{ durable: true, events: {{ count: {COUNT} }} }} }}
schedule: {{ on: {{ one: {{ with: {{ type: mqtt.publish, subject: in }} }} }} }}
do:
  - say: {{ call: asyncapi, with: {{ channel: fired, message: {{ payload: '${{ [.[0].events[].data] }}' }} }} }}
"
    );
    let manifest = "app = \"flow\"\n[workflows]\nfiles = [\"*.yaml\"]\n[workflows.flow.permissions]\npublish = [\"fired\"]\n";
    let app = App::new(manifest, &[("flow.yaml", &flow)]);
    node.ok(&["deploy", app.path()]);
    // An acknowledged event counts, and counts once, wherever the node is killed.
    for number in 1..COUNT {
        publish(&node, "in", &number.to_string(), if number % 2 == 0 { "2" } else { "1" });
        if number % 3 == 0 {
            node.kill();
            node = Running::start(&data, &[]);
        }
    }
    let fired = subscribe(&node, "fired", 1);
    subscribed(&node, "fired");
    publish(&node, "in", &COUNT.to_string(), "1");
    let all: Vec<u32> = (1..=COUNT).collect();
    assert_eq!(received(fired).trim(), format!("fired {}", json!(all)));
}

#[test]
fn an_answered_retry_survives_a_kill() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let node = Running::start(&data, &[]);
    let flow = format!(
        "document: {{ {HEAD}, name: flow, metadata: {{ durable: true }} }}
do:
  - a: {{ set: {{ x: 1 }} }}
  - burst: {{ raise: {{ error: {{ type: 'https://example.com/burst', status: 500 }} }} }}
"
    );
    let app = App::new("app = \"flow\"\nworkflows = [\"*.yaml\"]\n", &[("flow.yaml", &flow)]);
    node.ok(&["deploy", app.path()]);
    (0..6).for_each(|_| publish(&node, "$faas/wf/flow/invoke", "{}", "1"));
    let all_failed =
        |found: &[Value]| found.len() == 6 && found.iter().all(|one| one["status"] == "faulted");
    let steps = |found: &[Value]| -> BTreeMap<String, u64> {
        let of = |one: &Value| (one["id"].as_str().unwrap().to_owned(), one["steps"].as_u64().unwrap());
        found.iter().map(of).collect()
    };
    let before = steps(&wait_for(&node, "all have failed", all_failed));
    let answers = AtomicUsize::new(0);
    let answered: Vec<&str> = std::thread::scope(|scope| {
        let retry = |id| {
            let (node, answers) = (&node, &answers);
            scope.spawn(move || {
                let is_answered = node.cli(&["workflow", "retry", id]).status.success();
                // In the middle of the others.
                if is_answered && answers.fetch_add(1, Relaxed) == 1 {
                    node.signal("-KILL");
                }
                is_answered.then_some(id)
            })
        };
        let retries: Vec<_> = before.keys().map(String::as_str).map(retry).collect();
        retries.into_iter().filter_map(|retry| retry.join().unwrap()).collect()
    });
    assert!(answered.len() >= 2, "{answered:?}");
    node.kill();
    let node = Running::start(&data, &[]);
    let after = steps(&wait_for(&node, "all have failed again", all_failed));
    for id in answered {
        assert!(after[id] > before[id], "{id} was not retried: {before:?} {after:?}");
    }
    // Whatever end the crash has lost, nothing of a failed instance runs.
    for id in before.keys() {
        let shown = spans(&node, id);
        let have_ended = shown.iter().all(|(_, _, status)| status.is_empty());
        assert!(have_ended && !shown.is_empty(), "{id}: {shown:?}");
    }
}

/// The node is killed while the instance computes with the result of its function, which has changed an object.
#[test]
fn a_function_whose_changes_are_stored_does_not_run_again() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut node = Running::start(&data, &[]);
    let flow = format!(
        "document: {{ {HEAD}, name: flow, metadata: {{ durable: true }} }}
do:
  - count: {{ call: count, with: {{}} }}
  - long:
      for: {{ in: '${{ [range(40)] }}' }}
      do: [ {{ work: {{ set: {{ counted: '${{ .counted }}', sum: '${{ reduce range(20000) as $i (0; . + $i) }}' }} }} }} ]
  - tell: {{ call: asyncapi, with: {{ channel: told, message: {{ payload: '${{ .counted }}', qos: 1, retain: true }} }} }}
"
    );
    let count = "export default async (event, context) => {
        const runs = context.object('tank').counter('runs');
        const counted = 1 + await runs.value();
        await runs.add(1);
        context.publish('ran', String(counted), { qos: 1, retain: true });
        return { counted };
    };";
    let manifest = "app = \"flow\"
[functions.count]
main = \"count.js\"
permissions = { objects = [\"tank\"], publish = [\"ran\"] }
[workflows]
files = [\"*.yaml\"]
[workflows.flow.permissions]
publish = [\"told\"]
";
    let app = App::new(manifest, &[("flow.yaml", &flow), ("count.js", count)]);
    node.ok(&["deploy", app.path()]);
    let runs = |node: &Running| {
        let got = node.cli(&["objects", "get", "flow", "tank", "runs", "-o", "json"]);
        serde_json::from_slice::<Value>(&got.stdout).unwrap_or_default()["value"].as_i64().unwrap_or(0)
    };
    let mut interrupted: usize = 0;
    for round in 1..=5 {
        publish(&node, "$faas/wf/flow/invoke", "{}", "1");
        let until = std::time::Instant::now() + PATIENCE;
        while runs(&node) < round {
            assert!(std::time::Instant::now() < until, "the function has not run");
        }
        interrupted += instances(&node).len();
        node.kill();
        node = Running::start(&data, &[]);
        wait_for(&node, "it ends", <[Value]>::is_empty);
        assert_eq!(runs(&node), round, "the function has run again");
        for topic in ["ran", "told"] {
            let until = std::time::Instant::now() + PATIENCE;
            while received(subscribe(&node, topic, 1)).trim() != format!("{topic} {round}") {
                assert!(std::time::Instant::now() < until, "{topic} is lost in round {round}");
            }
        }
    }
    assert!(interrupted > 0, "no kill has met an instance that computes");
}
