//! Peers that are not served: each is refused and counted, and the good ones are served all the while.

use futures_util::{AsyncWriteExt, StreamExt};
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, PeerId, Stream};

use super::behaviour::{Channels, FirstStream};
use super::frame::{self, Kind};
use super::*;
use crate::handshake::{Hello, Verdict};
use crate::network::side_streams::SideStreams;
use crate::revocation::encode_revocation;
use crate::{Certificate, NewCertificate};

/// A peer that speaks libp2p, and then sends the bytes that a test chooses.
pub(super) struct Stranger {
    stream: Stream,
    pub(super) side_streams: SideStreams,
    task: tokio::task::JoinHandle<()>,
}

impl Stranger {
    pub(super) async fn connect(identity: &Identity, to: &str) -> Self {
        let gate: behaviour::Gate = Arc::new(|_, _, _| Ok(()));
        Self::connect_with(Channels::member(Arc::default(), gate), identity, to).await
    }

    async fn connect_with(channels: Channels, identity: &Identity, to: &str) -> Self {
        let mut swarm = swarm(identity, Arc::default(), Arc::default(), || Ok(channels)).unwrap();
        swarm.dial(to.parse::<Multiaddr>().unwrap()).unwrap();
        let FirstStream { stream, side_streams, .. } = loop {
            if let SwarmEvent::Behaviour(opened) = swarm.select_next_some().await {
                break opened.stream.unwrap();
            }
        };
        let task = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        Self { stream, side_streams, task }
    }

    pub(super) async fn say(&mut self, kind: Kind, body: &[u8]) {
        frame::write(&mut self.stream, kind, body).await.unwrap();
    }

