//! Throttle of replication: after each sending it waits for a cooldown, so that functions keep the processor.

use std::time::{Duration, Instant};

use edgefaas_cluster::TaskTime;

use super::pressure;

/// Minimum cooldown, as a multiple of the processor time that replication took since the previous sending: on an idle
/// machine replication uses at most a ninth of a core.
const MIN_FACTOR: f64 = 8.0;
/// Cooldown factor for each other member, if the product is larger than the minimum. The cost of a round and the number of
/// senders grow with the number of members; with this factor the traffic of all members together does not grow with it,
/// until the maximum cooldown is reached.
const FACTOR_PER_MEMBER: f64 = 1.5;
/// Cooldown, as a multiple of the processor time, while objects of a round wait to be sent. Functions on another node may wait for
/// them, so they get four fifths of a core, and share it with other work as the scheduler does.
const ROUND_FACTOR: f64 = 0.25;
/// Maximum pressure that counts: a cooldown under pressure is at most 20 times as long.
const MAX_PRESSURE: f64 = 0.95;
/// Maximum cooldown.
const MAX_COOLDOWN: Duration = Duration::from_millis(250);
/// Cost of a poll of a task beyond its own time: waking it, and the kernel's work for its message.
const TURN: Duration = Duration::from_micros(10);
/// Delay of a timer beyond which other tasks use the processor too. Applies if the kernel does not report pressure.
const TIMER_GRAIN: Duration = Duration::from_millis(1);
/// Number of readings of the pressure in a cooldown, within the bounds of their interval.
const READINGS_PER_COOLDOWN: u32 = 4;
const MIN_READ_INTERVAL: Duration = Duration::from_millis(10);
const MAX_READ_INTERVAL: Duration = Duration::from_millis(50);

/// Computes the end of cooldowns.
#[derive(Debug)]
pub(super) struct Throttle {
    /// Length of a cooldown as a multiple of the work before it.
    factor: f64,
    /// Share of the time between the last two readings in which some task of the machine waited for a processor; 0 if the
    /// kernel does not report it.
    pressure: f64,
    /// Time of the last reading.
    read_at: Instant,
    /// The last reading: total waiting time since the start of the machine; `None` if the kernel does not report it.
    waited_us: Option<u64>,
}

impl Throttle {
    pub fn new(now: Instant) -> Self {
        Self { factor: MIN_FACTOR, pressure: 0.0, read_at: now, waited_us: pressure::waited_us() }
    }

    /// Sets the number of other members, to which this node may send.
    pub fn set_others(&mut self, others: usize) {
        self.factor = MIN_FACTOR.max(FACTOR_PER_MEMBER * others as f64);
    }

    /// Reads the pressure if the last reading is too old for a cooldown that ends at `end`. Returns the time of the next
    /// reading.
    pub fn update(&mut self, end: Instant, now: Instant) -> Instant {
        let interval = match end.saturating_duration_since(now) {
            Duration::ZERO => MAX_READ_INTERVAL,
            left => (left / READINGS_PER_COOLDOWN).clamp(MIN_READ_INTERVAL, MAX_READ_INTERVAL),
        };
        if now - self.read_at >= interval {
            self.set_reading(pressure::waited_us(), now);
        }
        self.read_at + interval
    }

    /// End of a cooldown at the current pressure. When the pressure falls, a running cooldown ends earlier.
    pub fn end(&self, cooldown: &Cooldown) -> Instant {
        let TaskTime { processor, clock, turns } = cooldown.work;
        let cost = match self.waited_us {
            Some(_) => processor + TURN.mul_f64(turns as f64),
            None => clock + cooldown.late,
        };
        let factor = match cooldown.before {
            Before::Changes => self.factor / (1.0 - self.pressure),
            Before::Objects => ROUND_FACTOR,
        };
        cooldown.from + cost.mul_f64(factor).min(MAX_COOLDOWN)
    }

    fn set_reading(&mut self, waited_us: Option<u64>, now: Instant) {
        let waited = waited_us.zip(self.waited_us).map_or(0, |(now, before)| now.saturating_sub(before));
        let since = now.duration_since(self.read_at);
        self.pressure = (Duration::from_micros(waited).div_duration_f64(since)).min(MAX_PRESSURE);
        self.waited_us = waited_us;
        self.read_at = now;
    }
}

/// A pause after some work.
#[derive(Debug)]
pub(super) struct Cooldown {
    from: Instant,
    work: TaskTime,
    late: Duration,
    before: Before,
}

/// What is sent after a cooldown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// Changes, which are merged meanwhile.
    Changes,
    /// Objects of a round, which a member lacks.
    Objects,
}

impl Cooldown {
    /// The cooldown after `work` that ended now and was started by a timer that fired `late`.
    pub fn after(work: TaskTime, late: Duration, now: Instant) -> Self {
        // The work itself delays the timer; its own time counts only once.
        let late = late.saturating_sub(TIMER_GRAIN).saturating_sub(work.clock);
        Self { from: now, work, late, before: Before::Changes }
    }

    /// The same, with what is sent next.
    pub fn before(self, before: Before) -> Self {
        Self { before, ..self }
    }

