//! Memory of isolates: one budget for all of them, charged as they grow.
//!
//! An invocation reserves the usual peak of its function before it starts, and waits in a queue where that does not fit.
//! Growth beyond the reservation is charged when it happens, and refused where nothing is left: an invocation that holds
//! memory never waits for more, so that no two of them wait for each other.
//!
//! A part of the budget, the lane, is for small invocations alone, so that they pass while large ones wait. Released memory
//! goes to the function that holds least. Once the oldest request of that function has waited for [`PATIENCE`], the main
//! pool is granted to no other request: small requests cannot starve a large one either.

mod reservation;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

pub(crate) use reservation::{PendingReservation, Reservation};

/// Bytes of an isolate beside its linear memory: its stack, its tables, and the node's bookkeeping.
pub const ISOLATE_BYTES: u64 = 128 << 10;
/// The largest reservation that counts as small.
const MAX_SMALL_BYTES: u64 = 4 << 20;
/// Ratio: one part in this number of the budget is for small reservations only.
const LANE_SHARE: u64 = 8;
/// The minimum of that part, or a quarter of a small budget: two JavaScript functions with little data.
const MIN_LANE_BYTES: u64 = 13 << 19;
/// Factor: all invocations of a function together hold at most this many times the free bytes (the dynamic thresholds of
/// Choudhury and Hahne, 1998): eight ninths of the budget if there is no other, eight seventeenths each if there are two.
const GREED: u64 = 8;
/// Ratio: the first invocation of a function reserves at most one part in this number of the main pool.
const FIRST_SHARE: u64 = 8;
/// A request at the head of the queue that has waited for this long keeps memory from later requests.
const PATIENCE: Duration = Duration::from_millis(100);
/// Ratio: after a smaller peak, the estimate of a function shrinks by at most one part in this number per invocation.
const DECAY_SHARE: u64 = 16;

/// The memory of all isolates of a node.
pub struct GuestMemory {
    lane: Pool,
    main: Pool,
    small_bytes: u64,
    /// Bytes of the main pool that are not granted, because the machine is short of memory.
    withheld: AtomicU64,
    /// Requests in `queues`.
    waiting: AtomicUsize,
    queues: Mutex<Queues>,
    refused: AtomicU64,
    /// Drops one idle isolate, which releases its memory. False if none is left.
    reclaim: Box<dyn Fn() -> bool + Send + Sync>,
}

/// A number of bytes, and the part of them in use.
struct Pool {
    max_bytes: u64,
    used: AtomicU64,
}

/// The memory of one function: held by its isolates, and the usual peak of one of them.
#[derive(Debug, Default)]
pub(crate) struct FunctionMemory {
    held: AtomicU64,
    /// Zero before the first invocation has ended.
    estimate: AtomicU64,
}

#[derive(Default)]
struct Queues {
    next_number: u64,
    functions: Vec<FunctionQueue>,
}

/// The requests of one function, never empty.
struct FunctionQueue {
    function: Arc<FunctionMemory>,
    requests: VecDeque<Request>,
}

struct Request {
    number: u64,
    bytes: u64,
    since: Instant,
    grant: oneshot::Sender<Reservation>,
}

/// Use of the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestMemoryReading {
    /// The budget.
    pub max_bytes: u64,
    /// Bytes that are reserved and charged.
    pub used_bytes: u64,
    /// Bytes that were not granted because the machine is short of memory.
    pub withheld_bytes: u64,
    /// Invocations that wait for memory.
    pub waiting: usize,
    /// Invocations that gave up waiting or could not grow, since the start.
    pub refused: u64,
}

impl GuestMemory {
    /// A budget of `max_bytes`. Where it is used up, `reclaim` is called until it frees enough or returns false; it drops
    /// one idle isolate.
    pub(crate) fn new(max_bytes: u64, reclaim: impl Fn() -> bool + Send + Sync + 'static) -> Arc<Self> {
        let lane = Self::lane_bytes(max_bytes);
        let pool = |max_bytes| Pool { max_bytes, used: AtomicU64::new(0) };
        Arc::new(Self {
            lane: pool(lane),
            main: pool(max_bytes - lane),
            small_bytes: (lane / 2).min(MAX_SMALL_BYTES),
            withheld: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queues: Mutex::default(),
            refused: AtomicU64::new(0),
            reclaim: Box::new(reclaim),
        })
    }

    /// The maximum of linear memory that one isolate can have within a budget of `max_bytes`.
    pub fn largest_isolate_bytes(max_bytes: u64) -> u64 {
        (max_bytes - Self::lane_bytes(max_bytes)).saturating_sub(ISOLATE_BYTES)
    }

