//! One member's channel: frames both ways until its end.

use std::convert::Infallible;
use std::future::pending;
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
use tokio_util::sync::CancellationToken;

use super::counters::add;
use super::dial_signal::DialSignal;
use super::event::{DownReason, Event};
use super::greeting::Greeter;
use super::link::{Link, Outcome};
use super::peer::Peer;
use super::peer_stream::IncomingStream;
use super::status::facts_interval;
use crate::handshake::{Hello, Refusal};
use crate::known_addresses::{decode_addresses, encode_addresses};
use crate::liveness::{Due, Liveness};
use crate::membership::{Member, decode_members};
use crate::network::address;
use crate::network::frame::{self, Kind, ReadError};
use crate::network::side_streams::{CountedStream, SideStreams, StreamPurpose};
use crate::revocation::RevocationFrame;
use crate::status::{MAX_FACTS_BYTES, MAX_LOAD_BYTES};
use crate::{CertificateError, RevocationList};

/// Limit of a control frame, whatever the limit of the node's frames.
const MAX_CONTROL_BYTES: usize = 128 * 1_024;
/// The token of a heartbeat is at most this much after the time at which it is sent.
const MAX_TOKEN_LEAD_US: u64 = 1_000;
const READ_BUFFER_BYTES: usize = 16 * 1_024;
/// The time that a goodbye has to get through.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(300);

/// Serves the streams of all members. Each takes one task, which the driver owns.
pub(super) struct ChannelServer {
    pub(super) greeter: Greeter,
    pub(super) dial_signal: DialSignal,
    /// The node's events end with the last copy of this.
    pub(super) events: mpsc::Sender<Event>,
    pub(super) incoming_streams: mpsc::Sender<IncomingStream>,
}

impl ChannelServer {
    /// Runs the handshake and then the channel to its end.
    pub(super) async fn run(&self, link: Link, mut stream: Stream, side_streams: SideStreams) -> Outcome {
        let (greeter, gossip) = (&self.greeter, &self.greeter.gossip);
        let opened = greeter.open(&link, &mut stream).await;
        // A member that refuses this node may have sent a revocation, of this node or of another one.
        let has_learnt = gossip.take_unreported();
        let is_revoked = opened.is_err() && gossip.membership.lock().is_own_revoked();
        if (has_learnt || is_revoked) && !greeter.cancel.is_cancelled() {
            self.emit_until_cancelled(Event::MembershipChanged).await;
        }
        match opened {
            Ok((peer, hello)) => {
                greeter.admission.member_connected(link.peer, &link.address);
                if let Some(start) = peer.node_start() {
                    greeter.copies.accept(link.peer, start);
                }
                self.serve(&peer, &hello, stream, side_streams).await
            }
            Err(failure) => greeter.give_up(&link, stream, failure).await,
        }
    }

    /// A member's channel, from its up to its down.
    async fn serve(
        &self,
        peer: &Arc<Peer>,
        hello: &Hello,
        stream: Stream,
        side_streams: SideStreams,
    ) -> Outcome {
        let SideStreams { opener, mut accepted } = side_streams;
        let streams_ended = peer.closing.child_token();
        let streams_end = streams_ended.clone().drop_guard();
        peer.serve_streams(opener, streams_ended.clone());
        self.greeter.peers.status_changed();
        let (reader, mut writer) = stream.split();
        let channel = Channel {
            server: self,
            peer,
            liveness: Mutex::new(Liveness::new(self.now_ms())),
            announced: AtomicBool::new(false),
            writing: AtomicBool::new(false),
        };
        self.greeter.gossip.introduce(peer, hello);
        let reason = tokio::select! {
            reason = channel.read(reader, hello) => reason,
            reason = channel.write(&mut writer) => reason,
            reason = channel.watch() => reason,
            never = channel.report_writable() => match never {},
            never = channel.send_facts() => match never {},
            never = channel.pass_streams(&mut accepted, &streams_ended) => match never {},
            () = peer.closing.cancelled() => {
                channel.say_goodbye(&mut writer).await;
                peer.close_reason()
            }
        };
        drop(streams_end);
        if channel.announced.load(Ordering::Relaxed) {
            self.emit_until_cancelled(Event::PeerDown { node_id: peer.node_id(), reason }).await;
        }
        self.greeter.peers.release(peer);
        // Revoked members were counted when their revocation came.
        if let DownReason::Refused(refusal) = reason
            && refusal != Refusal::Revoked
        {
            self.greeter.counters.refuse(refusal);
        }
        tracing::info!(node = peer.certificate.name(), %reason, "a member is down");
        Outcome::Down { up: peer.since.elapsed(), reason }
    }

