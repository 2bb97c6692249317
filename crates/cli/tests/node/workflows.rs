//! Workflows as their users have them: deployed from files, run over HTTP and MQTT, seen, cancelled, retried.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{PATIENCE, Running, look_again, repository};

pub(crate) const HEAD: &str = "dsl: '1.0.3', namespace: test, version: '1.0.0'";

/// An app on disk.
pub(crate) struct App {
    dir: tempfile::TempDir,
}

impl App {
    pub(crate) fn new(manifest: &str, files: &[(&str, &str)]) -> Self {
        let app = Self { dir: tempfile::tempdir().unwrap() };
        app.write("edgefaas.toml", manifest);
        files.iter().for_each(|(name, text)| app.write(name, text));
        app
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    pub(crate) fn path(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }
}

pub(crate) fn subscribe(node: &Running, topic: &str, count: u32) -> Child {
    Command::new("mosquitto_sub")
        .args([
            "-p",
            &node.mqtt_port,
            "-t",
            topic,
            "-C",
            &count.to_string(),
            "-W",
            "120",
            "-v",
            "-V",
            "mqttv5",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("mosquitto_sub is installed")
}

pub(crate) fn received(child: Child) -> String {
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

pub(crate) fn publish(node: &Running, topic: &str, message: &str, qos: &str) {
    let status = Command::new("mosquitto_pub")
        .args(["-p", &node.mqtt_port, "-t", topic, "-m", message, "-q", qos, "-V", "mqttv5"])
        .status()
        .expect("mosquitto_pub is installed");
    assert!(status.success());
}

/// Waits until somebody subscribes to a filter.
pub(crate) fn subscribed(node: &Running, filter: &str) {
    let until = Instant::now() + PATIENCE;
    while !node.ok(&["queues", "-o", "json"]).contains(filter) {
        assert!(Instant::now() < until, "nobody subscribes to {filter}");
        look_again();
    }
}

fn example(name: &str) -> PathBuf {
    repository().join("examples").join(name)
}

pub(crate) fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("no JSON: {text}"))
}

/// The instances that have not ended, or failed.
pub(crate) fn instances(node: &Running) -> Vec<Value> {
    let list = parsed(&node.ok(&["workflow", "list", "-o", "json"]));
    let is_open = |one: &&Value| !["completed", "cancelled"].contains(&one["status"].as_str().unwrap());
    list["instances"].as_array().unwrap().iter().filter(is_open).cloned().collect()
}

/// Waits until the instances are as they should be.
pub(crate) fn wait_for(node: &Running, what: &str, mut fits: impl FnMut(&[Value]) -> bool) -> Vec<Value> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = instances(node);
        if fits(&found) {
            return found;
        }
        assert!(Instant::now() < until, "{what}: {found:?}");
        look_again();
    }
}

/// Live and retryable instances of the first workflow of the first app, as the list counts them.
fn counts(node: &Running) -> (Value, Value) {
    let list = parsed(&node.ok(&["list", "-o", "json"]));
    let flow = &list["apps"][0]["workflows"][0];
    (flow["live"].clone(), flow["retryable"].clone())
}

/// Waits until the list counts so many: an instance that has ended is shown so before that is stored, and is counted after it.
fn wait_for_counts(node: &Running, live: u64, retryable: u64) {
    let until = Instant::now() + PATIENCE;
    while counts(node) != (json!(live), json!(retryable)) {
        assert!(Instant::now() < until, "{:?}", counts(node));
        look_again();
    }
}