    /// The node's answer before it closes the stream: a refusal, or nothing.
    async fn answer(mut self) -> Option<Refusal> {
        let read = async {
            let mut answer = None;
            while let Ok((kind, body)) = frame::read(&mut self.stream, 1 << 20, |_| ()).await {
                if kind == Kind::Verdict
                    && let Ok(Verdict::Refused(refused)) = Verdict::decode(&body)
                {
                    answer = Some(refused.reason);
                }
            }
            answer
        };
        tokio::time::timeout(LIMIT, read).await.expect("the node did not close the connection")
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Two good nodes, and the address at which the first is to be troubled.
pub(super) struct Cluster {
    pub(super) key: ClusterKey,
    pub(super) a: Node,
    pub(super) b: Node,
    pub(super) at: String,
}

impl Cluster {
    pub(super) async fn start(kind: TransportKind) -> Self {
        Self::start_with(kind, |options| options).await
    }

    /// For tests that wait until a peer has been silent for too long.
    async fn start_impatient(kind: TransportKind) -> Self {
        let impatient = |options: Options| Options { handshake_timeout: Duration::from_secs(2), ..options };
        Self::start_with(kind, impatient).await
    }

    async fn start_with(kind: TransportKind, with: impl Fn(Options) -> Options) -> Self {
        let key = ClusterKey::generate();
        let mut a = start(with(options(&key, 1))).await;
        let at = a.address(kind);
        let mut b = start(Options { bootstrap: vec![at.clone()], ..with(options(&key, 2)) }).await;
        a.wait_up(2).await;
        b.wait_up(1).await;
        Self { key, a, b, at }
    }

    fn certificate(&self, peer_id: PeerId, id: u64) -> Certificate {
        let new = NewCertificate { peer_id, node_id: id, name: "x".into(), serial: id, issued_unix_ms: 2 };
        self.key.issue(new).unwrap()
    }

    /// The good nodes have noticed nothing.
    async fn still_serves(&mut self, reason: Refusal, times: u64) {
        assert_eq!(self.a.handle.counters().refused(reason), times, "{reason:?}");
        self.a.handle.try_send(2, "a".into()).unwrap();
        self.b.handle.try_send(1, "b".into()).unwrap();
        assert_eq!(self.b.wait_frame(1).await, "a");
        let first = self.a.wait(|event| (event != Event::MembershipChanged).then_some(event)).await;
        assert_eq!(first, Event::Frame { node_id: 2, bytes: "b".into() });
        assert_eq!(self.a.handle.peers().len(), 1);
    }
}

fn hello(certificate: &[u8]) -> Hello {
    Hello {
        versions: 1..=1,
        software: String::new(),
        certificate: certificate.to_vec(),
        revocations_digest: Some(0),
        members_digest: None,
        unix_ms: 0,
        incarnation: 0,
        instance: None,
        addresses: vec![],
    }
}

#[tokio::test]
async fn who_has_no_good_certificate_is_told_so() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let list = cluster.key.revoke_serials(1, [33]);
    cluster.a.membership.lock().learn_revocation_list(list).unwrap();
    let identity = Identity::generate();
    let peer = identity.peer_id();
    let foreign = ClusterKey::generate();
    let foreign = Membership::found(
        &foreign,
        NewCertificate { peer_id: peer, node_id: 3, name: "x".into(), serial: 3, issued_unix_ms: 2 },
    );
    let mut forged = cluster.certificate(peer, 3).encode();
    *forged.last_mut().unwrap() ^= 1;
    let cases = [
        (Refusal::ForeignCluster, hello(&foreign.unwrap().own().encode())),
        (Refusal::Forged, hello(&forged)),
        (Refusal::Revoked, hello(&cluster.certificate(peer, 33).encode())),
        (Refusal::WrongPeer, hello(&cluster.certificate(PeerId::random(), 3).encode())),
        (Refusal::NodeIdTaken, hello(&cluster.certificate(peer, 1).encode())),
        (Refusal::Malformed, hello(b"no certificate")),
        (
            Refusal::NoCommonVersion,
            Hello { versions: 0..=0, ..hello(&cluster.certificate(peer, 3).encode()) },
        ),
    ];
    for (reason, said) in cases {
        // Without this the second would have to wait for its turn.
        cluster.a.handle.admission.forgive(&peer);
        let mut stranger = Stranger::connect(&identity, &cluster.at).await;
        stranger.say(Kind::Hello, &said.encode()).await;
        assert_eq!(stranger.answer().await, Some(reason));
        cluster.still_serves(reason, 1).await;
    }
}

async fn who_talks_nonsense_is_refused(kind: TransportKind) {
    let mut cluster = Cluster::start_impatient(kind).await;
    let nonsense: [(Refusal, &[u8]); 6] = [
        (Refusal::TooLarge, b"GET / HTTP/1.1\r\n\r\n"),
        (Refusal::TooLarge, &[0xff; 64]),
        (Refusal::Malformed, &[0; 64]),
        (Refusal::Malformed, &[0, 0, 0, 4, 3, 0xff, 0xff, 0xff]),
        (Refusal::Malformed, &[0, 0, 0, 2, 0, 1]),
        (Refusal::Silent, &[0, 0, 0, 9, 3, 1]),
    ];
    for (reason, bytes) in nonsense {
        let before = cluster.a.handle.counters().refused(reason);
        let mut stranger = Stranger::connect(&Identity::generate(), &cluster.at).await;
        stranger.stream.write_all(bytes).await.unwrap();
        stranger.stream.flush().await.unwrap();
        assert_eq!(stranger.answer().await, Some(reason), "{bytes:?}");
        cluster.still_serves(reason, before + 1).await;
    }
}

#[tokio::test]
async fn who_talks_nonsense_is_refused_by_tcp() {
    who_talks_nonsense_is_refused(TransportKind::Tcp).await;
}

#[tokio::test]
async fn who_talks_nonsense_is_refused_by_quic() {
    who_talks_nonsense_is_refused(TransportKind::Quic).await;
}

/// It connects, and opens no stream.
fn silent_swarm(identity: &Identity) -> libp2p::Swarm<libp2p::swarm::dummy::Behaviour> {
    swarm(identity, Arc::default(), Arc::default(), || Ok(libp2p::swarm::dummy::Behaviour)).unwrap()
}

/// More connections than there are places, on which nothing is sent.
async fn silent_connections_close_nothing(from: &str, kind: TransportKind) {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let port = address::socket(&a.address(TransportKind::Tcp).parse().unwrap()).unwrap();
    let mut silent = Vec::new();
    for _ in 0..200 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        silent.push(socket.connect(port).await.unwrap());
    }
    // Of one address the most recent 16 stay.
    a.until(|node| node.handle.counters().refused(Refusal::Crowded) >= 184).await;
    let of_b = Options { bootstrap: vec![a.address(kind)], ..options(&key, 2) };
    let mut b = start(of_b).await;
    tokio::join!(a.wait_up(2), b.wait_up(1));
    assert_eq!(b.handle.counters().dials_failed, 0, "the first dial got through");
    // Those that are still open are closed by the node.
    for mut stream in silent {
        let mut rest = Vec::new();
        let closed = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest);
        let _ = tokio::time::timeout(LIMIT, closed).await.expect("a silent connection stays open");
    }
}

