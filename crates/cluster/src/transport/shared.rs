//! What the handle, the driver and the channels of one node have in common.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::back_off::Penalties;
use super::busy::Busy;
use super::counters::Cells;
use super::crowd::{Crowd, CrowdLimits, Origin};
use super::driver::Command;
use super::entrance::Entrance;
use super::frame::Kind;
use super::lives::{Copy, Life, Lives};
use super::outbox::Outbox;
use super::{DownReason, Limits, PeerInfo, TransportKind, address};
use crate::handshake::{Hello, Refusal, Refused};
use crate::join::Desk;
use crate::membership::MemberWire;
use crate::{Certificate, Membership};

/// Members that are told of in one frame.
const MEMBERS_PER_FRAME: usize = 64;
/// A node that does not answer for so long is taken for one that has ended.
const PROBE: Duration = Duration::from_secs(2);
/// Encrypted connections whose peers have not shown a certificate yet and are no known members.
const UNPROVEN: CrowdLimits = CrowdLimits { strangers: 64, members: 64, per_origin: 16 };

/// One node's transport.
pub(crate) struct Shared {
    pub(crate) own: PeerId,
    /// Random for each start.
    pub(crate) instance: u64,
    pub(crate) limits: Limits,
    pub(crate) membership: Arc<Mutex<Membership>>,
    pub(crate) listening: Mutex<Vec<Multiaddr>>,
    pub(crate) counters: Cells,
    pub(crate) busy: Arc<Busy>,
    pub(crate) penalties: Mutex<Penalties>,
    pub(crate) entrance: Arc<Entrance>,
    unproven: Mutex<Crowd<ConnectionId>>,
    /// Where members' connections came from, which may be another address than they listen on.
    came_from: Mutex<HashMap<PeerId, Origin>>,
    pub(crate) lives: Mutex<Lives>,
    /// The address of a copy of this node, or what was said of it.
    own_copy: Mutex<Option<String>>,
    pub(crate) joins: Mutex<Desk>,
    pub(crate) serves_joins: Arc<AtomicBool>,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) cancel: CancellationToken,
    /// A look is under way to the driver.
    is_look_due: AtomicBool,
    /// The membership has changed before a channel was open, and the node was not told.
    pub(crate) has_learnt: AtomicBool,
    peers: Mutex<HashMap<u64, Arc<Peer>>>,
    started: Instant,
}

/// A member with a channel.
pub(crate) struct Peer {
    pub(crate) certificate: Certificate,
    pub(crate) address: Multiaddr,
    /// The address that this node has dialled, if it was this node that did.
    pub(crate) dialed: Option<Multiaddr>,
    pub(crate) kind: TransportKind,
    pub(crate) protocol_version: u32,
    pub(crate) incarnation: u32,
    pub(crate) instance: Option<u64>,
    pub(crate) software: String,
    pub(crate) skew_ms: i64,
    pub(crate) since: Instant,
    pub(crate) outbox: Outbox,
    pub(crate) rtt_us: AtomicU64,
    /// When the last heartbeat that was answered was sent.
    answered_us: AtomicU64,
    answered: Notify,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    /// Set when the channel is to end, with the reason.
    pub(crate) close: CancellationToken,
    close_reason: Mutex<Option<DownReason>>,
    /// Set when the channel has ended and the node was told.
    pub(crate) gone: CancellationToken,
}

