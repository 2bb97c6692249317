//! Instances that are reset in place: each invocation still has a memory that equals the snapshot.
//!
//! A new instance costs more than most invocations: a slot of the pool, two instances, a store, and at its end a walk of the
//! kernel over its pages. The memory and the stack pointer are all that an instance can change (`engine_wasm` has the test).
//! So when an invocation has answered, the pages that it has written get the content of the snapshot again, from an instance
//! that never runs, its *pristine*; and the next invocation of the same program may have it. An instance is dropped in place
//! of a reset whenever something is left to doubt: its code was interrupted, its memory has grown, its stack is not
//! empty, or it has written much.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use wasmtime::{Linker, Memory, Store};

use super::engine::JsEngine;
use super::instance::JsInstance;
use super::program::JsProgram;
use super::snapshot::Snapshot;
use super::state::{Stage, State};
use super::tickets::Tickets;
use crate::dirty_pages::{DirtyPages, PageFaults};
use crate::guest_memory::Reservation;
use crate::warm::{Taken, Warm, WarmPool};

/// Memories above this size are not reset: reading the list of their pages takes longer than a new instance.
const MAX_MEMORY_BYTES: usize = 16 << 20;

/// An instance whose memory equals the snapshot.
pub(crate) struct CleanJs {
    store: Store<State>,
    instance: JsInstance,
    written: Written,
}

/// The pages of an instance that may differ from the snapshot after its invocation.
struct Written {
    pages: DirtyPages,
    pristine: Arc<Pristine>,
}

/// An instance of a snapshot's memory that no code ever runs in.
struct Pristine {
    store: Store<()>,
    memory: Memory,
    _place: Place,
}

/// The instances of a program that are reset.
pub(super) struct CleanInstances {
    idle: Arc<Warm<CleanJs>>,
    /// The image they are reset from, while one of them uses it.
    pristine: Mutex<Weak<Pristine>>,
}

/// The images of all programs, of which there is a maximum.
pub(super) struct Places {
    max: usize,
    taken: AtomicUsize,
}

struct Place(Arc<Places>);

/// The history of an instance that runs, which decides about its reset.
pub(super) struct Origin {
    /// None if the instance is new.
    written: Option<Written>,
    uses: u32,
    /// The faults of the thread when the invocation began.
    faults: Option<PageFaults>,
}

impl CleanInstances {
    /// The instances of one program, in the pool of all of them.
    pub fn new(pool: &Arc<WarmPool<CleanJs>>) -> Self {
        // The pool and the rate of invocations are the limits.
        Self { idle: pool.function(usize::MAX), pristine: Mutex::default() }
    }

    /// An idle instance for an invocation that begins now. With it, or without, the origin of the instance.
    pub fn take(&self) -> (Option<(Store<State>, JsInstance)>, Origin) {
        let taken = self.idle.take(Instant::now());
        let faults = PageFaults::here();
        match taken {
            Some(Taken { instance: CleanJs { store, instance, written }, uses }) => {
                (Some((store, instance)), Origin { written: Some(written), uses, faults })
            }
            None => (None, Origin { written: None, uses: 0, faults }),
        }
    }

    /// The idle instances, and the pages of them that differ from the snapshot: none, or the reset has a fault. Looks at the
    /// pages that the system lists now. To read the others would add them to its list.
    pub fn audit(&self) -> Audit {
        let differing = self.idle.each(|CleanJs { store, instance, written }| {
            let memory = instance.memory.data(store);
            let image = written.pristine.image();
            DirtyPages::find(memory).map_or(usize::MAX, |listed| listed.differing(memory, image))
        });
        let differing_pages = differing.iter().fold(0, |sum: usize, pages| sum.saturating_add(*pages));
        Audit { instances: differing.len(), differing_pages }
    }

    fn pristine(&self, engine: &JsEngine, snapshot: &Snapshot) -> Option<Arc<Pristine>> {
        if let Some(pristine) = self.pristine.lock().upgrade() {
            return Some(pristine);
        }
        let pristine = Arc::new(Pristine::new(engine, snapshot)?);
        let mut current = self.pristine.lock();
        Some(current.upgrade().unwrap_or_else(|| {
            *current = Arc::downgrade(&pristine);
            pristine
        }))
    }
}

/// A comparison of the idle instances that were reset with their snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Audit {
    /// Instances that the next invocations get.
    pub instances: usize,
    /// The pages of their memories that are not as in the snapshot.
    pub differing_pages: usize,
}

