//! Listing, showing, cancelling and retrying instances.

use std::sync::Arc;

use edgefaas_workflow::{Event, Status};
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::instance::Running;
use super::instance_view::InstanceView;
use super::run_state::End;

/// An instance cannot be cancelled or retried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// No instance has this id, or it has ended.
    #[error("there is no instance {0}, or it has ended; `edgefaas workflow list` shows the instances")]
    Unknown(String),
    /// The instance has not failed, so there is nothing to retry.
    #[error("instance {id} is {status}; only a failed instance can be retried")]
    NotFaulted {
        /// The id of the instance.
        id: String,
        /// The status of the instance.
        status: &'static str,
    },
}

impl Coordinator {
    /// At most `max` instances of a workflow, or of all workflows, newest first, and the number of instances that were left out.
    pub fn list(&self, workflow: Option<&str>, max: usize) -> (Vec<InstanceView>, u64) {
        let mut found: Vec<Arc<Running>> = self
            .instances
            .lock()
            .values()
            .filter(|running| workflow.is_none_or(|name| *running.workflow.name == *name))
            .cloned()
            .collect();
        found.sort_by_key(|running| std::cmp::Reverse(running.id));
        let more = found.len().saturating_sub(max) as u64;
        (found.iter().take(max).map(|running| running.view(false)).collect(), more)
    }
}

impl Coordinator {
    /// See [`Coordinator::list`].
    pub fn instances(&self, workflow: Option<&str>, max: usize) -> (Vec<InstanceView>, u64) {
        let (mut found, more) = self.list(workflow, max);
        for view in &mut found {
            if let Some(running) = self.find(view.id) {
                let secrets = &running.workflow.program.secrets;
                view.error =
                    self.secrets.mask(&running.workflow.app, secrets, std::mem::take(&mut view.error));
            }
        }
        (found, more)
    }

    /// An instance with its data, secrets masked.
    pub fn instance(&self, id: Ulid) -> Option<InstanceView> {
        let running = self.find(id);
        let mut view = match &running {
            Some(running) => running.view(true),
            None => self.ended.lock().find(id)?,
        };
        if let Some(running) = running {
            let secrets = &running.workflow.program.secrets;
            for text in [&mut view.input, &mut view.context, &mut view.output, &mut view.error] {
                *text = self.secrets.mask(&running.workflow.app, secrets, std::mem::take(text));
            }
        }
        Some(view)
    }

    /// Cancels an instance. A failed instance is removed.
    ///
    /// # Errors
    /// `Unknown` if no instance has this id.
    pub async fn cancel_instance(self: &Arc<Self>, id: Ulid) -> Result<(), ChangeError> {
        let running = self.find(id).ok_or_else(|| ChangeError::Unknown(id.to_string()))?;
        let faulted = running.state.lock().instance.status() == Status::Faulted;
        if faulted {
            self.drop_faulted(&running).await;
        } else {
            self.advance(&running, Queued::now(Event::Cancel)).await;
        }
        Ok(())
    }

    /// Retries the failed task.
    ///
    /// # Errors
    /// `Unknown` if no instance has this id, `NotFaulted` if the instance has not failed.
    pub fn retry_instance(self: &Arc<Self>, id: Ulid) -> Result<(), ChangeError> {
        let running = self.find(id).ok_or_else(|| ChangeError::Unknown(id.to_string()))?;
        {
            let mut state = running.state.lock();
            let status = state.instance.status();
            if status != Status::Faulted {
                return Err(ChangeError::NotFaulted { id: id.to_string(), status: status.word() });
            }
            state.end = End::Open { waiter: None };
        }
        self.faulted.lock().retain(|faulted| *faulted != id);
        self.spawn_advance(running, Queued::now(Event::Retry));
        Ok(())
    }
}
