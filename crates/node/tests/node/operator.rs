//! What an operator asks of a node: graphs with counts, ends of all instances, differences of revisions, settings and traces.

use edgefaas_api::control as proto;
use edgefaas_api::control::cancel_instances_request::Of;
use tonic::Code;

use crate::support::{Mqtt5, PATIENCE, TestNode, script};

const HOLDS: &str = "document: { dsl: '1.0.3', namespace: test, name: NAME, version: '1.0.0' }\n\
    schedule: { on: { one: { with: { type: mqtt.publish, subject: 'in/NAME' } } } }\n\
    do:\n  - first: { set: { n: 1 } }\n  \
    - hold: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }\n  \
    - last: { if: '${ .n == 2 }', set: { n: 3 } }\n";
const FAILS: &str = "document: { dsl: '1.0.3', namespace: test, name: breaks, version: '1.0.0', metadata: { durable: true } }\n\
    do:\n  - first: { set: { n: 1 } }\n  \
    - burst: { raise: { error: { type: 'https://example.com/burst', status: 500 } } }\n";

async fn deploy_flows(node: &mut TestNode, app: &str, flows: &[(&str, String)]) {
    let request = proto::DeployRequest {
        manifest: format!("app = \"{app}\"\n[workflows]\nfiles = [\"*.yaml\"]\n"),
        workflows: flows
            .iter()
            .map(|(name, text)| proto::WorkflowFile { file: format!("{name}.yaml"), text: text.clone() })
            .collect(),
        ..Default::default()
    };
    node.control.deploy(request).await.expect("the deploy succeeds");
}

async fn graph(node: &mut TestNode, workflow: &str) -> proto::GraphResponse {
    let request = proto::GraphRequest { workflow: workflow.to_owned() };
    node.control.graph(request).await.unwrap().into_inner()
}

/// The graph, as soon as so many instances are at the task with this label.
async fn graph_with(
    node: &mut TestNode,
    workflow: &str,
    label: &str,
    count: (u64, u64),
) -> proto::GraphResponse {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let graph = graph(node, workflow).await;
        let at = graph.nodes.iter().find(|node| node.label.starts_with(label)).expect("the task is drawn");
        if (at.active, at.failed) == count {
            return graph;
        }
        assert!(std::time::Instant::now() < until, "{at:?}");
    }
}

async fn cancel(node: &mut TestNode, of: Of) -> u64 {
    let request = proto::CancelInstancesRequest { of: Some(of), failed: false };
    node.control.cancel_instances(request).await.unwrap().into_inner().cancelled
}

#[tokio::test]
async fn a_graph_has_the_instances_at_each_task_and_all_of_them_can_be_ended() {
    let mut node = TestNode::start().await;
    let flows = ["one", "two"].map(|name| (name, HOLDS.replace("NAME", name)));
    deploy_flows(&mut node, "a", &flows).await;
    let mut mqtt = Mqtt5::connect(&node, "c").await;
    for topic in ["in/one", "in/one", "in/one", "in/two", "in/two"] {
        mqtt.publish(topic, "1").await;
        mqtt.puback().await;
    }
    graph_with(&mut node, "two", "hold", (2, 0)).await;
    let graph = graph_with(&mut node, "one", "hold", (3, 0)).await;
    let shapes: Vec<_> = graph.nodes.iter().map(|node| (&*node.shape, &*node.task)).collect();
    let expected = [
        ("start", ""),
        ("task", "/do/0/first"),
        ("event", "/do/1/hold"),
        ("choice", "/do/2/last"),
        ("task", "/do/2/last"),
        ("end", ""),
    ];
    assert_eq!(shapes, expected);
    assert_eq!(graph.nodes.iter().map(|node| node.active).sum::<u64>(), 3, "no task is counted twice");
    assert!(graph.edges.iter().all(|edge| graph.nodes.iter().any(|node| node.id == edge.from)));
    assert_eq!(cancel(&mut node, Of::Workflow("one".into())).await, 3);
    graph_with(&mut node, "one", "hold", (0, 0)).await;
    graph_with(&mut node, "two", "hold", (2, 0)).await;
    // Instances of an app that was removed go on, and can be ended by its name.
    node.control.remove(proto::RemoveRequest { app: "a".into(), ..Default::default() }).await.unwrap();
    assert_eq!(cancel(&mut node, Of::App("b".into())).await, 0);
    assert_eq!(cancel(&mut node, Of::App("a".into())).await, 2);
    assert_eq!(cancel(&mut node, Of::App("a".into())).await, 0);
    let nothing = proto::CancelInstancesRequest::default();
    assert_eq!(node.control.cancel_instances(nothing).await.unwrap_err().code(), Code::InvalidArgument);
}

/// The instance that waits, as soon as there is one.
async fn waiting(node: &mut TestNode) -> String {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        let found = node.control.list_instances(proto::ListInstancesRequest::default()).await;
        let mut found = found.unwrap().into_inner().instances.into_iter();
        if let Some(waiting) = found.find(|instance| instance.status == "waiting") {
            return waiting.id;
        }
        assert!(std::time::Instant::now() < until, "none waits");
    }
}

