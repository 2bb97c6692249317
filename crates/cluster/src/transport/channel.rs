//! One member's channel: frames both ways until the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::io::{BufReader, ReadHalf, WriteHalf};
use futures_util::{AsyncReadExt, AsyncWriteExt};
use libp2p::{Multiaddr, Stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::frame::{self, Kind, ReadError};
use super::greeting::{self, Link};
use super::shared::{Peer, Shared};
use super::{DownReason, Event, address};
use crate::handshake::{Hello, Refusal};
use crate::known_addresses::{decode_addresses, encode_addresses};
use crate::liveness::{Due, Liveness};
use crate::membership::{Member, decode_members, encode_members};
use crate::revocation::{RevocationFrame, encode_revocation};
use crate::{CertificateError, RevocationList};

/// Frames of the channel's own may be as large as this, whatever the limit for the node's.
const MAX_CONTROL_BYTES: usize = 128 * 1_024;
const READ_BUFFER_BYTES: usize = 16 * 1_024;
/// How long a farewell may take to get through.
const FAREWELL: Duration = Duration::from_millis(300);

/// How a channel ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// This node refused the peer.
    Refused(Refusal),
    /// The peer refused this node.
    RefusedByPeer(Refusal),
    /// The connection broke before the peer was known.
    Lost,
    /// The channel stood for so long.
    Down { up: Duration, reason: DownReason },
}

/// Runs a channel to its end.
pub(crate) async fn run(
    shared: Arc<Shared>,
    events: mpsc::Sender<Event>,
    link: Link,
    mut stream: Stream,
) -> Outcome {
    let opened = greeting::open(&shared, &link, &mut stream).await;
    // A member that does not let this node in may have said that it was put out, or another one.
    let has_learnt = shared.has_learnt.swap(false, std::sync::atomic::Ordering::AcqRel);
    let is_out = opened.is_err() && shared.membership.lock().is_own_revoked();
    if (has_learnt || is_out) && !shared.cancel.is_cancelled() {
        tokio::select! {
            _ = events.send(Event::MembershipChanged) => {}
            () = shared.cancel.cancelled() => {}
        }
    }
    match opened {
        Ok((peer, hello)) => {
            shared.member_came_from(link.peer, &link.address);
            if let Some(life) = peer.life() {
                shared.lives.lock().accept(link.peer, life);
            }
            serve(&shared, &events, &peer, &hello, stream).await
        }
        Err(failure) => greeting::give_up(&shared, &link, stream, failure).await,
    }
}

/// A member's channel, from its up to its down.
async fn serve(
    shared: &Arc<Shared>,
    events: &mpsc::Sender<Event>,
    peer: &Arc<Peer>,
    hello: &Hello,
    stream: Stream,
) -> Outcome {
    let (reader, mut writer) = stream.split();
    let channel = Channel {
        shared,
        events,
        peer,
        liveness: Mutex::new(Liveness::new(shared.now_ms())),
        announced: AtomicBool::new(false),
        writing: AtomicBool::new(false),
    };
    channel.introduce(hello);
    let reason = tokio::select! {
        reason = channel.read(reader, hello) => reason,
        reason = channel.write(&mut writer) => reason,
        reason = channel.watch() => reason,
        never = channel.tell_when_writable() => match never {},
        () = peer.close.cancelled() => {
            // Half a frame cannot be followed by another.
            if !channel.writing.load(Ordering::Relaxed) {
                let is_put_out = peer.close_reason() == DownReason::Refused(Refusal::Revoked);
                let peer_id = peer.certificate.peer_id();
                let proof = greeting::proof_of_revocation(shared, &peer_id).filter(|_| is_put_out);
                let goodbye = async {
                    // So that it knows, and works alone from now on.
                    if let Some((kind, body)) = proof {
                        frame::write(&mut writer, kind, &body).await?;
                    }
                    frame::write(&mut writer, Kind::Goodbye, &[]).await?;
                    writer.close().await
                };
                let _ = tokio::time::timeout(FAREWELL, goodbye).await;
            }
            peer.close_reason()
        }
    };
    if channel.announced.load(Ordering::Relaxed) {
        let down = Event::PeerDown { node_id: peer.certificate.node_id(), reason };
        tokio::select! {
            // The node that does not listen any more is stopping.
            _ = events.send(down) => {}
            () = shared.cancel.cancelled() => {}
        }
    }
    shared.release(peer);
    // Those whose certificate was taken back were counted when it was.
    if let DownReason::Refused(refusal) = reason
        && refusal != Refusal::Revoked
    {
        shared.counters.refuse(refusal);
    }
    tracing::info!(node = peer.certificate.name(), %reason, "a member is down");
    Outcome::Down { up: peer.since.elapsed(), reason }
}

struct Channel<'a> {
    shared: &'a Arc<Shared>,
    events: &'a mpsc::Sender<Event>,
    peer: &'a Arc<Peer>,
    liveness: Mutex<Liveness>,
    /// Whether the node was told that the peer is up.
    announced: AtomicBool,
    /// Whether a part of a batch may have been written.
    writing: AtomicBool,
}

