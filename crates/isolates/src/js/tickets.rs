//! Host calls in flight, by the tickets that the engine knows them by.

use std::collections::HashMap;
use std::pin::Pin;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

/// The maximum of open tickets of an invocation.
pub const MAX_TICKETS: usize = 1024;

type Ticketed = Pin<Box<dyn Future<Output = (u32, Step)> + Send>>;

/// A message for a ticket.
pub enum Step {
    /// The answer, or its last part. It ends the ticket.
    Last(Vec<u8>),
    /// A part of the answer, and the next one. That is not polled before this one is taken.
    Piece(Vec<u8>, Pin<Box<dyn Future<Output = Step> + Send>>),
}

/// Host calls in flight, each with the number that the engine knows it by.
#[derive(Default)]
pub struct Tickets {
    last: u32,
    pending: FuturesUnordered<Abortable<Ticketed>>,
    handles: HashMap<u32, AbortHandle>,
    /// Answered, and not taken yet.
    ready: Vec<(u32, Step)>,
}

impl Tickets {
    /// Waits for answers and parts of answers. None if no ticket is open.
    pub async fn next(&mut self) -> Option<Vec<(u32, Vec<u8>)>> {
        let mut ready = std::mem::take(&mut self.ready);
        while ready.is_empty() {
            if self.handles.is_empty() {
                return None;
            }
            // A cancelled ticket ends here without an answer.
            ready.extend(self.pending.next().await?.ok());
        }
        while let Some(Some(more)) = self.pending.next().now_or_never() {
            ready.extend(more.ok());
        }
        let mut taken = Vec::with_capacity(ready.len());
        for (ticket, step) in ready {
            match step {
                Step::Last(answer) => {
                    self.handles.remove(&ticket);
                    taken.push((ticket, answer));
                }
                Step::Piece(piece, rest) => {
                    self.wait_for(ticket, rest);
                    taken.push((ticket, piece));
                }
            }
        }
        Some(taken)
    }

    /// True if no ticket is open, answered ones included.
    pub fn is_idle(&self) -> bool {
        self.handles.is_empty() && self.ready.is_empty()
    }

    /// True if no ticket was ever opened.
    pub fn is_unused(&self) -> bool {
        self.last == 0
    }

    /// True if another ticket may be opened.
    pub fn has_room(&mut self) -> bool {
        // A cancelled ticket stays among the pending until it is polled.
        if self.pending.len() >= MAX_TICKETS {
            while let Some(Some(ended)) = self.pending.next().now_or_never() {
                self.ready.extend(ended.ok());
            }
        }
        self.pending.len() < MAX_TICKETS && self.handles.len() < MAX_TICKETS
    }

    /// Opens a ticket for `answer` and returns its number.
    pub fn open(&mut self, answer: impl Future<Output = Vec<u8>> + Send + 'static) -> i32 {
        self.open_in_pieces(answer.map(Step::Last))
    }

    /// Opens a ticket for an answer that comes in parts and returns its number.
    pub fn open_in_pieces(&mut self, answer: impl Future<Output = Step> + Send + 'static) -> i32 {
        self.last += 1;
        let ticket = self.last;
        self.wait_for(ticket, answer);
        ticket.cast_signed()
    }

    fn wait_for(&mut self, ticket: u32, step: impl Future<Output = Step> + Send + 'static) {
        let (handle, registration) = AbortHandle::new_pair();
        let future: Ticketed = Box::pin(step.map(move |step| (ticket, step)));
        self.pending.push(Abortable::new(future, registration));
        self.handles.insert(ticket, handle);
    }

    /// Cancels a ticket; its answer is dropped.
    pub fn cancel(&mut self, ticket: u32) {
        if let Some(handle) = self.handles.remove(&ticket) {
            handle.abort();
            self.ready.retain(|(answered, _)| *answered != ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cancelled_tickets_leave() {
        let mut tickets = Tickets::default();
        for _ in 0..10 * MAX_TICKETS {
            assert!(tickets.has_room());
            let ticket = tickets.open(std::future::pending());
            tickets.cancel(ticket.cast_unsigned());
            assert!(tickets.pending.len() <= MAX_TICKETS);
        }
        assert_eq!(tickets.next().await, None);
    }

    #[tokio::test]
    async fn answers_that_making_room_finds_are_not_lost() {
        let mut tickets = Tickets::default();
        let answered = tickets.open(std::future::ready(vec![7])).cast_unsigned();
        let cancelled = tickets.open(std::future::ready(vec![8])).cast_unsigned();
        while tickets.pending.len() < MAX_TICKETS {
            tickets.open(std::future::pending());
        }
        assert!(!tickets.has_room(), "the answered still count until they are taken");
        tickets.cancel(cancelled);
        assert!(tickets.has_room());
        assert_eq!(tickets.next().await, Some(vec![(answered, vec![7])]));
    }

    #[tokio::test]
    async fn parts_of_an_answer_come_one_at_a_time() {
        let mut tickets = Tickets::default();
        let last = |number: u8| -> Pin<Box<dyn Future<Output = Step> + Send>> {
            Box::pin(async move { Step::Last(vec![number]) })
        };
        let ticket = tickets.open_in_pieces(async move { Step::Piece(vec![1], last(2)) }).cast_unsigned();
        assert_eq!(tickets.next().await, Some(vec![(ticket, vec![1])]));
        assert!(!tickets.is_idle());
        assert_eq!(tickets.next().await, Some(vec![(ticket, vec![2])]));
        assert!(tickets.is_idle());
        let ticket = tickets.open_in_pieces(async move { Step::Piece(vec![1], last(2)) }).cast_unsigned();
        assert_eq!(tickets.next().await, Some(vec![(ticket, vec![1])]));
        tickets.cancel(ticket);
        assert_eq!(tickets.next().await, None);
    }
}
