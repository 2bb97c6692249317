//! Listing, showing, cancelling and retrying instances.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_functions::registry::LiveWorkflow;
use edgefaas_state::store::StoreError;
use edgefaas_workflow::{Event, Status};
use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::instance::Running;
use super::instance_view::InstanceView;
use super::kept_call::listed_key;
use super::run_state::End;

/// An instance cannot be cancelled or retried.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// No instance has this id, or it has ended and is no longer kept.
    #[error(
        "there is no instance {0}, or it has ended and is no longer kept; `edgefaas workflow list` shows the instances"
    )]
    Unknown(String),
    /// The instance has ended, so there is nothing to cancel.
    #[error(
        "instance {id} is {status} and has ended; only an instance that runs, waits or failed can be cancelled"
    )]
    Ended {
        /// The id of the instance.
        id: String,
        /// The status of the instance.
        status: &'static str,
    },
    /// The instance failed and nothing of it is left but its end.
    #[error(
        "instance {id} cannot be retried: only failed instances of durable workflows are kept for it, the newest ones, and those \
         that have run a task"
    )]
    NotKept {
        /// The id of the instance.
        id: String,
    },
    /// The instance has not failed, so there is nothing to retry.
    #[error("instance {id} is {status}; only a failed instance can be retried")]
    NotFaulted {
        /// The id of the instance.
        id: String,
        /// The status of the instance.
        status: &'static str,
    },
    /// The change, or the end before it, is still not stored.
    #[error(
        "what was asked of instance {id} is not stored yet: the disk is slow or full; `edgefaas workflow show {id}` tells what it \
         has come to"
    )]
    NotStored {
        /// The id of the instance.
        id: String,
    },
}

/// Maximum time for an end or a change to be stored, and the time between two looks.
const END_WAIT: Duration = Duration::from_secs(5);
const END_LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Instances that are cancelled at the same time.
const CANCELLED_TOGETHER: usize = 64;

/// Instances by their state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that have not ended.
    Open,
    /// Those that have failed and can be retried.
    Failed,
}

/// The instances of a workflow or of an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstancesOf {
    /// Those of the workflow of this name.
    Workflow(String),
    /// Those of all workflows of this app, also of one that was removed.
    App(String),
}

impl InstancesOf {
    fn has(&self, workflow: &LiveWorkflow) -> bool {
        match self {
            Self::Workflow(name) => *workflow.name == **name,
            Self::App(app) => *workflow.app == **app,
        }
    }
}

/// The instances of a list.
#[derive(Debug, Clone, Copy)]
pub struct InstanceFilter<'a> {
    /// Those of this workflow only.
    pub workflow: Option<&'a str>,
    /// Those whose call had this idempotency key or REQUEST-ID only.
    pub key: Option<&'a str>,
    /// Maximum number.
    pub max: usize,
}

