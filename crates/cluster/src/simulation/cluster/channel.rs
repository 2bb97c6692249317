//! Channels: the queue and the liveness of each end, and the packets between them.

use bytes::Bytes;

use super::traffic::PACKET_BYTES;
use super::{ClusterSimulation, Happening, Heartbeats, OUTBOX_BYTES, node_id};
use crate::liveness::{Due, Liveness};
use crate::network::frame::{self, Kind};
use crate::replication::Event;
use crate::simulation::SimulatedReplica;
use crate::transport::outgoing_queue::{Batch, OutgoingQueue};
use crate::transport::status::facts_interval;

/// A packet that leaves its node within this time counts as written immediately.
const IMMEDIATE_US: u64 = 1_000;

/// What one node has of a channel.
#[derive(Debug)]
pub(super) struct End {
    pub(super) connection: u32,
    pub(super) queue: OutgoingQueue,
    pub(super) liveness: Liveness,
    pub(super) heard_load: Option<Bytes>,
    pub(super) heard_facts: Option<Bytes>,
    /// A batch is being written.
    writing: Option<Batch>,
    last_arrival_us: u64,
    facts: FactsState,
}

/// Facts of this node on the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FactsState {
    /// The current ones were sent.
    Sent,
    /// Some were sent a short time ago, and others are sent after the pause if they change until then.
    Pausing { have_changed: bool },
}

impl<R: SimulatedReplica> ClusterSimulation<R> {
    /// Opens the channel at both ends.
    pub(super) fn open(&mut self, a: usize, b: usize) {
        self.last_connection = self.last_connection.wrapping_add(1);
        let (connection, now_ms, count) = (self.last_connection, self.now_ms(), self.nodes.len());
        for (from, to) in [(a, b), (b, a)] {
            self.ends[from * count + to] = Some(Box::new(End {
                connection,
                queue: OutgoingQueue::new(OUTBOX_BYTES),
                liveness: Liveness::new(now_ms),
                heard_load: None,
                heard_facts: None,
                writing: None,
                last_arrival_us: 0,
                facts: FactsState::Sent,
            }));
            self.nodes[from].channels += 1;
            self.nodes[from].traffic.handshake();
            self.facts_changed(from, to);
        }
        for (from, to) in [(a, b), (b, a)] {
            if self.heartbeats == Heartbeats::Simulated {
                self.watch(from, to, connection);
            }
            self.replicate(from, Event::PeerUp { node: node_id(to), protocol_version: 1 });
        }
    }

    /// One end gives the channel up; the other notices by the silence.
    pub(super) fn close(&mut self, from: usize, to: usize) {
        let count = self.nodes.len();
        if self.ends[from * count + to].take().is_some() {
            self.nodes[from].channels -= 1;
            self.replicate(from, Event::PeerDown { node: node_id(to) });
            self.channel_lost(from, to);
        }
    }

    /// Carries out what the liveness of an end requires, as the task of a channel does.
    pub(super) fn watch(&mut self, from: usize, to: usize, connection: u32) {
        let (now_us, now_ms) = (self.now_us, self.now_ms());
        let Some(end) = self.end_mut(from, to).filter(|end| end.connection == connection) else { return };
        let until_ms = loop {
            match end.liveness.due(now_ms) {
                Due::Down => {
                    self.losses += 1;
                    return self.close(from, to);
                }
                Due::Heartbeat => {
                    end.queue.ping(now_us);
                    end.liveness.probed(now_ms);
                }
                Due::Nothing { until_ms } => break until_ms,
            }
        };
        // The clocks of nodes do not tick together.
        let phase_us = now_us % 1_000;
        let watch = Happening::Watch { from: from as u16, to: to as u16, connection };
        self.agenda.plan(until_ms * 1_000 + phase_us, watch);
        self.flush(from, to);
    }

