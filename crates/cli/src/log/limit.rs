//! A limit for lines of one kind: what devices and callers can cause again and again does not fill the disk of a log collector.

use std::collections::HashMap;
use std::fmt::Debug;
use std::io::Write;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::{Bounded, note};

/// What lines are counted in.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines of one kind in a window: those of one place in the program, about one function.
const MAX_LINES: u32 = 100;
/// The same of what a function logs itself.
const MAX_FUNCTION_LINES: u32 = 1000;
/// Kinds that are counted at a time; with more of them, all begin anew.
const MAX_KINDS: usize = 1024;
/// Marks what a function logs itself.
const FUNCTION_TARGET: &str = "edgefaas::function";

/// Leaves out lines beyond the limit, and says so.
pub struct Limit {
    out: Bounded,
    kinds: Mutex<HashMap<Kind, Count>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Kind {
    place: Identifier,
    function: Option<String>,
}

struct Count {
    since: Instant,
    lines: u32,
}

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It is written, after so many that were not.
    Written {
        left_out: u32,
    },
    /// It is left out, as the first one.
    FirstLeftOut,
    LeftOut,
}

impl Limit {
    /// Says what is left out by `out`.
    pub fn new(out: Bounded) -> Self {
        Self { out, kinds: Mutex::default() }
    }

    fn say(&self, text: &str) {
        let line = note(self.out.format, text);
        // It does not wait, and what it has no room for it counts.
        let _ = self.out.clone().write_all(line.as_bytes());
    }
}

impl Count {
    fn add(&mut self, most: u32, now: Instant) -> Fate {
        let mut left_out = 0;
        if now.saturating_duration_since(self.since) >= WINDOW {
            left_out = self.lines.saturating_sub(most);
            *self = Self { since: now, lines: 0 };
        }
        self.lines = self.lines.saturating_add(1);
        match self.lines.checked_sub(most) {
            None | Some(0) => Fate::Written { left_out },
            Some(1) => Fate::FirstLeftOut,
            Some(_) => Fate::LeftOut,
        }
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut function = Function(None);
        event.record(&mut function);
        let kind = Kind { place: event.metadata().callsite(), function: function.0 };
        let most = match event.metadata().target() {
            FUNCTION_TARGET => MAX_FUNCTION_LINES,
            _ => MAX_LINES,
        };
        let now = Instant::now();
        let fate = {
            let mut kinds = self.kinds.lock();
            if kinds.len() >= MAX_KINDS && !kinds.contains_key(&kind) {
                kinds.clear();
            }
            kinds.entry(kind).or_insert(Count { since: now, lines: 0 }).add(most, now)
        };
        let seconds = WINDOW.as_secs();
        match fate {
            Fate::Written { left_out: 0 } => true,
            Fate::Written { left_out } => {
                self.say(&format!("{left_out} lines like the next one were left out"));
                true
            }
            Fate::FirstLeftOut => {
                self.say(&format!(
                    "more lines like the last ones are left out: {most} in {seconds} s are the maximum"
                ));
                false
            }
            Fate::LeftOut => false,
        }
    }
}

/// The field `function` of an event.
struct Function(Option<String>);

impl Visit for Function {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "function" {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "function" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_counted_until_the_next_window() {
        let start = Instant::now();
        let mut count = Count { since: start, lines: 0 };
        let written = |left_out| Fate::Written { left_out };
        let fates: Vec<_> = (0..5).map(|_| count.add(2, start)).collect();
        assert_eq!(
            fates,
            [written(0), written(0), Fate::FirstLeftOut, Fate::LeftOut, Fate::LeftOut],
            "two in a window"
        );
        assert_eq!(count.add(2, start + WINDOW), written(3));
        assert_eq!(count.add(2, start + WINDOW), written(0));
        assert_eq!(count.add(2, start + 3 * WINDOW), written(0));
    }
}
