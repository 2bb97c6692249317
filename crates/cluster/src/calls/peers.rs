//! Connections to the members that this node calls: opened at the first call, and again after a loss.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::{Answer, Connection};
use super::error::{CallError, NotStarted};
use super::load::CallLoad;
use super::{CallHead, CallLimits};
use crate::OpenStream;

/// Wait after a failed or refused call; it doubles with each failure, up to [`MAX_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(5);
/// A connection that lasted this long did not fail.
const LASTING: Duration = Duration::from_secs(10);

/// Makes calls to other members. Clones are the same one; its connections close with the last of them.
#[derive(Clone)]
pub struct Calls {
    inner: Arc<Inner>,
}

struct Inner {
    open: OpenStream,
    limits: CallLimits,
    /// Drives the connections.
    runtime: Handle,
    /// The zero of [`Calls::now_ms`].
    begun: Instant,
    peers: Mutex<HashMap<u64, Arc<Peer>>>,
    stop: CancellationToken,
    _stops: DropGuard,
}

struct Peer {
    state: watch::Sender<State>,
    load: CallLoad,
    backoff: Mutex<Backoff>,
    begun: Instant,
}

impl Peer {
    /// No call goes to the member for a while.
    fn back_off(&self, now: Instant) {
        let mut backoff = self.backoff.lock();
        backoff.failed(now);
        if let Some(until) = backoff.until {
            self.load.set_back_off_until_ms(millis(until.duration_since(self.begun)));
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Clone, Default)]
enum State {
    /// The next call opens a connection.
    #[default]
    Closed,
    Opening,
    Open(Connection),
    /// Opening has failed.
    Failed(NotStarted),
}

#[derive(Default)]
struct Backoff {
    until: Option<Instant>,
    wait: Duration,
}

impl Backoff {
    fn failed(&mut self, now: Instant) {
        // Calls that fail together count once.
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        self.wait = (self.wait * 2).clamp(FIRST_WAIT, MAX_WAIT);
        self.until = Some(now + self.wait);
    }

    fn remaining(&self, now: Instant) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(now)).filter(|wait| !wait.is_zero())
    }
}

/// A call in flight to a member.
struct InFlight<'a>(&'a CallLoad);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Calls {
    /// Without connections. `runtime` drives them; it should be that of the transport.
    pub fn new(open: OpenStream, limits: CallLimits, runtime: Handle) -> Self {
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let (begun, peers) = (Instant::now(), Mutex::default());
        Self { inner: Arc::new(Inner { open, limits, runtime, begun, peers, stop, _stops }) }
    }

    /// The time of [`CallLoad::back_off_until_ms`], in milliseconds of a monotonic clock.
    pub fn now_ms(&self) -> u64 {
        millis(self.inner.begun.elapsed())
    }

    /// Calls a member. Waits until `deadline` for the connection and the answer. Dropping the future cancels the call.
    ///
    /// # Errors
    /// The call has not started, or it is unknown if it has run: see [`CallError`].
    pub async fn call(
        &self,
        node_id: u64,
        mut head: CallHead,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Answer, CallError> {
        let peer = self.peer(node_id);
        if let Some(wait) = peer.backoff.lock().remaining(Instant::now()) {
            return Err(NotStarted::BackingOff { wait }.into());
        }
        let max = self.inner.limits.calls_per_peer;
        let in_flight = InFlight(&peer.load);
        if peer.load.begin() >= max {
            return Err(NotStarted::TooManyCalls { max }.into());
        }
        head.body_bytes = body.len() as u64;
        let connection = self.connection(node_id, &peer, deadline).await?;
        let now = Instant::now();
        let remaining = deadline.saturating_duration_since(now).as_millis();
        head.remaining_ms = u32::try_from(remaining).unwrap_or(u32::MAX);
        let answer = connection.call(&head, body, deadline, &self.inner.limits).await;
        drop(in_flight);
        match &answer {
            Ok(_) => peer.backoff.lock().wait = Duration::ZERO,
            Err(CallError::NotStarted(NotStarted::Refused)) => peer.back_off(Instant::now()),
            _ => {}
        }
        answer
    }

    /// The calls to a member, as this node counts them. It may be kept, and read for each decision.
    pub fn load(&self, node_id: u64) -> CallLoad {
        self.peer(node_id).load.clone()
    }

    /// Forgets members that `keep` refuses: those that were removed from the cluster.
    pub fn retain(&self, keep: impl Fn(u64) -> bool) {
        self.inner.peers.lock().retain(|node_id, peer| keep(*node_id) || peer.load.in_flight() > 0);
    }

    fn peer(&self, node_id: u64) -> Arc<Peer> {
        let mut peers = self.inner.peers.lock();
        let new = || {
            let (state, begun) = (watch::Sender::new(State::Closed), self.inner.begun);
            Arc::new(Peer { state, load: CallLoad::default(), backoff: Mutex::default(), begun })
        };
        peers.entry(node_id).or_insert_with(new).clone()
    }

    /// The connection to a member; opens it if there is none.
    async fn connection(
        &self,
        node_id: u64,
        peer: &Arc<Peer>,
        deadline: Instant,
    ) -> Result<Connection, NotStarted> {
        if let State::Open(connection) = &*peer.state.borrow() {
            return Ok(connection.clone());
        }
        let mut state = peer.state.subscribe();
        let is_first = peer.state.send_if_modified(|state| match state {
            State::Closed | State::Failed(_) => {
                *state = State::Opening;
                true
            }
            State::Opening | State::Open(_) => false,
        });
        if is_first {
            self.spawn(node_id, peer.clone());
        }
        let opened = timeout_at(deadline, state.wait_for(|state| !matches!(state, State::Opening))).await;
        let opened = opened.map_err(|_| NotStarted::TimedOut)?;
        let closed = || NotStarted::Unreachable { reason: "the connection was closed".to_owned() };
        match &*opened.map_err(|_| closed())? {
            State::Open(connection) => Ok(connection.clone()),
            State::Failed(error) => Err(error.clone()),
            State::Closed | State::Opening => Err(closed()),
        }
    }

    /// Opens and drives a connection in a task, which ends with the last [`Calls`].
    fn spawn(&self, node_id: u64, peer: Arc<Peer>) {
        let opening = (self.inner.open)(node_id);
        let (limits, stop) = (self.inner.limits, self.inner.stop.clone());
        self.inner.runtime.spawn(async move {
            let unreachable = |reason: String| NotStarted::Unreachable { reason };
            let opened = timeout(limits.open, async {
                let stream = opening.await.map_err(|error| unreachable(error.to_string()))?;
                Connection::open(stream, &limits).await.map_err(|error| unreachable(error.to_string()))
            });
            let opened = tokio::select! {
                opened = opened => opened,
                () = stop.cancelled() => return drop(peer.state.send_replace(State::Closed)),
            };
            let late = || unreachable(format!("no connection within {:?}", limits.open));
            let (connection, driver) = match opened.unwrap_or_else(|_| Err(late())) {
                Ok(opened) => opened,
                Err(error) => {
                    peer.back_off(Instant::now());
                    peer.state.send_replace(State::Failed(error));
                    return;
                }
            };
            let since = Instant::now();
            peer.state.send_replace(State::Open(connection));
            tokio::select! {
                ended = driver => {
                    if let Err(error) = ended {
                        tracing::debug!(node_id, %error, "the connection for calls was lost");
                    }
                }
                () = stop.cancelled() => {}
            }
            if since.elapsed() < LASTING {
                peer.back_off(Instant::now());
            }
            peer.state.send_replace(State::Closed);
        });
    }
}
