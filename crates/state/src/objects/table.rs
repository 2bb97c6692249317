//! The local replica of all objects.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use edgefaas_crdt::{ApplyError, Field, FieldState, FieldType, ReplicaId};
use edgefaas_manifest::{Classes, ObjectClass, glob_matches};
use fjall::{Database, Guard, Keyspace, Readable};
use parking_lot::{Mutex, RwLock};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use tokio::sync::Notify;

use super::MAX_RECORDS_PER_OBJECT;
use super::change::PeerDelta;
use super::cluster_app::{self, CLUSTER_APP};
use super::deletions::Deletions;
use super::key::{FieldKey, object_prefix};
use super::record;
use super::share_requests::ShareRequests;
use super::watch::Watches;
use crate::error::StoreError;

/// Expected number of cached fields; the cache is bounded by their sizes.
const EXPECTED_FIELDS: usize = 1024;
/// Approximate memory of a cached field beside the field itself: its key and its slot.
const SLOT_BYTES: usize = 160;

/// All objects of the node. A read takes the field from memory if it is cached, else from the disk.
pub struct Objects {
    database: Database,
    space: Keyspace,
    replica: ReplicaId,
    cache: Cache<FieldKey, Arc<Slot>, SlotWeight>,
    /// Fields that are newer than the disk. They stay in memory even if the cache evicts them.
    unwritten: Mutex<HashMap<FieldKey, Arc<Slot>>>,
    classes: ArcSwap<Classes>,
    watches: Watches,
    peers: Peers,
    fold: ArcSwap<FoldScope>,
    share_requests: ShareRequests,
    deletions: Deletions,
    merges: AtomicU64,
    conflicts: AtomicU64,
    postponed: AtomicU64,
}

/// Objects in which the changes of this node's earlier boots may be folded into one, because every holder of the object
/// has all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FoldScope {
    /// The scope contains no object.
    #[default]
    None,
    /// All objects: no other node has a copy.
    All,
    /// Objects of these apps whose names match these patterns.
    Used(Vec<(String, String)>),
}

impl FoldScope {
    pub(super) fn covers(&self, key: &FieldKey) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Used(patterns) => patterns
                .iter()
                .any(|(app, pattern)| app == key.app() && glob_matches(pattern, key.object())),
        }
    }
}

/// Changes that were not sent to peers yet: one merged delta for each field, so their number never exceeds the number
/// of fields.
#[derive(Default)]
struct Peers {
    wanted: AtomicBool,
    deltas: Mutex<HashMap<FieldKey, PeerDelta>>,
    arrived: Notify,
}

/// A field in memory, with the state of its records on the disk.
pub(crate) struct Slot(pub(super) RwLock<Stored>);

pub(super) struct Stored {
    pub field: FieldState,
    pub base_bytes: u64,
    /// Total size of the change records beside the base.
    pub changes_bytes: u64,
    pub next_change: u64,
    pub changes_follow: bool,
    /// The records on the disk are folded as in this boot.
    pub is_folded: bool,
    /// Depth of the call chain that made the last change: a peer that gets the whole field gets it with this depth.
    pub depth: u8,
}

impl Stored {
    pub fn new(field: FieldState) -> Self {
        Self {
            field,
            base_bytes: 0,
            changes_bytes: 0,
            next_change: 0,
            changes_follow: false,
            is_folded: false,
            depth: 0,
        }
    }
}

#[derive(Clone)]
struct SlotWeight;

impl Weighter<FieldKey, Arc<Slot>> for SlotWeight {
    fn weight(&self, key: &FieldKey, slot: &Arc<Slot>) -> u64 {
        (SLOT_BYTES + key.as_bytes().len() + slot.0.read().field.size_bytes()) as u64
    }
}

fn cache(bytes: u64) -> Cache<FieldKey, Arc<Slot>, SlotWeight> {
    let options = OptionsBuilder::new()
        .estimated_items_capacity(EXPECTED_FIELDS)
        .weight_capacity(bytes)
        // The cache divides its memory among its shards. A field larger than a shard would be read from the disk each
        // time.
        .shards(1)
        .build();
    match options {
        Ok(options) => {
            Cache::with_options(options, SlotWeight, Default::default(), DefaultLifecycle::default())
        }
        Err(_) => Cache::with_weighter(EXPECTED_FIELDS, bytes, SlotWeight),
    }
}

