//! The task that owns libp2p: listens, dials, and gives every connection its channel.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionId, DialError, ListenError, NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, connection_limits, mdns};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::Event;
use super::address::{self, Bootstrap};
use super::behaviour::{Channels, GateClosed, Opened, Purpose};
use super::channel::{self, Outcome};
use super::counters::add;
use super::dial_book::{DialBook, Target};
use super::greeting::Link;
use super::shared::{Shared, millis};
use crate::{KnownAddresses, Refusal, join};

/// A channel that stood for less counts as a failed attempt, so that nothing flaps at full speed.
const STEADY: Duration = Duration::from_secs(3);
/// A member that behaved for so long is as good as one that was never refused.
const PROVEN: Duration = Duration::from_secs(60);
/// How long the channels may take to say goodbye.
const FAREWELL: Duration = Duration::from_millis(500);
/// A name may lead to several addresses; so many are tried.
const MAX_RESOLVED: usize = 4;
/// Peers seen by mDNS that are remembered; anybody on the link can announce any number.
const MAX_SEEN: usize = 256;
/// Addresses of one peer seen by mDNS.
const MAX_SEEN_ADDRESSES: usize = 8;

/// What libp2p runs on a node.
#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pub(crate) channels: Channels,
    pub(crate) mdns: Toggle<mdns::tokio::Behaviour>,
    pub(crate) limits: connection_limits::Behaviour,
}

/// What the driver is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Look whom to dial.
    Look,
    /// A connection's channel has ended.
    Ended { connection: ConnectionId, outcome: Outcome },
    /// What a bootstrap address's name leads to.
    Resolved { index: usize, sockets: Vec<SocketAddr> },
}

pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// With the last copy of it the node's events end; the handle has none.
    events: mpsc::Sender<Event>,
    swarm: Swarm<Behaviour>,
    commands: mpsc::UnboundedReceiver<Command>,
    book: DialBook,
    /// Addresses of a bootstrap name that are still to be tried in this round.
    round: HashMap<usize, VecDeque<Multiaddr>>,
    dials: HashMap<ConnectionId, Target>,
    connections: HashMap<ConnectionId, Connection>,
    /// Who announces itself on the link. Nobody vouches for that, so it is good for dialling only.
    seen: HashMap<PeerId, Vec<Multiaddr>>,
    tasks: TaskTracker,
}

struct Connection {
    peer: PeerId,
    address: Multiaddr,
    target: Option<Target>,
    is_dialed: bool,
    /// Until when a stream has to be open; none once it is, or once the connection is being closed.
    deadline_ms: Option<u64>,
    has_channel: bool,
}

