//! How long replication waits between two times of sending, so that it leaves the node to its functions.

use std::fs;
use std::time::{Duration, Instant};

use edgefaas_cluster::TaskTime;

/// So many times as long as replication has cost since the last due changes were sent, the next ones wait: a ninth of a core,
/// where nobody else wants it.
const LEAST_REST: f64 = 8.0;
/// So many times for each other member, where that is more. What a round costs grows with the members as well, and there are as
/// many that send: so what all send together does not grow with their number, up to the longest rest.
const REST_A_MEMBER: f64 = 1.5;
/// Where somebody always waits for a processor, they wait so many times longer.
const MAX_PRESSURE: f64 = 0.95;
/// They wait no longer than that.
const LONGEST: Duration = Duration::from_millis(250);
/// What a turn of a task costs beyond its own time: waking it, and the system's part of the message that it is for.
const TURN: Duration = Duration::from_micros(10);
/// A timer that fires later than this shows that others want the processor as well, where the kernel does not say so.
const TIMER_GRAIN: Duration = Duration::from_millis(1);
/// The kernel is asked so many times in a rest, within bounds.
const LOOKS: u32 = 4;
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(50);
/// Pressure stall information: how long some task waited for a processor.
const PRESSURE: &str = "/proc/pressure/cpu";

/// Says when to send next.
#[derive(Debug)]
pub(super) struct Throttle {
    /// How many times as long as work it is rested.
    rest: f64,
    /// The share of the last moments in which some task of the machine waited for a processor; 0 where the kernel does not
    /// tell.
    pressure: f64,
    looked: Instant,
    waited_us: Option<u64>,
}

impl Throttle {
    pub fn new(now: Instant) -> Self {
        Self { rest: LEAST_REST, pressure: 0.0, looked: now, waited_us: read() }
    }

    /// How many nodes this one sends to, if all are connected and interested.
    pub fn set_others(&mut self, others: usize) {
        self.rest = LEAST_REST.max(REST_A_MEMBER * others as f64);
    }

    /// Asks the kernel, if it was not asked lately for what rests until `end`; seldom where nothing rests. Gives when to ask
    /// again.
    pub fn look(&mut self, end: Instant, now: Instant) -> Instant {
        let every = match end.saturating_duration_since(now) {
            Duration::ZERO => LONGEST_LOOK,
            rest => (rest / LOOKS).clamp(SHORTEST_LOOK, LONGEST_LOOK),
        };
        if now - self.looked >= every {
            self.take(read(), now);
        }
        self.looked + every
    }

    /// When a rest is over as things stand: what the pressure adds to it ends with the pressure.
    pub fn end(&self, rest: &Cooldown) -> Instant {
        let TaskTime { processor, clock, turns } = rest.work;
        let cost = match self.waited_us {
            Some(_) => processor + TURN.mul_f64(turns as f64),
            None => clock + rest.late,
        };
        rest.from + cost.mul_f64(self.rest / (1.0 - self.pressure)).min(LONGEST)
    }

    fn take(&mut self, waited_us: Option<u64>, now: Instant) {
        let waited = waited_us.zip(self.waited_us).map_or(0, |(now, before)| now.saturating_sub(before));
        let since = now.duration_since(self.looked);
        self.pressure = (Duration::from_micros(waited).div_duration_f64(since)).min(MAX_PRESSURE);
        self.waited_us = waited_us;
        self.looked = now;
    }
}

/// What is rested from.
#[derive(Debug)]
pub(super) struct Cooldown {
    from: Instant,
    work: TaskTime,
    late: Duration,
}

impl Cooldown {
    /// From `work` that was done until now, and whose timer was `late`.
    pub fn after(work: TaskTime, late: Duration, now: Instant) -> Self {
        // What made it late itself counts once.
        Self { from: now, work, late: late.saturating_sub(TIMER_GRAIN).saturating_sub(work.clock) }
    }

    /// From nothing.
    pub fn none(now: Instant) -> Self {
        Self { from: now, work: TaskTime::default(), late: Duration::ZERO }
    }
}

fn read() -> Option<u64> {
    some_total_us(&fs::read_to_string(PRESSURE).ok()?)
}

