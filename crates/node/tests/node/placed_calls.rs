//! Calls that policies place: a member that lies about its load, and clocks that differ by days.

use edgefaas_api::control as proto;
use edgefaas_cluster::calls::{CallLimits, serve};
use edgefaas_cluster::status::{AppFact, Facts, LiveRevision, Load, Runs};
use tokio_util::compat::FuturesAsyncReadCompatExt;

use crate::bad_members::{Rogue, ahead_by};
use crate::clusters::{cluster, join, member, token};
use crate::support::{TestNode, in_time, manifest_of, text};

const SOURCE: &str = "export default async (event) => {\n\
     if (event.text() === 'slow') await new Promise((end) => setTimeout(end, 60000));\n\
     return 'done';\n\
 };";

async fn set_policy(node: &mut TestNode, text: &str, wait_ms: u32) -> proto::SetPolicyResponse {
    let request = proto::SetPolicyRequest { text: text.to_owned(), wait_ms };
    node.control.set_policy(request).await.unwrap().into_inner()
}

/// Waits until a call of `run` at this node would run on a node.
async fn placed_on(node: &mut TestNode, name: &str) {
    in_time(async {
        loop {
            let request = proto::ExplainPlacementRequest { function: "run".into(), entry: String::new() };
            if node.control.explain_placement(request).await.unwrap().into_inner().node == name {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_member_that_lies_about_its_load_costs_a_try() {
    let mut nodes = cluster(1).await;
    let node = &mut nodes[0];
    let manifest = manifest_of("run", "placement = \"any\"");
    let deployed = node.deploy(&manifest, &[("run", SOURCE)]).await.app.unwrap();
    let revision = data_encoding::HEXLOWER.decode(deployed.revision.as_bytes()).unwrap();
    let mut liar = Rogue::join(node, "liar").await;
    // It says that it is empty, and refuses each call.
    let live = LiveRevision { revision: revision.try_into().unwrap(), runs: Runs::Here, number: 1 };
    let apps = vec![AppFact {
        app: "run".into(),
        live: Some(live),
        next: None,
        lacks_objects: false,
        schedules: Vec::new(),
    }];
    liar.handle.set_facts(Facts { apps, ..Facts::default() }.encode()).unwrap();
    let (memory, permits) = (1 << 40, 10_000);
    let load = Load {
        memory_free_bytes: memory,
        memory_total_bytes: memory,
        permits_free: permits,
        permits_total: permits,
        ..Load::default()
    };
    liar.handle.set_load(load.encode()).unwrap();
    let mut streams = liar.streams.take().unwrap();
    let (refused, mut refusals) = tokio::sync::mpsc::unbounded_channel();
    let serving = tokio::spawn(async move {
        while let Some(incoming) = streams.recv().await {
            let refuse = |call: edgefaas_cluster::calls::IncomingCall| {
                call.refuse();
                let _ = refused.send(());
            };
            let _ = serve(incoming.stream.compat(), incoming.node_id, CallLimits::default(), refuse).await;
        }
    });
    let policy = "any:\n  - workers: [liar, n0]\n    strategy: best-first\n  - followup: fail\n";
    set_policy(node, policy, 0).await;
    placed_on(node, "liar").await;
    let again = set_policy(node, policy, 0).await;
    let states: Vec<_> = again.nodes.iter().map(|node| (node.node.clone(), node.state())).collect();
    assert_eq!(
        states[1],
        ("liar".to_owned(), proto::node_policy::State::Waiting),
        "it reports no policies"
    );
    for _ in 0..20 {
        let answer = node.post("/fn/run", "").await;
        assert_eq!((answer.status().as_u16(), text(&answer)), (200, "done"));
        assert_eq!(answer.headers()["invocation-node"], "n0");
    }
    assert!(refusals.recv().await.is_some(), "the liar was asked");
    serving.abort();
}

#[tokio::test]
async fn no_clock_decides_about_calls_and_deploys() {
    const DAYS_S: u64 = 3 * 24 * 3600;
    let mut nodes = cluster(1).await;
    let dir = tempfile::tempdir().unwrap();
    let mut ahead = TestNode::start_on(ahead_by(DAYS_S), dir, member).await.unwrap();
    let token = token(&mut nodes[0]).await;
    join(&mut ahead, &token, "ahead").await.unwrap();
    let node = &mut nodes[0];
    let manifest = manifest_of("run", "placement = \"far\"\nlimits = { timeout = \"5s\" }");
    // The node whose clock is ahead deploys first, with the later time.
    ahead.deploy(&manifest, &[("run", "export default () => 'first'")]).await;
    in_time(async { while node.control.invoke(invoke()).await.is_err() {} }).await;
    node.deploy(&manifest, &[("run", SOURCE)]).await;
    let set = set_policy(node, "far:\n  - workers: [ahead]\n  - followup: fail\n", 30_000).await;
    assert!(set.nodes.iter().all(|node| node.state() == proto::node_policy::State::InForce), "{set:?}");
    in_time(async { while text(&node.post("/fn/run", "").await) != "done" {} }).await;
    let answer = node.post("/fn/run", "").await;
    assert_eq!((answer.status().as_u16(), text(&answer)), (200, "done"));
    assert_eq!(answer.headers()["invocation-node"], "ahead");
    // The time limit is neither over at the begin nor in three days.
    let late = in_time(node.post("/fn/run", "slow")).await;
    assert_eq!(late.status().as_u16(), 504, "{}", text(&late));
    assert_eq!(late.headers()["invocation-node"], "ahead");
}

fn invoke() -> proto::InvokeRequest {
    proto::InvokeRequest { function: "run".into(), ..Default::default() }
}
