//! Turns of starts: instances that messages of one key start begin in the order of the messages.
//!
//! Their starts are committed at the same time. Only the first effects of an instance wait for those of the one before.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use edgefaas_functions::durable::{Digest, digest};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The last start of each workflow and key that has not begun.
#[derive(Default)]
pub(crate) struct StartTurns {
    last: Mutex<HashMap<Digest, Arc<Begun>>>,
}

/// The turn of a start among those of the same workflow and key. Dropping it lets the next one begin.
pub(crate) struct StartTurn {
    turns: Arc<StartTurns>,
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

impl StartTurns {
    /// The turn after all earlier ones of the same workflow and key.
    pub fn turn(self: &Arc<Self>, workflow: &str, topic: &Digest) -> StartTurn {
        let (key, own) = (digest(&[workflow.as_bytes(), topic]), Arc::<Begun>::default());
        let before = self.last.lock().insert(key, own.clone());
        StartTurn { turns: self.clone(), key, before, own }
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
        let mut last = self.turns.last.lock();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_comes_after_those_before_it_also_if_one_between_is_dropped() {
        let turns = Arc::<StartTurns>::default();
        let topic = digest(&[b"t"]);
        let (first, second, third) =
            (turns.turn("w", &topic), turns.turn("w", &topic), turns.turn("w", &topic));
        let other = turns.turn("w", &digest(&[b"u"]));
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
        assert!(turns.last.lock().is_empty(), "nothing is kept of starts that have begun");
    }
}
