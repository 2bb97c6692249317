//! Transfers of artefacts in virtual time: the same [`Transfers`] as on a node, with links of limited rate.
//!
//! Each node has one link up and one down, and each pair of zones one trunk in each direction. A message occupies each of them
//! one after another, in order of arrival.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;

use crate::artefacts::wire::{Chunk, Kind, Message};
use crate::artefacts::{
    BlobDigest, Candidate, ChunkSet, Event, Output, Resumed, Role, Settings, Transfers, Tree,
};
use crate::replication::NodeId;

/// Bytes that the framing and the encryption add to each message.
const OVERHEAD_BYTES: u64 = 60;

/// Properties of the simulated links.
#[derive(Debug, Clone)]
pub struct TransferNetwork {
    /// Rate of each node's link up, of its link down, and of each trunk, in bytes per second.
    pub bytes_per_second: u64,
    /// Latency in a zone.
    pub near: Duration,
    /// Latency between zones.
    pub far: Duration,
}

impl Default for TransferNetwork {
    fn default() -> Self {
        Self { bytes_per_second: 1_000_000, near: Duration::from_millis(2), far: Duration::from_millis(41) }
    }
}

/// Nodes that exchange blobs.
pub struct TransferSimulation {
    network: TransferNetwork,
    seed: u64,
    now: Duration,
    nodes: BTreeMap<NodeId, Node>,
    trunks: BTreeMap<(Arc<str>, Arc<str>), Link>,
    blobs: BTreeMap<BlobDigest, (Bytes, Arc<Tree>)>,
    /// Zones that are cut off.
    cut: BTreeSet<Arc<str>>,
    /// Counts cuts and deaths: messages of before are lost.
    epoch: u64,
    agenda: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    sequence: u64,
    blames: Vec<(NodeId, NodeId)>,
    /// Times that deltas took, in the order of their arrival.
    delta_times: Vec<Duration>,
}

struct Node {
    machine: Transfers,
    zone: Arc<str>,
    holds: BTreeSet<BlobDigest>,
    stored: BTreeMap<BlobDigest, ChunkSet>,
    wants: BTreeSet<BlobDigest>,
    completed: BTreeMap<BlobDigest, Duration>,
    behaviour: Behaviour,
    up: Link,
    down: Link,
    tick: Option<Duration>,
}

/// Behaviour of a simulated node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// It sends what it has.
    Honest,
    /// It sends chunks with a changed byte.
    Lies,
    /// It accepts requests and sends no chunk.
    Silent,
}

#[derive(Debug, Default, Clone, Copy)]
struct Link {
    free_at: Duration,
    bytes: u64,
}

impl Link {
    /// The time at which the last byte has passed.
    fn pass(&mut self, bytes: u64, rate: u64, now: Duration) -> Duration {
        self.bytes += bytes;
        self.free_at = self.free_at.max(now) + Duration::from_nanos(bytes * 1_000_000_000 / rate);
        self.free_at
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Tick(NodeId),
    Passed(Stage, Packet),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Up,
    Trunk,
    Down,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    from: NodeId,
    to: NodeId,
    epoch: u64,
    content: Content,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    /// A message about artefacts.
    Artefact(Bytes),
    /// Other traffic of the same links, sent at a time.
    Delta { bytes: u64, sent_at: Duration },
}

impl Content {
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Artefact(bytes) => bytes.len() as u64 + OVERHEAD_BYTES,
            Self::Delta { bytes, .. } => *bytes,
        }
    }
}

impl TransferSimulation {
    /// A network without nodes.
    pub fn new(seed: u64, network: TransferNetwork) -> Self {
        Self {
            network,
            seed,
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            trunks: BTreeMap::new(),
            blobs: BTreeMap::new(),
            cut: BTreeSet::new(),
            epoch: 0,
            agenda: BinaryHeap::new(),
            sequence: 0,
            blames: Vec::new(),
            delta_times: Vec::new(),
        }
    }

    /// Makes a blob known to the simulation.
    pub fn add_blob(&mut self, bytes: Bytes) -> BlobDigest {
        let Ok((digest, tree)) = Tree::of(&bytes) else { return BlobDigest([0; 32]) };
        self.blobs.insert(digest, (bytes, Arc::new(tree)));
        digest
    }

