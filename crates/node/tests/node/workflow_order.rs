//! Order of instances that messages start.

use edgefaas_api::control as proto;
use rumqttc::v5::mqttbytes::v5::PubAckReason;

use crate::support::{Mqtt5, PATIENCE, TestNode, in_time, script};

const COUNT: usize = 300;

/// An app with these workflows, and `note`, which runs one at a time and logs its input.
async fn deploy(node: &mut TestNode, manifest: &str, flows: &[(&str, String)]) {
    let note = r#"export default (event) => console.log("input " + event.text());"#;
    let request = proto::DeployRequest {
        manifest: format!(
            "app = \"t\"\n[functions.note]\nmain = \"note.js\"\nlimits = {{ concurrency = 1 }}\n[workflows]\nfiles = [\"*.yaml\"]\n{manifest}"
        ),
        artifacts: vec![script("note", note)],
        workflows: flows
            .iter()
            .map(|(name, text)| proto::WorkflowFile { file: format!("{name}.yaml"), text: text.clone() })
            .collect(),
        ..Default::default()
    };
    node.control.deploy(request).await.expect("the deploy succeeds");
}

/// A workflow that messages on `in/+` start.
fn flow(name: &str, metadata: &str, filter: &str, tasks: &str) -> String {
    format!(
        "document: {{ dsl: '1.0.3', namespace: test, name: {name}, version: '1.0.0', metadata: {{ {metadata} }} }}\n\
         schedule: {{ on: {{ one: {{ with: {{ type: mqtt.publish, subject: 'in/+'{filter} }} }} }} }}\n\
         input: {{ from: '.[0].data' }}\ndo:\n{tasks}"
    )
}

fn says(task: &str, topic: &str) -> String {
    format!(
        "  - {task}: {{ call: asyncapi, with: {{ channel: '{topic}', message: {{ payload: '${{ . }}' }} }} }}\n"
    )
}

async fn texts(client: &mut Mqtt5, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.len() < count {
        let message = client.message().await;
        texts.push(String::from_utf8(message.payload.to_vec()).unwrap());
    }
    texts
}

/// The inputs of `note`, in the order of its runs.
async fn logged(node: &mut TestNode) -> Vec<String> {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let lines = node.logged("note").await;
        let inputs: Vec<String> =
            lines.iter().filter_map(|line| Some(line.split_once("input ")?.1.to_owned())).collect();
        if inputs.len() == COUNT {
            return inputs;
        }
        assert!(std::time::Instant::now() < until, "{} of {COUNT} runs", inputs.len());
    }
}

#[tokio::test]
async fn instances_of_one_topic_start_in_the_order_of_the_messages() {
    let publishes = says("note", "noted");
    let calls = "  - note: { call: note }\n".to_owned();
    let manifest = "[workflows.w.permissions]\npublish = [\"noted\"]\n";
    // Interpreted jq is evaluated in a lane of the workflow.
    let interpreted = ", data: '${ [.] | length == 1 }'";
    for tasks in [publishes, calls] {
        for metadata in ["durable: false", "durable: true"] {
            for filter in ["", interpreted] {
                let mut node = TestNode::start().await;
                deploy(&mut node, manifest, &[("w", flow("w", metadata, filter, &tasks))]).await;
                let mut watcher = Mqtt5::connect(&node, "watcher").await;
                watcher.subscribe("noted").await;
                let publisher = Mqtt5::connect(&node, "publisher").await;
                let Mqtt5 { client, mut events } = publisher;
                let driving = tokio::spawn(async move { while events.poll().await.is_ok() {} });
                for number in 0..COUNT {
                    let qos = rumqttc::v5::mqttbytes::QoS::AtLeastOnce;
                    client.publish("in/a", qos, false, number.to_string()).await.unwrap();
                }
                let expected: Vec<_> = (0..COUNT).map(|number| number.to_string()).collect();
                let found = match tasks.contains("call: note") {
                    true => logged(&mut node).await,
                    false => texts(&mut watcher, COUNT).await,
                };
                assert_eq!(found, expected, "{metadata} {filter} {tasks}");
                driving.abort();
            }
        }
    }
}

/// The numbers of instances that wait for a message, and of those that have not begun.
async fn counts(node: &mut TestNode) -> (usize, usize) {
    let request = proto::ListInstancesRequest { limit: 1000, ..Default::default() };
    let found = node.control.list_instances(request).await.unwrap().into_inner().instances;
    let count = |status: &str| found.iter().filter(|instance| instance.status == status).count();
    (count("waiting"), count("pending"))
}

/// True if all instances have ended.
async fn have_all_ended(node: &mut TestNode) -> bool {
    let request = proto::ListInstancesRequest { limit: 1000, ..Default::default() };
    let found = node.control.list_instances(request).await.unwrap().into_inner().instances;
    found.iter().all(|instance| instance.ended_unix_ms > 0)
}

async fn until(node: &mut TestNode, expected: (usize, usize)) {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let found = counts(node).await;
        if found == expected {
            return;
        }
        assert!(std::time::Instant::now() < until, "{found:?} instead of {expected:?}");
    }
}

async fn send(client: &mut Mqtt5, topic: &str, payload: &str) -> PubAckReason {
    client.publish(topic, payload).await;
    client.puback().await
}

const ORDERED: &str =
    "[workflows.w]\norder_by = \"topic\"\n[workflows.w.permissions]\npublish = [\"begun\", \"ended\"]\n";

