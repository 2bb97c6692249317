//! The node's end of the event queue, which owns the transport's driver.

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::event::Event;

/// Events of a transport, in order. Bounded by [`Options::event_capacity`](crate::Options::event_capacity): while they
/// are not taken, nothing is read from members. Owns the transport: dropping it disconnects all members in order.
#[derive(Debug)]
pub struct EventReceiver {
    events: mpsc::Receiver<Event>,
    /// `None` once the driver's end was seen.
    driver: Option<JoinHandle<()>>,
    _stop: DropGuard,
}

impl EventReceiver {
    /// `cancel` ends the driver.
    pub(crate) fn new(
        events: mpsc::Receiver<Event>,
        driver: JoinHandle<()>,
        cancel: CancellationToken,
    ) -> Self {
        Self { events, driver: Some(driver), _stop: cancel.drop_guard() }
    }

    /// Waits for the next event; `None` once the transport has ended. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Event> {
        if let Some(event) = self.events.recv().await {
            return Some(event);
        }
        if let Some(driver) = &mut self.driver {
            let ended = driver.await;
            self.driver = None;
            if let Err(error) = ended {
                tracing::error!(%error, "the cluster transport failed");
            }
        }
        None
    }

    /// The next event, if one is there.
    ///
    /// # Errors
    /// `Empty` if none is, `Disconnected` once the transport has ended.
    pub fn try_recv(&mut self) -> Result<Event, TryRecvError> {
        self.events.try_recv()
    }
}
