//! Lists, texts and JSON documents: automerge documents, whose state is a set of changes.
//!
//! Every document of a type starts with the same first change, which creates the root object, so that replicas that start
//! independently edit the same object. A change whose dependencies are missing is kept outside of the document until they
//! arrive.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use automerge::transaction::{CommitOptions, Transactable, Transaction};
use automerge::{
    ActorId, AutoCommit, Automerge, AutomergeError, Change, ChangeHash, LoadOptions, ObjId, ObjType, ROOT,
    ReadDoc, SaveOptions, ScalarValue, TextEncoding, Value,
};
use bytes::Bytes;
use postcard::Error;

use crate::wire::{Reader, Wire};
use crate::{FieldType, ReplicaId};

/// Maximum size of a document that can be edited: its stored bytes, and 8 bytes for each change. This limits the duration of
/// an edit, during which all other edits of the node wait. Inserting a text of this size takes about 0.8 s (3 us for each
/// character). An edit of a few characters takes 0.1 to 0.3 ms in a document of this size, and 0.6 ms after 29,000 edits,
/// the maximum number.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 10;

/// Bytes that count for each change in addition to its encoding, since every edit takes 20 ns for each earlier change.
const CHANGE_BYTES: usize = 8;

/// Maximum size of a document that can be read. It is larger than [`MAX_DOCUMENT_BYTES`], since the edits of disconnected
/// replicas add up.
const MAX_READ_BYTES: usize = 64 << 20;

/// A list of byte strings, a text or a JSON document.
#[derive(Clone)]
pub struct Document {
    field_type: FieldType,
    /// `None` while the document has only the first change.
    edited: Option<Arc<Automerge>>,
    waiting: BTreeMap<ChangeHash, Arc<Change>>,
    /// Upper estimate of the history's size, see [`history_bytes`](Self::history_bytes).
    bytes: usize,
}

/// The encoded form of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The whole document. Equal documents may differ in the order of their changes.
    Full,
    /// The input of a digest. It is equal for equal documents.
    Digest,
}

/// An edit was rejected.
#[derive(Debug)]
pub(crate) enum EditError {
    Index { index: u64, length: u64 },
    Pointer(&'static str),
    Json(serde_json::Error),
    TooDeep,
    Engine(AutomergeError),
}

impl From<AutomergeError> for EditError {
    fn from(error: AutomergeError) -> Self {
        Self::Engine(error)
    }
}

impl Document {
    pub(crate) fn empty(field_type: FieldType) -> Self {
        Self { field_type, edited: None, waiting: BTreeMap::new(), bytes: 0 }
    }

    /// The type of the document's field.
    pub fn field_type(&self) -> FieldType {
        self.field_type
    }

    /// The elements of a list; empty for other types.
    pub fn list(&self) -> Vec<Bytes> {
        guarded(|| {
            let doc = self.doc();
            let Some(root) = root_object(doc, self.field_type) else { return Vec::new() };
            doc.list_range(&root, ..)
                .map(|item| match item.value.into_value() {
                    Value::Scalar(scalar) => match scalar.into_owned() {
                        ScalarValue::Bytes(bytes) => bytes.into(),
                        _ => Bytes::new(),
                    },
                    Value::Object(_) => Bytes::new(),
                })
                .collect()
        })
        .unwrap_or_default()
    }

    /// The characters of a text; empty for other types.
    pub fn text(&self) -> String {
        guarded(|| {
            let doc = self.doc();
            root_object(doc, self.field_type).and_then(|root| doc.text(&root).ok()).unwrap_or_default()
        })
        .unwrap_or_default()
    }

    /// A JSON document as JSON text with sorted keys.
    pub fn json(&self) -> String {
        guarded(|| crate::json::read(self.doc())).unwrap_or_default().to_string()
    }

    /// Number of changes whose dependencies are missing.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Merges another state or delta; true if this changed the document.
    pub(crate) fn merge(&mut self, other: Self) -> bool {
        let changed = self.gather(other);
        if changed {
            self.settle();
        }
        changed
    }

    /// Adds the changes of another state or delta without applying them; [`settle`](Self::settle) applies them. Deltas
    /// that wait to be sent are only gathered, since applying changes one by one takes far longer than in one step.
    /// Returns true if this changed the document.
    pub(crate) fn gather(&mut self, other: Self) -> bool {
        let mut changed = false;
        if let Some(theirs) = &other.edited {
            match &self.edited {
                None => {
                    self.edited = Some(theirs.clone());
                    self.bytes = other.bytes;
                    changed = true;
                }
                Some(ours) if Arc::ptr_eq(ours, theirs) => {}
                Some(ours) => {
                    for change in guarded(|| ours.get_changes_added(theirs)).unwrap_or_default() {
                        changed |= self.wait(Arc::new(change));
                    }
                }
            }
        }
        for change in other.waiting.into_values() {
            if !self.has(&change.hash()) {
                changed |= self.wait(change);
            }
        }
        changed
    }