/// Publishes on `begun`, waits for `go`, fails if its input is 2, publishes on `ended`.
fn holds(metadata: &str) -> String {
    let says = |task: &str, topic: &str| says(task, topic).replace("${ . }", "${ $context }");
    let tasks = [
        "  - keep: { set: { n: '${ . }' }, export: { as: '${ .n }' } }\n",
        &says("begin", "begun"),
        "  - hold: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }\n",
        "  - check: { if: '${ $context == 2 }', raise: { error: { type: 'https://example.com/two', status: 500 } } }\n",
        &says("end", "ended"),
    ];
    flow("w", metadata, "", &tasks.concat())
}

#[tokio::test]
async fn instances_of_one_topic_run_one_after_another_also_over_a_restart() {
    let mut node = TestNode::start().await;
    deploy(&mut node, ORDERED, &[("w", holds("durable: true"))]).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    for number in 0..5 {
        send(&mut client, "in/a", &number.to_string()).await;
    }
    // Another topic is not held up.
    send(&mut client, "in/b", "10").await;
    until(&mut node, (2, 4)).await;
    let dir = node.stop().await;
    let mut node = TestNode::start_in(dir, |_| {}).await.unwrap();
    until(&mut node, (2, 4)).await;
    let mut watcher = Mqtt5::connect(&node, "watcher").await;
    watcher.subscribe("begun").await;
    let mut client = Mqtt5::connect(&node, "c").await;
    send(&mut client, "in/a", "5").await;
    // One of those that wait is cancelled: the others go on in order.
    let request = proto::ListInstancesRequest { limit: 1000, ..Default::default() };
    let found = node.control.list_instances(request).await.unwrap().into_inner().instances;
    let pending: Vec<_> = found.iter().filter(|instance| instance.status == "pending").collect();
    let mut oldest = pending.clone();
    oldest.sort_by(|a, b| a.id.cmp(&b.id));
    let (last, change) = (oldest[4].id.clone(), proto::change_instance_request::Change::Cancel.into());
    let cancel = proto::ChangeInstanceRequest { id: last, change };
    node.control.change_instance(cancel).await.unwrap();
    // 0 and 10 end, 1 begins; then 2, which fails; then 3 and 4. An instance may wait before its `listen` hears.
    in_time(async {
        loop {
            let (waiting, pending) = counts(&mut node).await;
            assert!(waiting <= 2, "{waiting} run, {pending} have not begun");
            if waiting + pending == 0 && have_all_ended(&mut node).await {
                return;
            }
            send(&mut client, "go", "").await;
        }
    })
    .await;
    assert_eq!(texts(&mut watcher, 4).await, ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn instances_of_one_key_run_one_after_another_whatever_their_topics() {
    // A path is evaluated when the message arrives, interpreted jq in the lane of the workflow.
    for key in ["${ .data.room }", "${ [.data | .room] | map(.) }"] {
        for (order, running, waiting) in
            [(format!("\"{key}\""), 2, 1), (format!("{{ key = \"{key}\", then = \"start\" }}"), 3, 0)]
        {
            let mut node = TestNode::start().await;
            let manifest = ORDERED.replace("\"topic\"", &order);
            deploy(&mut node, &manifest, &[("w", holds("durable: true"))]).await;
            let mut client = Mqtt5::connect(&node, "c").await;
            send(&mut client, "in/a", r#"{"room": 1}"#).await;
            send(&mut client, "in/b", r#"{"room": 1}"#).await;
            send(&mut client, "in/a", r#"{"room": 2}"#).await;
            until(&mut node, (running, waiting)).await;
            in_time(async {
                while !have_all_ended(&mut node).await {
                    send(&mut client, "go", "").await;
                }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_key_that_is_no_expression_is_refused() {
    let mut node = TestNode::start().await;
    let manifest = ORDERED.replace("\"topic\"", "\"${ .data. }\"");
    let request = proto::DeployRequest {
        manifest: format!("app = \"t\"\n[workflows]\nfiles = [\"*.yaml\"]\n{manifest}"),
        workflows: vec![proto::WorkflowFile { file: "w.yaml".into(), text: holds("durable: false") }],
        ..Default::default()
    };
    let refused = node.control.deploy(request).await.expect_err("it is refused");
    assert!(refused.message().contains("`order_by`: in the expression"), "{refused}");
}

#[tokio::test]
async fn starts_beyond_the_limit_of_a_workflow_are_refused_while_one_runs() {
    let mut node = TestNode::start().await;
    deploy(&mut node, ORDERED, &[("w", holds("instances: 2"))]).await;
    let mut client = Mqtt5::connect(&node, "c").await;
    for expected in [PubAckReason::NoMatchingSubscribers; 2] {
        assert_eq!(send(&mut client, "in/a", "1").await, expected);
    }
    assert_eq!(send(&mut client, "in/a", "1").await, PubAckReason::QuotaExceeded);
    until(&mut node, (1, 1)).await;
    in_time(async {
        while counts(&mut node).await.1 > 0 {
            send(&mut client, "go", "").await;
        }
        // The one that has ended may still be counted.
        while send(&mut client, "in/a", "1").await == PubAckReason::QuotaExceeded {}
    })
    .await;
}

#[tokio::test]
async fn an_order_without_events_is_refused() {
    let mut node = TestNode::start().await;
    let text = "document: { dsl: '1.0.3', namespace: test, name: w, version: '1.0.0' }\ndo:\n  - a: { set: { b: 1 } }\n";
    let request = proto::DeployRequest {
        manifest: "app = \"t\"\n[workflows]\nfiles = [\"*.yaml\"]\n[workflows.w]\norder_by = \"topic\"\n"
            .into(),
        workflows: vec![proto::WorkflowFile { file: "w.yaml".into(), text: text.into() }],
        ..Default::default()
    };
    let refused = node.control.deploy(request).await.expect_err("it is refused");
    assert!(refused.message().contains("schedule.on"), "{refused}");
}
