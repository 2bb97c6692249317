//! Encoding and decoding of an MQTT client's packets, by rumqttc's codecs. Packets of MQTT 3.1.1 are converted from and to packets
//! of MQTT 5, so the rest of the bridge handles one packet type.

use bytes::BytesMut;
use rumqttc::mqttbytes as v4;
use rumqttc::v5::mqttbytes as v5;
use rumqttc::v5::mqttbytes::v5::{
    ConnAck, ConnectReturnCode, Packet, PingResp, PubAck, PubComp, PubRec, PubRel, Publish, SubAck,
    SubscribeReasonCode, UnsubAck,
};

use super::config::BridgeVersion;

/// Bridge flag in the protocol level of CONNECT (mosquitto and others): the broker does not send a bridge its own messages back.
const BRIDGE_FLAG: u8 = 0x80;

/// Codec of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Codec {
    /// Protocol version of the connection.
    pub version: BridgeVersion,
    /// Maximum size of a received packet.
    pub max_packet_bytes: u32,
}

/// Bytes could not be decoded, or a packet could not be encoded.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(String);

/// Result of the size check of the packet at the start of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum SizeCheck {
    /// Not a PUBLISH that is too large, or its length is not received completely.
    Accepted,
    /// A PUBLISH that is too large; its topic and packet identifier are not received completely.
    Incomplete,
    /// A PUBLISH that is too large.
    TooLarge {
        /// Size of the whole packet.
        bytes: usize,
        /// Its topic.
        topic: String,
        /// Its acknowledgement, for QoS 1 and 2.
        ack: Option<Box<Packet>>,
    },
}

impl Codec {
    /// Checks whether the packet at the start of `bytes` is a PUBLISH that is too large for [`decode`](Self::decode). With MQTT
    /// 3.1.1 the bridge cannot tell the other broker its maximum packet size.
    pub fn check_size(&self, bytes: &[u8]) -> SizeCheck {
        let Some((first, rest)) = bytes.split_first().filter(|(first, _)| **first >> 4 == 3) else {
            return SizeCheck::Accepted;
        };
        let mut remaining = 0;
        let mut header_len = 1;
        for (index, byte) in rest.iter().take(4).enumerate() {
            remaining |= usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                header_len += index + 1;
                break;
            }
        }
        if header_len == 1 || remaining <= self.max_packet_bytes as usize {
            return SizeCheck::Accepted;
        }
        let number = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let parsed = || {
            let end = header_len + 2 + usize::from(number(header_len)?);
            Some((bytes.get(header_len + 2..end)?, number(end)?))
        };
        let Some((topic, pkid)) = parsed() else { return SizeCheck::Incomplete };
        let ack = match first >> 1 & 3 {
            0 => None,
            1 => Some(Packet::PubAck(PubAck::new(pkid, None))),
            _ => Some(Packet::PubRec(PubRec::new(pkid, None))),
        };
        let topic = String::from_utf8_lossy(topic).into_owned();
        SizeCheck::TooLarge { bytes: header_len + remaining, topic, ack: ack.map(Box::new) }
    }

    /// Decodes and removes the packet at the start of `bytes`; `None` if it is incomplete.
    pub fn decode(&self, bytes: &mut BytesMut) -> Result<Option<Packet>, CodecError> {
        match self.version {
            BridgeVersion::V5 => match Packet::read(bytes, Some(self.max_packet_bytes)) {
                Ok(packet) => Ok(Some(packet)),
                Err(v5::Error::InsufficientBytes(_)) => Ok(None),
                Err(error) => Err(CodecError(error.to_string())),
            },
            BridgeVersion::V311 => match v4::v4::Packet::read(bytes, self.max_packet_bytes as usize) {
                Ok(packet) => from_v311(packet).map(Some),
                Err(v4::Error::InsufficientBytes(_)) => Ok(None),
                Err(error) => Err(CodecError(format!("{error:?}"))),
            },
        }
    }

    /// Appends an encoded packet.
    pub fn encode(&self, packet: Packet, out: &mut BytesMut) -> Result<(), CodecError> {
        // The codecs write the flags of a CONNECT at an offset from the start of the buffer.
        if matches!(packet, Packet::Connect(..)) && !out.is_empty() {
            let mut own = BytesMut::new();
            self.encode(packet, &mut own)?;
            out.extend_from_slice(&own);
            return Ok(());
        }
        match self.version {
            BridgeVersion::V5 => {
                packet.write(out, None).map_err(|error| CodecError(error.to_string()))?;
            }
            BridgeVersion::V311 => {
                to_v311(packet)?
                    .write(out, usize::MAX)
                    .map_err(|error| CodecError(format!("{error:?}")))?;
            }
        }
        Ok(())
    }

    /// Appends a CONNECT. With `as_bridge` and MQTT 3.1.1 it carries the bridge flag, which some brokers do not
    /// support.
    pub fn encode_connect(
        &self,
        connect: Packet,
        as_bridge: bool,
        out: &mut BytesMut,
    ) -> Result<(), CodecError> {
        let start = out.len();
        self.encode(connect, out)?;
        if as_bridge && self.version == BridgeVersion::V311 {
            // The protocol level follows the fixed header and the protocol name with its length, 6 bytes.
            let header_len = out[start + 1..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 2;
            out[start + header_len + 6] |= BRIDGE_FLAG;
        }
        Ok(())
    }
}

