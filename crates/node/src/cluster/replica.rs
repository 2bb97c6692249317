//! The local objects, as the replication reads them.

mod bucket;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use edgefaas_cluster::replication::{ObjectDigest, ObjectKey, Part, Replica, View};
use edgefaas_crdt::{FieldState, StateDelta};
use edgefaas_platform::Clock;
use edgefaas_state::objects::{CLUSTER_APP, FieldKey, Objects};
use edgefaas_state::store::StoreError;
use parking_lot::RwLock;

use super::delta::ObjectDelta;
use bucket::{Answer, Bucket, Digests, Hasher, Known};

/// Objects that must have changed before one look at all objects is cheaper than one at each of them.
const MIN_SCANNED: usize = 4_096;

/// Objects of this node, with cached digests.
pub struct LocalReplica {
    objects: Arc<Objects>,
    clock: Clock,
    index: RwLock<Index>,
}

struct Index {
    /// One for each first byte of the hash of a key.
    buckets: Vec<Bucket>,
    /// Objects with deletions, by the time of the oldest.
    deletions: BTreeSet<(u64, ObjectKey)>,
    /// Objects that had none when their digests were computed, with a deletion since then.
    deleted: HashSet<ObjectKey>,
}

impl LocalReplica {
    /// Lists all local objects with their digests. Blocks.
    pub fn open(objects: Arc<Objects>, clock: Clock) -> Self {
        let buckets = std::iter::repeat_with(Bucket::default).take(256).collect();
        let mut index = Index { buckets, deletions: BTreeSet::new(), deleted: HashSet::new() };
        let scanned = scan(&objects, |object, digests| index.set(object, digests));
        if let Err(error) = scanned {
            tracing::warn!(%error, "the objects are read one by one");
            objects.visit_keys(|key| index.changed(ObjectKey::new(key.app(), key.object())));
        }
        objects.visit_unwritten(|key| index.changed(ObjectKey::new(key.app(), key.object())));
        Self { objects, clock, index: RwLock::new(index) }
    }

    /// Invalidates the digest of a changed object.
    pub fn changed(&mut self, key: ObjectKey) {
        self.index.get_mut().changed(key);
    }

    /// A field of an object was deleted here.
    pub fn deleted(&mut self, key: ObjectKey) {
        self.index.get_mut().deleted(key);
    }

    /// An object changed by what a peer sent: the digest of a new object is that of what came.
    pub fn received(&mut self, key: ObjectKey, copies: u8, fields: &[(FieldKey, StateDelta)]) {
        let index = self.index.get_mut();
        let bucket = index.bucket(&key);
        let is_known = bucket.objects.contains_key(&key) || bucket.stale.contains(&key);
        match is_known {
            true => {
                index.changed(key.clone());
                if fields.iter().any(|(_, delta)| delta.tombstone_ms().is_some()) {
                    index.deleted(key.clone());
                }
            }
            false => {
                let mut hasher = Hasher::default();
                for (field, delta) in fields {
                    hasher.add(field.field(), &FieldState::from(delta.clone()));
                }
                index.set(key.clone(), hasher.finish());
            }
        }
        // A stale object keeps it when its digest is computed.
        index.bucket(&key).objects.entry(key).or_default().copies = copies;
    }

    /// Tombstones of deletions up to this time, of some objects: at most about `limit`, with their objects.
    pub fn deletions_until(&mut self, up_to_ms: u64, limit: usize) -> Vec<(ObjectKey, Vec<FieldKey>)> {
        let mut found = Vec::new();
        let mut count = 0;
        while count < limit {
            let index = self.index.get_mut();
            // A tombstone that cannot be dropped is found again when its object changes.
            let Some((_, object)) =
                index.deletions.first().filter(|(oldest_ms, _)| *oldest_ms <= up_to_ms).cloned()
            else {
                break;
            };
            index.deletions.pop_first();
            let is_agreed = |state: &FieldState| state.is_deleted() && state.deleted_at_ms() <= up_to_ms;
            let states = self.states(&object).into_iter();
            let keys: Vec<FieldKey> =
                states.filter(|(_, state, _)| is_agreed(state)).map(|(key, ..)| key).collect();
            count += keys.len().max(1);
            found.push((object, keys));
        }
        found
    }

