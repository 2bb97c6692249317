//! The local objects, as the replication reads them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use edgefaas_cluster::replication::{ObjectKey, Replica};
use edgefaas_state::objects::{CLUSTER_APP, FieldKey, Objects};
use edgefaas_state::store::StoreError;
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3Default;

use super::delta::ObjectDelta;

/// Objects of this node, with cached digests.
pub struct LocalReplica {
    objects: Arc<Objects>,
    /// `None` if an object has changed since.
    digests: Mutex<BTreeMap<ObjectKey, Option<u64>>>,
    /// Number of copies that peers report for an object, if no local manifest sets it.
    copies: HashMap<ObjectKey, u8>,
}

impl LocalReplica {
    /// Lists all local objects; digests are computed on demand. Blocks.
    pub fn open(objects: Arc<Objects>) -> Self {
        let mut digests = BTreeMap::new();
        let mut apps: HashMap<String, Arc<str>> = HashMap::new();
        objects.visit_keys(|key| {
            let app = apps.entry(key.app().to_owned()).or_insert_with(|| key.app().into()).clone();
            digests.insert(ObjectKey { app, object: key.object().into() }, None);
        });
        Self { objects, digests: Mutex::new(digests), copies: HashMap::new() }
    }

    /// Invalidates the digest of a changed object.
    pub fn changed(&mut self, key: ObjectKey) {
        self.digests.get_mut().insert(key, None);
    }

    /// Sets the number of copies that a peer reports for an object.
    pub fn set_copies(&mut self, key: &ObjectKey, copies: u8) {
        match self.copies.get_mut(key) {
            Some(before) => *before = copies,
            None => drop(self.copies.insert(key.clone(), copies)),
        }
    }

    fn fields(&self, object: &ObjectKey) -> Vec<FieldKey> {
        let keys = self.objects.fields_and_tombstones(&object.app, &object.object);
        keys.unwrap_or_else(|error| {
            tracing::error!(%object, %error, "an object cannot be read and is not replicated");
            Vec::new()
        })
    }

    fn read<R>(&self, key: &FieldKey, read: impl FnOnce(&edgefaas_crdt::Field) -> R) -> Option<R> {
        self.readable(key, self.objects.read(key, |field| field.map(read)))
    }

    fn readable<R>(&self, key: &FieldKey, read: Result<Option<R>, StoreError>) -> Option<R> {
        match read {
            Ok(value) => value,
            Err(error) => {
                tracing::error!(field = ?key, %error, "a field cannot be read and is not replicated");
                None
            }
        }
    }

    fn make_digest(&self, object: &ObjectKey) -> u64 {
        let mut digest = Xxh3Default::new();
        for (name, field) in self.field_digests(object) {
            digest.update(name.as_bytes());
            digest.update(&[0]);
            digest.update(&field.to_le_bytes());
        }
        digest.digest()
    }
}

impl Replica for LocalReplica {
    type Delta = ObjectDelta;

    fn digests(&self, visit: &mut dyn FnMut(&ObjectKey, u64)) {
        for (key, digest) in &mut *self.digests.lock() {
            let digest = *digest.get_or_insert_with(|| self.make_digest(key));
            visit(key, digest);
        }
    }

    fn digest(&self, object: &ObjectKey) -> Option<u64> {
        let mut digests = self.digests.lock();
        let digest = digests.get_mut(object)?;
        Some(*digest.get_or_insert_with(|| self.make_digest(object)))
    }

    fn field_digests(&self, object: &ObjectKey) -> Vec<(String, u64)> {
        let digest = |key: FieldKey| {
            let digest = self.read(&key, |field| field.digest())?;
            Some((key.field().to_owned(), digest))
        };
        self.fields(object).into_iter().filter_map(digest).collect()
    }

    fn state(&self, object: &ObjectKey, fields: Option<&[String]>) -> Option<ObjectDelta> {
        let keys = match fields {
            Some(names) => {
                names.iter().map(|name| FieldKey::new(&object.app, &object.object, name)).collect()
            }
            None => self.fields(object),
        };
        let mut state = ObjectDelta::default();
        for key in keys {
            if let Some((field, depth)) = self.readable(&key, self.objects.state(&key)) {
                state.add(key.field(), field.into(), depth);
            }
        }
        (!state.is_empty()).then_some(state)
    }

    /// The decisions of the cluster on apps, secrets and policies: a new member can fetch and place before it has all objects.
    fn comes_first(&self, object: &ObjectKey) -> bool {
        *object.app == *CLUSTER_APP
    }

    fn copies(&self, object: &ObjectKey) -> u8 {
        match (self.objects.class_of(&object.app, &object.object), self.copies.get(object)) {
            (Some(class), _) => class.copies,
            (None, Some(copies)) => *copies,
            (None, None) => edgefaas_manifest::ObjectClass::default().copies,
        }
    }
}
