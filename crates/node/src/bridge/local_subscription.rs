//! Subscriptions of the program that runs a node, over an in-memory connection to its broker. Access rules do not apply.

use bytes::{Bytes, BytesMut};
use edgefaas_broker::Broker;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    Connect, ConnectProperties, Filter, Packet, PubAck, PubComp, PubRec, Publish, RetainForwardRule,
    Subscribe,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_util::task::AbortOnDropHandle;

use super::codec::{Codec, CodecError};
use super::config::BridgeVersion;
use super::link::local_end;

/// Messages of QoS 1 and 2 that the broker sends before one is acknowledged.
const RECEIVE_MAXIMUM: u16 = 1000;
/// Maximum size of a packet, that of MQTT itself.
const MAX_PACKET_BYTES: u32 = 268_435_460;

/// A subscription; a drop ends it.
pub struct LocalSubscription {
    stream: DuplexStream,
    codec: Codec,
    received: BytesMut,
    _serving: AbortOnDropHandle<()>,
}

/// Options of a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubscriptionOptions {
    /// Quality of service of its messages at most, from 0 to 2.
    pub qos: u8,
    /// Retained messages come first.
    pub retained: bool,
}

/// A message.
#[derive(Debug, Clone)]
pub struct Received {
    /// Its topic.
    pub topic: String,
    /// Its payload.
    pub payload: Bytes,
    /// Its quality of service, from 0 to 2.
    pub qos: u8,
    /// It was published as a retained message.
    pub retain: bool,
    /// Its content type.
    pub content_type: Option<String>,
    /// Its user properties, in order.
    pub user_properties: Vec<(String, String)>,
}

/// The broker did not accept a subscription, or ended it.
#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    /// A packet is invalid.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The connection failed.
    #[error("the connection to the node's own broker failed: {0}")]
    Io(#[from] std::io::Error),
    /// The broker closed the connection.
    #[error("the node's own broker closed the connection")]
    Closed,
}

impl LocalSubscription {
    /// Subscribes to `filters`; the subscription holds when this returns. The client identifier is for this subscription alone.
    ///
    /// # Errors
    /// The broker refuses the connection.
    pub async fn open(
        broker: &Broker,
        client_id: &str,
        filters: &[&str],
    ) -> Result<Self, SubscriptionError> {
        let options = SubscriptionOptions { qos: 2, retained: true };
        Self::open_with(broker, client_id, filters, options).await
    }

    /// Subscribes to `filters` with options.
    ///
    /// # Errors
    /// The broker refuses the connection.
    pub async fn open_with(
        broker: &Broker,
        client_id: &str,
        filters: &[&str],
        options: SubscriptionOptions,
    ) -> Result<Self, SubscriptionError> {
        let (stream, serving) = local_end(broker);
        let codec = Codec { version: BridgeVersion::V5, max_packet_bytes: MAX_PACKET_BYTES };
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let mut this = Self { stream, codec, received: BytesMut::new(), _serving: serving };
        let mut properties = ConnectProperties::new();
        properties.receive_maximum = Some(RECEIVE_MAXIMUM);
        let client_id = client_id.to_owned();
        let connect = Connect { keep_alive: 0, client_id, clean_start: true, properties: Some(properties) };
        this.send(Packet::Connect(connect, None, None)).await?;
        let filters = filters.iter().map(|filter| {
            let qos = match options.qos {
                0 => QoS::AtMostOnce,
                1 => QoS::AtLeastOnce,
                _ => QoS::ExactlyOnce,
            };
            let mut filter = Filter::new(*filter, qos);
            filter.preserve_retain = true;
            filter.retain_forward_rule = match options.retained {
                true => RetainForwardRule::OnEverySubscribe,
                false => RetainForwardRule::Never,
            };
            filter
        });
        let subscribe = Subscribe { pkid: 1, filters: filters.collect(), properties: None };
        this.send(Packet::Subscribe(subscribe)).await?;
        while !matches!(this.packet().await?, Packet::SubAck(_)) {}
        Ok(this)
    }

    /// The next message. Cancel-safe between messages only.
    ///
    /// # Errors
    /// The broker ended the connection.
    pub async fn next(&mut self) -> Result<Received, SubscriptionError> {
        loop {
            match self.packet().await? {
                Packet::Publish(publish) => {
                    let Publish { topic, payload, qos, retain, pkid, properties, .. } = publish;
                    match qos {
                        QoS::AtMostOnce => {}
                        QoS::AtLeastOnce => self.send(Packet::PubAck(PubAck::new(pkid, None))).await?,
                        QoS::ExactlyOnce => self.send(Packet::PubRec(PubRec::new(pkid, None))).await?,
                    }
                    let topic = String::from_utf8_lossy(&topic).into_owned();
                    let properties = properties.unwrap_or_default();
                    return Ok(Received {
                        topic,
                        payload,
                        qos: qos as u8,
                        retain,
                        content_type: properties.content_type,
                        user_properties: properties.user_properties,
                    });
                }
                Packet::PubRel(release) => {
                    self.send(Packet::PubComp(PubComp::new(release.pkid, None))).await?;
                }
                _ => {}
            }
        }
    }

    async fn send(&mut self, packet: Packet) -> Result<(), SubscriptionError> {
        let mut out = BytesMut::new();
        self.codec.encode(packet, &mut out)?;
        Ok(self.stream.write_all(&out).await?)
    }

    async fn packet(&mut self) -> Result<Packet, SubscriptionError> {
        loop {
            if let Some(packet) = self.codec.decode(&mut self.received)? {
                return Ok(packet);
            }
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(SubscriptionError::Closed);
            }
        }
    }
}
