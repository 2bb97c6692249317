//! What the upkeep thread is asked to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Work that waits for the upkeep thread.
pub struct Chores {
    signal: SyncSender<()>,
    reclaim: AtomicBool,
    rotate: AtomicBool,
    survey: AtomicBool,
    stop: AtomicBool,
}

impl Chores {
    /// With the receiver for the upkeep thread.
    pub fn new() -> (Arc<Self>, Receiver<()>) {
        let (signal, signalled) = sync_channel(1);
        let (reclaim, rotate, survey, stop) = Default::default();
        (Arc::new(Self { signal, reclaim, rotate, survey, stop }), signalled)
    }

    /// The disk is full: dead data is to be removed.
    pub fn reclaim(&self) {
        self.ask(&self.reclaim);
    }

    /// The journal is longer than it should be.
    pub fn rotate(&self) {
        self.ask(&self.rotate);
    }

    /// The manifest may be out of date.
    pub fn survey(&self) {
        self.ask(&self.survey);
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.ask(&self.stop);
    }

    /// Whether it was asked for since the last time.
    pub(super) fn takes_reclaim(&self) -> bool {
        self.reclaim.swap(false, Ordering::AcqRel)
    }

    /// The same for a new journal.
    pub(super) fn takes_rotate(&self) -> bool {
        self.rotate.swap(false, Ordering::AcqRel)
    }

    /// The same for the manifest, at which upkeep looks each time.
    pub(super) fn takes_survey(&self) -> bool {
        self.survey.swap(false, Ordering::AcqRel)
    }

    fn ask(&self, flag: &AtomicBool) {
        if !flag.swap(true, Ordering::AcqRel) {
            // A full channel is a signal that is still to be seen.
            let _ = self.signal.try_send(());
        }
    }

    /// The store closes.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
