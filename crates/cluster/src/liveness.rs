//! Times of heartbeats, and detection of peers that are down. No clock and no socket: time comes in as milliseconds of
//! any monotonic clock.

/// A heartbeat is sent after this time without another frame.
pub(crate) const HEARTBEAT_MS: u64 = 1_000;
/// A peer is down after this time without a byte from it.
pub(crate) const SILENCE_MS: u64 = 4_000;
/// The minimum between two heartbeats on a busy channel, which are for the round-trip time.
const PROBE_MS: u64 = 5_000;
/// This node stood still if a check comes so much later than it was due.
const STALL_MS: u64 = 500;

/// Liveness of one channel.
#[derive(Debug)]
pub(crate) struct Liveness {
    reading: Reading,
    sent_at_ms: u64,
    probed_at_ms: u64,
    /// Time of the next check at the latest.
    check_at_ms: u64,
}

/// State of reading; the silence of a peer counts only while this node reads, and does not stand still.
#[derive(Debug, Clone, Copy)]
enum Reading {
    /// The last bytes came at this time.
    Active { received_at_ms: u64 },
    /// This node does not read from the peer.
    Paused,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Send a heartbeat; [`Liveness::probed`] says that it was.
    Heartbeat,
    /// The peer is down: nothing came from it for too long.
    Down,
    /// No step is due yet.
    Nothing {
        /// Time of the next check, in milliseconds.
        until_ms: u64,
    },
}

impl Liveness {
    /// A channel on which both sides have just sent something.
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            reading: Reading::Active { received_at_ms: now_ms },
            sent_at_ms: now_ms,
            probed_at_ms: 0,
            check_at_ms: now_ms + HEARTBEAT_MS,
        }
    }

    /// Something arrived, if only a part of a frame.
    pub(crate) fn received(&mut self, now_ms: u64) {
        if let Reading::Active { received_at_ms } = &mut self.reading {
            *received_at_ms = now_ms;
        }
    }

    /// Something was sent.
    pub(crate) fn sent(&mut self, now_ms: u64) {
        self.sent_at_ms = now_ms;
    }

    /// A heartbeat is in flight.
    pub(crate) fn probed(&mut self, now_ms: u64) {
        (self.sent_at_ms, self.probed_at_ms) = (now_ms, now_ms);
    }

    /// Records that this node stops reading for a while: the peer does not count as silent.
    pub(crate) fn pause(&mut self) {
        self.reading = Reading::Paused;
    }

    /// Records that this node reads again.
    pub(crate) fn resume(&mut self, now_ms: u64) {
        self.reading = Reading::Active { received_at_ms: now_ms };
    }

    /// The step that is due at this time. The caller comes again at once, or when the time that it is told has come: if it comes
    /// later, this node was paused or busy, and what its peer has sent meanwhile may wait to be read.
    pub(crate) fn due(&mut self, now_ms: u64) -> Due {
        let late_ms = now_ms.saturating_sub(self.check_at_ms);
        if let (true, Reading::Active { received_at_ms }) = (late_ms >= STALL_MS, &mut self.reading) {
            *received_at_ms = received_at_ms.saturating_add(late_ms).min(now_ms);
        }
        let due = self.step(now_ms);
        self.check_at_ms = match due {
            Due::Nothing { until_ms } => until_ms,
            Due::Heartbeat | Due::Down => now_ms + HEARTBEAT_MS,
        };
        due
    }

    fn step(&self, now_ms: u64) -> Due {
        let down_at_ms = match self.reading {
            Reading::Active { received_at_ms } => received_at_ms.saturating_add(SILENCE_MS),
            Reading::Paused => u64::MAX,
        };
        if now_ms >= down_at_ms {
            return Due::Down;
        }
        let speak_at_ms = (self.sent_at_ms.saturating_add(HEARTBEAT_MS))
            .min(self.probed_at_ms.saturating_add(PROBE_MS).max(self.sent_at_ms));
        if now_ms >= speak_at_ms {
            return Due::Heartbeat;
        }
        Due::Nothing { until_ms: speak_at_ms.min(down_at_ms) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_idle_channel_has_a_heartbeat_and_a_silent_peer_is_down() {
        let mut channel = Liveness::new(10_000);
        channel.probed(10_000);
        assert_eq!(channel.due(10_000), Due::Nothing { until_ms: 11_000 });
        assert_eq!(channel.due(11_000), Due::Heartbeat);
        channel.probed(11_000);
        channel.sent(11_900);
        assert_eq!(channel.due(12_000), Due::Nothing { until_ms: 12_900 });
        channel.probed(12_900);
        assert_eq!(channel.due(12_900), Due::Nothing { until_ms: 13_900 });
        channel.probed(13_900);
        assert_eq!(channel.due(13_999), Due::Nothing { until_ms: 14_000 });
        assert_eq!(channel.due(14_000), Due::Down);
        channel.received(14_000);
        assert_eq!(channel.due(14_000), Due::Nothing { until_ms: 14_900 });
    }

    #[test]
    fn a_node_that_does_not_read_blames_no_peer() {
        let mut channel = Liveness::new(0);
        channel.probed(0);
        channel.pause();
        assert_eq!(channel.due(100_000), Due::Heartbeat);
        channel.probed(100_000);
        channel.resume(100_500);
        assert_eq!(channel.due(100_500), Due::Nothing { until_ms: 101_000 });
        for now_ms in [101_000, 102_000, 103_000, 104_000] {
            assert_eq!(channel.due(now_ms), Due::Heartbeat);
            channel.probed(now_ms);
        }
        assert_eq!(channel.due(104_500), Due::Down);
    }

    #[test]
    fn a_node_that_stood_still_hears_its_peers_before_it_blames_them() {
        let mut channel = Liveness::new(0);
        channel.probed(0);
        assert_eq!(channel.due(0), Due::Nothing { until_ms: 1_000 });
        // A pause of the machine of 8 seconds.
        for now_ms in [9_000, 10_000, 11_000] {
            assert_eq!(channel.due(now_ms), Due::Heartbeat);
            channel.probed(now_ms);
        }
        assert_eq!(channel.due(12_000), Due::Down, "3 seconds more, with the one before the pause");
        channel.received(9_100);
        assert_eq!(channel.due(12_000), Due::Heartbeat, "what it sent has been read");
    }

    #[test]
    fn a_busy_channel_is_measured_now_and_then() {
        let mut channel = Liveness::new(0);
        channel.probed(0);
        let mut probes = 0;
        for now_ms in (0..60_000).step_by(100) {
            channel.sent(now_ms);
            channel.received(now_ms);
            if channel.due(now_ms) == Due::Heartbeat {
                channel.probed(now_ms);
                probes += 1;
            }
        }
        assert_eq!(probes, 11);
    }

    proptest! {
        /// A caller that sleeps until `until_ms` never sees the same moment twice, and never sleeps past a second.
        #[test]
        fn waiting_makes_progress(received in 0_u64..10_000, sent in 0_u64..10_000, now in 10_000_u64..20_000) {
            let mut channel = Liveness::new(0);
            channel.received(received);
            channel.probed(sent);
            if let Due::Nothing { until_ms } = channel.due(now) {
                prop_assert!(until_ms > now && until_ms <= now + HEARTBEAT_MS);
                let waits = matches!(channel.due(until_ms), Due::Nothing { .. });
                prop_assert!(!waits);
            }
        }
    }
}