#[test]
fn map_reduce_inside_and_over_topics() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let said = node.ok(&["deploy", example("map-reduce").to_str().unwrap()]);
    assert!(said.contains("word-count") && said.contains("over-mqtt"), "{said}");
    let input = r#"{"chunks": ["the quick fox", "the lazy dog", "the end"]}"#;
    for name in ["word-count", "over-mqtt"] {
        let counts = parsed(&node.ok(&["invoke", name, "-d", input]));
        assert_eq!(counts[0], json!({"word": "the", "count": 3}), "{name}: {counts}");
        assert_eq!(counts.as_array().unwrap().len(), 6, "{name}: {counts}");
    }
    let (status, body) = node.http("POST", "/workflows/word-count", input);
    assert_eq!((status, &parsed(&body)[0]["word"]), (200, &json!("the")), "{body}");
    assert!(node.ok(&["workflow", "graph", "over-mqtt"]).contains("flowchart"));
    let svg = home.path().join("picture.svg");
    let refused = node.cli(&["workflow", "graph", "word-count", "--svg", svg.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Mermaid"));
    assert!(!svg.exists());
}

#[test]
fn a_saga_takes_back_what_it_did() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    node.ok(&["deploy", example("saga").to_str().unwrap()]);
    let order = |address: &str| json!({"pieces": 2, "amount": 30, "address": address}).to_string();
    let shipped = parsed(&node.ok(&["invoke", "order", "-d", &order("Harbour Road 1")]));
    assert_eq!(shipped, json!({"shippedTo": "Harbour Road 1"}));
    let cancelled = parsed(&node.ok(&["invoke", "order", "-d", &order("the Moon")]));
    assert_eq!(cancelled["cancelled"], true, "{cancelled}");
    assert!(cancelled["because"].as_str().unwrap().contains("nobody ships to the Moon"), "{cancelled}");
    // What the first one left is there, and nothing of the second.
    let taken = parsed(&node.ok(&["invoke", "payment", "-d", r#"{"amount": 0}"#]));
    let reserved = parsed(&node.ok(&["invoke", "stock", "-d", r#"{"pieces": 0}"#]));
    assert_eq!((taken, reserved), (json!({"taken": 30}), json!({"reserved": 2})));
    // An order that is none is told what is wrong with it, as a problem document with the DSL's type.
    let (status, body) = node.http("POST", "/workflows/order", "{}");
    let problem = parsed(&body);
    assert_eq!(status, 400, "{body}");
    assert_eq!(problem["type"], "https://serverlessworkflow.io/spec/1.0.0/errors/validation", "{body}");
    assert!(problem["detail"].as_str().unwrap().contains("pieces"), "{body}");
}

#[test]
fn silence_and_warmth_raise_alarms() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    node.ok(&["deploy", example("silence").to_str().unwrap()]);
    let alarms = subscribe(&node, "alarms/#", 2);
    subscribed(&node, "alarms/#");
    // At once: a pause of this test between them would be a silence.
    let mut sensor = Command::new("mosquitto_pub")
        .args(["-p", &node.mqtt_port, "-t", "sensors/attic/reading", "-q", "1", "-V", "mqttv5", "-l"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let readings = b"{\"celsius\": 25}\n{\"celsius\": 31}\n{\"celsius\": 32}\n";
    std::io::Write::write_all(&mut sensor.stdin.take().unwrap(), readings).unwrap();
    assert!(sensor.wait().unwrap().success());
    let alarms = received(alarms);
    let lines: Vec<&str> = alarms.lines().collect();
    assert_eq!(lines[0], r#"alarms/attic {"celsius":31}"#);
    assert_eq!(lines[1], r#"alarms/attic {"silentForMs":5000,"last":{"celsius":32}}"#);
}

#[test]
fn every_way_in_and_its_answers() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let app = App::new(
        "app = \"ways\"\nworkflows = [\"*.yaml\"]\n[functions.double]\nmain = \"double.js\"\n[functions.outer]\nmain = \
         \"outer.js\"\npermissions = { call = [\"chain\"] }\n",
        &[
            ("double.js", "export default (event) => ({ n: event.json().n * 2, kind: event.kind })"),
            (
                "outer.js",
                "export default async (event, context) => await context.call('chain', event.json())",
            ),
            (
                "chain.yaml",
                &format!(
                    "document: {{ {HEAD}, name: chain }}\ndo:\n  - a: {{ call: double }}\n  - b: {{ call: double }}\n  - c: \
                     {{ call: double }}\n"
                ),
            ),
            (
                "parent.yaml",
                &format!(
                    "document: {{ {HEAD}, name: parent }}\ndo:\n  - child: {{ run: {{ workflow: {{ namespace: test, name: \
                     chain, version: '1.0.0', input: {{ n: '${{ .n + 1 }}' }} }} }} }}\n  - called: {{ call: chain }}\n"
                ),
            ),
            (
                "script.yaml",
                &format!(
                    "document: {{ {HEAD}, name: script }}\ndo:\n  - run:\n      run:\n        script:\n          language: js\n          \
                     arguments: {{ a: '${{ .n }}', b: 4 }}\n          code: |\n            console.log('not this');\n            \
                     return a * b;\n"
                ),
            ),
        ],
    );
    node.ok(&["deploy", app.path()]);
    let eight = json!({"n": 8, "kind": "workflow"});
    assert_eq!(parsed(&node.ok(&["invoke", "chain", "-d", r#"{"n": 1}"#])), eight);
    assert_eq!(parsed(&node.http("POST", "/workflows/chain", r#"{"n": 1}"#).1), eight);
    // A composition is a function: for the gateway, and for functions.
    assert_eq!(parsed(&node.http("POST", "/fn/chain", r#"{"n": 1}"#).1), eight);
    assert_eq!(parsed(&node.ok(&["invoke", "outer", "-d", r#"{"n": 1}"#])), eight);
    assert_eq!(parsed(&node.ok(&["invoke", "parent", "-d", r#"{"n": 0}"#]))["n"], 64);
    assert_eq!(parsed(&node.ok(&["invoke", "script", "-d", r#"{"n": 5}"#])), json!(20));
    let results = subscribe(&node, "$faas/wf/chain/result/+", 1);
    subscribed(&node, "$faas/wf/chain/result/+");
    publish(&node, "$faas/wf/chain/invoke/r1", r#"{"n": 2}"#, "0");
    let results = received(results);
    assert!(results.starts_with("$faas/wf/chain/result/r1 ") && results.contains("\"n\":16"), "{results}");

    let (status, body) = node.http("POST", "/workflows/chian", "{}");
    assert!(status == 404 && body.contains("`chain`"), "{status} {body}");
    let (status, body) = node.http("GET", "/workflows/chain", "");
    assert_eq!(status, 405, "{body}");
    let list = node.ok(&["list"]);
    assert!(list.contains("chain") && list.contains("parent"), "{list}");
    // Where the time went: the workflow, its tasks, and the functions in them.
    let (head, _) = node.exchange("POST", "/workflows/chain", r#"{"n": 1}"#);
    let id = head.lines().find_map(|line| line.strip_prefix("invocation-id: ")).expect("an id").trim();
    let spans = parsed(&node.ok(&["trace", id, "-o", "json"]));
    let kinds: Vec<&str> =
        spans["spans"].as_array().unwrap().iter().map(|span| span["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "function").count(), 3, "{spans}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "task").count(), 3, "{spans}");
    assert_eq!(kinds[0], "workflow", "{spans}");
    assert!(node.ok(&["trace", id]).contains("function double"));
}

#[test]
fn what_cannot_work_is_refused_at_the_deploy() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let file = |text: &str| {
        let path = home.path().join("flow.yaml");
        std::fs::write(&path, text).unwrap();
        path
    };
    let refused = |path: &Path, options: &[&str]| {
        let output = node.cli(&[&["deploy", path.to_str().unwrap()], options].concat());
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let flow = |tasks: &str| format!("document: {{ {HEAD}, name: flow }}\ndo:\n{tasks}");
    for (tasks, expected) in [
        ("  - a: { cal: x }\n", ":3:5: task `a` does nothing that is known"),
        ("  - a: { set: { x: '${ .a | }' } }\n", ":3:"),
        ("  - a: { wait: soon, then: b }\n", "there is no task `b`"),
        ("  - a: { run: { container: { image: x } } }\n", "`run: container` is not supported"),
        ("  - a: [\n", "this is not valid YAML"),
    ] {
        let said = refused(&file(&flow(tasks)), &[]);
        assert!(said.contains("flow.yaml") && said.contains(expected), "{tasks}: {said}");
    }
    // A function that is not there is a warning, or an error where that is asked for.
    let path = file(&flow("  - a: { call: nothing-there }\n"));
    let said = refused(&path, &["--strict"]);
    assert!(said.contains("calls `nothing-there`, which is not deployed"), "{said}");
    let output = node.cli(&["deploy", path.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("warning"), "{output:?}");
    let output = node.cli(&["invoke", "flow"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("nothing-there") && said.contains("404"), "{said}");
    // One of another app needs the permission.
    let hello = home.path().join("hello.js");
    std::fs::write(&hello, "export default () => 'hi'").unwrap();
    node.ok(&["deploy", hello.to_str().unwrap()]);
    let path = file(&flow("  - a: { call: hello }\n"));
    assert!(refused(&path, &[]).contains("--allow call=hello"));
    node.ok(&["deploy", path.to_str().unwrap(), "--allow", "call=hello"]);
    assert_eq!(node.ok(&["invoke", "flow"]).trim(), "\"hi\"");
}

#[test]
fn instances_are_listed_cancelled_retried_and_finish_on_their_definition() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let node = Running::start(&data, &[]);
    let flow = |second: &str| {
        format!(
            "document: {{ {HEAD}, name: flow, metadata: {{ durable: true }} }}\ndo:\n  - count: {{ call: count }}\n  - go: {{ \
             listen: {{ to: {{ one: {{ with: {{ type: mqtt.publish, subject: go }} }} }} }} }}\n  - last: {second}\n"
        )
    };
    let app = App::new(
        "app = \"flow\"\nworkflows = [\"*.yaml\"]\n[functions.count]\nmain = \"count.js\"\npermissions = { objects = [\"o\"] \
         }\n[functions.picky]\nmain = \"picky.js\"\npermissions = { objects = [\"o\"] }\n",
        &[
            (
                "count.js",
                "export default async (event, context) => { const c = context.object('o').counter('runs'); \
                 if (event.kind === 'workflow') await c.add(1); return { runs: await c.value() } }",
            ),
            (
                "picky.js",
                "export default async (event, context) => { const open = context.object('o').register('open'); \
                 if (event.kind === 'call') return void await open.set('yes'); \
                 if (!(await open.get())) throw new Error('not yet'); return 'done' }",
            ),
            ("flow.yaml", &flow("{ set: { version: one } }")),
        ],
    );
    node.ok(&["deploy", app.path()]);
    let start = |node: &Running| publish(node, "$faas/wf/flow/invoke", "{}", "1");
    start(&node);
    let found = wait_for(&node, "it waits", |found| found.len() == 1 && found[0]["status"] == "waiting");
    assert_eq!(found[0]["tasks"], json!(["/do/1/go"]));
    let first = found[0]["id"].as_str().unwrap().to_owned();
    // It is the root of its trace, though only a task of it has ended.
    let traces: Value = serde_json::from_str(&node.ok(&["traces", "-o", "json"])).unwrap();
    let root = &traces["traces"][0];
    assert_eq!(
        (&root["name"], &root["kind"], &root["running"]),
        (&json!("flow"), &json!("workflow"), &json!(true))
    );
    assert!(node.ok(&["traces"]).contains("so far"));
    // There is no policy without a cluster.
    let explain = |name: &str| -> Value {
        serde_json::from_str(&node.ok(&["policy", "explain", name, "-o", "json"])).unwrap()
    };
    for name in ["flow", "count"] {
        assert_eq!(explain(name)["node"], "this node", "{name}");
    }
    assert!(explain("count").to_string().contains("in no cluster"));

    // The new definition is for new instances; the old one survives a kill as well.
    app.write("flow.yaml", &flow("{ call: picky }"));
    node.ok(&["deploy", app.path()]);
    node.kill();
    let node = Running::start(&data, &[]);
    start(&node);
    let found = wait_for(&node, "both wait", |found| {
        found.iter().filter(|one| one["status"] == "waiting").count() == 2
    });
    let second =
        found.iter().map(|one| one["id"].as_str().unwrap()).find(|id| *id != first).unwrap().to_owned();
    let third = {
        start(&node);
        let found = wait_for(&node, "three wait", |found| {
            found.iter().filter(|one| one["status"] == "waiting").count() == 3
        });
        let id =
            found.iter().map(|one| one["id"].as_str().unwrap()).find(|id| *id != first && *id != second);
        id.unwrap().to_owned()
    };
    node.ok(&["workflow", "cancel", &third]);
    wait_for(&node, "one is cancelled", |found| found.len() == 2);
    publish(&node, "go", "1", "1");
    let found = wait_for(&node, "one fails", |found| found.len() == 1 && found[0]["status"] == "faulted");
    assert_eq!(found[0]["id"], json!(second));
    let shown = parsed(&node.ok(&["workflow", "show", &first, "-o", "json"]));
    assert_eq!(
        (&shown["status"], &shown["output"]),
        (&json!("completed"), &json!({"version": "one"})),
        "{shown}"
    );
    let shown = parsed(&node.ok(&["workflow", "show", &second, "-o", "json"]));
    assert_eq!(shown["error"]["instance"], "/do/2/last", "{shown}");
    assert!(shown["error"]["detail"].as_str().unwrap().contains("not yet"), "{shown}");
    let list = node.ok(&["workflow", "list"]);
    assert!(list.lines().any(|line| line.contains(&second) && line.contains("/do/2/last")), "{list}");
    // A failed instance that is cancelled is so in the list and by itself.
    start(&node);
    let waits = |found: &[Value]| found.iter().any(|one| one["status"] == "waiting");
    wait_for(&node, "another one waits", waits);
    publish(&node, "go", "1", "1");
    let found = wait_for(&node, "both have failed", |found| {
        found.iter().filter(|one| one["status"] == "faulted").count() == 2
    });
    wait_for_counts(&node, 0, 2);
    let fourth = found.iter().map(|one| one["id"].as_str().unwrap()).find(|id| *id != second).unwrap();
    node.ok(&["workflow", "cancel", fourth]);
    let shown = parsed(&node.ok(&["workflow", "show", fourth, "-o", "json"]));
    assert_eq!(shown["status"], "cancelled", "{shown}");
    let output = node.cli(&["workflow", "retry", fourth]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is cancelled; only a failed instance can be retried"), "{said}");
    // The other one is there after another crash, and goes on from the task that failed.
    node.kill();
    let node = Running::start(&data, &[]);
    wait_for(&node, "it is still there", |found| found.len() == 1 && found[0]["status"] == "faulted");
    // It has ended: the list counts it as one that can be retried, and not as a live one.
    wait_for_counts(&node, 0, 1);
    start(&node);
    wait_for(&node, "a new one waits", |found| found.iter().any(|one| one["status"] == "waiting"));
    wait_for_counts(&node, 1, 1);
    let row = node.ok(&["list"]);
    assert!(row.contains("LIVE  RETRYABLE  COMPLETED"), "{row}");
    let found = wait_for(&node, "both are listed", |found| found.len() == 2);
    let waiting = found.iter().find(|one| one["status"] == "waiting").unwrap();
    node.ok(&["workflow", "cancel", waiting["id"].as_str().unwrap()]);
    node.ok(&["invoke", "picky"]);
    node.ok(&["workflow", "retry", &second]);
    wait_for(&node, "it is done", <[Value]>::is_empty);
    wait_for_counts(&node, 0, 0);
    let shown = parsed(&node.ok(&["workflow", "show", &second, "-o", "json"]));
    assert_eq!((&shown["status"], &shown["output"]), (&json!("completed"), &json!("done")), "{shown}");
    // Each instance's first step has had its effect once.
    assert_eq!(parsed(&node.ok(&["invoke", "count"])), json!({"runs": 5}));
    for (arguments, code, told) in [
        (["workflow", "retry", &second], 7, "is completed; only a failed instance can be retried"),
        (["workflow", "cancel", &second], 7, "is completed and has ended"),
        (["workflow", "show", "nope"], 6, "there is no instance `nope`"),
        (
            ["workflow", "retry", "01ARZ3NDEKTSV4RRFFQ69G5FAV"],
            6,
            "there is no instance 01ARZ3NDEKTSV4RRFFQ69G5FAV",
        ),
    ] {
        let output = node.cli(&arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(told), "{arguments:?}: {output:?}");
    }
}

/// How often the node is killed, unless `EDGEFAAS_CRASH_ROUNDS` says otherwise.
const ROUNDS: u64 = 100;

#[test]
fn durable_steps_have_their_effect_once_whenever_the_node_is_killed() {
    let rounds =
        std::env::var("EDGEFAAS_CRASH_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut random = crate::load::Random::seeded("EDGEFAAS_CRASH_SEED");
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let app = App::new(
        "app = \"steps\"\nworkflows = [\"*.yaml\"]\n[functions.step]\nmain = \"step.js\"\npermissions = { objects = [\"*\"], \
         publish = [\"done/#\"] }\n[functions.read]\nmain = \"read.js\"\npermissions = { objects = [\"*\"] }\n",
        &[
            (
                "step.js",
                "export default async (event, context) => { const { id, n } = event.json(); \
                 await context.object('i-' + id).counter('step-' + n).add(1); \
                 await context.object('all').counter('steps').add(1); return { id } }",
            ),
            (
                "read.js",
                "export default async (event, context) => { const { id } = event.json(); const o = context.object('i-' + id); \
                 return [await o.counter('step-1').value(), await o.counter('step-2').value(), await \
                 o.counter('step-3').value()] }",
            ),
            (
                "steps.yaml",
                &format!(
                    "document: {{ {HEAD}, name: steps, metadata: {{ durable: true }} }}\ndo:\n  - one: {{ call: step, with: {{ id: \
                     '${{ .id }}', n: 1 }} }}\n  - pause: {{ wait: 5ms }}\n  - two: {{ call: step, with: {{ id: '${{ .id }}', n: 2 }} \
                     }}\n  - three: {{ call: step, with: {{ id: '${{ .id }}', n: 3 }} }}\n"
                ),
            ),
        ],
    );
    let mut node = Running::start(&data, &[]);
    node.ok(&["deploy", app.path()]);
    let mut sent = 0u64;
    let mut acknowledged = Vec::new();
    for _ in 0..rounds {
        let alive = std::time::Duration::from_micros(5_000 + random.below(60_000));
        let until = Instant::now() + alive;
        let mut connection =
            crate::load::Connection::open(&node.mqtt_port, "starter", true).expect("the broker is there");
        // Started until the kill; those that were acknowledged must run.
        let mut open = Vec::new();
        let mut id = 0u16;
        while Instant::now() < until {
            sent += 1;
            id += 1;
            let payload = json!({"id": sent.to_string()}).to_string();
            if connection.publish(0b0010, "$faas/wf/steps/invoke", id, payload.as_bytes()).is_err() {
                break;
            }
            open.push(sent);
            match connection.receive_within(std::time::Duration::from_millis(20)) {
                Ok(Some((0x40, _))) => acknowledged.push(open.remove(0)),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        node.kill();
        node = Running::start(&data, &[]);
    }
    wait_for(&node, "all come to their end", <[Value]>::is_empty);
    let mut ran = 0;
    for id in 1..=sent {
        let counts = parsed(&node.http("POST", "/fn/read", &json!({"id": id.to_string()}).to_string()).1);
        let all = counts == json!([1, 1, 1]);
        let none = counts == json!([0, 0, 0]);
        assert!(all || (none && !acknowledged.contains(&id)), "instance {id} of {sent}: {counts}");
        ran += usize::from(all);
    }
    assert!(!acknowledged.is_empty() && ran >= acknowledged.len(), "{ran} of {sent} ran");
    println!("{rounds} kills, {sent} started, {} acknowledged, {ran} ran", acknowledged.len());
}

#[test]
fn a_coordinator_serves_a_broker_that_stays() {
    let home = tempfile::tempdir().unwrap();
    let Some(mosquitto) = crate::bridging::Mosquitto::start(&home.path().join("mosquitto")) else {
        return crate::support::skipped("mosquitto");
    };
    let broker = format!("mqtt://127.0.0.1:{}", mosquitto.port);
    let options = ["--broker", &broker, "--in", "orders/+", "--out", "bills/+"];
    let node = Running::coordinator(&home.path().join("data"), &options);
    let app = App::new(
        "app = \"bills\"\n[workflows]\nfiles = [\"*.yaml\"]\n[workflows.bill.permissions]\npublish = [\"bills/+\"]\n",
        &[(
            "bill.yaml",
            &format!(
                "document: {{ {HEAD}, name: bill }}\nschedule: {{ on: {{ one: {{ with: {{ type: mqtt.publish, subject: orders/+ }} }} }} \
                 }}\ninput: {{ from: '.[0].data' }}\ndo:\n  - send: {{ call: asyncapi, with: {{ channel: '${{ \"bills/\" + .id }}', \
                 message: {{ payload: {{ amount: '${{ .price * .pieces }}' }} }} }} }}\n"
            ),
        )],
    );
    node.ok(&["deploy", app.path()]);
    let bills = Command::new("mosquitto_sub")
        .args(["-p", &mosquitto.port, "-t", "bills/+", "-C", "1", "-W", "120", "-v", "-q", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Neither the subscriber nor the bridge may be there yet: one order after another until a bill comes.
    let bill = std::thread::scope(|scope| {
        let bill = scope.spawn(|| received(bills));
        crate::bridging::eventually("a bill", || {
            let order = r#"{"id": "7", "price": 3, "pieces": 4}"#;
            let pub_args = ["-p", &mosquitto.port, "-t", "orders/7", "-q", "1", "-m", order];
            assert!(Command::new("mosquitto_pub").args(pub_args).status().unwrap().success());
            bill.is_finished().then_some(())
        });
        bill.join().unwrap()
    });
    assert_eq!(bill.trim(), r#"bills/7 {"amount":12}"#);
}

#[test]
fn events_come_in_the_order_of_their_publisher() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let flow = |name: &str, durable: bool| {
        format!(
            "document: {{ {HEAD}, name: {name}, metadata: {{ durable: {durable} }} }}\ndo:\n  - all: {{ listen: {{ to: {{ any: [ {{ with: {{ \
             type: mqtt.publish, subject: 'ord/#' }} }} ], until: '.[-1] == \"end\"' }} }} }}\n"
        )
    };
    let app = App::new(
        "app = \"order\"\nworkflows = [\"*.yaml\"]\n",
        &[("a.yaml", &flow("plain", false)), ("b.yaml", &flow("kept", true))],
    );
    node.ok(&["deploy", app.path()]);
    publish(&node, "$faas/wf/plain/invoke/p", "{}", "1");
    publish(&node, "$faas/wf/kept/invoke/k", "{}", "1");
    wait_for(&node, "both listen", |found| {
        found.iter().filter(|one| one["status"] == "waiting").count() == 2
    });
    let results = subscribe(&node, "$faas/wf/+/result/+", 2);
    subscribed(&node, "$faas/wf/+/result/+");
    let mut publisher = Command::new("mosquitto_pub")
        .args(["-p", &node.mqtt_port, "-t", "ord/a", "-q", "1", "-l"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines: String = (1..=500).map(|number| format!("{number}\n")).collect();
    lines.push_str("\"end\"\n");
    std::io::Write::write_all(&mut publisher.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    assert!(publisher.wait().unwrap().success());
    let mut expected: Vec<Value> = (1..=500).map(|number| json!(number)).collect();
    expected.push(json!("end"));
    for line in received(results).lines() {
        let (topic, output) = line.split_once(' ').unwrap();
        assert_eq!(parsed(output), json!(expected), "{topic}");
    }
}

#[test]
fn a_workflow_that_forks_itself_takes_no_more_memory_than_its_root_may() {
    for branches in 2..=3 {
        let home = tempfile::tempdir().unwrap();
        let node = Running::start(home.path(), &[]);
        let calls: Vec<String> = (0..branches).map(|n| format!("{{ b{n}: {{ call: bomb }} }}")).collect();
        let app = App::new(
            "app = \"bomb\"\nworkflows = [\"*.yaml\"]\n",
            &[(
                "bomb.yaml",
                &format!(
                    "document: {{ {HEAD}, name: bomb }}\ndo:\n  - both: {{ fork: {{ branches: [ {} ] }} }}\n",
                    calls.join(", ")
                ),
            )],
        );
        node.ok(&["deploy", app.path()]);
        let before = node.memory_kib("VmRSS");
        let (status, body) = node.http("POST", "/workflows/bomb", "{}");
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("workflows.descendants"), "{body}");
        let grown = node.memory_kib("VmHWM") - before;
        println!("{branches} branches: {grown} KiB at the peak over {before} KiB");
        assert!(grown < 64 << 10, "{branches} branches took {grown} KiB");
    }
}

#[test]
fn a_workflow_in_memory_is_refused_while_the_queue_of_its_function_is_full() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    let calls = |name: &str, function: &str, durable: bool| {
        let head = format!("document: {{ {HEAD}, name: {name}, metadata: {{ durable: {durable} }} }}");
        (format!("{name}.yaml"), format!("{head}\ndo:\n  - only: {{ call: {function} }}\n"))
    };
    let workflows =
        [calls("memory", "slow", false), calls("disk", "slow", true), calls("other", "quick", false)];
    let mut files = vec![
        ("slow.js", "export default () => new Promise((done) => setTimeout(done, 240000));"),
        ("quick.js", "export default () => 'quick';"),
    ];
    files.extend(workflows.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    let app = App::new(
        "app = \"full\"\nworkflows = [\"*.yaml\"]\n[functions.slow]\nmain = \"slow.js\"\nlimits = { concurrency = 1, timeout = \
         \"5m\", queue = { capacity = 2 } }\n[functions.quick]\nmain = \"quick.js\"\n",
        &files,
    );
    node.ok(&["deploy", app.path()]);
    let mut caller = crate::load::Connection::open(&node.mqtt_port, "caller", true).unwrap();
    caller.subscribe("$faas/wf/memory/result/+", 0).unwrap();
    // One runs and two wait. A start is refused as soon as the steps of those before it wait.
    let refused = (0..1000).find_map(|number| {
        caller.publish_unacknowledged(&format!("$faas/wf/memory/invoke/{number}"), b"{}").unwrap();
        let answer = caller.receive_within(std::time::Duration::from_millis(20)).unwrap()?;
        Some((number, String::from_utf8_lossy(&answer.1).into_owned()))
    });
    let (number, answer) = refused.expect("a start is refused");
    assert!(
        number >= 3 && answer.contains("the queue of `slow` is full (2 are waiting)"),
        "{number}: {answer}"
    );
    let (status, body) = node.http("POST", "/workflows/memory", "{}");
    assert!(status == 429 && body.contains("the queue of `slow` is full"), "{status}: {body}");
    // One on the disk is accepted, and so is one that does not call the function.
    let mut other = crate::load::Connection::open(&node.mqtt_port, "other", true).unwrap();
    other.publish(0b0010, "$faas/wf/disk/invoke", 7, b"{}").unwrap();
    assert_eq!(other.receive_within(PATIENCE).unwrap(), Some((0x40, vec![0, 7])));
    assert_eq!(node.http("POST", "/workflows/other", "{}"), (200, "\"quick\"".into()));
}

#[test]
fn an_instance_that_waits_is_small() {
    const COUNT: u64 = 10_000;
    // Each is three instances, of which one counts as running (workflows.running).
    const FORKS: u64 = 3_000;
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("edgefaas.toml");
    std::fs::write(&config, "[workflows]\nmemory = \"256MiB\"\n").unwrap();
    let node = Running::start(&home.path().join("data"), &["--config", config.to_str().unwrap()]);
    let app = App::new(
        "app = \"waits\"\nworkflows = [\"*.yaml\"]\n",
        &[
            (
                "wait.yaml",
                &format!("document: {{ {HEAD}, name: wait }}\ndo:\n  - pause: {{ wait: PT1H }}\n"),
            ),
            (
                "fork.yaml",
                &format!(
                    "document: {{ {HEAD}, name: fork }}\ndo:\n  - both: {{ fork: {{ branches: [ {{ a: {{ call: wait }} }}, {{ b: {{ call: \
                     wait }} }} ] }} }}\n"
                ),
            ),
        ],
    );
    node.ok(&["deploy", app.path()]);
    let start = |name: &str, count: u64| {
        let mut connection = crate::load::Connection::open(&node.mqtt_port, name, true).unwrap();
        for id in 1..=count {
            let topic = format!("$faas/wf/{name}/invoke");
            connection.publish(0b0010, &topic, id as u16, b"{}").unwrap();
            if id % 100 == 0 {
                for _ in 0..100 {
                    let (kind, _) =
                        connection.receive_within(PATIENCE).unwrap().expect("an acknowledgement");
                    assert_eq!(kind, 0x40);
                }
            }
        }
    };
    let waiting = || {
        let listed = parsed(&node.ok(&["workflow", "list", "--limit", "1", "-o", "json"]));
        listed["more"].as_u64().unwrap_or_default() + listed["instances"].as_array().unwrap().len() as u64
    };
    let reach = |count: u64| {
        let until = Instant::now() + PATIENCE;
        while waiting() < count {
            assert!(Instant::now() < until, "{} of {count} wait", waiting());
            look_again();
        }
    };
    // What the first ones cost besides is not theirs.
    start("wait", 100);
    start("fork", 100);
    reach(400);
    let before = node.memory_kib("VmRSS");
    start("wait", COUNT);
    reach(400 + COUNT);
    let alone = (node.memory_kib("VmRSS") - before) * 1024 / COUNT;
    let before = node.memory_kib("VmRSS");
    start("fork", FORKS);
    reach(400 + COUNT + 3 * FORKS);
    let forked = (node.memory_kib("VmRSS") - before) * 1024 / (3 * FORKS);
    println!("{alone} bytes for an instance that waits, {forked} for one of a fork");
    assert!(alone <= 5632 && forked <= 5632, "{alone} and {forked} bytes an instance");
}

#[test]
fn the_budget_of_a_root_survives_a_kill() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("edgefaas.toml");
    std::fs::write(&config, "[workflows]\ndescendants = 3\n").unwrap();
    let data = home.path().join("data");
    let options = ["--config", config.to_str().unwrap()];
    let node = Running::start(&data, &options);
    let child =
        "run: { workflow: { namespace: test, name: child, version: '1.0.0', input: {} }, await: false }";
    let app = App::new(
        "app = \"roots\"\nworkflows = [\"*.yaml\"]\n",
        &[
            (
                "child.yaml",
                &format!(
                    "document: {{ {HEAD}, name: child, metadata: {{ durable: true }} }}\ndo:\n  - pause: {{ wait: PT1H }}\n"
                ),
            ),
            (
                "root.yaml",
                &format!(
                    "document: {{ {HEAD}, name: root, metadata: {{ durable: true }} }}\ndo:\n  - a: {{ {child} }}\n  - b: {{ {child} }}\n  - \
                     c: {{ {child} }}\n  - go: {{ listen: {{ to: {{ one: {{ with: {{ type: mqtt.publish, subject: go }} }} }} }} }}\n  - \
                     d: {{ call: child }}\n"
                ),
            ),
        ],
    );
    node.ok(&["deploy", app.path()]);
    publish(&node, "$faas/wf/root/invoke/r", "{}", "1");
    let all_wait = |found: &[Value]| found.len() == 4 && found.iter().all(|one| one["status"] == "waiting");
    wait_for(&node, "the root and three children wait", all_wait);
    node.kill();
    let node = Running::start(&data, &options);
    wait_for(&node, "they are back", all_wait);
    publish(&node, "go", "1", "1");
    wait_for(&node, "the fourth child is refused", |found| {
        found.iter().any(|one| {
            one["status"] == "faulted" && one["error"].to_string().contains("workflows.descendants")
        })
    });
}

#[test]
fn events_for_slow_filters_survive_a_kill_once_they_are_acknowledged() {
    const COUNT: usize = 40;
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let node = Running::start(&data, &[]);
    let slow = "[range(20000) | tostring | length] | length > 0";
    let app = App::new(
        "app = \"slow\"\nworkflows = [\"*.yaml\"]\n",
        &[(
            "slow.yaml",
            &format!(
                "document: {{ {HEAD}, name: slow, metadata: {{ durable: true }} }}\nschedule: {{ on: {{ one: {{ with: {{ type: mqtt.publish, \
                 subject: slow, data: '${{ {slow} }}' }} }} }} }}\ndo:\n  - pause: {{ wait: PT1H }}\n"
            ),
        )],
    );
    node.ok(&["deploy", app.path()]);
    let mut connection = crate::load::Connection::open(&node.mqtt_port, "publisher", true).unwrap();
    for id in 1..=COUNT {
        connection.publish(0b0010, "slow", id as u16, b"1").unwrap();
    }
    for _ in 0..COUNT {
        assert_eq!(connection.receive_within(PATIENCE).unwrap().expect("an acknowledgement").0, 0x40);
    }
    let begun = instances(&node).len();
    node.kill();
    let node = Running::start(&data, &[]);
    println!("{begun} of {COUNT} had started at the kill");
    wait_for(&node, "each event has started one instance", |found| found.len() == COUNT);
}
