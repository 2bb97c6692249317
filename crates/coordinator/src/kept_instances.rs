//! Records of instances whose end is kept: the key of their call, their outcome, and what a list shows of them. The
//! durable queue keeps them beside the outcomes of functions.

use std::collections::HashSet;
use std::sync::Arc;

use edgefaas_functions::durable::{
    EndedKey, ExternalCall, ExternalEnd, ExternalKept, ExternalState, KeyClaim,
};
use edgefaas_functions::invocation::{InvocationError, Timing};
use edgefaas_functions::problem::Problem;
use edgefaas_functions::records;
use edgefaas_isolates::Reply;
use edgefaas_state::store::{Batch, CommitError, Durability, StoreError};
use edgefaas_workflow::{Event, Status};
use serde::{Deserialize, Serialize};
use ulid::Ulid;

use super::coordinator::Coordinator;
use super::event_queue::Queued;
use super::instance::{Running, Start};
use super::instance_view::InstanceView;
use super::run_state::{LoggedEnd, RunState};

/// What a list shows of an ended instance.
#[derive(Serialize, Deserialize)]
struct Details {
    version: String,
    status: Status,
    started_unix_ms: u64,
    steps: u64,
    is_durable: bool,
    key: Option<String>,
    output: String,
    error: String,
}

/// The record of an end, before it is stored.
pub(super) struct KeptEnd {
    pub record: ExternalKept,
    /// Changes that are left out while the disk is full: a record for lists must not keep an instance from ending.
    pub optional: Batch,
}

impl Running {
    fn external_call(&self) -> ExternalCall<'_> {
        let keep = self.kept_call.as_ref().map(|call| call.keep);
        ExternalCall { id: self.id, name: &self.workflow.name, keep }
    }

    /// True if the end is kept on the disk. The parent of a child has its result.
    fn has_kept_end(&self) -> bool {
        self.is_durable() && self.parent.is_none()
    }
}

impl Coordinator {
    /// Accepts a call whose outcome is kept: its instance is on the disk when this completes. Dropping the future does not
    /// cancel the acceptance.
    ///
    /// # Errors
    /// A budget or the disk has no room for the instance, or the node is draining.
    pub async fn accept(
        self: &Arc<Self>,
        start: Start,
        claim: Option<KeyClaim>,
    ) -> Result<(), InvocationError> {
        let (coordinator, workflow, id) = (self.clone(), start.workflow.clone(), start.id);
        // A task of its own: the writer commits the batch even if this future is dropped, and then the instance has to run.
        let storing = tokio::spawn(async move { coordinator.store_start(start, claim).await });
        let stored = storing.await.unwrap_or_else(|_| {
            Err(InvocationError::NotStored {
                function: workflow.name.to_string(),
                error: CommitError::Closed,
            })
        });
        if stored.is_err() {
            self.count_rejected(&workflow);
            self.durable.external_not_stored(id);
        }
        stored
    }

    async fn store_start(
        self: &Arc<Self>,
        start: Start,
        claim: Option<KeyClaim>,
    ) -> Result<(), InvocationError> {
        let running = self.enter_workflow(start)?;
        let mut batch = Batch::default();
        let entries = self.start_entries(&running, &mut running.state.lock(), claim.as_ref());
        for (key, value) in entries {
            batch.put(&self.store.spaces().invocations, key, value);
        }
        if let Err(error) = self.store.committer().commit(batch, Durability::Synced).await {
            self.forget(&running);
            return Err(InvocationError::NotStored { function: running.workflow.name.to_string(), error });
        }
        drop(claim);
        self.spawn_advance(running, Queued::now(Event::Start));
        Ok(())
    }

    /// The entries of the call of an instance, if its outcome is kept.
    pub(super) fn kept_entries(
        &self,
        running: &Running,
        claim: Option<&KeyClaim>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        match running.kept_call {
            Some(_) => {
                self.durable.external_entries(running.external_call(), claim, running.answer.clone())
            }
            None => Vec::new(),
        }
    }

