//! Which peers to dial, and when. No clock and no socket.
//!
//! Of two members the one with the lower peer id dials; the other waits a while before it tries, for the
//! case that only it can reach the first. A bootstrap address is dialled until the peer there is connected,
//! and again whenever it is not.

use std::collections::{BTreeSet, HashMap};

use libp2p::PeerId;

use crate::network::address::Bootstrap;
use crate::penalties::{MAX_REFUSED_PAUSE_MS, MAX_UNREACHABLE_PAUSE_MS, pause_ms};

/// Time for which the side with the higher peer id leaves dialling to the other.
const HIGHER_WAITS_MS: u64 = 5_000;
/// The longest delay before a lost connection is dialled again.
const AGAIN_MS: u64 = 100;
/// Dials that are in progress at the same time.
const MAX_DIALS: usize = 16;

/// Target of a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    /// The bootstrap address with this index.
    Bootstrap(usize),
    /// A peer at its known addresses.
    Peer(PeerId),
}

/// Targets to dial now, and when to plan again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) dial: Vec<Target>,
    pub(crate) again_at_ms: Option<u64>,
}

/// Earlier attempts by target.
pub(crate) struct DialBook {
    own: PeerId,
    bootstrap: Vec<Entry>,
    peers: HashMap<PeerId, Attempts>,
}

struct Entry {
    at: Bootstrap,
    /// The peer that answered the last time.
    peer: Option<PeerId>,
    attempts: Attempts,
}

#[derive(Debug, Default)]
struct Attempts {
    failures: u32,
    next_ms: u64,
    dialing: bool,
    missing_since_ms: Option<u64>,
}

impl DialBook {
    pub(crate) fn new(own: PeerId, bootstrap: Vec<Bootstrap>) -> Self {
        let entry = |at: Bootstrap| {
            let peer = match &at {
                Bootstrap::Exact { peer, .. } => *peer,
                Bootstrap::Host { .. } => None,
            };
            Entry { at, peer, attempts: Attempts::default() }
        };
        Self { own, bootstrap: bootstrap.into_iter().map(entry).collect(), peers: HashMap::new() }
    }

    /// A bootstrap address.
    pub(crate) fn bootstrap(&self, index: usize) -> Option<&Bootstrap> {
        self.bootstrap.get(index).map(|entry| &entry.at)
    }

    /// The due targets, marked as being dialled. `known` are peers with an address, `connected` those with any
    /// connection, `waits_until` gives the end of a peer's penalty.
    pub(crate) fn plan(
        &mut self,
        now_ms: u64,
        known: &BTreeSet<PeerId>,
        connected: impl Fn(&PeerId) -> bool,
        waits_until: impl Fn(&PeerId) -> Option<u64>,
    ) -> Plan {
        self.peers.retain(|peer, attempts| known.contains(peer) || attempts.dialing);
        let under_way = self.peers.values().filter(|attempts| attempts.dialing).count()
            + self.bootstrap.iter().filter(|entry| entry.attempts.dialing).count();
        let mut plan = Plan::default();
        let mut look = |target: Target, attempts: &mut Attempts, peer: Option<&PeerId>, grace_ms: u64| {
            if attempts.dialing {
                return;
            }
            if peer.is_some_and(&connected) {
                attempts.missing_since_ms = None;
                return;
            }
            let missing_since_ms = *attempts.missing_since_ms.get_or_insert(now_ms);
            let penalty_ms = peer.and_then(&waits_until).unwrap_or(0);
            let due_ms = attempts.next_ms.max(missing_since_ms.saturating_add(grace_ms)).max(penalty_ms);
            if due_ms <= now_ms && under_way + plan.dial.len() < MAX_DIALS {
                attempts.dialing = true;
                plan.dial.push(target);
            } else if due_ms > now_ms {
                plan.again_at_ms = Some(plan.again_at_ms.map_or(due_ms, |at_ms| at_ms.min(due_ms)));
            }
        };
        for (index, entry) in self.bootstrap.iter_mut().enumerate() {
            look(Target::Bootstrap(index), &mut entry.attempts, entry.peer.as_ref(), 0);
        }
        for peer in known.iter().filter(|peer| **peer != self.own) {
            let grace_ms = if self.own < *peer { 0 } else { HIGHER_WAITS_MS };
            look(Target::Peer(*peer), self.peers.entry(*peer).or_default(), Some(peer), grace_ms);
        }
        plan
    }

    /// A peer answered. Whether it is a member is not known yet.
    pub(crate) fn reached(&mut self, target: Target, peer: PeerId) {
        if let Some(attempts) = self.attempts(target) {
            attempts.dialing = false;
        }
        if let Target::Bootstrap(index) = target
            && let Some(entry) = self.bootstrap.get_mut(index)
        {
            entry.peer = Some(peer);
        }
    }

