//! Who runs now, who waits, and who is turned away: a function's bounded queue.

use std::collections::VecDeque;
use std::sync::Arc;

use edgefaas_manifest::{Limits, QueueOrder, WhenFull};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The gate of one function.
pub struct Admission {
    concurrency: u32,
    capacity: usize,
    order: QueueOrder,
    when_full: WhenFull,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: u32,
    waiting: VecDeque<Waiter>,
    next_number: u64,
}

struct Waiter {
    number: u64,
    durable: bool,
    turn: oneshot::Sender<Permit>,
}

/// The right to run; given back when it is dropped.
pub struct Permit {
    gate: Arc<Admission>,
    // The permit is being handed on: dropping it must not do so again.
    armed: bool,
}

/// A place at the gate: the right to run, or a place in the queue.
pub enum Ticket {
    /// Run now.
    Ready(Permit),
    /// Wait for the turn.
    Waiting(Place),
}

/// A place in the queue; given up when it is dropped.
pub struct Place {
    gate: Arc<Admission>,
    number: u64,
    turn: oneshot::Receiver<Permit>,
}

/// The queue is full.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// The place was given to a newer invocation.
#[derive(Debug, PartialEq, Eq)]
pub struct Dropped;

impl Admission {
    /// A gate with a function's limits.
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            concurrency: limits.concurrency,
            capacity: limits.queue.capacity as usize,
            order: limits.queue.order,
            when_full: limits.queue.when_full,
            state: Mutex::default(),
        })
    }

    /// A place, at once: this never waits.
    pub fn enter(self: &Arc<Self>) -> Result<Ticket, Full> {
        let mut state = self.state.lock();
        if state.running < self.concurrency {
            state.running += 1;
            return Ok(Ticket::Ready(Permit { gate: self.clone(), armed: true }));
        }
        let mut dropped = None;
        if state.waiting.len() >= self.capacity {
            match self.when_full {
                WhenFull::Reject | WhenFull::Block => return Err(Full),
                WhenFull::DropOldest => {
                    let oldest = state.waiting.iter().position(|waiter| !waiter.durable);
                    dropped = Some(oldest.and_then(|at| state.waiting.remove(at)).ok_or(Full)?);
                }
            }
        }
        let place = self.wait(&mut state, false);
        drop(state);
        drop(dropped);
        Ok(Ticket::Waiting(place))
    }

    /// A place for a durable invocation, which was counted when it was accepted: there always is one, and nobody is put
    /// in it instead. Of these no more than `concurrency` ask at the same time.
    pub fn enter_durable(self: &Arc<Self>) -> Ticket {
        let mut state = self.state.lock();
        if state.running < self.concurrency {
            state.running += 1;
            return Ticket::Ready(Permit { gate: self.clone(), armed: true });
        }
        Ticket::Waiting(self.wait(&mut state, true))
    }

    fn wait(self: &Arc<Self>, state: &mut State, durable: bool) -> Place {
        let (turn, comes) = oneshot::channel();
        let number = state.next_number;
        state.next_number += 1;
        state.waiting.push_back(Waiter { number, durable, turn });
        Place { gate: self.clone(), number, turn: comes }
    }

    /// How many run and how many wait.
    pub fn load(&self) -> (u32, u32) {
        let state = self.state.lock();
        (state.running, state.waiting.len() as u32)
    }

    /// How many may wait.
    pub fn capacity(&self) -> u32 {
        self.capacity as u32
    }

    /// Hands a permit on to who is next, or takes it back.
    fn next(self: &Arc<Self>) {
        loop {
            let waiter = {
                let mut state = self.state.lock();
                let next = match self.order {
                    QueueOrder::Fifo => state.waiting.pop_front(),
                    QueueOrder::Lifo => state.waiting.pop_back(),
                };
                match next {
                    Some(waiter) => waiter,
                    None => {
                        state.running -= 1;
                        return;
                    }
                }
            };
            match waiter.turn.send(Permit { gate: self.clone(), armed: true }) {
                Ok(()) => return,
                // It gave up in this very moment: the permit comes back and goes to the next one.
                Err(mut permit) => permit.armed = false,
            }
        }
    }
}

impl Ticket {
    /// Waits for the right to run.
    pub async fn turn(self) -> Result<Permit, Dropped> {
        match self {
            Self::Ready(permit) => Ok(permit),
            Self::Waiting(mut place) => (&mut place.turn).await.map_err(|_| Dropped),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.armed {
            self.gate.next();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.turn.close();
        // A permit that was sent but never received goes back when it is dropped here.
        if self.turn.try_recv().is_ok() {
            return;
        }
        let mut state = self.gate.state.lock();
        if let Some(index) = state.waiting.iter().position(|waiter| waiter.number == self.number) {
            state.waiting.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgefaas_manifest::Queue;

    fn gate(concurrency: u32, capacity: u32, order: QueueOrder, when_full: WhenFull) -> Arc<Admission> {
        let queue = Queue { capacity, order, when_full };
        Admission::new(&Limits { concurrency, queue, ..Limits::default() })
    }

    fn ready(ticket: Ticket) -> Permit {
        match ticket {
            Ticket::Ready(permit) => permit,
            Ticket::Waiting(_) => panic!("it should not wait"),
        }
    }

    #[tokio::test]
    async fn at_most_so_many_run_and_so_many_wait() {
        let gate = gate(2, 1, QueueOrder::Fifo, WhenFull::Reject);
        let first = ready(gate.enter().unwrap());
        let _second = ready(gate.enter().unwrap());
        let third = gate.enter().unwrap();
        assert_eq!(gate.enter().err(), Some(Full));
        assert_eq!(gate.load(), (2, 1));
        drop(first);
        let third = third.turn().await.unwrap();
        assert_eq!(gate.load(), (2, 0));
        drop(third);
        assert_eq!(gate.load(), (1, 0));
    }

    #[tokio::test]
    async fn the_order_decides_who_is_next() {
        for (order, expected) in [(QueueOrder::Fifo, 0), (QueueOrder::Lifo, 2)] {
            let gate = gate(1, 10, order, WhenFull::Reject);
            let running = ready(gate.enter().unwrap());
            let mut waiting: Vec<_> = (0..3).map(|_| gate.enter().unwrap()).collect();
            drop(running);
            let permit = waiting.remove(expected).turn().await.unwrap();
            assert_eq!(gate.load(), (1, 2));
            drop(waiting);
            drop(permit);
            assert_eq!(gate.load(), (0, 0));
        }
    }

    #[tokio::test]
    async fn drop_oldest_makes_room_for_the_new_one() {
        let gate = gate(1, 1, QueueOrder::Fifo, WhenFull::DropOldest);
        let running = ready(gate.enter().unwrap());
        let oldest = gate.enter().unwrap();
        let newest = gate.enter().unwrap();
        assert_eq!(oldest.turn().await.err(), Some(Dropped));
        drop(running);
        assert!(newest.turn().await.is_ok());
    }

    #[tokio::test]
    async fn who_gives_up_leaves_no_trace() {
        let gate = gate(1, 2, QueueOrder::Fifo, WhenFull::Reject);
        let running = ready(gate.enter().unwrap());
        let quitter = gate.enter().unwrap();
        let patient = gate.enter().unwrap();
        drop(quitter);
        assert_eq!(gate.load(), (1, 1));
        drop(running);
        let permit = patient.turn().await.unwrap();
        // A permit that was handed over to somebody who never took it comes back.
        let late = gate.enter().unwrap();
        drop(permit);
        drop(late);
        assert_eq!(gate.load(), (0, 0));
    }
}
