//! Admission control of one function: limit of concurrent invocations, bounded queue, rejection.
//!
//! A queue in the order of arrival is in that of the *chains*: a later step of a workflow instance takes the place that it would have
//! if it had arrived when the instance started, at most [`MAX_HEAD_START`] ago. Otherwise, under a load that it cannot carry, a
//! function that several steps of a workflow call would do the first step of all instances before the second of any, and all instances
//! would be late. An instance that is older than [`MAX_CHAIN_AGE`] is late already, or loops: its steps wait like all other
//! invocations, so that an endless instance delays them by its turns only.
//!
//! Steps get a place even if the queue is full. A part of the capacity (`others_share`) is reserved for the other invocations, which
//! endless instances would otherwise shut out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use edgefaas_manifest::{Limits, QueueOrder, WhenFull};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Maximum time by which a step of a workflow passes invocations that arrived before it.
const MAX_HEAD_START: Duration = Duration::from_secs(2);
/// Age of a workflow instance beyond which its steps pass no other invocation.
const MAX_CHAIN_AGE: Duration = Duration::from_secs(5);
/// Divisor of the capacity: the share that is reserved for invocations that are neither durable nor steps of a workflow.
const OTHERS_SHARE: usize = 4;

/// The permits and the queue of one function.
pub struct Admission {
    concurrency: u32,
    capacity: usize,
    order: QueueOrder,
    when_full: WhenFull,
    state: Mutex<State>,
    /// `State::running`, for readers that do not lock.
    running: Arc<AtomicU32>,
    /// An invocation has started since the last [`Admission::take_has_run`].
    has_run: AtomicBool,
}

#[derive(Default)]
struct State {
    running: u32,
    /// By `since`, if the order is that of arrival.
    waiting: VecDeque<Waiter>,
    /// Number of waiting invocations that are neither durable nor steps of a workflow.
    others: usize,
    next_number: u64,
}

impl State {
    fn remove(&mut self, at: usize) -> Option<Waiter> {
        let waiter = self.waiting.remove(at)?;
        self.others -= usize::from(!waiter.durable);
        Some(waiter)
    }
}

struct Waiter {
    number: u64,
    since: Instant,
    durable: bool,
    permit: oneshot::Sender<Permit>,
}

/// The right to run. Dropping it passes it to the next waiter.
pub struct Permit {
    admission: Arc<Admission>,
    // False if dropping the permit must not release it.
    armed: bool,
}

/// An admitted invocation: it has a permit, or a slot in the queue.
pub enum Ticket {
    /// It can run now.
    Ready(Permit),
    /// It has to wait.
    Waiting(QueueSlot),
}

/// A slot in the queue. Dropping it leaves the queue.
pub struct QueueSlot {
    admission: Arc<Admission>,
    number: u64,
    permit: oneshot::Receiver<Permit>,
}

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// The invocation was dropped from the queue for a newer one.
#[derive(Debug, PartialEq, Eq)]
pub struct Dropped;

