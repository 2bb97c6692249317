//! Snapshots in memory: each is loaded when a call needs it, and released when no calls follow.
//!
//! The image of a called function takes some 500 kB of resident memory, mostly pages of its file. A node may have a
//! thousand functions of which few are called at a time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use wasmtime::{Engine, Module};

use super::engine::JsEngine;
use super::snapshot::{MemoryFacts, Snapshot};
use crate::code_cache::{LoadedFile, ReleasedCode};
use crate::engine::PoolConfig;

/// A snapshot without a call for this long is released, while snapshots take more than `idle_bytes`. Loading it again
/// takes some 0.3 ms, so that a function which is called this rarely takes at most 0.015 % of a core for it.
const IDLE: Duration = Duration::from_secs(2);

/// Ratio: snapshots without calls may have one part in this number of the memory of guests, within bounds.
const IDLE_SHARE: u64 = 32;
const MIN_IDLE_BYTES: u64 = 4 << 20;
const MAX_IDLE_BYTES: u64 = 24 << 20;
/// Ratio: all snapshots may have one part in this number of the memory of guests.
const MAX_SHARE: u64 = 8;

/// The loaded snapshots of all functions.
pub(super) struct LoadedSnapshots {
    idle_bytes: usize,
    max_bytes: usize,
    /// Bytes of the snapshots that can be released.
    bytes: AtomicUsize,
    functions: Mutex<Vec<Weak<FunctionSnapshot>>>,
    since: Instant,
}

/// The snapshot of one function, loaded or in its file.
pub(super) struct FunctionSnapshot {
    /// Its file, if it can be released.
    file: Option<LoadedFile>,
    facts: MemoryFacts,
    /// Bytes that it takes when it is loaded.
    bytes: usize,
    /// The last use in milliseconds since [`LoadedSnapshots::since`].
    used_ms: AtomicU64,
    place: Mutex<Place>,
    all: Arc<LoadedSnapshots>,
}

enum Place {
    Memory(Arc<Snapshot>),
    File {
        code: Arc<ReleasedCode>,
        /// Calls that need it wait for one load.
        loading: Arc<OnceCell<Arc<Snapshot>>>,
    },
}

impl LoadedSnapshots {
    pub fn new(pool: PoolConfig) -> Arc<Self> {
        let max = pool.guest_bytes / MAX_SHARE;
        let idle = (pool.guest_bytes / IDLE_SHARE).clamp(MIN_IDLE_BYTES, MAX_IDLE_BYTES).min(max);
        Self::with_limits(idle as usize, max as usize)
    }

    /// Snapshots without calls have at most `idle_bytes`, all together `max_bytes`.
    fn with_limits(idle_bytes: usize, max_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            idle_bytes,
            max_bytes,
            bytes: AtomicUsize::new(0),
            functions: Mutex::default(),
            since: Instant::now(),
        })
    }

    /// Adds a snapshot that takes `bytes` and was loaded from `file`; without a file it stays loaded.
    pub fn add(
        self: &Arc<Self>,
        snapshot: Snapshot,
        facts: MemoryFacts,
        bytes: usize,
        file: Option<LoadedFile>,
    ) -> Arc<FunctionSnapshot> {
        let can_be_released = file.is_some();
        let added = Arc::new(FunctionSnapshot {
            file,
            facts,
            bytes,
            used_ms: AtomicU64::new(self.now_ms()),
            place: Mutex::new(Place::Memory(Arc::new(snapshot))),
            all: self.clone(),
        });
        if can_be_released {
            self.bytes.fetch_add(bytes, Relaxed);
            let mut functions = self.functions.lock();
            functions.retain(|function| function.strong_count() > 0);
            functions.push(Arc::downgrade(&added));
        }
        added
    }

    /// True if [`release_idle`](Self::release_idle) may have something to release.
    pub fn has_excess(&self) -> bool {
        self.bytes.load(Relaxed) > self.idle_bytes
    }

    /// Releases snapshots without recent calls, the least recently used first, until the others have no more than they
    /// may. Returns how many were released. Blocks: it opens files.
    pub fn release_idle(&self) -> usize {
        let recent_ms = self.now_ms().saturating_sub(IDLE.as_millis() as u64);
        self.release_while(self.idle_bytes, |used_ms| used_ms <= recent_ms)
    }

    /// Makes room for a snapshot of `bytes` if there are too many: releases the least recently used ones. Blocks.
    pub fn make_room(&self, bytes: usize) {
        if self.bytes.load(Relaxed) + bytes > self.max_bytes {
            // A part more than needed, so that the next load finds room.
            self.release_while((self.max_bytes / 8 * 7).saturating_sub(bytes), |_| true);
        }
    }

    fn release_while(&self, max_bytes: usize, is_due: impl Fn(u64) -> bool) -> usize {
        let mut due = self.functions.lock().iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        due.retain(|function| is_due(function.used_ms.load(Relaxed)));
        due.sort_by_key(|function| function.used_ms.load(Relaxed));
        let mut released = 0;
        for function in due {
            if self.bytes.load(Relaxed) <= max_bytes {
                break;
            }
            released += usize::from(function.release());
        }
        released
    }

    fn now_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }
}