#[tokio::test]
async fn silent_connections_from_elsewhere_close_nothing() {
    silent_connections_close_nothing("127.0.0.2", TransportKind::Tcp).await;
}

#[tokio::test]
async fn silent_connections_from_the_same_address_close_nothing() {
    tokio::join!(
        silent_connections_close_nothing("127.0.0.1", TransportKind::Tcp),
        silent_connections_close_nothing("127.0.0.1", TransportKind::Quic),
    );
}

/// They have any number of peer ids, and say nothing of use.
#[tokio::test]
async fn unknown_peers_have_their_share_and_members_come_in_all_the_same() {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let at = a.address(TransportKind::Tcp);
    let mut b = start(Options { bootstrap: vec![at.clone()], ..options(&key, 2) }).await;
    tokio::join!(a.wait_up(2), b.wait_up(1));
    let mut strangers: Vec<_> = (0..24)
        .map(|_| {
            let mut swarm = silent_swarm(&Identity::generate());
            swarm.dial(at.parse::<Multiaddr>().unwrap()).unwrap();
            swarm
        })
        .collect();
    let turning = futures_util::future::join_all(strangers.iter_mut().map(|swarm| async move {
        loop {
            swarm.select_next_some().await;
        }
    }));
    let test = async {
        a.until(|node| node.handle.counters().refused(Refusal::Crowded) >= 8).await;
        b.handle.disconnect(1);
        tokio::join!(a.wait_up(2), b.wait_up(1));
    };
    tokio::select! {
        _ = turning => unreachable!("they go on"),
        () = test => {}
    }
}

#[tokio::test]
async fn who_says_nothing_is_cut_off() {
    let mut cluster = Cluster::start_impatient(TransportKind::Tcp).await;
    // A connection without a stream, and bytes that are not even libp2p.
    let identity = Identity::generate();
    let mut swarm = silent_swarm(&identity);
    let cut = async {
        swarm.dial(cluster.at.parse::<Multiaddr>().unwrap()).unwrap();
        while !matches!(swarm.select_next_some().await, SwarmEvent::ConnectionClosed { .. }) {}
    };
    let socket = address::socket(&cluster.at.parse().unwrap()).unwrap();
    let mut plain = tokio::net::TcpStream::connect(socket).await.unwrap();
    let plain_is_cut = async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        plain.write_all(&[0x13; 300]).await.unwrap();
        let mut rest = Vec::new();
        let _ = plain.read_to_end(&mut rest).await;
    };
    tokio::time::timeout(LIMIT, async { tokio::join!(cut, plain_is_cut) }).await.unwrap();
    cluster.still_serves(Refusal::Silent, 1).await;
    assert_eq!(cluster.a.handle.counters().strangers, 1);
}

/// A peer that was admitted and misbehaves later.
pub(super) async fn let_in(cluster: &mut Cluster) -> Stranger {
    let identity = Identity::generate();
    let stranger = Stranger::connect(&identity, &cluster.at).await;
    greet(cluster, stranger, &identity).await
}

/// A member of a version without streams beside the channel.
pub(super) async fn let_in_old_version(cluster: &mut Cluster) -> Stranger {
    let identity = Identity::generate();
    let gate: behaviour::Gate = Arc::new(|_, _, _| Ok(()));
    let channels = Channels::member(Arc::default(), gate).without_side_streams();
    let stranger = Stranger::connect_with(channels, &identity, &cluster.at).await;
    greet(cluster, stranger, &identity).await
}