    /// Starts a node that reaches all others. `resumed` are chunks from an earlier run.
    pub fn start(&mut self, node: NodeId, zone: &str, behaviour: Behaviour) {
        let settings = Settings { seed: self.seed, upload_bytes_per_second: None };
        let started = Node {
            machine: Transfers::new(node, settings),
            zone: zone.into(),
            holds: BTreeSet::new(),
            stored: BTreeMap::new(),
            wants: BTreeSet::new(),
            completed: BTreeMap::new(),
            behaviour,
            up: Link::default(),
            down: Link::default(),
            tick: None,
        };
        self.nodes.insert(node, started);
        self.handle(node, Event::LocalZone(zone.into()));
        self.connect(node);
    }

    /// Ends a node without notice.
    pub fn stop(&mut self, node: NodeId) {
        self.nodes.remove(&node);
        let others: Vec<NodeId> = self.nodes.keys().copied().collect();
        others.into_iter().for_each(|other| self.handle(other, Event::PeerDown { node }));
    }

    /// Restarts a node; it keeps the chunks that it has stored, and fetches on.
    pub fn restart(&mut self, node: NodeId) {
        let Some(stopped) = self.nodes.remove(&node) else { return };
        let others: Vec<NodeId> = self.nodes.keys().copied().collect();
        others.into_iter().for_each(|other| self.handle(other, Event::PeerDown { node }));
        let settings = Settings { seed: self.seed ^ 1, upload_bytes_per_second: None };
        let zone = stopped.zone.clone();
        let restarted = Node { machine: Transfers::new(node, settings), tick: None, ..stopped };
        let wants = restarted.wants.clone();
        self.nodes.insert(node, restarted);
        self.handle(node, Event::LocalZone(zone));
        self.connect(node);
        wants.into_iter().for_each(|blob| self.want(node, blob));
    }

    /// Makes a node hold a blob.
    pub fn hold(&mut self, node: NodeId, blob: BlobDigest) {
        if let Some(at) = self.nodes.get_mut(&node) {
            at.holds.insert(blob);
        }
    }

    /// Makes a node fetch a blob, from all nodes that hold or fetch it.
    pub fn want(&mut self, node: NodeId, blob: BlobDigest) {
        let candidates = self.candidates(node, blob);
        self.want_from(node, blob, candidates);
    }

    /// Makes nodes fetch a blob at the same time; each knows of the others from the begin.
    pub fn want_all(&mut self, nodes: impl Iterator<Item = NodeId>, blob: BlobDigest) {
        let nodes: Vec<NodeId> = nodes.collect();
        for node in &nodes {
            if let Some(at) = self.nodes.get_mut(node) {
                at.wants.insert(blob);
            }
        }
        nodes.into_iter().for_each(|node| self.want(node, blob));
    }

    /// Makes a node fetch a blob from these candidates.
    pub fn want_from(&mut self, node: NodeId, blob: BlobDigest, candidates: Vec<Candidate>) {
        let Some(tree) = self.blobs.get(&blob).map(|(_, tree)| tree.clone()) else { return };
        let Some(at) = self.nodes.get_mut(&node) else { return };
        at.wants.insert(blob);
        let resumed = at.stored.get(&blob).map(|chunks| Resumed { tree, chunks: chunks.clone() });
        self.handle(node, Event::Want { blob, candidates, resumed });
    }

    /// The nodes that hold or fetch a blob, as a node knows them.
    pub fn candidates(&self, node: NodeId, blob: BlobDigest) -> Vec<Candidate> {
        let others = self.nodes.iter().filter(|(other, _)| **other != node);
        others
            .filter_map(|(other, at)| {
                let role = match (at.holds.contains(&blob), at.wants.contains(&blob)) {
                    (true, _) => Role::Holds,
                    (false, true) => Role::Fetches,
                    (false, false) => return None,
                };
                Some(Candidate { node: *other, zone: at.zone.clone(), role })
            })
            .collect()
    }

    /// Cuts a zone off from the others. Messages in flight are lost.
    pub fn cut(&mut self, zone: &str) {
        self.cut.insert(zone.into());
        self.epoch += 1;
        self.for_pairs_across(zone, |node| Event::PeerDown { node });
    }

    /// Connects a zone again.
    pub fn heal(&mut self, zone: &str) {
        self.cut.remove(zone);
        self.for_pairs_across(zone, |node| Event::PeerUp { node });
    }

