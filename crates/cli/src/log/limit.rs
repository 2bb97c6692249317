//! A limit for lines of one kind, so that repeated events of devices and callers do not fill the disk of a log collector.

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

/// Period in which lines are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines of one kind in a window: of one call site in the program, about one function.
const MAX_LINES: u32 = 100;
/// The same for the log of a function.
const MAX_FUNCTION_LINES: u32 = 1000;
/// Kinds that are counted at a time; with more of them, all counts restart.
const MAX_KINDS: usize = 1024;
/// Target of the log of functions.
const FUNCTION_TARGET: &str = "edgefaas::function";

/// Omits lines beyond the limit, with a note.
pub struct Limit {
    out: Bounded,
    kinds: Mutex<HashMap<Kind, Count>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Kind {
    callsite: Identifier,
    function: Option<String>,
}

struct Count {
    since: Instant,
    lines: u32,
}

/// Result for a line.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// It is written; `omitted` lines before it were not.
    Written {
        omitted: u32,
    },
    /// It is the first omitted line.
    FirstOmitted,
    Omitted,
}

impl Limit {
    /// Writes its notes to `out`.
    pub fn new(out: Bounded) -> Self {
        Self { out, kinds: Mutex::default() }
    }

    fn say(&self, text: &str) {
        let line = note(self.out.format, text);
        // It does not wait; it counts lines without room.
        let _ = self.out.clone().write_all(line.as_bytes());
    }
}

impl Count {
    fn add(&mut self, max_lines: u32, now: Instant) -> Fate {
        let mut omitted = 0;
        if now.saturating_duration_since(self.since) >= WINDOW {
            omitted = self.lines.saturating_sub(max_lines);
            *self = Self { since: now, lines: 0 };
        }
        self.lines = self.lines.saturating_add(1);
        match self.lines.checked_sub(max_lines) {
            None | Some(0) => Fate::Written { omitted },
            Some(1) => Fate::FirstOmitted,
            Some(_) => Fate::Omitted,
        }
    }
}

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut function = Function(None);
        event.record(&mut function);
        let kind = Kind { callsite: event.metadata().callsite(), function: function.0 };
        let max_lines = match event.metadata().target() {
            FUNCTION_TARGET => MAX_FUNCTION_LINES,
            _ => MAX_LINES,
        };
        let now = Instant::now();
        let fate = {
            let mut kinds = self.kinds.lock();
            if kinds.len() >= MAX_KINDS && !kinds.contains_key(&kind) {
                kinds.clear();
            }
            kinds.entry(kind).or_insert(Count { since: now, lines: 0 }).add(max_lines, now)
        };
        let seconds = WINDOW.as_secs();
        match fate {
            Fate::Written { omitted: 0 } => true,
            Fate::Written { omitted } => {
                self.say(&format!("{omitted} lines like the next one were omitted"));
                true
            }
            Fate::FirstOmitted => {
                self.say(&format!(
                    "more lines like the last ones are omitted: at most {max_lines} in {seconds} s"
                ));
                false
            }
            Fate::Omitted => false,
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
        let written = |omitted| Fate::Written { omitted };
        let fates: Vec<_> = (0..5).map(|_| count.add(2, start)).collect();
        assert_eq!(
            fates,
            [written(0), written(0), Fate::FirstOmitted, Fate::Omitted, Fate::Omitted],
            "two in a window"
        );
        assert_eq!(count.add(2, start + WINDOW), written(3));
        assert_eq!(count.add(2, start + WINDOW), written(0));
        assert_eq!(count.add(2, start + 3 * WINDOW), written(0));
    }
}
