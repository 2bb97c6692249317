//! The errors of invocations that wait for their next attempt: at most [`MAX_ERRORS`], in memory and on the disk.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use edgefaas_state::store::{Batch, StoreError};

use super::invocation_records::{self, LAST_ERROR, StoredProblem};
use crate::records::{self, Records};

/// Maximum number of errors. Those of further invocations are in the logs only.
const MAX_ERRORS: usize = 1_000;
/// Maximum length of a detail, in characters.
const MAX_DETAIL_CHARS: usize = 500;

/// By the id of the invocation.
#[derive(Default)]
pub(super) struct LastErrors {
    errors: Mutex<HashMap<u128, StoredProblem>>,
    /// Stored errors of invocations that no longer exist: their records were damaged.
    orphans: Mutex<Vec<u128>>,
}

impl LastErrors {
    /// Reads the stored errors of pending invocations. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn load(&self, records: &Records, pending: &HashSet<u128>) -> Result<(), StoreError> {
        records.for_each(LAST_ERROR, |key, value| {
            let Some(id) = invocation_records::parse_last_error_key(key) else {
                return records::warn_damaged(
                    "the last error of an invocation",
                    key,
                    records::Damage::Fields,
                );
            };
            match records::decode(value) {
                Ok(problem) if pending.contains(&id) => self.set(id, problem),
                Ok(_) => self.orphans.lock().push(id),
                Err(damage) => {
                    records::warn_damaged("the last error of an invocation", key, damage);
                    self.orphans.lock().push(id);
                }
            }
        })
    }

    /// Sets the error of the last attempt, or why an invocation cannot run.
    pub fn set(&self, id: u128, mut problem: StoredProblem) {
        if let Some((end, _)) = problem.detail.char_indices().nth(MAX_DETAIL_CHARS) {
            problem.detail.truncate(end);
        }
        let mut errors = self.errors.lock();
        if errors.len() < MAX_ERRORS || errors.contains_key(&id) {
            errors.insert(id, problem);
        }
    }

    pub fn get(&self, id: u128) -> Option<StoredProblem> {
        self.errors.lock().get(&id).cloned()
    }

    /// Adds the record of an error to a batch, if it is kept.
    pub fn put(&self, records: &Records, batch: &mut Batch, id: u128) {
        if let Some(problem) = self.errors.lock().get(&id) {
            records.put(batch, invocation_records::last_error_key(id), records::encode(problem));
        }
    }

    /// Adds the deletion of an error to the batch with which its invocation ends.
    pub fn delete(&self, records: &Records, batch: &mut Batch, id: u128) {
        if self.errors.lock().contains_key(&id) {
            records.delete(batch, invocation_records::last_error_key(id));
        }
    }

    /// The invocation has ended.
    pub fn forget(&self, id: u128) {
        self.errors.lock().remove(&id);
    }

    /// Adds the deletion of stored errors without an invocation.
    pub fn remove_orphans(&self, records: &Records, batch: &mut Batch) {
        for id in std::mem::take(&mut *self.orphans.lock()) {
            records.delete(batch, invocation_records::last_error_key(id));
        }
    }
}
