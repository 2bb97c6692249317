//! The wire module by itself: no bytes make it panic, and what goes out can be read back.

use std::num::{NonZeroU16, NonZeroU32};

use bytes::{Bytes, BytesMut};
use edgefaas_broker::wire::{
    ConnAck, ConnectAckReason, DecodeError, Decoder, DisconnectReasonCode, EncodeError, Encoder, Packet,
    PublishHeader,
};
use edgefaas_broker::{ByteString, Message, Properties, QoS, TopicName, Version};
use proptest::prelude::*;

const LIMIT: usize = 64 * 1024;

/// Decodes everything there is, as a connection does.
fn decode_all(mut decoder: Decoder, bytes: &[u8]) -> (Vec<Packet>, Option<DecodeError>) {
    let mut source = BytesMut::from(bytes);
    let mut packets = Vec::new();
    loop {
        match decoder.decode(&mut source) {
            Ok(Some(packet)) => packets.push(packet),
            Ok(None) => return (packets, None),
            Err(error) => return (packets, Some(error)),
        }
    }
}

fn frame(first_byte: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![first_byte];
    let mut left = body.len();
    while left > 127 {
        frame.push((left % 128) as u8 | 0x80);
        left /= 128;
    }
    frame.push(left as u8);
    frame.extend(body);
    frame
}

fn versions() -> impl Strategy<Value = Version> {
    prop::sample::select(vec![Version::V311, Version::V5])
}

fn text() -> impl Strategy<Value = ByteString> {
    "[a-zé/ ]{0,20}".prop_map(ByteString::from)
}

fn properties() -> impl Strategy<Value = Properties> {
    (
        any::<bool>(),
        prop::option::of(prop_oneof![Just(0u32), any::<u32>()]),
        prop::option::of(text()),
        prop::option::of("[a-z]{1,10}".prop_map(|topic| TopicName::new(topic).expect("valid"))),
        prop::option::of(prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)),
        prop::collection::vec((text(), text()), 0..4),
    )
        .prop_map(
            |(payload_is_utf8, expiry_seconds, content_type, response_topic, correlation_data, user)| {
                Properties {
                    payload_is_utf8,
                    expiry_seconds,
                    content_type,
                    response_topic,
                    correlation_data,
                    user,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_bytes_make_the_decoder_panic(version in prop::option::of(versions()), bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let decoder = version.map_or_else(|| Decoder::new(LIMIT), |version| Decoder::with_version(version, LIMIT));
        decode_all(decoder, &bytes);
    }

    #[test]
    fn no_frames_make_the_decoder_panic(version in versions(), first_byte in any::<u8>(), body in prop::collection::vec(prop_oneof![Just(0u8), 0..40u8, any::<u8>()], 0..80)) {
        decode_all(Decoder::with_version(version, LIMIT), &frame(first_byte, &body));
    }

    #[test]
    fn a_connect_that_was_changed_does_not_make_the_decoder_panic(at in 0..60usize, to in any::<u8>()) {
        let mut body = b"\x00\x04MQTT\x05\xee\x00\x3c\x05\x11\x00\x00\x00\x0a\x00\x01c".to_vec();
        body.extend(b"\x05\x02\x00\x00\x00\x00\x00\x01w\x00\x01m\x00\x01u\x00\x01p");
        let mut bytes = frame(0x10, &body);
        let (packets, error) = decode_all(Decoder::new(LIMIT), &bytes);
        prop_assert!(error.is_none() && packets.len() == 1, "{:?}", error);
        let at = at % bytes.len();
        bytes[at] = to;
        decode_all(Decoder::new(LIMIT), &bytes);
    }

    #[test]
    fn a_publish_can_be_read_back(
        version in versions(),
        topic in "[a-zé]{1,10}(/[a-z]{0,5}){0,3}",
        payload in prop::collection::vec(any::<u8>(), 0..300),
        qos in prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]),
        retain in any::<bool>(),
        id in 1..=u16::MAX,
        properties in properties(),
    ) {
        let topic = TopicName::new(topic).expect("valid");
        let expiry_seconds = properties.expiry_seconds;
        let message = Message::new(topic.clone(), payload).with_qos(qos).with_retain(retain).with_properties(properties);
        let packet_id = (qos != QoS::AtMostOnce).then(|| NonZeroU16::new(id).expect("not 0"));
        let header = PublishHeader { qos, retain, packet_id, subscription_identifiers: &[], expiry_seconds, duplicate: false, alias: None };
        let mut out = BytesMut::from(&b"before"[..]);
        Encoder::new(version, None).publish(&mut out, &message, header).expect("encodes");
        let (packets, error) = decode_all(Decoder::with_version(version, LIMIT), &out[b"before".len()..]);
        prop_assert_eq!(error, None);
        let [Packet::Publish(publish)] = &packets[..] else { panic!("one PUBLISH, not {packets:?}") };
        prop_assert_eq!(publish.packet_id, packet_id);
        let expected = match version {
            Version::V5 => message,
            Version::V311 => message.with_properties(Properties::default()),
        };
        prop_assert_eq!(&publish.clone().into_message(topic), &expected);
    }
}