impl FunctionSnapshot {
    /// The address of the buffer for small invocations.
    pub fn input(&self) -> u32 {
        self.facts.input
    }

    /// Linear memory that an invocation starts with, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.facts.memory_bytes
    }

    /// The part of it that is not zeros, in bytes.
    pub fn filled_bytes(&self) -> usize {
        self.facts.filled_bytes
    }

    /// The snapshot, if it is in memory.
    pub fn loaded(&self) -> Option<Arc<Snapshot>> {
        match &*self.place.lock() {
            Place::Memory(snapshot) => Some(snapshot.clone()),
            Place::File { .. } => None,
        }
    }

    /// True if it is in memory.
    pub fn is_loaded(&self) -> bool {
        matches!(&*self.place.lock(), Place::Memory(_))
    }

    /// Notes a call. It may have an instance and need no snapshot, but the next one may not.
    pub fn note_use(&self) {
        self.used_ms.store(self.all.now_ms(), Relaxed);
    }

    /// The snapshot for a call; loads it if it was released. Calls at the same time wait for one load.
    ///
    /// # Errors
    /// The system has no memory to map it.
    pub async fn get(&self, engine: &JsEngine) -> wasmtime::Result<Arc<Snapshot>> {
        let (code, loading) = match &*self.place.lock() {
            Place::Memory(snapshot) => return Ok(snapshot.clone()),
            Place::File { code, loading } => (code.clone(), loading.clone()),
        };
        let snapshot = loading.get_or_try_init(|| self.load(engine, code)).await?.clone();
        let mut place = self.place.lock();
        if let Place::File { loading: current, .. } = &*place
            && Arc::ptr_eq(current, &loading)
        {
            *place = Place::Memory(snapshot.clone());
            self.all.bytes.fetch_add(self.bytes, Relaxed);
        }
        Ok(snapshot)
    }

    async fn load(&self, engine: &JsEngine, code: Arc<ReleasedCode>) -> wasmtime::Result<Arc<Snapshot>> {
        let (machine, all, bytes): (Engine, _, _) = (engine.engine.clone(), self.all.clone(), self.bytes);
        let load = move || {
            all.make_room(bytes);
            code.load::<Module>(&machine)
        };
        let module = tokio::task::spawn_blocking(load).await??;
        Ok(Arc::new(engine.link(&module, self.facts)?))
    }

    /// Leaves the snapshot to its file: instances that have it keep it until they end. False if it is not in memory, or its
    /// file is no longer in the cache.
    fn release(&self) -> bool {
        let Some(code) = self.is_loaded().then(|| self.file.as_ref()?.reopen()).flatten() else {
            return false;
        };
        let mut place = self.place.lock();
        if !matches!(&*place, Place::Memory(_)) {
            return false;
        }
        let released =
            std::mem::replace(&mut *place, Place::File { code: Arc::new(code), loading: Arc::default() });
        drop(place);
        self.all.bytes.fetch_sub(self.bytes, Relaxed);
        // Unmaps it, and the slots of the pool that have it, if no instance is left.
        drop(released);
        true
    }
}

impl Drop for FunctionSnapshot {
    fn drop(&mut self) {
        if self.file.is_some() && matches!(self.place.get_mut(), Place::Memory(_)) {
            self.all.bytes.fetch_sub(self.bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
