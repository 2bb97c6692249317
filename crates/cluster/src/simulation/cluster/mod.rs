//! A whole cluster in one process, in virtual time: replication, liveness, status and dialling of each node, by the
//! code that a node runs, over a network of zones. Runs of the same seed are the same.
//!
//! A node here is a [`Replication`] machine, and for each other node the queue of frames, the liveness and the dial book of
//! the transport. Not simulated: processor time (and so the cooldowns of replication under load), certificates, and
//! changes of the members, which all nodes know from the start.

mod agenda;
mod channel;
mod dials;
mod traffic;
mod zones;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libp2p::PeerId;

use self::channel::End;
use self::zones::Zones;
use super::{Random, SimulatedReplica};
use crate::liveness::{HEARTBEAT_MS, SILENCE_MS};
use crate::replication::{
    Counters, DisconnectReason, Event, Interest, NodeId, ObjectKey, Output, Policy, Replication, Settings,
    mix,
};
use crate::status::{Facts, Load};
use crate::transport::dial_book::DialBook;

pub(super) use self::agenda::Agenda;
pub use self::traffic::{HANDSHAKE_BYTES, PACKET_BYTES, Traffic};
pub use self::zones::ZoneNetwork;

/// The size of one member's outbox, as on a node.
const OUTBOX_BYTES: usize = 1 << 20;

/// How much of the heartbeats is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeats {
    /// Each heartbeat and each answer is a packet.
    Simulated,
    /// They take no packets: loads are as old as a heartbeat each second would make them, and a channel across a cut ends after the
    /// same silence. A thousand nodes send a million heartbeats per second.
    Assumed,
}

/// Nodes with the numbers from 1 on, each connected to all that it reaches.
pub struct ClusterSimulation<R: SimulatedReplica> {
    random: Random,
    heartbeats: Heartbeats,
    now_us: u64,
    nodes: Vec<Node<R>>,
    /// What the node of a row has of the channel to the node of a column.
    ends: Vec<Option<Box<End>>>,
    zones: Zones,
    agenda: Agenda<Happening>,
    last_connection: u32,
    /// Positions of the nodes, by peer id.
    positions: Arc<HashMap<PeerId, usize>>,
    members: Arc<BTreeSet<PeerId>>,
    disconnects: Vec<(NodeId, NodeId, DisconnectReason)>,
    losses: u64,
}

struct Node<R: SimulatedReplica> {
    machine: Replication<R::Delta>,
    replica: R,
    started_us: u64,
    peer_id: PeerId,
    book: DialBook,
    /// The time of the next plan of dials, if there is one.
    plan_us: Option<u64>,
    channels: usize,
    load: Bytes,
    /// The last loads before that, and the times at which they were set, the latest last.
    past_loads: VecDeque<(u64, Bytes)>,
    facts: Bytes,
    tick_us: Option<u64>,
    traffic: Traffic,
    /// Channels with something to send.
    dirty: Vec<usize>,
}

#[derive(Debug)]
enum Happening {
    /// A node starts.
    Start { node: u16 },
    /// The replication of a node is due.
    Tick { node: u16 },
    /// A node plans its dials.
    Plan { node: u16 },
    /// A dial has succeeded or timed out.
    Dialled { from: u16, to: u16, succeeded: bool },
    /// The liveness of a channel is due.
    Watch { from: u16, to: u16, connection: u32 },
    /// Nothing has come through a channel for too long.
    Silent { from: u16, to: u16, connection: u32 },
    /// A packet has left the node.
    Written { from: u16, to: u16, connection: u32 },
    /// A packet has reached the link of its receiver.
    Reached { from: u16, to: u16, connection: u32, bytes: Bytes },
    /// The receiver has it.
    Arrived { from: u16, to: u16, connection: u32, bytes: Bytes },
    /// The facts of a node may be sent again.
    Facts { from: u16, to: u16, connection: u32 },
}

