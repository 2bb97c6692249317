//! Whose turn it is to compute, where many invocations want to at once.
//!
//! An invocation that has computed for a tick goes on when it is its function's turn on this thread, which one invocation of
//! a function has at a time. So a thread has as many that compute as there are functions that want to, and not as many as
//! there are invocations: a function with a thousand of them gets no more of it than one with two, and what ends within a
//! tick waits for a tick of each of the others at most.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The turns of one function on each thread.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<ThreadId, Arc<Semaphore>>>);

impl Turns {
    /// Waits for the turn on this thread; those who wait have it in the order in which they came.
    pub async fn take(&self) -> Option<OwnedSemaphorePermit> {
        let here = self
            .0
            .lock()
            .entry(thread::current().id())
            .or_insert_with(|| Arc::new(Semaphore::new(1)))
            .clone();
        here.acquire_owned().await.ok()
    }
}
