//! Pauses before a peer is dialled or accepted again, with exponential back-off and jitter. No clock and no socket.
//!
//! The only place that decides such a pause: after a refused handshake, after a forbidden frame, and after
//! [`Output::Disconnect`](crate::replication::Output::Disconnect).

use std::collections::HashMap;
use std::hash::Hash;

const FIRST_PAUSE_MS: u64 = 500;
/// The longest pause before an unreachable peer is dialled again: it may just have been switched on.
pub(crate) const MAX_UNREACHABLE_PAUSE_MS: u64 = 10_000;
/// The longest pause before a refused peer is dialled, or its handshake is read, again.
pub(crate) const MAX_REFUSED_PAUSE_MS: u64 = 60_000;
/// After this time without a refusal the pauses start from the shortest again. An accepted handshake does not reset them:
/// forbidden frames come after it.
const FORGIVEN_MS: u64 = 5 * 60_000;
/// Penalties that are remembered; anybody can make any number of peer ids.
const MAX_PENALTIES: usize = 1_024;

/// The pause after `failures` in a row, in milliseconds. It doubles with each failure up to `max_ms`; `random` picks a
/// value between half of that and all of it.
pub(crate) fn pause_ms(failures: u32, max_ms: u64, random: u64) -> u64 {
    let whole = FIRST_PAUSE_MS.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(max_ms);
    let half = whole / 2;
    half + random % (whole - half + 1)
}

/// Refused peers and their pauses.
#[derive(Debug)]
pub(crate) struct Penalties<Id> {
    peers: HashMap<Id, Penalty>,
}

#[derive(Debug)]
struct Penalty {
    failures: u32,
    until_ms: u64,
}

impl<Id> Default for Penalties<Id> {
    fn default() -> Self {
        Self { peers: HashMap::new() }
    }
}

impl<Id: Copy + Eq + Hash> Penalties<Id> {
    /// Starts or prolongs the pause of a refused peer, and returns its end.
    pub(crate) fn refuse(&mut self, peer: Id, now_ms: u64, random: u64) -> u64 {
        if self.peers.len() >= MAX_PENALTIES && !self.peers.contains_key(&peer) {
            let soonest =
                self.peers.iter().min_by_key(|(_, penalty)| penalty.until_ms).map(|(peer, _)| *peer);
            soonest.map(|peer| self.peers.remove(&peer));
        }
        let penalty = self.peers.entry(peer).or_insert(Penalty { failures: 0, until_ms: 0 });
        if now_ms.saturating_sub(penalty.until_ms) > FORGIVEN_MS {
            penalty.failures = 0;
        }
        penalty.failures = penalty.failures.saturating_add(1);
        penalty.until_ms = now_ms.saturating_add(pause_ms(penalty.failures, MAX_REFUSED_PAUSE_MS, random));
        penalty.until_ms
    }

    /// Removes the penalty of a peer: it was admitted anew, or behaved well.
    pub(crate) fn forgive(&mut self, peer: &Id) {
        self.peers.remove(peer);
    }

    /// The end of a peer's pause; `None` if it is over or there is none.
    pub(crate) fn waits_until(&self, peer: &Id, now_ms: u64) -> Option<u64> {
        self.peers.get(peer).map(|penalty| penalty.until_ms).filter(|until_ms| *until_ms > now_ms)
    }
}

#[cfg(test)]
mod tests {
    use libp2p::PeerId;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pauses_grow_to_their_limit() {
        let longest: Vec<u64> = (1..=9).map(|failures| pause_ms(failures, 60_000, u64::MAX)).collect();
        assert!(longest.windows(2).all(|pair| pair[0] <= pair[1] || pair[1] > 30_000), "{longest:?}");
        assert_eq!(pause_ms(1, 60_000, 0), 250);
        assert_eq!(pause_ms(8, 60_000, 0), 30_000);
    }

    #[test]
    fn a_refused_peer_waits_and_a_good_one_is_forgiven() {
        let (mut penalties, peer) = (Penalties::default(), PeerId::random());
        penalties.refuse(peer, 1_000, 0);
        assert_eq!(penalties.waits_until(&peer, 1_000), Some(1_250));
        assert_eq!(penalties.waits_until(&peer, 1_250), None);
        penalties.refuse(peer, 2_000, 0);
        assert_eq!(penalties.waits_until(&peer, 2_000), Some(2_500));
        penalties.forgive(&peer);
        assert_eq!(penalties.waits_until(&peer, 2_000), None);
        // The pauses grow, unless nothing happened for long.
        for (at_ms, pause_ms) in [(10_000, 250), (10_500, 500), (400_000, 250)] {
            penalties.refuse(peer, at_ms, 0);
            assert_eq!(penalties.waits_until(&peer, at_ms), Some(at_ms + pause_ms));
        }
        for _ in 0..3_000 {
            penalties.refuse(PeerId::random(), 1_000, 0);
        }
        assert_eq!(penalties.peers.len(), MAX_PENALTIES);
    }

    proptest! {
        #[test]
        fn a_pause_is_within_its_limits(failures in any::<u32>(), max_ms in 1_u64..100_000, random in any::<u64>()) {
            let pause = pause_ms(failures, max_ms, random);
            prop_assert!(pause <= max_ms && pause >= max_ms.min(FIRST_PAUSE_MS) / 2);
        }
    }
}