    /// Lets so much time go by.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(Reverse((at, ..))) = self.agenda.peek()
            && *at <= end
        {
            if let Some(Reverse((at, _, happening))) = self.agenda.pop() {
                self.now = at;
                self.happen(happening);
            }
        }
        self.now = end;
    }

    /// Lets time go by until all nodes have what they want, at most until `end`; true if they have. Every second the nodes
    /// learn which others hold what.
    pub fn run_until_complete(&mut self, end: Duration) -> bool {
        loop {
            if self.is_complete() {
                return true;
            }
            if self.now >= end {
                return false;
            }
            self.run_for(Duration::from_secs(1));
            self.tell_candidates();
        }
    }

    /// All nodes learn which others hold or fetch what they want.
    pub fn tell_candidates(&mut self) {
        for (node, blob) in self.missing() {
            let candidates = self.candidates(node, blob);
            self.handle(node, Event::Want { blob, candidates, resumed: None });
        }
    }

    /// True if all nodes have what they want.
    pub fn is_complete(&self) -> bool {
        self.nodes.values().all(|at| at.wants.is_subset(&at.holds))
    }

    /// Time of the last completion.
    pub fn finished_at(&self) -> Duration {
        self.nodes.values().flat_map(|at| at.completed.values()).max().copied().unwrap_or_default()
    }

    /// The virtual time since the begin.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The largest number of bytes over any node's link, up and down.
    pub fn max_link_bytes(&self) -> (u64, u64) {
        let max = |bytes: &dyn Fn(&Node) -> u64| self.nodes.values().map(bytes).max().unwrap_or_default();
        (max(&|at| at.up.bytes), max(&|at| at.down.bytes))
    }

    /// The largest number of bytes over a trunk, in one direction.
    pub fn max_trunk_bytes(&self) -> u64 {
        self.trunks.values().map(|trunk| trunk.bytes).max().unwrap_or_default()
    }

    /// Nodes that blamed others: the node, and the blamed one.
    pub fn blames(&self) -> &[(NodeId, NodeId)] {
        &self.blames
    }

    /// Sends other traffic over the same links, behind the messages that wait.
    pub fn send_delta(&mut self, from: NodeId, to: NodeId, bytes: u64) {
        self.enter(from, to, Content::Delta { bytes, sent_at: self.now });
    }

    /// The times that deltas took.
    pub fn delta_times(&self) -> &[Duration] {
        &self.delta_times
    }

    /// Number of chunks of a blob that a node has stored.
    pub fn stored(&self, node: NodeId, blob: BlobDigest) -> usize {
        self.nodes.get(&node).and_then(|at| at.stored.get(&blob)).map_or(0, ChunkSet::count)
    }

    fn missing(&self) -> Vec<(NodeId, BlobDigest)> {
        let missing = |at: &Node| at.wants.difference(&at.holds).copied().collect::<Vec<_>>();
        self.nodes.iter().flat_map(|(node, at)| missing(at).into_iter().map(|blob| (*node, blob))).collect()
    }

    fn connect(&mut self, node: NodeId) {
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|other| *other != node).collect();
        for other in others {
            if self.is_reachable(node, other) {
                self.handle(node, Event::PeerUp { node: other });
                self.handle(other, Event::PeerUp { node });
            }
        }
    }

    fn for_pairs_across(&mut self, zone: &str, event: impl Fn(NodeId) -> Event) {
        let split: (Vec<_>, Vec<_>) =
            self.nodes.iter().map(|(node, at)| (*node, *at.zone == *zone)).partition(|(_, inside)| *inside);
        for (inside, _) in &split.0 {
            for (outside, _) in &split.1 {
                self.handle(*inside, event(*outside));
                self.handle(*outside, event(*inside));
            }
        }
    }

    fn is_reachable(&self, a: NodeId, b: NodeId) -> bool {
        let zone = |node| self.nodes.get(&node).map(|at| &at.zone);
        match (zone(a), zone(b)) {
            (Some(a), Some(b)) => a == b || !(self.cut.contains(a) || self.cut.contains(b)),
            _ => false,
        }
    }

    fn plan(&mut self, at: Duration, happening: Happening) {
        self.sequence += 1;
        self.agenda.push(Reverse((at, self.sequence, happening)));
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick(node) => {
                let due = self
                    .nodes
                    .get_mut(&node)
                    .is_some_and(|at| at.tick.take_if(|tick| *tick <= self.now).is_some());
                if due {
                    self.handle(node, Event::Tick);
                }
            }
            Happening::Passed(stage, packet) => self.passed(stage, packet),
        }
    }

    fn passed(&mut self, stage: Stage, packet: Packet) {
        let (now, rate) = (self.now, self.network.bytes_per_second);
        let size = packet.content.size_bytes();
        let is_lost = !self.is_reachable(packet.from, packet.to);
        let zone = |node: &NodeId| self.nodes.get(node).map(|at| at.zone.clone());
        let (Some(from), Some(to)) = (zone(&packet.from), zone(&packet.to)) else { return };
        if is_lost || (from != to && packet.epoch != self.epoch) {
            return;
        }
        let is_far = from != to;
        match stage {
            Stage::Up if is_far => {
                let at =
                    self.trunks.entry((from, to)).or_default().pass(size, rate, now) + self.network.far;
                self.plan(at, Happening::Passed(Stage::Trunk, packet));
            }
            Stage::Up | Stage::Trunk => {
                let latency = if is_far { Duration::ZERO } else { self.network.near };
                let Some(receiver) = self.nodes.get_mut(&packet.to) else { return };
                let at = receiver.down.pass(size, rate, now) + latency;
                self.plan(at, Happening::Passed(Stage::Down, packet));
            }
            Stage::Down => match packet.content {
                Content::Artefact(bytes) => {
                    if let Ok(message) = Message::decode_frame(bytes) {
                        self.handle(packet.to, Event::Received { node: packet.from, message });
                    }
                }
                Content::Delta { sent_at, .. } => self.delta_times.push(now - sent_at),
            },
        }
    }

    fn handle(&mut self, node: NodeId, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let Some(at) = self.nodes.get_mut(&node) else { return };
            for output in at.machine.handle(event, self.now) {
                self.carry_out(node, output, &mut events);
            }
        }
        let Some(at) = self.nodes.get_mut(&node) else { return };
        let due = at.machine.next_deadline();
        if let Some(due) = due
            && at.tick.is_none_or(|tick| due < tick || tick < self.now)
        {
            at.tick = Some(due);
            self.plan(due, Happening::Tick(node));
        }
    }

    fn carry_out(&mut self, node: NodeId, output: Output, events: &mut Vec<Event>) {
        let Some(at) = self.nodes.get_mut(&node) else { return };
        match output {
            Output::Send { node: to, message } => self.send(node, to, &message),
            Output::SendChunk { node: to, blob, request, index } => {
                let Some((bytes, tree)) = self.blobs.get(&blob) else { return };
                let mut chunk = bytes.slice(tree.range(index));
                match at.behaviour {
                    Behaviour::Honest => {}
                    Behaviour::Silent => return,
                    Behaviour::Lies => {
                        let mut wrong = chunk.to_vec();
                        wrong[0] ^= 1;
                        chunk = wrong.into();
                    }
                }
                let chunk = Chunk { id: request, index: index as u32, bytes: chunk };
                self.send(node, to, &Message::new(blob, Kind::Chunk(chunk)));
            }
            Output::Lookup { blob } => {
                let tree = self.blobs.get(&blob).filter(|_| at.holds.contains(&blob));
                events.push(Event::Found { blob, tree: tree.map(|(_, tree)| tree.clone()) });
            }
            Output::Begin { blob, tree } => {
                at.stored.entry(blob).or_insert_with(|| ChunkSet::none(tree.chunks()));
            }
            Output::Store { blob, offset, bytes } => {
                let Some((content, _)) = self.blobs.get(&blob) else { return };
                let is_right = content.get(offset..offset + bytes.len()) == Some(&*bytes);
                if let Some(stored) = at.stored.get_mut(&blob)
                    && is_right
                {
                    stored.insert(offset / crate::artefacts::CHUNK_BYTES);
                }
            }
            Output::Complete { blob } => {
                // Complete is only what was stored byte by byte.
                if at.stored.get(&blob).is_some_and(ChunkSet::is_full) {
                    at.holds.insert(blob);
                    at.completed.insert(blob, self.now);
                }
            }
            Output::Blame { node: blamed, .. } => self.blames.push((node, blamed)),
        }
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: &Message) {
        self.enter(from, to, Content::Artefact(message.encode_to_vec().into()));
    }

    fn enter(&mut self, from: NodeId, to: NodeId, content: Content) {
        if !self.is_reachable(from, to) {
            return;
        }
        let Some(at) = self.nodes.get_mut(&from) else { return };
        let passed = at.up.pass(content.size_bytes(), self.network.bytes_per_second, self.now);
        let packet = Packet { from, to, epoch: self.epoch, content };
        self.plan(passed, Happening::Passed(Stage::Up, packet));
    }
}
