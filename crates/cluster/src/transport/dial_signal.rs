//! Wakes the driver after a change of what it has to dial.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes the driver. Any number of signals before it looks are one, so no peer can make them pile up.
#[derive(Debug, Clone, Default)]
pub(crate) struct DialSignal {
    changed: Arc<Notify>,
}

impl DialSignal {
    /// The membership, the addresses or the open tokens have changed.
    pub(crate) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Waits for a signal. For the driver only. Cancel-safe.
    pub(crate) async fn notified(&self) {
        self.changed.notified().await;
    }
}