impl<R: SimulatedReplica> ClusterSimulation<R> {
    /// Nodes with these replicas in these zones, none of which runs. They start within `start`, at random times.
    ///
    /// At most 65,535 nodes.
    pub fn new(
        seed: u64,
        network: ZoneNetwork,
        heartbeats: Heartbeats,
        settings: &Settings,
        interests: &[Interest],
        start: Duration,
        nodes: Vec<(R, usize)>,
    ) -> Self {
        let mut random = Random::new(seed);
        let peers: Vec<PeerId> = nodes.iter().map(|_| peer_id(random.bytes())).collect();
        let (replicas, zones): (Vec<R>, Vec<usize>) = nodes.into_iter().unzip();
        let count = replicas.len();
        let ids: Vec<NodeId> = (1..=count as u64).map(NodeId).collect();
        let mut simulation = Self {
            heartbeats,
            now_us: 0,
            nodes: Vec::with_capacity(count),
            ends: std::iter::repeat_with(|| None).take(count * count).collect(),
            zones: Zones::new(network, zones),
            agenda: Agenda::new(),
            last_connection: 0,
            positions: Arc::new(peers.iter().enumerate().map(|(at, peer)| (*peer, at)).collect()),
            members: Arc::new(peers.iter().copied().collect()),
            disconnects: Vec::new(),
            losses: 0,
            random,
        };
        for ((replica, peer_id), id) in replicas.into_iter().zip(peers).zip(&ids) {
            let settings = Settings { seed: simulation.random.next(), ..settings.clone() };
            let mut machine = Replication::new(*id, settings);
            machine.handle(Event::Members(ids.clone()), Duration::ZERO, &replica);
            machine.handle(Event::LocalInterests(interests.to_vec()), Duration::ZERO, &replica);
            let started_us = simulation.random.below(start.as_micros() as u64 + 1);
            let node = simulation.nodes.len();
            simulation.nodes.push(Node {
                machine,
                replica,
                started_us,
                peer_id,
                book: DialBook::new(peer_id, Vec::new()),
                plan_us: None,
                channels: 0,
                load: Bytes::new(),
                past_loads: VecDeque::new(),
                facts: Bytes::new(),
                tick_us: None,
                traffic: Traffic::default(),
                dirty: Vec::new(),
            });
            simulation.agenda.plan(started_us, Happening::Start { node: node as u16 });
        }
        simulation
    }

    /// Makes a node change an object; `change` gives the delta.
    pub fn change(
        &mut self,
        node: NodeId,
        object: &ObjectKey,
        policy: Policy,
        change: impl FnOnce(&mut R) -> R::Delta,
    ) {
        let at = position(node);
        let delta = change(&mut self.nodes[at].replica);
        self.replicate(at, Event::Changed { object: object.clone(), delta, policy });
    }

    /// Sets the load that a node sends with its heartbeats.
    pub fn set_load(&mut self, node: NodeId, load: &Load) {
        let now_us = self.now_us;
        let node = &mut self.nodes[position(node)];
        node.load = load.encode();
        node.past_loads.push_back((now_us, node.load.clone()));
        // One of two seconds before is the oldest that another node may have.
        while node.past_loads.get(1).is_some_and(|(set_us, _)| set_us + 2_000 * HEARTBEAT_MS < now_us) {
            node.past_loads.pop_front();
        }
    }

    /// Sets the facts of a node, which it sends to all.
    pub fn set_facts(&mut self, node: NodeId, facts: &Facts) {
        let from = position(node);
        self.nodes[from].facts = facts.encode();
        for to in 0..self.nodes.len() {
            self.facts_changed(from, to);
        }
    }

    /// The load of another node, as a node knows it: the last one that it got on the open channel.
    pub fn load_of(&self, node: NodeId, other: NodeId) -> Option<Load> {
        let end = self.end(position(node), position(other))?;
        let load = match self.heartbeats {
            Heartbeats::Simulated => end.heard_load.as_ref()?,
            Heartbeats::Assumed => self.sent_load(position(other), position(node))?,
        };
        Load::decode(load).ok()
    }

    /// The load that the last heartbeat of a node to another has brought, if there were heartbeats.
    fn sent_load(&self, from: usize, to: usize) -> Option<&Bytes> {
        let interval_us = HEARTBEAT_MS * 1_000;
        let phase_us = mix(mix(from as u64) ^ to as u64) % interval_us;
        let arrived_us = self.now_us.checked_sub(self.zones.round_trip_us(from, to) / 2 + phase_us)?;
        let sent_us = arrived_us / interval_us * interval_us + phase_us;
        let mut loads = self.nodes[from].past_loads.iter().rev();
        loads.find(|(set_us, _)| *set_us <= sent_us).map(|(_, load)| load)
    }