    fn lane_bytes(max_bytes: u64) -> u64 {
        (max_bytes / LANE_SHARE).max(MIN_LANE_BYTES.min(max_bytes / 4))
    }

    /// The current use of the budget.
    pub fn reading(&self) -> GuestMemoryReading {
        GuestMemoryReading {
            max_bytes: self.lane.max_bytes.saturating_add(self.main.max_bytes),
            used_bytes: self.lane.used.load(Relaxed) + self.main.used.load(Relaxed),
            withheld_bytes: self.withheld.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    /// Withholds `bytes` of the budget while the machine is short of memory, at most seven eighths of the main pool.
    pub fn withhold(self: &Arc<Self>, bytes: u64) {
        let bytes = bytes.min(self.main.max_bytes / 8 * 7);
        if self.withheld.swap(bytes, SeqCst) > bytes {
            self.grant();
        }
    }

    /// A reservation for an invocation that may have `limit_bytes` of linear memory. None if the budget has no room now or
    /// other invocations wait.
    pub(crate) fn try_reserve(
        self: &Arc<Self>,
        function: &Arc<FunctionMemory>,
        limit_bytes: u64,
    ) -> Option<Reservation> {
        let bytes = self.estimate(function, limit_bytes);
        if self.waiting.load(SeqCst) > 0 {
            return None;
        }
        self.take(function, bytes, true)
    }

    /// Does the same as [`try_reserve`](Self::try_reserve), for an invocation that an isolate waits for: it passes
    /// waiting invocations, and idle isolates are dropped for it.
    pub(crate) fn reserve_nested(
        self: &Arc<Self>,
        function: &Arc<FunctionMemory>,
        limit_bytes: u64,
    ) -> Option<Reservation> {
        let bytes = self.estimate(function, limit_bytes);
        let taken = self.reclaiming(|| self.take(function, bytes, true));
        taken.or_else(|| {
            self.refused.fetch_add(1, Relaxed);
            None
        })
    }

    /// Queues a request for a reservation; idle isolates are dropped for it.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        function: &Arc<FunctionMemory>,
        limit_bytes: u64,
    ) -> PendingReservation {
        let bytes = self.estimate(function, limit_bytes);
        let (grant, granted) = oneshot::channel();
        let mut queues = self.queues.lock();
        let number = queues.next_number;
        queues.next_number += 1;
        self.waiting.fetch_add(1, SeqCst);
        let request = Request { number, bytes, since: Instant::now(), grant };
        match queues.functions.iter_mut().find(|queue| Arc::ptr_eq(&queue.function, function)) {
            Some(queue) => queue.requests.push_back(request),
            None => {
                let function = function.clone();
                queues.functions.push(FunctionQueue { function, requests: VecDeque::from([request]) });
            }
        }
        drop(queues);
        let pending = PendingReservation { memory: self.clone(), number, granted };
        self.grant();
        // Each dropped isolate releases its memory to waiting requests.
        while pending.granted.is_empty() && (self.reclaim)() {}
        pending
    }

    /// An empty reservation, which grows with its isolate.
    pub(crate) fn empty(self: &Arc<Self>, function: &Arc<FunctionMemory>) -> Reservation {
        Reservation {
            memory: self.clone(),
            function: function.clone(),
            lane_bytes: 0,
            main_bytes: 0,
            peak_bytes: 0,
            refused_bytes: None,
        }
    }

    /// True if invocations wait for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// The bytes to reserve for an invocation: the usual peak of its function, or its limit before the first has ended.
    fn estimate(&self, function: &FunctionMemory, limit_bytes: u64) -> u64 {
        let max_bytes = limit_bytes.saturating_add(ISOLATE_BYTES).min(self.main.max_bytes);
        match function.estimate.load(Relaxed) {
            // Only a share, so that several functions can have their first call at the same time. Growth beyond it is charged
            // when it happens.
            0 => max_bytes.min((self.main.max_bytes / FIRST_SHARE).max(ISOLATE_BYTES)),
            usual => usual.min(max_bytes),
        }
    }

    fn take(
        self: &Arc<Self>,
        function: &Arc<FunctionMemory>,
        bytes: u64,
        is_main_open: bool,
    ) -> Option<Reservation> {
        let held = function.held.load(Relaxed);
        // At most one invocation of each function, and only if the function holds nothing else.
        let in_lane = held == 0 && bytes <= self.small_bytes && self.lane.take(bytes, 0);
        let withheld = self.withheld.load(Relaxed);
        // Other functions find memory free, however many invocations this one has.
        let has_share = held == 0 || held + bytes <= GREED * self.main.free(withheld).saturating_sub(bytes);
        let taken = in_lane || is_main_open && has_share && self.main.take(bytes, withheld);
        if !taken {
            return None;
        }
        function.held.fetch_add(bytes, Relaxed);
        let mut reservation = self.empty(function);
        (reservation.lane_bytes, reservation.main_bytes) = if in_lane { (bytes, 0) } else { (0, bytes) };
        Some(reservation)
    }

    /// Repeats `attempt` while idle isolates can be dropped.
    fn reclaiming<T>(&self, attempt: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            if let Some(done) = attempt() {
                return Some(done);
            }
            if !(self.reclaim)() {
                return None;
            }
        }
    }

