//! Nodes of one cluster find one another and talk.

use std::collections::BTreeSet;

use super::*;

async fn two_nodes_talk(kind: TransportKind) {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let ahead = Options { bootstrap: vec![a.address(kind)], incarnation: 7, ..options(&key, 2) };
    let mut b = start(ahead).await;
    let up = a.wait(|event| matches!(event, Event::PeerUp { .. }).then_some(event)).await;
    let Event::PeerUp { node_id, name, peer_id, protocol_version, incarnation, skew_ms, .. } = up else {
        panic!()
    };
    assert_eq!((node_id, name.as_str(), peer_id), (2, "node-2", b.identity.peer_id()));
    assert_eq!((protocol_version, incarnation), (1, 7));
    assert!(skew_ms.abs() < 10_000, "{skew_ms}");
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
    assert!(a.handle.peers()[0].bytes_in > 1 << 20);
    assert_eq!(a.handle.try_send(9, Bytes::new()), Err(SendError::Gone { node_id: 9 }));
    let over = Bytes::from(vec![7; (1 << 20) + 1]);
    assert!(matches!(a.handle.try_send(2, over), Err(SendError::TooLarge { .. })));

    b.cancel.cancel();
    assert_eq!(a.wait_down(2).await, DownReason::Left);
    assert_eq!(a.handle.try_send(2, Bytes::new()), Err(SendError::Gone { node_id: 2 }));
}

#[tokio::test]
async fn two_nodes_talk_by_tcp() {
    two_nodes_talk(TransportKind::Tcp).await;
}

#[tokio::test]
async fn two_nodes_talk_by_quic() {
    two_nodes_talk(TransportKind::Quic).await;
}

/// Waits until a node has a channel to all of these at the same time.
async fn wait_all(node: &mut Node, others: BTreeSet<u64>) {
    let mut up = BTreeSet::new();
    node.wait(|event| {
        match event {
            Event::PeerUp { node_id, .. } => up.insert(node_id),
            Event::PeerDown { node_id, .. } => up.remove(&node_id),
            _ => false,
        };
        (up == others).then_some(())
    })
    .await;
}

#[tokio::test]
async fn five_nodes_that_know_one_address_know_all() {
    let key = ClusterKey::generate();
    let first = start(options(&key, 1)).await;
    let address = first.address(TransportKind::Tcp);
    let mut nodes = vec![first];
    for id in 2..=5 {
        nodes.push(start(Options { bootstrap: vec![address.clone()], ..options(&key, id) }).await);
    }
    for node in &mut nodes {
        let others = (1..=5).filter(|id| *id != node.id).collect();
        wait_all(node, others).await;
    }
    for from in &nodes {
        for to in nodes.iter().filter(|to| to.id != from.id) {
            from.handle.try_send(to.id, Bytes::copy_from_slice(&from.id.to_be_bytes())).unwrap();
        }
    }
    for to in &mut nodes {
        let mut missing: BTreeSet<u64> = (1..=5).filter(|id| *id != to.id).collect();
        to.wait(|event| {
            if let Event::Frame { node_id, bytes } = event {
                assert_eq!(bytes, node_id.to_be_bytes().as_slice());
                missing.remove(&node_id);
            }
            missing.is_empty().then_some(())
        })
        .await;
        assert_eq!(to.membership.lock().members().count(), 4);
    }
}

#[tokio::test]
async fn what_was_learnt_is_enough_after_a_restart() {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let of_b = Options { bootstrap: vec![a.address(TransportKind::Quic)], ..options(&key, 2) };
    let mut b = start(of_b.clone()).await;
    b.wait_up(1).await;
    b.wait(|event| (event == Event::MembershipChanged).then_some(())).await;
    a.wait_up(2).await;
    let kept = Membership::decode(&b.membership.lock().encode()).unwrap();
    b.stop().await;
    a.wait_down(2).await;
    let again =
        Options { bootstrap: vec![], membership: Arc::new(Mutex::new(kept)), incarnation: 1, ..of_b };
    let mut b = start(again).await;
    b.wait_up(1).await;
    a.wait_up(2).await;
}

