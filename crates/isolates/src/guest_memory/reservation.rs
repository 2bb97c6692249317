//! Memory that is granted to an isolate, or requested for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::{FunctionMemory, GuestMemory, ISOLATE_BYTES};
use crate::outcome::RunError;

/// Memory that one isolate may use. Released on drop.
pub(crate) struct Reservation {
    pub(super) memory: Arc<GuestMemory>,
    pub(super) function: Arc<FunctionMemory>,
    pub(super) lane_bytes: u64,
    pub(super) main_bytes: u64,
    /// The maximum that the isolate has needed so far.
    pub(super) peak_bytes: u64,
    /// The bytes it needed when growth was refused.
    pub(super) refused_bytes: Option<u64>,
}

impl Reservation {
    /// Grows the reservation to cover an isolate with `memory_bytes` of linear memory. False if the budget has no room.
    pub fn cover(&mut self, memory_bytes: usize) -> bool {
        let needed = (memory_bytes as u64).saturating_add(ISOLATE_BYTES);
        let missing = needed.saturating_sub(self.lane_bytes + self.main_bytes);
        if missing > 0 {
            let (memory, withheld) = (&self.memory, self.memory.withheld.load(Relaxed));
            if memory.reclaiming(|| memory.main.take(missing, withheld).then_some(())).is_none() {
                self.refused_bytes = Some(needed);
                return false;
            }
            self.function.held.fetch_add(missing, Relaxed);
            self.main_bytes += missing;
        }
        self.peak_bytes = self.peak_bytes.max(needed);
        true
    }

    /// The error of an invocation that ended because its isolate could not grow; none if it could.
    pub fn refusal(&self) -> Option<RunError> {
        let needed = self.refused_bytes?;
        let (max_bytes, largest_bytes) = (self.memory.reading().max_bytes, self.memory.main.max_bytes);
        Some(match needed > largest_bytes {
            // The invocation does not fit into an empty budget either.
            true => RunError::OutOfMemory {
                limit_bytes: GuestMemory::largest_isolate_bytes(max_bytes) as usize,
            },
            false => RunError::NodeOutOfMemory { max_bytes },
        })
    }

    /// Shrinks the reservation to an idle isolate with `memory_bytes` of linear memory, after its invocation has ended.
    pub fn shrink_to_idle(&mut self, memory_bytes: usize) {
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

/// A request for memory that is not granted yet. Dropping it cancels the request.
pub(crate) struct PendingReservation {
    pub(super) memory: Arc<GuestMemory>,
    pub(super) number: u64,
    pub(super) granted: oneshot::Receiver<Reservation>,
}

impl Future for PendingReservation {
    type Output = Option<Reservation>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.granted).poll(context).map(Result::ok)
    }
}

impl Drop for PendingReservation {
    fn drop(&mut self) {
        self.granted.close();
        // A reservation that was granted meanwhile is released by dropping it here.
        if self.granted.try_recv().is_err() {
            self.memory.cancel(self.number);
        }
    }
}