impl Shared {
    pub(crate) fn new(
        own: PeerId,
        limits: Limits,
        membership: Arc<Mutex<Membership>>,
        serves_joins: Arc<AtomicBool>,
        commands: mpsc::UnboundedSender<Command>,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            own,
            instance: rand::random(),
            limits,
            membership,
            listening: Mutex::default(),
            counters: Cells::default(),
            busy: Arc::default(),
            penalties: Mutex::default(),
            entrance: Arc::default(),
            unproven: Mutex::new(Crowd::new(UNPROVEN)),
            came_from: Mutex::default(),
            lives: Mutex::default(),
            own_copy: Mutex::default(),
            joins: Mutex::default(),
            serves_joins,
            commands,
            cancel,
            is_look_due: AtomicBool::new(false),
            has_learnt: AtomicBool::new(false),
            peers: Mutex::default(),
            started: Instant::now(),
        }
    }

    /// Milliseconds of the monotonic clock since the start.
    pub(crate) fn now_ms(&self) -> u64 {
        millis(self.started.elapsed())
    }

    /// Microseconds since the start: what heartbeats carry.
    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// This node's wall clock.
    pub(crate) fn unix_ms(&self) -> u64 {
        self.limits.wall_clock.now_unix_ms()
    }

    /// Where this node listens, what is of use to other machines first.
    pub(crate) fn addresses(&self) -> Vec<Multiaddr> {
        let mut addresses = self.listening.lock().clone();
        addresses.sort_by_key(address::is_loopback);
        addresses
    }

    /// Whether a connection of this peer may stay until it has shown a certificate. Those of known members always
    /// may, since they have proved their peer id.
    pub(crate) fn may_greet(&self, connection: ConnectionId, peer: &PeerId, remote: &Multiaddr) -> bool {
        if self.membership.lock().member(peer).is_some() {
            return true;
        }
        let origin = address::socket(remote).map(|socket| Origin::from(socket.ip()));
        origin.is_some_and(|origin| self.unproven.lock().try_enter(connection, origin))
    }

    /// The connection is closed, or its peer has shown its certificate.
    pub(crate) fn is_proven(&self, connection: ConnectionId) {
        self.unproven.lock().leave(connection);
    }

    /// A member has connected from here.
    pub(crate) fn member_came_from(&self, peer: PeerId, remote: &Multiaddr) {
        let Some(socket) = address::socket(remote) else { return };
        let origin = Origin::from(socket.ip());
        if self.came_from.lock().insert(peer, origin) != Some(origin) {
            self.wake();
        }
    }

    /// The driver looks now; later changes need another look.
    pub(crate) fn looks(&self) {
        self.is_look_due.store(false, Ordering::Release);
    }

    /// Brings the places that are kept for members' addresses up to date.
    pub(crate) fn keep_places(&self) {
        let mut origins: HashSet<Origin> = HashSet::new();
        let mut came_from = self.came_from.lock();
        {
            let membership = self.membership.lock();
            came_from.retain(|peer, _| membership.member(peer).is_some());
            self.lives.lock().retain(|peer| membership.member(peer).is_some());
            let addresses = membership.members().flat_map(|member| member.addresses.first_hand());
            origins.extend(
                addresses
                    .filter_map(|address| address::socket(&address))
                    .map(|socket| Origin::from(socket.ip())),
            );
        }
        origins.extend(came_from.values());
        drop(came_from);
        self.entrance.set_members(&origins);
        self.unproven.lock().set_members(origins);
    }

    /// This node's Hello.
    pub(crate) fn hello(&self) -> Hello {
        let addresses = self.addresses();
        let membership = self.membership.lock();
        Hello {
            versions: self.limits.versions.clone(),
            software: self.limits.software.clone(),
            certificate: membership.own().encode(),
            revocations_digest: Some(membership.revocations().digest()),
            unix_ms: self.unix_ms(),
            incarnation: self.limits.incarnation,
            instance: Some(self.instance),
            addresses,
        }
    }

    /// A member with a channel.
    pub(crate) fn peer(&self, node_id: u64) -> Option<Arc<Peer>> {
        self.peers.lock().get(&node_id).cloned()
    }

    /// All members with a channel.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        self.peers.lock().values().cloned().collect()
    }

    /// Refuses a node that has the identity of another one: a cloned data directory that runs beside its original, or an
    /// older copy of it.
    pub(crate) async fn refuse_copies(&self, peer: &Peer) -> Result<(), Refused> {
        let Some(life) = peer.life() else { return Ok(()) };
        let (name, peer_id) = (peer.certificate.name(), peer.certificate.peer_id());
        let holder = self.peer(peer.certificate.node_id()).filter(|holder| {
            holder.certificate.peer_id() == peer_id
                && holder.instance.is_some_and(|instance| instance != life.instance)
        });
        // One that was started again does not answer over its old connection.
        if let Some(holder) = holder
            && !holder.close.is_cancelled()
            && holder.answers(self.now_us(), self.probe_time()).await
        {
            self.report_copy(peer_id, &holder.address, &peer.address);
            holder.outbox.control(Kind::Copied, peer.address.to_string().into_bytes());
            return Err(Refusal::Cloned.with(format!(
                "two nodes with the identity of `{name}` are running, at {} and at {}; stop one of them and start it \
                 with an empty data directory",
                holder.address, peer.address
            )));
        }
        let latest = self.lives.lock().contradiction(&peer_id, &life).cloned();
        if let Some(latest) = latest {
            self.report_copy(peer_id, &latest.address, &peer.address);
            return Err(Refusal::Cloned.with(format!(
                "the data directory of `{name}` at {} is a copy: it counts start {}, and start {} was at {}; start it \
                 with an empty data directory and join it again",
                peer.address, life.incarnation, latest.incarnation, latest.address
            )));
        }
        Ok(())
    }

    fn report_copy(&self, peer_id: PeerId, known_at: &Multiaddr, refused_at: &Multiaddr) {
        let copy = Copy { peer_id, known_at: known_at.clone(), refused_at: refused_at.clone() };
        self.lives.lock().refuse(copy, self.now_ms());
    }

    /// Within this time a running node answers.
    fn probe_time(&self) -> Duration {
        PROBE.min(self.limits.handshake_timeout / 2)
    }

    /// A member has said that there is a copy of this node.
    pub(crate) fn is_copied(&self, text: String) {
        let mut own_copy = self.own_copy.lock();
        if own_copy.as_ref() != Some(&text) {
            tracing::error!(copy = text, "another node is running with the identity of this one");
            *own_copy = Some(text);
        }
    }

    /// What members have said of a copy of this node.
    pub(crate) fn own_copy(&self) -> Option<String> {
        self.own_copy.lock().clone()
    }

    /// Takes the place of a member's channel. `decides` is whether this side says which of two is kept.
    pub(crate) async fn claim(&self, peer: &Arc<Peer>, decides: bool) -> Result<(), Refused> {
        let node_id = peer.certificate.node_id();
        loop {
            let holder = {
                let mut peers = self.peers.lock();
                let Some(holder) = peers.get(&node_id) else {
                    peers.insert(node_id, peer.clone());
                    return Ok(());
                };
                holder.clone()
            };
            if holder.certificate.peer_id() != peer.certificate.peer_id() {
                return Err(Refusal::NodeIdTaken.with(format!(
                    "`{}` is connected with the same node number as `{}`; join one of them again",
                    holder.certificate.name(),
                    peer.certificate.name()
                )));
            }
            // One that was started again has not seen its old connection end, this node may not have either.
            let restarted = holder.incarnation != peer.incarnation || holder.instance != peer.instance;
            if decides && !restarted && !holder.close.is_cancelled() {
                return Err(Refusal::Duplicate.with("there is a connection already"));
            }
            holder.close(DownReason::Replaced);
            holder.gone.cancelled().await;
        }
    }

    /// Gives the place of a member's channel up.
    pub(crate) fn release(&self, peer: &Arc<Peer>) {
        let mut peers = self.peers.lock();
        let node_id = peer.certificate.node_id();
        if peers.get(&node_id).is_some_and(|holder| Arc::ptr_eq(holder, peer)) {
            peers.remove(&node_id);
        }
        drop(peers);
        peer.gone.cancel();
    }

    /// Ends the channels of revoked members.
    pub(crate) fn drop_revoked(&self) {
        for peer in self.peers() {
            if self.membership.lock().is_revoked(&peer.certificate) {
                self.penalise(peer.certificate.peer_id());
                self.counters.refuse(Refusal::Revoked);
                peer.close(DownReason::Refused(Refusal::Revoked));
            }
        }
    }

    /// Enforces a revocation that came before a channel was open, and tells all members of it. The one who brought it may be the revoked
    /// one, and nobody else may bring it again.
    pub(crate) fn pass_on_revocation(&self, kind: Kind, body: &[u8]) {
        self.has_learnt.store(true, Ordering::Release);
        self.drop_revoked();
        self.tell_all(kind, body);
        self.wake();
    }

    /// Leaves a peer alone for a while.
    pub(crate) fn penalise(&self, peer: PeerId) {
        self.penalties.lock().refuse(peer, self.now_ms(), rand::random());
    }

    /// What every member is told of.
    pub(crate) fn tell_all(&self, kind: Kind, body: &[u8]) {
        for peer in self.peers() {
            peer.outbox.control(kind, body.to_vec());
        }
    }

    /// What every member but one is told of.
    pub(crate) fn tell_others(&self, except: u64, kind: Kind, body: &[u8]) {
        for peer in self.peers().iter().filter(|peer| peer.certificate.node_id() != except) {
            peer.outbox.control(kind, body.to_vec());
        }
    }

    /// All members that are known, in frames' bodies.
    pub(crate) fn members_frames(&self, except: PeerId) -> Vec<Vec<u8>> {
        let membership = self.membership.lock();
        let members: Vec<MemberWire> = membership
            .members()
            .filter(|member| member.certificate.peer_id() != except)
            .map(crate::membership::Member::to_wire)
            .collect();
        members.chunks(MEMBERS_PER_FRAME).map(crate::membership::encode_members).collect()
    }

    /// Has the driver look whom to dial.
    pub(crate) fn wake(&self) {
        // One that waits is enough, so that no peer can fill the queue.
        if !self.is_look_due.swap(true, Ordering::AcqRel) {
            // The driver is gone only when all is at its end.
            let _ = self.commands.send(Command::Look);
        }
    }
}

