//! How much of a node's data may be in flight to one peer. No clock, no socket.
//!
//! A link that is slower than the sender has a queue somewhere: in this kernel, in a QUIC stream, in a router. Whatever stands
//! in it comes before the next heartbeat, the next facts and the next call. So what is sent has marks, which are heartbeats,
//! and what no answer has come for is limited to what the link carried in the last round trip, and a quarter of a second
//! more. The idea is that of LEDBAT (RFC 6817): the delay says when a queue is building up.

use std::collections::VecDeque;

/// Time that data may wait in queues, beside the round trip of a quiet link, in microseconds.
const QUEUE_US: u64 = 250_000;
/// Data between two marks, in bytes.
const MARK_BYTES: u64 = 16 << 10;
/// Limits of the window, in bytes. The least is enough for two marks.
const MIN_WINDOW_BYTES: u64 = 2 * MARK_BYTES;
const MAX_WINDOW_BYTES: u64 = 4 << 20;
const FIRST_WINDOW_BYTES: u64 = 64 << 10;
/// Heartbeats whose answers are waited for. A peer that answers none is given no more of them.
const MAX_MARKS: usize = 1_024;

/// What is in flight to a peer.
#[derive(Debug)]
pub(crate) struct Pacing {
    window_bytes: u64,
    /// Data that was sent, since the beginning.
    sent_bytes: u64,
    /// What of it has arrived for certain.
    arrived_bytes: u64,
    marks: VecDeque<Mark>,
    /// Token of the last mark.
    last_token: u64,
    /// Round trip of a quiet link; `None` until it was measured.
    quiet_us: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    token: u64,
    purpose: ProbePurpose,
    /// Data that was sent before it, since the beginning.
    sent_bytes: u64,
    /// Part of it that was in flight.
    in_flight_bytes: u64,
}

/// Why a heartbeat was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbePurpose {
    /// To show that this node is alive, and to measure the round trip.
    Liveness,
    /// To see how fast data arrives.
    Pacing,
}

impl Default for Pacing {
    fn default() -> Self {
        Self {
            window_bytes: FIRST_WINDOW_BYTES,
            sent_bytes: 0,
            arrived_bytes: 0,
            marks: VecDeque::new(),
            last_token: 0,
            quiet_us: None,
        }
    }
}

