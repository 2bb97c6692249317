//! A connection of a bridge: to the other broker, and to the bridge's session in this node's broker.

use std::collections::VecDeque;
use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use edgefaas_broker::{Broker, Message, Origin, Peer, PublishOutcome, QoS, RejectReason, Ticket};
use rumqttc::v5::mqttbytes as v5;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, Connect, ConnectProperties, ConnectReturnCode, Disconnect, DisconnectReasonCode, Filter,
    Login, Packet, PingReq, PubComp, RetainForwardRule, Subscribe, UnsubAckReason, Unsubscribe,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::config::{BridgeVersion, Remote};
use super::relay::{Effect, Relay};
use super::wire::{Size, Wire, WireError};
use super::{Bridge, Bridges};

/// Maximum time from the first packet to the other broker's CONNACK.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time for sending the last bytes at a disconnect.
const FAREWELL: Duration = Duration::from_secs(2);
/// Buffer between this node's broker and the bridge, in bytes.
const LOCAL_BUFFER: usize = 64 * 1024;
/// Maximum number of unsent bytes; beyond it, the bridge stops reading packets that cause more.
const MAX_UNSENT: usize = 256 * 1024;
/// Maximum number of acknowledgements that wait for the store; beyond it, the bridge stops reading.
const MAX_UNSTORED: usize = 4096;
/// Maximum number of messages in flight to a broker without a Receive Maximum.
const INFLIGHT: u16 = 1000;
/// The same for MQTT 3.1.1, which has no Receive Maximum.
const INFLIGHT_V311: u16 = 100;
/// Maximum growth of a packet, except prefixes.
const OVERHEAD_BYTES: usize = 256;
/// Interval of offering a message again that the broker had no room for.
const RETRY: Duration = Duration::from_secs(1);
/// Packet identifier of SUBSCRIBE, unlikely to be in flight in the session in this node's broker.
const SUBSCRIBE_PKID: u16 = u16::MAX;
const UNSUBSCRIBE_PKID: u16 = u16::MAX - 1;

/// Result of a connection.
pub enum Ended {
    /// The node stops.
    Cancelled,
    /// The connection failed for this reason.
    Failed(String),
}

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{what} {path}: {reason}")]
    File { what: &'static str, path: String, reason: String },
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{host:?} is not the name of a host")]
    Host { host: String },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("refused by the other broker: {0:?}")]
    Refused(ConnectReturnCode),
    #[error("{who} sent something else than an answer to CONNECT")]
    NoAnswer { who: &'static str },
    #[error("{who} closed the connection")]
    Closed { who: &'static str },
    #[error("{0}")]
    Ended(String),
    #[error("the store failed")]
    Store,
}

/// Creates the bridge's session in this node's broker, with exactly its subscriptions.
pub async fn prepare_session(bridges: &Bridges, bridge: &Bridge) -> Result<(), LinkError> {
    let (mut local, serving) = local_end(&bridges.broker);
    let wire = local_wire(bridges);
    let prepared = async {
        let mut out = BytesMut::new();
        let mut inbound = BytesMut::new();
        wire.encode(local_connect(bridge, false, 1, None), &mut out)?;
        let awaited = session_packets(bridges, bridge, &wire, &mut out)?;
        local.write_all(&out).await?;
        for _ in 0..=awaited {
            while !matches!(
                next_packet(&mut local, &mut inbound, &wire, "this node's broker").await?,
                Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_)
            ) {}
        }
        Ok(())
    };
    tokio::select! {
        prepared = prepared => prepared,
        () = serving => Err(LinkError::Closed { who: "this node's broker" }),
    }
}

/// Removes the session of a bridge that is no longer configured.
pub async fn forget_session(broker: &Broker, client_id: &str) {
    let (mut local, serving) = local_end(broker);
    let properties = None;
    let connect = Connect { keep_alive: 0, client_id: client_id.to_owned(), clean_start: true, properties };
    let wire = Wire { version: BridgeVersion::V5, max_packet_bytes: 1024 * 1024 };
    let forgotten = async {
        let (mut out, mut inbound) = (BytesMut::new(), BytesMut::new());
        wire.encode(Packet::Connect(connect, None, None), &mut out)?;
        local.write_all(&out).await?;
        next_packet(&mut local, &mut inbound, &wire, "this node's broker").await
    };
    tokio::select! {
        _ = forgotten => tracing::info!(client_id, "the queue of a bridge that is no longer configured was removed"),
        () = serving => {}
    }
}

