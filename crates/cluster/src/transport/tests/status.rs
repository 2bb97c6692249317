//! The status of members, which comes with the heartbeat.

use super::refusals::{Cluster, let_in};
use super::*;
use crate::network::frame::Kind;
use crate::status::{MAX_FACTS_BYTES, MAX_LOAD_BYTES, StatusError};

impl Node {
    fn status(&self, of: u64) -> Option<PeerStatus> {
        self.handle.peer_statuses().into_iter().find(|status| status.node_id == of)
    }

    async fn wait_status(&mut self, of: u64, load: &str, facts: &str) {
        self.until(|node| {
            node.status(of).is_some_and(|status| {
                status.load.is_some_and(|(bytes, _)| bytes == load)
                    && status.facts.is_some_and(|bytes| bytes == facts)
                    && status.rtt.is_some()
            })
        })
        .await;
    }
}

#[tokio::test]
async fn members_know_the_status_of_each_other() {
    let Cluster { mut a, mut b, .. } = Cluster::start(TransportKind::Quic).await;
    let mut changes = b.handle.watch_statuses();
    changes.mark_unchanged();
    a.handle.set_load("light".into()).unwrap();
    a.handle.set_facts("hall".into()).unwrap();
    b.handle.set_load("heavy".into()).unwrap();
    b.handle.set_facts("attic".into()).unwrap();
    a.wait_status(2, "heavy", "attic").await;
    b.wait_status(1, "light", "hall").await;
    assert!(changes.has_changed().unwrap());
    b.handle.set_load("none".into()).unwrap();
    b.handle.set_facts("cellar".into()).unwrap();
    a.wait_status(2, "none", "cellar").await;
    assert_eq!(a.handle.peers()[0].rtt, a.status(2).unwrap().rtt);

    // A new channel gets all of it again.
    a.handle.disconnect(2);
    b.wait_down(1).await;
    tokio::join!(a.wait_up(2), b.wait_up(1));
    a.wait_status(2, "none", "cellar").await;
    b.cancel.cancel();
    a.wait_down(2).await;
    assert_eq!(a.status(2), None);
}

#[tokio::test]
async fn the_status_passes_frames_that_wait() {
    let Cluster { a, mut b, .. } = Cluster::start(TransportKind::Tcp).await;
    // One frame of the size of the outbox is being written, and others wait.
    while a.handle.try_send(2, vec![7; 300_000].into()).is_ok() {}
    a.handle.set_facts(vec![b'f'; MAX_FACTS_BYTES].into()).unwrap();
    a.handle.set_load("busy".into()).unwrap();
    let facts = "f".repeat(MAX_FACTS_BYTES);
    b.wait_status(1, "busy", &facts).await;
}

#[tokio::test]
async fn a_status_over_the_limit_is_refused() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let long = |bytes: usize| Bytes::from(vec![0; bytes]);
    let (load, facts) = (MAX_LOAD_BYTES, MAX_FACTS_BYTES);
    let too_long = |bytes| Err(StatusError::TooLong { bytes: bytes + 1, limit_bytes: bytes });
    assert_eq!(cluster.a.handle.set_load(long(load + 1)), too_long(load));
    assert_eq!(cluster.a.handle.set_facts(long(facts + 1)), too_long(facts));
    for (kind, limit) in [(Kind::Load, load), (Kind::Facts, facts)] {
        let mut liar = let_in(&mut cluster).await;
        liar.say(kind, &long(limit)).await;
        cluster.a.until(|node| node.status(3).is_some_and(|s| s.load.is_some() || s.facts.is_some())).await;
        liar.say(kind, &long(limit + 1)).await;
        assert_eq!(cluster.a.wait_down(3).await, DownReason::Refused(Refusal::TooLarge));
    }
    cluster.a.handle.try_send(2, "on".into()).unwrap();
    assert_eq!(cluster.b.wait_frame(1).await, "on");
}