/// Performs the handshake of node 3.
pub(super) async fn greet(cluster: &mut Cluster, mut stranger: Stranger, identity: &Identity) -> Stranger {
    let certificate = cluster.certificate(identity.peer_id(), 3);
    stranger.say(Kind::Hello, &hello(&certificate.encode()).encode()).await;
    stranger.say(Kind::Verdict, &Verdict::Accepted.encode()).await;
    cluster.a.wait_up(3).await;
    stranger
}

#[tokio::test]
async fn a_member_that_breaks_the_rules_is_disconnected() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let cases: [(Refusal, Vec<u8>); 6] = [
        (Refusal::TooLarge, vec![0xff; 64]),
        (Refusal::TooLarge, [&(1_u32 << 20 | 2).to_be_bytes()[..], &[0; 9]].concat()),
        (Refusal::Malformed, vec![0, 0, 0, 0]),
        (Refusal::Malformed, vec![0, 0, 0, 2, 1, 9]),
        (Refusal::Malformed, vec![0, 0, 0, 3, 6, 9, 9]),
        (Refusal::Malformed, vec![0, 0, 0, 3, 5, 9, 9]),
    ];
    for (reason, bytes) in cases {
        let before = cluster.a.handle.counters().refused(reason);
        let mut stranger = let_in(&mut cluster).await;
        stranger.stream.write_all(&bytes).await.unwrap();
        stranger.stream.flush().await.unwrap();
        assert_eq!(cluster.a.wait_down(3).await, DownReason::Refused(reason), "{bytes:?}");
        stranger.answer().await;
        cluster.still_serves(reason, before + 1).await;
    }
}

#[tokio::test]
async fn kinds_of_newer_versions_are_passed_over() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let mut stranger = let_in(&mut cluster).await;
    stranger.stream.write_all(&[0, 0, 0, 3, 200, 1, 2]).await.unwrap();
    stranger.say(Kind::Data, b"hello").await;
    assert_eq!(cluster.a.wait_frame(3).await, "hello");
}