/// An entry of a list of objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectSummary {
    /// The app it belongs to.
    pub app: String,
    /// Name of the object.
    pub object: String,
    /// Types of the object's fields, by field name.
    pub fields: BTreeMap<String, FieldType>,
    /// Size on the disk, in bytes.
    pub bytes: u64,
}

/// Figures of all objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ObjectsReading {
    /// Fields in memory.
    pub cached_fields: u64,
    /// Memory of cached fields, in bytes.
    pub cached_bytes: u64,
    /// Fields whose changes are not written yet.
    pub unwritten_fields: u64,
    /// Objects with tombstones of deleted fields.
    pub tombstones: u64,
    /// Merged deltas of peers.
    pub merges: u64,
    /// Fields that two nodes created with different types.
    pub conflicts: u64,
    /// Postponed writes of changes of durability `memory`: they were due, and the disk had no room.
    pub postponed: u64,
}

impl Objects {
    pub(crate) fn new(database: Database, space: Keyspace, replica: ReplicaId, cache_bytes: u64) -> Self {
        Self {
            database,
            space,
            replica,
            cache: cache(cache_bytes),
            unwritten: Mutex::default(),
            classes: ArcSwap::default(),
            watches: Watches::default(),
            peers: Peers::default(),
            fold: ArcSwap::default(),
            share_requests: ShareRequests::default(),
            deletions: Deletions::default(),
            merges: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            postponed: AtomicU64::new(0),
        }
    }

    /// The replica id of this node.
    pub fn replica(&self) -> ReplicaId {
        self.replica
    }

    /// Reads a field; `None` if the field does not exist. `read` must not block: the writer may wait for it.
    ///
    /// # Errors
    /// The disk cannot be read, or a record is damaged.
    pub fn read<R>(&self, key: &FieldKey, read: impl FnOnce(Option<&Field>) -> R) -> Result<R, StoreError> {
        match self.slot(key)? {
            Some(slot) => Ok(read(slot.0.read().field.live())),
            None => Ok(read(None)),
        }
    }

