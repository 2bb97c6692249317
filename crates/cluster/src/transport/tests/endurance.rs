//! Peers that die, links that are cut, nodes that are slow.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A TCP relay. Once `cut` is set, it drops all bytes silently, as a cut link does.
struct Relay {
    address: String,
    cut: Arc<AtomicBool>,
}

impl Relay {
    async fn start(to: std::net::SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let is_cut = cut.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(to).await else { continue };
                let (near, far) = (near.into_split(), far.into_split());
                for (mut from, mut to) in [(near.0, far.1), (far.0, near.1)] {
                    let is_cut = is_cut.clone();
                    tokio::spawn(async move {
                        let mut bytes = vec![0; 16 * 1_024];
                        while let Ok(count @ 1..) = from.read(&mut bytes).await {
                            if !is_cut.load(Ordering::SeqCst)
                                && to.write_all(&bytes[..count]).await.is_err()
                            {
                                break;
                            }
                        }
                        if is_cut.load(Ordering::SeqCst) {
                            std::future::pending::<()>().await;
                        }
                    });
                }
            }
        });
        Self { address: format!("/ip4/127.0.0.1/tcp/{port}"), cut }
    }
}

#[tokio::test]
async fn a_cut_link_is_noticed_and_mended() {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let relay =
        Relay::start(address::socket(&a.address(TransportKind::Tcp).parse().unwrap()).unwrap()).await;
    let mut b = start(Options { bootstrap: vec![relay.address.clone()], ..options(&key, 2) }).await;
    a.wait_up(2).await;
    b.wait_up(1).await;
    // Idle channels have heartbeats, which measure the way.
    a.until(|node| node.handle.peers().first().is_some_and(|peer| peer.rtt.is_some())).await;

    let started = Instant::now();
    relay.cut.store(true, Ordering::SeqCst);
    let (reason, other) = tokio::join!(a.wait_down(2), b.wait_down(1));
    // The node that notices second may see the first one's close, through another address.
    assert!(reason == DownReason::Silent || other == DownReason::Silent, "{reason} {other}");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(2_500) && took <= Duration::from_secs(8), "{took:?}");
    relay.cut.store(false, Ordering::SeqCst);
    tokio::join!(a.wait_up(2), b.wait_up(1));
}

#[test]
fn a_killed_node_is_down_and_comes_back() {
    for kind in [TransportKind::Tcp, TransportKind::Quic] {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let victims = tokio::runtime::Runtime::new().unwrap();
        let key = ClusterKey::generate();
        let mut a = runtime.block_on(start(options(&key, 1)));
        let of_b = Options { bootstrap: vec![a.address(kind)], ..options(&key, 2) };
        let b = victims.block_on(start(of_b.clone()));
        runtime.block_on(a.wait_up(2));
        let started = Instant::now();
        // Nothing is said, everything just stops.
        victims.shutdown_background();
        let reason = runtime.block_on(a.wait_down(2));
        assert!(matches!(reason, DownReason::Lost | DownReason::Silent), "{reason}");
        assert!(started.elapsed() <= Duration::from_secs(8), "{kind:?}: {:?}", started.elapsed());
        let mut again = runtime.block_on(start(Options { incarnation: 1, ..of_b }));
        runtime.block_on(async { tokio::join!(a.wait_up(2), again.wait_up(1)) });
        assert_eq!(a.handle.peers()[0].incarnation, 1);
        drop(b);
    }
}

#[tokio::test]
async fn a_node_that_restarts_unnoticed_replaces_itself() {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let relay =
        Relay::start(address::socket(&a.address(TransportKind::Tcp).parse().unwrap()).unwrap()).await;
    let of_b = Options { bootstrap: vec![relay.address.clone()], ..options(&key, 2) };
    let b = start(of_b.clone()).await;
    a.wait_up(2).await;
    // What b says at its end does not arrive.
    relay.cut.store(true, Ordering::SeqCst);
    drop(b);
    let bootstrap = vec![a.address(TransportKind::Tcp)];
    let mut b = start(Options { bootstrap, incarnation: 1, ..of_b }).await;
    assert_eq!(a.wait_down(2).await, DownReason::Replaced);
    tokio::join!(a.wait_up(2), b.wait_up(1));
}

async fn a_slow_reader_holds_the_sender_up(kind: TransportKind) {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let mut b =
        start(Options { bootstrap: vec![a.address(kind)], event_capacity: 4, ..options(&key, 2) }).await;
    a.wait_up(2).await;
    b.wait_up(1).await;
    let mut sent = 0_u32;
    let send_all = |node: &Node, sent: &mut u32| {
        let mut frame = vec![0; 64 * 1_024];
        loop {
            frame[..4].copy_from_slice(&sent.to_be_bytes());
            match node.handle.try_send(2, frame.clone().into()) {
                Ok(()) => *sent += 1,
                Err(error) => {
                    assert_eq!(error, SendError::Full { node_id: 2 });
                    return;
                }
            }
        }
    };
    // Until nothing moves any more: all that lies between the two nodes is full.
    send_all(&a, &mut sent);
    let writable = |event| (event == Event::Writable { node_id: 2 }).then_some(());
    while tokio::time::timeout(Duration::from_secs(5), a.wait(writable)).await.is_ok() {
        send_all(&a, &mut sent);
        assert!(sent < 10_000, "nothing bounds what is under way");
    }
    // That took longer than a silent peer is given: a slow one is not a dead one.
    assert_eq!((a.handle.peers().len(), b.handle.peers().len()), (1, 1));
    for i in 0..sent {
        assert_eq!(b.wait_frame(1).await[..4], i.to_be_bytes());
    }
    a.wait(writable).await;
    a.handle.try_send(2, "the end".into()).unwrap();
    assert_eq!(b.wait_frame(1).await, "the end");
}

#[tokio::test]
async fn a_slow_reader_holds_the_sender_up_by_tcp() {
    a_slow_reader_holds_the_sender_up(TransportKind::Tcp).await;
}

#[tokio::test]
async fn a_slow_reader_holds_the_sender_up_by_quic() {
    a_slow_reader_holds_the_sender_up(TransportKind::Quic).await;
}
