//! On-disk format of an outgoing message: a message of a commit that has not been published.
//!
//! Its key is `o` and its number, 8 bytes in big-endian order, so that keys sort like numbers.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_broker::{Client, Message, Properties, QoS, Transport, Version};
use serde::{Deserialize, Serialize};

use crate::records::{Damage, prefixed};

/// The first byte of the keys.
pub const OUTGOING: u8 = b'o';

/// A client at the time of its request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRecord {
    client_id: String,
    username: Option<String>,
    peer: SocketAddr,
    v5: bool,
    transport: u8,
}

/// A message that has to be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outgoing {
    /// The name of the function or workflow that published it.
    pub source: String,
    /// Number of functions that called or triggered one another before.
    pub depth: u8,
    /// For answers: the client whose rules must allow the publish.
    pub requester: Option<ClientRecord>,
    topic: String,
    payload: Bytes,
    qos: u8,
    retain: bool,
    payload_is_utf8: bool,
    expiry_seconds: Option<u32>,
    content_type: Option<String>,
    response_topic: Option<String>,
    correlation_data: Option<Bytes>,
    user: Vec<(String, String)>,
}

impl From<&Client> for ClientRecord {
    fn from(client: &Client) -> Self {
        Self {
            client_id: client.client_id.to_string(),
            username: client.username.as_ref().map(ToString::to_string),
            peer: client.peer,
            v5: client.version == Version::V5,
            transport: match client.transport {
                Transport::Tcp => 0,
                Transport::Tls => 1,
                Transport::WebSocket => 2,
                Transport::SecureWebSocket => 3,
                Transport::Internal => 4,
            },
        }
    }
}

impl ClientRecord {
    /// The client.
    pub fn client(&self) -> Arc<Client> {
        Arc::new(Client {
            client_id: self.client_id.as_str().into(),
            username: self.username.as_deref().map(Into::into),
            peer: self.peer,
            version: if self.v5 { Version::V5 } else { Version::V311 },
            transport: match self.transport {
                0 => Transport::Tcp,
                1 => Transport::Tls,
                2 => Transport::WebSocket,
                4 => Transport::Internal,
                _ => Transport::SecureWebSocket,
            },
        })
    }
}

impl Outgoing {
    /// A message of `source`.
    pub fn new(source: &str, depth: u8, requester: Option<ClientRecord>, message: &Message) -> Self {
        let default = Properties::default();
        let properties = message.properties().unwrap_or(&default);
        Self {
            source: source.to_owned(),
            depth,
            requester,
            topic: message.topic().as_str().to_owned(),
            payload: message.payload_bytes(),
            qos: message.qos() as u8,
            retain: message.retain(),
            payload_is_utf8: properties.payload_is_utf8,
            expiry_seconds: properties.expiry_seconds,
            content_type: properties.content_type.as_ref().map(ToString::to_string),
            response_topic: properties.response_topic.as_ref().map(|topic| topic.as_str().to_owned()),
            correlation_data: properties.correlation_data.clone(),
            user: properties.user.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        }
    }

    /// The message.
    ///
    /// # Errors
    /// The topic, response topic or QoS is invalid.
    pub fn message(&self) -> Result<Message, Damage> {
        let topic = |name: &String| TopicName::new(name.as_str()).map_err(|_| Damage::Fields);
        let properties = Properties {
            payload_is_utf8: self.payload_is_utf8,
            expiry_seconds: self.expiry_seconds,
            content_type: self.content_type.as_deref().map(Into::into),
            response_topic: self.response_topic.as_ref().map(topic).transpose()?,
            correlation_data: self.correlation_data.clone(),
            user: self.user.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect(),
        };
        let qos = match self.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            _ => return Err(Damage::Fields),
        };
        Ok(Message::new(topic(&self.topic)?, self.payload.clone())
            .with_qos(qos)
            .with_retain(self.retain)
            .with_properties(properties))
    }
}

/// The key of an outgoing message.
pub fn outgoing_key(number: u64) -> Vec<u8> {
    prefixed(OUTGOING, &number.to_be_bytes())
}

/// The number in the key of an outgoing message.
pub fn parse_outgoing_key(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(&[OUTGOING])?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::records::{decode, encode};

    fn outgoing() -> Outgoing {
        let properties = Properties {
            payload_is_utf8: true,
            expiry_seconds: Some(60),
            content_type: Some("text/plain".into()),
            response_topic: Some(TopicName::new("r").unwrap()),
            correlation_data: Some(Bytes::from_static(b"c")),
            user: vec![("k".into(), "v".into())],
        };
        let message = Message::new(TopicName::new("out/1").unwrap(), "hello")
            .with_qos(QoS::ExactlyOnce)
            .with_retain(true)
            .with_properties(properties);
        Outgoing::new("f", 3, None, &message)
    }

    /// Format version 1 never expires: do not change the file.
    #[test]
    fn records_of_version_1_have_the_same_bytes() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/durable/outgoing.v1");
        assert_eq!(std::fs::read(path).unwrap(), encode(&outgoing()));
        let message = outgoing().message().unwrap();
        assert_eq!(Outgoing::new("f", 3, None, &message), outgoing());
        assert_eq!(parse_outgoing_key(&outgoing_key(9)), Some(9));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // With a valid checksum, so that the fields are decoded.
            let mut body = vec![1];
            body.extend_from_slice(&bytes);
            let checksum = crc32fast::hash(&body).to_le_bytes();
            body.extend_from_slice(&checksum);
            let _ = decode::<Outgoing>(&body).map(|outgoing| outgoing.message());
        }
    }
}
