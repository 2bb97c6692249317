//! Health of the node, for `/readyz` and the watchdog of a service manager.

use std::fmt;
use std::sync::Arc;

use edgefaas_functions::drain::Drain;
use edgefaas_functions::workers::Workers;
use edgefaas_state::store::{Store, StoreFailure};

/// Whether the node takes new work.
#[derive(Debug, Clone)]
pub enum Readiness {
    /// It does.
    Ready,
    /// It does, but writes that need space are refused.
    DiskFull,
    /// It stops.
    Draining,
    /// It cannot store anything, and ends.
    StoreFailed {
        /// The first failure.
        reason: StoreFailure,
    },
}

impl fmt::Display for Readiness {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => write!(out, "ready"),
            Self::DiskFull => {
                write!(out, "ready, but the disk is full: writes that need space are refused")
            }
            Self::Draining => write!(out, "draining"),
            Self::StoreFailed { reason } => write!(out, "the store failed, restart the node: {reason}"),
        }
    }
}

/// The parts of a node that show its health.
pub struct Health {
    pub(crate) drain: Arc<Drain>,
    pub(crate) store: Arc<Store>,
    pub(crate) workers: Arc<Workers>,
}

impl Health {
    /// The answer of `/readyz`.
    pub fn readiness(&self) -> Readiness {
        if self.drain.is_draining() {
            return Readiness::Draining;
        }
        let committer = self.store.committer();
        match committer.failure() {
            Some(reason) => Readiness::StoreFailed { reason },
            None if committer.space().is_full => Readiness::DiskFull,
            None => Readiness::Ready,
        }
    }

    /// Waits until each worker thread has run a task, which a function that computes delays by less than a second. Never
    /// ends while a worker hangs. Slow disks do not count: a restart does not make them faster.
    pub async fn workers_answer(&self) {
        self.workers.answer().await;
    }
}