/// Addresses to dial: what this node has seen itself, what is announced on the link, and then hearsay.
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
        shared: Arc<Shared>,
        events: mpsc::Sender<Event>,
        swarm: Swarm<Behaviour>,
        commands: mpsc::UnboundedReceiver<Command>,
        bootstrap: Vec<Bootstrap>,
    ) -> Self {
        let book = DialBook::new(shared.own, bootstrap);
        Self {
            shared,
            events,
            swarm,
            commands,
            book,
            round: HashMap::new(),
            dials: HashMap::new(),
            connections: HashMap::new(),
            seen: HashMap::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// Runs until the transport is cancelled.
    pub(crate) async fn run(mut self) {
        self.shared.keep_places();
        loop {
            let look_ms = self.look().min(self.expire());
            let wait = Duration::from_millis(look_ms.saturating_sub(self.shared.now_ms()).min(60_000));
            tokio::select! {
                () = self.shared.cancel.cancelled() => break,
                event = self.swarm.select_next_some() => self.on_swarm(event),
                Some(command) = self.commands.recv() => self.on_command(command),
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.tasks.close();
        let farewell = async {
            loop {
                tokio::select! {
                    () = self.tasks.wait() => break,
                    _ = self.swarm.select_next_some() => {}
                }
            }
        };
        // Those that are slower than this notice soon enough.
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }

    /// Dials who is due, and gives the time of the next look.
    fn look(&mut self) -> u64 {
        let now_ms = self.shared.now_ms();
        let mut known: HashSet<PeerId> = self.seen.keys().copied().collect();
        known.extend(
            (self.shared.membership.lock().members())
                .filter(|member| !member.addresses.is_empty())
                .map(|member| member.certificate.peer_id()),
        );
        let connected: HashSet<PeerId> =
            self.connections.values().map(|connection| connection.peer).collect();
        let plan = {
            let penalties = self.shared.penalties.lock();
            self.book.plan(
                now_ms,
                &known,
                |peer| connected.contains(peer),
                |peer| penalties.waits_until(peer, now_ms),
            )
        };
        for target in plan.dial {
            self.dial(target);
        }
        plan.again_at_ms.unwrap_or(u64::MAX)
    }

    /// Ends what has had its time: connections on which nobody said what they are for, and tokens. Gives the
    /// time of the next look.
    fn expire(&mut self) -> u64 {
        let now_ms = self.shared.now_ms();
        let mut next_ms = {
            let mut desk = self.shared.joins.lock();
            desk.forget(now_ms);
            let until_ms = desk.open_until_ms();
            self.shared.serves_joins.store(until_ms.is_some(), Ordering::Relaxed);
            until_ms.unwrap_or(u64::MAX)
        };
        let mut silent = Vec::new();
        for (id, connection) in &self.connections {
            match connection.deadline_ms {
                Some(deadline_ms) if deadline_ms <= now_ms => silent.push(*id),
                Some(deadline_ms) => next_ms = next_ms.min(deadline_ms),
                None => {}
            }
        }
        for id in silent {
            if let Some(connection) = self.connections.get_mut(&id) {
                tracing::warn!(peer = %connection.peer, address = %connection.address, "a peer connected and said nothing");
                connection.deadline_ms = None;
                self.shared.counters.refuse(Refusal::Silent);
                self.shared.penalise(connection.peer);
            }
            self.swarm.close_connection(id);
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
                    let (text, commands) = (text.clone(), self.shared.commands.clone());
                    self.tasks.spawn(self.shared.cancel.clone().run_until_cancelled_owned(async move {
                        let sockets = match tokio::net::lookup_host(&text).await {
                            Ok(sockets) => sockets.take(MAX_RESOLVED).collect(),
                            Err(error) => {
                                tracing::debug!(name = text, %error, "a bootstrap name leads nowhere");
                                Vec::new()
                            }
                        };
                        // The driver is gone only when all is at its end.
                        let _ = commands.send(Command::Resolved { index, sockets });
                    }));
                }
                None => self.fail(target),
            },
            Target::Peer(peer) => {
                let announced = self.seen.get(&peer).map(Vec::as_slice).unwrap_or_default();
                let addresses = match self.shared.membership.lock().member(&peer) {
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
            // One list of addresses for all nodes is fine: this one is at one of them.
            self.round.retain(|index, _| Target::Bootstrap(*index) != target);
            return self.book.failed_for_long(target, self.shared.now_ms());
        }
        add(&self.shared.counters.dials_failed);
        if let Target::Bootstrap(index) = target
            && let Some(address) = self.round.get_mut(&index).and_then(VecDeque::pop_front)
        {
            return self.dial_address(target, address, None);
        }
        self.fail(target);
    }

    fn fail(&mut self, target: Target) {
        self.book.failed(target, self.shared.now_ms(), rand::random());
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Look => {
                self.shared.looks();
                self.shared.keep_places();
            }
            Command::Resolved { index, sockets } => {
                let mut round: VecDeque<Multiaddr> = sockets.into_iter().flat_map(address::both).collect();
                let first = round.pop_front();
                self.round.insert(index, round);
                match first {
                    Some(address) => self.dial_address(Target::Bootstrap(index), address, None),
                    None => self.fail(Target::Bootstrap(index)),
                }
            }
            Command::Ended { connection, outcome } => {
                self.shared.is_proven(connection);
                self.swarm.close_connection(connection);
                let Some(Connection { peer, target, .. }) = self.connections.remove(&connection) else {
                    return;
                };
                self.settle(peer, target, outcome);
            }
        }
    }

    /// What a channel's end means for the next attempt.
    fn settle(&mut self, peer: PeerId, target: Option<Target>, outcome: Outcome) {
        let now_ms = self.shared.now_ms();
        match outcome {
            Outcome::Refused(reason) | Outcome::RefusedByPeer(reason) if reason.is_penalised() => {
                self.shared.penalise(peer);
            }
            // Of two connections the other one stands.
            Outcome::Refused(_) | Outcome::RefusedByPeer(_)
                if self.connections.values().any(|other| other.peer == peer) =>
            {
                self.book.succeeded(peer, now_ms, rand::random());
            }
            // The peer does not know yet that the connection before has ended, or the way was lost.
            Outcome::Refused(_) | Outcome::RefusedByPeer(_) | Outcome::Lost => {
                target.into_iter().for_each(|target| self.fail(target));
            }
            Outcome::Down { up, reason } => {
                if let super::DownReason::Refused(refusal) = reason
                    && refusal.is_penalised()
                {
                    self.shared.penalise(peer);
                }
                let is_blamed =
                    matches!(reason, super::DownReason::Refused(_) | super::DownReason::Disconnected);
                if up > PROVEN && !is_blamed {
                    self.shared.penalties.lock().forgive(&peer);
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
            SwarmEvent::Behaviour(BehaviourEvent::Mdns(event)) => self.on_mdns(event),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                let target = self.dials.remove(&connection_id);
                if let Some(target) = target {
                    self.book.reached(target, peer_id);
                }
                let deadline_ms = self.shared.now_ms() + millis(self.shared.limits.handshake_timeout);
                let connection = Connection {
                    peer: peer_id,
                    address: endpoint.get_remote_address().clone(),
                    target,
                    is_dialed: endpoint.is_dialer(),
                    deadline_ms: Some(deadline_ms),
                    has_channel: false,
                };
                self.connections.insert(connection_id, connection);
            }
            SwarmEvent::ConnectionClosed { connection_id, .. } => {
                self.shared.is_proven(connection_id);
                // A channel's task tells itself how it ended.
                let Some(connection) = self.connections.get(&connection_id) else { return };
                if connection.has_channel {
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
                self.shared.is_proven(connection_id);
                match cause.downcast_ref::<GateClosed>() {
                    Some(GateClosed::BackingOff) => self.shared.counters.refuse(Refusal::BackingOff),
                    Some(GateClosed::Crowded) => self.shared.counters.refuse(Refusal::Crowded),
                    None => {}
                }
            }
            SwarmEvent::IncomingConnectionError { error: ListenError::Transport(_), .. } => {
                add(&self.shared.counters.strangers);
            }
            SwarmEvent::NewListenAddr { address, .. } => self.shared.listening.lock().push(address),
            SwarmEvent::ExpiredListenAddr { address, .. } => {
                self.shared.listening.lock().retain(|known| *known != address);
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
        (known.deadline_ms, known.has_channel) = (None, true);
        let is_dialed = known.is_dialed;
        let link = Link { peer, address: known.address.clone(), connection, is_dialed };
        let (shared, commands) = (self.shared.clone(), self.shared.commands.clone());
        let events = self.events.clone();
        match stream {
            Ok((Purpose::Cluster, stream)) => {
                self.tasks.spawn(self.shared.busy.clone().time(async move {
                    let outcome = channel::run(shared, events, link, stream).await;
                    // The driver is gone only when all is at its end.
                    let _ = commands.send(Command::Ended { connection, outcome });
                }));
            }
            Ok((Purpose::Join, stream)) => {
                self.tasks.spawn(async move {
                    join::serve(&shared, &events, peer, stream).await;
                    let _ = commands.send(Command::Ended { connection, outcome: Outcome::Lost });
                });
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "a connection has no stream");
                let _ = commands.send(Command::Ended { connection, outcome: Outcome::Lost });
            }
        }
    }

    fn on_mdns(&mut self, event: mdns::Event) {
        match event {
            mdns::Event::Discovered(found) => {
                for (peer, address) in found {
                    if peer == self.shared.own || address::kind(&address).is_none() {
                        continue;
                    }
                    if self.seen.len() >= MAX_SEEN && !self.seen.contains_key(&peer) {
                        continue;
                    }
                    let addresses = self.seen.entry(peer).or_default();
                    if !addresses.contains(&address) && addresses.len() < MAX_SEEN_ADDRESSES {
                        addresses.push(address);
                    }
                }
            }
            mdns::Event::Expired(gone) => {
                for (peer, address) in gone {
                    if let Some(addresses) = self.seen.get_mut(&peer) {
                        addresses.retain(|known| *known != address);
                        if addresses.is_empty() {
                            self.seen.remove(&peer);
                        }
                    }
                }
            }
        }
    }
}