    /// Number of objects with deletions.
    pub fn objects_with_deletions(&mut self) -> usize {
        let index = self.index.get_mut();
        index.deletions.len() + index.deleted.len()
    }

    fn states(&self, object: &ObjectKey) -> Vec<(FieldKey, FieldState, u8)> {
        match self.objects.states(&object.app, &object.object) {
            Ok(states) => states,
            // One field after another: those that can be read are replicated.
            Err(_) => {
                let keys = self.objects.fields_and_tombstones(&object.app, &object.object);
                let keys = keys.unwrap_or_else(|error| {
                    tracing::error!(%object, %error, "an object cannot be read and is not replicated");
                    Vec::new()
                });
                let readable = |key: FieldKey| {
                    let (state, depth) = self.readable(&key, self.objects.state(&key))?;
                    Some((key, state, depth))
                };
                keys.into_iter().filter_map(readable).collect()
            }
        }
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

    /// The fields of an object that belong to a view, with their states.
    fn visible(&self, object: &ObjectKey, view: View) -> impl Iterator<Item = (FieldKey, FieldState, u8)> {
        self.states(object).into_iter().filter(move |(_, state, _)| match (state.is_deleted(), view.part) {
            (true, _) => state.deleted_at_ms() > view.without_ms,
            (false, part) => part == Part::Whole,
        })
    }

    fn digests_of(&self, object: &ObjectKey, view: View) -> Option<Digests> {
        let mut hasher = Hasher::default();
        for (key, state, _) in self.visible(object, view) {
            hasher.add(key.field(), &state);
        }
        hasher.finish()
    }

    /// Computes the digests of the objects of a bucket that have changed.
    fn refresh(&self, bucket: usize) {
        if self.index.read_recursive().buckets.get(bucket).is_none_or(|bucket| bucket.stale.is_empty()) {
            return;
        }
        let mut index = self.index.write();
        if index.stale_count() > MIN_SCANNED.max(index.objects_count() / 8) {
            self.refresh_all(&mut index);
        }
        let stale = index.buckets.get_mut(bucket).map(|bucket| std::mem::take(&mut bucket.stale));
        for object in stale.into_iter().flatten() {
            let digests = self.digests_of(&object, View::ALL);
            index.set(object, digests);
        }
    }
}

impl LocalReplica {
    /// Computes the digests of all objects on the disk that have changed, by one look at all.
    fn refresh_all(&self, index: &mut Index) {
        // What is newer than the disk is looked up by itself.
        let mut unwritten = HashSet::new();
        self.objects.visit_unwritten(|key| {
            unwritten.insert(ObjectKey::new(key.app(), key.object()));
        });
        let scanned = scan(&self.objects, |object, digests| {
            if !unwritten.contains(&object) && index.bucket(&object).stale.remove(&object) {
                index.set(object, digests);
            }
        });
        if let Err(error) = scanned {
            tracing::warn!(%error, "the objects are read one by one");
        }
    }
}

/// Visits all objects on the disk with their digests, in the order of their names.
fn scan(objects: &Objects, mut visit: impl FnMut(ObjectKey, Option<Digests>)) -> Result<(), StoreError> {
    let mut apps: HashMap<String, Arc<str>> = HashMap::new();
    let mut key_of = |key: &FieldKey| {
        let app = apps.entry(key.app().to_owned()).or_insert_with(|| key.app().into()).clone();
        ObjectKey { app, object: key.object().into() }
    };
    let mut current: Option<(ObjectKey, Hasher)> = None;
    let scanned = objects.visit_states(|key, state| {
        let is_next = |object: &ObjectKey| *object.object != *key.object() || *object.app != *key.app();
        if let Some((object, hasher)) = current.take_if(|(object, _)| is_next(object)) {
            visit(object, hasher.finish());
        }
        let (_, hasher) = current.get_or_insert_with(|| (key_of(key), Hasher::default()));
        hasher.add(key.field(), state);
    });
    if let Some((object, hasher)) = current
        && scanned.is_ok()
    {
        visit(object, hasher.finish());
    }
    scanned
}

impl Index {
    fn stale_count(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.stale.len()).sum()
    }

