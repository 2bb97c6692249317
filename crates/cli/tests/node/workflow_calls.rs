//! What is promised of calls of workflows with a key, and of the order of instances, held against `kill -9`.

use serde_json::{Value, json};

use crate::durable::{call_while_killed, eventually, location, moment, request};
use crate::support::Running;

const MANIFEST: &str = r#"
app = "a"
workflows = ["*.yaml"]

[functions.step]
main = "step.js"
permissions = { objects = ["*"] }

[functions.read]
main = "read.js"
permissions = { objects = ["*"] }
"#;
/// Counts, and says how often it has run for this input.
const STEP: &str = r#"
export default async (event, context) => {
    const { id, n } = event.json();
    const counter = context.object("i-" + id).counter("step-" + n);
    await counter.add(1);
    return { id, runs: await counter.value() };
};
"#;
const READ: &str = r#"
export default async (event, context) => {
    const all = event.json().map(async (id) => {
        const object = context.object("i-" + id);
        return [await object.counter("step-1").value(), await object.counter("step-2").value()];
    });
    return Promise.all(all);
};
"#;

/// Two steps, in a workflow that is durable and in one that is not.
fn deploy(home: &std::path::Path, node: &Running) {
    let app = home.join("app");
    std::fs::create_dir_all(&app).unwrap();
    let step = |name: &str, n: u32| {
        format!("  - {name}: {{ call: step, with: {{ id: '${{ .id }}', n: {n} }} }}\n")
    };
    let flow = |name: &str, metadata: &str| {
        let head = format!("dsl: '1.0.3', namespace: test, name: {name}, version: '1.0.0'{metadata}");
        format!(
            "document: {{ {head} }}\ndo:\n{}  - pause: {{ wait: 2ms }}\n{}",
            step("one", 1),
            step("two", 2)
        )
    };
    for (name, text) in [
        ("edgefaas.toml", MANIFEST),
        ("step.js", STEP),
        ("read.js", READ),
        ("durable.yaml", &flow("durable", ", metadata: { durable: true }")),
        ("plain.yaml", &flow("plain", "")),
    ] {
        std::fs::write(app.join(name), text).unwrap();
    }
    node.ok(&["deploy", app.to_str().unwrap()]);
}

/// A key makes an instance of either workflow durable.
fn workflow_of(number: u64) -> &'static str {
    if number.is_multiple_of(2) { "durable" } else { "plain" }
}

fn listed(node: &Running, arguments: &[&str]) -> Vec<Value> {
    let text = node.ok(&[&["workflow", "list", "-o", "json"], arguments].concat());
    serde_json::from_str::<Value>(&text).unwrap()["instances"].as_array().unwrap().clone()
}

#[test]
fn a_call_with_a_key_is_one_instance_however_often_the_node_is_killed() {
    const REQUESTS: u64 = 200;
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let node = Running::start(&data, &[]);
    deploy(home.path(), &node);
    let (node, done) = call_while_killed(&data, node, REQUESTS, |http, number| {
        let headers = format!("idempotency-key: {number}\r\n");
        let path = format!("/workflows/{}", workflow_of(number));
        let body = json!({ "id": number.to_string() }).to_string();
        let (status, text) = request(http, "POST", &path, &headers, &body)?;
        if status != 200 {
            return None;
        }
        let said = json!({ "id": number.to_string(), "runs": 1 }).to_string();
        assert!(text.ends_with(&said), "{text}");
        let id = text.lines().find_map(|line| line.strip_prefix("invocation-id: "));
        Some(id.expect("an id").to_owned())
    });
    let ids: Vec<_> = (0..REQUESTS).map(|number| number.to_string()).collect();
    let (status, counts) = node.http("POST", "/fn/read", &json!(ids).to_string());
    assert_eq!(status, 200, "{counts}");
    let counts: Vec<Value> = serde_json::from_str(&counts).unwrap();
    for (number, counts) in counts.iter().enumerate() {
        assert_eq!(*counts, json!([1, 1]), "{number}");
    }
    // Each key has the one instance that answered, with its times.
    for number in [0, 1, REQUESTS - 1] {
        let found = listed(&node, &["--key", &number.to_string()]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0]["id"], json!(done[&number]));
        assert_eq!(
            (&found[0]["status"], &found[0]["workflow"]),
            (&json!("completed"), &json!(workflow_of(number)))
        );
        assert!(found[0]["ended_unix_ms"].as_u64() >= found[0]["started_unix_ms"].as_u64(), "{found:?}");
    }
    assert_eq!(listed(&node, &["--limit", "1000"]).len() as u64, REQUESTS);
}