impl Coordinator {
    /// Instances, and the number of instances that were left out: first those that have not ended or can be retried, the
    /// newest first, then the ended ones that are kept, the last one first. Secrets are masked. Blocks.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn instances(&self, filter: InstanceFilter<'_>) -> Result<(Vec<InstanceView>, u64), StoreError> {
        let InstanceFilter { workflow, key, max } = filter;
        let key = key.map(listed_key);
        let key_of = |running: &Running| running.kept_call.as_ref().and_then(|call| call.key.clone());
        let mut open: Vec<Arc<Running>> = self
            .instances
            .lock()
            .values()
            .filter(|running| workflow.is_none_or(|name| *running.workflow.name == *name))
            .filter(|running| key.is_none() || key_of(running).as_deref() == key)
            .cloned()
            .collect();
        open.sort_by_key(|running| std::cmp::Reverse(running.id));
        let more = open.len().saturating_sub(max) as u64;
        let view = |running: &Arc<Running>| {
            let mut view = running.view(false);
            view.error = self.mask(running, std::mem::take(&mut view.error));
            view
        };
        let mut found: Vec<_> = open.iter().take(max).map(view).collect();
        let more = more + self.list_kept(workflow, key, max, &mut found)?;
        Ok((found, more))
    }

    /// The workflow of each failed instance that can be retried.
    pub fn retryable(&self) -> Vec<Arc<LiveWorkflow>> {
        let faulted: Vec<Ulid> = self.faulted.lock().iter().copied().collect();
        faulted.into_iter().filter_map(|id| Some(self.find(id)?.workflow.clone())).collect()
    }

    /// An instance with its data, secrets masked.
    pub fn instance(&self, id: Ulid) -> Option<InstanceView> {
        let running = self.find(id);
        let mut view = match &running {
            Some(running) => running.view(true),
            None => {
                let ended = self.ended.lock().find(id);
                ended.or_else(|| self.kept_instance(id))?
            }
        };
        if let Some(running) = running {
            for text in [&mut view.input, &mut view.context, &mut view.output, &mut view.error] {
                *text = self.mask(&running, std::mem::take(text));
            }
        }
        Some(view)
    }

    /// Cancels an instance. A failed instance is removed. Returns when that is decided and, for a durable instance, stored.
    ///
    /// # Errors
    /// `Unknown` if no instance has this id, `Ended` if it has ended, also while it was to be cancelled, `NotStored` if the disk is
    /// slow or full.
    pub async fn cancel_instance(self: &Arc<Self>, id: Ulid) -> Result<(), ChangeError> {
        let ended = |status| ChangeError::Ended { id: id.to_string(), status: Status::word(status) };
        let running = self.find(id).ok_or_else(|| self.no_change(id, ended))?;
        if !self.is_stored_as_faulted(&running).await? {
            self.advance(&running, Queued::now(Event::Cancel)).await;
            match self.stored_end(&running).await? {
                Status::Cancelled => return Ok(()),
                // In the turn before.
                Status::Faulted => {}
                status => return Err(ended(status)),
            }
        }
        if self.find(id).is_none() {
            return Err(self.no_change(id, ended));
        }
        self.drop_faulted(&running, self.cancelled_end(id)).await;
        self.ended.lock().cancelled(id);
        Ok(())
    }

    /// The status of an instance that is about to end, when its end is stored.
    async fn stored_end(&self, running: &Running) -> Result<Status, ChangeError> {
        let (since, id) = (Instant::now(), running.id);
        let mut is_gone = false;
        loop {
            {
                let state = running.state.lock();
                let status = state.instance.status();
                if status.is_ended() && matches!(state.end, End::Reported) {
                    return Ok(status);
                }
            }
            // An event that came after the end may be handled now, by a thread that has the instance.
            if let Some(ended) = self.ended.lock().find(id) {
                return Ok(ended.status);
            }
            if is_gone {
                let kept = self.kept_instance(id).map(|kept| kept.status);
                return kept.ok_or_else(|| ChangeError::Unknown(id.to_string()));
            }
            if since.elapsed() > END_WAIT {
                return Err(ChangeError::NotStored { id: id.to_string() });
            }
            // What remembers it comes a moment later.
            is_gone = self.find(id).is_none();
            tokio::time::sleep(END_LOOK_INTERVAL).await;
        }
    }

    /// True if the instance has failed. A turn shows its end before that is stored: a change waits for it, for it must not be stored
    /// before the end.
    async fn is_stored_as_faulted(&self, running: &Running) -> Result<bool, ChangeError> {
        let since = Instant::now();
        loop {
            {
                let state = running.state.lock();
                if state.instance.status() != Status::Faulted {
                    return Ok(false);
                }
                if matches!(state.end, End::Reported) {
                    return Ok(true);
                }
            }
            if since.elapsed() > END_WAIT {
                return Err(ChangeError::NotStored { id: running.id.to_string() });
            }
            tokio::time::sleep(END_LOOK_INTERVAL).await;
        }
    }

    /// Cancels all instances of a workflow or an app, those that called others before them. Gives their number. Instances that start
    /// meanwhile go on.
    pub async fn cancel_instances(self: &Arc<Self>, of: InstancesOf, which: Which) -> u64 {
        let mut open: Vec<Arc<Running>> = {
            let instances = self.instances.lock();
            instances.values().filter(|running| of.has(&running.workflow)).cloned().collect()
        };
        open.retain(|running| {
            let status = running.state.lock().instance.status();
            match which {
                Which::Open => !status.is_ended(),
                Which::Failed => status == Status::Faulted,
            }
        });
        open.sort_by_key(|running| (running.depth, running.id));
        let cancel = |running: Arc<Running>| async move { self.cancel_instance(running.id).await.is_ok() };
        // Durable ones wait for the disk, which writes those of a group at once.
        let cancelled = stream::iter(open).map(cancel).buffered(CANCELLED_TOGETHER);
        cancelled.filter(|is_done| std::future::ready(*is_done)).count().await as u64
    }

    /// The error of a change of an instance that has ended or is unknown.
    fn no_change(&self, id: Ulid, of_ended: impl Fn(Status) -> ChangeError) -> ChangeError {
        let ended = self.ended.lock().find(id).or_else(|| self.kept_instance(id));
        ended.map_or_else(|| ChangeError::Unknown(id.to_string()), |ended| of_ended(ended.status))
    }

    /// Retries the failed task. Returns when that is stored.
    ///
    /// # Errors
    /// `Unknown` if no instance has this id, `NotFaulted` if the instance has not failed, `NotKept` if only its end is left,
    /// `NotStored` if the disk is slow or full.
    pub async fn retry_instance(self: &Arc<Self>, id: Ulid) -> Result<(), ChangeError> {
        let running = self.find(id).ok_or_else(|| {
            self.no_change(id, |status| match status {
                Status::Faulted => ChangeError::NotKept { id: id.to_string() },
                status => ChangeError::NotFaulted { id: id.to_string(), status: status.word() },
            })
        })?;
        self.is_stored_as_faulted(&running).await?;
        {
            let mut state = running.state.lock();
            let status = state.instance.status();
            if status != Status::Faulted || matches!(state.end, End::Open { .. }) {
                return Err(ChangeError::NotFaulted { id: id.to_string(), status: status.word() });
            }
            state.end = End::Open { waiter: None };
        }
        self.faulted.lock().retain(|faulted| *faulted != id);
        let (stored, is_stored) = oneshot::channel();
        self.spawn_advance(running, Queued { stored: Some(stored), ..Queued::now(Event::Retry) });
        match tokio::time::timeout(END_WAIT, is_stored).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(ChangeError::NotStored { id: id.to_string() }),
        }
    }
}
