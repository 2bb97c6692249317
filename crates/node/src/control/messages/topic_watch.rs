//! The broker's watch of topics, which lives while a caller asks for topics and 30 seconds longer.

use std::time::Duration;

use edgefaas_broker::Broker;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Time from the last call to the end of the watch.
const KEPT: Duration = Duration::from_secs(30);

/// The watched topics of a broker.
pub(super) struct WatchedTopics {
    pub broker: Broker,
    cancel: CancellationToken,
    /// Time of the last call; `None` while the topics are not watched.
    asked: Mutex<Option<Instant>>,
    /// Held while the first call begins the watch: others wait until the retained topics are known.
    beginning: Mutex<()>,
}

impl WatchedTopics {
    pub fn new(broker: Broker, cancel: CancellationToken) -> Self {
        Self { broker, cancel, asked: Mutex::default(), beginning: Mutex::default() }
    }

    /// Notes a call; true if it is the first one, whose caller runs [`end_unasked`](Self::end_unasked).
    pub fn ask(&self) -> bool {
        self.asked.lock().replace(Instant::now()).is_none()
    }

    /// Begins the watch, unless a call did before. Blocks for a walk over the retained messages.
    pub fn begin(&self) {
        let _beginning = self.beginning.lock();
        self.broker.watch_topics();
    }

    /// Ends the watch when no call has come for a while.
    pub async fn end_unasked(self: std::sync::Arc<Self>) {
        loop {
            let due = self.asked.lock().map(|asked| asked + KEPT);
            let Some(due) = due else { return };
            tokio::select! {
                () = sleep_until(due) => {}
                () = self.cancel.cancelled() => return self.broker.unwatch_topics(),
            }
            let mut asked = self.asked.lock();
            if asked.is_some_and(|asked| asked + KEPT <= Instant::now()) {
                *asked = None;
                self.broker.unwatch_topics();
                return;
            }
        }
    }
}
