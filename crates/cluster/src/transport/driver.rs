//! The task that owns libp2p: listens, dials, and gives every connection its channel.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, ListenError, NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, connection_limits, mdns};
use tokio::task::{Id as TaskId, JoinError, JoinSet};

use super::channel::ChannelServer;
use super::clock::millis;
use super::counters::add;
use super::dial_book::{DialBook, Target};
use super::discovered::DiscoveredPeers;
use super::event::DownReason;
use super::join_service::JoinService;
use super::link::{Link, Outcome};
use crate::network::address::{self, Bootstrap};
use crate::network::behaviour::{Channels, FirstStream, GateClosed, Opened, Purpose};
use crate::network::task_time::TaskTimer;
use crate::{KnownAddresses, Refusal};

/// A channel that was open for less counts as a failed attempt, so that nothing flaps at full speed.
const STEADY: Duration = Duration::from_secs(3);
/// A member's penalty is removed after this time without misconduct.
const PROVEN: Duration = Duration::from_secs(60);
/// Time limit for all channels to close in order.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// Addresses of one bootstrap name that are tried.
const MAX_RESOLVED: usize = 4;
/// The longest sleep between two checks for due work.
const MAX_SLEEP_MS: u64 = 60_000;

/// The libp2p behaviour of a node.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pub(crate) channels: Channels,
    pub(crate) mdns: Toggle<mdns::tokio::Behaviour>,
    pub(crate) limits: connection_limits::Behaviour,
}

/// The task that owns libp2p. Dropping it aborts the tasks of all streams.
pub(crate) struct Driver {
    channels: Arc<ChannelServer>,
    joins: Arc<JoinService>,
    task_timer: Arc<TaskTimer>,
    swarm: Swarm<Behaviour>,
    book: DialBook,
    /// Addresses of a bootstrap name that are still to be tried in this round.
    round: HashMap<usize, VecDeque<Multiaddr>>,
    dials: HashMap<ConnectionId, Target>,
    connections: HashMap<ConnectionId, Connection>,
    discovered: DiscoveredPeers,
    tasks: JoinSet<TaskEnd>,
    /// The subject of each task, for the case that it panics.
    subjects: HashMap<TaskId, TaskSubject>,
}

struct Connection {
    peer: PeerId,
    address: Multiaddr,
    target: Option<Target>,
    is_dialed: bool,
    stage: Stage,
}

/// Stage of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// No stream is open yet.
    AwaitingStream { deadline_ms: u64 },
    /// A task serves its stream, or its stream could not be opened.
    Serving,
    /// The connection is being closed: its peer opened no stream in time.
    Closing,
}

/// The result of a task of the driver.
enum TaskEnd {
    /// A connection's stream has ended.
    Stream { connection: ConnectionId, outcome: Outcome },
    /// A bootstrap name was resolved; without addresses if that failed.
    Resolved { index: usize, sockets: Vec<SocketAddr> },
}

/// Subject of a driver task.
#[derive(Debug, Clone, Copy)]
enum TaskSubject {
    Stream(ConnectionId),
    Bootstrap(usize),
}

