//! Nodes of one cluster in this process, with real connections between them.

use std::net::SocketAddr;

use edgefaas_api::control as proto;
use edgefaas_api::objects;
use edgefaas_api::objects::update_request::Operation;
use edgefaas_node::config::NodeConfig;
use serde_json::{Value, json};
use tonic::{Code, Streaming};

use crate::object_types::{EACH_TYPE, PERMIT, RUN};
use crate::support::{PATIENCE, TestNode, in_time, manifest_of, reply_text};

pub fn member(config: &mut NodeConfig) {
    config.cluster.listen = SocketAddr::from(([127, 0, 0, 1], 0));
}

/// A cluster of `count` nodes, named `n0`, `n1` and so on.
pub async fn cluster(count: usize) -> Vec<TestNode> {
    let mut nodes = vec![TestNode::start_with(member).await];
    let name = "n0".to_owned();
    nodes[0].control.init_cluster(proto::InitClusterRequest { name }).await.unwrap();
    for number in 1..count {
        let mut node = TestNode::start_with(member).await;
        let token = token(&mut nodes[0]).await;
        join(&mut node, &token, &format!("n{number}")).await.unwrap();
        nodes.push(node);
    }
    nodes
}

pub async fn token(node: &mut TestNode) -> String {
    node.control.open_cluster(proto::OpenClusterRequest { life_ms: 0 }).await.unwrap().into_inner().token
}

pub async fn join(node: &mut TestNode, token: &str, name: &str) -> Result<proto::Cluster, tonic::Status> {
    let request = proto::JoinClusterRequest { token: token.to_owned(), name: name.to_owned() };
    in_time(node.control.join_cluster(request)).await.map(|response| response.into_inner())
}

async fn watch(node: &TestNode, object: &str, field: &str) -> Streaming<objects::Change> {
    let request = objects::WatchRequest { app: "run".into(), object: object.into(), field: field.into() };
    node.objects().await.watch(request).await.unwrap().into_inner()
}

/// Waits until a field has this value. Returns immediately if it has it already.
pub async fn until(node: &TestNode, object: &str, field: &str, expected: &Value) {
    let mut changes = watch(node, object, field).await;
    let get = async || {
        let request = objects::GetRequest {
            app: "run".into(),
            object: object.into(),
            field: field.into(),
            path: Vec::new(),
        };
        node.objects().await.get(request).await.unwrap().into_inner().fields.pop()
    };
    let mut events = Vec::new();
    let comes = async {
        loop {
            let state = get().await;
            if state.is_some_and(|state| serde_json::from_str::<Value>(&state.json).unwrap() == *expected) {
                return;
            }
            events.push(changes.message().await.unwrap());
        }
    };
    if tokio::time::timeout(PATIENCE, comes).await.is_err() {
        let metrics = node.metrics().await;
        let metrics = String::from_utf8_lossy(metrics.body());
        let metrics: Vec<_> = metrics.lines().filter(|line| line.starts_with("edgefaas_cluster")).collect();
        let state = get().await;
        panic!(
            "{object}.{field} does not become {expected}; it is {state:?} after {events:#?}\n{metrics:#?}"
        );
    }
}

pub async fn update(
    node: &TestNode,
    object: &str,
    field: &str,
    operation: Operation,
) -> Result<(), tonic::Status> {
    let request = objects::UpdateRequest {
        app: "run".into(),
        object: object.into(),
        field: field.into(),
        path: Vec::new(),
        operation: Some(operation),
    };
    node.objects().await.update(request).await.map(drop)
}

