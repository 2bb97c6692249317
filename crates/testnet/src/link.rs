//! One direction of a link: when a packet that enters it arrives, or why it does not. No I/O, no clock.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Properties of one direction of a link. The default is a perfect one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Conditions {
    /// Time from one end to the other.
    pub delay: Duration,
    /// Upper bound of a random addition to `delay`. Packets may overtake each other.
    pub jitter: Duration,
    /// Lost packets of a thousand.
    pub loss_per_mille: u16,
    /// Unlimited if absent.
    pub bandwidth: Option<Bandwidth>,
}

/// A rate, and the queue in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bandwidth {
    /// Bytes of IP packets in a second; at least 1.
    pub bytes_per_second: u64,
    /// Bytes that may wait. A packet that does not fit is dropped.
    pub queue_bytes: u64,
}

impl Conditions {
    /// A link that only delays.
    pub fn delayed(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// The same with a rate, and a queue of a quarter of a second (at least 64 KiB).
    #[must_use]
    pub fn with_rate(self, bytes_per_second: u64) -> Self {
        let queue_bytes = (bytes_per_second / 4).max(64 << 10);
        Self { bandwidth: Some(Bandwidth { bytes_per_second, queue_bytes }), ..self }
    }

    /// The same with jitter.
    #[must_use]
    pub fn with_jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }

    /// The same with losses.
    #[must_use]
    pub fn with_loss(self, loss_per_mille: u16) -> Self {
        Self { loss_per_mille, ..self }
    }
}

/// Counts of one direction of a link, of whole IP packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Packets that arrived.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets lost by chance.
    pub lost: u64,
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Packets that met a cut, also those in flight.
    pub cut: u64,
}

/// One direction of a link.
pub(crate) struct Pipe {
    pub(crate) conditions: Conditions,
    pub(crate) is_cut: bool,
    pub(crate) traffic: Traffic,
    /// When the last accepted packet has left the queue.
    busy_until: Option<Instant>,
    random: StdRng,
}

impl Pipe {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            conditions: Conditions::default(),
            is_cut: false,
            traffic: Traffic::default(),
            busy_until: None,
            random: StdRng::seed_from_u64(seed),
        }
    }

    /// When a packet of `bytes` that enters at `now` arrives; none if it is dropped.
    pub(crate) fn enter(&mut self, bytes: usize, now: Instant) -> Option<Instant> {
        let Conditions { delay, jitter, loss_per_mille, bandwidth } = self.conditions;
        if self.is_cut {
            self.traffic.cut += 1;
            return None;
        }
        // No draw where nothing depends on it: the losses of a seed stay the same if jitter is added.
        if loss_per_mille > 0 && self.random.random_range(0..1000) < loss_per_mille {
            self.traffic.lost += 1;
            return None;
        }
        let mut at = now;
        if let Some(Bandwidth { bytes_per_second, queue_bytes }) = bandwidth {
            let time_of = |bytes: u64| {
                let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second.max(1));
                Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
            };
            let begins = self.busy_until.map_or(now, |busy| busy.max(now));
            if begins - now > time_of(queue_bytes) {
                self.traffic.overflowed += 1;
                return None;
            }
            at = begins + time_of(bytes as u64);
            self.busy_until = Some(at);
        }
        if !jitter.is_zero() {
            at += self.random.random_range(Duration::ZERO..=jitter);
        }
        Some(at + delay)
    }

    /// Counts a packet at the far end; false if the link was cut while it was in flight.
    pub(crate) fn leave(&mut self, bytes: usize) -> bool {
        if self.is_cut {
            self.traffic.cut += 1;
            return false;
        }
        self.traffic.packets += 1;
        self.traffic.bytes += bytes as u64;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pipe(conditions: Conditions, seed: u64) -> Pipe {
        Pipe { conditions, ..Pipe::new(seed) }
    }

    #[test]
    fn a_rate_spaces_packets_and_its_queue_is_bounded() {
        let bandwidth = Some(Bandwidth { bytes_per_second: 1_000_000, queue_bytes: 3_000 });
        let delay = Duration::from_millis(41);
        let mut pipe = pipe(Conditions { delay, bandwidth, ..Conditions::default() }, 1);
        let now = Instant::now();
        let arrivals: Vec<_> = (0..8).map(|_| pipe.enter(1_000, now)).collect();
        let expected = |number: u64| Some(now + delay + Duration::from_millis(number + 1));
        // One is sent, three wait: a fifth may begin when 3,000 bytes are in front of it.
        let fits: Vec<_> = (0..4).map(expected).collect();
        assert_eq!(arrivals[..4], fits);
        assert_eq!(arrivals[4..], [None; 4]);
        assert_eq!(pipe.traffic.overflowed, 4);
        let later = now + Duration::from_secs(1);
        assert_eq!(pipe.enter(1_000, later), Some(later + delay + Duration::from_millis(1)));
    }

    #[test]
    fn losses_repeat_with_their_seed() {
        let now = Instant::now();
        let lost = |seed| {
            let mut pipe = pipe(Conditions::default().with_loss(100), seed);
            (0..10_000).map(|_| pipe.enter(100, now).is_none()).collect::<Vec<_>>()
        };
        assert_eq!(lost(7), lost(7));
        assert_ne!(lost(7), lost(8));
        let count = lost(7).iter().filter(|lost| **lost).count();
        assert!((900..1100).contains(&count), "{count} of 10,000 with 100 per mille");
    }

    #[test]
    fn a_cut_drops_what_enters_and_what_is_on_its_way() {
        let mut pipe = pipe(Conditions::default(), 1);
        let now = Instant::now();
        assert_eq!(pipe.enter(100, now), Some(now));
        pipe.is_cut = true;
        assert!(!pipe.leave(100));
        assert_eq!(pipe.enter(100, now), None);
        pipe.is_cut = false;
        assert!(pipe.leave(100));
        assert_eq!(pipe.traffic, Traffic { packets: 1, bytes: 100, cut: 2, ..Traffic::default() });
    }

    #[test]
    fn jitter_stays_within_its_bound() {
        let (delay, jitter) = (Duration::from_millis(5), Duration::from_millis(3));
        let mut pipe = pipe(Conditions::delayed(delay).with_jitter(jitter), 3);
        let now = Instant::now();
        let times: Vec<_> = (0..1000).map(|_| pipe.enter(1, now).unwrap() - now).collect();
        assert!(times.iter().all(|time| (delay..=delay + jitter).contains(time)));
        assert!(times.iter().any(|time| *time < delay + jitter / 10));
        assert!(times.iter().any(|time| *time > delay + jitter * 9 / 10));
    }
}