impl Channel<'_> {
    /// What the peer is told first: members, and revocations if it knows other ones.
    fn introduce(&self, hello: &Hello) {
        let (shared, peer) = (self.shared, self.peer);
        for body in shared.members_frames(peer.certificate.peer_id()) {
            peer.outbox.control(Kind::Members, body);
        }
        let membership = shared.membership.lock();
        let revocations = membership.revocations();
        match hello.revocations_digest {
            Some(digest) if digest == revocations.digest() => {}
            Some(_) => {
                for body in revocations.frames() {
                    peer.outbox.control(Kind::RevocationSet, body);
                }
            }
            // A version up to 0.1 reads nothing else, and keeps the list with the highest number.
            None => {
                for list in revocations.lists() {
                    peer.outbox.control(Kind::Revocations, list.encode());
                }
            }
        }
    }

    async fn read(&self, reader: ReadHalf<Stream>, hello: &Hello) -> DownReason {
        let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
        self.announce(hello).await;
        let limit_bytes = self.shared.limits.max_frame_bytes.max(MAX_CONTROL_BYTES);
        loop {
            let progress = |count| {
                self.peer.bytes_in.fetch_add(count as u64, Ordering::Relaxed);
                self.liveness.lock().received(self.shared.now_ms());
            };
            let (kind, body) = match frame::read(&mut reader, limit_bytes, progress).await {
                Ok(frame) => frame,
                Err(ReadError::TooLarge { .. }) => return DownReason::Refused(Refusal::TooLarge),
                Err(ReadError::Empty) => return DownReason::Refused(Refusal::Malformed),
                Err(ReadError::Closed | ReadError::Io(_)) => return DownReason::Lost,
            };
            if let Err(reason) = self.take(kind, body).await {
                return reason;
            }
        }
    }

    /// Tells the node of the peer, and the peer's whereabouts to others.
    async fn announce(&self, hello: &Hello) {
        let (shared, peer) = (self.shared, self.peer);
        let (peer_id, node_id) = (peer.certificate.peer_id(), peer.certificate.node_id());
        let up = Event::PeerUp {
            node_id,
            name: peer.certificate.name().to_owned(),
            peer_id,
            protocol_version: peer.protocol_version,
            incarnation: peer.incarnation,
            skew_ms: peer.skew_ms,
            address: peer.address.clone(),
        };
        tracing::info!(node = peer.certificate.name(), address = %peer.address, "a member is up");
        self.emit(up).await;
        self.announced.store(true, Ordering::Relaxed);
        let heard = self.credible(hello.addresses.clone());
        let (changed, member) = {
            let mut membership = shared.membership.lock();
            // It was verified a moment ago.
            let learnt = membership.learn(peer.certificate.clone()).unwrap_or(false);
            let reached = match &peer.dialed {
                Some(address) => membership.reach(&peer_id, address),
                None => false,
            };
            let moved = membership.announce(&peer_id, &heard) | reached;
            (learnt | moved, membership.member(&peer_id).map(Member::to_wire))
        };
        if let Some(member) = member.filter(|_| changed) {
            shared.tell_others(node_id, Kind::Members, &encode_members(&[member]));
            self.membership_changed().await;
        }
    }

    async fn take(&self, kind: Kind, body: Bytes) -> Result<(), DownReason> {
        let malformed = DownReason::Refused(Refusal::Malformed);
        let too_large = DownReason::Refused(Refusal::TooLarge);
        match kind {
            Kind::Data if body.len() > self.shared.limits.max_frame_bytes => Err(too_large),
            Kind::Data => {
                self.emit(Event::Frame { node_id: self.peer.certificate.node_id(), bytes: body }).await;
                Ok(())
            }
            _ if body.len() > MAX_CONTROL_BYTES => Err(too_large),
            Kind::Ping => {
                self.peer.outbox.pong(token(&body).ok_or(malformed)?);
                Ok(())
            }
            Kind::Pong => {
                let sent_us = token(&body).ok_or(malformed)?;
                let rtt_us = self.shared.now_us().checked_sub(sent_us).ok_or(malformed)?;
                self.peer.rtt_us.store(rtt_us.max(1), Ordering::Relaxed);
                self.peer.has_answered(sent_us);
                Ok(())
            }
            Kind::Members => self.take_members(&body).await,
            Kind::Revocations => {
                let list = RevocationList::decode(&body).map_err(|_| malformed)?;
                self.take_revocations(RevocationFrame { peers: Vec::new(), lists: vec![list] }).await
            }
            Kind::RevocationSet => {
                self.take_revocations(RevocationFrame::decode(&body).map_err(|_| malformed)?).await
            }
            Kind::Goodbye => Err(DownReason::Left),
            Kind::Copied => {
                let text = std::str::from_utf8(&body).map_err(|_| malformed)?;
                let address: Multiaddr = text.parse().map_err(|_| malformed)?;
                self.shared.is_copied(format!("at {address}, says `{}`", self.peer.certificate.name()));
                Ok(())
            }
            Kind::Hello | Kind::Verdict => Err(malformed),
            Kind::Unknown => Ok(()),
        }
    }

    async fn take_members(&self, body: &[u8]) -> Result<(), DownReason> {
        let malformed = DownReason::Refused(Refusal::Malformed);
        let members = decode_members(body).ok_or(malformed)?;
        let teller = self.peer.certificate.peer_id();
        let (mut to_keep, mut to_dial) = (false, false);
        for mut member in members {
            let heard = self.credible(decode_addresses(&member.addresses));
            member.addresses = encode_addresses(&heard);
            match self.shared.membership.lock().take_in(teller, &member) {
                Ok(taken) => {
                    to_keep |= taken.to_keep;
                    to_dial |= taken.to_dial;
                }
                // What only newer versions can read is no fault of the peer's.
                Err(CertificateError::UnknownFormat { .. }) => {}
                Err(_) => return Err(malformed),
            }
        }
        if to_keep {
            self.membership_changed().await;
        } else if to_dial {
            self.shared.wake();
        }
        Ok(())
    }

    /// Adds revocations, and passes on those that are new here.
    async fn take_revocations(&self, frame: RevocationFrame) -> Result<(), DownReason> {
        let mut new = Vec::new();
        let mut all_signed = true;
        {
            let mut membership = self.shared.membership.lock();
            for revocation in frame.peers {
                match membership.learn_revocation(revocation.clone()) {
                    Ok(true) => new.push((Kind::RevocationSet, encode_revocation(&revocation))),
                    Ok(false) => {}
                    Err(_) => all_signed = false,
                }
            }
            for list in frame.lists {
                let body = list.encode();
                match membership.learn_revocation_list(list) {
                    Ok(true) => new.push((Kind::Revocations, body)),
                    Ok(false) => {}
                    Err(_) => all_signed = false,
                }
            }
        }
        for (kind, body) in &new {
            self.shared.tell_others(self.peer.certificate.node_id(), *kind, body);
        }
        if !new.is_empty() {
            self.shared.drop_revoked();
            self.membership_changed().await;
        }
        if all_signed { Ok(()) } else { Err(DownReason::Refused(Refusal::Malformed)) }
    }

    /// A peer on another machine knows nothing of this one's loopback.
    fn credible(&self, mut addresses: Vec<Multiaddr>) -> Vec<Multiaddr> {
        if !address::is_loopback(&self.peer.address) {
            addresses.retain(|address| !address::is_loopback(address));
        }
        addresses
    }

    async fn membership_changed(&self) {
        self.emit(Event::MembershipChanged).await;
        self.shared.wake();
    }

    /// Hands an event to the node. While the node is slow nothing is read, and the peer is not to blame.
    async fn emit(&self, event: Event) {
        match self.events.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(event)) => {
                self.liveness.lock().pause();
                // The node that does not listen any more is stopping.
                let _ = self.events.send(event).await;
                self.liveness.lock().resume(self.shared.now_ms());
            }
            Err(TrySendError::Closed(_)) => self.shared.cancel.cancel(),
        }
    }

    async fn write(&self, writer: &mut WriteHalf<Stream>) -> DownReason {
        loop {
            let batch = self.peer.outbox.next().await;
            self.writing.store(true, Ordering::Relaxed);
            let written = async {
                writer.write_all(&batch.bytes).await?;
                writer.flush().await
            };
            if written.await.is_err() {
                return DownReason::Lost;
            }
            self.writing.store(false, Ordering::Relaxed);
            self.peer.bytes_out.fetch_add(batch.bytes.len() as u64, Ordering::Relaxed);
            self.peer.outbox.written(&batch);
            self.liveness.lock().sent(self.shared.now_ms());
        }
    }

    async fn watch(&self) -> DownReason {
        loop {
            let now_ms = self.shared.now_ms();
            let due = self.liveness.lock().due(now_ms);
            match due {
                Due::Down => return DownReason::Silent,
                Due::Heartbeat => {
                    self.peer.outbox.ping(self.shared.now_us());
                    self.liveness.lock().probed(now_ms);
                }
                Due::Nothing { until_ms } => {
                    tokio::time::sleep(Duration::from_millis(until_ms.saturating_sub(now_ms))).await;
                }
            }
        }
    }

    async fn tell_when_writable(&self) -> std::convert::Infallible {
        loop {
            self.peer.outbox.writable().await;
            let event = Event::Writable { node_id: self.peer.certificate.node_id() };
            // The node that does not listen any more is stopping.
            let _ = self.events.send(event).await;
        }
    }
}

fn token(body: &[u8]) -> Option<u64> {
    body.try_into().ok().map(u64::from_be_bytes)
}