    /// A member's channel was open for a while, or another one to it is.
    pub(crate) fn succeeded(&mut self, peer: PeerId, now_ms: u64, luck: u64) {
        let of_peer = self.peers.get_mut(&peer).into_iter();
        let of_bootstrap = self
            .bootstrap
            .iter_mut()
            .filter(|entry| entry.peer == Some(peer))
            .map(|entry| &mut entry.attempts);
        for attempts in of_peer.chain(of_bootstrap) {
            (attempts.failures, attempts.next_ms) = (0, now_ms.saturating_add(luck % AGAIN_MS));
        }
    }

    /// Records that no peer answered, or that the channel was too short.
    pub(crate) fn failed(&mut self, target: Target, now_ms: u64, luck: u64) {
        if let Some(attempts) = self.attempts(target) {
            attempts.dialing = false;
            attempts.failures = attempts.failures.saturating_add(1);
            attempts.next_ms =
                now_ms.saturating_add(pause_ms(attempts.failures, MAX_UNREACHABLE_PAUSE_MS, luck));
        }
    }

    /// Another attempt would fail as well for now.
    pub(crate) fn failed_for_long(&mut self, target: Target, now_ms: u64) {
        if let Some(attempts) = self.attempts(target) {
            attempts.dialing = false;
            attempts.next_ms = now_ms.saturating_add(MAX_REFUSED_PAUSE_MS);
        }
    }

    fn attempts(&mut self, target: Target) -> Option<&mut Attempts> {
        match target {
            Target::Bootstrap(index) => self.bootstrap.get_mut(index).map(|entry| &mut entry.attempts),
            Target::Peer(peer) => self.peers.get_mut(&peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> (PeerId, PeerId) {
        let (a, b) = (PeerId::random(), PeerId::random());
        if a < b { (a, b) } else { (b, a) }
    }

    #[test]
    fn the_lower_dials_at_once_and_the_higher_later() {
        let (low, high) = two();
        let mut book = DialBook::new(low, vec![]);
        let plan = book.plan(0, &BTreeSet::from([high]), |_| false, |_| None);
        assert_eq!(plan, Plan { dial: vec![Target::Peer(high)], again_at_ms: None });

        let mut book = DialBook::new(high, vec![]);
        let known = BTreeSet::from([low, high]);
        let plan = book.plan(1_000, &known, |_| false, |_| None);
        assert_eq!(plan, Plan { dial: vec![], again_at_ms: Some(6_000) });
        assert_eq!(book.plan(2_000, &known, |_| true, |_| None), Plan::default());
        assert_eq!(book.plan(7_000, &known, |_| false, |_| None).dial, []);
        assert_eq!(book.plan(12_000, &known, |_| false, |_| None).dial, [Target::Peer(low)]);
    }

    #[test]
    fn an_address_is_dialled_again_for_ever_and_less_often() {
        let (low, high) = two();
        let mut book = DialBook::new(high, vec!["pi:7071".parse().unwrap()]);
        let none = BTreeSet::new();
        let (mut now_ms, mut pauses) = (0, Vec::new());
        for _ in 0..10 {
            let plan = book.plan(now_ms, &none, |_| false, |_| None);
            assert_eq!(plan.dial, [Target::Bootstrap(0)]);
            assert_eq!(book.plan(now_ms, &none, |_| false, |_| None), Plan::default());
            book.failed(Target::Bootstrap(0), now_ms, 0);
            let next_ms = book.plan(now_ms, &none, |_| false, |_| None).again_at_ms.unwrap();
            pauses.push(next_ms - now_ms);
            now_ms = next_ms;
        }
        assert_eq!(pauses, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000, 5_000]);

        book.plan(now_ms, &none, |_| false, |_| None);
        book.reached(Target::Bootstrap(0), low);
        assert_eq!(book.plan(now_ms, &none, |peer| *peer == low, |_| None), Plan::default());
        book.succeeded(low, now_ms, 7);
        assert_eq!(book.plan(now_ms, &none, |_| false, |_| None).again_at_ms, Some(now_ms + 7));
        let waits = |_: &PeerId| Some(now_ms + 900);
        assert_eq!(book.plan(now_ms + 7, &none, |_| false, waits).again_at_ms, Some(now_ms + 900));
    }

    #[test]
    fn few_dials_are_under_way_at_once() {
        let (low, _) = two();
        let mut book = DialBook::new(low, vec!["pi:7071".parse().unwrap(); 100]);
        let plan = book.plan(0, &BTreeSet::new(), |_| false, |_| None);
        assert_eq!(plan.dial.len(), MAX_DIALS);
        book.failed(Target::Bootstrap(0), 0, 0);
        assert_eq!(book.plan(0, &BTreeSet::new(), |_| false, |_| None).dial, [Target::Bootstrap(16)]);
    }
}
