//! A member of the cluster that violates the protocol, and clocks that differ by days.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use edgefaas_api::control as proto;
use edgefaas_api::objects;
use edgefaas_api::objects::update_request::Operation;
use edgefaas_cluster::wire::{
    BUCKETS, Buckets, Chunk, Deltas, Differences, Finished, InterestEntry, Interests, Kind, Message,
    ObjectDelta, ObjectFields, Objects, ROUND_OBJECTS, RoundPlease, Summary, Wants,
};
use edgefaas_cluster::{
    Event, EventReceiver, Handle, Identity, IncomingStreams, JoinRequest, Membership, Options, SendError,
    Token, Transport, join as join_cluster,
};
use edgefaas_node::{Clock, Platform};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::clusters::{cluster, join, member, token, until, update};
use crate::object_types::{PERMIT, RUN};
use crate::support::{TestNode, in_time, text};

/// A member with a valid certificate whose frames the test writes.
pub struct Rogue {
    pub handle: Handle,
    events: EventReceiver,
    /// The streams that members open to it.
    pub streams: Option<IncomingStreams>,
    peer: u64,
    _cancel: tokio_util::sync::DropGuard,
}

impl Rogue {
    /// Joins with a token of this node, and connects to it.
    pub async fn join(node: &mut TestNode, name: &str) -> Self {
        let token: Token = token(node).await.parse().unwrap();
        let identity = Identity::generate();
        let request = JoinRequest { name: name.to_owned(), node_id: None };
        let membership: Membership =
            join_cluster(&identity, &token, &request, Duration::from_secs(10)).await.unwrap();
        let bootstrap = token.addresses().iter().map(|address| address.to_string()).collect();
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let options =
            Options { bootstrap, ..Options::new(identity, Arc::new(Mutex::new(membership)), listen) };
        let cancel = CancellationToken::new();
        let (handle, events, streams) = Transport::start(options, cancel.clone()).await.unwrap();
        let mut rogue =
            Self { handle, events, streams: Some(streams), peer: 0, _cancel: cancel.drop_guard() };
        let issuer = token.issuer();
        rogue.peer = rogue
            .wait(|event| match event {
                Event::PeerUp { node_id, peer_id, .. } if peer_id == issuer => Some(node_id),
                _ => None,
            })
            .await;
        rogue
    }

    async fn wait<R>(&mut self, mut select: impl FnMut(Event) -> Option<R>) -> R {
        in_time(async {
            loop {
                let event = self.events.recv().await.expect("the transport runs");
                if let Some(found) = select(event) {
                    return found;
                }
            }
        })
        .await
    }

    fn say(&self, kind: Kind) {
        self.send(Message { kind: Some(kind) }.encode_frame());
    }

    fn send(&self, frame: Bytes) {
        self.handle.try_send(self.peer, frame).unwrap();
    }

    /// Waits until the node has closed the connection.
    async fn is_disconnected(&mut self) {
        let peer = self.peer;
        self.wait(|event| {
            matches!(event, Event::PeerDown { node_id, .. } if node_id == peer).then_some(())
        })
        .await;
    }
}

const GARBAGE: &[u8] = b"\xff\xff\xff\xff no message of this protocol";
/// Metric of connections that were refused because the member had been disconnected with a penalty.
const BACKING_OFF: &str = r#"cluster_refused_total{reason="backing_off"}"#;

