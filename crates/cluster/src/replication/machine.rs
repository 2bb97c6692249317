//! The replication machine: events in, outputs out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::replication::agreement::Agreement;
use crate::replication::copies::mix;
use crate::replication::interest::InterestSet;
use crate::replication::outgoing::OUTPUT_BYTES;
use crate::replication::peer::{Cursor, Peer};
use crate::replication::pending::Pending;
use crate::replication::recovery::{Recovery, Wait};
use crate::replication::{
    Counters, Delta, DisconnectReason, Event, Interest, NodeId, Output, Replica, Settings,
};
use crate::wire::{self, Kind, Message};

/// The minimum between rounds that a peer requests or that changed interests require.
pub(super) const ROUND_GAP: Duration = Duration::from_secs(1);

/// Decides which node sends which object to which peer, and when; see the [module](crate::replication).
///
/// Times are durations since the start of the node; they never go back.
#[derive(Debug)]
pub struct Replication<D> {
    pub(super) me: NodeId,
    pub(super) settings: Settings,
    random: u64,
    pub(super) now: Duration,
    pub(super) interests: InterestSet,
    pub(super) interests_version: u32,
    pub(super) recovery: Recovery,
    pub(super) peers: BTreeMap<NodeId, Peer<D>>,
    /// Nodes that left lately.
    pub(super) absent: BTreeMap<NodeId, Absent>,
    members: BTreeSet<NodeId>,
    /// Time at which a member was last found to have the same data as this node.
    pub(super) confirmed: BTreeMap<NodeId, Duration>,
    pub(super) agreement: Agreement,
    pub(super) pending: Pending<D>,
    timers: BTreeSet<(Duration, NodeId)>,
    pub(super) counters: Counters,
}

/// A node that left lately and may come back.
#[derive(Debug)]
pub(super) struct Absent {
    pub(super) interests: InterestSet,
    /// Time since which the node had been connected.
    since: Duration,
    pub(super) left: Duration,
}

impl<D: Delta> Replication<D> {
    /// The machine of this node, at its start.
    pub fn new(me: NodeId, settings: Settings) -> Self {
        Self {
            me,
            random: mix(settings.seed ^ mix(me.0)),
            settings,
            now: Duration::ZERO,
            interests: InterestSet::default(),
            interests_version: 1,
            recovery: Recovery::default(),
            peers: BTreeMap::new(),
            absent: BTreeMap::new(),
            members: BTreeSet::new(),
            confirmed: BTreeMap::new(),
            agreement: Agreement::default(),
            pending: Pending::default(),
            timers: BTreeSet::new(),
            counters: Counters::default(),
        }
    }

