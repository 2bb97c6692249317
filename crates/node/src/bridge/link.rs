//! One connection of a bridge: to the other broker, and to the bridge's session in this node's broker. Executes the effects of
//! [`Relay`].

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

use super::codec::{Codec, CodecError, SizeCheck};
use super::config::{BridgeVersion, Remote};
use super::relay::{Effect, Relay};
use super::{Bridge, Bridges};

/// Maximum time of each step of connecting: TCP, TLS handshake, and CONNECT until CONNACK.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum time of a disconnect: sending the remaining bytes and DISCONNECT, and closing the sending side.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Buffer between this node's broker and the bridge, in bytes, for each direction.
const LOCAL_BUFFER: usize = 64 * 1024;
/// Maximum number of unsent bytes in one direction. At this number the bridge stops reading what it relays in that direction; a
/// single read may exceed it.
const MAX_UNSENT_BYTES: usize = 256 * 1024;
/// Maximum number of pending acknowledgements to the other broker. At this number the bridge stops reading from the other broker.
const MAX_PENDING_ACKS: usize = 4096;
/// Maximum number of messages in flight to the other broker with MQTT 5. A smaller Receive Maximum of that broker takes precedence.
const MAX_IN_FLIGHT: u16 = 1000;
/// Maximum number of messages in flight to the other broker with MQTT 3.1.1, which has no Receive Maximum: mosquitto's default
/// (`max_inflight_messages`). It drops QoS 2 messages beyond it, and a PUBREC of 3.1.1 cannot say so.
const MAX_IN_FLIGHT_V311: u16 = 20;
/// Maximum growth of a packet in the bridge, without the remote prefix: the bridge adds a user property.
const OVERHEAD_BYTES: usize = 256;
/// Interval of the attempts to publish a message for which this node's broker has no room.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Packet identifier of SUBSCRIBE to the other broker. PUBLISH packets to it have the identifiers of the session in this node's
/// broker, which uses all of them in turn: only few are in flight, so a conflict is unlikely.
const SUBSCRIBE_PKID: u16 = u16::MAX;
/// Packet identifier of UNSUBSCRIBE to the other broker.
const UNSUBSCRIBE_PKID: u16 = u16::MAX - 1;