impl Peer {
    #[expect(clippy::too_many_arguments, reason = "the parts of one thing, put together once")]
    pub(crate) fn new(
        certificate: Certificate,
        address: Multiaddr,
        dialed: Option<Multiaddr>,
        kind: TransportKind,
        protocol_version: u32,
        hello: &Hello,
        skew_ms: i64,
        outbox_bytes: usize,
        close: CancellationToken,
    ) -> Self {
        Self {
            certificate,
            address,
            dialed,
            kind,
            protocol_version,
            incarnation: hello.incarnation,
            instance: hello.instance,
            software: hello.software.clone(),
            skew_ms,
            since: Instant::now(),
            outbox: Outbox::new(outbox_bytes),
            rtt_us: AtomicU64::new(0),
            answered_us: AtomicU64::new(0),
            answered: Notify::new(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            close,
            close_reason: Mutex::new(None),
            gone: CancellationToken::new(),
        }
    }

    /// The start of the node that this is.
    pub(crate) fn life(&self) -> Option<Life> {
        let instance = self.instance?;
        Some(Life { instance, incarnation: self.incarnation, address: self.address.clone() })
    }

    /// A heartbeat that was sent then was answered.
    pub(crate) fn has_answered(&self, sent_us: u64) {
        self.answered_us.fetch_max(sent_us, Ordering::AcqRel);
        self.answered.notify_waiters();
    }

    /// Whether the node at the other end is running: it answers a heartbeat that is sent now.
    async fn answers(&self, now_us: u64, within: Duration) -> bool {
        self.outbox.ping(now_us);
        let answered = async {
            loop {
                let mut notified = std::pin::pin!(self.answered.notified());
                notified.as_mut().enable();
                if self.answered_us.load(Ordering::Acquire) >= now_us {
                    return true;
                }
                tokio::select! {
                    () = notified => {}
                    () = self.close.cancelled() => return false,
                    () = self.gone.cancelled() => return false,
                }
            }
        };
        tokio::time::timeout(within, answered).await.unwrap_or(false)
    }

    /// Ends the channel; the first reason counts.
    pub(crate) fn close(&self, reason: DownReason) {
        self.close_reason.lock().get_or_insert(reason);
        self.close.cancel();
    }

    /// Why the channel was ended from this side.
    pub(crate) fn close_reason(&self) -> DownReason {
        self.close_reason.lock().unwrap_or(DownReason::Disconnected)
    }

    pub(crate) fn info(&self) -> PeerInfo {
        let rtt_us = self.rtt_us.load(Ordering::Relaxed);
        PeerInfo {
            node_id: self.certificate.node_id(),
            name: self.certificate.name().to_owned(),
            peer_id: self.certificate.peer_id(),
            address: self.address.clone(),
            transport: self.kind,
            software: self.software.clone(),
            protocol_version: self.protocol_version,
            incarnation: self.incarnation,
            connected_since: self.since,
            rtt: (rtt_us > 0).then(|| Duration::from_micros(rtt_us)),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            skew_ms: self.skew_ms,
        }
    }
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