    fn objects_count(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.objects.len()).sum()
    }

    fn bucket(&mut self, key: &ObjectKey) -> &mut Bucket {
        &mut self.buckets[bucket_of(key)]
    }

    /// The object has changed: its digests are computed when they are needed.
    fn changed(&mut self, key: ObjectKey) {
        let bucket = self.bucket(&key);
        bucket.version += 1;
        bucket.stale.insert(key);
    }

    fn deleted(&mut self, key: ObjectKey) {
        if !self.bucket(&key).deletions.contains_key(&key) {
            self.deleted.insert(key);
        }
    }

    /// Sets the digests of an object; `None` if it does not exist.
    fn set(&mut self, key: ObjectKey, digests: Option<Digests>) {
        self.deleted.remove(&key);
        let bucket = &mut self.buckets[bucket_of(&key)];
        bucket.version += 1;
        if let Some(before) = bucket.deletions.remove(&key) {
            self.deletions.remove(&(before.times.oldest_ms, key.clone()));
        }
        let Some(Digests { whole, deletions }) = digests else {
            bucket.objects.remove(&key);
            return;
        };
        if let Some(deletions) = deletions {
            self.deletions.insert((deletions.times.oldest_ms, key.clone()));
            bucket.deletions.insert(key.clone(), deletions);
        }
        let known = bucket.objects.entry(key).or_default();
        *known = Known { whole, ..*known };
    }
}

fn bucket_of(key: &ObjectKey) -> usize {
    (key.hash64() >> 56) as usize
}

impl Replica for LocalReplica {
    type Delta = ObjectDelta;

    fn digests(&self, hashes: RangeInclusive<u64>, visit: &mut dyn FnMut(&ObjectKey, ObjectDigest)) {
        let (first, last) = (*hashes.start() >> 56, *hashes.end() >> 56);
        for number in first..=last {
            self.refresh(number as usize);
            let index = self.index.read_recursive();
            let Some(bucket) = index.buckets.get(number as usize) else { return };
            let bucket_hashes = (number << 56)..=((number << 56) | (u64::MAX >> 8));
            let is_whole = hashes.contains(bucket_hashes.start()) && hashes.contains(bucket_hashes.end());
            for (key, known) in &bucket.objects {
                if is_whole || hashes.contains(&key.hash64()) {
                    let deletions = bucket.deletions.get(key).map(|deletions| deletions.times);
                    visit(key, ObjectDigest { whole: known.whole, deletions });
                }
            }
        }
    }

    fn version(&self, bucket: u8) -> Option<u64> {
        self.index.read_recursive().buckets.get(usize::from(bucket)).map(|bucket| bucket.version)
    }

    fn digest(&self, object: &ObjectKey, view: View) -> Option<u64> {
        let bucket = bucket_of(object);
        self.refresh(bucket);
        let answer = self.index.read_recursive().buckets.get(bucket)?.digest(object, view);
        match answer {
            Answer::Digest(digest) => digest,
            Answer::Mixed => self.digests_of(object, view).map(|digests| digests.whole),
        }
    }

    fn field_digests(&self, object: &ObjectKey, view: View) -> Vec<(String, u64)> {
        let digest = |(key, state, _): (FieldKey, FieldState, u8)| (key.field().to_owned(), state.digest());
        self.visible(object, view).map(digest).collect()
    }

