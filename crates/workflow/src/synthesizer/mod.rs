//! Conditions over the messages that pass the broker: every fifth, all of ten seconds, too many, none for a while.
//!
//! A workflow's `listen` and `schedule.on` say which messages it gets, one by one. A rule in `metadata.events` says
//! when they make it start or go on together. It has **one** of the conditions below; a [`Synthesizer`] counts the
//! events and gives a [`Firing`] each time the condition is met.
//!
//! # Conditions
//!
//! Every so many events; the firing has them all. `facts`: `count`, `took_ms` (from the first to the last).
//!
//! ```yaml
//! count: 5                        # 1 to 10,000
//! within: 1h                      # optional: after 1 h an event is no more part of an unfinished collection
//! ```
//!
//! All events of each 10 s: a tumbling window. Windows without events do not fire unless `empty: true`. Of more than
//! 10,000 events in one window the oldest are let go, and the firing's `dropped` says how many. `facts`: `count`,
//! `every_ms`, `of_ms`, `skipped` (with `empty`: how many empty windows before this one went by at once, as when the
//! node slept; they do not fire one by one).
//!
//! ```yaml
//! window: { every: 10s }
//! ```
//!
//! Each 10 s the events of the last 60 s: a sliding window. `of` is at least as long as `every`, and at most 10,000
//! times that.
//!
//! ```yaml
//! window: { every: 10s, of: 60s }
//! ```
//!
//! More than 100 events in any second; the firing has the event that was one too many. Once; again only after there was
//! a moment with at most 100 in the second before it. `facts`: `count`, `above`, `per_ms`.
//!
//! ```yaml
//! rate: { above: 100, per: 1s }   # 0 to 1,000,000
//! ```
//!
//! Fewer than 5 events in the last 30 s, at the moment when that becomes true; the firing has no events. Not before 30
//! s have gone by since the start, or since a key's first event. Once; again only after there were 5. `facts`: `count`,
//! `below`, `per_ms`.
//!
//! ```yaml
//! rate: { below: 5, per: 30s }    # 1 to 1,000,000
//! ```
//!
//! Nothing for 30 s, without a key also from the start on; the firing has the last event, if there was one. Once; again
//! only after an event. `facts`: `for_ms`.
//!
//! ```yaml
//! silence: 30s
//! ```
//!
//! One event of each filter of `listen`'s (or `on`'s) `all`, with the same key; the firing has them in the order of the
//! filters. Of several events of one filter the newest counts, and the others are `dropped`. Instead of `true`, the
//! number of filters or a list with as many entries may stand there. `facts`: `count`, `took_ms`.
//!
//! ```yaml
//! all: true
//! key: ${ .data.order }
//! within: 1h                      # optional: after 1 h an event is no more part of an unfinished collection
//! ```
//!
//! A value that rises over 30; the firing has the event. Once; again only after it fell to 28 or less. A first event
//! that is already over it fires. `below` can be left out (then it is the same as `above`), and be called `back`.
//! `facts`: `value`, `above`, `below`.
//!
//! ```yaml
//! threshold: { value: "${ .data.temp }", above: 30, below: 28 }
//! ```
//!
//! The other way round: a value that falls under 5; again only after it was 7 or more. `back` can be left out. It is
//! not called `above` here, since with both `above` is what fires.
//!
//! ```yaml
//! threshold: { value: "${ .data.level }", below: 5, back: 7 }
//! ```
//!
//! A queue of the node with more than 100 entries: the waiting invocations of a function, or the messages that wait for
//! subscribers of a filter. The length comes from outside by [`Synthesizer::queue_length`]; events do not count. Once;
//! again only after it was at most 100. `facts`: `function` or `filter`, `length`, `longer_than`.
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
//! With `key` there is a state for each of its values, as if each had its own rule; the firing has the value. It may be
//! anything but null, with up to 1,024 bytes as JSON. Of more keys than `limit` the least recently used is let go with
//! its events. So it is when there are more than 100,000 events, or 1,000,001 times of events (for rates), for all keys
//! together. Only keys that something must be remembered of are kept: one whose window has ended, whose silence has
//! fired or whose value is back at rest takes no room. With `window.empty`, a key that was seen once fires each window
//! until it is let go.
//!
//! Memory: [`Synthesizer::bytes`] is that of all keys and events held, and [`Synthesizer::trim`] brings it within a
//! limit in the same way. The least recently used keys go (`evicted`), and of the last one the oldest events
//! (`dropped`). A rate whose times do not fit fires late or not at all, but never without reason.
//!
//! # Time
//!
//! Durations are `200ms`, `30s`, `5m`, `1h`, `1d`, several of them (`1h30m`), ISO 8601 (`PT30S`, without years and
//! months), or the DSL's objects (`{ seconds: 30 }`): more than zero, at most ten years.
//!
//! A stretch of time has its beginning and does not have its end. So an event exactly at a window's border is in the
//! next window, one exactly a second ago is no more in the last second, and one that comes exactly when a silence is
//! over comes too late: what is due at a time happens before the events of that time. Windows of all keys end at the
//! same times, counted from the start of the synthesizer.
//!
//! If ticks come late, nothing is lost: each window with events fires on its own, in order, and [`Firing::late_ms`]
//! says by how much it is late.

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
    /// The key that it was met for, if the rule has `key`.
    pub key: Option<Value>,
    /// The events that it consists of, oldest first; for `all` in the order of the filters.
    pub events: Vec<Arc<Value>>,
    /// Events of this key that were let go since its last firing, as far as that is known.
    pub dropped: u64,
    /// How long before this call it was met, in milliseconds: more than 0 if the call came late.
    pub late_ms: u64,
    /// What happened, for the workflow: an object with `kind` and the condition's figures.
    pub facts: Value,
}

/// What a synthesizer holds and has let go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Keys that something is remembered of.
    pub keys: usize,
    /// Events held.
    pub events: usize,
    /// Events let go since the start that were counted in no firing: too many, too large, too old, replaced, or of an
    /// evicted key.
    pub dropped: u64,
    /// Keys let go since the start because there were too many, or they took too much memory.
    pub evicted: u64,
    /// Memory of keys and events, in bytes.
    pub bytes: usize,
}
