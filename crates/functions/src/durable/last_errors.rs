//! The errors of invocations that wait for their next attempt, in memory: at most [`MAX_ERRORS`].

use std::collections::HashMap;

use parking_lot::Mutex;

use super::invocation_records::StoredProblem;

/// Maximum number of errors. Those of further invocations are in the logs only.
const MAX_ERRORS: usize = 1_000;
/// Maximum length of a detail, in characters.
const MAX_DETAIL_CHARS: usize = 500;

/// By the id of the invocation.
#[derive(Default)]
pub(super) struct LastErrors(Mutex<HashMap<u128, StoredProblem>>);

impl LastErrors {
    pub fn set(&self, id: u128, mut problem: StoredProblem) {
        if let Some((end, _)) = problem.detail.char_indices().nth(MAX_DETAIL_CHARS) {
            problem.detail.truncate(end);
        }
        let mut errors = self.0.lock();
        if errors.len() < MAX_ERRORS || errors.contains_key(&id) {
            errors.insert(id, problem);
        }
    }

    pub fn get(&self, id: u128) -> Option<StoredProblem> {
        self.0.lock().get(&id).cloned()
    }

    /// The invocation has ended.
    pub fn remove(&self, id: u128) {
        self.0.lock().remove(&id);
    }
}