impl Pristine {
    fn new(engine: &JsEngine, snapshot: &Snapshot) -> Option<Self> {
        let place = engine.pristines.take()?;
        let module = snapshot.module.module();
        let mut linker = Linker::new(&engine.engine);
        linker.define_unknown_imports_as_traps(module).ok()?;
        let mut store = Store::new(&engine.engine, ());
        let instance = linker.instantiate(&mut store, module).ok()?;
        let memory = instance.get_module_export(&mut store, &snapshot.memory)?.into_memory()?;
        Some(Self { store, memory, _place: place })
    }

    fn image(&self) -> &[u8] {
        self.memory.data(&self.store)
    }
}

impl JsEngine {
    /// The store of an invocation that has memory reserved, with an instance if `taken` is one.
    pub(super) fn clean_store(
        &self,
        program: &JsProgram,
        taken: Option<(Store<State>, JsInstance)>,
        limit_bytes: usize,
        mut reservation: Reservation,
        stage: Stage,
    ) -> (Store<State>, Option<JsInstance>) {
        let JsProgram { snapshot, files, assets, .. } = program;
        let has_room = |reservation: &mut Reservation| {
            snapshot.memory_bytes() + assets.memory_bytes <= limit_bytes
                && reservation.cover(snapshot.memory_bytes())
        };
        match taken {
            // As the limiter does when an instance is made; there the invocation then fails if there is no room.
            Some((mut store, instance)) if has_room(&mut reservation) => {
                let state = store.data_mut();
                (state.stage, state.limit.bytes, state.limit.reservation) =
                    (stage, limit_bytes, reservation);
                (store, Some(instance))
            }
            _ => (self.store(stage, limit_bytes, files.clone(), assets.clone(), reservation), None),
        }
    }

    /// Resets an instance whose invocation has answered, and keeps it for the next one of `program`. Drops it if it cannot
    /// be reset safely, or if the next invocation is not expected soon. The invocation took `busy`.
    pub(super) fn give_back(
        &self,
        program: &JsProgram,
        mut store: Store<State>,
        instance: JsInstance,
        origin: Origin,
        busy: Duration,
    ) {
        let CleanInstances { idle, .. } = &program.clean;
        let memory_bytes = program.snapshot.memory_bytes() + program.assets.memory_bytes;
        let is_unchanged = instance.memory.data_size(&store) == memory_bytes
            && memory_bytes <= MAX_MEMORY_BYTES
            && instance.has_empty_stack(&mut store);
        if !is_unchanged || !idle.is_frequent() || self.is_short_of_memory() {
            return;
        }
        self.forget(store.data_mut());
        let Origin { written, uses, faults } = origin;
        let written = match written {
            Some(written) if faults.is_some() && faults == PageFaults::here() => Some(written),
            // Written pages may be new.
            Some(Written { pristine, .. }) => self.look(&store, &instance, pristine),
            None => {
                // It may have been released since the instance was made.
                let snapshot = program.snapshot.loaded();
                let pristine = snapshot.and_then(|snapshot| program.clean.pristine(self, &snapshot));
                pristine.and_then(|pristine| self.look(&store, &instance, pristine))
            }
        };
        let Some(written) = written else { return };
        written.pages.restore(instance.memory.data_mut(&mut store), written.pristine.image());
        idle.give_back(CleanJs { store, instance, written }, uses, busy, Instant::now());
    }

    /// The written pages of an instance. None if the system does not tell, or if they are too many to be kept.
    fn look(
        &self,
        store: &Store<State>,
        instance: &JsInstance,
        pristine: Arc<Pristine>,
    ) -> Option<Written> {
        let pages = DirtyPages::find(instance.memory.data(store))?;
        // Every call writes there: a list without that page cannot be trusted.
        let is_complete = pages.contains(instance.stack_top() - 1);
        (is_complete && pages.bytes() <= self.pool.kept_bytes).then_some(Written { pages, pristine })
    }

    /// Drops all that an invocation has left in its isolate's state. Host calls in flight are cancelled.
    fn forget(&self, state: &mut State) {
        state.stage = Stage::Deploy(Vec::new());
        state.limit.reservation = self.no_reservation();
        state.limit.exceeded = false;
        state.answer = Vec::new();
        if !state.tickets.is_unused() {
            state.tickets = Tickets::default();
        }
    }
}

impl Places {
    /// Places for `max` images.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    fn take(self: &Arc<Self>) -> Option<Place> {
        let one_more = |taken| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, one_more).ok()?;
        Some(Place(self.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Relaxed);
    }
}