    /// Copy of a field or of its tombstone, with the depth of the call chain that made its last change; `None` if there is
    /// neither.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn state(&self, key: &FieldKey) -> Result<Option<(FieldState, u8)>, StoreError> {
        let state = self.slot(key)?.map(|slot| {
            let stored = slot.0.read();
            (stored.field.clone(), stored.depth)
        });
        Ok(state)
    }

    /// True if the node has a field or the tombstone of a deleted one.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn has_record(&self, key: &FieldKey) -> Result<bool, StoreError> {
        Ok(self.slot(key)?.is_some())
    }

    /// Fields of one object in the order of their names, beginning after `after`, at most `limit`.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn fields(
        &self,
        app: &str,
        object: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<FieldKey>, StoreError> {
        let after = after.map(|field| FieldKey::new(app, object, field));
        self.records(&object_prefix(app, object), after.as_ref(), limit, |_, is_deleted| !is_deleted)
    }

    /// The same with the tombstones of deleted fields.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn fields_and_tombstones(&self, app: &str, object: &str) -> Result<Vec<FieldKey>, StoreError> {
        self.records(&object_prefix(app, object), None, MAX_RECORDS_PER_OBJECT, |_, _| true)
    }

    /// The fields of one object with their states and the depths of their last changes, also the tombstones of deleted ones, in
    /// the order of their names.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn states(&self, app: &str, object: &str) -> Result<Vec<(FieldKey, FieldState, u8)>, StoreError> {
        let prefix = object_prefix(app, object);
        let prefix = prefix.as_bytes();
        // Before the disk is read: a field that is written in the meantime is on the disk.
        let unwritten = self.unwritten_matching(|key| key.as_bytes().starts_with(prefix));
        let mut found: Vec<(FieldKey, FieldState, u8)> = Vec::new();
        let range = self.space.range::<Vec<u8>, _>((Bound::Included(prefix.to_owned()), behind(prefix)));
        for entry in range {
            let last = found.last().map(|(key, ..)| key);
            let (key, record) = entry.into_inner().map_err(|error| unreadable(last, error))?;
            if let Some((base, _)) = record::split_change_key(&key) {
                if let Some((owner, state, depth)) = found.last_mut()
                    && owner.as_bytes() == base
                {
                    let change = record::decode_change(&record).map_err(|error| damaged(owner, &error))?;
                    state.merge(change.delta);
                    *depth = change.depth;
                }
            } else if found.len() < MAX_RECORDS_PER_OBJECT
                && let Some(key) = FieldKey::parse(&key)
            {
                let base = record::decode_base(&record).map_err(|error| damaged(&key, &error))?;
                found.push((key, base.field, base.depth));
            }
        }
        for (key, slot) in unwritten {
            let stored = slot.0.read();
            let newer = (key, stored.field.clone(), stored.depth);
            match found.binary_search_by(|(key, ..)| key.cmp(&newer.0)) {
                Ok(at) => found[at] = newer,
                Err(at) => found.insert(at, newer),
            }
        }
        Ok(found)
    }

    /// Fields of all objects of an app whose names match `pattern`, in which `*` stands for any characters; with `field` only
    /// those of this name. In the order of their objects and names, beginning after `after`, at most `limit`.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn matching(
        &self,
        app: &str,
        pattern: &str,
        field: Option<&str>,
        after: Option<&FieldKey>,
        limit: usize,
    ) -> Result<Vec<FieldKey>, StoreError> {
        let prefix = match pattern.split_once('*') {
            Some((literal, _)) => format!("{app}\0{literal}"),
            None => object_prefix(app, pattern),
        };
        self.records(&prefix, after, limit, |key, is_deleted| {
            !is_deleted
                && glob_matches(pattern, key.object())
                && field.is_none_or(|field| field == key.field())
        })
    }

    /// Fields whose keys begin with `prefix`. `is_wanted` is given a key, and true for a tombstone.
    fn records(
        &self,
        prefix: &str,
        after: Option<&FieldKey>,
        limit: usize,
        is_wanted: impl Fn(&FieldKey, bool) -> bool,
    ) -> Result<Vec<FieldKey>, StoreError> {
        let prefix = prefix.as_bytes();
        let from = match after {
            Some(after) => Bound::Excluded(after.as_bytes().to_owned()),
            None => Bound::Included(prefix.to_owned()),
        };
        // Before the disk is read: a field that is written in the meantime is on the disk.
        let unwritten: HashMap<FieldKey, bool> = self
            .unwritten_matching(|key| {
                key.as_bytes().starts_with(prefix) && after.is_none_or(|after| *key > after)
            })
            .into_iter()
            .map(|(key, slot)| {
                let is_wanted = is_wanted(&key, slot.0.read().field.is_deleted());
                (key, is_wanted)
            })
            .collect();
        let mut keys = std::collections::BTreeSet::new();
        // With an end: else a search behind removed keys would skip all of them to find that there are no more.
        for entry in self.space.range::<Vec<u8>, _>((from, behind(prefix))) {
            let (key, record) = entry.into_inner().map_err(|error| unreadable(keys.last(), error))?;
            if !key.starts_with(prefix) || keys.len() >= limit {
                break;
            }
            if record::split_change_key(&key).is_none()
                && let Some(key) = FieldKey::parse(&key)
                && !unwritten.contains_key(&key)
                && is_wanted(&key, record::is_tombstone(&record))
            {
                keys.insert(key);
            }
        }
        keys.extend(unwritten.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(key, _)| key));
        Ok(keys.into_iter().take(limit).collect())
    }

    /// Objects in the order of their names, beginning after the given one, at most `limit`; of one app or of all.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn list(
        &self,
        app: Option<&str>,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<ObjectSummary>, StoreError> {
        let mut objects: BTreeMap<(String, String), ObjectSummary> = BTreeMap::new();
        let start = match (after, app) {
            // The key behind all fields of the object: byte 1 is greater than zero.
            (Some((app, object)), _) => format!("{app}\0{object}\u{1}"),
            (None, Some(app)) => format!("{app}\0"),
            (None, None) => String::new(),
        };
        let mut last = None;
        for entry in self.space.range(start.as_bytes()..) {
            let (key, value) = entry.into_inner().map_err(|error| unreadable(last.as_ref(), error))?;
            let base = record::split_change_key(&key).map_or(&key[..], |(base, _)| base);
            let Some(field) = FieldKey::parse(base) else { continue };
            if app.is_some_and(|app| app != field.app()) {
                break;
            }
            if record::is_tombstone(&value) && base.len() == key.len() {
                continue;
            }
            let name = (field.app().to_owned(), field.object().to_owned());
            if !objects.contains_key(&name) && objects.len() >= limit {
                break;
            }
            let summary = objects.entry(name).or_insert_with_key(|(app, object)| ObjectSummary {
                app: app.clone(),
                object: object.clone(),
                fields: BTreeMap::new(),
                bytes: 0,
            });
            summary.bytes += (key.len() + value.len()) as u64;
            if base.len() == key.len() {
                let field_type = record::decode_base(&value).map(|base| base.field.field().field_type());
                let field_type = field_type.map_err(|error| damaged(&field, &error))?;
                summary.fields.insert(field.field().to_owned(), field_type);
            }
            last = Some(field);
        }
        for (key, slot) in &*self.unwritten.lock() {
            let name = (key.app().to_owned(), key.object().to_owned());
            let wanted = app.is_none_or(|app| app == key.app())
                && after.is_none_or(|after| (key.app(), key.object()) > after);
            let stored = slot.0.read();
            if wanted && let Some(field) = stored.field.live() {
                let summary = objects.entry(name).or_insert_with_key(|(app, object)| ObjectSummary {
                    app: app.clone(),
                    object: object.clone(),
                    fields: BTreeMap::new(),
                    bytes: 0,
                });
                summary.fields.insert(key.field().to_owned(), field.field_type());
            }
        }
        Ok(objects.into_values().take(limit).collect())
    }

    /// Calls `visit` with every field, from one consistent snapshot. Deleted fields are not visited.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read), and the errors of `visit`.
    pub fn visit<E: From<StoreError>>(
        &self,
        mut visit: impl FnMut(&FieldKey, &Field) -> Result<(), E>,
    ) -> Result<(), E> {
        let unwritten = self.unwritten_matching(|_| true);
        self.visit_stored(|key, state| state.live().map_or(Ok(()), |field| visit(key, field)))?;
        for (key, slot) in unwritten {
            let state = slot.0.read().field.clone();
            state.live().map_or(Ok(()), |field| visit(&key, field))?;
        }
        Ok(())
    }

    /// Calls `visit` with the state of every field that is on the disk, also of deleted ones, in the order of their keys, from one
    /// consistent snapshot.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn visit_states(&self, mut visit: impl FnMut(&FieldKey, &FieldState)) -> Result<(), StoreError> {
        self.visit_stored(|key, state| {
            visit(key, state);
            Ok(())
        })
    }

    /// Calls `visit` with the keys of fields that are newer than the disk.
    pub fn visit_unwritten(&self, visit: impl FnMut(&FieldKey)) {
        self.unwritten.lock().keys().for_each(visit);
    }

    fn visit_stored<E: From<StoreError>>(
        &self,
        mut visit: impl FnMut(&FieldKey, &FieldState) -> Result<(), E>,
    ) -> Result<(), E> {
        let snapshot = self.database.snapshot();
        let mut current: Option<(FieldKey, FieldState)> = None;
        for entry in snapshot.iter(&self.space) {
            let entry = entry.into_inner();
            let last = current.as_ref().map(|(key, _)| key);
            let (key, value) = entry.map_err(|error| unreadable(last, error))?;
            match record::split_change_key(&key) {
                Some((base, _)) => {
                    if let Some((owner, field)) = &mut current
                        && owner.as_bytes() == base
                    {
                        let change =
                            record::decode_change(&value).map_err(|error| damaged(owner, &error))?;
                        field.merge(change.delta);
                    }
                }
                None => {
                    if let Some((key, field)) = current.take() {
                        visit(&key, &field)?;
                    }
                    let Some(key) = FieldKey::parse(&key) else { continue };
                    let base = record::decode_base(&value).map_err(|error| damaged(&key, &error))?;
                    current = Some((key, base.field));
                }
            }
        }
        current.map_or(Ok(()), |(key, field)| visit(&key, &field))
    }

    /// Calls `visit` with the key of every field, also of deleted ones that have a tombstone. Where a file is damaged, the keys on both sides of the damage.
    pub fn visit_keys(&self, mut visit: impl FnMut(&FieldKey)) {
        if let Err((after, error)) = visit_side(self.space.iter(), &mut visit) {
            let up_to = visit_side(self.space.iter().rev(), &mut visit).err().and_then(|(key, _)| key);
            tracing::error!(
                error = %unreadable(after.as_ref(), error),
                ?up_to,
                "some objects cannot be read and are not replicated; the others are"
            );
        }
        self.unwritten.lock().keys().for_each(visit);
    }

    /// The class of an object.
    pub fn class(&self, app: &str, object: &str) -> ObjectClass {
        self.class_of(app, object).unwrap_or_default()
    }

    /// Class of an object; `None` if its app is not deployed.
    pub fn class_of(&self, app: &str, object: &str) -> Option<ObjectClass> {
        if app == CLUSTER_APP {
            return Some(cluster_app::class());
        }
        self.classes.load().class(app, object)
    }

    /// True if a function that uses objects of this pattern waits until the peers have transferred them, as the class
    /// of any of them demands.
    pub fn recovers_before(&self, app: &str, pattern: &str) -> bool {
        self.classes.load().recovers_before(app, pattern)
    }

    /// Replaces the classes after a deploy.
    pub fn set_classes(&self, classes: Classes) {
        self.classes.store(Arc::new(classes));
    }

    /// Subscriptions to changes.
    pub fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Sets the objects in which the next change folds the changes of this node's earlier boots into one.
    pub fn fold_own_past(&self, scope: FoldScope) {
        if **self.fold.load() != scope {
            self.fold.store(Arc::new(scope));
        }
    }

    pub(super) fn is_folded(&self, key: &FieldKey) -> bool {
        self.replica.incarnation > 0 && self.fold.load().covers(key)
    }

    /// Starts collecting changes for peers.
    pub fn collect_for_peers(&self) {
        self.peers.wanted.store(true, Relaxed);
    }

    /// Stops collecting changes for peers.
    pub fn collect_for_nobody(&self) {
        self.peers.wanted.store(false, Relaxed);
        self.peers.deltas.lock().clear();
    }

    /// Waits until changes for peers exist, and takes them. Cancel safe: a dropped future takes nothing.
    pub async fn take_for_peers(&self) -> HashMap<FieldKey, PeerDelta> {
        loop {
            let deltas = std::mem::take(&mut *self.peers.deltas.lock());
            if !deltas.is_empty() {
                return deltas;
            }
            self.peers.arrived.notified().await;
        }
    }

    /// The figures.
    pub fn reading(&self) -> ObjectsReading {
        ObjectsReading {
            cached_fields: self.cache.len() as u64,
            cached_bytes: self.cache.weight(),
            unwritten_fields: self.unwritten.lock().len() as u64,
            tombstones: self.deletions.tombstones(),
            merges: self.merges.load(Relaxed),
            conflicts: self.conflicts.load(Relaxed),
            postponed: self.postponed.load(Relaxed),
        }
    }

    pub(super) fn count_merge(&self) {
        self.merges.fetch_add(1, Relaxed);
    }

    pub(super) fn count_conflict(&self) {
        self.conflicts.fetch_add(1, Relaxed);
    }

    pub(super) fn count_postponed(&self) {
        self.postponed.fetch_add(1, Relaxed);
    }

    /// True while changes are collected for peers: the node is a member of a cluster.
    pub fn are_peers_wanted(&self) -> bool {
        self.peers.wanted.load(Relaxed)
    }

    /// Requests the share that a refused operation lacks from other members; false if no member can grant it. If true,
    /// the caller has to wake the writer.
    pub(crate) fn request_share(&self, key: &FieldKey, refused: &ApplyError) -> bool {
        self.are_peers_wanted() && self.share_requests.add(key, refused)
    }

    /// Takes the requests that wait for the writer.
    pub(super) fn take_share_requests(&self) -> HashMap<FieldKey, u64> {
        self.share_requests.take()
    }

    pub(super) fn add_for_peers(&self, deltas: impl IntoIterator<Item = (FieldKey, PeerDelta)>) {
        let mut waiting = self.peers.deltas.lock();
        for (key, delta) in deltas {
            match waiting.get_mut(&key) {
                Some(before) => before.merge(delta),
                None => drop(waiting.insert(key, delta)),
            }
        }
        drop(waiting);
        self.peers.arrived.notify_one();
    }

    /// The writer has changed a field: it is on the disk, or it is added to the fields that are written later.
    pub(super) fn changed(&self, key: FieldKey, slot: Arc<Slot>, written: bool) {
        {
            let mut unwritten = self.unwritten.lock();
            match written {
                true => drop(unwritten.remove(&key)),
                false => drop(unwritten.insert(key.clone(), slot.clone())),
            }
        }
        // An existing entry is replaced as well: its weight may have changed, or it was read from the disk before this
        // change.
        self.cache.insert(key, slot);
    }

    /// What the writer and the members of a cluster tell each other about deletions.
    pub fn deletions(&self) -> &Deletions {
        &self.deletions
    }

    /// The writer has dropped a field: it is not on the disk any more.
    pub(super) fn dropped(&self, key: &FieldKey) {
        self.unwritten.lock().remove(key);
        self.cache.remove(key);
    }

    /// True if deleted fields leave tombstones: other nodes may have the field.
    pub(super) fn keeps_tombstones(&self) -> bool {
        self.are_peers_wanted()
    }

    /// The type that a field must have if it is written after its deletion: the members of a cluster keep a tombstone, which
    /// reserves it. `None` if it may have any type.
    pub(super) fn type_after_deletion(&self, key: &FieldKey) -> Result<Option<FieldType>, StoreError> {
        if !self.keeps_tombstones() {
            return Ok(None);
        }
        Ok(self.slot(key)?.map(|slot| slot.0.read().field.field().field_type()))
    }

    fn unwritten_matching(&self, fits: impl Fn(&&FieldKey) -> bool) -> Vec<(FieldKey, Arc<Slot>)> {
        let unwritten = self.unwritten.lock();
        unwritten
            .iter()
            .filter(|(key, _)| fits(key))
            .map(|(key, slot)| (key.clone(), slot.clone()))
            .collect()
    }

    pub(super) fn space(&self) -> &Keyspace {
        &self.space
    }

    /// The slot of a field, loaded from the disk if it is not in memory.
    pub(crate) fn slot(&self, key: &FieldKey) -> Result<Option<Arc<Slot>>, StoreError> {
        let slot = self.cache.get_or_insert_with(key, || {
            if let Some(slot) = self.unwritten.lock().get(key) {
                return Ok(slot.clone());
            }
            match self.load(key) {
                Ok(Some(stored)) => Ok(Arc::new(Slot(RwLock::new(stored)))),
                Ok(None) => Err(None),
                Err(error) => Err(Some(error)),
            }
        });
        match slot {
            Ok(slot) => Ok(Some(slot)),
            Err(None) => Ok(None),
            Err(Some(error)) => Err(error),
        }
    }

    pub(super) fn load(&self, key: &FieldKey) -> Result<Option<Stored>, StoreError> {
        let Some(bytes) = self.space.get(key.as_bytes())? else { return Ok(None) };
        let base = record::decode_base(&bytes).map_err(|error| damaged(key, &error))?;
        if !base.changes_follow {
            let (base_bytes, depth) = (bytes.len() as u64, base.depth);
            return Ok(Some(Stored { base_bytes, depth, ..Stored::new(base.field) }));
        }
        // One snapshot for base and changes: the writer may be folding them.
        let snapshot = self.database.snapshot();
        let Some(bytes) = snapshot.get(&self.space, key.as_bytes())? else { return Ok(None) };
        let base = record::decode_base(&bytes).map_err(|error| damaged(key, &error))?;
        let mut stored = Stored {
            base_bytes: bytes.len() as u64,
            changes_follow: base.changes_follow,
            depth: base.depth,
            ..Stored::new(base.field)
        };
        let (first, last) =
            (record::change_key(key.as_bytes(), 0), record::change_key(key.as_bytes(), u64::MAX));
        for entry in snapshot.range(&self.space, first..=last) {
            let (change, bytes) = entry.into_inner()?;
            let record = record::decode_change(&bytes).map_err(|error| damaged(key, &error))?;
            stored.field.merge(record.delta);
            stored.depth = record.depth;
            stored.changes_bytes += bytes.len() as u64;
            stored.next_change = record::split_change_key(&change).map_or(0, |(_, number)| number + 1);
        }
        Ok(Some(stored))
    }
}

