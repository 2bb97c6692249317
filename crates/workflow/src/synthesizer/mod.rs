//! Conditions over several messages of the broker: every fifth message, all messages of ten seconds, too many, none
//! for some time.
//!
//! A workflow's `listen` and `schedule.on` select single messages. A rule in `metadata.events` defines when several
//! of them together start or continue the workflow. A rule has exactly **one** of the conditions below. A
//! [`Synthesizer`] counts the events and returns a [`Firing`] each time the condition is met.
//!
//! # Conditions
//!
//! A number of events. The firing has all of them. `facts`: `count`, `took_ms` (from the first event to the last).
//!
//! ```yaml
//! count: 5                        # 1 to 10,000
//! within: 1h                      # optional: after 1 h an event is no more part of an unfinished collection
//! ```
//!
//! All events of each 10 s: a tumbling window. Windows without events do not fire unless `empty: true`. A window
//! keeps at most 10,000 events; the oldest are dropped, and the firing's `dropped` is their number. `facts`: `count`,
//! `every_ms`, `of_ms`, `skipped` (with `empty`: the number of empty windows before this one that ended since the
//! last call, for example while the node slept; they do not fire one by one).
//!
//! ```yaml
//! window: { every: 10s }
//! ```
//!
//! Every 10 s, the events of the last 60 s: a sliding window. `of` is at least as long as `every`, and at most 10,000
//! times as long.
//!
//! ```yaml
//! window: { every: 10s, of: 60s }
//! ```
//!
//! More than 100 events in any second. The firing has the event that exceeded the rate. It fires once, and again only
//! after a moment with at most 100 events in the second before it. `facts`: `count`, `above`, `per_ms`.
//!
//! ```yaml
//! rate: { above: 100, per: 1s }   # 0 to 1,000,000
//! ```
//!
//! Fewer than 5 events in the last 30 s. It fires at the moment when this becomes true, and the firing has no events.
//! It does not fire in the first 30 s after the start, or after a key's first event. It fires once, and again only
//! after there were 5 events. `facts`: `count`, `below`, `per_ms`.
//!
//! ```yaml
//! rate: { below: 5, per: 30s }    # 1 to 1,000,000
//! ```
//!
//! No event for 30 s. Without a key, the wait begins at the start; with a key, at the key's first event. The firing
//! has the last event, if there was one. It fires once, and again only after another event. `facts`: `for_ms`.
//!
//! ```yaml
//! silence: 30s
//! ```
//!
//! One event of each filter of the `all` of `listen` (or `on`), with the same key. The firing has them in the order
//! of the filters. Of several events of one filter the newest counts, and the others are `dropped`. Instead of
//! `true`, the value can be the number of filters, or a list with one entry for each filter. `facts`: `count`,
//! `took_ms`.
//!
//! ```yaml
//! all: true
//! key: ${ .data.order }
//! within: 1h                      # optional: after 1 h an event is no more part of an unfinished collection
//! ```
//!
//! A value that rises above 30. The firing has the event. It fires once, and again only after the value fell to 28 or
//! less. It also fires if the first value is above 30. `below` is optional (the default is `above`), and can be
//! written as `back`. `facts`: `value`, `above`, `below`.
//!
//! ```yaml
//! threshold: { value: "${ .data.temp }", above: 30, below: 28 }
//! ```
//!
//! The opposite: a value that falls below 5. It fires again only after the value was 7 or more. `back` is optional.
//! It cannot be written as `above`, because in a rule with both keys, `above` is the level that fires.
//!
//! ```yaml
//! threshold: { value: "${ .data.level }", below: 5, back: 7 }
//! ```
//!
//! A queue of the node with more than 100 entries: the waiting invocations of a function, or the messages that wait
//! for subscribers of a filter. The host passes the length to [`Synthesizer::queue_length`]; events are ignored. It
//! fires once, and again only after the length was at most 100. `facts`: `function` or `filter`, `length`,
//! `longer_than`.
//!
//! ```yaml
//! queue: { function: resize, longer_than: 100 }
//! ```
//!
//! # Keys
//!
//! ```yaml
//! key: ${ .data.room }
//! limit: 1000                     # 1 to 100,000; 10,000 if it is not there
//! ```
//!
//! With `key`, each value of the key has its own state, as if it had its own rule. The firing has the value. A key
//! can be any value except null, with up to 1,024 bytes as JSON. If there are more keys than `limit`, the least
//! recently used key is dropped with its events. The same happens if all keys together have more than 100,000 events,
//! or 1,000,001 event times (for rates). Only keys that need a state are stored: a key whose window has ended, whose
//! silence has fired or whose value has returned needs no memory. With `window.empty`, a key fires in each window
//! after its first event, until it is dropped.
//!
//! Memory: [`Synthesizer::bytes`] is the memory of all stored keys and events. [`Synthesizer::trim`] reduces it to a
//! limit: it drops the least recently used keys (`evicted`), and of the last key the oldest events (`dropped`). A
//! rate whose times do not fit into the limit fires late or not at all, but never wrongly.
//!
//! # Time
//!
//! Durations are `200ms`, `30s`, `5m`, `1h`, `1d`, a combination (`1h30m`), ISO 8601 (`PT30S`, without years and
//! months), or the DSL's objects (`{ seconds: 30 }`). They are more than zero and at most about ten years.
//!
//! A period includes its start and excludes its end. So an event exactly at the end of a window is in the next
//! window, an event exactly one second ago is not in the last second, and an event exactly at the end of a silence is
//! too late: everything that is due at a time is processed before the events of that time. Windows of all keys end at
//! the same times, counted from the start of the synthesizer.
//!
//! Late ticks lose nothing: each window with events fires separately and in order, and [`Firing::late_ms`] is the
//! delay.

mod charged;
mod collect;
mod error;
mod fields;
mod key_state;
mod keys;
mod machine;
mod rate;
mod reading;
mod rule;
mod silence;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod window;

use std::sync::Arc;

use serde_json::Value;

use crate::expression::EvalError;

pub use error::{RuleError, RuleExpressionError, SynthesisError};
pub use machine::Synthesizer;
pub use reading::Reading;
pub use rule::{Queue, Rule};
pub use state::State;

/// A compiled expression of a rule: computes the key of an event, or the value that a threshold compares.
pub type Predicate = Arc<dyn Fn(&Value) -> Result<Value, EvalError> + Send + Sync>;

/// A condition that was met.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    /// The key for which it was met, if the rule has `key`.
    pub key: Option<Value>,
    /// The events of the firing, oldest first; for `all` in the order of the filters.
    pub events: Vec<Arc<Value>>,
    /// Number of events of this key that were dropped since its last firing, as far as known.
    pub dropped: u64,
    /// The time between the moment when the condition was met and this call, in milliseconds: more than 0 if the call
    /// was late.
    pub late_ms: u64,
    /// The details for the workflow: an object with `kind` and the figures of the condition.
    pub facts: Value,
}

/// Numbers of stored and dropped keys and events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of keys with a state.
    pub keys: usize,
    /// Number of stored events.
    pub events: usize,
    /// Number of events since the start that were dropped and in no firing: too many, too large, too old, replaced,
    /// or of an evicted key.
    pub dropped: u64,
    /// Number of keys since the start that were dropped because they were too many or took too much memory.
    pub evicted: u64,
    /// Memory of keys and events, in bytes.
    pub bytes: usize,
}
