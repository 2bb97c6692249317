//! What an operator does with durable invocations: retry and discard.

use std::sync::Arc;

use edgefaas_state::store::{Batch, CommitError, Durability, StoreError};
use ulid::Ulid;

use super::dead_letters::TakenDead;
use super::inspect::PendingPlace;
use super::invocation_records::{self, Dead, Pending};
use super::runner::{Burial, Ran, invocation};
use super::{CachedPending, DurableQueue, Keep};
use crate::invocation::InvocationError;
use crate::registry::LiveFunction;

/// Reasons why an invocation is neither retried nor discarded.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// It is neither pending nor dead.
    #[error(
        "there is no pending or dead invocation `{id}`; `edgefaas invocations` and `edgefaas dead` show the ids, and \
         `edgefaas workflow list` those of instances"
    )]
    Unknown {
        /// The id.
        id: Ulid,
    },
    /// It runs now.
    #[error("the invocation `{id}` of `{function}` runs now; try again after this attempt")]
    Running {
        /// The id.
        id: Ulid,
        /// The function.
        function: String,
    },
    /// The function is not deployed.
    #[error("`{function}` is not deployed; deploy it, then retry `{id}`")]
    NotDeployed {
        /// The id.
        id: Ulid,
        /// The function.
        function: String,
    },
    /// The function or the disk takes no invocation now.
    #[error(transparent)]
    Refused(#[from] InvocationError),
    /// The deletion of the dead letter could not be stored.
    #[error("the dead letter `{id}` could not be deleted: {error}")]
    NotDeleted {
        /// The id.
        id: Ulid,
        /// The cause.
        error: CommitError,
    },
    /// The store cannot be read.
    #[error("the invocations cannot be read: {0}")]
    Store(#[from] StoreError),
}

impl DurableQueue {
    /// Starts a dead invocation again as a new one with a new id, or lets one that waits for its next attempt make it now. Gives the
    /// id that it has now. Dropping the future does not undo it.
    ///
    /// # Errors
    /// See [`ManageError`]; nothing has changed then.
    pub async fn retry(self: &Arc<Self>, id: Ulid) -> Result<Ulid, ManageError> {
        if let Some(taken) = self.dead.take(id) {
            let queue = self.clone();
            let reviving = tokio::spawn(async move { queue.revive(taken).await });
            return reviving.await.unwrap_or(Err(ManageError::Refused(InvocationError::Draining)));
        }
        let (place, _) = self.pending_of(id).await?;
        let is_waiting = {
            let mut queues = self.queues.lock();
            queues.get_mut(&*place.function).is_some_and(|queue| queue.hasten(place.sequence))
        };
        if !is_waiting {
            return Err(ManageError::Running { id, function: place.function });
        }
        self.wake.notify_one();
        Ok(id)
    }

    /// Forgets a dead invocation, or ends one that waits: its caller gets an error. Dropping the future does not undo it.
    ///
    /// # Errors
    /// See [`ManageError`]; nothing has changed then.
    pub async fn discard(self: &Arc<Self>, id: Ulid) -> Result<(), ManageError> {
        if let Some(taken) = self.dead.take(id) {
            let queue = self.clone();
            let forgetting = tokio::spawn(async move { queue.forget_dead(taken).await });
            return forgetting.await.unwrap_or(Err(ManageError::Unknown { id }));
        }
        let (place, _) = self.pending_of(id).await?;
        let withdrawn = {
            let mut queues = self.queues.lock();
            let queue = queues.get_mut(&*place.function);
            queue.and_then(|queue| queue.withdraw(place.sequence))
        };
        let Some(cached) = withdrawn else {
            return Err(ManageError::Running { id, function: place.function });
        };
        let queue = self.clone();
        // A task of its own: the invocation has left the order of its queue, and must end.
        let ending = tokio::spawn(async move { queue.end_withdrawn(place, cached).await });
        let _ = ending.await;
        Ok(())
    }

    async fn pending_of(self: &Arc<Self>, id: Ulid) -> Result<(PendingPlace, Pending), ManageError> {
        let queue = self.clone();
        let found = tokio::task::spawn_blocking(move || queue.find_pending(id)).await;
        found.unwrap_or(Ok(None))?.ok_or(ManageError::Unknown { id })
    }

    async fn revive(self: &Arc<Self>, taken: TakenDead) -> Result<Ulid, ManageError> {
        let revived = self.revived(&taken).await;
        if revived.is_err() {
            self.dead.put_back(taken);
        }
        revived
    }

    async fn revived(self: &Arc<Self>, taken: &TakenDead) -> Result<Ulid, ManageError> {
        let (id, name) = (taken.key.id, taken.function());
        let function = self.registry.routes().function(name).cloned();
        let function =
            function.ok_or_else(|| ManageError::NotDeployed { id, function: name.to_string() })?;
        let key = invocation_records::dead_key(taken.key, name);
        let queue = self.clone();
        let reading = {
            let key = key.clone();
            tokio::task::spawn_blocking(move || queue.records.get::<Dead>("a dead letter", &key))
        };
        let dead = reading.await.unwrap_or(Ok(None))?.ok_or(ManageError::Unknown { id })?;
        let pending = again(dead.pending);
        let id = Ulid(pending.id);
        self.store_again(&function, pending, key).await?;
        Ok(id)
    }

    /// Stores a dead invocation as a pending one, in the batch that deletes its dead letter, and starts what is ready.
    async fn store_again(
        self: &Arc<Self>,
        function: &Arc<LiveFunction>,
        pending: Pending,
        dead_key: Vec<u8>,
    ) -> Result<(), InvocationError> {
        self.invoker.check(function, &invocation(&function.name, &pending))?;
        let name = || function.name.to_string();
        let slot = self.reserve(function).map_err(|_| InvocationError::QueueFull {
            function: name(),
            capacity: function.admission.capacity(),
        })?;
        let mut acceptance = self.prepare_pending(slot, pending, None);
        let mut batch = Batch::default();
        for (key, value) in std::mem::take(&mut acceptance.entries) {
            self.records.put(&mut batch, key, value);
        }
        self.records.delete(&mut batch, dead_key);
        let committed = self.store.committer().commit(batch, Durability::Synced).await;
        committed.map_err(|error| InvocationError::NotStored { function: name(), error })?;
        self.run_accepted(function, acceptance, None);
        Ok(())
    }

    async fn forget_dead(&self, taken: TakenDead) -> Result<(), ManageError> {
        let mut batch = Batch::default();
        self.records.delete(&mut batch, invocation_records::dead_key(taken.key, taken.function()));
        let committed = self.store.committer().commit(batch, Durability::Written).await;
        committed.map_err(|error| {
            let id = taken.key.id;
            self.dead.put_back(taken);
            ManageError::NotDeleted { id, error }
        })
    }

    /// Ends an invocation that was taken out of the order of its queue.
    async fn end_withdrawn(self: &Arc<Self>, place: PendingPlace, cached: Option<CachedPending>) {
        let PendingPlace { function, sequence } = place;
        let name: Arc<str> = function.into();
        self.release_memory(cached.as_ref());
        let Some((pending, ticket, claim)) = self.load_pending(&name, sequence, cached).await else {
            return;
        };
        if let Some(ticket) = ticket
            && self.broker.durable(ticket).await.is_err()
        {
            return self.finish(&name, sequence);
        }
        drop(claim);
        let error = InvocationError::Discarded { function: name.to_string() };
        self.fail(&name, sequence, pending, error, Ran::default(), Burial::Silent).await;
        self.start_ready(&name);
    }
}

/// A dead invocation as a new one: from its first attempt, with the same event. Whoever waited for its answer has the error.
fn again(dead: Pending) -> Pending {
    Pending {
        id: Ulid::generate().0,
        attempt: 1,
        due_unix_ms: 0,
        keep: dead.keep.map(|keep| Keep { key: None, ..keep }),
        answer: None,
        trace_parent: None,
        ..dead
    }
}
