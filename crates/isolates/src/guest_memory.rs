//! Memory of isolates: one budget for all of them, charged as they grow.
//!
//! An invocation reserves the usual peak of its function before it starts, and waits in a queue where that does not fit.
//! Growth beyond the reservation is charged when it happens, and refused where nothing is left: an invocation that holds
//! memory never waits for more, so that no two of them wait for each other.
//!
//! A part of the budget, the lane, is for small invocations alone, so that those of other functions pass while large ones
//! wait. Memory that is released goes to the function that holds least, whose oldest request keeps the rest of the budget
//! to itself once it has waited for [`PATIENCE`]: small requests cannot starve a large one either.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::outcome::RunError;
use crate::warm::WarmPool;

/// What an isolate takes beside its linear memory: its stack, tables, and what the node keeps for it.
pub const ISOLATE_BYTES: u64 = 128 << 10;
/// The largest reservation that counts as small.
const MAX_SMALL_BYTES: u64 = 4 << 20;
/// The part of the budget that only small reservations may take: one in so many bytes.
const LANE_SHARE: u64 = 8;
/// And no less than this, or a quarter of a small budget: two JavaScript functions of little data.
const MIN_LANE_BYTES: u64 = 13 << 19;
/// All invocations of a function together hold no more than so many times what is left after that (the dynamic thresholds of
/// Choudhury and Hahne, 1998): eight ninths of the budget if there is no other, eight seventeenths each if there are two.
const GREED: u64 = 8;
/// An invocation of a function that nothing is known of reserves no more than one in so many bytes.
const FIRST_SHARE: u64 = 8;
/// After this long the request whose turn it is keeps memory from being given to others.
const PATIENCE: Duration = Duration::from_millis(100);
/// The estimate of a function follows a smaller peak by one in so many bytes with each invocation.
const DECAY_SHARE: u64 = 16;

/// The memory of all isolates of a node.
pub struct GuestMemory {
    lane: Pool,
    main: Pool,
    small_bytes: u64,
    /// Part of the main pool that is not given out, because the machine has less memory than was planned.
    withheld: AtomicU64,
    /// Requests in `queues`.
    waiting: AtomicUsize,
    queues: Mutex<Queues>,
    refused: AtomicU64,
    /// Instances that wait for their next invocation; the first to go.
    warm: Arc<WarmPool>,
}

/// A number of bytes, and how many of them are in use.
struct Pool {
    max_bytes: u64,
    used: AtomicU64,
}

/// The memory of one function: what its isolates hold, and what one of them usually needs.
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

/// Memory that one isolate may use. Released when it is dropped.
pub(crate) struct Reservation {
    memory: Arc<GuestMemory>,
    function: Arc<FunctionMemory>,
    lane_bytes: u64,
    main_bytes: u64,
    /// The most that the isolate has needed so far.
    peak_bytes: u64,
    /// What it needed when growth was refused.
    refused_bytes: Option<u64>,
}

/// Use of the budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestMemoryReading {
    /// The budget.
    pub max_bytes: u64,
    /// Reserved and charged.
    pub used_bytes: u64,
    /// Held back because the machine is short of memory.
    pub withheld_bytes: u64,
    /// Invocations that wait for memory.
    pub waiting: usize,
    /// Invocations that waited too long or could not grow, since the start.
    pub refused: u64,
}

