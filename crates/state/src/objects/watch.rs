//! Subscriptions to field changes.
//!
//! A watch that does not keep up gets fewer notices, never outdated ones: for each field the earliest value it has not
//! seen and the latest value are kept, so the number of notices never exceeds the number of fields.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use edgefaas_crdt::{FieldType, Value};
use edgefaas_manifest::{Origin, glob_matches};
use indexmap::IndexMap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use super::key::FieldKey;

/// Maximum number of fields with a waiting notice of one watch; changes of further fields are counted as lost.
/// dropped.
const MAX_WAITING: usize = 10_000;

/// A change of a field: the values before and after, possibly merged from several changes.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangeNotice {
    /// The field.
    pub key: FieldKey,
    /// Type of the field.
    pub field_type: FieldType,
    /// Value before; `None` if the field did not exist.
    pub previous: Option<Value>,
    /// Value after; `None` if the field was deleted.
    pub value: Option<Value>,
    /// Origin of the last change.
    pub origin: Origin,
    /// Depth of the call chain: the number of functions that called or triggered one another before this change.
    pub depth: u8,
}

/// The fields that a watch covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchScope {
    /// The app that the objects belong to.
    pub app: String,
    /// A pattern of object names, in which `*` stands for any characters.
    pub object: String,
    /// A pattern of field names; `None` for all.
    pub field: Option<String>,
}

impl WatchScope {
    fn covers(&self, key: &FieldKey) -> bool {
        key.app() == self.app
            && glob_matches(&self.object, key.object())
            && self.field.as_deref().is_none_or(|field| glob_matches(field, key.field()))
    }
}

/// All watches.
#[derive(Default)]
pub struct Watches {
    any: AtomicBool,
    next: AtomicU64,
    watches: RwLock<HashMap<u64, Arc<Shared>>>,
}

struct Shared {
    scope: WatchScope,
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    changes: IndexMap<FieldKey, ChangeNotice>,
    lost: u64,
}

/// A subscription; dropping it ends the subscription.
pub struct Watch {
    id: u64,
    shared: Arc<Shared>,
    owner: Arc<super::Objects>,
}

impl super::Objects {
    /// Subscribes to changes from now on.
    pub fn watch(self: &Arc<Self>, scope: WatchScope) -> Watch {
        let watches = self.watches();
        let shared = Arc::new(Shared { scope, waiting: Mutex::default(), arrived: Notify::new() });
        let id = watches.next.fetch_add(1, Ordering::Relaxed);
        let mut all = watches.watches.write();
        all.insert(id, shared.clone());
        watches.any.store(true, Ordering::Release);
        Watch { id, shared, owner: self.clone() }
    }
}

impl Watch {
    /// Waits for the next notice; returns it with the number of notices dropped before it. Cancel safe.
    pub async fn next(&mut self) -> (ChangeNotice, u64) {
        loop {
            if let Some(next) = self.take(|_| true) {
                return next;
            }
            self.arrived().await;
        }
    }

    /// Takes the first notice whose field `wanted` accepts, if one waits.
    pub fn take(&mut self, wanted: impl Fn(&FieldKey) -> bool) -> Option<(ChangeNotice, u64)> {
        let mut waiting = self.shared.waiting.lock();
        let at = waiting.changes.keys().position(wanted)?;
        let (_, notice) = waiting.changes.shift_remove_index(at)?;
        Some((notice, std::mem::take(&mut waiting.lost)))
    }

    /// Waits until a change has arrived since the last call.
    pub async fn arrived(&self) {
        self.shared.arrived.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let watches = self.owner.watches();
        let mut all = watches.watches.write();
        all.remove(&self.id);
        watches.any.store(!all.is_empty(), Ordering::Release);
    }
}

impl Watches {
    /// True if a watch covers this field.
    pub(super) fn covers(&self, key: &FieldKey) -> bool {
        self.any.load(Ordering::Acquire)
            && self.watches.read().values().any(|watch| watch.scope.covers(key))
    }

    pub(super) fn tell(&self, notice: ChangeNotice) {
        for watch in self.watches.read().values().filter(|watch| watch.scope.covers(&notice.key)) {
            let mut guard = watch.waiting.lock();
            let waiting = &mut *guard;
            let is_full = waiting.changes.len() >= MAX_WAITING;
            match waiting.changes.get_mut(&notice.key) {
                Some(earlier) => {
                    let (previous, depth) = (earlier.previous.take(), earlier.depth.max(notice.depth));
                    *earlier = ChangeNotice { previous, depth, ..notice.clone() };
                }
                None if is_full => waiting.lost += 1,
                None => drop(waiting.changes.insert(notice.key.clone(), notice.clone())),
            }
            drop(guard);
            watch.arrived.notify_one();
        }
    }
}