impl Admission {
    /// Without invocations, with the limits of a function.
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            concurrency: limits.concurrency,
            capacity: limits.queue.capacity as usize,
            order: limits.queue.order,
            when_full: limits.queue.when_full,
            state: Mutex::default(),
            running: Arc::default(),
            has_run: AtomicBool::new(false),
        })
    }

    /// Takes a permit or a slot in the queue. Does not wait.
    ///
    /// # Errors
    /// The queue is full, also the part for others than durable invocations, and its policy is not to drop the oldest.
    pub fn enter(self: &Arc<Self>) -> Result<Ticket, Full> {
        let mut state = self.state.lock();
        if state.running < self.concurrency {
            self.set_running(&mut state, |running| running + 1);
            return Ok(Ticket::Ready(Permit { admission: self.clone(), armed: true }));
        }
        let mut dropped = None;
        if state.waiting.len() >= self.capacity && state.others >= self.others_share() {
            match self.when_full {
                WhenFull::Reject | WhenFull::Block => return Err(Full),
                WhenFull::DropOldest => {
                    let oldest = state.waiting.iter().position(|waiter| !waiter.durable);
                    dropped = Some(oldest.and_then(|at| state.remove(at)).ok_or(Full)?);
                }
            }
        }
        let slot = self.enqueue(&mut state, false, Duration::ZERO);
        drop(state);
        drop(dropped);
        Ok(Ticket::Waiting(slot))
    }

    /// Invocations that may wait though steps of workflows and durable invocations fill the queue.
    fn others_share(&self) -> usize {
        (self.capacity / OTHERS_SHARE).max(1)
    }

    /// Takes a permit or a slot for a durable invocation. It always gets one, also over the capacity, and is never dropped,
    /// because the durable queue has its own capacity. The durable queue starts at most `concurrency` of them at a time.
    /// `chain_age` is the time since the start of the workflow instance that it is a step of, zero if it is none.
    pub fn enter_durable(self: &Arc<Self>, chain_age: Duration) -> Ticket {
        let mut state = self.state.lock();
        if state.running < self.concurrency {
            self.set_running(&mut state, |running| running + 1);
            return Ticket::Ready(Permit { admission: self.clone(), armed: true });
        }
        Ticket::Waiting(self.enqueue(&mut state, true, chain_age))
    }

    fn enqueue(self: &Arc<Self>, state: &mut State, durable: bool, chain_age: Duration) -> QueueSlot {
        let (sender, permit) = oneshot::channel();
        let number = state.next_number;
        state.next_number += 1;
        let now = Instant::now();
        let head_start =
            if chain_age > MAX_CHAIN_AGE { Duration::ZERO } else { chain_age.min(MAX_HEAD_START) };
        let since = now.checked_sub(head_start).unwrap_or(now);
        let at = match self.order {
            QueueOrder::Fifo => state.waiting.partition_point(|waiter| waiter.since <= since),
            QueueOrder::Lifo => state.waiting.len(),
        };
        state.waiting.insert(at, Waiter { number, since, durable, permit: sender });
        state.others += usize::from(!durable);
        QueueSlot { admission: self.clone(), number, permit }
    }

    /// Number of running and of waiting invocations.
    pub fn load(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.running, state.waiting.len() as u32)
    }

    /// True if as many invocations wait as may. Those of workflow steps and durable invocations count, though they wait beyond it.
    pub fn is_full(&self) -> bool {
        self.state.lock().waiting.len() >= self.capacity
    }

    /// Number of running invocations, read without a lock.
    pub fn running(&self) -> &Arc<AtomicU32> {
        &self.running
    }

    /// True if an invocation runs, or has started since the last call of this.
    pub fn take_has_run(&self) -> bool {
        self.has_run.swap(false, Relaxed) || self.running.load(Relaxed) > 0
    }

    fn set_running(&self, state: &mut State, next: impl FnOnce(u32) -> u32) {
        state.running = next(state.running);
        self.running.store(state.running, Relaxed);
        self.has_run.store(true, Relaxed);
    }

    /// Maximum number of waiting invocations.
    pub fn capacity(&self) -> u32 {
        self.capacity as u32
    }

    /// Passes a released permit to the next waiter, or lowers the number of running invocations.
    fn release(self: &Arc<Self>) {
        loop {
            let waiter = {
                let mut state = self.state.lock();
                let next = match self.order {
                    QueueOrder::Fifo => 0,
                    QueueOrder::Lifo => state.waiting.len().saturating_sub(1),
                };
                match state.remove(next) {
                    Some(waiter) => waiter,
                    None => {
                        self.set_running(&mut state, |running| running - 1);
                        return;
                    }
                }
            };
            match waiter.permit.send(Permit { admission: self.clone(), armed: true }) {
                Ok(()) => return,
                // The waiter was dropped meanwhile: the permit goes to the next one.
                Err(mut permit) => permit.armed = false,
            }
        }
    }
}

