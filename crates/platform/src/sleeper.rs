//! Waits for due times of a [`Clock`](crate::Clock).

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::clock_control::Controlled;

/// A task that waits, again and again, for the next due time of what users have set: a `wait` of a workflow, a retry, a schedule.
///
/// While it is not in [`sleep`](Self::sleep), it counts as at work: a test that advances the clock waits until it sleeps again.
#[derive(Debug)]
pub struct Sleeper(Option<Registered>);

#[derive(Debug)]
struct Registered {
    clock: Arc<Controlled>,
    id: u64,
}

/// Sleeping, until it is dropped.
struct Asleep<'a>(&'a Registered);

impl Sleeper {
    pub(crate) fn new(clock: Option<Arc<Controlled>>) -> Self {
        Self(clock.map(|clock| Registered { id: clock.add_sleeper(), clock }))
    }

    /// Sleeps until `wait` has passed by the clock (`None`: nothing is due), but not longer than `at_most` of real time. May end earlier:
    /// the caller looks at what is due. Dropping the future ends the sleep.
    pub async fn sleep(&self, wait: Option<Duration>, at_most: Duration) {
        match &self.0 {
            None => tokio::time::sleep(wait.map_or(at_most, |wait| wait.min(at_most))).await,
            // Boxed: only nodes of tests need it.
            Some(registered) => Box::pin(registered.sleep(wait, at_most)).await,
        }
    }
}

impl Registered {
    async fn sleep(&self, wait: Option<Duration>, at_most: Duration) {
        // Before the due time is known to the test: no change is missed.
        let mut changes = self.clock.changes();
        let due = wait.and_then(|wait| self.clock.instant().checked_add(wait));
        let _asleep = Asleep(self);
        self.clock.falls_asleep(self.id, due);
        let mut recheck = pin!(tokio::time::sleep(at_most));
        loop {
            let left = self.clock.left_until(due);
            if left.is_some_and(|left| left.is_zero()) {
                return;
            }
            let passes = async {
                match left.filter(|_| !self.clock.is_held()) {
                    Some(left) => tokio::time::sleep(left).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                () = passes => {}
                () = &mut recheck => return,
                woken = changes.woken() => if woken { return },
            }
        }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.clock.wakes(self.0.id);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.clock.remove_sleeper(self.id);
    }
}
