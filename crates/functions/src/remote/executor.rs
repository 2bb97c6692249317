//! The executing node: invocations of other members.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::calls::{CallHead, Cancelled, IncomingCall};
use edgefaas_isolates::Trigger;
use edgefaas_platform::Clock;
use edgefaas_state::store::{CommitError, Durability, Store};
use tokio::time::{Instant, sleep};

use super::remembered::{Begin, CallId, Remembered, Running, Sent};
use super::shares::{ShareFull, Use, UsedShares};
use super::{MAX_HOPS, Placer, RemoteError, RemoteErrorKind, envelope, outcome};
use crate::invocation::{Invocation, InvocationError, Outcome};
use crate::invoker::{Attempt, Invoker};
use crate::publisher::Publisher;
use crate::registry::{Code, LiveFunction, Registry};
use crate::trace::{Traces, trace_id};
use crate::workers::Workers;

/// A call that ends earlier is not announced as started: its answer says so.
const STARTED_AFTER: Duration = Duration::from_millis(5);
/// The executing node ends this much before its caller, at most a tenth of the remaining time: its error says more than that
/// of the caller.
const MARGIN: Duration = Duration::from_millis(50);

/// Parts of the node that an executor uses.
pub struct ExecutorParts {
    /// Runs invocations.
    pub invoker: Arc<Invoker>,
    /// The deployed functions.
    pub registry: Arc<Registry>,
    /// Publishes the messages of repeated invocations.
    pub publisher: Arc<Publisher>,
    /// Commits the effects of repeated invocations.
    pub store: Arc<Store>,
    /// Spans of invocations.
    pub traces: Arc<Traces>,
    /// The threads on which invocations run.
    pub workers: Arc<Workers>,
    /// The wall clock.
    pub clock: Clock,
    /// Outcomes of repeated invocations.
    pub remembered: Arc<Remembered>,
    /// Decides how much of this node other nodes may use.
    pub placer: Arc<dyn Placer>,
    /// Removes credentials of this node, which a function must not see, from the headers of a request.
    pub remove_credentials: RemoveCredentials,
}

/// Removes headers, whose names are in lower case.
pub type RemoveCredentials = Arc<dyn Fn(&mut Vec<(String, String)>) + Send + Sync>;

/// Runs invocations that other members have placed here.
pub struct Executor {
    parts: ExecutorParts,
    used: UsedShares,
}

impl Executor {
    /// An executor without invocations.
    pub fn new(parts: ExecutorParts) -> Self {
        Self { parts, used: UsedShares::default() }
    }

    /// Runs a call on a worker, and answers it. Does not wait.
    pub fn handle(self: &Arc<Self>, call: IncomingCall) {
        let executor = self.clone();
        self.parts.workers.spawn(async move { executor.execute(call).await });
    }

