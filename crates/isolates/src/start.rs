//! Invocations that may start: their instance or memory is there.

use std::sync::Arc;
use std::time::Duration;

use crate::component::WarmComponent;
use crate::cpu_time::CpuTime;
use crate::guest_memory::Reservation;
use crate::js::WarmJs;
use crate::warm::Taken;

/// An instance between two invocations.
pub(crate) enum WarmInstance {
    Component(Box<WarmComponent>),
    JavaScript(Box<WarmJs>),
}

/// The instance or memory that an invocation starts with.
pub(crate) enum StartWith {
    Warm(Taken<WarmInstance>),
    New(Reservation),
}

/// An invocation that may start: it has a warm instance, or memory for a new one.
pub struct Start {
    pub(crate) with: StartWith,
    pub(crate) cpu_time: Arc<CpuTime>,
}

/// An invocation has waited until its thread has time for it: see [`Isolates::turn`](crate::Isolates::turn).
pub struct Admitted(pub(crate) ());

impl Start {
    /// The invocation has waited for its turn already, so that it runs without waiting again.
    #[must_use]
    pub fn after(self, _: Admitted) -> Self {
        self.cpu_time.admitted();
        self
    }

    /// The usage of the invocation, which grows while it runs.
    pub fn usage(&self) -> Usage {
        Usage { cpu_time: self.cpu_time.clone(), warm: matches!(self.with, StartWith::Warm(_)) }
    }
}

/// The usage of an invocation. It can be read after the run was dropped, too.
pub struct Usage {
    cpu_time: Arc<CpuTime>,
    warm: bool,
}

impl Usage {
    /// Processor time so far.
    pub fn cpu(&self) -> Duration {
        self.cpu_time.spent()
    }

    /// True if the invocation has an instance of an earlier one.
    pub fn warm(&self) -> bool {
        self.warm
    }
}
