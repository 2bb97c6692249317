//! Nodes of one cluster.

use super::*;

async fn two_nodes_talk(kind: TransportKind) {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let mut b = start(Options { bootstrap: vec![a.address(kind)], ..options(&key, 2) }).await;
    a.wait_up(2).await;
    b.wait_up(1).await;
    assert_eq!(b.handle.peers()[0].transport, kind);
    assert_eq!(a.handle.peers()[0].transport, kind);

    for i in 0..1_000_u32 {
        a.handle.try_send(2, Bytes::copy_from_slice(&i.to_be_bytes())).unwrap();
    }
    for i in 0..1_000_u32 {
        assert_eq!(b.wait_frame(1).await, i.to_be_bytes().as_slice());
    }
    let large = Bytes::from(vec![7; 1 << 20]);
    b.handle.try_send(1, large.clone()).unwrap();
    assert_eq!(a.wait_frame(2).await, large);
    assert_eq!(a.handle.try_send(9, Bytes::new()), Err(SendError::Gone { node_id: 9 }));
    let over = Bytes::from(vec![7; (1 << 20) + 1]);
    assert!(matches!(a.handle.try_send(2, over), Err(SendError::TooLarge { .. })));

    b.cancel.cancel();
    assert_eq!(a.wait_down(2).await, DownReason::Left);
}

#[tokio::test]
async fn two_nodes_talk_by_tcp() {
    two_nodes_talk(TransportKind::Tcp).await;
}

#[tokio::test]
async fn two_nodes_talk_by_quic() {
    two_nodes_talk(TransportKind::Quic).await;
}