fn from_v311(packet: v4::v4::Packet) -> Result<Packet, CodecError> {
    use v4::v4::Packet as Old;
    Ok(match packet {
        Old::ConnAck(ack) => Packet::ConnAck(ConnAck {
            session_present: ack.session_present,
            code: match ack.code {
                v4::v4::ConnectReturnCode::Success => ConnectReturnCode::Success,
                v4::v4::ConnectReturnCode::RefusedProtocolVersion => {
                    ConnectReturnCode::UnsupportedProtocolVersion
                }
                v4::v4::ConnectReturnCode::BadClientId => ConnectReturnCode::ClientIdentifierNotValid,
                v4::v4::ConnectReturnCode::ServiceUnavailable => ConnectReturnCode::ServerUnavailable,
                v4::v4::ConnectReturnCode::BadUserNamePassword => ConnectReturnCode::BadUserNamePassword,
                v4::v4::ConnectReturnCode::NotAuthorized => ConnectReturnCode::NotAuthorized,
            },
            properties: None,
        }),
        Old::Publish(publish) => Packet::Publish(Publish {
            dup: publish.dup,
            qos: qos_from_v311(publish.qos),
            retain: publish.retain,
            topic: publish.topic.into(),
            pkid: publish.pkid,
            payload: publish.payload,
            properties: None,
        }),
        Old::PubAck(ack) => Packet::PubAck(PubAck::new(ack.pkid, None)),
        Old::PubRec(ack) => Packet::PubRec(PubRec::new(ack.pkid, None)),
        Old::PubRel(ack) => Packet::PubRel(PubRel::new(ack.pkid, None)),
        Old::PubComp(ack) => Packet::PubComp(PubComp::new(ack.pkid, None)),
        Old::SubAck(ack) => Packet::SubAck(SubAck {
            pkid: ack.pkid,
            return_codes: ack
                .return_codes
                .into_iter()
                .map(|code| match code {
                    v4::v4::SubscribeReasonCode::Success(qos) => {
                        SubscribeReasonCode::Success(qos_from_v311(qos))
                    }
                    v4::v4::SubscribeReasonCode::Failure => SubscribeReasonCode::Failure,
                })
                .collect(),
            properties: None,
        }),
        // UNSUBACK of MQTT 3.1.1 has no reason codes: all filters are unsubscribed.
        Old::UnsubAck(ack) => {
            Packet::UnsubAck(UnsubAck { pkid: ack.pkid, reasons: Vec::new(), properties: None })
        }
        Old::PingResp => Packet::PingResp(PingResp),
        other => return Err(CodecError(format!("unexpected packet from a broker: {other:?}"))),
    })
}