/// The microseconds in which some task waited since the machine started (Linux, Documentation/accounting/psi.rst).
fn some_total_us(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("total=")).and_then(|total| total.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn work(processor: Duration, turns: u64) -> TaskTime {
        TaskTime { processor, clock: processor, turns }
    }

    /// Of a machine whose kernel says how busy it is.
    fn throttle(pressure: f64, now: Instant) -> Throttle {
        Throttle { rest: LEAST_REST, pressure, looked: now, waited_us: Some(0) }
    }

    #[test]
    fn what_the_kernel_says_is_read() {
        let text = "some avg10=50.06 avg60=52.05 avg300=47.67 total=30827784519\nfull avg10=0.00 total=0\n";
        assert_eq!(some_total_us(text), Some(30_827_784_519));
        for none in ["", "full avg10=0.00 total=7", "some avg10=1.00", "some total=x"] {
            assert_eq!(some_total_us(none), None, "{none:?}");
        }
    }

    #[test]
    fn it_rests_longer_the_more_it_costs_and_the_more_others_wait() {
        let now = Instant::now();
        let wait = |pressure: f64, work: TaskTime| {
            throttle(pressure, now).end(&Cooldown::after(work, 4 * MS, now)).duration_since(now)
        };
        assert_eq!(wait(0.0, work(MS, 0)), 8 * MS, "late timers tell nothing that the kernel does not");
        assert_eq!(wait(0.5, work(MS, 0)), 16 * MS);
        assert_eq!(wait(0.5, work(MS, 100)), 32 * MS, "waking tasks costs as much again");
        assert_eq!(wait(MAX_PRESSURE, work(10 * MS, 0)), LONGEST);
        assert_eq!(wait(0.9, TaskTime::default()), Duration::ZERO);
        assert_eq!(throttle(0.9, now).end(&Cooldown::none(now)), now);
    }

    #[test]
    fn the_more_members_the_less_often_each_of_them_sends() {
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
        assert_eq!(wait(100, work(10 * MS, 0)), LONGEST);
    }

    #[test]
    fn without_the_kernels_word_clocks_tell_who_else_wants_the_processor() {
        let now = Instant::now();
        let untold = Throttle { waited_us: None, ..throttle(0.0, now) };
        let disturbed = TaskTime { clock: 2 * MS, ..work(MS, 100) };
        let rest = Cooldown::after(disturbed, 5 * MS, now);
        assert_eq!(
            untold.end(&rest).duration_since(now),
            32 * MS,
            "late by 4 ms, of which two were its own"
        );
    }

    #[test]
    fn pressure_is_of_the_time_since_the_last_look() {
        let begun = Instant::now();
        let mut throttle = throttle(0.0, begun);
        throttle.waited_us = Some(1_000_000);
        throttle.take(Some(1_050_000), begun + 250 * MS);
        assert!((throttle.pressure - 0.2).abs() < 1e-9);
        throttle.take(Some(1_300_000), begun + 500 * MS);
        assert!((throttle.pressure - MAX_PRESSURE).abs() < 1e-9);
        throttle.take(None, begun + 750 * MS);
        assert!(throttle.pressure.abs() < 1e-9);
    }

    #[test]
    fn the_kernel_is_asked_more_often_in_short_rests() {
        let begun = Instant::now();
        let mut throttle = throttle(0.0, begun);
        let mut next = |rest: Duration, after: Duration| {
            let now = begun + after;
            throttle.look(now + rest, now).duration_since(begun)
        };
        assert_eq!(next(Duration::ZERO, MS), 50 * MS);
        assert_eq!(next(5 * MS, MS), 10 * MS);
        assert_eq!(next(100 * MS, MS), 25 * MS);
        assert_eq!(next(500 * MS, MS), 50 * MS);
        assert_eq!(next(500 * MS, 60 * MS), 110 * MS, "asked now");
        assert_eq!(next(60 * MS, 74 * MS), 75 * MS, "not asked");
    }

    #[test]
    fn what_pressure_adds_ends_with_it() {
        let begun = Instant::now();
        let mut throttle = throttle(MAX_PRESSURE, begun);
        let rest = Cooldown::after(work(MS, 0), Duration::ZERO, begun);
        assert_eq!(throttle.end(&rest).duration_since(begun), 160 * MS);
        throttle.take(Some(0), begun + LONGEST_LOOK);
        assert_eq!(throttle.end(&rest).duration_since(begun), 8 * MS);
    }
}