    /// Handles an event. `now` is the time since the start. The driver carries the outputs out in their order before
    /// the next call.
    pub fn handle<R>(&mut self, event: Event<D>, now: Duration, replica: &R) -> Vec<Output>
    where
        R: Replica<Delta = D>,
    {
        self.now = self.now.max(now);
        let mut out = Vec::new();
        match event {
            Event::PeerUp { node, protocol_version: _ } => {
                self.peer_down(node);
                self.confirmed.remove(&node);
                let mut peer = Peer::new(self.now);
                if let Some(absent) = self.absent.get(&node) {
                    peer.since = absent.since;
                }
                self.peers.insert(node, peer);
                self.recovery.connected(node, self.now, self.settings.grace);
                self.attend(node, replica, &mut out);
            }
            Event::PeerDown { node } => self.peer_down(node),
            Event::Members(members) => {
                self.members = members.into_iter().filter(|node| *node != self.me).collect();
                self.confirmed.retain(|node, _| self.members.contains(node));
                self.recovery.set_members(&self.members, self.now, self.settings.grace);
                self.agreement.set_members(&self.members);
            }
            Event::LocalInterests(interests) => self.local_interests(interests, replica, &mut out),
            Event::Changed { object, delta, policy } => {
                self.counters.changes += 1;
                if object.fits() {
                    self.pending.add(object, delta, policy, self.now);
                } else {
                    self.counters.payloads_too_long += 1;
                }
            }
            Event::Received { node, frame } => self.received(node, frame, replica, &mut out),
            Event::Refused { node, frame } => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    self.counters.messages_sent = self.counters.messages_sent.saturating_sub(1);
                    self.counters.bytes_sent = self.counters.bytes_sent.saturating_sub(frame.len() as u64);
                    peer.give_back(frame);
                    self.set_timer(node);
                }
            }
            Event::Writable { node } => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.blocked = false;
                    peer.heard = self.now;
                    self.attend(node, replica, &mut out);
                }
            }
            Event::NotStored { node } => self.not_stored(node),
            Event::BadPayload { node } => self.disconnect(node, DisconnectReason::BadPayload, &mut out),
            Event::Tick => {}
        }
        self.run_due(replica, &mut out);
        self.agreement.advance(replica.clock_ms());
        let reports = self.recovery.advance(self.now, self.settings.grace);
        out.extend(reports.into_iter().map(|(interests, lacks)| Output::Recovering { interests, lacks }));
        out
    }

    /// Deadline of the next call of [`handle`](Self::handle), with [`Event::Tick`] if there is no other event.
    pub fn next_deadline(&self) -> Option<Duration> {
        let timer = self.timers.first().map(|(due, _)| *due);
        [self.pending.next_due(), timer, self.recovery.next_deadline()].into_iter().flatten().min()
    }

    /// About how many bytes wait to be sent: local changes for their interval, and what waits for peers
    /// without room. At most [`Settings::pending_bytes`] and some 3 MiB per peer, and there one payload that
    /// is sent in pieces.
    pub fn waiting_bytes(&self) -> usize {
        self.pending.weight_bytes() + self.peers.values().map(Peer::waiting_bytes).sum::<usize>()
    }

    /// True while objects of a round wait to be sent: a member lacks them.
    pub fn sends_objects(&self) -> bool {
        self.peers.values().any(|peer| !peer.work.is_empty())
    }

    /// Figures since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The time up to which what this node had of its objects of interest is known to be everywhere: the
    /// least, over all members, of the times when this node and the member were last found equal since the
    /// member connected. Nothing if that is missing for a member.
    ///
    /// So entries of a replica that writes no more (an earlier boot of this node, a node that was revoked) may
    /// be folded in an object of interest if they have not changed here since before that time `t`. For:
    /// each member, when it was found equal (at `t` or later), had exactly the entries that were here, which
    /// are those of time `t`. A member could have an unknown one only later, and only from another member
    /// that had it, so there is no first one. States only grow, so no member lost any of them, unless it
    /// started again; then it connects again and counts as missing. Objects that are only kept here are not
    /// compared with other keepers: those must not be folded here.
    pub fn stable_since(&self) -> Option<Duration> {
        self.members.iter().try_fold(self.now, |least, node| Some(least.min(*self.confirmed.get(node)?)))
    }

    /// Every member has the deletions up to this time, in milliseconds of the clock of deletions.
    pub fn agreed_ms(&self) -> u64 {
        self.agreement.agreed_ms()
    }

    /// The replica may drop deletions up to this time: they are agreed, and this node has compared its own with every member.
    pub fn droppable_ms(&self) -> u64 {
        self.agreement.droppable_ms()
    }

    fn local_interests<R>(&mut self, interests: Vec<Interest>, replica: &R, out: &mut Vec<Output>)
    where
        R: Replica<Delta = D>,
    {
        let told: BTreeSet<Interest> = interests.iter().cloned().collect();
        let set = InterestSet::new(interests);
        if set != self.interests {
            self.interests = set;
            self.interests_version = self.interests_version.wrapping_add(1).max(1);
            self.confirmed.clear();
            for (node, peer) in &mut self.peers {
                peer.untold = true;
                // The higher node's news make the lower one begin.
                peer.round_wanted |= self.me < *node;
            }
        }
        let Self { recovery, members, peers, absent, interests_version, now, settings, .. } = self;
        let (version, now, grace) = (*interests_version, *now, settings.grace);
        let wait = |node: &NodeId| match (peers.get(node), absent.get(node)) {
            (Some(peer), _) if peer.synced_version == version => Wait::Complete,
            (Some(_), _) => Wait::Lacks,
            (None, Some(absent)) if now < absent.left + grace => Wait::Until(absent.left + grace),
            (None, _) if now < grace => Wait::Until(grace),
            (None, _) => Wait::Absent,
        };
        recovery.set_interests(told, version, now, || {
            members.iter().chain(peers.keys()).map(|node| (*node, wait(node))).collect()
        });
        let nodes: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in nodes {
            self.attend(node, replica, out);
        }
    }

    /// What a peer sent could not be stored: a later round has to compare everything with it. That round comes at its usual
    /// time, since a full disk may stay so for long.
    fn not_stored(&mut self, node: NodeId) {
        self.confirmed.remove(&node);
        self.agreement.lost(node);
        self.recovery.lost(node, self.interests_version, self.now);
        let begins = self.begins(node);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.synced_version = 0;
            peer.has_lost = true;
            peer.cursor = Cursor::default();
            peer.is_spoiled =
                if begins { peer.round.is_some() } else { peer.answer.is_some() || peer.is_answer_partial };
        }
    }

    fn peer_down(&mut self, node: NodeId) {
        self.agreement.lost(node);
        if let Some(peer) = self.peers.remove(&node) {
            let (now, settle) = (self.now, self.settings.settle);
            self.absent.retain(|_, absent| now.saturating_sub(absent.left) < settle);
            if let Some(interests) = peer.interests {
                self.absent.insert(node, Absent { interests, since: peer.since, left: now });
            }
            if let Some(timer) = peer.timer {
                self.timers.remove(&(timer, node));
            }
        }
    }

    /// Handles all due timers.
    fn run_due<R>(&mut self, replica: &R, out: &mut Vec<Output>)
    where
        R: Replica<Delta = D>,
    {
        self.flush(out);
        // Peers that have more to do set their timer to now; they get their turn in the next call.
        let due: Vec<NodeId> =
            self.timers.iter().take_while(|(due, _)| *due <= self.now).map(|(_, node)| *node).collect();
        let end = self.counters.bytes_sent + OUTPUT_BYTES as u64;
        for node in due {
            if self.counters.bytes_sent >= end {
                break;
            }
            self.attend(node, replica, out);
        }
    }

    /// Begins rounds, sends what there is room for and sets the timer of one peer.
    pub(super) fn attend<R>(&mut self, node: NodeId, replica: &R, out: &mut Vec<Output>)
    where
        R: Replica<Delta = D>,
    {
        let Some(peer) = self.peers.get(&node) else {
            return;
        };
        if peer.is_awaited() && !peer.has_work() && self.now >= peer.heard + self.settings.stall {
            self.disconnect(node, DisconnectReason::Stalled, out);
            return;
        }
        self.pump(node, replica, out);
        self.begin_round(node, replica, out);
        self.set_timer(node);
    }

    pub(super) fn set_timer(&mut self, node: NodeId) {
        let began_by_us = self.begins(node);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let round = if peer.blocked || peer.untold || peer.interests.is_none() || peer.round.is_some() {
            None
        } else if began_by_us {
            Some(peer.round_due.min(if peer.round_wanted { round_gap_end(peer) } else { Duration::MAX }))
        } else {
            (peer.round_wanted && peer.answer.is_none()).then(|| round_gap_end(peer))
        };
        let busy = peer.has_work().then_some(self.now);
        let stall = peer.is_awaited().then(|| peer.heard + self.settings.stall);
        let due = [round, busy, stall].into_iter().flatten().min();
        if due != peer.timer {
            if let Some(before) = peer.timer {
                self.timers.remove(&(before, node));
            }
            if let Some(due) = due {
                self.timers.insert((due, node));
            }
            peer.timer = due;
        }
    }

    /// True if this node begins the rounds with the other node.
    pub(super) fn begins(&self, node: NodeId) -> bool {
        self.me < node
    }

    pub(super) fn next_round_due(&mut self) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let spread = self.settings.round_max.saturating_sub(self.settings.round_min);
        let part = (mix(self.random) >> 40) as f64 / (1_u64 << 24) as f64;
        self.now + self.settings.round_min + spread.mul_f64(part)
    }

    pub(super) fn disconnect(&mut self, node: NodeId, reason: DisconnectReason, out: &mut Vec<Output>) {
        if !self.peers.contains_key(&node) {
            return;
        }
        self.peer_down(node);
        self.counters.disconnects += 1;
        if reason != DisconnectReason::Stalled {
            self.counters.bad_messages += 1;
        }
        out.push(Output::Disconnect { node, reason });
    }

    pub(super) fn send(&mut self, node: NodeId, kind: impl Into<Message>, out: &mut Vec<Output>) {
        let message = kind.into();
        let frame = message.encode_frame();
        if let Some(Kind::Deltas(_) | Kind::Chunk(_)) = message.kind {
            self.counters.delta_bytes_sent += frame.len() as u64;
        }
        match self.peers.get_mut(&node).filter(|peer| peer.blocked || peer.has_unsent()) {
            Some(peer) => peer.send_later(frame),
            None => self.hand_over(node, frame, out),
        }
    }

    /// Gives a frame to the transport.
    pub(super) fn hand_over(&mut self, node: NodeId, frame: Bytes, out: &mut Vec<Output>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.sends();
        }
        self.counters.messages_sent += 1;
        self.counters.bytes_sent += frame.len() as u64;
        out.push(Output::Send { node, frame });
    }

    pub(super) fn tell_interests(&mut self, node: NodeId, out: &mut Vec<Output>) {
        let interests = self.interests.to_wire();
        let told = wire::Interests { version: self.interests_version, interests };
        self.send(node, Kind::Interests(told), out);
    }
}

pub(super) fn round_gap_end<D>(peer: &Peer<D>) -> Duration {
    peer.round_began.map_or(Duration::ZERO, |began| began + ROUND_GAP)
}
