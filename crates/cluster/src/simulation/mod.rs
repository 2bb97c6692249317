//! A cluster in one process, in virtual time: the same [`Replication`] as on a node, with a network that is
//! made up. Runs of the same seed are the same.
//!
//! ```
//! # use edgefaas_cluster::replication::{Replica, Settings};
//! # use edgefaas_cluster::simulation::{Network, SimulatedReplica, Simulation};
//! fn two<R: SimulatedReplica>(a: R, b: R) -> Simulation<R> {
//!     let mut simulation = Simulation::new(7, Network::default(), Settings::default());
//!     let interests = Vec::new();
//!     simulation.start(1.into(), a, interests.clone());
//!     simulation.start(2.into(), b, interests);
//!     simulation
//! }
//! ```

mod calls;
mod cluster;
mod network;
mod transfers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use bytes::Bytes;

use crate::penalties::Penalties;
use crate::replication::{
    Counters, DisconnectReason, Event, Interest, NodeId, ObjectKey, Output, Policy, Replica, Replication,
    Settings, View,
};
use network::Links;

pub use calls::{CallOutcome, CallPlan, CallSimulation, KnownShares};
pub use cluster::{ClusterSimulation, HANDSHAKE_BYTES, Heartbeats, PACKET_BYTES, Traffic, ZoneNetwork};
pub use network::{Network, Random};
pub use transfers::{Behaviour, TransferNetwork, TransferSimulation};

/// A replica that the simulation can merge into.
pub trait SimulatedReplica: Replica {
    /// Merges a payload that another node's delta encoded to; false if it is garbage.
    fn merge(&mut self, from: NodeId, object: &ObjectKey, copies: u8, payload: &[u8]) -> bool;
}

/// Nodes, the network between them and what is under way.
pub struct Simulation<R: SimulatedReplica> {
    settings: Settings,
    random: Random,
    now: Duration,
    nodes: BTreeMap<NodeId, Node<R>>,
    members: Vec<NodeId>,
    links: Links,
    agenda: BinaryHeap<Reverse<(Duration, u64, Happening)>>,
    sequence: u64,
    /// Disconnects: the node, the disconnected peer, and the reason.
    disconnects: Vec<(NodeId, NodeId, DisconnectReason)>,
}

struct Node<R: SimulatedReplica> {
    machine: Replication<R::Delta>,
    replica: R,
    started: Duration,
    penalties: Penalties<NodeId>,
    tick: Option<Duration>,
    recovering: BTreeMap<Interest, (Duration, Vec<NodeId>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Tick { node: NodeId },
    Frame { from: NodeId, to: NodeId, connection: u64, frame: Bytes },
    Room { from: NodeId, to: NodeId, connection: u64 },
    Connect { a: NodeId, b: NodeId },
}

impl<R: SimulatedReplica> Simulation<R> {
    /// A network without nodes. The machines get `settings` with seeds of their own.
    pub fn new(seed: u64, network: Network, settings: Settings) -> Self {
        Self {
            settings,
            random: Random::new(seed),
            now: Duration::ZERO,
            nodes: BTreeMap::new(),
            members: Vec::new(),
            links: Links::new(network),
            agenda: BinaryHeap::new(),
            sequence: 0,
            disconnects: Vec::new(),
        }
    }

    /// Starts a node, which knows all other nodes as members, and connects to all that it reaches.
    pub fn start(&mut self, node: NodeId, replica: R, interests: Vec<Interest>) {
        self.stop(node);
        let settings = Settings { seed: self.random.next(), ..self.settings.clone() };
        let machine = Replication::new(node, settings);
        let started = self.now;
        self.nodes.insert(
            node,
            Node {
                machine,
                replica,
                started,
                penalties: Penalties::default(),
                tick: None,
                recovering: BTreeMap::new(),
            },
        );
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|other| *other != node).collect();
        self.handle(node, Event::Members(others.iter().chain(&self.members).copied().collect()));
        self.handle(node, Event::LocalInterests(interests));
        others.into_iter().for_each(|other| self.connect_after(node, other, Duration::ZERO));
    }

    /// Ends a node without notice and gives its replica.
    pub fn stop(&mut self, node: NodeId) -> Option<R> {
        let stopped = self.nodes.remove(&node)?;
        let others: Vec<NodeId> = self.nodes.keys().copied().collect();
        others.into_iter().for_each(|other| self.break_link(node, other));
        Some(stopped.replica)
    }

    /// Sets the interests of a node.
    pub fn set_interests(&mut self, node: NodeId, interests: Vec<Interest>) {
        self.handle(node, Event::LocalInterests(interests));
    }

