//! The state of a synthesizer as data, which survives a restart.

use serde::{Deserialize, Serialize};

use super::key_state::KeyState;
use super::keys::{Key, slot_bytes};

/// All that a [`Synthesizer`](super::Synthesizer) remembers, without its rule.
///
/// Times in it count from the moment at which it was taken, since the clock is another after a restart. With formats
/// that people read (JSON) events are written as they are, with others as texts of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// The rule's condition; a state of another one is of no use.
    pub(super) condition: String,
    /// Where the windows' grid is.
    pub(super) origin_ms: i64,
    /// The least recently used first.
    pub(super) keys: Vec<(Key, KeyState)>,
    /// Whether the queue was longer than it may be.
    pub(super) long_queue: bool,
    pub(super) dropped: u64,
    pub(super) evicted: u64,
}

impl State {
    /// Memory of the keys and events that it has, as [`Synthesizer::bytes`](super::Synthesizer::bytes) counts it. Walks
    /// over all keys.
    pub fn bytes(&self) -> usize {
        self.keys.iter().map(|(key, cell)| slot_bytes(key, cell)).sum()
    }

    /// The state as it is `away_ms` later, without anything that would have happened in that time: windows that ended
    /// and silences that were over fire at the first tick after it is restored. For the time that the node was away;
    /// without it that time counts as if it had not been.
    pub fn aged(mut self, away_ms: u64) -> Self {
        let by_ms = i64::try_from(away_ms).unwrap_or(i64::MAX).saturating_neg();
        self.origin_ms = self.origin_ms.saturating_add(by_ms);
        self.keys.iter_mut().for_each(|(_, cell)| cell.shift(by_ms));
        self
    }
}