#[tokio::test]
async fn an_answered_cancel_holds_also_while_events_arrive() {
    let mut node = TestNode::start().await;
    let durable = HOLDS.replace("'1.0.0' }", "'1.0.0', metadata: { durable: true } }");
    deploy_flows(&mut node, "a", &[("held", durable.replace("NAME", "held"))]).await;
    let mut mqtt = Mqtt5::connect(&node, "c").await;
    for round in 0..40 {
        mqtt.publish("in/held", "1").await;
        mqtt.puback().await;
        let id = waiting(&mut node).await;
        let change = proto::change_instance_request::Change::Cancel.into();
        let request = proto::ChangeInstanceRequest { id: id.clone(), change };
        let mut control = node.control.clone();
        let cancel = async {
            for _ in 0..round % 8 {
                tokio::task::yield_now().await;
            }
            control.change_instance(request).await
        };
        let go = async {
            mqtt.publish("go", "1").await;
            mqtt.puback().await
        };
        let (_, cancelled) = tokio::join!(go, cancel);
        let request = proto::GetInstanceRequest { id };
        let status = node.control.get_instance(request).await.unwrap().into_inner().status;
        match cancelled {
            Ok(_) => assert_eq!(status, "cancelled"),
            Err(error) => {
                assert_eq!((error.code(), &*status), (Code::FailedPrecondition, "completed"), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_graph_has_the_instances_that_failed_at_a_task() {
    let mut node = TestNode::start().await;
    deploy_flows(&mut node, "a", &[("breaks", FAILS.to_owned())]).await;
    for _ in 0..2 {
        node.invoke("breaks", "{}").await;
    }
    graph_with(&mut node, "breaks", "burst", (0, 2)).await;
    // A new revision goes on with the figures, and its instances are those of the workflow.
    deploy_flows(&mut node, "a", &[("breaks", FAILS.replace("n: 1", "n: 2"))]).await;
    graph_with(&mut node, "breaks", "burst", (0, 2)).await;
    let apps = node.control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
    let workflow = &apps[0].workflows[0];
    assert_eq!((workflow.started, workflow.faulted, workflow.retryable, workflow.live), (2, 2, 2, 0));
    // They are given up together.
    assert_eq!(cancel(&mut node, Of::Workflow("breaks".into())).await, 0, "they have ended");
    let of = Some(Of::Workflow("breaks".into()));
    let request = proto::CancelInstancesRequest { of, failed: true };
    assert_eq!(node.control.cancel_instances(request).await.unwrap().into_inner().cancelled, 2);
    let apps = node.control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
    assert_eq!(apps[0].workflows[0].retryable, 0);
}

#[tokio::test]
async fn revisions_are_compared_file_by_file() {
    let mut node = TestNode::start().await;
    let manifest = "app = \"a\"\n[functions.f]\nmain = \"f.js\"\n[functions.g]\nmain = \"g.js\"\n";
    let (old, new) = ("export default () =>\n  1;\n", "export default () =>\n  2;\n");
    let same = "export default () => 0;\n";
    node.deploy(manifest, &[("f", old), ("g", same)]).await;
    let changed = format!("{manifest}limits = {{ concurrency = 2 }}\n");
    node.deploy(&changed, &[("f", new), ("g", same)]).await;
    let apps = node.control.list(proto::ListRequest::default()).await.unwrap().into_inner().apps;
    let from = apps[0].previous_revisions[0][..8].to_owned();
    let request = proto::CompareRevisionsRequest { app: "a".into(), from, to: String::new() };
    let files = node.control.compare_revisions(request.clone()).await.unwrap().into_inner().files;
    let found: Vec<_> = files.iter().map(|file| (&*file.file, &*file.unified)).collect();
    let [(manifest_file, manifest_diff), ("f.js", source_diff)] = found[..] else { panic!("{found:?}") };
    assert_eq!(manifest_file, "edgefaas.toml");
    assert!(manifest_diff.ends_with("+limits = { concurrency = 2 }\n"), "{manifest_diff}");
    assert_eq!(source_diff, "@@ -1,2 +1,2 @@\n export default () =>\n-  1;\n+  2;\n");
    let unknown = proto::CompareRevisionsRequest { from: "zz".into(), ..request.clone() };
    assert_eq!(node.control.compare_revisions(unknown).await.unwrap_err().code(), Code::NotFound);
    let same = proto::CompareRevisionsRequest { from: String::new(), ..request };
    assert!(node.control.compare_revisions(same).await.unwrap().into_inner().files.is_empty());
}

#[tokio::test]
async fn settings_have_their_places_and_traces_their_errors() {
    let mut node = TestNode::start().await;
    let settings = node.control.get_settings(proto::GetSettingsRequest {}).await.unwrap().into_inner();
    let of =
        |key: &str| settings.settings.iter().find(|setting| setting.key == key).expect("it is a setting");
    assert_eq!((&*settings.file, &*of("broker.sync").source), ("", "default"));
    assert_eq!((&*of("mqtt").source, of("mqtt").line), ("option", 0));
    let manifest =
        "app = \"a\"\n[functions.good]\nmain = \"good.js\"\n[functions.bad]\nmain = \"bad.js\"\n";
    let request = proto::DeployRequest {
        manifest: manifest.to_owned(),
        artifacts: vec![
            script("good", "export default () => 1"),
            script("bad", "export default () => { throw new Error('no') }"),
        ],
        ..Default::default()
    };
    node.control.deploy(request).await.unwrap();
    node.invoke("good", "").await;
    node.invoke("bad", "").await;
    let mut list = async |failed, search: &str| {
        let request = proto::ListTracesRequest { limit: 0, failed, search: search.to_owned() };
        let traces = node.control.list_traces(request).await.unwrap().into_inner().traces;
        traces.into_iter().map(|trace| (trace.name, !trace.error.is_empty())).collect::<Vec<_>>()
    };
    let (good, bad) = (("good".to_owned(), false), ("bad".to_owned(), true));
    assert_eq!(list(false, "").await, [bad.clone(), good.clone()]);
    assert_eq!(list(true, "").await, [bad]);
    assert_eq!(list(false, "GOO").await, [good]);
}
