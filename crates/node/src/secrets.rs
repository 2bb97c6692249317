//! Secrets: values that functions may read and nobody else sees again.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::store::{Batch, CommitError, Durability, Store, StoreError};

/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 64 << 10;
/// Shorter values are not looked for in text: everything would look like one.
const MIN_MASKED_BYTES: usize = 4;
/// What is shown instead of a value.
const MASK: &str = "***";

/// The node's secrets, in memory and in the store, whose folder only its owner can read.
pub struct Secrets {
    store: Arc<Store>,
    values: RwLock<BTreeMap<String, String>>,
    // Memory and store change together, one change after another.
    changing: tokio::sync::Mutex<()>,
}

/// A secret could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// Not a name.
    #[error("`{name}` is no name for a secret: use 1 to 256 letters, digits, `_`, `-` and `.`")]
    Name {
        /// What was given.
        name: String,
    },
    /// Too long.
    #[error("the value of secret `{name}` has {actual_bytes} bytes; at most {MAX_VALUE_BYTES} are allowed")]
    TooLarge {
        /// The secret.
        name: String,
        /// Its size.
        actual_bytes: usize,
    },
    /// Not set.
    #[error("there is no secret `{name}`")]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// It could not be written.
    #[error("secret `{name}` could not be stored: {error}")]
    Commit {
        /// The secret.
        name: String,
        /// Why.
        error: CommitError,
    },
}

impl Secrets {
    /// Reads the secrets back.
    pub fn open(store: Arc<Store>) -> Result<Self, StoreError> {
        let mut values = BTreeMap::new();
        for entry in store.spaces().secrets.iter() {
            let (name, value) = entry.into_inner()?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            values.insert(text(&name), text(&value));
        }
        Ok(Self { store, values: RwLock::new(values), changing: tokio::sync::Mutex::default() })
    }

    /// A secret's value.
    pub fn get(&self, name: &str) -> Option<String> {
        self.values.read().get(name).cloned()
    }

    /// The names of all that are set.
    pub fn names(&self) -> Vec<String> {
        self.values.read().keys().cloned().collect()
    }

    /// Sets a secret; it is on the disk when this returns.
    pub async fn set(&self, name: &str, value: String) -> Result<(), SecretError> {
        if !crate::manifest::is_secret_name(name) {
            return Err(SecretError::Name { name: name.to_owned() });
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(SecretError::TooLarge { name: name.to_owned(), actual_bytes: value.len() });
        }
        let _changing = self.changing.lock().await;
        let mut batch = Batch::default();
        batch.put(&self.store.spaces().secrets, name, value.as_str());
        self.commit(name, batch).await?;
        self.values.write().insert(name.to_owned(), value);
        Ok(())
    }

    /// Forgets a secret.
    pub async fn remove(&self, name: &str) -> Result<(), SecretError> {
        let _changing = self.changing.lock().await;
        if !self.values.read().contains_key(name) {
            return Err(SecretError::Unknown { name: name.to_owned() });
        }
        let mut batch = Batch::default();
        batch.delete(&self.store.spaces().secrets, name);
        self.commit(name, batch).await?;
        self.values.write().remove(name);
        Ok(())
    }

    /// The text without the values of these secrets in it.
    pub fn mask(&self, names: &[String], mut text: String) -> String {
        if names.is_empty() {
            return text;
        }
        let values = self.values.read();
        // The lines of a long one as well: output is logged line by line.
        let mut masked: Vec<&str> = names
            .iter()
            .filter_map(|name| values.get(name))
            .flat_map(|value| std::iter::once(value.as_str()).chain(value.lines()))
            .filter(|value| value.len() >= MIN_MASKED_BYTES)
            .collect();
        // The longest first: one may be the beginning of another.
        masked.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
        for value in masked {
            if text.contains(value) {
                text = text.replace(value, MASK);
            }
        }
        text
    }

    async fn commit(&self, name: &str, batch: Batch) -> Result<(), SecretError> {
        let committed = self.store.committer().commit(batch, Durability::Synced).await;
        committed.map_err(|error| SecretError::Commit { name: name.to_owned(), error })
    }
}
