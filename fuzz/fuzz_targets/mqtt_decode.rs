//! Any bytes, decoded as a connection does: in pieces, each version. What is decoded is encoded again.

#![no_main]

use std::num::NonZeroU16;

use bytes::BytesMut;
use edgefaas_broker::wire::{Decoder, Encoder, Packet, PublishHeader, TopicAlias};
use edgefaas_broker::{QoS, TopicName, Version};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u8, Vec<u8>)| {
    let (start, piece, bytes) = input;
    let (mut decoder, version) = match start % 3 {
        0 => (Decoder::new(1 << 16), Version::V5),
        1 => (Decoder::with_version(Version::V311, 1 << 16), Version::V311),
        _ => (Decoder::with_version(Version::V5, 1 << 16), Version::V5),
    };
    let mut encoder = Encoder::new(version, None);
    let mut source = BytesMut::new();
    for piece in bytes.chunks(usize::from(piece).max(1)) {
        source.extend_from_slice(piece);
        loop {
            match decoder.decode(&mut source) {
                Ok(Some(Packet::Publish(publish))) => {
                    let Ok(topic) = TopicName::new(publish.topic.clone()) else { continue };
                    let message = publish.into_message(topic);
                    let header = PublishHeader {
                        qos: message.qos(),
                        retain: message.retain(),
                        packet_id: (message.qos() != QoS::AtMostOnce).then_some(NonZeroU16::MIN),
                        subscription_identifiers: &[],
                        expiry_seconds: message
                            .properties()
                            .and_then(|properties| properties.expiry_seconds),
                        duplicate: message.qos() != QoS::AtMostOnce && start & 64 != 0,
                        alias: (version == Version::V5 && start & 128 != 0)
                            .then_some(TopicAlias { number: NonZeroU16::MIN, known: start & 32 != 0 }),
                    };
                    let mut out = BytesMut::new();
                    encoder.publish(&mut out, &message, header).expect("what came in goes out");
                    let again = Decoder::with_version(version, usize::MAX).decode(&mut out);
                    assert!(matches!(again, Ok(Some(Packet::Publish(_)))), "{again:?}");
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
