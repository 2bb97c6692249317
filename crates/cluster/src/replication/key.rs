//! Names of nodes and objects.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::wire::{APP_BYTES, KEY_IDS, OBJECT_BYTES};

/// A member of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// The name of an object. Clones are cheap.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The app it belongs to; at most 255 bytes.
    pub app: Arc<str>,
    /// Name of the object in the app; at most 1024 bytes.
    pub object: Arc<str>,
}

impl ObjectKey {
    /// An object's key.
    pub fn new(app: impl Into<Arc<str>>, object: impl Into<Arc<str>>) -> Self {
        Self { app: app.into(), object: object.into() }
    }

    /// Hash of the key, the same on every node and machine; part of the protocol.
    pub fn hash64(&self) -> u64 {
        xxh3_64_with_seed(self.object.as_bytes(), xxh3_64(self.app.as_bytes()))
    }

    pub(crate) fn fits(&self) -> bool {
        self.app.len() <= APP_BYTES && self.object.len() <= OBJECT_BYTES
    }
}

impl From<u64> for NodeId {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.app, self.object)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The short numbers that the sender of a connection's direction gives to keys.
///
/// When all are taken, the oldest is reused for a new key; the definition travels with the delta, so the receiver
/// follows.
#[derive(Debug, Default)]
pub(crate) struct KeysOut {
    ids: HashMap<ObjectKey, u32>,
    by_id: Vec<ObjectKey>,
    next: u32,
}

impl KeysOut {
    /// The key's number, and true if the receiver does not know it yet.
    pub(crate) fn id(&mut self, key: &ObjectKey) -> (u32, bool) {
        if let Some(id) = self.ids.get(key) {
            return (*id, false);
        }
        let slot = self.next as usize;
        self.next = (self.next + 1) % KEY_IDS;
        match self.by_id.get_mut(slot) {
            Some(taken) => {
                self.ids.remove(taken);
                *taken = key.clone();
            }
            None => self.by_id.push(key.clone()),
        }
        let id = slot as u32 + 1;
        self.ids.insert(key.clone(), id);
        (id, true)
    }
}

/// Keys by the short numbers that a peer assigned to them.
#[derive(Debug, Default)]
pub(crate) struct KeysIn(Vec<Option<ObjectKey>>);

impl KeysIn {
    pub(crate) fn define(&mut self, id: u32, key: &ObjectKey) {
        if id == 0 || id > KEY_IDS {
            return;
        }
        let slot = id as usize - 1;
        if self.0.len() <= slot {
            self.0.resize(slot + 1, None);
        }
        if let Some(place) = self.0.get_mut(slot) {
            *place = Some(key.clone());
        }
    }

    pub(crate) fn key(&self, id: u32) -> Option<&ObjectKey> {
        self.0.get((id as usize).checked_sub(1)?)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_mean_the_same_at_both_ends() {
        let (mut sender, mut receiver) = (KeysOut::default(), KeysIn::default());
        // More keys than numbers, used again and again.
        for step in 0..10_000_u32 {
            let key = ObjectKey::new("app", format!("{}", (step * 7919) % (KEY_IDS + 10)));
            let (id, new) = sender.id(&key);
            if new {
                receiver.define(id, &key);
            }
            assert_eq!(receiver.key(id), Some(&key));
        }
        assert_eq!(sender.ids.len(), KEY_IDS as usize);
        assert_eq!(receiver.key(0), None);
        assert_eq!(receiver.key(KEY_IDS + 1), None);
    }

    #[test]
    fn app_and_object_do_not_run_into_each_other() {
        assert_ne!(ObjectKey::new("ab", "c").hash64(), ObjectKey::new("a", "bc").hash64());
    }
}
