//! Order of instances that messages start.
//!
//! Instances that messages of one topic start begin in the order of the messages. Their starts are committed together, and
//! only the first effects of an instance wait for those of the one before: see [`StartTurn`]. With `order_by = "topic"` they
//! run one after another: the next one waits in a [`Lane`] until the one before has ended.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;

use edgefaas_functions::durable::{Digest, digest};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::instance::Running;

/// The place of an instance among those that run one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// Digest of the workflow and the topic.
    key: Digest,
    /// Its number in the order of the messages.
    pub(crate) number: u64,
}

/// The place of a running instance.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) place: Place,
    /// True once the next instance may begin.
    is_left: AtomicBool,
}

impl From<Place> for Held {
    fn from(place: Place) -> Self {
        Self { place, is_left: AtomicBool::new(false) }
    }
}

/// The starts of a node whose order matters.
#[derive(Default)]
pub(crate) struct StartOrder {
    /// The last start of each workflow and topic that has not begun.
    last: Mutex<HashMap<Digest, Arc<Begun>>>,
    lanes: Mutex<HashMap<Digest, Lane>>,
    next_number: AtomicU64,
}

/// Instances that run one after another.
struct Lane {
    active: Ulid,
    waiting: VecDeque<(Arc<Running>, Queued)>,
}

/// The turn of a start among those of the same workflow and topic. Dropping it lets the next one begin.
pub(crate) struct StartTurn {
    order: Arc<StartOrder>,
    key: Digest,
    before: Option<Arc<Begun>>,
    own: Arc<Begun>,
}

/// Tells the next start that one has begun.
#[derive(Default)]
struct Begun {
    done: CancellationToken,
    /// If it was refused: the one before it, which had not begun.
    before: Mutex<Option<Arc<Begun>>>,
}

/// The key of a workflow and a topic.
fn key(workflow: &str, topic: &Digest) -> Digest {
    digest(&[workflow.as_bytes(), topic])
}

impl StartOrder {
    /// The turn after all earlier ones of the same workflow and topic.
    pub fn turn(self: &Arc<Self>, workflow: &str, topic: &Digest) -> StartTurn {
        let (key, own) = (key(workflow, topic), Arc::<Begun>::default());
        let before = self.last.lock().insert(key, own.clone());
        StartTurn { order: self.clone(), key, before, own }
    }

    /// The next place in the order of a workflow and a topic.
    pub fn place(&self, workflow: &str, topic: &Digest) -> Place {
        Place { key: key(workflow, topic), number: self.next_number.fetch_add(1, Ordering::Relaxed) }
    }

    /// Marks the numbers up to `number` as used.
    pub fn not_before(&self, number: u64) {
        self.next_number.fetch_max(number + 1, Ordering::Relaxed);
    }

    /// Returns a start that may begin now; otherwise it waits for the instance before it.
    fn enter(&self, place: Place, running: Arc<Running>, queued: Queued) -> Option<(Arc<Running>, Queued)> {
        let mut lanes = self.lanes.lock();
        match lanes.get_mut(&place.key) {
            Some(lane) => {
                lane.waiting.push_back((running, queued));
                None
            }
            None => {
                lanes.insert(place.key, Lane { active: running.id, waiting: VecDeque::new() });
                Some((running, queued))
            }
        }
    }

    /// Returns the start that may begin when an instance has ended.
    fn leave(&self, place: Place, id: Ulid) -> Option<(Arc<Running>, Queued)> {
        let mut lanes = self.lanes.lock();
        let lane = lanes.get_mut(&place.key)?;
        if lane.active != id {
            // It was cancelled before it began.
            lane.waiting.retain(|(waiting, _)| waiting.id != id);
            return None;
        }
        let next = lane.waiting.pop_front();
        match &next {
            Some((running, _)) => lane.active = running.id,
            None => drop(lanes.remove(&place.key)),
        }
        next
    }
}

impl StartTurn {
    /// Completes when the start before this one has begun.
    pub async fn reached(&self) {
        let mut before = self.before.clone();
        while let Some(start) = Begun::pending(before) {
            start.done.cancelled().await;
            before = Some(start);
        }
    }

    /// Begins the first call of the instance, which gives it its place in the queue of its function, and ends the turn.
    pub async fn end_with<T>(self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        let begun = poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        drop(self);
        match begun {
            Poll::Ready(done) => done,
            Poll::Pending => call.await,
        }
    }
}

impl Drop for StartTurn {
    fn drop(&mut self) {
        // A start that is refused before its turn leaves its place to the next one.
        let pending = Begun::pending(self.before.take());
        self.own.before.lock().clone_from(&pending);
        let mut last = self.order.last.lock();
        if last.get(&self.key).is_some_and(|last| Arc::ptr_eq(last, &self.own)) {
            match pending {
                Some(before) => last.insert(self.key, before),
                None => last.remove(&self.key),
            };
        }
        drop(last);
        self.own.done.cancel();
    }
}

impl Begun {
    /// The first of a start and those before it that has not begun.
    fn pending(mut start: Option<Arc<Self>>) -> Option<Arc<Self>> {
        while let Some(done) = start.as_ref().filter(|start| start.done.is_cancelled()) {
            let before = done.before.lock().clone();
            start = before;
        }
        start
    }
}

impl Coordinator {
    /// Begins an instance that a message starts.
    pub(super) fn begin_in_order(
        self: &Arc<Self>,
        running: Arc<Running>,
        queued: Queued,
        turn: Option<StartTurn>,
    ) {
        let Some(place) = running.held.as_ref().map(|held| held.place) else {
            return self.spawn_advance(running, Queued { turn, ..queued });
        };
        if let Some((running, queued)) = self.order.enter(place, running, queued) {
            self.spawn_advance(running, queued);
        }
    }

    /// Lets the next instance begin that waits for this one.
    pub(super) fn leave_order(self: &Arc<Self>, running: &Running) {
        let Some(held) = &running.held else { return };
        if held.is_left.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some((next, queued)) = self.order.leave(held.place, running.id) {
            self.spawn_advance(next, queued);
        }
    }

    /// An instance that a restart interrupted goes on before those that wait.
    pub(super) fn resume_order(&self, running: &Arc<Running>) {
        if let Some(held) = &running.held {
            let new = || Lane { active: running.id, waiting: VecDeque::new() };
            self.order.lanes.lock().entry(held.place.key).or_insert_with(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_comes_after_those_before_it_also_if_one_between_is_dropped() {
        let order = Arc::<StartOrder>::default();
        let topic = digest(&[b"t"]);
        let (first, second, third) =
            (order.turn("w", &topic), order.turn("w", &topic), order.turn("w", &topic));
        let other = order.turn("w", &digest(&[b"u"]));
        other.reached().await;
        drop(other);
        first.reached().await;
        drop(second);
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let call = {
            let mut reached = pin!(third.reached());
            let is_early = poll_fn(|context| Poll::Ready(reached.as_mut().poll(context).is_ready())).await;
            assert!(!is_early, "the first has not begun");
            // A call that is pending has begun: the next turn comes while it runs.
            let call = tokio::spawn(first.end_with(finished));
            reached.await;
            call
        };
        finish.send(()).unwrap();
        call.await.unwrap().unwrap();
        drop(third);
        assert!(order.last.lock().is_empty(), "nothing is kept of starts that have begun");
    }
}
