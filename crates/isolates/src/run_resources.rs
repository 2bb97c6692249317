//! Resources that an invocation is given to run with.

use std::sync::Arc;

use crate::cpu_time::CpuTime;
use crate::guest_memory::Reservation;

/// The isolate of one invocation. `I` is an idle instance.
pub(crate) enum Isolate<I> {
    /// An instance that has answered an earlier invocation; it has a reservation.
    Warm(Box<I>),
    /// A new instance, with memory reserved for it.
    New(Reservation),
}

/// Resources of one run.
pub(crate) struct RunResources<I> {
    pub isolate: Isolate<I>,
    /// True if the run returns its instance, if that may have another invocation.
    pub keep: bool,
    /// Processor time of the run, and the turns of its function.
    pub cpu_time: Arc<CpuTime>,
}