    /// Adds the end of an instance, if it has ended: an outcome to `batch`, a record for lists only to the batch of the result.
    pub(super) fn log_end(
        &self,
        running: &Running,
        state: &mut RunState,
        batch: &mut Batch,
    ) -> Option<KeptEnd> {
        let is_outcome = running.kept_call.is_some();
        if !state.instance.status().is_ended()
            || state.log.end == LoggedEnd::Written
            || !running.has_kept_end()
            || !(is_outcome || self.durable.keeps_listed())
        {
            return None;
        }
        state.log.end = LoggedEnd::Written;
        state.ended_unix_ms = self.clock.now_unix_ms();
        let result = state.result().map_err(|error| self.masked(running, error));
        let view = running.ended_view_of(state, &result, |text| self.mask(running, text));
        let details = Details {
            version: view.version,
            status: view.status,
            started_unix_ms: view.started_unix_ms,
            steps: view.steps,
            is_durable: view.durable,
            key: view.key,
            output: view.output,
            error: view.error,
        };
        let result = match result {
            Ok(output) => Ok(Reply::Json(output.to_string())),
            Err(error) => {
                let workflow = running.workflow.name.to_string();
                let error = InvocationError::Workflow { workflow, error: Box::new(error) };
                Err(Problem::of(&error, Some(&running.id.to_string())))
            }
        };
        let timing = Timing { execution: state.started.elapsed(), ..Timing::default() };
        let end = ExternalEnd { result, timing, details: records::encode(&details) };
        let mut optional = Batch::default();
        let batch = if is_outcome { batch } else { &mut optional };
        let record = self.durable.end_external(batch, running.external_call(), end);
        Some(KeptEnd { record, optional })
    }

    /// A failed instance is retried: its end is no longer the last word.
    pub(super) fn reopen_end(&self, running: &Running, state: &mut RunState, batch: &mut Batch) {
        state.ended_unix_ms = 0;
        if std::mem::take(&mut state.log.end) == LoggedEnd::Written && running.has_kept_end() {
            self.durable.reopen_external(batch, running.external_call(), running.answer.clone());
        }
    }

    /// The batch that lists a failed instance as cancelled. The outcome that its callers get stays.
    pub(super) fn cancelled_end(&self, id: Ulid) -> Batch {
        let mut batch = Batch::default();
        let changed = self.durable.change_external_details(&mut batch, id, |details| {
            let details: Details = records::decode(details).ok()?;
            Some(records::encode(&Details { status: Status::Cancelled, ..details }))
        });
        if let Err(error) = changed {
            tracing::warn!(instance = %id, %error, "an ended instance cannot be read");
        }
        batch
    }

    /// The view of an ended instance that is kept.
    pub(super) fn kept_instance(&self, id: Ulid) -> Option<InstanceView> {
        match self.kept_view(id) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(instance = %id, %error, "an ended instance cannot be read");
                None
            }
        }
    }

    fn kept_view(&self, id: Ulid) -> Result<Option<InstanceView>, StoreError> {
        let Some((workflow, external)) = self.durable.external(id)? else { return Ok(None) };
        let ExternalState::Ended { finished_unix_ms, .. } = external.state else { return Ok(None) };
        let details: Details = records::decode(&external.details).map_err(|damage| {
            StoreError::Damaged { what: "an ended instance".to_owned(), reason: damage.to_string() }
        })?;
        Ok(Some(InstanceView {
            id,
            workflow,
            version: details.version,
            status: details.status,
            started_unix_ms: details.started_unix_ms,
            ended_unix_ms: finished_unix_ms,
            key: details.key,
            tasks: Vec::new(),
            steps: details.steps,
            durable: details.is_durable,
            input: String::new(),
            context: String::new(),
            output: details.output,
            error: details.error,
        }))
    }

    /// Adds the ended instances that are kept to a list, the last one first. Returns the number of those over `max`.
    /// Blocks.
    pub(super) fn list_kept(
        &self,
        workflow: Option<&str>,
        key: Option<&str>,
        max: usize,
        found: &mut Vec<InstanceView>,
    ) -> Result<u64, StoreError> {
        let mut more = 0;
        // One that ends meanwhile is listed as it was.
        let open: HashSet<Ulid> = found.iter().map(|view| view.id).collect();
        for ended in self.durable.ended_externals() {
            let EndedKey { finished_unix_ms, id, name } = ended?;
            // A failed instance that can be retried is listed with the running ones.
            let is_listed = open.contains(&id) || self.find(id).is_some();
            if workflow.is_some_and(|workflow| workflow != name) || is_listed {
                continue;
            }
            if key.is_none() && found.len() >= max {
                more += 1;
                continue;
            }
            // A damaged record is skipped. An instance that was retried has another end, or none.
            let Some(view) = self.kept_instance(id).filter(|view| view.ended_unix_ms == finished_unix_ms)
            else {
                continue;
            };
            if key.is_some() && view.key.as_deref() != key {
                continue;
            }
            match found.len() < max {
                true => found.push(view),
                false => more += 1,
            }
        }
        Ok(more)
    }
}