    /// Writes what waits, one batch after another.
    pub(super) fn flush(&mut self, from: usize, to: usize) {
        let (now_us, count) = (self.now_us, self.nodes.len());
        loop {
            let node = &mut self.nodes[from];
            let Some(end) = self.ends[from * count + to].as_deref_mut() else { return };
            if end.writing.is_some() {
                return;
            }
            let Some(mut batch) = end.queue.take(&node.load, now_us) else { return };
            let bytes = batch.bytes.split().freeze();
            let wire_bytes = bytes.len() + PACKET_BYTES;
            node.traffic.packet(wire_bytes);
            let mut rest = bytes.clone();
            while let Some((kind, body)) = frame::split(&mut rest) {
                node.traffic.frame(kind, body.len());
            }
            let (left_us, reached_us) = self.zones.send(from, to, wire_bytes, now_us, &mut self.random);
            // Packets of a connection stay in order.
            end.last_arrival_us = end.last_arrival_us.max(reached_us);
            let (connection, reached_us) = (end.connection, end.last_arrival_us);
            end.writing = Some(batch);
            let (from_node, to_node) = (from as u16, to as u16);
            let reached = Happening::Reached { from: from_node, to: to_node, connection, bytes };
            self.agenda.plan(reached_us, reached);
            if left_us > now_us + IMMEDIATE_US {
                let written = Happening::Written { from: from_node, to: to_node, connection };
                self.agenda.plan(left_us, written);
                return;
            }
            self.finish_write(from, to);
        }
    }

    /// A batch that was written later has left the node.
    pub(super) fn written(&mut self, from: usize, to: usize, connection: u32) {
        if self.end(from, to).is_some_and(|end| end.connection == connection) {
            self.finish_write(from, to);
            self.flush(from, to);
        }
    }

    fn finish_write(&mut self, from: usize, to: usize) {
        let now_ms = self.now_ms();
        let Some(end) = self.end_mut(from, to) else { return };
        let Some(batch) = end.writing.take() else { return };
        end.liveness.sent(now_ms);
        if end.queue.written(&batch) {
            self.replicate(from, Event::Writable { node: node_id(to) });
        }
    }

    /// A packet from `from` has arrived at `to`.
    pub(super) fn arrived(&mut self, from: usize, to: usize, connection: u32, mut bytes: Bytes) {
        if !self.zones.is_reachable(from, to) {
            return;
        }
        let (now_us, now_ms) = (self.now_us, self.now_ms());
        let Some(end) = self.end_mut(to, from).filter(|end| end.connection == connection) else { return };
        end.liveness.received(now_ms);
        while let Some((kind, body)) = frame::split(&mut bytes) {
            let Some(end) = self.end_mut(to, from) else { return };
            match kind {
                Kind::Ping => {
                    if let Ok(token) = <[u8; 8]>::try_from(&*body) {
                        end.queue.pong(u64::from_be_bytes(token));
                    }
                }
                Kind::Pong => {
                    if let Ok(token) = <[u8; 8]>::try_from(&*body).map(u64::from_be_bytes) {
                        end.queue.answered(token, now_us.saturating_sub(token));
                    }
                }
                Kind::Load => end.heard_load = Some(body),
                Kind::Facts => end.heard_facts = Some(body),
                Kind::Data => self.replicate(to, Event::Received { node: node_id(from), frame: body }),
                _ => {}
            }
        }
        self.flush(to, from);
    }

    /// The facts of `from` have changed, or the channel is new.
    pub(super) fn facts_changed(&mut self, from: usize, to: usize) {
        let Some(end) = self.end_mut(from, to) else { return };
        match &mut end.facts {
            FactsState::Pausing { have_changed } => *have_changed = true,
            FactsState::Sent => {
                end.facts = FactsState::Pausing { have_changed: true };
                self.send_facts(from, to);
            }
        }
    }

    /// Sends the facts of `from` if they have changed since the last time, and pauses.
    pub(super) fn send_facts(&mut self, from: usize, to: usize) {
        let facts = self.nodes[from].facts.clone();
        let now_us = self.now_us;
        let Some(end) = self.end_mut(from, to) else { return };
        let has_changed = end.facts == FactsState::Pausing { have_changed: true };
        if !has_changed || facts.is_empty() {
            end.facts = FactsState::Sent;
            return;
        }
        end.facts = FactsState::Pausing { have_changed: false };
        let pause_us = facts_interval(facts.len()).as_micros() as u64;
        let connection = end.connection;
        end.queue.facts(facts);
        let again = Happening::Facts { from: from as u16, to: to as u16, connection };
        self.agenda.plan(now_us + pause_us, again);
        self.flush(from, to);
    }
}