/// The value of a metric.
pub async fn figure(node: &TestNode, name: &str) -> f64 {
    let metrics = node.metrics().await;
    let line = text(&metrics)
        .lines()
        .find_map(|line| line.strip_prefix("edgefaas_")?.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {}", text(&metrics))).parse().expect("a number")
}

async fn until_figure(node: &TestNode, name: &str, min: f64) {
    in_time(async {
        while figure(node, name).await < min {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn delta(payload: Vec<u8>) -> Kind {
    let delta = ObjectDelta {
        id: 0,
        app: Some("run".into()),
        object: Some("o".into()),
        copies: 0,
        payload: payload.into(),
        depth: 0,
    };
    Kind::Deltas(Deltas { deltas: vec![delta] })
}

#[tokio::test]
async fn a_member_that_sends_garbage_is_disconnected_and_refused_for_a_time() {
    let mut nodes = cluster(2).await;
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    update(&nodes[0], "o", "n", Operation::CounterAdd(1)).await.unwrap();
    let piece = |offset_bytes| Chunk {
        app: "run".into(),
        object: "o".into(),
        copies: 0,
        offset_bytes,
        last: false,
        payload: vec![7; 100_000].into(),
        depth: 0,
    };
    let bad: [(&str, Vec<Message>); 4] = [
        ("a delta that is none", vec![Message { kind: Some(delta(vec![0xff; 40])) }]),
        (
            "a delta of an unknown type",
            vec![Message { kind: Some(delta(b"\x0a\x01n\x12\x02\x01\x63".to_vec())) }],
        ),
        ("a message over the limit", vec![Message { kind: Some(delta(vec![1; 400_000])) }]),
        (
            "a payload without an end",
            (0..200).map(|at| Message { kind: Some(Kind::Chunk(piece(at * 100_000))) }).collect(),
        ),
    ];
    for (number, (what, messages)) in bad.into_iter().enumerate() {
        let before = figure(&nodes[0], "cluster_bad_messages_total").await;
        let mut rogue = Rogue::join(&mut nodes[0], &format!("rogue-{number}")).await;
        for message in messages {
            let frame = message.encode_frame();
            while let Err(SendError::Full { .. }) = rogue.handle.try_send(rogue.peer, frame.clone()) {
                tokio::task::yield_now().await;
            }
        }
        rogue.is_disconnected().await;
        until_figure(&nodes[0], "cluster_bad_messages_total", before + 1.0).await;
        println!("{what}: refused and counted");
        // It connects and does so again, until a connection is refused.
        let refused = figure(&nodes[0], BACKING_OFF).await;
        in_time(async {
            while figure(&nodes[0], BACKING_OFF).await <= refused {
                if let Ok(Event::PeerUp { node_id, .. }) = rogue.events.try_recv()
                    && node_id == rogue.peer
                {
                    let _ = rogue.handle.try_send(rogue.peer, Bytes::from_static(GARBAGE));
                }
            }
        })
        .await;
    }
    // A chunk without its beginning may remain from a lost transfer: it is ignored and not a violation.
    let mut rogue = Rogue::join(&mut nodes[0], "rogue-bytes").await;
    rogue.say(Kind::Chunk(piece(77)));
    rogue.send(Bytes::from_static(GARBAGE));
    rogue.is_disconnected().await;
    // The honest members are not affected.
    update(&nodes[1], "o", "n", Operation::CounterAdd(1)).await.unwrap();
    for node in &nodes {
        until(node, "o", "n", &json!(2)).await;
    }
}

/// One wave of an attack: messages of every kind, as large and as wrong as the limits allow.
fn wave(number: u32) -> Vec<Kind> {
    let noise = |index: usize| (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(number);
    let hashes = || {
        let mut hashes: Vec<u64> = (0..ROUND_OBJECTS).map(noise).collect();
        hashes.sort_unstable();
        hashes
    };
    let interests = |count: usize, bytes: usize| {
        let entry = |index| InterestEntry { app: "run".into(), pattern: format!("{index:0>bytes$}*") };
        Kind::Interests(Interests { version: number, interests: (0..count).map(entry).collect() })
    };
    let fields = |count: usize| -> Vec<ObjectFields> {
        let names: Vec<String> = (0..20).map(|name| format!("n{name}")).collect();
        let object = |index| ObjectFields {
            app: "run".into(),
            object: format!("{index}"),
            digests: (0..names.len()).map(noise).collect(),
            names: names.clone(),
        };
        (0..count).map(object).collect()
    };
    let unknown_keys = (1..=1000).map(|id| ObjectDelta { id, ..ObjectDelta::default() }).collect();
    let mut kinds = vec![
        interests(4_000, 8),
        interests(300, 1_000),
        Kind::Deltas(Deltas { deltas: unknown_keys }),
        Kind::Objects(Objects {
            round: number,
            from: vec![0],
            to: vec![u64::MAX],
            digests: (0..ROUND_OBJECTS).map(noise).collect(),
            hashes: hashes(),
            partial: true,
        }),
        Kind::Differences(Differences {
            round: number,
            wanted: hashes(),
            objects: fields(100),
            last: false,
        }),
        Kind::Wants(Wants { round: number, objects: fields(100), last: false }),
    ];
    for round in 0..50 {
        let round = number.wrapping_add(round);
        kinds.push(Kind::Summary(Summary {
            round,
            root: noise(7),
            interests_version: round,
            clock_ms: u64::MAX,
            agreed_ms: u64::MAX,
            without_ms: u64::MAX,
            has_lost: false,
        }));
        let digests = (0..BUCKETS).map(noise).collect();
        kinds.push(Kind::Buckets(Buckets {
            round,
            digests,
            objects: vec![u32::MAX; BUCKETS],
            follows_clock: true,
            clock_ms: u64::MAX,
            agreed_ms: u64::MAX,
            without_ms: u64::MAX,
            has_lost: false,
        }));
        kinds.push(Kind::Finished(Finished { round }));
        kinds.push(Kind::RoundPlease(RoundPlease {}));
    }
    // Every eighth wave also contains a payload that cannot be decoded.
    if number.is_multiple_of(8) {
        kinds.push(delta(GARBAGE.to_vec()));
    }
    kinds
}

#[tokio::test]
async fn a_hostile_member_is_refused_and_the_honest_members_converge() {
    let mut nodes = cluster(3).await;
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    let mut rogue = Rogue::join(&mut nodes[0], "rogue").await;
    let attack = async {
        for number in 1.. {
            // It reconnects to every member as soon as it is accepted.
            while let Ok(_event) = rogue.events.try_recv() {}
            for kind in wave(number) {
                let frame = Message { kind: Some(kind) }.encode_frame();
                for peer in rogue.handle.peers() {
                    let _ = rogue.handle.try_send(peer.node_id, frame.clone());
                }
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let honest = async {
        let each = nodes.iter().map(|node| async move {
            for _ in 0..100 {
                update(node, "sum", "n", Operation::CounterAdd(1)).await.unwrap();
            }
        });
        futures_util::future::join_all(each).await;
        for node in &nodes {
            until(node, "sum", "n", &json!(300)).await;
        }
        // Waits until a member has disconnected it for an invalid message, and has refused an early reconnection.
        in_time(async {
            let mut figures = [0.0, 0.0];
            while figures.contains(&0.0) {
                figures = [0.0, 0.0];
                for node in &nodes {
                    figures[0] += figure(node, "cluster_bad_messages_total").await;
                    figures[1] += figure(node, BACKING_OFF).await;
                }
            }
        })
        .await;
        // The honest members continue.
        update(&nodes[2], "sum", "n", Operation::CounterAdd(1)).await.unwrap();
        for node in &nodes {
            until(node, "sum", "n", &json!(301)).await;
        }
    };
    tokio::select! {
        () = attack => unreachable!("the attack is endless"),
        () = honest => {}
    }
    // A connection of members that a busy machine has cut comes back.
    for node in &mut nodes {
        in_time(async {
            let mut honest = 0;
            while honest < 2 {
                let seen =
                    node.control.get_cluster(proto::GetClusterRequest {}).await.unwrap().into_inner();
                let members = seen.members.iter().filter(|member| member.name != "rogue");
                honest = members.filter(|member| member.peer.is_some()).count();
            }
        })
        .await;
    }
}

#[tokio::test]
async fn repeated_frames_of_a_member_change_nothing() {
    let mut nodes = cluster(2).await;
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    let mut rogue = Rogue::join(&mut nodes[0], "rogue").await;
    let interests = vec![InterestEntry { app: "run".into(), pattern: "*".into() }];
    rogue.say(Kind::Interests(Interests { version: 1, interests }));
    let mut recorded = Vec::new();
    let (add, element) = (Operation::CounterAdd(1), Operation::SetAdd(b"1".to_vec()));
    for (field, operation) in [("n", add), ("s", element.clone())] {
        update(&nodes[0], "o", field, operation).await.unwrap();
        let frame = rogue
            .wait(|event| match event {
                Event::Frame { bytes, .. } => {
                    let message = Message::decode_frame(bytes.clone(), bytes.len()).unwrap();
                    matches!(message.kind, Some(Kind::Deltas(_))).then_some(bytes)
                }
                _ => None,
            })
            .await;
        recorded.push(frame);
    }
    update(&nodes[0], "o", "s", Operation::SetRemove(b"1".to_vec())).await.unwrap();
    let before = figure(&nodes[0], "cluster_messages_received_total").await;
    for _ in 0..100 {
        for frame in &recorded {
            while rogue.handle.try_send(rogue.peer, frame.clone()).is_err() {
                tokio::task::yield_now().await;
            }
        }
    }
    until_figure(&nodes[0], "cluster_messages_received_total", before + 200.0).await;
    update(&nodes[1], "o", "last", Operation::CounterAdd(1)).await.unwrap();
    for node in &nodes {
        until(node, "o", "last", &json!(1)).await;
        until(node, "o", "n", &json!(1)).await;
        // Removed elements do not come back.
        until(node, "o", "s", &json!([])).await;
    }
}

/// A platform whose clock is `seconds` ahead of the system's clock.
pub fn ahead_by(seconds: u64) -> Platform {
    let now = move || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        since.as_millis() as u64 + seconds * 1000
    };
    Platform { clock: Clock::new(now), ..Platform::system() }
}

#[tokio::test]
async fn clocks_that_differ_by_days_are_reported_and_the_last_writer_still_wins() {
    const DAYS_S: u64 = 3 * 24 * 3600;
    let mut nodes = cluster(1).await;
    let dir = tempfile::tempdir().unwrap();
    let mut ahead = TestNode::start_on(ahead_by(DAYS_S), dir, member).await.unwrap();
    let token = token(&mut nodes[0]).await;
    join(&mut ahead, &token, "ahead").await.unwrap();
    nodes.push(ahead);
    for node in &mut nodes {
        node.deploy_one("run", PERMIT, RUN).await;
    }
    let set = |text: &str| Operation::RegisterSet(json!(text).to_string().into());
    update(&nodes[1], "o", "r", set("by the one that is ahead")).await.unwrap();
    for node in &nodes {
        until(node, "o", "r", &json!("by the one that is ahead")).await;
    }
    // This node has seen that write, so its own write is later, whatever its clock shows.
    update(&nodes[0], "o", "r", set("by the one behind")).await.unwrap();
    for node in &nodes {
        until(node, "o", "r", &json!("by the one behind")).await;
    }
    // Concurrent writes: all nodes keep the same one.
    let both = [("zero", &nodes[0]), ("one", &nodes[1])].map(|(text, node)| async move {
        for round in 0..50 {
            let value = json!(format!("{text} {round}")).to_string();
            update(node, "o", "race", Operation::RegisterSet(value.into())).await.unwrap();
        }
        update(node, "o", text, Operation::CounterAdd(1)).await.unwrap();
    });
    futures_util::future::join_all(both).await;
    for node in &nodes {
        until(node, "o", "zero", &json!(1)).await;
        until(node, "o", "one", &json!(1)).await;
    }
    let mut values = Vec::new();
    for node in &nodes {
        let request = objects::GetRequest {
            app: "run".into(),
            object: "o".into(),
            field: "race".into(),
            path: Vec::new(),
        };
        let fields = node.objects().await.get(request).await.unwrap().into_inner().fields;
        values.push(serde_json::from_str::<Value>(&fields[0].json).unwrap());
    }
    assert_eq!(values[0], values[1]);
    for (node, sign) in nodes.iter_mut().zip([1.0, -1.0]) {
        // A connection of members that a busy machine has cut comes back.
        let peer = in_time(async {
            loop {
                let seen =
                    node.control.get_cluster(proto::GetClusterRequest {}).await.unwrap().into_inner();
                if let Some(peer) = &seen.members[0].peer {
                    return peer.clone();
                }
            }
        })
        .await;
        let skew_s = peer.skew_ms as f64 / 1000.0;
        assert!((skew_s * sign - DAYS_S as f64).abs() < 60.0, "{skew_s}");
        assert!((figure(node, "cluster_clock_skew_seconds").await - DAYS_S as f64).abs() < 60.0);
    }
}