#[tokio::test]
async fn nodes_that_dial_each_other_have_one_channel() {
    let key = ClusterKey::generate();
    let ports = [free_port(), free_port()];
    let at = |id: u64, own: u16| Options {
        listen: format!("127.0.0.1:{own}").parse().unwrap(),
        // One list for all nodes, itself included.
        bootstrap: ports
            .iter()
            .flat_map(|port| {
                [
                    format!("127.0.0.1:{port}"),
                    format!("/ip4/127.0.0.1/tcp/{port}"),
                    format!("/ip4/127.0.0.1/udp/{port}/quic-v1"),
                ]
            })
            .collect(),
        ..options(&key, id)
    };
    let (mut a, mut b) = tokio::join!(start(at(1, ports[0])), start(at(2, ports[1])));
    a.wait_up(2).await;
    b.wait_up(1).await;
    for i in 0..100_u8 {
        a.handle.try_send(2, Bytes::copy_from_slice(&[i])).unwrap();
        b.handle.try_send(1, Bytes::copy_from_slice(&[i])).unwrap();
    }
    for i in 0..100 {
        // A channel that fell to a second one would lose frames.
        assert_eq!(a.wait_frame(2).await, [i].as_slice());
        assert_eq!(b.wait_frame(1).await, [i].as_slice());
    }
    assert_eq!((a.handle.peers().len(), b.handle.peers().len()), (1, 1));
}

#[tokio::test]
async fn an_address_is_dialled_until_somebody_is_there() {
    let key = ClusterKey::generate();
    let port = free_port();
    let bootstrap = vec![format!("localhost:{port}"), "no-such-name.invalid:1".into()];
    let mut a = start(Options { bootstrap, ..options(&key, 1) }).await;
    a.until(|node| node.handle.counters().dials_failed >= 2).await;
    let listen = format!("127.0.0.1:{port}").parse().unwrap();
    let mut b = start(Options { listen, ..options(&key, 2) }).await;
    a.wait_up(2).await;
    b.wait_up(1).await;
}

#[tokio::test]
async fn a_node_says_why_it_does_not_start() {
    let key = ClusterKey::generate();
    let a = start(options(&key, 1)).await;
    let taken = address::socket(&a.handle.listen_addresses()[0]).unwrap();
    let start = async |options| Transport::start(options, CancellationToken::new()).await.err().unwrap();
    let error = start(Options { listen: taken, ..options(&key, 2) }).await;
    assert!(matches!(error, StartError::Listen { .. }), "{error}");
    let error = start(Options { bootstrap: vec!["pi".into()], ..options(&key, 2) }).await;
    assert!(matches!(error, StartError::Bootstrap { .. }), "{error}");
    let error = start(Options { identity: Identity::generate(), ..options(&key, 2) }).await;
    assert!(matches!(error, StartError::OtherNode { .. }), "{error}");
    let revoked = options(&key, 2);
    let own = revoked.identity.peer_id();
    revoked.membership.lock().revoke(key.revoke(own)).unwrap();
    assert!(matches!(start(revoked).await, StartError::Revoked));
}

/// True if what is sent to the group of multicast DNS comes back; in a container it often does not.
async fn multicast_works() -> bool {
    let group = std::net::Ipv4Addr::new(224, 0, 0, 251);
    let probe = async {
        let socket = tokio::net::UdpSocket::bind("0.0.0.0:0").await?;
        socket.join_multicast_v4(group, std::net::Ipv4Addr::UNSPECIFIED)?;
        let port = socket.local_addr()?.port();
        socket.send_to(b"probe", (group, port)).await?;
        let mut bytes = [0; 5];
        socket.recv_from(&mut bytes).await
    };
    matches!(tokio::time::timeout(Duration::from_secs(1), probe).await, Ok(Ok(_)))
}

#[tokio::test]
async fn nodes_on_one_link_find_each_other() {
    if !multicast_works().await {
        eprintln!("not tested: there is no network interface with multicast here");
        return;
    }
    let key = ClusterKey::generate();
    let on_link = |id| Options { mdns: true, listen: "0.0.0.0:0".parse().unwrap(), ..options(&key, id) };
    let mut a = start(on_link(1)).await;
    let mut b = start(on_link(2)).await;
    a.wait_up(2).await;
    b.wait_up(1).await;
}