fn to_v311(packet: Packet) -> Result<v4::v4::Packet, CodecError> {
    use v4::v4::Packet as Old;
    Ok(match packet {
        Packet::Connect(connect, _, login) => Old::Connect(v4::v4::Connect {
            protocol: v4::Protocol::V4,
            keep_alive: connect.keep_alive,
            client_id: connect.client_id,
            clean_session: connect.clean_start,
            last_will: None,
            login: login.map(|login| v4::v4::Login::new(login.username, login.password)),
        }),
        Packet::Publish(publish) => {
            let topic = String::from_utf8(publish.topic.to_vec())
                .map_err(|_| CodecError("the topic is not UTF-8".into()))?;
            Old::Publish(v4::v4::Publish {
                dup: publish.dup,
                qos: qos_to_v311(publish.qos),
                retain: publish.retain,
                topic,
                pkid: publish.pkid,
                payload: publish.payload,
            })
        }
        Packet::PubAck(ack) => Old::PubAck(v4::v4::PubAck::new(ack.pkid)),
        Packet::PubRec(ack) => Old::PubRec(v4::v4::PubRec::new(ack.pkid)),
        Packet::PubRel(ack) => Old::PubRel(v4::v4::PubRel::new(ack.pkid)),
        Packet::PubComp(ack) => Old::PubComp(v4::v4::PubComp::new(ack.pkid)),
        Packet::Subscribe(subscribe) => Old::Subscribe(v4::v4::Subscribe {
            pkid: subscribe.pkid,
            filters: subscribe
                .filters
                .into_iter()
                .map(|filter| v4::v4::SubscribeFilter::new(filter.path, qos_to_v311(filter.qos)))
                .collect(),
        }),
        Packet::Unsubscribe(unsubscribe) => {
            Old::Unsubscribe(v4::v4::Unsubscribe { pkid: unsubscribe.pkid, topics: unsubscribe.filters })
        }
        Packet::PingReq(_) => Old::PingReq,
        Packet::Disconnect(_) => Old::Disconnect,
        other => return Err(CodecError(format!("MQTT 3.1.1 has no such packet: {other:?}"))),
    })
}

fn qos_from_v311(qos: v4::QoS) -> v5::QoS {
    match qos {
        v4::QoS::AtMostOnce => v5::QoS::AtMostOnce,
        v4::QoS::AtLeastOnce => v5::QoS::AtLeastOnce,
        v4::QoS::ExactlyOnce => v5::QoS::ExactlyOnce,
    }
}

fn qos_to_v311(qos: v5::QoS) -> v4::QoS {
    match qos {
        v5::QoS::AtMostOnce => v4::QoS::AtMostOnce,
        v5::QoS::AtLeastOnce => v4::QoS::AtLeastOnce,
        v5::QoS::ExactlyOnce => v4::QoS::ExactlyOnce,
    }
}

#[cfg(test)]
mod tests {
    use rumqttc::v5::mqttbytes::v5::{Connect, Login};

    use super::*;

    #[test]
    fn a_publish_that_is_too_large_is_recognised_by_its_first_bytes() {
        let codec = Codec { version: BridgeVersion::V311, max_packet_bytes: 1000 };
        for (first, ack) in [
            (0x30, None),
            (0x32, Some(Packet::PubAck(PubAck::new(7, None)))),
            (0x3d, Some(Packet::PubRec(PubRec::new(7, None)))),
        ] {
            // A remaining length of 2,000 bytes.
            let packet = [first, 0xd0, 0x0f, 0, 3, b'a', b'/', b'b', 0, 7];
            for known in 0..3 {
                assert_eq!(codec.check_size(&packet[..known]), SizeCheck::Accepted);
            }
            for known in 3..packet.len() {
                assert_eq!(codec.check_size(&packet[..known]), SizeCheck::Incomplete, "{known}");
            }
            let ack = ack.map(Box::new);
            assert_eq!(
                codec.check_size(&packet),
                SizeCheck::TooLarge { bytes: 2003, topic: "a/b".into(), ack }
            );
        }
        assert_eq!(codec.check_size(&[0x32, 0x7f, 0, 3, b'a', b'/', b'b', 0, 7]), SizeCheck::Accepted);
        assert_eq!(
            codec.check_size(&[0x92, 0xd0, 0x0f, 0, 3, b'a', b'/', b'b', 0, 7]),
            SizeCheck::Accepted
        );
    }

    #[test]
    fn connect_of_mqtt_3_1_1_carries_the_bridge_flag_in_the_protocol_level() {
        for (client_id, header) in [("short".to_owned(), 2), ("long".repeat(100), 3)] {
            let codec = Codec { version: BridgeVersion::V311, max_packet_bytes: 1000 };
            let connect = Connect { keep_alive: 5, client_id, clean_start: false, properties: None };
            let login = Login { username: "u".into(), password: "p".into() };
            let mut out = BytesMut::from(&b"before"[..]);
            codec.encode_connect(Packet::Connect(connect, None, Some(login)), true, &mut out).unwrap();
            assert_eq!(&out[6 + header..6 + header + 7], b"\0\x04MQTT\x84");
        }
    }
}