    /// Applies an edit as `actor` and returns the new change as a delta. After an error the document is unchanged.
    pub(crate) fn edit(
        &mut self,
        actor: ActorId,
        edit: impl FnOnce(&mut Transaction<'_>) -> Result<(), EditError>,
    ) -> Result<Self, EditError> {
        let mut delta = Self::empty(self.field_type);
        let (change, edited) = guarded(|| {
            let mut doc = self.doc().clone();
            doc.set_actor(actor);
            let done = doc.transact_with(|()| CommitOptions::default().with_time(0), edit);
            let hash = done.map_err(|failure| failure.error)?.hash;
            Ok((hash.and_then(|hash| doc.get_change_by_hash(&hash)), doc))
        })
        .unwrap_or(Err(EditError::Engine(AutomergeError::Fail)))?;
        if let Some(change) = change {
            self.bytes += change.raw_bytes().len();
            self.edited = Some(Arc::new(edited));
            delta.wait(Arc::new(change));
        }
        Ok(delta)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.edited.is_none() && self.waiting.is_empty()
    }

    /// Size of the history in bytes. Above `limit_bytes` the size is exact. Otherwise it is an upper estimate: each change
    /// counts with its own encoding, which is larger than its share of the whole document.
    pub(crate) fn history_bytes(&mut self, limit_bytes: usize) -> usize {
        if self.bytes > limit_bytes
            && let Some(doc) = self.edited.clone()
        {
            self.bytes = guarded(|| history_bytes(&doc, save(&doc).len())).unwrap_or(self.bytes);
        }
        self.bytes
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let waiting: usize = self.waiting.values().map(|change| 256 + change.raw_bytes().len()).sum();
        let edited = self.edited.as_ref().map_or(0, |doc| 1024 + doc.stats().num_ops as usize * 48);
        self.bytes + edited + waiting
    }

    pub(crate) fn write(&self, form: Form, out: &mut Vec<u8>) {
        match form {
            Form::Full => {
                let saved = self.edited.as_deref().map(save).unwrap_or_default();
                Bytes::from(saved).write(out);
                (self.waiting.len() as u64).write(out);
                for change in self.waiting.values() {
                    (change.raw_bytes().len() as u64).write(out);
                    out.extend_from_slice(change.raw_bytes());
                }
            }
            Form::Digest => {
                let heads = self.heads();
                (heads.len() as u64).write(out);
                for hash in heads.iter().chain(self.waiting.keys()) {
                    out.extend_from_slice(&hash.0);
                }
            }
        }
    }

    /// Decodes a document. [`settle`](Self::settle) applies its waiting changes.
    pub(crate) fn read(field_type: FieldType, from: &mut Reader<'_>) -> Result<Self, Error> {
        let mut document = Self::empty(field_type);
        let saved = from.sized()?;
        if saved.len() > MAX_READ_BYTES {
            return Err(Error::DeserializeBadEncoding);
        }
        if !saved.is_empty() {
            let start = first(field_type).get_heads();
            let doc = guarded(|| {
                let doc = load(saved)?;
                // Some damage is only found by encoding the document again: the result must be readable.
                let again = save(&doc);
                let readable = again == saved || load(&again)?.get_heads() == doc.get_heads();
                (readable && doc.get_missing_deps(&start).is_empty()).then_some(doc)
            });
            let doc = doc.flatten().ok_or(Error::DeserializeBadEncoding)?;
            if doc.get_heads() != start {
                document.bytes = history_bytes(&doc, saved.len());
                document.edited = Some(Arc::new(doc));
            }
        }
        for _ in 0..u64::read(from)? {
            let bytes = from.sized()?;
            // A compressed change could expand without limit. This crate never writes one.
            if bytes.get(CHUNK_TYPE) != Some(&CHANGE_CHUNK) {
                return Err(Error::DeserializeBadEncoding);
            }
            let change = guarded(|| Change::from_bytes(bytes.to_vec()).ok()).flatten();
            let change = change.ok_or(Error::DeserializeBadEncoding)?;
            if !document.has(&change.hash()) {
                document.wait(Arc::new(change));
            }
        }
        Ok(document)
    }

    fn doc(&self) -> &Automerge {
        self.edited.as_deref().unwrap_or_else(|| first(self.field_type))
    }

    fn heads(&self) -> Vec<ChangeHash> {
        let mut heads = self.doc().get_heads();
        heads.sort_unstable();
        heads
    }

    fn has(&self, hash: &ChangeHash) -> bool {
        self.doc().get_change_meta_by_hash(hash).is_some()
    }

    fn wait(&mut self, change: Arc<Change>) -> bool {
        self.waiting.insert(change.hash(), change).is_none()
    }

    /// Applies all waiting changes whose dependencies are complete, in one step.
    pub(crate) fn settle(&mut self) {
        if let Some(doc) = &self.edited {
            self.waiting.retain(|hash, _| doc.get_change_meta_by_hash(hash).is_none());
        }
        let mut missing: BTreeMap<ChangeHash, usize> = BTreeMap::new();
        let mut followers: BTreeMap<ChangeHash, Vec<ChangeHash>> = BTreeMap::new();
        let mut ready = Vec::new();
        for (hash, change) in &self.waiting {
            let lacking: Vec<_> = change.deps().iter().filter(|dep| !self.has(dep)).collect();
            if lacking.is_empty() {
                ready.push(*hash);
            }
            missing.insert(*hash, lacking.len());
            for dep in lacking {
                followers.entry(*dep).or_default().push(*hash);
            }
        }
        let mut done = 0;
        while let Some(hash) = ready.get(done).copied() {
            done += 1;
            for follower in followers.remove(&hash).into_iter().flatten() {
                if let Some(count) = missing.get_mut(&follower) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(follower);
                    }
                }
            }
        }
        if ready.is_empty() {
            return;
        }
        let changes: Vec<Change> =
            ready.iter().filter_map(|hash| self.waiting.remove(hash)).map(Arc::unwrap_or_clone).collect();
        self.bytes += changes.iter().map(|change| change.raw_bytes().len()).sum::<usize>();
        // The changes are applied to a copy, since a failure must not leave a partial result.
        let apply = |doc: &Automerge, changes: Vec<Change>| {
            let work = || {
                let mut doc = doc.clone();
                doc.apply_changes(changes).is_ok().then_some(doc)
            };
            guarded(work).flatten()
        };
        if let Some(doc) = apply(self.doc(), changes.clone()) {
            self.edited = Some(Arc::new(doc));
            return;
        }
        // A faulty replica can send a change that is invalid or contradicts another change of its actor. All other changes are
        // applied one by one.
        for change in changes {
            if let Some(doc) = apply(self.doc(), vec![change]) {
                self.edited = Some(Arc::new(doc));
            }
        }
    }
}

