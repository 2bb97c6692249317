//! The state of a synthesizer as data, which survives a restart.

use serde::{Deserialize, Serialize};

use super::key_state::KeyState;
use super::keys::{Key, slot_bytes};

/// The complete state of a [`Synthesizer`](super::Synthesizer), without its rule.
///
/// Times are relative to the moment at which the state was taken, because the clock differs after a restart.
/// Human-readable formats (JSON) contain events as values, other formats contain them as JSON text.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// The rule's condition. The state cannot be used for another condition.
    pub(super) condition: String,
    /// The origin of the windows' grid.
    pub(super) origin_ms: i64,
    /// Sorted by last use, the least recently used key first.
    pub(super) keys: Vec<(Key, KeyState)>,
    /// True if the queue was longer than its maximum.
    pub(super) long_queue: bool,
    pub(super) dropped: u64,
    pub(super) evicted: u64,
}

impl State {
    /// Memory of its keys and events, in bytes, counted as in [`Synthesizer::bytes`](super::Synthesizer::bytes).
    /// Visits all keys.
    pub fn bytes(&self) -> usize {
        self.keys.iter().map(|(key, cell)| slot_bytes(key, cell)).sum()
    }

    /// Returns the state `away_ms` later, for the time that the node was down. Nothing fires here: windows that ended
    /// and silences that were over in that time fire at the first tick after the restore. Without this call, the
    /// downtime does not count.
    pub fn aged(mut self, away_ms: u64) -> Self {
        let by_ms = i64::try_from(away_ms).unwrap_or(i64::MAX).saturating_neg();
        self.origin_ms = self.origin_ms.saturating_add(by_ms);
        self.keys.iter_mut().for_each(|(_, cell)| cell.shift(by_ms));
        self
    }
}