    /// Hands an event to the node, unless it is stopping.
    async fn emit_until_cancelled(&self, event: Event) {
        tokio::select! {
            // A node that takes no more events is stopping.
            _ = self.events.send(event) => {}
            () = self.greeter.cancel.cancelled() => {}
        }
    }

    fn now_ms(&self) -> u64 {
        self.greeter.local.clock.now_ms()
    }
}

struct Channel<'a> {
    server: &'a ChannelServer,
    peer: &'a Arc<Peer>,
    liveness: Mutex<Liveness>,
    /// The node was notified that the peer is up.
    announced: AtomicBool,
    /// A part of a batch may have been written.
    writing: AtomicBool,
}

impl Channel<'_> {
    async fn read(&self, reader: ReadHalf<Stream>, hello: &Hello) -> DownReason {
        let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
        self.announce(hello).await;
        let limit_bytes = self.server.greeter.local.limits.max_frame_bytes.max(MAX_CONTROL_BYTES);
        loop {
            let progress = |count| {
                self.peer.bytes_in.fetch_add(count as u64, Ordering::Relaxed);
                self.liveness.lock().received(self.server.now_ms());
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

    /// Reports the peer to the node, and its addresses to other members.
    async fn announce(&self, hello: &Hello) {
        let (gossip, peer) = (&self.server.greeter.gossip, self.peer);
        let (peer_id, node_id) = (peer.peer_id(), peer.node_id());
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
            let mut membership = gossip.membership.lock();
            // The certificate was verified a moment ago.
            let learnt = membership.learn(peer.certificate.clone()).unwrap_or(false);
            let reached = peer.is_dialed && membership.reach(&peer_id, &peer.address);
            let moved = membership.announce(&peer_id, &heard) | reached;
            (learnt | moved, membership.member(&peer_id).map(Member::to_wire))
        };
        if let Some(member) = member.filter(|_| changed) {
            gossip.announce(member, node_id);
            self.membership_changed().await;
        }
    }

    async fn take(&self, kind: Kind, body: Bytes) -> Result<(), DownReason> {
        let malformed = DownReason::Refused(Refusal::Malformed);
        let too_large = DownReason::Refused(Refusal::TooLarge);
        match kind {
            Kind::Data if body.len() > self.server.greeter.local.limits.max_frame_bytes => Err(too_large),
            Kind::Data => {
                self.emit(Event::Frame { node_id: self.peer.node_id(), bytes: body }).await;
                Ok(())
            }
            _ if body.len() > MAX_CONTROL_BYTES => Err(too_large),
            Kind::Ping => {
                self.peer.outbox.pong(token(&body).ok_or(malformed)?);
                Ok(())
            }
            Kind::Pong => {
                let sent_us = token(&body).ok_or(malformed)?;
                let now_us = self.server.greeter.local.clock.now_us();
                // Of heartbeats of one microsecond each has a later token.
                if sent_us > now_us + MAX_TOKEN_LEAD_US {
                    return Err(malformed);
                }
                self.peer.heartbeat_answered(sent_us, now_us.saturating_sub(sent_us));
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
            Kind::Load if body.len() > MAX_LOAD_BYTES => Err(too_large),
            Kind::Load => {
                self.peer.load_received(body);
                self.server.greeter.peers.status_changed();
                Ok(())
            }
            Kind::Facts if body.len() > MAX_FACTS_BYTES => Err(too_large),
            Kind::Facts => {
                self.peer.facts_received(body);
                self.server.greeter.peers.status_changed();
                Ok(())
            }
            Kind::Goodbye => Err(DownReason::Left),
            Kind::Copied => {
                let text = std::str::from_utf8(&body).map_err(|_| malformed)?;
                let address: Multiaddr = text.parse().map_err(|_| malformed)?;
                let report = format!("at {address}, says `{}`", self.peer.certificate.name());
                self.server.greeter.copies.own_copy_reported(report);
                Ok(())
            }
            Kind::Hello | Kind::Verdict => Err(malformed),
            Kind::Unknown => Ok(()),
        }
    }

    async fn take_members(&self, body: &[u8]) -> Result<(), DownReason> {
        let malformed = DownReason::Refused(Refusal::Malformed);
        let members = decode_members(body).ok_or(malformed)?;
        let teller = self.peer.peer_id();
        let (mut to_keep, mut to_dial) = (false, false);
        for mut member in members {
            let heard = self.credible(decode_addresses(&member.addresses));
            member.addresses = encode_addresses(&heard);
            match self.server.greeter.gossip.membership.lock().take_in(teller, &member) {
                Ok(taken) => {
                    to_keep |= taken.to_keep;
                    to_dial |= taken.to_dial;
                }
                // A certificate that only newer versions can read is not the peer's fault.
                Err(CertificateError::UnknownFormat { .. }) => {}
                Err(_) => return Err(malformed),
            }
        }
        if to_keep {
            self.membership_changed().await;
        } else if to_dial {
            self.server.dial_signal.notify();
        }
        Ok(())
    }

    async fn take_revocations(&self, frame: RevocationFrame) -> Result<(), DownReason> {
        let taken = self.server.greeter.gossip.take_revocations(frame, self.peer.node_id());
        if taken.is_changed {
            self.membership_changed().await;
        }
        if taken.is_signed { Ok(()) } else { Err(DownReason::Refused(Refusal::Malformed)) }
    }

    /// Drops loopback addresses that came from another machine.
    fn credible(&self, mut addresses: Vec<Multiaddr>) -> Vec<Multiaddr> {
        if !address::is_loopback(&self.peer.address) {
            addresses.retain(|address| !address::is_loopback(address));
        }
        addresses
    }

    async fn membership_changed(&self) {
        self.emit(Event::MembershipChanged).await;
        self.server.dial_signal.notify();
    }

    /// Hands an event to the node. While the node is slow nothing is read, and the peer does not count as silent.
    async fn emit(&self, event: Event) {
        match self.server.events.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(event)) => {
                self.liveness.lock().pause();
                // A node that takes no more events is stopping.
                let _ = self.server.events.send(event).await;
                self.liveness.lock().resume(self.server.now_ms());
            }
            Err(TrySendError::Closed(_)) => self.server.greeter.cancel.cancel(),
        }
    }

    /// Says goodbye in order, unless a part of a batch was written: half a frame cannot be followed by another.
    async fn say_goodbye(&self, writer: &mut WriteHalf<Stream>) {
        if self.writing.load(Ordering::Relaxed) {
            return;
        }
        let is_revoked = self.peer.close_reason() == DownReason::Refused(Refusal::Revoked);
        let gossip = &self.server.greeter.gossip;
        let proof = gossip.proof_of_revocation(&self.peer.peer_id()).filter(|_| is_revoked);
        let goodbye = async {
            // A revoked node that has the proof works alone from then on.
            if let Some((kind, body)) = proof {
                frame::write(writer, kind, &body).await?;
            }
            frame::write(writer, Kind::Goodbye, &[]).await?;
            writer.close().await
        };
        // The peer notices the end of the connection in any case.
        let _ = tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await;
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
            self.liveness.lock().sent(self.server.now_ms());
        }
    }

    async fn watch(&self) -> DownReason {
        loop {
            let now_ms = self.server.now_ms();
            let due = self.liveness.lock().due(now_ms);
            match due {
                Due::Down => return DownReason::Silent,
                Due::Heartbeat => {
                    self.peer.outbox.ping(self.server.greeter.local.clock.now_us());
                    self.liveness.lock().probed(now_ms);
                }
                Due::Nothing { until_ms } => {
                    tokio::time::sleep(Duration::from_millis(until_ms.saturating_sub(now_ms))).await;
                }
            }
        }
    }

    /// Hands the peer's streams to the node; those that it has no room for are reset.
    async fn pass_streams(
        &self,
        accepted: &mut mpsc::Receiver<(StreamPurpose, CountedStream)>,
        ended: &CancellationToken,
    ) -> Infallible {
        while let Some((purpose, counted)) = accepted.recv().await {
            let node_id = self.peer.node_id();
            let stream = IncomingStream::new(node_id, purpose, counted, ended.clone());
            if self.server.incoming_streams.try_send(stream).is_err() {
                tracing::debug!(node_id, ?purpose, "a stream was refused: too many wait");
                add(&self.server.greeter.counters.streams_refused);
            }
        }
        // The connection has ended; the channel notices that by itself.
        pending().await
    }

    /// Sends the facts of this node now and whenever they change.
    async fn send_facts(&self) -> Infallible {
        let mut facts = self.server.greeter.local.status.facts();
        // The sender lives as long as the transport.
        while facts.changed().await.is_ok() {
            let facts = facts.borrow_and_update().clone();
            if !facts.is_empty() {
                let interval = facts_interval(facts.len());
                self.peer.outbox.facts(facts);
                tokio::time::sleep(interval).await;
            }
        }
        pending().await
    }

    async fn report_writable(&self) -> Infallible {
        loop {
            self.peer.outbox.writable().await;
            let event = Event::Writable { node_id: self.peer.node_id() };
            // A node that takes no more events is stopping.
            let _ = self.server.events.send(event).await;
        }
    }
}

fn token(body: &[u8]) -> Option<u64> {
    body.try_into().ok().map(u64::from_be_bytes)
}