#[test]
fn what_is_too_large_is_taken_back() {
    let topic = TopicName::new("t").expect("valid");
    let message = Message::new(topic, vec![1; 100]);
    let header = PublishHeader {
        qos: QoS::AtMostOnce,
        retain: false,
        packet_id: None,
        subscription_identifiers: &[],
        expiry_seconds: None,
        duplicate: false,
        alias: None,
    };
    // 2 bytes of fixed header, 3 of topic, 1 of properties.
    for (limit, fits) in [(106, true), (105, false), (101, false), (3, false), (1, false)] {
        let mut out = BytesMut::from(&b"before"[..]);
        let encoded = Encoder::new(Version::V5, NonZeroU32::new(limit)).publish(&mut out, &message, header);
        assert_eq!(encoded.is_ok(), fits, "limit {limit}");
        assert_eq!(out.len(), if fits { 6 + 106 } else { 6 }, "limit {limit}");
    }
    let huge = "x".repeat(70_000);
    let properties = Properties { content_type: Some(ByteString::from(huge)), ..Properties::default() };
    let mut out = BytesMut::new();
    let encoded =
        Encoder::new(Version::V5, None).publish(&mut out, &message.with_properties(properties), header);
    assert!(matches!(encoded, Err(EncodeError::Invalid { .. })), "{encoded:?}");
    assert!(out.is_empty());
}

#[test]
fn a_reason_string_gives_way_to_the_limit_of_the_client() {
    let mut out = BytesMut::new();
    let mut encoder = Encoder::new(Version::V5, NonZeroU32::new(10));
    encoder.disconnect(&mut out, DisconnectReasonCode::MalformedPacket, Some("a long explanation"));
    assert_eq!(&out[..2], [0xe0, (out.len() - 2) as u8]);
    assert_eq!(out[2], 0x81);
    let ack = ConnAck {
        reason: ConnectAckReason::Success,
        assigned_client_id: Some("x".repeat(50).into()),
        receive_maximum: NonZeroU16::MAX,
        maximum_packet_bytes: 1,
        topic_alias_maximum: 0,
        session_present: false,
        session_expiry_seconds: None,
        server_keepalive_seconds: None,
        response_information: None,
        reason_string: None,
    };
    assert!(matches!(encoder.connack(&mut BytesMut::new(), &ack), Err(EncodeError::TooLarge { .. })));
}

#[test]
fn an_announced_size_over_the_limit_is_refused_before_its_bytes_come() {
    let mut source = BytesMut::from(&[0x30, 0xff, 0xff, 0xff, 0x7f][..]);
    let error = Decoder::with_version(Version::V5, LIMIT).decode(&mut source).expect_err("too large");
    assert_eq!(error, DecodeError::TooLarge { bytes: 268_435_460, limit: LIMIT });
    // Within the limit, memory grows with what comes.
    let mut source = BytesMut::from(&[0x30, 0xff, 0xff, 0xff, 0x7f][..]);
    assert_eq!(Decoder::with_version(Version::V5, usize::MAX).decode(&mut source), Ok(None));
    assert!(source.capacity() < 200_000, "{} bytes for 5", source.capacity());
}