fn history_bytes(doc: &Automerge, saved_bytes: usize) -> usize {
    saved_bytes + CHANGE_BYTES * doc.stats().num_changes as usize
}

fn save(doc: &Automerge) -> Vec<u8> {
    doc.save_with_options(SaveOptions { deflate: false, retain_orphans: false })
}

fn load(saved: &[u8]) -> Option<Automerge> {
    let options = LoadOptions::new().text_encoding(TextEncoding::UnicodeCodePoint);
    Automerge::load_with_options(saved, options).ok()
}

/// Runs `work`; `None` if it panics. The engine panics on some damaged documents with valid checksums.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

impl PartialEq for Document {
    fn eq(&self, other: &Self) -> bool {
        self.field_type == other.field_type
            && self.heads() == other.heads()
            && self.waiting.keys().eq(other.waiting.keys())
    }
}

impl Eq for Document {}

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Document")
            .field("field_type", &self.field_type)
            .field("heads", &self.heads())
            .field("waiting", &self.waiting.keys())
            .finish()
    }
}

/// The automerge actor of a replica. `number` distinguishes documents that the replica created again at the same place of a
/// map. It is 0 for a document that is not in a map.
pub(crate) fn actor(replica: ReplicaId, number: u64) -> ActorId {
    let mut bytes = [&replica.node.to_be_bytes()[..], &replica.incarnation.to_be_bytes()].concat();
    if number > 0 {
        bytes.extend(number.to_be_bytes());
    }
    bytes.into()
}

/// Key of the root object in the document's map.
pub(crate) const ROOT_KEY: &str = "root";

/// Offset of the type of a chunk in automerge's file format.
const CHUNK_TYPE: usize = 8;
/// Type of a chunk with an uncompressed change.
const CHANGE_CHUNK: u8 = 1;

pub(crate) fn root_object(doc: &impl ReadDoc, field_type: FieldType) -> Option<ObjId> {
    match doc.get(ROOT, ROOT_KEY) {
        Ok(Some((Value::Object(found), id))) if found == root_type(field_type) => Some(id),
        _ => None,
    }
}

pub(crate) fn root_type(field_type: FieldType) -> ObjType {
    match field_type {
        FieldType::List => ObjType::List,
        FieldType::Text => ObjType::Text,
        _ => ObjType::Map,
    }
}

/// The document with only the first change, which is the same on all replicas.
fn first(field_type: FieldType) -> &'static Automerge {
    static LIST: OnceLock<Automerge> = OnceLock::new();
    static TEXT: OnceLock<Automerge> = OnceLock::new();
    static JSON: OnceLock<Automerge> = OnceLock::new();
    let cell = match field_type {
        FieldType::List => &LIST,
        FieldType::Text => &TEXT,
        _ => &JSON,
    };
    cell.get_or_init(|| {
        let mut doc = AutoCommit::new_with_encoding(TextEncoding::UnicodeCodePoint);
        doc.set_actor(ActorId::from([0u8]));
        doc.put_object(ROOT, ROOT_KEY, root_type(field_type))
            .expect("an empty document takes a root object");
        doc.commit_with(CommitOptions::default().with_time(0));
        doc.document().clone()
    })
}