    async fn execute(self: Arc<Self>, mut call: IncomingCall) {
        let peer = call.peer();
        let (head, body, _peer_bytes) = match call.read().await {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(node_id = peer, %error, "a call of another node could not be read");
                return;
            }
        };
        // A node that drains waits until the answer is sent.
        let _in_flight = self.parts.invoker.in_flight();
        let arrived_unix_us = self.parts.clock.now_unix_us();
        let trace_parent = head.trace_parent.clone();
        let id = head.id.clone();
        let done = match head.is_repeated {
            true => self.repeated(&mut call, head, body).await,
            false => self.once(&mut call, head, body).await,
        };
        let Some((mut head, body)) = done else { return };
        if let Some(trace_parent) = trace_parent.filter(|_| !head.is_refused)
            && let Some(trace) = trace_id(&trace_parent)
        {
            let traces = &self.parts.traces;
            let spans = traces.since(trace, &id, arrived_unix_us);
            head.spans = outcome::encode_spans(spans, arrived_unix_us, traces.exports(&trace_parent));
        }
        if let Err(error) = call.finish(head, body).await {
            tracing::debug!(node_id = peer, id, %error, "the outcome of a call did not reach its caller");
        }
    }

    /// Runs a call that its caller does not repeat. `None` if the caller is gone.
    async fn once(&self, call: &mut IncomingCall, head: CallHead, body: Bytes) -> Option<Sent> {
        let checked = match self.check(head, body, call.peer()) {
            Ok(checked) => checked,
            Err(error) => return Some((outcome::refusal(&error), Bytes::new())),
        };
        let Checked { function, invocation, remaining, _use } = checked;
        let admitted = match self.parts.invoker.admit_for(function, invocation, remaining) {
            Ok(admitted) => admitted,
            Err(error) => return Some((outcome::refusal(&error), Bytes::new())),
        };
        let Outcome { result, timing, .. } =
            watched(call, OnLoss::Cancel, self.parts.invoker.run(admitted)).await?;
        Some(outcome::encode(result, timing))
    }

    /// Runs a call that its caller repeats until it has an outcome. It goes on if the connection is lost.
    async fn repeated(
        self: &Arc<Self>,
        call: &mut IncomingCall,
        head: CallHead,
        body: Bytes,
    ) -> Option<Sent> {
        let id = CallId { node_id: call.peer(), id: head.id.as_str().into() };
        let attempt = head.attempt;
        loop {
            let begin = match self.parts.remembered.begin(id.clone(), attempt) {
                Ok(begin) => begin,
                Err(error) => {
                    let error = RemoteError {
                        status: 500,
                        kind: RemoteErrorKind::Commit,
                        detail: format!("the outcomes of earlier calls cannot be read: {error}"),
                    };
                    let error = InvocationError::Remote { function: head.function, error: Box::new(error) };
                    return Some(outcome::encode(Err(error), Default::default()));
                }
            };
            match begin {
                Begin::Done(sent) => return Some(sent),
                Begin::New(running) => return self.begun(call, running, head, body).await,
                Begin::Running(mut running) => {
                    let ended = async {
                        running.wait_for(Option::is_some).await.ok().and_then(|sent| sent.clone())
                    };
                    if let Some(sent) = watched(call, OnLoss::Cancel, ended).await? {
                        return Some(sent);
                    }
                }
            }
        }
    }

    async fn begun(
        self: &Arc<Self>,
        call: &mut IncomingCall,
        running: Running,
        head: CallHead,
        body: Bytes,
    ) -> Option<Sent> {
        let refused = |error: &InvocationError| Some((outcome::refusal(error), Bytes::new()));
        let checked = match self.check(head, body, call.peer()) {
            Ok(checked) => checked,
            Err(error) => return refused(&error),
        };
        let Checked { function, mut invocation, remaining, _use } = checked;
        let invoker = &self.parts.invoker;
        let (id, depth) = (invocation.id.clone(), invocation.depth);
        let traced = invoker.begin_trace(&mut invocation);
        let admitted = match invoker.admit_for(function.clone(), invocation, remaining) {
            Ok(admitted) => admitted,
            Err(error) => return refused(&error),
        };
        let Attempt { result, timing, .. } = watched(call, OnLoss::GoOn, invoker.attempt(admitted)).await?;
        let committing = Instant::now();
        let (result, running) = match result {
            Err(error) => (Err(error), Some(running)),
            Ok((reply, effects)) => {
                let sent = outcome::encode(Ok(reply.clone()), timing);
                let (mut batch, messages, taken) = effects.into_parts();
                let messages = self.parts.publisher.put_messages(
                    &mut batch,
                    &function.name,
                    depth.saturating_add(1),
                    &messages,
                );
                self.parts.remembered.put(&mut batch, &running, &sent, self.parts.clock.now_unix_ms());
                batch.charge(taken);
                match self.parts.store.committer().commit(batch, Durability::Written).await {
                    Ok(()) => {
                        running.committed(&sent);
                        self.parts.publisher.send(messages);
                        (Ok(reply), None)
                    }
                    Err(error) => (Err(commit_error(&function, error)), Some(running)),
                }
            }
        };
        let state = committing.elapsed();
        let result = result.map_err(|error| invoker.mask(&function, error));
        let ended = invoker.ended(&function, Outcome { id, result, timing, node: None });
        invoker.end_trace(traced, &function, &ended, state);
        let sent = outcome::encode(ended.result, timing);
        if let Some(running) = running {
            running.failed(&sent);
        }
        Some(sent)
    }

    /// Checks a call before anything of it is started.
    fn check(&self, head: CallHead, body: Bytes, peer: u64) -> Result<Checked, InvocationError> {
        let refused = |status: u16, detail: String| {
            let error = RemoteError { status, kind: RemoteErrorKind::Unknown, detail };
            InvocationError::Remote { function: head.function.clone(), error: Box::new(error) }
        };
        if head.hops > MAX_HOPS {
            let detail = format!("the call has passed {} nodes; the limit is {MAX_HOPS}", head.hops);
            return Err(refused(508, detail));
        }
        let routes = self.parts.registry.routes();
        let function = routes.function(&head.function).filter(|function| *function.app == *head.app);
        let Some(function) = function.filter(|function| function.code == Code::Here).cloned() else {
            return Err(InvocationError::UnknownFunction { name: head.function, near: Vec::new() });
        };
        let invocation_bytes = function.spec.limits.memory_bytes as u64;
        let share = self.parts.placer.share(peer, invocation_bytes);
        let _use =
            self.used.take(peer, invocation_bytes, share).map_err(|full| refused_share(&head, &full))?;
        let remaining = Duration::from_millis(head.remaining_ms.into());
        let remaining = remaining - MARGIN.min(remaining / 10);
        let detail = |error: envelope::EnvelopeError| error.to_string();
        let name = head.function.clone();
        let mut invocation = envelope::invocation(head, body, peer).map_err(|error| {
            let error = RemoteError { status: 502, kind: RemoteErrorKind::Unknown, detail: detail(error) };
            InvocationError::Remote { function: name, error: Box::new(error) }
        })?;
        // The entry node has removed its own credentials only.
        if let Trigger::Http(request) = &mut invocation.event.trigger {
            (self.parts.remove_credentials)(&mut request.headers);
        }
        Ok(Checked { function, invocation, remaining, _use })
    }
}

/// A call that may be admitted.
struct Checked {
    function: Arc<LiveFunction>,
    invocation: Invocation,
    remaining: Duration,
    _use: Use,
}

/// What a lost connection means for an invocation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnLoss {
    Cancel,
    GoOn,
}

/// The result of `work`; `None` if it was cancelled. Says that the call has started if it takes a while.
async fn watched<T>(call: &mut IncomingCall, on_loss: OnLoss, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let mut announce = pin!(sleep(STARTED_AFTER));
    let (mut is_announced, mut is_lost) = (false, false);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = &mut announce, if !is_announced => {
                is_announced = true;
                is_lost |= call.started().is_err();
            }
            cancelled = call.cancelled(), if !is_lost => match (cancelled, on_loss) {
                (Cancelled::ConnectionLost, OnLoss::GoOn) => is_lost = true,
                _ => return None,
            },
        }
    }
}

fn refused_share(head: &CallHead, full: &ShareFull) -> InvocationError {
    let error = RemoteError { status: 429, kind: RemoteErrorKind::ShareUsed, detail: full.to_string() };
    InvocationError::Remote { function: head.function.clone(), error: Box::new(error) }
}

fn commit_error(function: &LiveFunction, error: CommitError) -> InvocationError {
    InvocationError::Commit { function: function.name.to_string(), error }
}
