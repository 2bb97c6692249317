//! A call with a key, or one that does not wait.

use edgefaas_functions::durable::Keep;
use serde::{Deserialize, Serialize};

/// Maximum size of a key in memory and in lists, in bytes.
const MAX_KEY_BYTES: usize = 255;

/// A call whose outcome is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptCall {
    /// The digest of its key, and who may read the outcome.
    pub keep: Keep,
    /// The key as the caller sent it, at most [`MAX_KEY_BYTES`] of it.
    pub(crate) key: Option<String>,
}

impl KeptCall {
    /// A call with the key `key`.
    pub fn new(keep: Keep, key: Option<&str>) -> Self {
        Self { keep, key: key.map(|key| listed_key(key).to_owned()) }
    }
}

/// The part of a key that lists show and look up. A topic may have a REQUEST-ID of 64 KiB.
pub(crate) fn listed_key(key: &str) -> &str {
    &key[..key.floor_char_boundary(MAX_KEY_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_request_id_is_cut_between_characters() {
        assert_eq!(listed_key("order-1"), "order-1");
        let long = "ä".repeat(200);
        assert_eq!(listed_key(&long), "ä".repeat(127));
        let call = KeptCall::new(Keep::default(), Some(&long));
        assert_eq!(call.key.as_deref(), Some(listed_key(&long)), "it is found by the whole key");
    }
}
