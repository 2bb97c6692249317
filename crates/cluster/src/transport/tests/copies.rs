//! Nodes whose data directory is a copy of another node's.

use super::*;

/// Two members, and the options of the second one.
async fn pair(incarnation: u32) -> (ClusterKey, Node, Node, Options) {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let bootstrap = vec![a.address(TransportKind::Tcp)];
    let of_b = Options { bootstrap, incarnation, ..options(&key, 2) };
    let mut b = start(of_b.clone()).await;
    tokio::join!(a.wait_up(2), b.wait_up(1));
    (key, a, b, of_b)
}

/// Options of a copy of the node's disk, with the current membership.
fn copy(of_b: &Options, incarnation: u32) -> Options {
    let membership = Arc::new(Mutex::new(of_b.membership.lock().clone()));
    Options { membership, incarnation, ..of_b.clone() }
}

#[tokio::test]
async fn a_copy_that_runs_beside_its_original_is_refused_and_both_are_named() {
    let (_, mut a, mut b, of_b) = pair(5).await;
    // It was started later, as a node is that is started again.
    let mut twin = start(copy(&of_b, 6)).await;
    twin.until(|node| node.handle.counters().refused_by_peers(Refusal::Cloned) >= 1).await;
    let copies = a.handle.copies();
    assert_eq!(copies.len(), 1);
    assert_eq!(copies[0].peer_id, b.identity.peer_id());
    assert_eq!(copies[0].known_at, a.handle.peers()[0].address);
    assert_ne!(copies[0].known_at, copies[0].refused_at);
    let said = twin.handle.own_copy().unwrap();
    assert!(said.contains(&copies[0].known_at.to_string()), "{said}");
    b.until(|node| node.handle.own_copy().is_some()).await;
    // The one that was there first goes on.
    a.handle.try_send(2, "still here".into()).unwrap();
    assert_eq!(b.wait_frame(1).await, "still here");
    assert_eq!(a.handle.peers()[0].incarnation, 5);
    // When it has ended, the other one cannot be told from a restart of it.
    b.stop().await;
    a.wait_down(2).await;
    tokio::join!(a.wait_up(2), twin.wait_up(1));
    assert_eq!(a.handle.peers()[0].incarnation, 6);
    // And now the first one is the copy, also after the other has ended.
    twin.stop().await;
    a.wait_down(2).await;
    let mut b = start(copy(&of_b, 6)).await;
    b.until(|node| node.handle.counters().refused_by_peers(Refusal::Cloned) >= 1).await;
    assert_eq!(a.handle.peers(), []);
}

#[tokio::test]
async fn an_older_copy_is_refused_and_a_later_start_is_not() {
    let (_, mut a, b, of_b) = pair(5).await;
    b.stop().await;
    a.wait_down(2).await;
    for incarnation in [5, 3] {
        let mut older = start(copy(&of_b, incarnation)).await;
        older.until(|node| node.handle.counters().refused_by_peers(Refusal::Cloned) >= 1).await;
        assert!(older.handle.own_copy().unwrap().contains("is a copy"));
        older.stop().await;
    }
    assert_eq!(a.handle.peers(), []);
    let mut again = start(copy(&of_b, 6)).await;
    tokio::join!(a.wait_up(2), again.wait_up(1));
}
