//! The keep alive of a client: how long it may send nothing.

use std::time::{Duration, Instant};

/// Extra time for a silent client, in which packets that have arrived already are read: the node itself may have been
/// too busy to read them.
const LAST_LOOK: Duration = Duration::from_millis(50);

/// The keep alive of a client. Time in which the broker itself does not read the client does not count.
pub(super) struct KeepAlive {
    /// Maximum silence of the client: one and a half times the Keep Alive (MQTT 5, section 3.1.2.10); `None` for no
    /// limit.
    timeout: Option<Duration>,
    last_packet: Instant,
    silence: Silence,
    /// True if the client was being read at the last call of `set_reading`.
    is_reading: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    WithinTimeout,
    /// No packet came within the timeout. The buffer is checked once more for packets that have arrived meanwhile, until this time.
    LastLook {
        until: Instant,
    },
}

impl KeepAlive {
    /// `seconds`: the Keep Alive in force; 0 for none.
    pub(super) fn new(seconds: u16, now: Instant) -> KeepAlive {
        KeepAlive {
            timeout: (seconds > 0).then(|| Duration::from_millis(1500 * u64::from(seconds))),
            last_packet: now,
            silence: Silence::WithinTimeout,
            is_reading: true,
        }
    }

    /// A whole packet came; single bytes do not count (MQTT 5, section 3.1.2.10).
    pub(super) fn packet(&mut self, now: Instant) {
        self.last_packet = now;
        self.silence = Silence::WithinTimeout;
    }

    /// The client was not read until now, so its silence does not count.
    pub(super) fn restart(&mut self, now: Instant) {
        self.packet(now);
    }

    /// Records that the broker starts or stops reading the client.
    pub(super) fn set_reading(&mut self, is_reading: bool, now: Instant) {
        if is_reading && !self.is_reading {
            self.restart(now);
        }
        self.is_reading = is_reading;
    }

    /// Time at which the client has been silent for too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let timeout = self.timeout?;
        Some(match self.silence {
            Silence::WithinTimeout => self.last_packet + timeout,
            Silence::LastLook { until } => until,
        })
    }

    /// Checks the deadline; gives the timeout if the client has been silent for too long, the last look included.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Duration> {
        self.deadline().filter(|deadline| now >= *deadline)?;
        match self.silence {
            Silence::WithinTimeout => {
                // From now on: the whole node may have stood still since the deadline.
                self.silence = Silence::LastLook { until: now + LAST_LOOK };
                None
            }
            Silence::LastLook { .. } => self.timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_client_gets_one_last_look() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::new(10, start);
        let timeout = Duration::from_secs(15);
        assert_eq!(keep_alive.deadline(), Some(start + timeout));
        assert_eq!(keep_alive.expired(start + timeout - Duration::from_millis(1)), None);
        assert_eq!(keep_alive.expired(start + timeout), None);
        assert_eq!(keep_alive.deadline(), Some(start + timeout + LAST_LOOK));
        assert_eq!(keep_alive.expired(start + timeout + LAST_LOOK), Some(timeout));
    }

    #[test]
    fn a_node_that_stood_still_looks_before_it_blames_the_client() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::new(10, start);
        let awake = start + Duration::from_secs(60);
        assert_eq!(keep_alive.expired(awake), None);
        assert_eq!(keep_alive.deadline(), Some(awake + LAST_LOOK));
        assert_eq!(keep_alive.expired(awake), None, "the last look goes on");
        assert_eq!(keep_alive.expired(awake + LAST_LOOK), Some(Duration::from_secs(15)));
    }

    #[test]
    fn a_packet_in_the_last_look_saves_the_client() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::new(10, start);
        let late = start + Duration::from_secs(15);
        assert_eq!(keep_alive.expired(late), None);
        keep_alive.packet(late);
        assert_eq!(keep_alive.deadline(), Some(late + Duration::from_secs(15)));
        assert_eq!(keep_alive.expired(late + Duration::from_secs(15)), None);
    }

    #[test]
    fn time_in_which_the_client_is_not_read_does_not_count() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::new(10, start);
        keep_alive.set_reading(false, start);
        let later = start + Duration::from_secs(60);
        keep_alive.set_reading(true, later);
        assert_eq!(keep_alive.deadline(), Some(later + Duration::from_secs(15)));
        keep_alive.set_reading(true, later + Duration::from_secs(5));
        assert_eq!(keep_alive.deadline(), Some(later + Duration::from_secs(15)));
    }

    #[test]
    fn a_keep_alive_of_0_never_expires() {
        let start = Instant::now();
        let mut keep_alive = KeepAlive::new(0, start);
        assert_eq!(keep_alive.deadline(), None);
        assert_eq!(keep_alive.expired(start + Duration::from_secs(1 << 20)), None);
    }
}