#[test]
fn an_instance_that_got_a_202_ends_after_kill_9() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut places = Vec::new();
    for round in 0..4u64 {
        let node = Running::start(&data, &[]);
        if round == 0 {
            deploy(home.path(), &node);
        }
        for number in 0..20u64 {
            let id = format!("{round}-{number}");
            let path = format!("/fn/{}", workflow_of(number));
            let body = json!({ "id": id }).to_string();
            let (status, answer) =
                request(&node.http, "POST", &path, "prefer: respond-async\r\n", &body).unwrap();
            assert_eq!(status, 202, "{answer}");
            places.push((location(&answer), id));
        }
        node.kill();
    }
    let node = Running::start(&data, &[]);
    for (at, id) in &places {
        let said = json!({ "id": id, "runs": 1 }).to_string();
        eventually("the outcome should come", || {
            let (status, answer) = request(&node.http, "GET", at, "", "").unwrap();
            assert!(status == 200 && answer.ends_with(&said) || status == 202, "{answer}");
            status == 200
        });
    }
    let table = node.ok(&["workflow", "list", "durable", "--limit", "2"]);
    assert!(table.contains("ENDED") && table.contains("KEY") && table.contains("completed"), "{table}");
}

/// Adds its number to the list of its topic, twice in each instance.
const APPEND: &str = r#"
export default async (event, context) => {
    const { topic, n } = event.json();
    const list = context.object("lists").register(topic);
    await list.set([...(await list.get() ?? []), n]);
};
"#;
const LISTS: &str = r#"
export default async (event, context) =>
    Promise.all(["a", "b", "c"].map(async (topic) => await context.object("lists").register(topic).get() ?? []));
"#;

#[test]
fn ordered_instances_run_one_after_another_however_often_the_node_is_killed() {
    const TOPICS: [&str; 3] = ["a", "b", "c"];
    let home = tempfile::tempdir().unwrap();
    let (data, app) = (home.path().join("data"), home.path().join("app"));
    std::fs::create_dir_all(&app).unwrap();
    let append = |name: &str| {
        format!(
            "  - {name}: {{ call: append, with: {{ topic: '${{ $context.topic }}', n: '${{ $context.n }}' }} }}\n"
        )
    };
    let flow = format!(
        "document: {{ dsl: '1.0.3', namespace: test, name: w, version: '1.0.0', metadata: {{ durable: true }} }}\n\
         schedule: {{ on: {{ one: {{ with: {{ type: mqtt.publish, subject: 'in/+' }} }} }} }}\n\
         input: {{ from: '.[0].data' }}\ndo:\n  - keep: {{ set: {{ all: '${{ . }}' }}, export: {{ as: '${{ .all }}' }} }}\n{}  \
         - pause: {{ wait: 2ms }}\n{}",
        append("first"),
        append("second")
    );
    let manifest = "app = \"w\"\n[functions.append]\nmain = \"append.js\"\npermissions = { objects = [\"*\"] }\n\
                    [functions.lists]\nmain = \"lists.js\"\npermissions = { objects = [\"*\"] }\n\
                    [workflows]\nfiles = [\"*.yaml\"]\n[workflows.w]\norder_by = \"topic\"\n";
    for (name, text) in
        [("edgefaas.toml", manifest), ("append.js", APPEND), ("lists.js", LISTS), ("w.yaml", &flow)]
    {
        std::fs::write(app.join(name), text).unwrap();
    }
    let mut node = Running::start(&data, &[]);
    node.ok(&["deploy", app.to_str().unwrap()]);
    let (mut sent, mut acknowledged) = (0u64, Vec::new());
    for round in 0..8 {
        let mut connection = crate::load::Connection::open(&node.mqtt_port, "publisher", true).unwrap();
        for id in 1..=30u16 {
            let topic = TOPICS[usize::from(id) % TOPICS.len()];
            let payload = json!({ "topic": topic, "n": sent }).to_string();
            connection.publish(0b0010, &format!("in/{topic}"), id, payload.as_bytes()).unwrap();
            let (kind, _) =
                connection.receive_within(crate::support::PATIENCE).unwrap().expect("an answer");
            assert_eq!(kind, 0x40);
            acknowledged.push((topic, sent));
            sent += 1;
        }
        std::thread::sleep(moment(round) / 4);
        node.kill();
        node = Running::start(&data, &[]);
    }
    let lists = || -> Vec<Vec<u64>> {
        let (status, lists) = node.http("POST", "/fn/lists", "");
        assert_eq!(status, 200, "{lists}");
        serde_json::from_str(&lists).unwrap()
    };
    eventually("all instances end", || lists().iter().map(Vec::len).sum::<usize>() as u64 == 2 * sent);
    for (topic, list) in TOPICS.iter().zip(lists()) {
        let numbers = acknowledged.iter().filter(|(of, _)| of == topic).map(|(_, number)| *number);
        let expected: Vec<_> = numbers.flat_map(|number| [number, number]).collect();
        assert_eq!(list, expected, "{topic}");
    }
}