/// Addresses to dial: first-hand ones, then those announced on the link, then those that other members reported.
fn in_order(known: &KnownAddresses, on_the_link: &[Multiaddr]) -> Vec<Multiaddr> {
    let mut addresses = known.first_hand();
    for address in on_the_link.iter().cloned().chain(known.hearsay()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

impl Driver {
    pub(crate) fn new(
        channels: ChannelServer,
        joins: Arc<JoinService>,
        task_timer: Arc<TaskTimer>,
        swarm: Swarm<Behaviour>,
        bootstrap: Vec<Bootstrap>,
    ) -> Self {
        let book = DialBook::new(channels.greeter.local.peer_id, bootstrap);
        Self {
            channels: Arc::new(channels),
            joins,
            task_timer,
            swarm,
            book,
            round: HashMap::new(),
            dials: HashMap::new(),
            connections: HashMap::new(),
            discovered: DiscoveredPeers::default(),
            tasks: JoinSet::new(),
            subjects: HashMap::new(),
        }
    }

    /// Runs until the transport is cancelled, and then up to 0.5 s for goodbyes.
    pub(crate) async fn run(mut self) {
        let channels = self.channels.clone();
        let (cancel, dial_signal) = (&channels.greeter.cancel, &channels.dial_signal);
        self.reserve_slots();
        loop {
            let next_ms = self.dial_due().min(self.expire());
            let wait = Duration::from_millis(next_ms.saturating_sub(self.now_ms()).min(MAX_SLEEP_MS));
            tokio::select! {
                () = cancel.cancelled() => break,
                event = self.swarm.select_next_some() => self.on_swarm(event),
                Some(ended) = self.tasks.join_next_with_id() => self.on_task_ended(ended),
                () = dial_signal.notified() => self.reserve_slots(),
                () = tokio::time::sleep(wait) => {}
            }
        }
        let goodbyes = async {
            loop {
                tokio::select! {
                    ended = self.tasks.join_next() => match ended {
                        Some(Err(error)) => tracing::error!(%error, "the task of a cluster stream failed"),
                        Some(Ok(_)) => {}
                        None => break,
                    },
                    _ = self.swarm.select_next_some() => {}
                }
            }
        };
        // Members notice the end of slower channels by their connections.
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, goodbyes).await;
    }

    fn now_ms(&self) -> u64 {
        self.channels.greeter.local.clock.now_ms()
    }

    /// Brings everything that is kept per member up to date with the membership.
    fn reserve_slots(&self) {
        let greeter = &self.channels.greeter;
        greeter.admission.reserve_slots();
        greeter.copies.retain_members(&greeter.gossip.membership.lock());
    }

    /// Dials the targets that are due, and gives the time when the next one is.
    fn dial_due(&mut self) -> u64 {
        let now_ms = self.now_ms();
        let mut known: BTreeSet<PeerId> = self.discovered.peers().collect();
        known.extend(
            (self.channels.greeter.gossip.membership.lock().members())
                .filter(|member| !member.addresses.is_empty())
                .map(|member| member.certificate.peer_id()),
        );
        let connected: HashSet<PeerId> =
            self.connections.values().map(|connection| connection.peer).collect();
        let admission = &self.channels.greeter.admission;
        let plan = self.book.plan(
            now_ms,
            &known,
            |peer| connected.contains(peer),
            |peer| admission.penalised_until_ms(peer, now_ms),
        );
        for target in plan.dial {
            self.dial(target);
        }
        plan.again_at_ms.unwrap_or(u64::MAX)
    }

    /// Closes connections without a stream after their deadline, and forgets expired tokens. Gives the time when the
    /// next of them is due.
    fn expire(&mut self) -> u64 {
        let now_ms = self.now_ms();
        let mut next_ms = self.joins.expire(now_ms).unwrap_or(u64::MAX);
        let greeter = &self.channels.greeter;
        for (id, connection) in &mut self.connections {
            let Stage::AwaitingStream { deadline_ms } = connection.stage else { continue };
            if deadline_ms > now_ms {
                next_ms = next_ms.min(deadline_ms);
                continue;
            }
            let (peer, address) = (connection.peer, &connection.address);
            tracing::warn!(%peer, %address, "a peer connected and opened no stream");
            connection.stage = Stage::Closing;
            greeter.counters.refuse(Refusal::Silent);
            greeter.admission.penalise(peer);
            self.swarm.close_connection(*id);
        }
        next_ms
    }

    fn dial(&mut self, target: Target) {
        match target {
            Target::Bootstrap(index) => match self.book.bootstrap(index) {
                Some(Bootstrap::Exact { address, peer }) => {
                    let (address, peer) = (address.clone(), *peer);
                    self.dial_address(target, address, peer);
                }
                Some(Bootstrap::Host { text }) => {
                    let text = text.clone();
                    let cancel = self.channels.greeter.cancel.clone();
                    self.spawn(TaskSubject::Bootstrap(index), async move {
                        let sockets = cancel.run_until_cancelled(resolve(&text)).await.unwrap_or_default();
                        TaskEnd::Resolved { index, sockets }
                    });
                }
                None => self.fail(target),
            },
            Target::Peer(peer) => {
                let announced = self.discovered.addresses(&peer);
                let addresses = match self.channels.greeter.gossip.membership.lock().member(&peer) {
                    Some(member) => in_order(&member.addresses, announced),
                    None => announced.to_vec(),
                };
                let options = DialOpts::peer_id(peer)
                    .condition(PeerCondition::Always)
                    .addresses(addresses)
                    .allocate_new_port()
                    .build();
                self.dial_with(target, options);
            }
        }
    }

    fn dial_address(&mut self, target: Target, address: Multiaddr, peer: Option<PeerId>) {
        let options = match peer {
            Some(peer) => DialOpts::peer_id(peer)
                .condition(PeerCondition::Always)
                .addresses(vec![address])
                .allocate_new_port()
                .build(),
            None => DialOpts::unknown_peer_id().address(address).allocate_new_port().build(),
        };
        self.dial_with(target, options);
    }

    fn dial_with(&mut self, target: Target, options: DialOpts) {
        let connection = options.connection_id();
        match self.swarm.dial(options) {
            Ok(()) => {
                self.dials.insert(connection, target);
            }
            Err(error) => self.dial_failed(target, &error),
        }
    }

    fn dial_failed(&mut self, target: Target, error: &DialError) {
        tracing::debug!(?target, %error, "dialling failed");
        if let (DialError::LocalPeerId { .. }, Target::Bootstrap(_)) = (error, target) {
            // All nodes may have the same list of addresses, and this node is at one of them.
            self.round.retain(|index, _| Target::Bootstrap(*index) != target);
            return self.book.failed_for_long(target, self.now_ms());
        }
        add(&self.channels.greeter.counters.dials_failed);
        if let Target::Bootstrap(index) = target
            && let Some(address) = self.round.get_mut(&index).and_then(VecDeque::pop_front)
        {
            return self.dial_address(target, address, None);
        }
        self.fail(target);
    }

    fn fail(&mut self, target: Target) {
        self.book.failed(target, self.now_ms(), rand::random());
    }

    fn spawn(&mut self, subject: TaskSubject, task: impl Future<Output = TaskEnd> + Send + 'static) {
        let id = self.tasks.spawn(task).id();
        self.subjects.insert(id, subject);
    }

    fn on_task_ended(&mut self, ended: Result<(TaskId, TaskEnd), JoinError>) {
        let end = match ended {
            Ok((id, end)) => {
                self.subjects.remove(&id);
                end
            }
            Err(error) => {
                tracing::error!(%error, "the task of a cluster stream failed");
                match self.subjects.remove(&error.id()) {
                    Some(TaskSubject::Stream(connection)) => {
                        TaskEnd::Stream { connection, outcome: Outcome::Lost }
                    }
                    Some(TaskSubject::Bootstrap(index)) => TaskEnd::Resolved { index, sockets: Vec::new() },
                    None => return,
                }
            }
        };
        match end {
            TaskEnd::Stream { connection, outcome } => self.on_stream_ended(connection, outcome),
            TaskEnd::Resolved { index, sockets } => {
                let mut round: VecDeque<Multiaddr> = sockets.into_iter().flat_map(address::both).collect();
                let first = round.pop_front();
                self.round.insert(index, round);
                match first {
                    Some(address) => self.dial_address(Target::Bootstrap(index), address, None),
                    None => self.fail(Target::Bootstrap(index)),
                }
            }
        }
    }

    fn on_stream_ended(&mut self, connection: ConnectionId, outcome: Outcome) {
        self.channels.greeter.admission.release(connection);
        self.swarm.close_connection(connection);
        if let Some(Connection { peer, target, .. }) = self.connections.remove(&connection) {
            self.settle(peer, target, outcome);
        }
    }

    /// Plans the next dial after a channel's end.
    fn settle(&mut self, peer: PeerId, target: Option<Target>, outcome: Outcome) {
        let now_ms = self.now_ms();
        match outcome {
            Outcome::Refused(reason) | Outcome::RefusedByPeer(reason) if reason.is_penalised() => {
                self.channels.greeter.admission.penalise(peer);
            }
            // The peer has two connections, and the other one stands.
            Outcome::Refused(_) | Outcome::RefusedByPeer(_)
                if self.connections.values().any(|other| other.peer == peer) =>
            {
                self.book.succeeded(peer, now_ms, rand::random());
            }
            // The peer has not seen the end of an older connection yet, or the connection broke.
            Outcome::Refused(_) | Outcome::RefusedByPeer(_) | Outcome::Lost => {
                target.into_iter().for_each(|target| self.fail(target));
            }
            Outcome::Down { up, reason } => {
                if let DownReason::Refused(refusal) = reason
                    && refusal.is_penalised()
                {
                    self.channels.greeter.admission.penalise(peer);
                }
                let is_blamed = matches!(reason, DownReason::Refused(_) | DownReason::Disconnected);
                if up > PROVEN && !is_blamed {
                    self.channels.greeter.admission.forgive(&peer);
                }
                match target {
                    Some(target) if up < STEADY => self.fail(target),
                    _ => self.book.succeeded(peer, now_ms, rand::random()),
                }
            }
        }
    }

    fn on_swarm(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Channels(opened)) => self.on_opened(opened),
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(event)) => {
                self.discovered.take(event, self.channels.greeter.local.peer_id);
            }
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                let target = self.dials.remove(&connection_id);
                if let Some(target) = target {
                    self.book.reached(target, peer_id);
                }
                let limit_ms = millis(self.channels.greeter.local.limits.handshake_timeout);
                let stage = Stage::AwaitingStream { deadline_ms: self.now_ms() + limit_ms };
                let connection = Connection {
                    peer: peer_id,
                    address: endpoint.get_remote_address().clone(),
                    target,
                    is_dialed: endpoint.is_dialer(),
                    stage,
                };
                self.connections.insert(connection_id, connection);
            }
            SwarmEvent::ConnectionClosed { connection_id, .. } => {
                self.channels.greeter.admission.release(connection_id);
                let Some(connection) = self.connections.get(&connection_id) else { return };
                // The result of the stream's task has the cause.
                if connection.stage == Stage::Serving {
                    return;
                }
                if let Some(target) = connection.target {
                    self.fail(target);
                }
                self.connections.remove(&connection_id);
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                if let Some(target) = self.dials.remove(&connection_id) {
                    self.dial_failed(target, &error);
                }
            }
            SwarmEvent::IncomingConnectionError {
                connection_id,
                error: ListenError::Denied { cause },
                ..
            } => {
                self.channels.greeter.admission.release(connection_id);
                let counters = &self.channels.greeter.counters;
                match cause.downcast_ref::<GateClosed>() {
                    Some(GateClosed::BackingOff) => counters.refuse(Refusal::BackingOff),
                    Some(GateClosed::Crowded) => counters.refuse(Refusal::Crowded),
                    None => {}
                }
            }
            SwarmEvent::IncomingConnectionError { error: ListenError::Transport(_), .. } => {
                add(&self.channels.greeter.counters.strangers);
            }
            SwarmEvent::NewListenAddr { address, .. } => self.channels.greeter.local.listens_on(address),
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                self.channels.greeter.local.listens_no_more_on(&address);
            }
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                tracing::error!(?addresses, ?reason, "a cluster listener has closed");
            }
            _ => {}
        }
    }

    fn on_opened(&mut self, opened: Opened) {
        let Opened { connection, peer, stream } = opened;
        let Some(known) = self.connections.get_mut(&connection) else { return };
        known.stage = Stage::Serving;
        let link = Link { peer, address: known.address.clone(), connection, is_dialed: known.is_dialed };
        let channels = self.channels.clone();
        match stream {
            Ok(FirstStream { purpose: Purpose::Cluster, stream, side_streams }) => {
                let task = async move {
                    let outcome = channels.run(link, stream, side_streams).await;
                    TaskEnd::Stream { connection, outcome }
                };
                self.spawn(TaskSubject::Stream(connection), self.task_timer.clone().time(task));
            }
            Ok(FirstStream { purpose: Purpose::Join, stream, .. }) => {
                let joins = self.joins.clone();
                self.spawn(TaskSubject::Stream(connection), async move {
                    joins.serve(&channels.events, peer, stream).await;
                    TaskEnd::Stream { connection, outcome: Outcome::Lost }
                });
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "a connection has no stream");
                self.on_stream_ended(connection, Outcome::Lost);
            }
        }
    }
}

/// Up to 4 addresses of a bootstrap name; none if it cannot be resolved.
async fn resolve(name: &str) -> Vec<SocketAddr> {
    match tokio::net::lookup_host(name).await {
        Ok(sockets) => sockets.take(MAX_RESOLVED).collect(),
        Err(error) => {
            tracing::debug!(name, %error, "a bootstrap name cannot be resolved");
            Vec::new()
        }
    }
}
