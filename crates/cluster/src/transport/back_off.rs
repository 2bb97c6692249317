//! How long to leave a peer alone: longer each time, never the same for two.

use std::collections::HashMap;

use libp2p::PeerId;

const FIRST_MS: u64 = 500;
/// A peer that cannot be reached is tried at least this often: it may just have been switched on.
pub(crate) const UNREACHABLE_MAX_MS: u64 = 10_000;
/// A peer that was refused is tried, and let in to be checked, at least this often.
pub(crate) const REFUSED_MAX_MS: u64 = 60_000;
/// After so long without a refusal the pauses begin anew. That it was let in is no merit: what it is refused for comes later.
const FORGIVEN_MS: u64 = 5 * 60_000;
/// Peer ids cost nothing, so only so many that were refused are remembered.
const MAX_PENALTIES: usize = 1_024;

/// The pause after so many failures in a row: it doubles up to a limit, and between a half and the whole of
/// it is taken. `luck` is any number.
pub(crate) fn pause_ms(failures: u32, max_ms: u64, luck: u64) -> u64 {
    let whole = FIRST_MS.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(max_ms);
    let half = whole / 2;
    half + luck % (whole - half + 1)
}

/// Peers that were refused and have to wait.
#[derive(Debug, Default)]
pub(crate) struct Penalties {
    peers: HashMap<PeerId, Penalty>,
}

#[derive(Debug)]
struct Penalty {
    failures: u32,
    until_ms: u64,
}

impl Penalties {
    /// A peer was refused.
    pub(crate) fn refuse(&mut self, peer: PeerId, now_ms: u64, luck: u64) {
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
        penalty.until_ms = now_ms.saturating_add(pause_ms(penalty.failures, REFUSED_MAX_MS, luck));
    }

    /// Lets a peer come at once: it was let into the cluster anew.
    pub(crate) fn forgive(&mut self, peer: &PeerId) {
        self.peers.remove(peer);
    }

    /// Until when a peer has to wait; none if it may come.
    pub(crate) fn waits_until(&self, peer: &PeerId, now_ms: u64) -> Option<u64> {
        self.peers.get(peer).map(|penalty| penalty.until_ms).filter(|until_ms| *until_ms > now_ms)
    }
}

#[cfg(test)]
mod tests {
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
        fn a_pause_is_within_its_limits(failures in any::<u32>(), max_ms in 1_u64..100_000, luck in any::<u64>()) {
            let pause = pause_ms(failures, max_ms, luck);
            prop_assert!(pause <= max_ms && pause >= max_ms.min(FIRST_MS) / 2);
        }
    }
}
