//! The depth of the call chain travels with a change, on each way that a change takes to a peer.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::replication::{
    Delta, Event, Interest, NodeId, ObjectDigest, ObjectKey, Output, Part, Policy, Replica, Replication,
    Settings, View,
};

const ALICE: NodeId = NodeId(1);
const BOB: NodeId = NodeId(2);

/// A change of this length, made at this depth.
#[derive(Debug, Clone, PartialEq)]
struct Change {
    bytes: usize,
    depth: u8,
}

impl Delta for Change {
    fn merge(&mut self, other: Self) {
        *self = Self { bytes: self.bytes.max(other.bytes), depth: self.depth.max(other.depth) };
    }

    fn weight_bytes(&self) -> usize {
        self.bytes
    }

    fn encode(&self) -> Bytes {
        vec![7; self.bytes].into()
    }

    fn depth(&self) -> u8 {
        self.depth
    }
}

/// A replica of one object, or of none.
struct One(Option<Change>);

fn object() -> ObjectKey {
    ObjectKey::new("app", "object")
}

impl Replica for One {
    type Delta = Change;

    fn digests(&self, hashes: RangeInclusive<u64>, visit: &mut dyn FnMut(&ObjectKey, ObjectDigest)) {
        if let Some(digest) = self.digest(&object(), View::ALL)
            && hashes.contains(&object().hash64())
        {
            visit(&object(), digest.into());
        }
    }

    fn digest(&self, _: &ObjectKey, _: View) -> Option<u64> {
        self.0.as_ref().map(|change| change.bytes as u64)
    }

    fn field_digests(&self, object: &ObjectKey, view: View) -> Vec<(String, u64)> {
        self.digest(object, view).map(|digest| ("field".to_owned(), digest)).into_iter().collect()
    }

    fn state(&self, _: &ObjectKey, _: Option<&[String]>, _: Part) -> Option<Change> {
        self.0.clone()
    }

    fn copies(&self, _: &ObjectKey) -> u8 {
        2
    }
}

/// Two nodes that use the object, and the network between them.
struct Pair {
    machines: [Replication<Change>; 2],
    replicas: [One; 2],
    now: Duration,
    /// Frames to the second node are refused.
    is_blocked: bool,
    /// Bytes and depth of each change that the second node was given.
    merged: Vec<(usize, u8)>,
    frames: Vec<usize>,
}

impl Pair {
    fn new(of_alice: Option<Change>) -> Self {
        let settings = Settings { message_bytes: 1000, ..Settings::default() };
        let machine = |node| Replication::new(node, settings.clone());
        let mut pair = Self {
            machines: [machine(ALICE), machine(BOB)],
            replicas: [One(of_alice), One(None)],
            now: Duration::from_secs(1),
            is_blocked: false,
            merged: Vec::new(),
            frames: Vec::new(),
        };
        for at in [0, 1] {
            let interest = Interest { app: "app".into(), pattern: "*".into() };
            pair.handle(at, Event::LocalInterests(vec![interest]));
        }
        for (at, node) in [(0, BOB), (1, ALICE)] {
            pair.handle(at, Event::PeerUp { node, protocol_version: 1 });
        }
        pair.pass(Duration::ZERO);
        pair
    }

    fn handle(&mut self, first: usize, event: Event<Change>) {
        let mut events = vec![(first, event)];
        while !events.is_empty() {
            for (at, event) in std::mem::take(&mut events) {
                for output in self.machines[at].handle(event, self.now, &self.replicas[at]) {
                    match output {
                        Output::Send { node, frame } if self.is_blocked && node == BOB => {
                            events.push((at, Event::Refused { node, frame }));
                        }
                        Output::Send { node, frame } => {
                            let (to, from) = if node == ALICE { (0, BOB) } else { (1, ALICE) };
                            if to == 1 {
                                self.frames.push(frame.len());
                            }
                            events.push((to, Event::Received { node: from, frame }));
                        }
                        Output::Merge { payload, depth, .. } => {
                            self.replicas[at] = One(Some(Change { bytes: payload.len(), depth }));
                            self.merged.push((payload.len(), depth));
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Time passes; what is due is done.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        for _ in 0..20 {
            for at in [0, 1] {
                self.handle(at, Event::Tick);
            }
        }
    }

    fn change(&mut self, bytes: usize, depth: u8) {
        let policy = Policy { interval: Duration::from_millis(100), copies: 2 };
        self.handle(0, Event::Changed { object: object(), delta: Change { bytes, depth }, policy });
    }
}

const INTERVAL: Duration = Duration::from_millis(100);

#[test]
fn merged_changes_have_the_greatest_depth() {
    let mut pair = Pair::new(None);
    for (bytes, depth) in [(5, 0), (6, 9), (7, 3)] {
        pair.change(bytes, depth);
    }
    pair.pass(INTERVAL);
    assert_eq!(pair.merged, [(7, 9)]);
}

#[test]
fn a_change_from_outside_takes_no_byte_for_its_depth() {
    let mut pair = Pair::new(None);
    let mut frame_bytes = |depth| {
        pair.frames.clear();
        pair.change(5, depth);
        pair.pass(INTERVAL);
        pair.frames.iter().sum::<usize>()
    };
    // The first delta also defines the short number of the key.
    frame_bytes(0);
    let from_outside = frame_bytes(0);
    assert_eq!(frame_bytes(1), from_outside + 2);
    assert_eq!(frame_bytes(0), from_outside);
}

#[test]
fn changes_that_wait_for_a_slow_peer_keep_the_greatest_depth() {
    let mut pair = Pair::new(None);
    pair.is_blocked = true;
    pair.change(4, 0);
    pair.pass(INTERVAL);
    for (bytes, depth) in [(5, 2), (6, 8), (7, 0)] {
        pair.change(bytes, depth);
        pair.pass(INTERVAL);
    }
    assert_eq!(pair.merged, []);
    pair.is_blocked = false;
    pair.handle(0, Event::Writable { node: BOB });
    pair.pass(Duration::ZERO);
    assert_eq!(pair.merged, [(4, 0), (7, 8)]);
}

#[test]
fn a_change_in_pieces_has_its_depth() {
    let mut pair = Pair::new(None);
    pair.change(10_000, 6);
    pair.pass(INTERVAL);
    assert_eq!(pair.merged, [(10_000, 6)]);
    assert!(pair.frames.len() >= 10, "{:?}", pair.frames);
}

#[test]
fn a_state_of_a_round_has_the_depth_of_the_replica() {
    let pair = Pair::new(Some(Change { bytes: 12, depth: 11 }));
    assert_eq!(pair.merged, [(12, 11)]);
}

#[test]
fn a_depth_over_the_range_is_the_greatest_one() {
    use edgefaas_cluster::wire::{Deltas, Kind, Message, ObjectDelta};
    let mut pair = Pair::new(None);
    let delta = ObjectDelta {
        app: Some("app".into()),
        object: Some("object".into()),
        payload: Bytes::from_static(b"x"),
        depth: 256,
        ..ObjectDelta::default()
    };
    let frame = Message::from(Kind::Deltas(Deltas { deltas: vec![delta] })).encode_frame();
    pair.handle(1, Event::Received { node: ALICE, frame });
    assert_eq!(pair.merged, [(1, u8::MAX)]);
}