#[tokio::test]
async fn writes_of_one_node_reach_the_others() {
    let mut nodes = cluster(3).await;
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    for (number, (field, code, _, after)) in EACH_TYPE.into_iter().enumerate() {
        let writer = number % nodes.len();
        assert!(!reply_text(&nodes[writer].invoke("run", code).await).is_empty());
        for node in &nodes {
            until(node, "o", field, &serde_json::from_str(after).unwrap()).await;
        }
    }
    // Concurrent additions of all nodes are summed up.
    let each = nodes.iter().map(|node| async move {
        for _ in 0..50 {
            update(node, "sum", "n", Operation::CounterAdd(1)).await.unwrap();
        }
    });
    futures_util::future::join_all(each).await;
    for node in &nodes {
        until(node, "sum", "n", &json!(150)).await;
    }
    // A connection of members that a busy machine has cut comes back.
    let seen = in_time(async {
        loop {
            let seen =
                nodes[1].control.get_cluster(proto::GetClusterRequest {}).await.unwrap().into_inner();
            if seen.members.iter().all(|member| member.peer.is_some()) {
                return seen;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((seen.name.as_str(), seen.has_key), ("n1", false));
    let names: Vec<_> = seen.members.iter().map(|member| member.name.as_str()).collect();
    assert_eq!(names, ["n0", "n2"]);
}

#[tokio::test]
async fn only_nodes_with_a_token_are_admitted() {
    let mut nodes = cluster(2).await;
    let mut third = TestNode::start_with(member).await;
    // A token admits one node.
    let good = token(&mut nodes[0]).await;
    join(&mut third, &good, "n2").await.unwrap();
    let mut fourth = TestNode::start_with(member).await;
    assert_eq!(join(&mut fourth, &good, "n3").await.unwrap_err().code(), Code::FailedPrecondition);
    let fresh = token(&mut nodes[0]).await;
    assert_eq!(join(&mut fourth, &fresh, "n2").await.unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(join(&mut fourth, "nonsense", "n3").await.unwrap_err().code(), Code::InvalidArgument);
    // A member cannot join again, nor issue tokens without the cluster key.
    assert_eq!(join(&mut third, &fresh, "n9").await.unwrap_err().code(), Code::FailedPrecondition);
    let refused = third.control.open_cluster(proto::OpenClusterRequest { life_ms: 0 }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let none = fourth.control.get_cluster(proto::GetClusterRequest {}).await.unwrap().into_inner();
    assert_eq!(none.id, "");

    // No member keeps a connection with a revoked node.
    for node in nodes.iter_mut().chain([&mut third]) {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    update(&third, "o", "before", Operation::CounterAdd(1)).await.unwrap();
    until(&nodes[1], "o", "before", &json!(1)).await;
    let unknown = proto::RevokeMemberRequest { name: "nobody".into() };
    assert_eq!(nodes[0].control.revoke_member(unknown).await.unwrap_err().code(), Code::NotFound);
    nodes[0].control.revoke_member(proto::RevokeMemberRequest { name: "n2".into() }).await.unwrap();
    for node in &mut nodes {
        in_time(async {
            loop {
                let seen =
                    node.control.get_cluster(proto::GetClusterRequest {}).await.unwrap().into_inner();
                if seen.members.iter().all(|member| member.name != "n2") {
                    return;
                }
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
    update(&third, "o", "after", Operation::CounterAdd(1)).await.unwrap();
    update(&nodes[0], "o", "last", Operation::CounterAdd(1)).await.unwrap();
    until(&nodes[1], "o", "last", &json!(1)).await;
    let request =
        objects::GetRequest { app: "run".into(), object: "o".into(), field: "after".into(), path: vec![] };
    assert_eq!(nodes[1].objects().await.get(request).await.unwrap().into_inner().fields, []);
}

#[tokio::test]
async fn a_revoked_node_follows_no_policy() {
    let mut nodes = cluster(2).await;
    let manifest = manifest_of("far", "placement = \"far\"");
    nodes[0].deploy(&manifest, &[("far", "export default () => 'done'")]).await;
    let text = "far:\n  - workers: [n0]\n  - followup: fail\n".to_owned();
    let set = proto::SetPolicyRequest { text: text.clone(), wait_ms: 30_000 };
    nodes[0].control.set_policy(set.clone()).await.unwrap();
    let mut revoked = nodes.pop().unwrap();
    let ran_on = |response: &http::Response<bytes::Bytes>| {
        response.headers().get("invocation-node").map(|name| name.to_str().unwrap().to_owned())
    };
    in_time(async { while ran_on(&revoked.post("/fn/far", "").await).as_deref() != Some("n0") {} }).await;
    nodes[0].control.revoke_member(proto::RevokeMemberRequest { name: "n1".into() }).await.unwrap();
    // While it runs, and after a restart.
    for _ in 0..2 {
        in_time(async {
            loop {
                let response = revoked.post("/fn/far", "").await;
                if response.status() == 200 && ran_on(&response).is_none() {
                    return;
                }
            }
        })
        .await;
        let cluster = revoked.control.get_cluster(proto::GetClusterRequest {}).await.unwrap().into_inner();
        assert!(
            cluster.revoked.is_some() && cluster.id.is_empty() && cluster.members.is_empty(),
            "{cluster:?}"
        );
        let policy = revoked.control.get_policy(proto::GetPolicyRequest {}).await.unwrap().into_inner();
        assert_eq!((&policy.text, &*policy.nodes), (&text, &[][..]));
        assert!(policy.ignored.is_some_and(|reason| reason.contains("revoked")));
        let refused = revoked.control.set_policy(set.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("was revoked"), "{refused}");
        let refused = join(&mut revoked, "token", "n1").await.unwrap_err();
        assert!(
            refused.message().contains("was revoked") && refused.message().contains("`cluster/`"),
            "{refused}"
        );
        let folder = revoked.stop().await;
        revoked = TestNode::start_in(folder, member).await.unwrap();
    }
}

#[tokio::test]
async fn a_node_that_was_offline_exchanges_missed_changes() {
    let mut nodes = cluster(2).await;
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    update(&nodes[0], "o", "n", Operation::CounterAdd(1)).await.unwrap();
    until(&nodes[1], "o", "n", &json!(1)).await;
    let away = nodes.pop().unwrap().stop().await;
    for number in 0..20 {
        update(&nodes[0], &format!("o{number}"), "n", Operation::CounterAdd(number)).await.unwrap();
    }
    // Each node writes while they are disconnected.
    let alone = TestNode::start_in(away, member).await.unwrap();
    update(&alone, "o", "n", Operation::CounterAdd(10)).await.unwrap();
    for number in 0..20 {
        until(&alone, &format!("o{number}"), "n", &json!(number)).await;
    }
    until(&nodes[0], "o", "n", &json!(11)).await;
    until(&alone, "o", "n", &json!(11)).await;
}

#[tokio::test]
async fn a_copy_is_kept_on_a_node_whose_functions_do_not_use_the_object() {
    let mut nodes = cluster(2).await;
    nodes[0].deploy_here(&manifest_of("run", PERMIT), &[("run", RUN)]).await;
    update(&nodes[0], "o", "n", Operation::CounterAdd(7)).await.unwrap();
    // The second node keeps a copy in case the disk of the first fails.
    until(&nodes[1], "o", "n", &json!(7)).await;
    let one = r#"
        app = "single"
        [functions.single]
        main = "single.js"
        permissions = { objects = ["*"] }
        [objects."*"]
        copies = 1
        interval = "0ms"
    "#;
    nodes[0].deploy_here(one, &[("single", RUN)]).await;
    assert_eq!(
        reply_text(&nodes[0].invoke("single", "await o.counter('n').add(1); return 'done'").await),
        "\"done\""
    );
    update(&nodes[0], "o", "n", Operation::CounterAdd(1)).await.unwrap();
    until(&nodes[1], "o", "n", &json!(8)).await;
    let request = objects::ListRequest { app: "single".into(), ..Default::default() };
    assert_eq!(nodes[1].objects().await.list(request).await.unwrap().into_inner().objects, []);
}

#[tokio::test]
async fn a_new_function_waits_for_its_objects_if_configured() {
    let mut nodes = cluster(2).await;
    let manifest = r#"
        app = "run"
        [functions.run]
        main = "run.js"
        permissions = { objects = ["*"] }
        [objects."*"]
        copies = 1
        recover = "before"
    "#;
    // On one node alone: the other one has no interest in the objects before its own deploy.
    nodes[0].deploy_here(manifest, &[("run", RUN)]).await;
    for number in 0..200 {
        update(&nodes[0], &format!("room-{number}"), "n", Operation::CounterAdd(number)).await.unwrap();
    }
    update(&nodes[0], "o", "n", Operation::CounterAdd(5)).await.unwrap();
    nodes[1].deploy_here(manifest, &[("run", RUN)]).await;
    // The first invocation on this node sees the state of the other node.
    assert_eq!(reply_text(&nodes[1].invoke("run", "return o.counter('n').value()").await), "5");
}

#[tokio::test]
async fn shares_of_a_bounded_counter_go_to_the_node_that_needs_them() {
    let mut nodes = cluster(2).await;
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    update(&nodes[0], "stock", "n", Operation::BoundedCounterAdd(10)).await.unwrap();
    until(&nodes[1], "stock", "n", &json!(10)).await;
    let mut taken = 0;
    let mut changes = watch(&nodes[1], "stock", "n").await;
    in_time(async {
        while taken < 4 {
            match update(&nodes[1], "stock", "n", Operation::BoundedCounterAdd(-2)).await {
                Ok(()) => taken += 2,
                Err(status) => {
                    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
                    // This node has requested a share, and the other node grants one.
                    tokio::time::timeout(std::time::Duration::from_millis(300), changes.message())
                        .await
                        .ok();
                }
            }
        }
    })
    .await;
    until(&nodes[0], "stock", "n", &json!(6)).await;
    // The counter is never below zero, on any node.
    let mut left = 6;
    for node in nodes.iter().cycle().take(40) {
        if update(node, "stock", "n", Operation::BoundedCounterAdd(-1)).await.is_ok() {
            left -= 1;
        }
    }
    assert!(left >= 0, "{left}");
    for node in &nodes {
        until(node, "stock", "n", &json!(left)).await;
    }
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            // With its mode: only the owner may read keys.
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[tokio::test]
async fn a_copied_data_directory_beside_its_original_is_refused_and_named() {
    let mut nodes = cluster(2).await;
    let original = nodes.pop().unwrap().stop().await;
    let copied = tempfile::tempdir().unwrap();
    copy_folder(original.path(), copied.path());
    let mut original = TestNode::start_in(original, member).await.unwrap();
    let see = async |node: &mut TestNode| {
        node.control.get_cluster(proto::GetClusterRequest {}).await.unwrap().into_inner()
    };
    in_time(async {
        while see(&mut nodes[0]).await.members[0].peer.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let first = see(&mut nodes[0]).await.members[0].peer.clone().unwrap();
    let mut copy = TestNode::start_in(copied, member).await.unwrap();
    in_time(async {
        while see(&mut nodes[0]).await.members[0].copy_address.is_none() {
            tokio::task::yield_now().await;
        }
        // Both nodes report it.
        while see(&mut copy).await.copy.is_none() || see(&mut original).await.copy.is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let member = see(&mut nodes[0]).await.members.remove(0);
    assert_ne!(member.copy_address, Some(first.address.clone()));
    assert_eq!(
        member.peer.map(|peer| peer.address),
        Some(first.address),
        "the original is still connected"
    );
}

/// The node joins twice with one key, is revoked, and starts again with the member list of its first membership.
#[tokio::test]
async fn a_revoked_node_does_not_come_back_with_an_earlier_certificate() {
    let mut nodes = cluster(1).await;
    let mut twice = TestNode::start_with(member).await;
    let first = token(&mut nodes[0]).await;
    join(&mut twice, &first, "twice").await.unwrap();
    let dir = twice.stop().await;
    let members = dir.path().join("cluster/members");
    let earlier = std::fs::read(&members).unwrap();
    std::fs::remove_file(&members).unwrap();
    let mut twice = TestNode::start_in(dir, member).await.unwrap();
    let second = token(&mut nodes[0]).await;
    join(&mut twice, &second, "twice").await.unwrap();
    nodes[0].control.revoke_member(proto::RevokeMemberRequest { name: "twice".into() }).await.unwrap();
    let dir = twice.stop().await;
    std::fs::write(&members, earlier).unwrap();
    let twice = TestNode::start_in(dir, member).await.unwrap();
    // The node is refused, and works alone.
    in_time(async {
        let revoked = r#"cluster_refused_total{reason="revoked"}"#;
        while crate::bad_members::figure(&nodes[0], revoked).await < 2.0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let seen = nodes[0].control.get_cluster(proto::GetClusterRequest {}).await.unwrap().into_inner();
    assert_eq!(seen.members, []);
    // The key itself is never accepted again.
    let third = token(&mut nodes[0]).await;
    let dir = twice.stop().await;
    let _ = std::fs::remove_file(&members);
    let mut twice = TestNode::start_in(dir, member).await.unwrap();
    let refused = join(&mut twice, &third, "twice").await.unwrap_err();
    assert!(refused.message().contains("was revoked"), "{refused}");
}
