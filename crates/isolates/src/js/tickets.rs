//! Host calls in flight, by the tickets that the engine knows them by.

use std::collections::HashMap;
use std::pin::Pin;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

/// The maximum of open tickets of an invocation.
pub const MAX_TICKETS: usize = 1024;

type Ticketed = Pin<Box<dyn Future<Output = (u32, Vec<u8>)> + Send>>;

/// Host calls in flight, each with the number that the engine knows it by.
#[derive(Default)]
pub struct Tickets {
    last: u32,
    pending: FuturesUnordered<Abortable<Ticketed>>,
    handles: HashMap<u32, AbortHandle>,
    /// Answered, and not taken yet.
    ready: Vec<(u32, Vec<u8>)>,
}

impl Tickets {
    /// Waits for answers. None if no ticket is open.
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
        for (ticket, _) in &ready {
            self.handles.remove(ticket);
        }
        Some(ready)
    }

    /// True if no ticket is open, answered ones included.
    pub fn is_idle(&self) -> bool {
        self.handles.is_empty() && self.ready.is_empty()
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
        self.last += 1;
        let ticket = self.last;
        let (handle, registration) = AbortHandle::new_pair();
        let future: Ticketed = Box::pin(answer.map(move |answer| (ticket, answer)));
        self.pending.push(Abortable::new(future, registration));
        self.handles.insert(ticket, handle);
        ticket.cast_signed()
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
}