/// A whole node of another cluster, or version, keeps trying: both sides count why, and it does not spin.
async fn whole_node_is_refused(
    kind: TransportKind,
    reason: Refusal,
    options: impl FnOnce(&Cluster) -> Options,
) {
    let mut cluster = Cluster::start(kind).await;
    let options = options(&cluster);
    let mut other = start(Options { bootstrap: vec![cluster.at.clone()], ..options }).await;
    let started = Instant::now();
    other.until(|node| node.handle.counters().refused(reason) >= 3).await;
    // Pauses of at least 250 ms and 500 ms lie between three attempts.
    assert!(started.elapsed() >= Duration::from_millis(750), "{:?}", started.elapsed());
    assert!(other.handle.peers().is_empty());
    let refused = cluster.a.handle.counters().refused(reason);
    assert!(refused >= 1, "{:?}", cluster.a.handle.counters());
    cluster.still_serves(reason, cluster.a.handle.counters().refused(reason)).await;
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused_by_tcp() {
    whole_node_is_refused(TransportKind::Tcp, Refusal::ForeignCluster, |_| {
        options(&ClusterKey::generate(), 3)
    })
    .await;
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused_by_quic() {
    whole_node_is_refused(TransportKind::Quic, Refusal::ForeignCluster, |_| {
        options(&ClusterKey::generate(), 3)
    })
    .await;
}

#[tokio::test]
async fn a_node_of_another_version_is_refused() {
    whole_node_is_refused(TransportKind::Tcp, Refusal::NoCommonVersion, |cluster| Options {
        versions: 2..=3,
        ..options(&cluster.key, 3)
    })
    .await;
}

#[tokio::test]
async fn a_revoked_node_is_put_out_everywhere() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let of_c = Options { bootstrap: vec![cluster.at.clone()], ..options(&cluster.key, 3) };
    let mut c = start(of_c).await;
    cluster.a.wait_up(3).await;
    cluster.b.wait_up(3).await;
    let revocation = cluster.key.revoke(c.identity.peer_id());
    assert_eq!(cluster.a.handle.revoke(revocation.clone()), Ok(true));
    assert_eq!(cluster.a.handle.revoke(revocation), Ok(false));
    assert_eq!(cluster.a.wait_down(3).await, DownReason::Refused(Refusal::Revoked));
    assert_eq!(cluster.b.wait_down(3).await, DownReason::Refused(Refusal::Revoked));
    c.wait_down(1).await;
    c.until(|node| node.membership.lock().is_own_revoked()).await;
    assert!(cluster.b.membership.lock().revocations().revokes_peer(&c.identity.peer_id()));
    // It comes back and receives the reason of the refusal.
    c.until(|node| node.handle.counters().refused_by_peers(Refusal::Revoked) >= 1).await;
    assert_eq!(cluster.a.membership.lock().members().count(), 1);
    cluster.a.handle.try_send(2, "a".into()).unwrap();
    assert_eq!(cluster.b.wait_frame(1).await, "a");
}

/// It may be the only one that has heard of it, and does not come again.
#[tokio::test]
async fn a_revocation_that_the_revoked_member_brings_holds_for_all() {
    let mut cluster = Cluster::start(TransportKind::Tcp).await;
    let identity = Identity::generate();
    let peer = identity.peer_id();
    let certificate = cluster.certificate(peer, 3);
    let mut stranger = Stranger::connect(&identity, &cluster.at).await;
    stranger.say(Kind::RevocationSet, &encode_revocation(&cluster.key.revoke(peer))).await;
    stranger.say(Kind::Hello, &hello(&certificate.encode()).encode()).await;
    assert_eq!(stranger.answer().await, Some(Refusal::Revoked));
    for node in [&mut cluster.a, &mut cluster.b] {
        node.until(|node| node.membership.lock().revocations().revokes_peer(&peer)).await;
    }
    cluster.still_serves(Refusal::Revoked, 1).await;
}

#[tokio::test]
async fn who_was_away_hears_of_a_revocation_when_it_comes_back() {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let of_b = Options { bootstrap: vec![a.address(TransportKind::Tcp)], ..options(&key, 2) };
    let b = start(of_b.clone()).await;
    a.wait_up(2).await;
    b.stop().await;
    a.wait_down(2).await;
    let mut options_c = options(&key, 3);
    a.handle.revoke(key.revoke(options_c.identity.peer_id())).unwrap();
    let mut b = start(Options { incarnation: 1, ..of_b }).await;
    b.wait_up(1).await;
    b.until(|node| node.membership.lock().revocations().len() == 1).await;
    options_c.bootstrap = vec![b.address(TransportKind::Tcp)];
    let mut c = start(options_c).await;
    c.until(|node| node.handle.counters().refused_by_peers(Refusal::Revoked) >= 1).await;
    c.until(|node| node.membership.lock().is_own_revoked()).await;
    assert_eq!(b.handle.peers().len(), 1);
}

#[tokio::test]
async fn a_revoked_node_joins_again_with_a_new_key_only() {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let of_b = Options { bootstrap: vec![a.address(TransportKind::Tcp)], ..options(&key, 2) };
    let mut b = start(of_b.clone()).await;
    a.wait_up(2).await;
    a.handle.revoke(key.revoke(b.identity.peer_id())).unwrap();
    b.until(|node| node.handle.counters().refused_by_peers(Refusal::Revoked) >= 1).await;
    b.stop().await;
    let token = a.handle.open_join(&key, Duration::from_secs(60)).unwrap();
    let request = crate::JoinRequest { name: "node-2".into(), node_id: Some(2) };
    let refused = crate::join(&of_b.identity, &token, &request, LIMIT).await;
    assert!(matches!(refused, Err(crate::JoinError::Revoked)), "{refused:?}");
    // That did not use the token up.
    let identity = Identity::generate();
    let joined = crate::join(&identity, &token, &request, LIMIT).await.unwrap();
    let mut b = start(Options { identity, membership: Arc::new(Mutex::new(joined)), ..of_b }).await;
    tokio::join!(a.wait_up(2), b.wait_up(1));
}

/// It has joined twice with one key, is revoked, and comes back with the member list of the first time.
#[tokio::test]
async fn a_revoked_member_does_not_come_back_with_an_earlier_certificate() {
    let key = ClusterKey::generate();
    let mut a = start(options(&key, 1)).await;
    let identity = Identity::generate();
    let request = crate::JoinRequest { name: "door".into(), node_id: Some(2) };
    let mut lists = Vec::new();
    for _ in 0..2 {
        let token = a.handle.open_join(&key, Duration::from_secs(60)).unwrap();
        lists.push(crate::join(&identity, &token, &request, LIMIT).await.unwrap());
    }
    let [first, second] = lists.try_into().unwrap();
    assert!(second.own().replaces(first.own()));
    let with = |membership: &Membership| {
        let membership = Arc::new(Mutex::new(membership.clone()));
        let options = Options::new(identity.clone(), membership, "127.0.0.1:0".parse().unwrap());
        Options { bootstrap: vec![a.address(TransportKind::Tcp)], ..options }
    };
    let (with_first, with_second) = (with(&first), with(&second));
    // While it is a member, only the latest certificate counts.
    let mut b = start(with_first.clone()).await;
    b.until(|node| node.handle.counters().refused_by_peers(Refusal::Superseded) >= 1).await;
    b.stop().await;
    let mut b = start(Options { incarnation: 1, ..with_second }).await;
    tokio::join!(a.wait_up(2), b.wait_up(1));
    a.handle.revoke(key.revoke(identity.peer_id())).unwrap();
    a.wait_down(2).await;
    b.until(|node| node.membership.lock().is_own_revoked()).await;
    b.stop().await;
    let mut b = start(Options { incarnation: 2, ..with_first }).await;
    b.until(|node| node.membership.lock().is_own_revoked()).await;
    assert!(a.handle.counters().refused(Refusal::Revoked) >= 1);
    assert_eq!(a.handle.peers().len(), 0);
}

/// Two holders of the key revoke while they are cut off from each other.
#[tokio::test]
async fn revocations_of_two_holders_of_the_key_both_hold() {
    let key = ClusterKey::generate();
    let (of_a, of_b) = (options(&key, 1), options(&key, 2));
    let out = [Identity::generate(), Identity::generate()].map(|identity| identity.peer_id());
    let mut a = start(of_a).await;
    a.handle.revoke(key.revoke(out[0])).unwrap();
    of_b.membership.lock().revoke(key.revoke(out[1])).unwrap();
    let mut b = start(Options { bootstrap: vec![a.address(TransportKind::Quic)], ..of_b }).await;
    for node in [&mut a, &mut b] {
        node.until(|node| {
            let membership = node.membership.lock();
            out.iter().all(|peer| membership.revocations().revokes_peer(peer))
        })
        .await;
    }
    // A third that knows the list of an old version.
    let of_c = Options { bootstrap: vec![b.address(TransportKind::Quic)], ..options(&key, 3) };
    of_c.membership.lock().learn_revocation_list(key.revoke_serials(7, [70])).unwrap();
    let mut c = start(of_c).await;
    c.until(|node| node.membership.lock().revocations().len() == 2).await;
    for node in [&mut a, &mut b] {
        node.until(|node| node.membership.lock().revocations().lists().any(|list| list.revokes(70))).await;
    }
    let digests = [&a, &b, &c].map(|node| node.membership.lock().revocations().digest());
    assert!(digests.iter().all(|digest| *digest == digests[0]));
}

#[tokio::test]
async fn a_member_that_is_sent_away_comes_back_later() {
    let mut cluster = Cluster::start(TransportKind::Quic).await;
    let started = Instant::now();
    cluster.a.handle.disconnect_with_penalty(2);
    assert_eq!(cluster.a.wait_down(2).await, DownReason::Disconnected);
    assert_eq!(cluster.b.wait_down(1).await, DownReason::Left);
    cluster.a.wait_up(2).await;
    assert!(started.elapsed() >= Duration::from_millis(250));
    cluster.b.wait_up(1).await;
}