    /// The facts of another node, as a node knows them.
    pub fn facts_of(&self, node: NodeId, other: NodeId) -> Option<Facts> {
        let end = self.end(position(node), position(other))?;
        Facts::decode(end.heard_facts.as_ref()?).ok()
    }

    /// True if the node has an open channel to the other.
    pub fn is_connected(&self, node: NodeId, other: NodeId) -> bool {
        self.end(position(node), position(other)).is_some()
    }

    /// The number of open channels of a node.
    pub fn channels(&self, node: NodeId) -> usize {
        self.nodes[position(node)].channels
    }

    /// Cuts a zone off from the others. Packets in flight are lost, and the nodes notice by the silence.
    pub fn cut(&mut self, zone: usize) {
        self.zones.cut(zone);
        if self.heartbeats == Heartbeats::Simulated {
            return;
        }
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                let Some(end) = self.end(from, to).filter(|_| !self.zones.is_reachable(from, to)) else {
                    continue;
                };
                let silent =
                    Happening::Silent { from: from as u16, to: to as u16, connection: end.connection };
                let last_us = self.random.below(HEARTBEAT_MS * 1_000);
                self.agenda.plan(self.now_us + SILENCE_MS * 1_000 - last_us, silent);
            }
        }
    }

    /// Ends all cuts.
    pub fn heal(&mut self) {
        self.zones.heal();
    }

    /// The zone of a node.
    pub fn zone(&self, node: NodeId) -> usize {
        self.zones.zone(position(node))
    }

    /// Round trip of two nodes, without jitter; 0 for a node and itself.
    pub fn round_trip(&self, a: NodeId, b: NodeId) -> Duration {
        if a == b {
            return Duration::ZERO;
        }
        Duration::from_micros(self.zones.round_trip_us(position(a), position(b)))
    }

    /// Bytes that a zone has sent to the others, and received from them.
    pub fn zone_bytes(&self, zone: usize) -> (u64, u64) {
        self.zones.zone_bytes(zone)
    }

    /// All nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<R> {
        (1..=self.nodes.len() as u64).map(NodeId)
    }

    /// A node's replica.
    pub fn replica(&self, node: NodeId) -> &R {
        &self.nodes[position(node)].replica
    }

    /// What a node has sent.
    pub fn traffic(&self, node: NodeId) -> Traffic {
        self.nodes[position(node)].traffic
    }

    /// Counters of a node's replication.
    pub fn counters(&self, node: NodeId) -> &Counters {
        self.nodes[position(node)].machine.counters()
    }

    /// Peers that a node has disconnected: the node, the peer, and the reason.
    pub fn disconnects(&self) -> &[(NodeId, NodeId, DisconnectReason)] {
        &self.disconnects
    }

    /// Ends of channels that were given up after silence.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// The virtual time since the begin.
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.now_us)
    }

    /// Lets so much time go by.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now() + time);
    }

    /// Lets time go by until then.
    pub fn run_until(&mut self, end: Duration) {
        let end_us = end.as_micros() as u64;
        while let Some((at_us, happening)) = self.agenda.next(end_us) {
            self.now_us = self.now_us.max(at_us);
            self.happen(happening);
        }
        self.now_us = self.now_us.max(end_us);
    }

    /// Lets time go by until `done`, at most until `end`; looks every `step`. True if it was done.
    pub fn run_until_done(
        &mut self,
        end: Duration,
        step: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> bool {
        while !done(self) {
            if self.now() >= end {
                return false;
            }
            self.run_until((self.now() + step).min(end));
        }
        true
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Start { node } => {
                let due_us = self.next_tick_us(node.into());
                self.plan_tick(node.into(), due_us);
                self.plan_dials(node.into(), self.now_us);
            }
            Happening::Tick { node } => {
                let node = usize::from(node);
                if self.nodes[node].tick_us == Some(self.now_us) {
                    self.nodes[node].tick_us = None;
                    self.replicate(node, Event::Tick);
                }
            }
            Happening::Plan { node } => self.dial_due(node.into()),
            Happening::Dialled { from, to, succeeded } => self.dialled(from.into(), to.into(), succeeded),
            Happening::Watch { from, to, connection } => self.watch(from.into(), to.into(), connection),
            Happening::Silent { from, to, connection } => {
                let (from, to) = (usize::from(from), usize::from(to));
                let is_open = self.end(from, to).is_some_and(|end| end.connection == connection);
                if is_open && !self.zones.is_reachable(from, to) {
                    self.losses += 1;
                    self.close(from, to);
                }
            }
            Happening::Written { from, to, connection } => self.written(from.into(), to.into(), connection),
            Happening::Reached { from, to, connection, bytes } => {
                let at_us = self.zones.receive(to.into(), bytes.len() + PACKET_BYTES, self.now_us);
                self.agenda.plan(at_us, Happening::Arrived { from, to, connection, bytes });
            }
            Happening::Arrived { from, to, connection, bytes } => {
                self.arrived(from.into(), to.into(), connection, bytes);
            }
            Happening::Facts { from, to, connection } => {
                if self.end(from.into(), to.into()).is_some_and(|end| end.connection == connection) {
                    self.send_facts(from.into(), to.into());
                }
            }
        }
    }

    /// Handles an event of replication, and sends what comes of it.
    fn replicate(&mut self, node: usize, event: Event<R::Delta>) {
        let mut events = vec![event];
        while !events.is_empty() {
            let mut next = Vec::new();
            for event in events {
                self.replicate_one(node, event, &mut next);
            }
            events = next;
        }
        for to in std::mem::take(&mut self.nodes[node].dirty) {
            self.flush(node, to);
        }
        let due_us = self.next_tick_us(node);
        self.plan_tick(node, due_us);
    }

    fn replicate_one(&mut self, node: usize, event: Event<R::Delta>, next: &mut Vec<Event<R::Delta>>) {
        let at = &mut self.nodes[node];
        let since_start = Duration::from_micros(self.now_us.saturating_sub(at.started_us));
        for output in at.machine.handle(event, since_start, &at.replica) {
            match output {
                Output::Send { node: to, frame } => {
                    let to = position(to);
                    let count = self.nodes.len();
                    let Some(end) = self.ends[node * count + to].as_mut() else { continue };
                    if !end.queue.try_send(frame.clone()) {
                        next.push(Event::Refused { node: node_id(to), frame });
                    }
                    self.nodes[node].dirty.push(to);
                }
                Output::Merge { node: from, object, copies, payload, .. } => {
                    if !self.nodes[node].replica.merge(from, &object, copies, &payload) {
                        next.push(Event::BadPayload { node: from });
                    }
                }
                Output::Recovering { .. } => {}
                Output::Disconnect { node: other, reason } => {
                    self.disconnects.push((node_id(node), other, reason));
                    self.close(node, position(other));
                    self.close(position(other), node);
                }
            }
        }
    }

    fn next_tick_us(&self, node: usize) -> Option<u64> {
        let node = &self.nodes[node];
        // Rounded up: a tick before its time would be followed by another one immediately.
        let due_us = node.machine.next_deadline()?.as_nanos().div_ceil(1_000);
        Some((node.started_us + due_us.min(u128::from(u64::MAX / 2)) as u64).max(self.now_us))
    }

    fn plan_tick(&mut self, node: usize, due_us: Option<u64>) {
        let at = &mut self.nodes[node];
        if due_us != at.tick_us {
            at.tick_us = due_us;
            if let Some(due_us) = due_us {
                self.agenda.plan(due_us, Happening::Tick { node: node as u16 });
            }
        }
    }

    fn end(&self, from: usize, to: usize) -> Option<&End> {
        self.ends[from * self.nodes.len() + to].as_deref()
    }

    fn end_mut(&mut self, from: usize, to: usize) -> Option<&mut End> {
        let count = self.nodes.len();
        self.ends[from * count + to].as_deref_mut()
    }

    fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }
}

/// The peer id of an Ed25519 key: a multihash that is the key itself, in protocol buffers.
fn peer_id(key: [u8; 32]) -> PeerId {
    let mut bytes = vec![0x00, 0x24, 0x08, 0x01, 0x12, 0x20];
    bytes.extend(key);
    PeerId::from_bytes(&bytes).unwrap_or_else(|_| PeerId::random())
}

fn position(node: NodeId) -> usize {
    (node.0 as usize).wrapping_sub(1)
}

fn node_id(position: usize) -> NodeId {
    NodeId(position as u64 + 1)
}
