//! Requests for shares of bounded counters, until the writer records them.
//!
//! A subtraction that this node's share does not cover is refused, and the missing amount is recorded in the counter's field: members
//! that have a share read it there and grant some of theirs. The caller may try again later.

use std::collections::HashMap;

use edgefaas_crdt::ApplyError;
use parking_lot::Mutex;

use super::key::FieldKey;

/// Maximum number of fields with waiting requests. Further requests are dropped: each later refused call makes a new
/// request.
const MAX_FIELDS: usize = 1024;

/// The missing amount by field.
#[derive(Debug, Default)]
pub(super) struct ShareRequests(Mutex<HashMap<FieldKey, u64>>);

impl ShareRequests {
    /// Adds a request if other members have the amount that the refused operation lacks; false if they do not, or if
    /// the maximum number of requests wait.
    pub fn add(&self, key: &FieldKey, refused: &ApplyError) -> bool {
        let ApplyError::BelowFloor { value, share, amount, .. } = refused else { return false };
        if u64::try_from(*value).is_ok_and(|value| value < *amount) {
            return false;
        }
        let missing = amount.saturating_sub(*share);
        let mut requests = self.0.lock();
        if let Some(before) = requests.get_mut(key) {
            *before = missing.max(*before);
            return true;
        }
        let has_room = requests.len() < MAX_FIELDS;
        if has_room {
            requests.insert(key.clone(), missing);
        }
        has_room
    }

    /// Takes all requests.
    pub fn take(&self) -> HashMap<FieldKey, u64> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(value: i64, share: u64, amount: u64) -> ApplyError {
        ApplyError::BelowFloor { field: "stock".into(), value, share, amount }
    }

    #[test]
    fn only_a_share_that_others_have_is_requested() {
        let requests = ShareRequests::default();
        let key = FieldKey::new("app", "object", "stock");
        assert!(!requests.add(&key, &refused(4, 1, 5)), "nobody has that much");
        assert!(requests.add(&key, &refused(9, 1, 5)));
        assert!(requests.add(&key, &refused(9, 1, 3)));
        assert_eq!(requests.take(), HashMap::from([(key, 4)]));
        assert!(requests.take().is_empty());
    }

    #[test]
    fn requests_are_bounded() {
        let requests = ShareRequests::default();
        let key = |number: usize| FieldKey::new("app", "object", &format!("f{number}"));
        assert!((0..MAX_FIELDS).all(|number| requests.add(&key(number), &refused(9, 1, 5))));
        assert!(!requests.add(&key(MAX_FIELDS), &refused(9, 1, 5)));
        assert!(requests.add(&key(0), &refused(9, 1, 5)), "a field that waits already");
    }
}
