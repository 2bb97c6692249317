//! Work requests for the upkeep thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Work requests that the upkeep thread has not taken yet.
pub struct UpkeepRequests {
    signal: SyncSender<()>,
    reclaim: AtomicBool,
    rotate: AtomicBool,
    check_manifest: AtomicBool,
    stop: AtomicBool,
}

impl UpkeepRequests {
    /// Makes the requests and the receiver of the upkeep thread.
    pub fn new() -> (Arc<Self>, Receiver<()>) {
        let (signal, signalled) = sync_channel(1);
        let (reclaim, rotate, check_manifest, stop) = Default::default();
        (Arc::new(Self { signal, reclaim, rotate, check_manifest, stop }), signalled)
    }

    /// Requests removal of dead data, since the disk is full.
    pub fn reclaim(&self) {
        self.request(&self.reclaim);
    }

    /// Requests a rotation of the engine's journal, since it is too long.
    pub fn rotate(&self) {
        self.request(&self.rotate);
    }

    /// Requests a check of the manifest, which may be out of date.
    pub fn check_manifest(&self) {
        self.request(&self.check_manifest);
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.request(&self.stop);
    }

    /// Takes the request to reclaim; true if it was made since the last call.
    pub(super) fn take_reclaim(&self) -> bool {
        self.reclaim.swap(false, Ordering::AcqRel)
    }

    /// Takes the request to rotate the engine's journal.
    pub(super) fn take_rotate(&self) -> bool {
        self.rotate.swap(false, Ordering::AcqRel)
    }

    /// Takes the request to check the manifest, which each round of upkeep does.
    pub(super) fn take_manifest_check(&self) -> bool {
        self.check_manifest.swap(false, Ordering::AcqRel)
    }

    fn request(&self, flag: &AtomicBool) {
        if !flag.swap(true, Ordering::AcqRel) {
            // A full channel already carries a signal.
            let _ = self.signal.try_send(());
        }
    }

    /// True once the store closes.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}