/// Connects and relays until the connection ends or `cancel` fires.
pub async fn connect(bridges: &Bridges, bridge: &Bridge, cancel: &CancellationToken) -> Ended {
    let connected = async {
        let remote = bridge.section.remote().map_err(|error| LinkError::Ended(error.to_string()))?;
        let Some(stream) = cancel.run_until_cancelled(in_time(open(&remote))).await else { return Ok(()) };
        if !remote.tls {
            return relay(bridges, bridge, stream?, cancel).await;
        }
        let shaken = cancel.run_until_cancelled(in_time(shake_hands(bridge, &remote, stream?))).await;
        let Some(stream) = shaken else { return Ok(()) };
        relay(bridges, bridge, stream?, cancel).await
    };
    // Boxed: TLS and buffers make it large.
    match Box::pin(connected).await {
        Ok(()) => Ended::Cancelled,
        Err(error) => Ended::Failed(error.to_string()),
    }
}

async fn open(remote: &Remote) -> Result<TcpStream, LinkError> {
    let stream = TcpStream::connect((remote.host.as_str(), remote.port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn shake_hands(
    bridge: &Bridge,
    remote: &Remote,
    stream: TcpStream,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, LinkError> {
    let name = ServerName::try_from(remote.host.clone());
    let name = name.map_err(|_| LinkError::Host { host: remote.host.clone() })?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls_config(bridge)?));
    Ok(connector.connect(name, stream).await?)
}

async fn in_time<T>(work: impl Future<Output = Result<T, LinkError>>) -> Result<T, LinkError> {
    timeout(CONNECT_TIMEOUT, work).await.map_err(|_| LinkError::Timeout(CONNECT_TIMEOUT))?
}

fn tls_config(bridge: &Bridge) -> Result<rustls::ClientConfig, LinkError> {
    let failed = |what, path: &Path| {
        let path = path.display().to_string();
        move |error: rustls::pki_types::pem::Error| LinkError::File {
            what,
            path,
            reason: error.to_string(),
        }
    };
    let certificates = |what, path: &Path| -> Result<Vec<CertificateDer<'static>>, LinkError> {
        let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        found.map_err(failed(what, path))
    };
    let section = &bridge.section;
    let mut roots = rustls::RootCertStore::empty();
    if let Some(path) = &section.ca {
        for certificate in certificates("ca", path)? {
            roots.add(certificate)?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    match section.cert.as_ref().zip(section.key.as_ref()) {
        None => Ok(builder.with_no_client_auth()),
        Some((cert, key)) => {
            let private_key = PrivateKeyDer::from_pem_file(key).map_err(failed("key", key))?;
            Ok(builder.with_client_auth_cert(certificates("cert", cert)?, private_key)?)
        }
    }
}

/// An in-memory connection to this node's broker: one end for the bridge, and the future that serves the other end.
fn local_end(broker: &Broker) -> (DuplexStream, impl Future<Output = ()> + Send) {
    let (local, served) = tokio::io::duplex(LOCAL_BUFFER);
    let broker = broker.clone();
    // The bridge ends this connection, not the node's cancellation.
    let serving = async move { broker.serve(served, Peer::internal(), CancellationToken::new()).await };
    (local, serving)
}

fn local_wire(bridges: &Bridges) -> Wire {
    // Bytes that the broker adds to an accepted message do not count for the limit.
    let max_packet_bytes = bridges.max_packet_bytes.saturating_add(64 * 1024);
    Wire { version: BridgeVersion::V5, max_packet_bytes }
}

fn local_connect(
    bridge: &Bridge,
    clean_start: bool,
    receive_maximum: u16,
    max_packet_size: Option<u32>,
) -> Packet {
    let mut properties = ConnectProperties::new();
    properties.session_expiry_interval = Some(u32::MAX);
    properties.receive_maximum = Some(receive_maximum);
    properties.max_packet_size = max_packet_size;
    let client_id = bridge.client_id.to_string();
    let connect = Connect { keep_alive: 0, client_id, clean_start, properties: Some(properties) };
    Packet::Connect(connect, None, None)
}

/// Packets that align the session's subscriptions with the configuration, and the number of expected answers.
fn session_packets(
    bridges: &Bridges,
    bridge: &Bridge,
    wire: &Wire,
    out: &mut BytesMut,
) -> Result<usize, WireError> {
    let sessions = bridges.broker.sessions(&bridge.client_id);
    let session = sessions.into_iter().find(|session| session.client_id == bridge.client_id);
    let old = session.map(|session| session.filters).unwrap_or_default();
    let gone = old.iter().filter(|filter| !bridge.out_filters.contains(filter));
    let gone: Vec<String> = gone.map(|filter| filter.as_str().to_owned()).collect();
    let mut answers = 0;
    if !gone.is_empty() {
        wire.encode(Packet::Unsubscribe(Unsubscribe { pkid: 1, filters: gone, properties: None }), out)?;
        answers += 1;
    }
    let topics = bridge.section.topics.iter().filter(|topic| topic.direction.is_out());
    let filters: Vec<Filter> =
        topics.map(|topic| subscription(topic.local_filter(), topic.qos.0)).collect();
    if !filters.is_empty() {
        wire.encode(Packet::Subscribe(Subscribe { pkid: 2, filters, properties: None }), out)?;
        answers += 1;
    }
    Ok(answers)
}

/// No-local: a message from a bridge is not sent back over it. Retain-as-published: retained messages stay retained.
fn subscription(filter: String, qos: QoS) -> Filter {
    let qos = match qos {
        QoS::AtMostOnce => v5::QoS::AtMostOnce,
        QoS::AtLeastOnce => v5::QoS::AtLeastOnce,
        QoS::ExactlyOnce => v5::QoS::ExactlyOnce,
    };
    let mut filter = Filter::new(filter, qos);
    filter.nolocal = true;
    filter.preserve_retain = true;
    filter.retain_forward_rule = RetainForwardRule::OnNewSubscribe;
    filter
}

async fn next_packet<S: AsyncRead + Unpin>(
    stream: &mut S,
    inbound: &mut BytesMut,
    wire: &Wire,
    who: &'static str,
) -> Result<Packet, LinkError> {
    loop {
        if let Some(packet) = wire.decode(inbound)? {
            return Ok(packet);
        }
        if stream.read_buf(inbound).await? == 0 {
            return Err(LinkError::Closed { who });
        }
    }
}

/// Connects to the other broker. A broker that does not support the bridge flag in CONNECT closes the connection.
async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    bridges: &Bridges,
    bridge: &Bridge,
    wire: &Wire,
    stream: &mut S,
    inbound: &mut BytesMut,
) -> Result<ConnAck, LinkError> {
    let section = &bridge.section;
    let password = match &section.password_file {
        None => String::new(),
        Some(path) => {
            let text = tokio::fs::read_to_string(path).await.map_err(|error| LinkError::File {
                what: "password_file",
                path: path.display().to_string(),
                reason: error.to_string(),
            })?;
            text.trim_end_matches(['\r', '\n']).to_owned()
        }
    };
    let login = section.username.clone().map(|username| Login { username, password });
    let mut properties = ConnectProperties::new();
    properties.session_expiry_interval = Some(u32::MAX);
    properties.max_packet_size = Some(wire.max_packet_bytes);
    let client_id = match &section.client_id {
        Some(client_id) => client_id.clone(),
        None => format!("edgefaas-{}-{}", bridges.node_id, section.name),
    };
    let connect = Connect {
        keep_alive: section.keepalive.as_secs() as u16,
        client_id,
        clean_start: false,
        properties: Some(properties),
    };
    let mut out = BytesMut::new();
    wire.encode_connect(Packet::Connect(connect, None, login), bridge.greets_as_bridge(), &mut out)?;
    stream.write_all(&out).await?;
    stream.flush().await?;
    match next_packet(stream, inbound, wire, "the other broker").await {
        Ok(Packet::ConnAck(ack)) if ack.code == ConnectReturnCode::Success => {
            bridge.greeted(true);
            Ok(ack)
        }
        Ok(Packet::ConnAck(ack)) => {
            bridge.greeted(ack.code != ConnectReturnCode::UnsupportedProtocolVersion);
            Err(LinkError::Refused(ack.code))
        }
        Ok(_) => Err(LinkError::NoAnswer { who: "the other broker" }),
        Err(error) => {
            bridge.greeted(false);
            Err(error)
        }
    }
}

async fn relay<S: AsyncRead + AsyncWrite + Unpin>(
    bridges: &Bridges,
    bridge: &Bridge,
    mut remote: S,
    cancel: &CancellationToken,
) -> Result<(), LinkError> {
    let section = &bridge.section;
    let wire = Wire { version: section.version, max_packet_bytes: bridges.max_packet_bytes };
    let mut inbound = BytesMut::new();
    let greeted = in_time(greet(bridges, bridge, &wire, &mut remote, &mut inbound));
    let Some(ack) = cancel.run_until_cancelled(greeted).await else { return Ok(()) };
    let ack = ack?;
    let offer = ack.properties;
    let offered = offer.as_ref();
    let mut unreleased = bridge.unreleased.lock().await;
    if !ack.session_present {
        // A new session assigns identifiers anew, so the recorded ones refer to other messages.
        let gone: Vec<_> = unreleased.drain().map(|pkid| bridge.record(pkid, false)).collect();
        if !gone.is_empty() {
            bridges.broker.record(gone);
        }
    }
    let keepalive = offered
        .and_then(|offer| offer.server_keep_alive)
        .map_or(section.keepalive, |seconds| Duration::from_secs(u64::from(seconds).max(1)));
    let max_inflight = if section.version == BridgeVersion::V5 { INFLIGHT } else { INFLIGHT_V311 };
    let inflight = offered.and_then(|offer| offer.receive_max).unwrap_or(max_inflight).min(max_inflight);
    let prefixes = section.topics.iter().map(|topic| topic.remote_prefix.len());
    let overhead = (OVERHEAD_BYTES + prefixes.max().unwrap_or(0)) as u32;
    let max_packet = offered.and_then(|offer| offer.max_packet_size);
    let max_packet = max_packet.map(|bytes| bytes.saturating_sub(overhead).max(1));
    let (mut local, serving) = local_end(&bridges.broker);
    let mut link = Link {
        bridges,
        bridge,
        relay: Relay {
            topics: &bridge.topics,
            node_id: &bridges.node_id,
            has_properties: section.version == BridgeVersion::V5,
            retain_available: offered.and_then(|offer| offer.retain_available) != Some(0),
            unreleased: &mut unreleased,
        },
        local_wire: local_wire(bridges),
        remote_wire: wire,
        to_local: BytesMut::new(),
        to_remote: BytesMut::new(),
        acks: VecDeque::new(),
        stalled: None,
        unsubscribing: Vec::new(),
        skipping: 0,
    };
    let packet = local_connect(bridge, false, inflight.max(1), max_packet);
    link.local_wire.encode(packet, &mut link.to_local)?;
    session_packets(bridges, bridge, &link.local_wire, &mut link.to_local)?;
    let topics = section.topics.iter().filter(|topic| topic.direction.is_in());
    let filters: Vec<Filter> =
        topics.map(|topic| subscription(topic.remote_filter(), topic.qos.0)).collect();
    let wanted: Vec<String> = filters.iter().map(|filter| filter.path.clone()).collect();
    let (gone, changes) = bridge.subscribing(&wanted, ack.session_present);
    if !changes.is_empty() {
        // Not awaited: the record is on the disk long before the node reads a configuration without these filters.
        bridges.broker.record(changes);
    }
    if !gone.is_empty() {
        let packet = Unsubscribe { pkid: UNSUBSCRIBE_PKID, filters: gone.clone(), properties: None };
        link.remote_wire.encode(Packet::Unsubscribe(packet), &mut link.to_remote)?;
        link.unsubscribing = gone;
    }
    if !filters.is_empty() {
        let subscribe = Subscribe { pkid: SUBSCRIBE_PKID, filters, properties: None };
        link.remote_wire.encode(Packet::Subscribe(subscribe), &mut link.to_remote)?;
    }
    bridge.connected();
    let ended = tokio::select! {
        ended = link.run(&mut local, &mut remote, inbound, keepalive) => ended,
        () = serving => Err(LinkError::Closed { who: "this node's broker" }),
        () = cancel.cancelled() => Ok(()),
    };
    if ended.is_ok() {
        let _ = timeout(FAREWELL, link.farewell(&mut remote)).await;
    }
    ended
}

/// Writes some of `bytes`; if `bytes` is empty, flushes.
async fn write_or_flush<W: AsyncWrite + Unpin>(writer: &mut W, bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await }
}

struct Link<'a> {
    bridges: &'a Bridges,
    bridge: &'a Bridge,
    relay: Relay<'a>,
    local_wire: Wire,
    remote_wire: Wire,
    to_local: BytesMut,
    to_remote: BytesMut,
    /// Acknowledgements in the order of sending, each with the ticket of its stored message.
    acks: VecDeque<(Option<Ticket>, Packet)>,
    /// A message of the other broker for which this node's broker has no room. The bridge reads no further packets from
    /// the other broker until it has room.
    stalled: Option<Stalled>,
    /// Filters of pending UNSUBSCRIBE packets to the other broker.
    unsubscribing: Vec<String>,
    /// Remaining bytes of a too large message of the other broker.
    skipping: usize,
}

