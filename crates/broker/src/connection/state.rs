//! The state of one connection, without its stream.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::futures::OwnedNotified;

use super::attached::Attached;
use super::context::ConnectionContext;
use super::handshake::Accepted;
use super::inbound_publish::{InboundPublish, Retry};
use super::io::Buffers;
use super::keep_alive::KeepAlive;
use super::outbound::Outbound;
use super::pending_acks::{Gate, PendingAcks};
use super::throttle::Throttle;
use crate::mailbox::Direct;
use crate::moment::Moment;
use crate::protocol::{End, Protocol, Reply};
use crate::wire::{Decoder, DisconnectReasonCode, Encoder};

/// A client that has this many bytes to take is not read until it takes some.
const MAX_UNSENT_BYTES: usize = 256 * 1024;
/// Bytes that are read of a client while its packets are not handled.
const MAX_UNHANDLED_BYTES: usize = 16 * 1024;
/// Maximum time for handling packets that a client sent before it disconnected.
const LAST_PACKETS_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest wait of the timer.
const IDLE: Duration = Duration::from_secs(3600);

/// The state of one connection, without its stream.
pub(super) struct Connection<'a> {
    pub context: &'a ConnectionContext,
    pub attached: Attached<'a>,
    pub buffers: Buffers,
    pub decoder: Decoder,
    pub encoder: Encoder,
    pub protocol: Protocol,
    /// The last PUBLISH of the client.
    pub publish: InboundPublish,
    pub acks: PendingAcks,
    pub outbound: Outbound,
    pub keep_alive: KeepAlive,
    pub throttle: Throttle,
    /// The buffer may have whole packets that were not handled.
    pub has_unhandled: bool,
    /// A queue of a subscriber is more than half full.
    pub has_pressure: bool,
    /// The client has disconnected, and some of its packets have still to be handled.
    pub departure: Option<Departure>,
}

/// The end of the connection, while the client's last packets are handled.
pub(super) struct Departure {
    pub detail: String,
    /// Deadline after which the remaining packets are dropped.
    pub until: Instant,
    pub half: ClosedHalf,
}

/// The halves of the stream that the client has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClosedHalf {
    /// The client sends nothing more, and may still read.
    Sending,
    Both,
}

