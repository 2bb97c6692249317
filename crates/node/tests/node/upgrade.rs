//! Data directories of earlier versions. `tests/fixtures/` contains them, with the scripts that created them.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use bytes::Bytes;
use edgefaas_api::control as proto;
use edgefaas_api::objects::GetRequest;
use edgefaas_node::{Clock, Platform};
use http::Request;
use http_body_util::Full;

use crate::support::{Mqtt5, PATIENCE, TestNode, in_time, json};

/// Data directory of a node of 2026-11-24, before the crates were layered; the node was killed.
const BEFORE_LAYERS: &str = "before-layers.tar.gz";
const BEFORE_LAYERS_UNIX_MS: u64 = 1_795_525_210_000;

fn unpack(fixture: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("--strip-components=1").arg("-C").arg(dir.path());
    assert!(tar.status().expect("tar runs").success());
    dir
}

#[tokio::test]
async fn a_data_directory_from_before_the_layers_is_complete() {
    // One minute later, while outcomes are still kept.
    let started = Instant::now();
    let clock = Clock::new(move || BEFORE_LAYERS_UNIX_MS + started.elapsed().as_millis() as u64);
    let platform = Platform { clock, ..Platform::system() };
    let mut node =
        TestNode::start_on(platform, unpack(BEFORE_LAYERS), |_| {}).await.expect("the node starts");

    // An outcome that is kept for its idempotency key; then the function with its objects and its secret.
    let again = |key: Option<&str>| {
        let mut request = Request::post("/count");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.body(Full::<Bytes>::default()).unwrap()
    };
    let expected = |sold: u32| serde_json::json!({"sold": sold, "word": "apple-pie"});
    assert_eq!(json(&node.send(again(Some("once"))).await), expected(4));
    assert_eq!(json(&node.send(again(None)).await), expected(5));

    // A retained message, and messages for a disconnected client.
    let mut reader = Mqtt5::connect(&node, "reader").await;
    reader.subscribe("state/plain").await;
    assert_eq!(&reader.message().await.payload[..], b"on");
    let mut sleeper = Mqtt5::connect_with(&node, "sleeper", |options| {
        options.set_clean_start(false);
    })
    .await;
    for expected in ["m1", "m2", "m3"] {
        assert_eq!(sleeper.message().await.payload, expected);
    }

    // An interrupted durable invocation runs again and ends.
    let mut objects = node.objects().await;
    let done = async {
        loop {
            let request = GetRequest {
                app: "shop".into(),
                object: "stock".into(),
                field: "done".into(),
                path: Vec::new(),
            };
            let found = objects.get(request).await.map(|response| response.into_inner());
            if found.is_ok_and(|found| format!("{found:?}").contains("Integer(1)")) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, done).await.expect("the invocation runs");

    // A waiting durable instance continues with its event.
    let request = proto::ListInstancesRequest { workflow: "approve".into(), limit: 10, key: String::new() };
    let found = in_time(node.control.list_instances(request)).await.unwrap().into_inner().instances;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].status.as_str(), found[0].durable), ("waiting", true));
    reader.subscribe("$faas/events/emitted/approved").await;
    reader.publish("approvals", "yes").await;
    let emitted: serde_json::Value = serde_json::from_slice(&reader.message().await.payload).unwrap();
    assert_eq!(emitted["data"], 7);
    node.stop().await;
}