    /// Sets the members of all nodes, and of those that start later.
    pub fn set_members(&mut self, members: &[NodeId]) {
        self.members = members.to_vec();
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.handle(node, Event::Members(members.to_vec())));
    }

    /// Makes a node change an object; `change` gives the delta.
    pub fn change(
        &mut self,
        node: NodeId,
        object: &ObjectKey,
        policy: Policy,
        change: impl FnOnce(&mut R) -> R::Delta,
    ) {
        if let Some(at) = self.nodes.get_mut(&node) {
            let delta = change(&mut at.replica);
            self.handle(node, Event::Changed { object: object.clone(), delta, policy });
        }
    }

    /// Delivers a frame that the sender's machine did not make. Without a connection this has no effect.
    pub fn inject(&mut self, from: NodeId, to: NodeId, frame: Bytes) {
        if self.links.connection(from, to).is_some() {
            self.handle(to, Event::Received { node: from, frame });
        }
    }

    /// Breaks the connection of two nodes, which then connect again.
    pub fn cut(&mut self, a: NodeId, b: NodeId) {
        self.break_link(a, b);
        let pause = self.links.network.reconnect;
        self.connect_after(a, b, pause);
    }

    /// Splits the network: only nodes of the same part reach one another.
    pub fn partition(&mut self, part: impl Fn(NodeId) -> u32) {
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        self.links.parts = nodes.iter().map(|node| (*node, part(*node))).collect();
        for (a, b) in pairs(&nodes) {
            if !self.links.reachable(a, b) {
                self.break_link(a, b);
            }
        }
    }

    /// Ends a partition.
    pub fn heal(&mut self) {
        self.links.parts.clear();
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        let pause = self.links.network.reconnect;
        for (a, b) in pairs(&nodes) {
            if self.links.connection(a, b).is_none() {
                self.connect_after(a, b, pause);
            }
        }
    }

    /// Changes how fast a node receives, in bytes per second.
    pub fn set_bandwidth(&mut self, node: NodeId, bytes_per_second: u64) {
        self.links.bandwidth.insert(node, bytes_per_second.max(1));
    }

    /// Lets so much time go by.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now + time);
    }

    /// Lets time go by until then.
    pub fn run_until(&mut self, end: Duration) {
        while let Some(Reverse((at, _, _))) = self.agenda.peek()
            && *at <= end
        {
            if let Some(Reverse((at, _, happening))) = self.agenda.pop() {
                self.now = at;
                self.happen(happening);
            }
        }
        self.now = self.now.max(end);
    }

    /// Lets time go by until `done`, at most until `end`; looks every `step`. True if it was done.
    pub fn run_until_done(
        &mut self,
        end: Duration,
        step: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            self.run_until((self.now + step).min(end));
        }
    }

    /// The virtual time since the begin.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The nodes that run.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    /// A node's replica.
    pub fn replica(&self, node: NodeId) -> Option<&R> {
        self.nodes.get(&node).map(|node| &node.replica)
    }

    /// A node's replica, to do something to it that is not a change.
    pub fn replica_mut(&mut self, node: NodeId) -> Option<&mut R> {
        self.nodes.get_mut(&node).map(|node| &mut node.replica)
    }

    /// Counters of a node's machine since the node started.
    pub fn counters(&self, node: NodeId) -> Option<&Counters> {
        self.nodes.get(&node).map(|node| node.machine.counters())
    }

    /// A node's machine.
    pub fn machine(&self, node: NodeId) -> Option<&Replication<R::Delta>> {
        self.nodes.get(&node).map(|node| &node.machine)
    }

    /// The members whose objects of an interest a node lacks, and since when it has been these; `None` until it said so.
    pub fn recovering(&self, node: NodeId, app: &str, pattern: &str) -> Option<(Duration, &[NodeId])> {
        let interest = Interest { app: app.to_owned(), pattern: pattern.to_owned() };
        let (since, lacks) = self.nodes.get(&node)?.recovering.get(&interest)?;
        Some((*since, lacks))
    }

    /// Tells a node that what came from another could not be stored.
    pub fn not_stored(&mut self, node: NodeId, from: NodeId) {
        self.handle(node, Event::NotStored { node: from });
    }

    /// Disconnects: the node, the disconnected peer, and the reason.
    pub fn disconnects(&self) -> &[(NodeId, NodeId, DisconnectReason)] {
        &self.disconnects
    }

    /// True if all running nodes for which `concerns` is true have the same digest of each object that one of
    /// them has.
    pub fn equal(&self, concerns: impl Fn(NodeId, &ObjectKey) -> bool) -> bool {
        let mut seen: BTreeMap<ObjectKey, u64> = BTreeMap::new();
        let mut equal = true;
        for (node, at) in &self.nodes {
            at.replica.digests(0..=u64::MAX, &mut |object, digest| {
                if concerns(*node, object) {
                    equal &= *seen.entry(object.clone()).or_insert(digest.whole) == digest.whole;
                }
            });
        }
        let objects: BTreeSet<&ObjectKey> = seen.keys().collect();
        equal
            && self.nodes.iter().all(|(node, at)| {
                let mut wanted = objects.iter().filter(|object| concerns(*node, object));
                wanted.all(|object| at.replica.digest(object, View::ALL).is_some())
            })
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Tick { node } => {
                let due = self.nodes.get_mut(&node).is_some_and(|at| at.tick == Some(self.now));
                if due {
                    if let Some(at) = self.nodes.get_mut(&node) {
                        at.tick = None;
                    }
                    self.handle(node, Event::Tick);
                }
            }
            Happening::Frame { from, to, connection, frame } => {
                if self.links.connection(from, to) == Some(connection) {
                    self.handle(to, Event::Received { node: from, frame });
                }
            }
            Happening::Room { from, to, connection } => {
                if self.links.connection(from, to) == Some(connection)
                    && self.links.has_room(from, to, self.now)
                {
                    self.handle(from, Event::Writable { node: to });
                }
            }
            Happening::Connect { a, b } => {
                let both_run = self.nodes.contains_key(&a) && self.nodes.contains_key(&b);
                if both_run && self.links.connect(a, b) {
                    self.handle(a, Event::PeerUp { node: b, protocol_version: 1 });
                    self.handle(b, Event::PeerUp { node: a, protocol_version: 1 });
                }
            }
        }
    }

    fn handle(&mut self, node: NodeId, event: Event<R::Delta>) {
        let mut events = vec![event];
        while !events.is_empty() {
            let mut next = Vec::new();
            for event in events {
                self.handle_one(node, event, &mut next);
            }
            events = next;
        }
        let Some(at) = self.nodes.get_mut(&node) else {
            return;
        };
        let due = at.machine.next_deadline().map(|due| (at.started + due).max(self.now));
        if due != at.tick {
            at.tick = due;
            if let Some(due) = due {
                self.plan(due, Happening::Tick { node });
            }
        }
    }

    fn handle_one(&mut self, node: NodeId, event: Event<R::Delta>, next: &mut Vec<Event<R::Delta>>) {
        let now = self.now;
        let Some(at) = self.nodes.get_mut(&node) else {
            return;
        };
        for output in at.machine.handle(event, now - at.started, &at.replica) {
            match output {
                Output::Send { node: to, frame } => {
                    if let Some(refused) = self.transmit(node, to, frame) {
                        next.push(Event::Refused { node: to, frame: refused });
                    }
                }
                Output::Merge { node: from, object, copies, payload, .. } => {
                    let merged = self.nodes.get_mut(&node);
                    if !merged.is_some_and(|at| at.replica.merge(from, &object, copies, &payload)) {
                        next.push(Event::BadPayload { node: from });
                    }
                }
                Output::Recovering { interests, lacks } => {
                    if let Some(at) = self.nodes.get_mut(&node) {
                        let lacking = |interest| (interest, (now, lacks.clone()));
                        at.recovering.extend(interests.into_iter().map(lacking));
                    }
                }
                Output::Disconnect { node: other, reason } => {
                    self.disconnects.push((node, other, reason));
                    let pause = self.penalise(node, other);
                    if self.links.disconnect(node, other) {
                        self.handle(other, Event::PeerDown { node });
                    }
                    self.connect_after(node, other, pause);
                }
            }
        }
    }

    /// The pause before a node connects again with a peer that it has disconnected, as the transport decides it.
    fn penalise(&mut self, node: NodeId, peer: NodeId) -> Duration {
        let now_ms = u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX);
        let random = self.random.next();
        let Some(at) = self.nodes.get_mut(&node) else { return Duration::ZERO };
        Duration::from_millis(at.penalties.refuse(peer, now_ms, random).saturating_sub(now_ms))
    }

    /// Gives back a frame for which the sender's outbox has no room.
    fn transmit(&mut self, from: NodeId, to: NodeId, frame: Bytes) -> Option<Bytes> {
        let connection = self.links.connection(from, to)?;
        let arrivals = match self.links.transmit(from, to, frame.len(), self.now, &mut self.random) {
            Ok(arrivals) => arrivals,
            Err(room_at) => {
                if let Some(room_at) = room_at {
                    self.plan(room_at, Happening::Room { from, to, connection });
                }
                return Some(frame);
            }
        };
        for at in arrivals {
            self.plan(at, Happening::Frame { from, to, connection, frame: frame.clone() });
        }
        None
    }

    fn break_link(&mut self, a: NodeId, b: NodeId) {
        if self.links.disconnect(a, b) {
            self.handle(a, Event::PeerDown { node: b });
            self.handle(b, Event::PeerDown { node: a });
        }
    }

    fn connect_after(&mut self, a: NodeId, b: NodeId, pause: Duration) {
        let at = self.now + pause + self.links.latency(&mut self.random);
        self.plan(at, Happening::Connect { a, b });
    }

    fn plan(&mut self, at: Duration, happening: Happening) {
        self.sequence += 1;
        self.agenda.push(Reverse((at, self.sequence, happening)));
    }
}

fn pairs(nodes: &[NodeId]) -> Vec<(NodeId, NodeId)> {
    let after = |(at, a): (usize, &NodeId)| nodes.iter().skip(at + 1).map(|b| (*a, *b)).collect::<Vec<_>>();
    nodes.iter().enumerate().flat_map(after).collect()
}