impl Ticket {
    /// Waits for the right to run.
    ///
    /// # Errors
    /// The invocation was dropped from a full queue.
    pub async fn permit(self) -> Result<Permit, Dropped> {
        match self {
            Self::Ready(permit) => Ok(permit),
            Self::Waiting(mut slot) => (&mut slot.permit).await.map_err(|_| Dropped),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.armed {
            self.admission.release();
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.permit.close();
        // Dropping a permit that was sent but not received releases it.
        if self.permit.try_recv().is_ok() {
            return;
        }
        let mut state = self.admission.state.lock();
        if let Some(index) = state.waiting.iter().position(|waiter| waiter.number == self.number) {
            state.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgefaas_manifest::Queue;

    fn admission(
        concurrency: u32,
        capacity: u32,
        order: QueueOrder,
        when_full: WhenFull,
    ) -> Arc<Admission> {
        let queue = Queue { capacity, order, when_full };
        Admission::new(&Limits { concurrency, queue, ..Limits::default() })
    }

    fn ready(ticket: Ticket) -> Permit {
        match ticket {
            Ticket::Ready(permit) => permit,
            Ticket::Waiting(_) => panic!("the invocation has to wait"),
        }
    }

    #[tokio::test]
    async fn running_and_waiting_invocations_are_limited() {
        let admission = admission(2, 1, QueueOrder::Fifo, WhenFull::Reject);
        let first = ready(admission.enter().unwrap());
        let _second = ready(admission.enter().unwrap());
        let third = admission.enter().unwrap();
        assert_eq!(admission.enter().err(), Some(Full));
        assert_eq!(admission.load(), (2, 1));
        drop(first);
        let third = third.permit().await.unwrap();
        assert_eq!(admission.load(), (2, 0));
        drop(third);
        assert_eq!(admission.load(), (1, 0));
        assert_eq!(admission.running().load(Relaxed), 1);
    }

    #[tokio::test]
    async fn steps_fill_a_queue_but_for_the_share_of_others() {
        let admission = admission(1, 8, QueueOrder::Fifo, WhenFull::Reject);
        let running = ready(admission.enter().unwrap());
        let mut steps: Vec<_> = (0..8).map(|_| admission.enter_durable(Duration::ZERO)).collect();
        assert!(admission.is_full());
        let mut others: Vec<_> = (0..2).map(|_| admission.enter().unwrap()).collect();
        assert_eq!(admission.enter().err(), Some(Full), "a quarter of 8");
        steps.push(admission.enter_durable(Duration::ZERO));
        assert_eq!(admission.load(), (1, 11));
        // One of the others leaves, one gets its permit: each makes room for one more.
        drop(others.pop());
        others.push(admission.enter().unwrap());
        assert!(admission.enter().is_err());
        drop((running, steps));
        let _permit = others.remove(0).permit().await.unwrap();
        assert!(!admission.is_full());
        assert_eq!(admission.load(), (1, 1));
    }

    #[tokio::test]
    async fn the_order_decides_which_invocation_is_next() {
        for (order, expected) in [(QueueOrder::Fifo, 0), (QueueOrder::Lifo, 2)] {
            let admission = admission(1, 10, order, WhenFull::Reject);
            let running = ready(admission.enter().unwrap());
            let mut waiting: Vec<_> = (0..3).map(|_| admission.enter().unwrap()).collect();
            drop(running);
            let permit = waiting.remove(expected).permit().await.unwrap();
            assert_eq!(admission.load(), (1, 2));
            drop(waiting);
            drop(permit);
            assert_eq!(admission.load(), (0, 0));
        }
    }

    #[tokio::test]
    async fn a_step_of_a_chain_passes_what_arrived_after_the_chain() {
        let admission = admission(1, 10, QueueOrder::Fifo, WhenFull::Reject);
        let running = ready(admission.enter().unwrap());
        // Out of the order of their chains, two of them of one chain.
        let arrived = admission.enter_durable(Duration::from_secs(1));
        let first = admission.enter().unwrap();
        let steps = [1500, 1500].map(|ms| admission.enter_durable(Duration::from_millis(ms)));
        let oldest = admission.enter_durable(MAX_CHAIN_AGE);
        let last = admission.enter().unwrap();
        let mut permit = running;
        let [second_step, third_step] = steps;
        for next in [oldest, second_step, third_step, arrived, first, last] {
            drop(permit);
            permit = next.permit().await.unwrap();
        }
        drop(permit);
        assert_eq!(admission.load(), (0, 0));
    }

    #[tokio::test]
    async fn a_step_of_an_old_chain_passes_no_other_invocation() {
        let admission = admission(1, 10, QueueOrder::Fifo, WhenFull::Reject);
        let running = ready(admission.enter().unwrap());
        let waits = admission.enter().unwrap();
        let looping = admission.enter_durable(MAX_CHAIN_AGE + Duration::from_millis(1));
        drop(running);
        drop(waits.permit().await.unwrap());
        looping.permit().await.unwrap();
    }

    #[tokio::test]
    async fn the_newest_first_is_by_arrival() {
        let admission = admission(1, 10, QueueOrder::Lifo, WhenFull::Reject);
        let running = ready(admission.enter().unwrap());
        let _waits = admission.enter().unwrap();
        let step = admission.enter_durable(MAX_HEAD_START);
        drop(running);
        step.permit().await.unwrap();
    }

    #[tokio::test]
    async fn drop_oldest_makes_room_for_the_new_one() {
        let admission = admission(1, 1, QueueOrder::Fifo, WhenFull::DropOldest);
        let running = ready(admission.enter().unwrap());
        let oldest = admission.enter().unwrap();
        let newest = admission.enter().unwrap();
        assert_eq!(oldest.permit().await.err(), Some(Dropped));
        drop(running);
        assert!(newest.permit().await.is_ok());
    }

    #[tokio::test]
    async fn a_dropped_ticket_frees_its_slot_or_permit() {
        let admission = admission(1, 2, QueueOrder::Fifo, WhenFull::Reject);
        let running = ready(admission.enter().unwrap());
        let cancelled = admission.enter().unwrap();
        let waiting = admission.enter().unwrap();
        drop(cancelled);
        assert_eq!(admission.load(), (1, 1));
        drop(running);
        let permit = waiting.permit().await.unwrap();
        // A permit that was sent to a waiter that never received it is released.
        let late = admission.enter().unwrap();
        drop(permit);
        drop(late);
        assert_eq!(admission.load(), (0, 0));
    }
}
