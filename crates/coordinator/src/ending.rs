//! The end of an instance: its report to waiters, and the retention of failed instances.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use edgefaas_state::store::Batch;
use edgefaas_workflow::instance::FrameId;
use edgefaas_workflow::{Event, Status, WorkflowError};
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::instance::Running;
use super::run_state::Refusal;

/// Failed instances that are kept for a retry.
const MAX_FAULTED: usize = 1000;

impl Coordinator {
    /// Reports the end of an instance, if it has ended, to its waiter, its parent and its subscribers.
    pub(super) fn report_if_ended(self: &Arc<Self>, running: &Arc<Running>) {
        let (status, result, waiter, since, steps) = {
            let mut state = running.state.lock();
            let status = state.instance.status();
            if state.budget.refusal == Refusal::Due && !status.is_ended() {
                state.budget.refusal = Refusal::Sent;
                let error = WorkflowError::over_budget(state.budget.charge.over_budget().to_string());
                drop(state);
                return self.spawn_advance(running.clone(), Queued::now(Event::Refuse { error }));
            }
            let unreported = if status.is_ended() { state.end.report() } else { None };
            let Some(waiter) = unreported else {
                drop(state);
                return running.has_settled();
            };
            if state.ended_unix_ms == 0 {
                state.ended_unix_ms = self.clock.now_unix_ms();
            }
            (status, state.result(), waiter, state.started, state.instance.steps())
        };
        let result = result.map_err(|error| self.masked(running, error));
        let figures = &running.workflow.figures;
        let (own, all) = match status {
            Status::Completed => (&figures.completed, &self.figures.completed),
            Status::Cancelled => (&figures.cancelled, &self.figures.cancelled),
            _ => (&figures.faulted, &self.figures.faulted),
        };
        own.fetch_add(1, Relaxed);
        all.fetch_add(1, Relaxed);
        figures.duration_us.fetch_add(since.elapsed().as_micros() as u64, Relaxed);
        // A failed instance that can be retried is kept. An invalid input stays invalid, so an instance that ran no
        // task is dropped.
        let stays = status == Status::Faulted && running.is_durable();
        if stays && steps > 0 {
            self.keep_faulted(running);
        } else if stays {
            self.spawn_drop(running);
        } else {
            self.forget(running);
        }
        // Successful instances that are not durable may be too many to remember.
        if running.is_durable() || result.is_err() || running.trace_parent.is_some() {
            let view = running.ended_view(&result, |text| self.mask(running, text));
            self.ended.lock().add(view);
        }
        if let Err(error) = &result
            && status == Status::Faulted
        {
            let (name, id) = (&running.workflow.name, running.id.to_string());
            let text = self.mask(running, error.to_string());
            self.logs.add(name, &id, edgefaas_isolates::LogLevel::Error, text);
        }
        let is_reported = waiter.is_some_and(|waiter| waiter.send(result.clone()).is_ok());
        self.answer_workflow(running, &result, is_reported);
        if let Some((parent, frame)) = running.parent
            && let Some(parent) = self.find(parent)
        {
            self.spawn_advance(parent, Queued::now(Event::Ended { frame, result }));
        }
        self.after_end(&running.workflow.name);
        self.leave_order(running);
        running.has_settled();
    }

    /// Masks the secrets of the workflow's app in a text that leaves the instance.
    pub(super) fn mask(&self, running: &Running, text: String) -> String {
        self.secrets.mask(&running.workflow.app, text)
    }

    /// Masks secrets in an error before a caller gets it: an expression that fails may quote its input.
    pub(super) fn masked(&self, running: &Running, mut error: WorkflowError) -> WorkflowError {
        let texts = [&mut error.title, &mut error.detail].into_iter().flatten();
        for text in texts.chain([&mut error.kind]) {
            *text = self.mask(running, std::mem::take(text));
        }
        error
    }

    /// Keeps a failed instance. Drops the oldest above [`MAX_FAULTED`], and the largest ones while memory is short.
    fn keep_faulted(self: &Arc<Self>, running: &Running) {
        let oldest = {
            let mut faulted = self.faulted.lock();
            faulted.push_back(running.id);
            if faulted.len() > MAX_FAULTED { faulted.pop_front() } else { None }
        };
        self.drop_if_faulted(oldest);
        self.make_room(0);
    }

    /// Drops failed instances, the largest first, until `bytes` bytes are free.
    pub(super) fn make_room(self: &Arc<Self>, bytes: usize) {
        while !self.budget.has_room(bytes) {
            let largest = {
                let mut faulted = self.faulted.lock();
                let held =
                    |id: &Ulid| self.find(*id).map_or(0, |one| one.state.lock().budget.charge.bytes());
                let at = (0..faulted.len()).max_by_key(|at| held(&faulted[*at]));
                at.and_then(|at| faulted.remove(at))
            };
            if largest.is_none() {
                return;
            }
            self.drop_if_faulted(largest);
        }
    }

    /// The instance may have been retried in the meantime.
    fn drop_if_faulted(self: &Arc<Self>, id: Option<Ulid>) {
        let found = id.and_then(|id| self.find(id));
        if let Some(found) = found.filter(|one| one.state.lock().instance.status() == Status::Faulted) {
            self.spawn_drop(&found);
        }
    }

    fn spawn_drop(self: &Arc<Self>, running: &Running) {
        self.workers.spawn(self.drop_faulted(running, Batch::default()));
    }

    /// Removes an instance from memory.
    pub(super) fn forget(self: &Arc<Self>, running: &Running) {
        self.leave_order(running);
        if self.instances.lock().remove(&running.id).is_none() {
            return;
        }
        let mut state = running.state.lock();
        self.timers.set(running.id, state.registered.due_ms.take(), None);
        if std::mem::replace(&mut state.registered.is_running, false) {
            self.running.fetch_sub(1, Relaxed);
            running.workflow.figures.running.fetch_sub(1, Relaxed);
        }
        for (_, call) in state.open.calls.drain(..) {
            call.notify_one();
        }
        for frame in std::mem::take(&mut state.open.listens) {
            self.unlisten(running.id, frame);
        }
        drop(state);
        running.workflow.figures.live.fetch_sub(1, Relaxed);
        self.room.notify_one();
    }
}

impl super::Coordinator {
    pub(super) fn unlisten(&self, id: Ulid, frame: FrameId) {
        self.interests.remove(id, frame);
        self.unwatch_queue(id, frame);
    }
}