struct Stalled {
    message: Message,
    ack: Option<Packet>,
    record: Option<u16>,
    retry_at: Instant,
}

impl Link<'_> {
    async fn run<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        local: &mut DuplexStream,
        remote: &mut S,
        mut from_remote: BytesMut,
        keepalive: Duration,
    ) -> Result<(), LinkError> {
        let (mut local_reader, mut local_writer) = tokio::io::split(local);
        let (mut remote_reader, mut remote_writer) = tokio::io::split(remote);
        let mut from_local = BytesMut::new();
        let mut unflushed = false;
        let mut unanswered = false;
        let mut ticks = interval_at(Instant::now() + keepalive, keepalive);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let remote_has_room = self.to_remote.len() < MAX_UNSENT;
            while remote_has_room && let Some(packet) = self.local_wire.decode(&mut from_local)? {
                for effect in self.relay.on_local(packet) {
                    self.apply(effect)?;
                }
            }
            let takes = |link: &Self| {
                let unstored = link.acks.len() < MAX_UNSTORED;
                link.stalled.is_none() && unstored && link.to_local.len() < MAX_UNSENT
            };
            while takes(self)
                && self.skip_too_large(&mut from_remote)?
                && let Some(packet) = self.remote_wire.decode(&mut from_remote)?
            {
                unanswered = false;
                for effect in self.relay.on_remote(packet) {
                    self.apply(effect)?;
                }
            }
            self.acknowledge_what_needs_no_store()?;
            let takes = takes(self);
            let ticket = self.acks.front().and_then(|(ticket, _)| *ticket);
            let broker = self.bridges.broker.clone();
            let stored = async move {
                match ticket {
                    Some(ticket) => broker.durable(ticket).await.map(|()| ticket),
                    None => pending().await,
                }
            };
            let retry_at = self.stalled.as_ref().map(|stalled| stalled.retry_at);
            let retry = async move {
                match retry_at {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                read = local_reader.read_buf(&mut from_local), if remote_has_room => {
                    if read? == 0 {
                        return Err(LinkError::Closed { who: "this node's broker" });
                    }
                }
                read = remote_reader.read_buf(&mut from_remote), if takes => {
                    if read? == 0 {
                        return Err(LinkError::Closed { who: "the other broker" });
                    }
                    unanswered = false;
                }
                written = local_writer.write(&self.to_local), if !self.to_local.is_empty() => {
                    self.to_local.advance(written?);
                }
                written = write_or_flush(&mut remote_writer, &self.to_remote),
                    if unflushed || !self.to_remote.is_empty() =>
                {
                    let bytes = written?;
                    self.to_remote.advance(bytes);
                    unflushed = bytes > 0;
                }
                stored = stored => {
                    let stored = stored.map_err(|_| LinkError::Store)?;
                    self.acknowledge_up_to(stored)?;
                }
                () = retry => self.retry(),
                _ = ticks.tick() => {
                    // While the bridge does not read, it cannot receive an answer.
                    if unanswered && takes {
                        return Err(LinkError::Timeout(keepalive));
                    }
                    unanswered = true;
                    self.remote_wire.encode(Packet::PingReq(PingReq), &mut self.to_remote)?;
                }
            }
        }
    }

    fn apply(&mut self, effect: Effect) -> Result<(), LinkError> {
        match effect {
            Effect::ToRemote(packet) => self.remote_wire.encode(packet, &mut self.to_remote)?,
            Effect::ToLocal(packet) => self.local_wire.encode(packet, &mut self.to_local)?,
            Effect::Publish { message, ack, record } => self.publish(*message, ack, record),
            Effect::Release(pkid) => {
                let ticket = self.bridges.broker.record(vec![self.bridge.record(pkid, false)]);
                self.acks.push_back((ticket, Packet::PubComp(PubComp::new(pkid, None))));
            }
            Effect::Unsubscribed(reasons) => self.unsubscribed(&reasons),
            Effect::Acknowledge(packet) => self.acks.push_back((None, packet)),
            Effect::Refused(reason) => self.bridge.lost(reason),
            Effect::Delivered => {
                self.bridge.figures.outgoing.fetch_add(1, Relaxed);
            }
            Effect::End(reason) => return Err(LinkError::Ended(reason)),
        }
        Ok(())
    }

    fn publish(&mut self, message: Message, ack: Option<Packet>, record: Option<u16>) {
        let origin = Origin::Bridge { client_id: self.bridge.client_id.clone() };
        let changes = record.map(|pkid| self.bridge.record(pkid, true)).into_iter().collect();
        // A message that exceeds the limit will always exceed it.
        let may_wait = ack.is_some() && message.weight() <= self.bridges.max_packet_bytes as usize;
        let kept = may_wait.then(|| message.clone());
        let published = self.bridges.broker.publish_with(&origin, message, changes);
        match published.outcome {
            PublishOutcome::Rejected(reason) => {
                // The identifier is not recorded here: if the connection ends now, the other broker sends the message
                // again as a new one.
                if let Some(pkid) = record {
                    self.relay.unreleased.remove(&pkid);
                }
                if let (RejectReason::QuotaExceeded, Some(message)) = (reason, kept) {
                    let retry_at = Instant::now() + RETRY;
                    self.stalled = Some(Stalled { message, ack, record, retry_at });
                    return;
                }
                self.bridge.lost(format!("this node refused a message: {reason:?}"));
            }
            PublishOutcome::Routed(_) | PublishOutcome::Consumed => {
                self.bridge.figures.incoming.fetch_add(1, Relaxed);
            }
        }
        self.acks.extend(ack.map(|ack| (published.ticket, ack)));
    }

    /// Skips a message that is too large: ending the connection would make the other broker send it again, without end.
    /// False until the whole message is skipped.
    fn skip_too_large(&mut self, bytes: &mut BytesMut) -> Result<bool, LinkError> {
        loop {
            let skipped = self.skipping.min(bytes.len());
            bytes.advance(skipped);
            self.skipping -= skipped;
            if self.skipping > 0 {
                return Ok(false);
            }
            match self.remote_wire.size(bytes) {
                Size::Fine => return Ok(true),
                Size::Unknown => return Ok(false),
                Size::TooLarge { bytes, topic, ack } => {
                    self.skipping = bytes;
                    self.bridge.lost(format!("a message on {topic:?} is too large (broker.max_packet)"));
                    self.acks.extend(ack.map(|ack| (None, *ack)));
                }
            }
        }
    }

    fn unsubscribed(&mut self, reasons: &[UnsubAckReason]) {
        use UnsubAckReason::{NoSubscriptionExisted, Success};
        let asked = std::mem::take(&mut self.unsubscribing).into_iter().enumerate();
        let (ended, kept): (Vec<_>, Vec<_>) = asked.partition(|(index, _)| {
            reasons.get(*index).is_none_or(|reason| matches!(reason, Success | NoSubscriptionExisted))
        });
        for (index, filter) in kept {
            let reason = reasons[index];
            self.bridge.failed(format!("the subscription to {filter:?} could not be ended: {reason:?}"));
        }
        let ended: Vec<_> = ended.into_iter().map(|(_, filter)| filter).collect();
        let changes = self.bridge.unsubscribed(&ended);
        if !changes.is_empty() {
            self.bridges.broker.record(changes);
        }
    }

    fn retry(&mut self) {
        if let Some(Stalled { message, ack, record, .. }) = self.stalled.take() {
            self.relay.unreleased.extend(record);
            self.publish(message, ack, record);
        }
    }

    fn acknowledge_what_needs_no_store(&mut self) -> Result<(), LinkError> {
        while let Some((_, packet)) = self.acks.pop_front_if(|(ticket, _)| ticket.is_none()) {
            self.remote_wire.encode(packet, &mut self.to_remote)?;
        }
        Ok(())
    }

    fn acknowledge_up_to(&mut self, stored: Ticket) -> Result<(), LinkError> {
        let reached = |ack: &mut (Option<Ticket>, Packet)| ack.0.is_none_or(|ticket| ticket <= stored);
        while let Some((_, packet)) = self.acks.pop_front_if(reached) {
            self.remote_wire.encode(packet, &mut self.to_remote)?;
        }
        Ok(())
    }

    /// Disconnects in order; messages without acknowledgement are sent again on the next connection.
    async fn farewell<S: AsyncWrite + Unpin>(&mut self, remote: &mut S) -> Result<(), LinkError> {
        let goodbye = Disconnect::new(DisconnectReasonCode::NormalDisconnection);
        self.remote_wire.encode(Packet::Disconnect(goodbye), &mut self.to_remote)?;
        remote.write_all(&self.to_remote).await?;
        remote.flush().await?;
        Ok(remote.shutdown().await?)
    }
}