    /// Grants free memory to waiting requests.
    fn grant(self: &Arc<Self>) {
        // The list holds requests that were cancelled meanwhile. It is dropped after the lock is released, since a drop
        // locks it again.
        let mut cancelled = Vec::new();
        let mut queues = self.queues.lock();
        while let Some((request, reservation)) = self.next(&mut queues) {
            self.waiting.fetch_sub(1, SeqCst);
            cancelled.extend(request.grant.send(reservation).err());
        }
        drop(queues);
    }

    /// The next request to grant, with its reservation.
    fn next(self: &Arc<Self>, queues: &mut Queues) -> Option<(Request, Reservation)> {
        let rank = |queue: &FunctionQueue| {
            (queue.function.held.load(Relaxed), queue.requests.front().map(|request| request.number))
        };
        let functions = &mut queues.functions;
        functions.sort_by_key(rank);
        // A request above the current maximum keeps no memory from others.
        let max_bytes = self.main.max_bytes.saturating_sub(self.withheld.load(Relaxed));
        let first = |queue: &FunctionQueue| {
            queue.requests.front().is_some_and(|request| request.bytes <= max_bytes)
        };
        let first = functions.iter().position(first);
        let has_patience = |queue: &FunctionQueue| {
            queue.requests.front().is_some_and(|request| request.since.elapsed() < PATIENCE)
        };
        let patient = first.is_none_or(|at| has_patience(&functions[at]));
        for at in 0..functions.len() {
            let is_main_open = patient || Some(at) == first;
            let queue = &mut functions[at];
            let Some(bytes) = queue.requests.front().map(|request| request.bytes) else { continue };
            let Some(reservation) = self.take(&queue.function, bytes, is_main_open) else { continue };
            let request = queue.requests.pop_front();
            if queue.requests.is_empty() {
                functions.swap_remove(at);
            }
            return request.map(|request| (request, reservation));
        }
        None
    }

    /// Removes a request from its queue, if it was not granted.
    fn cancel(self: &Arc<Self>, number: u64) {
        let mut queues = self.queues.lock();
        let mut removed = None;
        for at in 0..queues.functions.len() {
            let requests = &mut queues.functions[at].requests;
            if let Some(index) = requests.iter().position(|request| request.number == number) {
                removed = requests.remove(index);
                if requests.is_empty() {
                    queues.functions.swap_remove(at);
                }
                break;
            }
        }
        drop(queues);
        if removed.is_some() {
            self.waiting.fetch_sub(1, SeqCst);
            self.refused.fetch_add(1, Relaxed);
            self.grant();
        }
    }

    fn release(self: &Arc<Self>, function: &FunctionMemory, lane_bytes: u64, main_bytes: u64) {
        if lane_bytes > 0 {
            self.lane.used.fetch_sub(lane_bytes, SeqCst);
        }
        if main_bytes > 0 {
            self.main.used.fetch_sub(main_bytes, SeqCst);
        }
        function.held.fetch_sub(lane_bytes + main_bytes, Relaxed);
        if self.waiting.load(SeqCst) > 0 {
            self.grant();
        }
    }
}

impl Pool {
    fn free(&self, withheld: u64) -> u64 {
        self.max_bytes.saturating_sub(withheld).saturating_sub(self.used.load(Relaxed))
    }

    fn take(&self, bytes: u64, withheld: u64) -> bool {
        let max_bytes = self.max_bytes.saturating_sub(withheld);
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= max_bytes);
        self.used.fetch_update(SeqCst, Relaxed, more).is_ok()
    }
}

impl FunctionMemory {
    /// Adjusts the estimate to the peak of an invocation.
    fn learn(&self, peak_bytes: u64) {
        let before = self.estimate.load(Relaxed);
        self.estimate.store(peak_bytes.max(before - before / DECAY_SHARE), Relaxed);
    }
}

#[cfg(test)]
mod tests;
