//! Drives an async function on its isolate's only thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::host;

/// The future is pending without a host call in flight.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the async function never settles: it waits without a call in flight")]
pub(crate) struct NeverSettles;

/// Runs a future to its end, sleeping in the node while it waits for host calls.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, NeverSettles> {
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        while woken.0.swap(false, Ordering::Relaxed) {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
        }
        if !host::wait_any() {
            return Err(NeverSettles);
        }
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_future_that_waits_for_nothing_is_reported() {
        assert_eq!(block_on(async { 1 }), Ok(1));
        assert_eq!(block_on(std::future::pending::<()>()), Err(NeverSettles));
    }

    #[test]
    fn a_future_that_wakes_itself_is_polled_again() {
        let mut polls = 0;
        let future = std::future::poll_fn(|context| {
            polls += 1;
            context.waker().wake_by_ref();
            if polls < 3 { Poll::Pending } else { Poll::Ready(polls) }
        });
        assert_eq!(block_on(future), Ok(3));
    }
}