/// The end of all keys with this prefix.
fn behind(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

/// Visits keys up to the first unreadable one; returns the key before it.
fn visit_side(
    entries: impl Iterator<Item = Guard>,
    visit: &mut impl FnMut(&FieldKey),
) -> Result<(), (Option<FieldKey>, fjall::Error)> {
    let mut last = None;
    for entry in entries {
        let key = match entry.key() {
            Ok(key) => key,
            Err(error) => return Err((last, error)),
        };
        if record::split_change_key(&key).is_none()
            && let Some(key) = FieldKey::parse(&key)
        {
            visit(&key);
            last = Some(key);
        }
    }
    Ok(())
}

fn unreadable(after: Option<&FieldKey>, reason: fjall::Error) -> StoreError {
    let after = after.map_or("the beginning of the objects".to_owned(), |key| {
        format!("field `{}` of object `{}` of app `{}`", key.field(), key.object(), key.app())
    });
    StoreError::Unreadable { after, reason }
}

fn damaged(key: &FieldKey, error: &record::RecordError) -> StoreError {
    StoreError::Damaged {
        what: format!("field `{}` of object `{}` of app `{}`", key.field(), key.object(), key.app()),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod deletion_tests;
#[cfg(test)]
mod depth_tests;
#[cfg(test)]
mod tests;
