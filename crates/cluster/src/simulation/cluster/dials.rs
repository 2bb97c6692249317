//! Dialling: the dial book of each node, with the time that dials take.

use super::{ClusterSimulation, Happening};
use crate::simulation::SimulatedReplica;
use crate::transport::dial_book::Target;

/// Round trips from a dial to the open channel: TCP, the protocols, Noise, Hello and verdict.
const DIAL_ROUND_TRIPS: u64 = 5;
/// Limit of a dial, as on a node.
const DIAL_TIMEOUT_US: u64 = 5_000_000;
/// A node here plans its dials at most so often; a real one does at each event of a connection.
const PLAN_INTERVAL_US: u64 = 100_000;

impl<R: SimulatedReplica> ClusterSimulation<R> {
    /// Plans dials of a node for this time, if it has no earlier plan.
    pub(super) fn plan_dials(&mut self, node: usize, at_us: u64) {
        let at_us = at_us.max(self.now_us);
        if self.nodes[node].plan_us.is_none_or(|before_us| at_us < before_us) {
            self.nodes[node].plan_us = Some(at_us);
            self.agenda.plan(at_us, Happening::Plan { node: node as u16 });
        }
    }

    /// Begins the dials that are due.
    pub(super) fn dial_due(&mut self, node: usize) {
        if self.nodes[node].plan_us != Some(self.now_us) {
            return;
        }
        let (now_us, now_ms, count) = (self.now_us, self.now_ms(), self.nodes.len());
        let (members, positions) = (self.members.clone(), self.positions.clone());
        let ends = &self.ends[node * count..(node + 1) * count];
        let connected = |peer: &libp2p::PeerId| positions.get(peer).is_some_and(|at| ends[*at].is_some());
        let at = &mut self.nodes[node];
        at.plan_us = None;
        let plan = at.book.plan(now_ms, &members, connected, |_| None);
        for target in plan.dial {
            let Target::Peer(peer) = target else { continue };
            let Some(to) = positions.get(&peer).copied() else { continue };
            let succeeded = self.zones.is_reachable(node, to) && self.has_started(to);
            let takes_us = match succeeded {
                true => DIAL_ROUND_TRIPS * self.zones.round_trip_us(node, to) + self.random.below(2_000),
                false => DIAL_TIMEOUT_US,
            };
            let dialled = Happening::Dialled { from: node as u16, to: to as u16, succeeded };
            self.agenda.plan(now_us + takes_us, dialled);
        }
        if let Some(again_ms) = plan.again_at_ms {
            self.plan_dials(node, (again_ms * 1_000).max(now_us + PLAN_INTERVAL_US));
        }
    }

    /// A dial has ended.
    pub(super) fn dialled(&mut self, from: usize, to: usize, succeeded: bool) {
        let (now_ms, luck, peer) = (self.now_ms(), self.random.next(), self.nodes[to].peer_id);
        let is_open = self.end(from, to).is_some();
        let is_free = !is_open && self.end(to, from).is_none();
        let is_reached = succeeded && self.zones.is_reachable(from, to);
        let book = &mut self.nodes[from].book;
        if is_reached && (is_open || is_free) {
            book.reached(Target::Peer(peer), peer);
            book.succeeded(peer, now_ms, luck);
        } else {
            // The other end of an old channel has not noticed its end yet, or nothing answers.
            book.failed(Target::Peer(peer), now_ms, luck);
        }
        if is_reached && is_free {
            self.open(from, to);
        }
        self.plan_dials(from, self.now_us + PLAN_INTERVAL_US / 10);
    }

    /// The channel of this end is gone: it is dialled again.
    pub(super) fn channel_lost(&mut self, node: usize, peer: usize) {
        let (now_ms, luck, peer) = (self.now_ms(), self.random.next(), self.nodes[peer].peer_id);
        self.nodes[node].book.succeeded(peer, now_ms, luck);
        self.plan_dials(node, self.now_us + PLAN_INTERVAL_US);
    }

    fn has_started(&self, node: usize) -> bool {
        self.nodes[node].started_us <= self.now_us
    }
}