    fn state(&self, object: &ObjectKey, fields: Option<&[String]>, part: Part) -> Option<ObjectDelta> {
        let mut delta = ObjectDelta::default();
        let is_wanted =
            |key: &FieldKey| fields.is_none_or(|fields| fields.iter().any(|field| field == key.field()));
        match fields {
            Some(names) if part == Part::Whole => {
                for name in names {
                    let key = FieldKey::new(&object.app, &object.object, name);
                    if let Some((state, depth)) = self.readable(&key, self.objects.state(&key)) {
                        delta.add(key.field(), state.into(), depth);
                    }
                }
            }
            _ => {
                for (key, state, depth) in self.visible(object, View { part, without_ms: 0 }) {
                    if is_wanted(&key) {
                        delta.add(key.field(), state.into(), depth);
                    }
                }
            }
        }
        (!delta.is_empty()).then_some(delta)
    }

    /// The decisions of the cluster on apps, secrets and policies: a new member can fetch and place before it has all objects.
    fn comes_first(&self, object: &ObjectKey) -> bool {
        *object.app == *CLUSTER_APP
    }

    fn copies(&self, object: &ObjectKey) -> u8 {
        if let Some(class) = self.objects.class_of(&object.app, &object.object) {
            return class.copies;
        }
        let index = self.index.read_recursive();
        let known = index.buckets.get(bucket_of(object)).and_then(|bucket| bucket.objects.get(object));
        let reported = known.map_or(0, |known| known.copies);
        match reported {
            0 => edgefaas_manifest::ObjectClass::default().copies,
            copies => copies,
        }
    }

    fn clock_ms(&self) -> u64 {
        self.objects.deletions().clock_ms(self.clock.now_unix_ms())
    }

    fn follow_clock(&self, clock_ms: u64) -> bool {
        self.objects.deletions().observe(clock_ms, self.clock.now_unix_ms())
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_crdt::Operation;
    use edgefaas_state::store::{Batch, Durability, Store, StoreOptions};

    use super::*;

    const OBJECTS: usize = MIN_SCANNED + 1_000;

    async fn change(store: &Store, numbers: impl Iterator<Item = usize>) -> Vec<ObjectKey> {
        let (mut batch, mut changed) = (Batch::default(), Vec::new());
        for number in numbers {
            let object = format!("object-{number}");
            batch.operate(FieldKey::new("app", &object, "n"), Operation::CounterAdd(1));
            batch.operate(FieldKey::new("app", &object, "other"), Operation::GCounterAdd(2));
            changed.push(ObjectKey::new("app", object.as_str()));
        }
        store.committer().commit(batch, Durability::Written).await.unwrap();
        changed
    }

    fn all(replica: &LocalReplica) -> Vec<(ObjectKey, u64)> {
        let mut found = Vec::new();
        replica.digests(0..=u64::MAX, &mut |key, digest| found.push((key.clone(), digest.whole)));
        found.sort();
        found
    }

    #[tokio::test]
    async fn many_changed_objects_have_the_digests_of_a_new_look() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&StoreOptions::small(dir.path()), Clock::system()).unwrap();
        let open = || LocalReplica::open(store.objects().clone(), Clock::system());
        let mut replica = open();
        for object in change(&store, 0..OBJECTS).await {
            replica.changed(object);
        }
        // One that is gone, and one that never was.
        for gone in ["object-7", "never"] {
            let mut batch = Batch::default();
            batch.delete_field(FieldKey::new("app", gone, "n"));
            batch.delete_field(FieldKey::new("app", gone, "other"));
            store.committer().commit(batch, Durability::Written).await.unwrap();
            replica.changed(ObjectKey::new("app", gone));
        }
        assert_eq!(all(&replica).len(), OBJECTS - 1);
        assert_eq!(all(&replica), all(&open()));
        for object in change(&store, 5..9).await {
            replica.changed(object);
        }
        assert_eq!(all(&replica), all(&open()));
    }
}