impl Pacing {
    /// True if more data may be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight_bytes() < self.window_bytes
    }

    /// Data is sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent_bytes += bytes as u64;
    }

    /// True if a mark has to follow the data that was sent last: without one nothing would open the window again.
    pub(crate) fn needs_mark(&self) -> bool {
        let marked_bytes = self.marks.back().map_or(self.arrived_bytes, |mark| mark.sent_bytes);
        let unmarked_bytes = self.sent_bytes - marked_bytes;
        unmarked_bytes >= MARK_BYTES || (unmarked_bytes > 0 && !self.has_room())
    }

    /// A heartbeat goes behind what was sent: returns its token, which is the time in microseconds. Of several heartbeats of
    /// one time each has a later one.
    pub(crate) fn mark(&mut self, now_us: u64) -> u64 {
        self.push(now_us.max(self.last_token + 1), ProbePurpose::Pacing)
    }

    /// A heartbeat that waited goes behind what was sent: returns its token.
    pub(crate) fn heartbeat(&mut self, sent_us: u64) -> u64 {
        self.push(sent_us.max(self.last_token + 1), ProbePurpose::Liveness)
    }

    fn push(&mut self, token: u64, purpose: ProbePurpose) -> u64 {
        if self.marks.len() < MAX_MARKS || purpose == ProbePurpose::Pacing {
            let (sent_bytes, in_flight_bytes) = (self.sent_bytes, self.in_flight_bytes());
            self.marks.push_back(Mark { token, purpose, sent_bytes, in_flight_bytes });
        }
        self.last_token = token;
        token
    }

    /// The answer to a heartbeat came after this time. Returns what that heartbeat was for.
    pub(crate) fn answered(&mut self, token: u64, round_trip_us: u64) -> ProbePurpose {
        let mut purpose = ProbePurpose::Liveness;
        // Of several heartbeats the peer may answer the last one alone.
        while let Some(mark) = self.marks.pop_front_if(|mark| mark.token <= token) {
            purpose = mark.purpose;
            self.arrived_bytes = mark.sent_bytes;
            if mark.token == token {
                self.measured(mark.in_flight_bytes, round_trip_us.max(1));
            }
        }
        purpose
    }

    fn measured(&mut self, in_flight_bytes: u64, round_trip_us: u64) {
        let quiet_us = match self.quiet_us {
            Some(quiet_us) if round_trip_us >= quiet_us => {
                // A route may have become longer: only a link without data of this node says so.
                let is_quiet = in_flight_bytes < MARK_BYTES;
                quiet_us + if is_quiet { (round_trip_us - quiet_us) / 8 } else { 0 }
            }
            _ => round_trip_us,
        };
        self.quiet_us = Some(quiet_us);
        // Data in flight arrived within the round trip: that is the rate of the link, or less.
        let target_us = u128::from(quiet_us + QUEUE_US);
        let carried_bytes =
            u64::try_from(u128::from(in_flight_bytes) * target_us / u128::from(round_trip_us))
                .unwrap_or(u64::MAX);
        let window_bytes = match u128::from(round_trip_us) > target_us {
            true => carried_bytes.min(self.window_bytes),
            false => carried_bytes.min(2 * self.window_bytes).max(self.window_bytes),
        };
        self.window_bytes = window_bytes.clamp(MIN_WINDOW_BYTES, MAX_WINDOW_BYTES);
    }

    fn in_flight_bytes(&self) -> u64 {
        self.sent_bytes - self.arrived_bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A link with a rate and a delay each way, in virtual time.
    struct Link {
        bytes_per_second: u64,
        delay_us: u64,
        now_us: u64,
        free_us: u64,
        answers: VecDeque<(u64, u64)>,
    }

    impl Link {
        fn new(bytes_per_second: u64, delay_us: u64) -> Self {
            Self { bytes_per_second, delay_us, now_us: 1, free_us: 0, answers: VecDeque::new() }
        }

        fn carry(&mut self, bytes: u64) {
            let begins_us = self.free_us.max(self.now_us);
            self.free_us = begins_us + bytes * 1_000_000 / self.bytes_per_second;
        }

        /// Sends as much as the pacing allows for this time; returns the bytes, and the longest wait of a heartbeat.
        fn run(&mut self, pacing: &mut Pacing, for_us: u64, frame_bytes: usize) -> (u64, u64) {
            let (end_us, mut sent_bytes, mut longest_us) = (self.now_us + for_us, 0, 0);
            while self.now_us < end_us {
                while pacing.has_room() {
                    pacing.sent(frame_bytes);
                    sent_bytes += frame_bytes as u64;
                    self.carry(frame_bytes as u64);
                    if pacing.needs_mark() {
                        let token = pacing.mark(self.now_us);
                        self.answers.push_back((self.free_us + 2 * self.delay_us, token));
                    }
                }
                let (at_us, token) =
                    self.answers.pop_front().expect("a mark is in flight while the window is closed");
                self.now_us = self.now_us.max(at_us);
                let round_trip_us = self.now_us.saturating_sub(token);
                longest_us = longest_us.max(round_trip_us);
                pacing.answered(token, round_trip_us);
            }
            (sent_bytes, longest_us)
        }
    }

    #[test]
    fn a_slow_link_is_full_and_its_queue_is_short() {
        for (bytes_per_second, delay_us) in
            [(150_000, 0), (150_000, 40_000), (1_000_000, 5_000), (1_000_000, 300_000)]
        {
            let (mut pacing, mut link) = (Pacing::default(), Link::new(bytes_per_second, delay_us));
            assert_eq!(pacing.heartbeat(link.now_us), 1);
            link.now_us += 2 * delay_us + 1;
            assert_eq!(pacing.answered(1, 2 * delay_us + 1), ProbePurpose::Liveness);
            link.run(&mut pacing, 10_000_000, 4_000);
            let (sent_bytes, longest_us) = link.run(&mut pacing, 20_000_000, 4_000);
            assert!(sent_bytes >= 19 * bytes_per_second, "{bytes_per_second} {delay_us}: {sent_bytes}");
            let least_us = MIN_WINDOW_BYTES * 1_000_000 / bytes_per_second;
            let most_us = 2 * delay_us + QUEUE_US.max(least_us) + 60_000;
            assert!(longest_us <= most_us, "{bytes_per_second} {delay_us}: {longest_us}");
        }
    }

    #[test]
    fn a_fast_link_is_not_held_up() {
        let (mut pacing, mut link) = (Pacing::default(), Link::new(1_000_000_000, 500));
        let (sent_bytes, _) = link.run(&mut pacing, 1_000_000, 32_000);
        assert!(sent_bytes > 900_000_000, "{sent_bytes}");
    }

    #[test]
    fn a_pause_of_the_peer_makes_the_window_small_for_a_moment() {
        let (mut pacing, mut link) = (Pacing::default(), Link::new(10_000_000, 1_000));
        link.run(&mut pacing, 2_000_000, 4_000);
        link.free_us += 8_000_000;
        link.run(&mut pacing, 8_500_000, 4_000);
        let (sent_bytes, _) = link.run(&mut pacing, 2_000_000, 4_000);
        assert!(sent_bytes > 18_000_000, "{sent_bytes}");
    }

    proptest! {
        /// Whatever is sent, and whatever the peer leaves out, an answer to the last mark opens the window.
        #[test]
        fn the_window_never_stays_closed(steps in proptest::collection::vec((1_usize..100_000, 0_u64..2_000_000, any::<bool>()), 1..200)) {
            let mut pacing = Pacing::default();
            let (mut now_us, mut last) = (0, None);
            for (bytes, passed_us, is_answered) in steps {
                now_us += passed_us;
                if pacing.has_room() {
                    pacing.sent(bytes);
                    if pacing.needs_mark() {
                        last = Some(pacing.mark(now_us));
                    }
                }
                prop_assert!(pacing.has_room() || last.is_some());
                if is_answered && let Some(token) = last.take() {
                    pacing.answered(token, now_us.saturating_sub(token));
                    prop_assert!(pacing.has_room());
                }
            }
        }
    }
}
