//! Status of this node and of its peers, as bytes: the transport does not read them.
//!
//! A load goes into the next batch of frames when it has changed and the last one is a second old: at the latest with the
//! heartbeat, never in a batch of its own. Facts go out when they change and when a channel opens.

use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::liveness::HEARTBEAT_MS;
use crate::status::{MAX_FACTS_BYTES, MAX_LOAD_BYTES, StatusError};

/// Round trips of which the median is reported.
const RECENT_ROUND_TRIPS: usize = 9;
/// The minimum between two facts on one channel.
const FACTS_INTERVAL: Duration = Duration::from_millis(100);
/// Facts of more bytes go out more seldom: each further piece of this size prolongs the interval by itself, so that facts
/// take at most 40 KiB/s of a channel.
const FACTS_BYTES_PER_INTERVAL: usize = 4 * 1_024;

/// The status of this node.
#[derive(Debug)]
pub(crate) struct LocalStatus {
    load: Mutex<Bytes>,
    facts: watch::Sender<Bytes>,
}

impl Default for LocalStatus {
    fn default() -> Self {
        Self { load: Mutex::default(), facts: watch::Sender::new(Bytes::new()) }
    }
}

impl LocalStatus {
    pub(crate) fn set_load(&self, load: Bytes) -> Result<(), StatusError> {
        check_length(&load, MAX_LOAD_BYTES)?;
        *self.load.lock() = load;
        Ok(())
    }

    pub(crate) fn set_facts(&self, facts: Bytes) -> Result<(), StatusError> {
        check_length(&facts, MAX_FACTS_BYTES)?;
        self.facts.send_if_modified(|current| {
            let is_changed = *current != facts;
            *current = facts;
            is_changed
        });
        Ok(())
    }

    pub(crate) fn load(&self) -> Bytes {
        self.load.lock().clone()
    }

    /// The facts, the current ones first. They are empty until there are any.
    pub(crate) fn facts(&self) -> watch::Receiver<Bytes> {
        let mut facts = self.facts.subscribe();
        facts.mark_changed();
        facts
    }
}

fn check_length(bytes: &Bytes, limit_bytes: usize) -> Result<(), StatusError> {
    match bytes.len() {
        bytes if bytes > limit_bytes => Err(StatusError::TooLong { bytes, limit_bytes }),
        _ => Ok(()),
    }
}

/// The time to wait after facts of this size were sent.
pub(crate) fn facts_interval(bytes: usize) -> Duration {
    let pieces = (bytes / FACTS_BYTES_PER_INTERVAL).min(MAX_FACTS_BYTES);
    FACTS_INTERVAL * (1 + pieces as u32)
}

/// The load that was sent on a channel.
#[derive(Debug, Default)]
pub(crate) struct SentLoad {
    load: Bytes,
    sent_at_ms: Option<u64>,
}

impl SentLoad {
    /// True if this load is to be sent now; then it counts as sent.
    pub(crate) fn is_due(&mut self, load: &Bytes, now_ms: u64) -> bool {
        let is_recent = self.sent_at_ms.is_some_and(|sent_ms| now_ms < sent_ms + HEARTBEAT_MS);
        if is_recent || *load == self.load {
            return false;
        }
        self.load = load.clone();
        self.sent_at_ms = Some(now_ms);
        true
    }
}

/// The status of a member with an open channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStatus {
    /// The member's number.
    pub node_id: u64,
    /// The number of the member's start.
    pub incarnation: u32,
    /// Its last load, and the time at which it came; `None` before the first. One that stays the same is not sent again.
    pub load: Option<(Bytes, Instant)>,
    /// Its last facts; `None` before the first, which older versions never send.
    pub facts: Option<Bytes>,
    /// Median of the round-trip times of the last 9 heartbeats; `None` before the first.
    pub rtt: Option<Duration>,
    /// The round-trip time of the last one.
    pub last_rtt: Option<Duration>,
    /// Number of answered heartbeats.
    pub heartbeats: usize,
}

/// What was received of a member's status.
#[derive(Debug, Default)]
pub(crate) struct ReceivedStatus {
    pub(crate) load: Option<(Bytes, Instant)>,
    pub(crate) facts: Option<Bytes>,
}

/// The last round trips.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips {
    recent_us: [u64; RECENT_ROUND_TRIPS],
    count: usize,
}

impl RoundTrips {
    pub(crate) fn add(&mut self, rtt_us: u64) {
        if let Some(oldest) = self.recent_us.get_mut(self.count % RECENT_ROUND_TRIPS) {
            *oldest = rtt_us.max(1);
            self.count += 1;
        }
    }

    pub(crate) fn last(&self) -> Option<Duration> {
        let last = self.count.checked_sub(1)? % RECENT_ROUND_TRIPS;
        self.recent_us.get(last).map(|us| Duration::from_micros(*us))
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The median; the lower one of an even number.
    pub(crate) fn median(&self) -> Option<Duration> {
        let mut sorted = self.recent_us;
        let known = sorted.get_mut(..self.count.min(RECENT_ROUND_TRIPS))?;
        known.sort_unstable();
        known.get(known.len().checked_sub(1)? / 2).map(|us| Duration::from_micros(*us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_the_last_nine() {
        let mut rtts = RoundTrips::default();
        assert_eq!(rtts.median(), None);
        rtts.add(500);
        assert_eq!(rtts.median(), Some(Duration::from_micros(500)));
        rtts.add(100);
        assert_eq!(rtts.median(), Some(Duration::from_micros(100)));
        assert_eq!((rtts.last(), rtts.count()), (Some(Duration::from_micros(100)), 2));
        for rtt_us in [1_000, 1_000, 20, 30, 40, 50, 60, 1_000, 1_000] {
            rtts.add(rtt_us);
        }
        assert_eq!(rtts.median(), Some(Duration::from_micros(60)));
    }

    #[test]
    fn a_load_is_sent_once_and_at_most_each_second() {
        let mut sent = SentLoad::default();
        assert!(!sent.is_due(&Bytes::new(), 0), "there is none");
        assert!(sent.is_due(&"a".into(), 100));
        assert!(!sent.is_due(&"b".into(), 1_099));
        assert!(!sent.is_due(&"a".into(), 1_100), "it has not changed");
        assert!(sent.is_due(&"b".into(), 1_100));
    }

    #[test]
    fn large_facts_go_out_more_seldom() {
        assert_eq!(facts_interval(100), Duration::from_millis(100));
        assert_eq!(facts_interval(MAX_FACTS_BYTES), Duration::from_millis(1_700));
    }
}