/// End of a connection.
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
    Codec(#[from] CodecError),
    #[error("{setting} {path}: {reason}")]
    File { setting: &'static str, path: String, reason: String },
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{host:?} is not a valid host name")]
    Host { host: String },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("refused by the other broker: {0:?}")]
    Refused(ConnectReturnCode),
    #[error("{peer} sent a packet other than CONNACK after CONNECT")]
    NoConnAck { peer: &'static str },
    #[error("{peer} closed the connection")]
    Closed { peer: &'static str },
    #[error("{0}")]
    Ended(String),
    #[error("the store failed")]
    Store,
}

/// Creates or resumes the bridge's session in this node's broker, and sets its subscriptions to those of the configuration.
pub async fn prepare_session(bridges: &Bridges, bridge: &Bridge) -> Result<(), LinkError> {
    let (mut local, serving) = local_end(&bridges.broker);
    let codec = local_codec(bridges);
    let prepared = async {
        let mut out = BytesMut::new();
        let mut inbound = BytesMut::new();
        codec.encode(local_connect(bridge, false, 1, None), &mut out)?;
        let expected_acks = session_packets(bridges, bridge, &codec, &mut out)?;
        local.write_all(&out).await?;
        // CONNACK, and the answers to the packets of the session.
        for _ in 0..=expected_acks {
            while !matches!(
                next_packet(&mut local, &mut inbound, &codec, "this node's broker").await?,
                Packet::ConnAck(_) | Packet::SubAck(_) | Packet::UnsubAck(_)
            ) {}
        }
        Ok(())
    };
    tokio::select! {
        prepared = prepared => prepared,
        () = serving => Err(LinkError::Closed { peer: "this node's broker" }),
    }
}

/// Removes the session of a bridge that is no longer configured: a clean start without a session expiry interval ends it.
pub async fn remove_session(broker: &Broker, client_id: &str) {
    let (mut local, serving) = local_end(broker);
    let properties = None;
    let connect = Connect { keep_alive: 0, client_id: client_id.to_owned(), clean_start: true, properties };
    let codec = Codec { version: BridgeVersion::V5, max_packet_bytes: 1024 * 1024 };
    let removed = async {
        let (mut out, mut inbound) = (BytesMut::new(), BytesMut::new());
        codec.encode(Packet::Connect(connect, None, None), &mut out)?;
        local.write_all(&out).await?;
        next_packet(&mut local, &mut inbound, &codec, "this node's broker").await
    };
    tokio::select! {
        _ = removed => tracing::info!(client_id, "the queue of a bridge that is no longer configured was removed"),
        () = serving => {}
    }
}

/// Connects and relays until the connection ends or `cancel` fires.
pub async fn connect(bridges: &Bridges, bridge: &Bridge, cancel: &CancellationToken) -> Ended {
    let connected = async {
        let remote = bridge.section.remote().map_err(|error| LinkError::Ended(error.to_string()))?;
        let Some(stream) = cancel.run_until_cancelled(with_timeout(tcp_connect(&remote))).await else {
            return Ok(());
        };
        if !remote.tls {
            return relay(bridges, bridge, stream?, cancel).await;
        }
        let handshake = with_timeout(tls_handshake(bridge, &remote, stream?));
        let Some(stream) = cancel.run_until_cancelled(handshake).await else { return Ok(()) };
        relay(bridges, bridge, stream?, cancel).await
    };
    // Boxed: the future is large.
    match Box::pin(connected).await {
        Ok(()) => Ended::Cancelled,
        Err(error) => Ended::Failed(error.to_string()),
    }
}

async fn tcp_connect(remote: &Remote) -> Result<TcpStream, LinkError> {
    let stream = TcpStream::connect((remote.host.as_str(), remote.port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn tls_handshake(
    bridge: &Bridge,
    remote: &Remote,
    stream: TcpStream,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, LinkError> {
    let name = ServerName::try_from(remote.host.clone());
    let name = name.map_err(|_| LinkError::Host { host: remote.host.clone() })?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls_config(bridge)?));
    Ok(connector.connect(name, stream).await?)
}

/// Limits a step of connecting to [`CONNECT_TIMEOUT`].
async fn with_timeout<T>(step: impl Future<Output = Result<T, LinkError>>) -> Result<T, LinkError> {
    timeout(CONNECT_TIMEOUT, step).await.map_err(|_| LinkError::Timeout(CONNECT_TIMEOUT))?
}

fn tls_config(bridge: &Bridge) -> Result<rustls::ClientConfig, LinkError> {
    let failed = |setting, path: &Path| {
        let path = path.display().to_string();
        move |error: rustls::pki_types::pem::Error| LinkError::File {
            setting,
            path,
            reason: error.to_string(),
        }
    };
    let certificates = |setting, path: &Path| -> Result<Vec<CertificateDer<'static>>, LinkError> {
        let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        found.map_err(failed(setting, path))
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
pub(super) fn local_end(broker: &Broker) -> (DuplexStream, impl Future<Output = ()> + Send + use<>) {
    let (local, served) = tokio::io::duplex(LOCAL_BUFFER);
    let broker = broker.clone();
    // Not cancelled when the node stops: the bridge ends this connection itself.
    let serving = async move { broker.serve(served, Peer::internal(), CancellationToken::new()).await };
    (local, serving)
}

fn local_codec(bridges: &Bridges) -> Codec {
    // The broker checks the limit when it accepts a message. The packet that it delivers may be larger.
    let max_packet_bytes = bridges.max_packet_bytes.saturating_add(64 * 1024);
    Codec { version: BridgeVersion::V5, max_packet_bytes }
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

/// Appends the packets that set the session's subscriptions to those of the configuration. Returns the number of packets, which
/// is the number of expected answers.
fn session_packets(
    bridges: &Bridges,
    bridge: &Bridge,
    codec: &Codec,
    out: &mut BytesMut,
) -> Result<usize, CodecError> {
    let sessions = bridges.broker.sessions(&bridge.client_id);
    let session = sessions.into_iter().find(|session| session.client_id == bridge.client_id);
    let old = session.map(|session| session.filters).unwrap_or_default();
    let gone = old.iter().filter(|filter| !bridge.out_filters.contains(filter));
    let gone: Vec<String> = gone.map(|filter| filter.as_str().to_owned()).collect();
    let mut packets = 0;
    if !gone.is_empty() {
        codec.encode(Packet::Unsubscribe(Unsubscribe { pkid: 1, filters: gone, properties: None }), out)?;
        packets += 1;
    }
    let topics = bridge.section.topics.iter().filter(|topic| topic.direction.is_out());
    let filters: Vec<Filter> =
        topics.map(|topic| subscription(topic.local_filter(), topic.qos.0)).collect();
    if !filters.is_empty() {
        codec.encode(Packet::Subscribe(Subscribe { pkid: 2, filters, properties: None }), out)?;
        packets += 1;
    }
    Ok(packets)
}

/// A filter of SUBSCRIBE, in either direction. No-local: the broker does not send a message back over the bridge. Retain as
/// published: retained messages stay retained. The broker sends retained messages only for a new subscription. With MQTT 3.1.1
/// these three options do not exist and are omitted.
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
    codec: &Codec,
    peer: &'static str,
) -> Result<Packet, LinkError> {
    loop {
        if let Some(packet) = codec.decode(inbound)? {
            return Ok(packet);
        }
        if stream.read_buf(inbound).await? == 0 {
            return Err(LinkError::Closed { peer });
        }
    }
}

/// Sends CONNECT to the other broker and waits for CONNACK. A broker that does not support the bridge flag in CONNECT refuses the
/// protocol version or closes the connection.
async fn mqtt_connect<S: AsyncRead + AsyncWrite + Unpin>(
    bridges: &Bridges,
    bridge: &Bridge,
    codec: &Codec,
    stream: &mut S,
    inbound: &mut BytesMut,
) -> Result<ConnAck, LinkError> {
    let section = &bridge.section;
    let password = match &section.password_file {
        None => String::new(),
        Some(path) => {
            let text = tokio::fs::read_to_string(path).await.map_err(|error| LinkError::File {
                setting: "password_file",
                path: path.display().to_string(),
                reason: error.to_string(),
            })?;
            text.trim_end_matches(['\r', '\n']).to_owned()
        }
    };
    let login = section.username.clone().map(|username| Login { username, password });
    let mut properties = ConnectProperties::new();
    properties.session_expiry_interval = Some(u32::MAX);
    properties.max_packet_size = Some(codec.max_packet_bytes);
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
    codec.encode_connect(Packet::Connect(connect, None, login), bridge.sends_bridge_flag(), &mut out)?;
    stream.write_all(&out).await?;
    stream.flush().await?;
    match next_packet(stream, inbound, codec, "the other broker").await {
        Ok(Packet::ConnAck(ack)) if ack.code == ConnectReturnCode::Success => {
            bridge.record_connect(true);
            Ok(ack)
        }
        Ok(Packet::ConnAck(ack)) => {
            bridge.record_connect(ack.code != ConnectReturnCode::UnsupportedProtocolVersion);
            Err(LinkError::Refused(ack.code))
        }
        Ok(_) => Err(LinkError::NoConnAck { peer: "the other broker" }),
        Err(error) => {
            bridge.record_connect(false);
            Err(error)
        }
    }
}

/// Opens the MQTT connection over `remote` and relays until it ends. `Ok` if `cancel` has fired.
async fn relay<S: AsyncRead + AsyncWrite + Unpin>(
    bridges: &Bridges,
    bridge: &Bridge,
    mut remote: S,
    cancel: &CancellationToken,
) -> Result<(), LinkError> {
    let section = &bridge.section;
    let codec = Codec { version: section.version, max_packet_bytes: bridges.max_packet_bytes };
    let mut inbound = BytesMut::new();
    let connecting = with_timeout(mqtt_connect(bridges, bridge, &codec, &mut remote, &mut inbound));
    let Some(ack) = cancel.run_until_cancelled(connecting).await else { return Ok(()) };
    let ack = ack?;
    let properties = ack.properties.as_ref();
    let mut unreleased = bridge.unreleased.lock().await;
    if !ack.session_present {
        // The other broker has lost its session and reuses identifiers: the recorded ones belong to old messages.
        let deletions: Vec<_> =
            unreleased.drain().map(|pkid| bridge.identifier_record(pkid, false)).collect();
        if !deletions.is_empty() {
            bridges.broker.record(deletions);
        }
    }
    let keepalive = properties
        .and_then(|properties| properties.server_keep_alive)
        .map_or(section.keepalive, |seconds| Duration::from_secs(u64::from(seconds).max(1)));
    let limit = if section.version == BridgeVersion::V5 { MAX_IN_FLIGHT } else { MAX_IN_FLIGHT_V311 };
    let receive_max = properties.and_then(|properties| properties.receive_max);
    let max_in_flight = receive_max.unwrap_or(limit).min(limit);
    let prefixes = section.topics.iter().map(|topic| topic.remote_prefix.len());
    let overhead = (OVERHEAD_BYTES + prefixes.max().unwrap_or(0)) as u32;
    let remote_max_packet = properties.and_then(|properties| properties.max_packet_size);
    // The local session gets this limit, so this node's broker drops messages that would be too large for the other broker.
    let max_packet = remote_max_packet.map(|bytes| bytes.saturating_sub(overhead).max(1));
    let (mut local, serving) = local_end(&bridges.broker);
    let mut link = Link {
        bridges,
        bridge,
        relay: Relay {
            topics: &bridge.topics,
            node_id: &bridges.node_id,
            has_properties: section.version == BridgeVersion::V5,
            retain_available: properties.and_then(|properties| properties.retain_available) != Some(0),
            unreleased: &mut unreleased,
        },
        local_codec: local_codec(bridges),
        remote_codec: codec,
        to_local: BytesMut::new(),
        to_remote: BytesMut::new(),
        pending_acks: VecDeque::new(),
        stalled: None,
        unsubscribing: Vec::new(),
        bytes_to_skip: 0,
    };
    let packet = local_connect(bridge, false, max_in_flight.max(1), max_packet);
    link.local_codec.encode(packet, &mut link.to_local)?;
    session_packets(bridges, bridge, &link.local_codec, &mut link.to_local)?;
    let topics = section.topics.iter().filter(|topic| topic.direction.is_in());
    let filters: Vec<Filter> =
        topics.map(|topic| subscription(topic.remote_filter(), topic.qos.0)).collect();
    let paths: Vec<String> = filters.iter().map(|filter| filter.path.clone()).collect();
    let (gone, changes) = bridge.set_subscriptions(&paths, ack.session_present);
    if !changes.is_empty() {
        // Without waiting for the disk: the records are needed only after a restart with another configuration.
        bridges.broker.record(changes);
    }
    if !gone.is_empty() {
        let packet = Unsubscribe { pkid: UNSUBSCRIBE_PKID, filters: gone.clone(), properties: None };
        link.remote_codec.encode(Packet::Unsubscribe(packet), &mut link.to_remote)?;
        link.unsubscribing = gone;
    }
    if filters.is_empty() {
        bridge.connected();
    } else {
        let subscribe = Subscribe { pkid: SUBSCRIBE_PKID, filters, properties: None };
        link.remote_codec.encode(Packet::Subscribe(subscribe), &mut link.to_remote)?;
    }
    let ended = tokio::select! {
        ended = link.run(&mut local, &mut remote, inbound, keepalive) => ended,
        () = serving => Err(LinkError::Closed { peer: "this node's broker" }),
        () = cancel.cancelled() => Ok(()),
    };
    if ended.is_ok() {
        // `cancel` has fired.
        let _ = timeout(DISCONNECT_TIMEOUT, link.disconnect(&mut remote)).await;
    }
    ended
}

/// Writes some of `bytes`; if `bytes` is empty, flushes.
async fn write_or_flush<W: AsyncWrite + Unpin>(writer: &mut W, bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(bytes).await }
}

/// State of one connection.
struct Link<'a> {
    bridges: &'a Bridges,
    bridge: &'a Bridge,
    relay: Relay<'a>,
    local_codec: Codec,
    remote_codec: Codec,
    to_local: BytesMut,
    to_remote: BytesMut,
    /// Acknowledgements to the other broker, in the order of sending. One with a ticket waits until the store has reached it.
    pending_acks: VecDeque<(Option<Ticket>, Packet)>,
    /// A message of the other broker for which this node's broker has no room. The bridge handles no further packets of the other
    /// broker until the message is published or dropped.
    stalled: Option<Stalled>,
    /// Filters of the UNSUBSCRIBE to the other broker that is not answered yet.
    unsubscribing: Vec<String>,
    /// Remaining bytes of a message of the other broker that is too large and is skipped.
    bytes_to_skip: usize,
}

struct Stalled {
    message: Message,
    ack: Option<Packet>,
    record: Option<u16>,
    retry_at: Instant,
}

impl Link<'_> {
    /// Relays until the connection fails; never returns `Ok`.
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
        let mut needs_flush = false;
        // A PINGREQ was sent, and nothing was received since.
        let mut ping_pending = false;
        let mut ticks = interval_at(Instant::now() + keepalive, keepalive);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let remote_has_room = self.to_remote.len() < MAX_UNSENT_BYTES;
            while remote_has_room && let Some(packet) = self.local_codec.decode(&mut from_local)? {
                for effect in self.relay.on_local(packet) {
                    self.apply(effect)?;
                }
            }
            let can_receive = |link: &Self| {
                link.stalled.is_none()
                    && link.pending_acks.len() < MAX_PENDING_ACKS
                    && link.to_local.len() < MAX_UNSENT_BYTES
            };
            while can_receive(self)
                && self.skip_too_large(&mut from_remote)?
                && let Some(packet) = self.remote_codec.decode(&mut from_remote)?
            {
                ping_pending = false;
                for effect in self.relay.on_remote(packet) {
                    self.apply(effect)?;
                }
            }
            self.send_acks_without_ticket()?;
            let can_receive = can_receive(self);
            let ticket = self.pending_acks.front().and_then(|(ticket, _)| *ticket);
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
                        return Err(LinkError::Closed { peer: "this node's broker" });
                    }
                }
                read = remote_reader.read_buf(&mut from_remote), if can_receive => {
                    if read? == 0 {
                        return Err(LinkError::Closed { peer: "the other broker" });
                    }
                    ping_pending = false;
                }
                written = local_writer.write(&self.to_local), if !self.to_local.is_empty() => {
                    self.to_local.advance(written?);
                }
                written = write_or_flush(&mut remote_writer, &self.to_remote),
                    if needs_flush || !self.to_remote.is_empty() =>
                {
                    let bytes = written?;
                    self.to_remote.advance(bytes);
                    needs_flush = bytes > 0;
                }
                stored = stored => {
                    let stored = stored.map_err(|_| LinkError::Store)?;
                    self.send_acks_up_to(stored)?;
                }
                () = retry => self.retry(),
                _ = ticks.tick() => {
                    // While the bridge does not read from the other broker, it cannot receive PINGRESP.
                    if ping_pending && can_receive {
                        return Err(LinkError::Timeout(keepalive));
                    }
                    ping_pending = true;
                    self.remote_codec.encode(Packet::PingReq(PingReq), &mut self.to_remote)?;
                }
            }
        }
    }

    fn apply(&mut self, effect: Effect) -> Result<(), LinkError> {
        match effect {
            Effect::ToRemote(packet) => self.remote_codec.encode(packet, &mut self.to_remote)?,
            Effect::ToLocal(packet) => self.local_codec.encode(packet, &mut self.to_local)?,
            Effect::Publish { message, ack, record } => self.publish(*message, ack, record),
            Effect::Release(pkid) => {
                let ticket = self.bridges.broker.record(vec![self.bridge.identifier_record(pkid, false)]);
                self.pending_acks.push_back((ticket, Packet::PubComp(PubComp::new(pkid, None))));
            }
            // From now on it misses no message of the other broker.
            Effect::Subscribed => self.bridge.connected(),
            Effect::Unsubscribed(reasons) => self.on_unsubscribed(&reasons),
            Effect::Acknowledge(packet) => self.pending_acks.push_back((None, packet)),
            Effect::Refused(reason) => self.bridge.message_lost(reason),
            Effect::Delivered => {
                self.bridge.counters.outgoing.fetch_add(1, Relaxed);
            }
            Effect::End(reason) => return Err(LinkError::Ended(reason)),
        }
        Ok(())
    }

    fn publish(&mut self, message: Message, ack: Option<Packet>, record: Option<u16>) {
        let origin = Origin::Bridge { client_id: self.bridge.client_id.clone() };
        let changes = record.map(|pkid| self.bridge.identifier_record(pkid, true)).into_iter().collect();
        // A message that exceeds the size limit is rejected again at every attempt.
        let may_wait = ack.is_some() && message.weight() <= self.bridges.max_packet_bytes as usize;
        let kept = may_wait.then(|| message.clone());
        let published = self.bridges.broker.publish_with(&origin, message, changes);
        match published.outcome {
            PublishOutcome::Rejected(reason) => {
                // A rejected message is not recorded. If the connection ends now, the other broker sends the message again, and
                // it must not count as a duplicate.
                if let Some(pkid) = record {
                    self.relay.unreleased.remove(&pkid);
                }
                if let (RejectReason::QuotaExceeded, Some(message)) = (reason, kept) {
                    let retry_at = Instant::now() + RETRY_INTERVAL;
                    self.stalled = Some(Stalled { message, ack, record, retry_at });
                    return;
                }
                self.bridge.message_lost(format!("this node refused a message: {reason:?}"));
            }
            PublishOutcome::Routed(_) | PublishOutcome::Consumed => {
                self.bridge.counters.incoming.fetch_add(1, Relaxed);
            }
        }
        self.pending_acks.extend(ack.map(|ack| (published.ticket, ack)));
    }

    /// Skips a message that is too large, and acknowledges it. If the bridge ended the connection instead, the other broker would
    /// send the message again and again. False if more input is needed.
    fn skip_too_large(&mut self, bytes: &mut BytesMut) -> Result<bool, LinkError> {
        loop {
            let skipped = self.bytes_to_skip.min(bytes.len());
            bytes.advance(skipped);
            self.bytes_to_skip -= skipped;
            if self.bytes_to_skip > 0 {
                return Ok(false);
            }
            match self.remote_codec.check_size(bytes) {
                SizeCheck::Accepted => return Ok(true),
                SizeCheck::Incomplete => return Ok(false),
                SizeCheck::TooLarge { bytes, topic, ack } => {
                    self.bytes_to_skip = bytes;
                    self.bridge
                        .message_lost(format!("a message on {topic:?} is too large (broker.max_packet)"));
                    self.pending_acks.extend(ack.map(|ack| (None, *ack)));
                }
            }
        }
    }

    fn on_unsubscribed(&mut self, reasons: &[UnsubAckReason]) {
        use UnsubAckReason::{NoSubscriptionExisted, Success};
        let requested = std::mem::take(&mut self.unsubscribing).into_iter().enumerate();
        let (ended, kept): (Vec<_>, Vec<_>) = requested.partition(|(index, _)| {
            reasons.get(*index).is_none_or(|reason| matches!(reason, Success | NoSubscriptionExisted))
        });
        for (index, filter) in kept {
            let reason = reasons[index];
            self.bridge
                .report_problem(format!("the subscription to {filter:?} could not be ended: {reason:?}"));
        }
        let ended: Vec<_> = ended.into_iter().map(|(_, filter)| filter).collect();
        let changes = self.bridge.remove_subscriptions(&ended);
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

    /// Queues the acknowledgements up to the first one that waits for the store.
    fn send_acks_without_ticket(&mut self) -> Result<(), LinkError> {
        while let Some((_, packet)) = self.pending_acks.pop_front_if(|(ticket, _)| ticket.is_none()) {
            self.remote_codec.encode(packet, &mut self.to_remote)?;
        }
        Ok(())
    }

    /// Queues the acknowledgements whose tickets the store has reached.
    fn send_acks_up_to(&mut self, stored: Ticket) -> Result<(), LinkError> {
        let reached = |ack: &mut (Option<Ticket>, Packet)| ack.0.is_none_or(|ticket| ticket <= stored);
        while let Some((_, packet)) = self.pending_acks.pop_front_if(reached) {
            self.remote_codec.encode(packet, &mut self.to_remote)?;
        }
        Ok(())
    }

    /// Sends the remaining bytes and DISCONNECT. Both brokers resend unacknowledged messages on the next connection.
    async fn disconnect<S: AsyncWrite + Unpin>(&mut self, remote: &mut S) -> Result<(), LinkError> {
        let packet = Disconnect::new(DisconnectReasonCode::NormalDisconnection);
        self.remote_codec.encode(Packet::Disconnect(packet), &mut self.to_remote)?;
        remote.write_all(&self.to_remote).await?;
        remote.flush().await?;
        Ok(remote.shutdown().await?)
    }
}