impl<'a> Connection<'a> {
    /// Connects the session's mailbox to an accepted client.
    pub(super) fn attach(
        context: &'a ConnectionContext,
        buffers: Buffers,
        decoder: Decoder,
        accepted: Accepted<'a>,
        socket: Option<Arc<TcpStream>>,
    ) -> Connection<'a> {
        let Accepted { connect, encoder, keepalive_seconds, mut attached } = accepted;
        let config = &context.config;
        let version = connect.version;
        attached.mailbox.connect(
            Encoder::new(version, connect.maximum_packet_bytes),
            connect.receive_maximum.min(config.max_inflight),
            connect.topic_alias_maximum,
            socket.map(|socket| Direct { socket, counters: context.counters.clone() }),
        );
        attached.recheck_waiting();
        let client = &attached.client;
        tracing::debug!(client_id = %client.client_id, peer = %client.peer, ?version, "client connected");
        context.hooks.notify(|hook| hook.on_connected(client));
        let now = Instant::now();
        Connection {
            context,
            buffers,
            decoder,
            encoder,
            protocol: Protocol::new(
                version,
                config.topic_alias_maximum,
                config.receive_maximum,
                attached.expiry_seconds,
                std::mem::take(&mut attached.unreleased),
            ),
            attached,
            publish: InboundPublish::ready(),
            acks: PendingAcks::new(context.wal.watch()),
            outbound: Outbound::default(),
            keep_alive: KeepAlive::new(keepalive_seconds, now),
            throttle: Throttle::new(config.max_messages_per_second, now),
            has_unhandled: false,
            has_pressure: false,
            departure: None,
        }
    }

    /// Gives the session back; gives the bytes that are left to be written, a DISCONNECT included.
    pub(super) fn close(self: Box<Self>, end: End) -> Buffers {
        let Connection { context, mut buffers, mut attached, mut encoder, protocol, .. } = *self;
        attached.mailbox.end_direct(&mut buffers.outbound);
        attached.unreleased = protocol.into_unreleased();
        if !end.will {
            attached.will = None;
        }
        if let Some(seconds) = end.session_expiry_seconds {
            attached.expiry_seconds = seconds.min(context.config.max_session_expiry_seconds);
        }
        let client_id = attached.mailbox.client_id.clone();
        drop(attached);
        match end.reason {
            Some(reason) => {
                tracing::debug!(%client_id, ?reason, detail = end.detail, "connection ended by the broker");
                if !matches!(
                    reason,
                    DisconnectReasonCode::ServerShuttingDown | DisconnectReasonCode::SessionTakenOver
                ) {
                    context.counters.protocol_errors.add(1);
                }
                encoder.disconnect(&mut buffers.outbound, reason, Some(&end.detail));
            }
            None => tracing::debug!(%client_id, detail = end.detail, "connection ended"),
        }
        buffers
    }

    /// True if the next packet may be handled.
    pub(super) fn is_readable(&self) -> bool {
        self.publish.is_ready()
            && self.throttle.until().is_none()
            && !self.context.wal.is_behind()
            && self.buffers.unsent() < MAX_UNSENT_BYTES
            && self.acks.len() < usize::from(self.context.config.receive_maximum.get())
    }

    /// True if bytes are read. A few bytes are read even while no packet is handled, so that a disconnect is noticed.
    pub(super) fn reads(&self) -> bool {
        self.departure.is_none() && (self.is_readable() || self.buffers.inbound.len() < MAX_UNHANDLED_BYTES)
    }

    /// The client has closed the stream. Its last packets, perhaps a DISCONNECT, are handled before the connection ends.
    pub(super) fn departs(&mut self, detail: String, half: ClosedHalf, now: &Moment) -> Option<End> {
        if !self.has_unhandled || self.buffers.inbound.is_empty() {
            return Some(End::lost(detail));
        }
        let until =
            self.departure.as_ref().map_or(now.instant + LAST_PACKETS_TIMEOUT, |departure| departure.until);
        if half == ClosedHalf::Sending {
            self.attached.mailbox.end_direct(&mut self.buffers.outbound);
        }
        self.departure = Some(Departure { detail, until, half });
        None
    }

    /// Tries the deliveries of the last PUBLISH again; `None` when they are settled, otherwise the notification to wait for.
    pub(super) fn retry_publish(&mut self, now: &Moment) -> Option<Pin<Box<OwnedNotified>>> {
        match self.publish.retry(&self.context.router, now) {
            Retry::Full(room) => Some(room),
            Retry::Settled(ack) => {
                self.publish_settled(ack, now.instant);
                None
            }
        }
    }

    /// Stops waiting for room for the deliveries of the last PUBLISH.
    pub(super) fn give_up_publish(&mut self, now: &Moment) {
        let ack = self.publish.give_up(&self.context.router, now);
        self.publish_settled(ack, now.instant);
    }

    fn publish_settled(&mut self, ack: Option<(Reply, Gate)>, now: Instant) {
        // The broker waited, not the client.
        self.keep_alive.restart(now);
        if let Some((reply, gate)) = ack {
            self.push_ack(reply, gate);
        }
    }

    /// Adds an acknowledgement of a PUBLISH.
    pub(super) fn push_ack(&mut self, reply: Reply, gate: Gate) {
        self.acks.push(reply, gate);
        self.protocol.set_unacknowledged(self.acks.unacknowledged());
    }

    /// Time at which the timer must fire next.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let keep_alive = self.keep_alive.deadline().filter(|_| self.reads());
        let write = self.outbound.unsent_since.map(|since| since + self.context.config.write_timeout);
        let departure = self.departure.as_ref().map(|departure| departure.until);
        [keep_alive, write, self.publish.deadline(), departure, self.throttle.until()]
            .into_iter()
            .flatten()
            .fold(now + IDLE, Instant::min)
    }
}