    /// A cooldown that is over.
    pub fn none(now: Instant) -> Self {
        Self { from: now, work: TaskTime::default(), late: Duration::ZERO, before: Before::Changes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn work(processor: Duration, turns: u64) -> TaskTime {
        TaskTime { processor, clock: processor, turns }
    }

    /// The throttle of a machine whose kernel reports pressure.
    fn throttle(pressure: f64, now: Instant) -> Throttle {
        Throttle { factor: MIN_FACTOR, pressure, read_at: now, waited_us: Some(0) }
    }

    #[test]
    fn a_cooldown_grows_with_work_and_pressure() {
        let now = Instant::now();
        let wait = |pressure: f64, work: TaskTime| {
            throttle(pressure, now).end(&Cooldown::after(work, 4 * MS, now)).duration_since(now)
        };
        assert_eq!(
            wait(0.0, work(MS, 0)),
            8 * MS,
            "late timers do not count if the kernel reports pressure"
        );
        assert_eq!(wait(0.5, work(MS, 0)), 16 * MS);
        assert_eq!(wait(0.5, work(MS, 100)), 32 * MS, "waking tasks costs as much again");
        assert_eq!(wait(MAX_PRESSURE, work(10 * MS, 0)), MAX_COOLDOWN);
        assert_eq!(wait(0.9, TaskTime::default()), Duration::ZERO);
        assert_eq!(throttle(0.9, now).end(&Cooldown::none(now)), now);
    }

    #[test]
    fn objects_that_a_member_lacks_wait_less() {
        let now = Instant::now();
        let cooldown = Cooldown::after(work(20 * MS, 0), 4 * MS, now).before(Before::Objects);
        for pressure in [0.0, MAX_PRESSURE] {
            assert_eq!(throttle(pressure, now).end(&cooldown).duration_since(now), 5 * MS);
        }
    }

    #[test]
    fn a_cooldown_grows_with_the_number_of_members() {
        let now = Instant::now();
        let wait = |others: usize, work: TaskTime| {
            let mut throttle = throttle(0.0, now);
            throttle.set_others(others);
            throttle.end(&Cooldown::after(work, Duration::ZERO, now)).duration_since(now)
        };
        assert_eq!(wait(1, work(MS, 0)), 8 * MS);
        assert_eq!(wait(4, work(MS, 0)), 8 * MS);
        assert_eq!(wait(6, work(MS, 0)), 9 * MS);
        assert_eq!(wait(30, work(3 * MS, 0)), 135 * MS);
        assert_eq!(wait(100, work(10 * MS, 0)), MAX_COOLDOWN);
    }

    #[test]
    fn without_a_report_of_the_kernel_late_timers_count() {
        let now = Instant::now();
        let unreported = Throttle { waited_us: None, ..throttle(0.0, now) };
        let disturbed = TaskTime { clock: 2 * MS, ..work(MS, 100) };
        let cooldown = Cooldown::after(disturbed, 5 * MS, now);
        assert_eq!(
            unreported.end(&cooldown).duration_since(now),
            32 * MS,
            "4 ms late beyond the grain of timers, of which 2 ms are its own work"
        );
    }

    #[test]
    fn pressure_covers_the_time_since_the_last_reading() {
        let begun = Instant::now();
        let mut throttle = throttle(0.0, begun);
        throttle.waited_us = Some(1_000_000);
        throttle.set_reading(Some(1_050_000), begun + 250 * MS);
        assert!((throttle.pressure - 0.2).abs() < 1e-9);
        throttle.set_reading(Some(1_300_000), begun + 500 * MS);
        assert!((throttle.pressure - MAX_PRESSURE).abs() < 1e-9);
        throttle.set_reading(None, begun + 750 * MS);
        assert!(throttle.pressure.abs() < 1e-9);
    }

    #[test]
    fn short_cooldowns_read_the_pressure_more_often() {
        let begun = Instant::now();
        let mut throttle = throttle(0.0, begun);
        let mut next = |left: Duration, after: Duration| {
            let now = begun + after;
            throttle.update(now + left, now).duration_since(begun)
        };
        assert_eq!(next(Duration::ZERO, MS), 50 * MS);
        assert_eq!(next(5 * MS, MS), 10 * MS);
        assert_eq!(next(100 * MS, MS), 25 * MS);
        assert_eq!(next(500 * MS, MS), 50 * MS);
        assert_eq!(next(500 * MS, 60 * MS), 110 * MS, "read now");
        assert_eq!(next(60 * MS, 74 * MS), 75 * MS, "not read again");
    }

    #[test]
    fn a_cooldown_ends_earlier_when_the_pressure_falls() {
        let begun = Instant::now();
        let mut throttle = throttle(MAX_PRESSURE, begun);
        let cooldown = Cooldown::after(work(MS, 0), Duration::ZERO, begun);
        assert_eq!(throttle.end(&cooldown).duration_since(begun), 160 * MS);
        throttle.set_reading(Some(0), begun + MAX_READ_INTERVAL);
        assert_eq!(throttle.end(&cooldown).duration_since(begun), 8 * MS);
    }
}
