//! Decisions of the cluster that are carried out late.

use std::sync::Arc;

use edgefaas_broker::Hooks;
use edgefaas_platform::Clock;
use edgefaas_state::store::{Batch, Durability};

use super::*;
use crate::durable::{KeepLimits, Retention};
use crate::test_node::TestNode;

const KEEP: KeepLimits = KeepLimits {
    time: std::time::Duration::from_secs(60),
    count: 10,
    bytes: 1 << 20,
    memory_bytes: 1 << 20,
    listed: Retention { time: std::time::Duration::from_secs(60), count: 10, bytes: 1 << 20 },
    dead: Retention { time: std::time::Duration::from_secs(60), count: 10, bytes: 1 << 20 },
};

fn shop(version: u32) -> Deploy {
    let scope = ClusterScope {
        node: "n2".into(),
        selects: Arc::new(|_, _| true),
        matches: Arc::new(|_| MatchingNodes { connected: 1, ..MatchingNodes::default() }),
    };
    let flow = format!(
        "document: {{ dsl: '1.0.3', namespace: test, name: sell, version: '{version}.0.0' }}\n\
         do:\n  - a: {{ set: {{ x: {version} }} }}\n"
    );
    Deploy {
        manifest: "app = \"shop\"\nworkflows = [\"*.yaml\"]\n".into(),
        workflows: BTreeMap::from([("sell.yaml".into(), flow)]),
        scope: Scope::Cluster(scope),
        ..Deploy::default()
    }
}

/// A removal that another node has decided after what this one knows of the app.
async fn decide_elsewhere(node: &TestNode, app: &str) -> Deployment {
    let known = cluster_apps::cluster_app(node.store.objects(), app).unwrap();
    let number = cluster_apps::next_number(known.as_ref());
    let removal =
        Deployment { number, revision: None, node: "n3".into(), deployed_unix_ms: 0, format: FORMAT };
    let mut batch = Batch::default();
    cluster_apps::put_deployment(&mut batch, app, &removal);
    node.store.committer().commit(batch, Durability::Synced).await.unwrap();
    removal
}

#[tokio::test]
async fn a_decision_that_another_has_replaced_is_not_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let node = TestNode::open(dir.path(), Clock::system(), Hooks::default(), KEEP);
    let registry = &node.registry;
    let first = registry.deploy(shop(1)).await.unwrap().app;
    let decided = || cluster_apps::cluster_app(node.store.objects(), "shop").unwrap().unwrap().winner;
    let first_decision = decided();
    let removal = decide_elsewhere(&node, "shop").await;
    assert_eq!(decided(), removal);
    // While the removal waited for its turn, the app was deployed again.
    let second = registry.deploy(shop(2)).await.unwrap().app;
    for live in [&first, &second] {
        let late = registry.adopt_removal(live, ("shop", &removal)).await;
        assert!(matches!(late, Err(DeployError::Superseded { .. })), "{late:?}");
    }
    for code in [Code::Here, Code::Elsewhere] {
        let late = registry.adopt("shop", first_decision.clone(), code).await.map(|_| ());
        assert!(matches!(late, Err(DeployError::Superseded { .. })), "{late:?}");
    }
    let live = registry.routes().app("shop").cloned().unwrap();
    assert!(Arc::ptr_eq(&live, &second) && registry.has_revision(&second.revision).unwrap());

    // What is decided about what is live is carried out.
    let removal = decide_elsewhere(&node, "shop").await;
    let late = registry.adopt_removal(&first, ("shop", &removal)).await;
    assert!(matches!(late, Err(DeployError::Superseded { .. })), "{late:?}");
    registry.adopt_removal(&second, ("shop", &removal)).await.unwrap();
    assert!(registry.routes().app("shop").is_none());
}

#[tokio::test]
async fn a_revision_that_a_deployment_of_the_cluster_names_is_not_collected() {
    let dir = tempfile::tempdir().unwrap();
    let node = TestNode::open(dir.path(), Clock::system(), Hooks::default(), KEEP);
    let registry = &node.registry;
    let live = registry.deploy(shop(1)).await.unwrap().app;
    // It has to make room for another app, whose names come first; the cluster still has decided for it.
    let decision = decide_elsewhere(&node, "first").await;
    registry.adopt_removal(&live, ("first", &decision)).await.unwrap();
    assert!(registry.routes().app("shop").is_none());
    assert!(registry.has_revision(&live.revision).unwrap(), "others may have to fetch it from here");

    let live = registry.deploy(shop(2)).await.unwrap().app;
    let removal = decide_elsewhere(&node, "shop").await;
    registry.adopt_removal(&live, ("shop", &removal)).await.unwrap();
    assert!(!registry.has_revision(&live.revision).unwrap(), "nothing names it any more");
}