impl GuestMemory {
    /// A budget of `max_bytes`.
    pub(crate) fn new(max_bytes: u64, warm: Arc<WarmPool>) -> Arc<Self> {
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
            warm,
        })
    }

    /// The most linear memory that one isolate can have within a budget of `max_bytes`.
    pub fn largest_isolate_bytes(max_bytes: u64) -> u64 {
        (max_bytes - Self::lane_bytes(max_bytes)).saturating_sub(ISOLATE_BYTES)
    }

    fn lane_bytes(max_bytes: u64) -> u64 {
        (max_bytes / LANE_SHARE).max(MIN_LANE_BYTES.min(max_bytes / 4))
    }

    /// How much of it is in use.
    pub fn reading(&self) -> GuestMemoryReading {
        GuestMemoryReading {
            max_bytes: self.lane.max_bytes.saturating_add(self.main.max_bytes),
            used_bytes: self.lane.used.load(Relaxed) + self.main.used.load(Relaxed),
            withheld_bytes: self.withheld.load(Relaxed),
            waiting: self.waiting.load(Relaxed),
            refused: self.refused.load(Relaxed),
        }
    }

    /// Gives out less than the budget while the machine is short of memory, but never less than an eighth of it.
    pub fn withhold(self: &Arc<Self>, bytes: u64) {
        let bytes = bytes.min(self.main.max_bytes / 8 * 7);
        if self.withheld.swap(bytes, SeqCst) > bytes {
            self.settle();
        }
    }

    /// A reservation for an invocation that may have `limit_bytes` of linear memory, if there is room for it now and no
    /// other invocation waits.
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

    /// The same for an invocation that an isolate waits for: it passes those that wait, and instances that wait for their
    /// next invocation go.
    pub(crate) fn reserve_nested(
        self: &Arc<Self>,
        function: &Arc<FunctionMemory>,
        limit_bytes: u64,
    ) -> Option<Reservation> {
        let bytes = self.estimate(function, limit_bytes);
        let taken = self.evicting(|| self.take(function, bytes, true));
        taken.or_else(|| {
            self.refused.fetch_add(1, Relaxed);
            None
        })
    }

    /// Waits for a reservation. Dropping the future gives its place up.
    pub(crate) fn reserve(self: &Arc<Self>, function: &Arc<FunctionMemory>, limit_bytes: u64) -> Waiting {
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
        let waiting = Waiting { memory: self.clone(), number, granted };
        self.settle();
        // Each that goes gives its memory to those that wait.
        while waiting.granted.is_empty() && self.warm.evict(1) > 0 {}
        waiting
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

    /// Whether invocations wait.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// What an invocation of the function will need: its usual peak, or its limit while nothing is known.
    fn estimate(&self, function: &FunctionMemory, limit_bytes: u64) -> u64 {
        let most = limit_bytes.saturating_add(ISOLATE_BYTES).min(self.main.max_bytes);
        match function.estimate.load(Relaxed) {
            // No more than a share: several functions that are called for the first time, and wait for something, hold up nobody. What
            // one needs beyond it is charged as it grows.
            0 => most.min((self.main.max_bytes / FIRST_SHARE).max(ISOLATE_BYTES)),
            usual => usual.min(most),
        }
    }

    fn take(
        self: &Arc<Self>,
        function: &Arc<FunctionMemory>,
        bytes: u64,
        is_main_open: bool,
    ) -> Option<Reservation> {
        let held = function.held.load(Relaxed);
        // One invocation of each function at most: it is for those that have nothing else.
        let in_lane = held == 0 && bytes <= self.small_bytes && self.lane.take(bytes, 0);
        let withheld = self.withheld.load(Relaxed);
        // However many invocations of a function there are, others find some of the memory free.
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

    /// Tries again for each instance that goes.
    fn evicting<T>(&self, attempt: impl Fn() -> Option<T>) -> Option<T> {
        loop {
            if let Some(done) = attempt() {
                return Some(done);
            }
            if self.warm.evict(1) == 0 {
                return None;
            }
        }
    }

    /// Gives what is free to those that wait.
    fn settle(self: &Arc<Self>) {
        // Dropped after the lock is released: they release memory themselves.
        let mut unwanted = Vec::new();
        let mut queues = self.queues.lock();
        while let Some((request, reservation)) = self.next(&mut queues) {
            self.waiting.fetch_sub(1, SeqCst);
            unwanted.extend(request.grant.send(reservation).err());
        }
        drop(queues);
    }

    /// The next request that is granted.
    fn next(self: &Arc<Self>, queues: &mut Queues) -> Option<(Request, Reservation)> {
        let rank = |queue: &FunctionQueue| {
            (queue.function.held.load(Relaxed), queue.requests.front().map(|request| request.number))
        };
        let functions = &mut queues.functions;
        functions.sort_by_key(rank);
        // One that is larger than all that is given out now keeps nothing from others.
        let most = self.main.max_bytes.saturating_sub(self.withheld.load(Relaxed));
        let first =
            |queue: &FunctionQueue| queue.requests.front().is_some_and(|request| request.bytes <= most);
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

    /// Somebody does not wait any more.
    fn leave(self: &Arc<Self>, number: u64) {
        let mut queues = self.queues.lock();
        let mut left = None;
        for at in 0..queues.functions.len() {
            let requests = &mut queues.functions[at].requests;
            if let Some(index) = requests.iter().position(|request| request.number == number) {
                left = requests.remove(index);
                if requests.is_empty() {
                    queues.functions.swap_remove(at);
                }
                break;
            }
        }
        drop(queues);
        if left.is_some() {
            self.waiting.fetch_sub(1, SeqCst);
            self.refused.fetch_add(1, Relaxed);
            self.settle();
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
            self.settle();
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
    /// An isolate has needed so much.
    fn learn(&self, peak_bytes: u64) {
        let before = self.estimate.load(Relaxed);
        self.estimate.store(peak_bytes.max(before - before / DECAY_SHARE), Relaxed);
    }
}

impl Reservation {
    /// Makes it cover an isolate with so much linear memory; false if there is no room for it.
    pub fn cover(&mut self, memory_bytes: usize) -> bool {
        let needed = (memory_bytes as u64).saturating_add(ISOLATE_BYTES);
        let missing = needed.saturating_sub(self.lane_bytes + self.main_bytes);
        if missing > 0 {
            let (memory, withheld) = (&self.memory, self.memory.withheld.load(Relaxed));
            if memory.evicting(|| memory.main.take(missing, withheld).then_some(())).is_none() {
                self.refused_bytes = Some(needed);
                return false;
            }
            self.function.held.fetch_add(missing, Relaxed);
            self.main_bytes += missing;
        }
        self.peak_bytes = self.peak_bytes.max(needed);
        true
    }

    /// The error of an invocation that ended because its isolate could not grow.
    pub fn refusal(&self) -> Option<RunError> {
        let needed = self.refused_bytes?;
        let (max_bytes, largest_bytes) = (self.memory.reading().max_bytes, self.memory.main.max_bytes);
        Some(match needed > largest_bytes {
            // It would not fit at any other time.
            true => RunError::OutOfMemory {
                limit_bytes: GuestMemory::largest_isolate_bytes(max_bytes) as usize,
            },
            false => RunError::NodeOutOfMemory { max_bytes },
        })
    }

    /// The invocation has ended, and the isolate waits for the next one with so much linear memory: the rest is released.
    pub fn rest(&mut self, memory_bytes: usize) {
        self.finish();
        let needed = (memory_bytes as u64).saturating_add(ISOLATE_BYTES);
        let surplus = (self.lane_bytes + self.main_bytes).saturating_sub(needed);
        let (main, lane) = (surplus.min(self.main_bytes), surplus.saturating_sub(self.main_bytes));
        self.main_bytes -= main;
        self.lane_bytes -= lane;
        self.memory.release(&self.function, lane, main);
    }

    fn finish(&mut self) {
        if let Some(needed) = self.refused_bytes.take() {
            self.memory.refused.fetch_add(1, Relaxed);
            self.peak_bytes = self.peak_bytes.max(needed);
        }
        if self.peak_bytes > 0 {
            self.function.learn(self.peak_bytes);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.finish();
        self.memory.release(&self.function, self.lane_bytes, self.main_bytes);
    }
}

/// A request for memory that is not granted yet.
pub(crate) struct Waiting {
    memory: Arc<GuestMemory>,
    number: u64,
    granted: oneshot::Receiver<Reservation>,
}

impl Future for Waiting {
    type Output = Option<Reservation>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.granted).poll(context).map(Result::ok)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.granted.close();
        // What was granted in this very moment goes back when it is dropped here.
        if self.granted.try_recv().is_err() {
            self.memory.leave(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 70 MiB for large isolates, 10 for small ones, which have up to 4.
    fn memory() -> Arc<GuestMemory> {
        GuestMemory::new(80 * MIB, Arc::default())
    }

    /// A function whose invocations usually need so much.
    fn function(mib: u64) -> Arc<FunctionMemory> {
        let function = FunctionMemory::default();
        function.learn(mib * MIB);
        Arc::new(function)
    }

    fn reserve(memory: &Arc<GuestMemory>, function: &Arc<FunctionMemory>) -> Waiting {
        memory.reserve(function, 64 * MIB)
    }

    fn granted(waiting: &mut Waiting) -> Option<Reservation> {
        waiting.granted.try_recv().ok()
    }

    #[test]
    fn what_is_reserved_comes_back() {
        let (memory, large) = (memory(), function(30));
        let first = memory.try_reserve(&large, 64 * MIB).unwrap();
        let second = memory.try_reserve(&large, 64 * MIB).unwrap();
        assert!(memory.try_reserve(&large, 64 * MIB).is_none());
        assert_eq!(memory.reading().used_bytes, 60 * MIB);
        drop((first, second));
        assert_eq!(memory.reading().used_bytes, 0);
        assert_eq!(large.held.load(Relaxed), 0);
    }

    #[test]
    fn the_first_invocation_reserves_its_limit_and_later_ones_what_was_needed() {
        let (memory, function) = (memory(), Arc::<FunctionMemory>::default());
        let mut first = memory.try_reserve(&function, 6 * MIB).unwrap();
        assert_eq!(memory.reading().used_bytes, 6 * MIB + ISOLATE_BYTES);
        assert!(first.cover(2 << 20));
        drop(first);
        let next = memory.try_reserve(&function, 6 * MIB).unwrap();
        assert_eq!(memory.reading().used_bytes, 2 * MIB + ISOLATE_BYTES);
        drop(next);
        // Never more than an eighth of it, so that others can begin as well.
        let huge = Arc::<FunctionMemory>::default();
        let _first = memory.try_reserve(&huge, 4 << 30).unwrap();
        assert_eq!(memory.reading().used_bytes, 70 * MIB / 8);
    }

    #[test]
    fn growth_is_charged_and_refused_where_nothing_is_left() {
        let (memory, one, other) = (memory(), function(1), function(40));
        let _other = memory.try_reserve(&other, 64 * MIB).unwrap();
        let mut grows = memory.try_reserve(&one, 64 * MIB).unwrap();
        assert!(grows.cover(20 << 20) && grows.refusal().is_none());
        assert!(!grows.cover(40 << 20));
        assert_eq!(grows.refusal(), Some(RunError::NodeOutOfMemory { max_bytes: 80 * MIB }));
        drop(grows);
        assert_eq!(memory.reading().refused, 1);
        // The next one waits for as much.
        assert!(memory.try_reserve(&one, 64 * MIB).is_none());
        // What can never fit is the function's own fault.
        let mut grows = memory.empty(&one);
        assert!(!grows.cover(90 << 20));
        assert!(matches!(grows.refusal(), Some(RunError::OutOfMemory { .. })));
    }

    #[test]
    fn small_ones_pass_while_large_ones_wait_and_do_not_starve_them() {
        let (memory, running, large) = (memory(), function(50), function(65));
        let running = memory.try_reserve(&running, 64 * MIB).unwrap();
        let mut waits = memory.reserve(&large, 128 * MIB);
        let pass = |_| granted(&mut reserve(&memory, &function(3))).expect("small ones fit");
        let in_lane: Vec<_> = (0..3).map(pass).collect();
        let in_main: Vec<_> = (0..3).map(pass).collect();
        assert!(granted(&mut waits).is_none());
        // The large one has waited for long: others get the lane and nothing else.
        memory.queues.lock().functions[0].requests[0].since -= PATIENCE;
        drop(running);
        assert!(granted(&mut waits).is_none(), "small ones hold 9 MiB");
        let mut late: Vec<_> = (0..2).map(|_| reserve(&memory, &function(3))).collect();
        assert!(late.iter_mut().all(|waiting| granted(waiting).is_none()));
        drop(in_lane);
        let late: Vec<_> =
            late.iter_mut().map(|waiting| granted(waiting).expect("the lane is free")).collect();
        drop(in_main);
        let large = granted(&mut waits).expect("it has its turn");
        drop((late, large));
        assert_eq!((memory.reading().used_bytes, memory.reading().waiting), (0, 0));
    }

    #[test]
    fn however_many_invocations_a_function_has_another_one_finds_room() {
        let (memory, spins) = (memory(), function(3));
        let held: Vec<_> = std::iter::from_fn(|| memory.try_reserve(&spins, 64 * MIB)).collect();
        assert!(held.len() >= 20, "{}", held.len());
        let mut waits = reserve(&memory, &spins);
        assert!(granted(&mut waits).is_none());
        for other in [function(3), function(3), function(3)] {
            assert!(granted(&mut reserve(&memory, &other)).is_some());
        }
    }

    #[test]
    fn memory_goes_to_the_function_that_holds_least() {
        let (memory, greedy, modest) = (memory(), function(30), function(30));
        let mut running: Vec<_> = (0..2).map(|_| memory.try_reserve(&greedy, 64 * MIB).unwrap()).collect();
        let mut greedy_waits: Vec<_> = (0..50).map(|_| reserve(&memory, &greedy)).collect();
        let mut modest_waits = reserve(&memory, &modest);
        running.pop();
        let modest_runs = granted(&mut modest_waits);
        assert!(modest_runs.is_some());
        assert!(greedy_waits.iter_mut().all(|waiting| granted(waiting).is_none()));
    }

    #[test]
    fn who_gives_up_leaves_its_place() {
        let (memory, large) = (memory(), function(60));
        let running = memory.try_reserve(&large, 64 * MIB).unwrap();
        let (gone, mut stays) = (reserve(&memory, &large), reserve(&memory, &large));
        drop(gone);
        assert_eq!(memory.reading().waiting, 1);
        drop(running);
        let granted_now = granted(&mut stays).unwrap();
        // Granted, but dropped before it was taken.
        let late = reserve(&memory, &large);
        drop(granted_now);
        drop(late);
        assert_eq!((memory.reading().used_bytes, memory.reading().waiting), (0, 0));
    }

    #[test]
    fn one_that_cannot_fit_while_memory_is_withheld_keeps_nothing_from_others() {
        let (memory, large) = (memory(), function(60));
        memory.withhold(30 * MIB);
        let mut waits = memory.reserve(&large, 128 * MIB);
        memory.queues.lock().functions[0].requests[0].since -= PATIENCE;
        // More than the lane takes.
        let other = granted(&mut reserve(&memory, &function(6)));
        assert!(other.is_some(), "40 MiB are given out");
        assert!(granted(&mut waits).is_none());
        drop(other);
        memory.withhold(0);
        assert!(granted(&mut waits).is_some());
    }

    #[test]
    fn what_is_withheld_is_given_out_later() {
        let (memory, large) = (memory(), function(30));
        memory.withhold(50 * MIB);
        assert!(memory.try_reserve(&large, 64 * MIB).is_none());
        let mut waits = reserve(&memory, &large);
        memory.withhold(0);
        assert!(granted(&mut waits).is_some());
        // However short the machine is, something runs.
        memory.withhold(u64::MAX);
        assert!(memory.try_reserve(&function(8), 64 * MIB).is_some());
    }
}
