//! The binary form does not change by accident: nodes of different versions speak it.
//!
//! The seed is printed; `PROPTEST_RNG_SEED=SEED` repeats a run.

mod toy;

use bytes::Bytes;
use edgefaas_cluster::wire::{
    BUCKETS, Buckets, Chunk, Deltas, Differences, Finished, INTERESTS, InterestEntry, Interests, KEY_IDS,
    Kind, MESSAGE_LIMIT_BYTES, Message, ObjectDelta, ObjectFields, Objects, RoundPlease, Summary, Wants,
    WireError,
};
use proptest::prelude::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn delta(id: u32, named: bool) -> ObjectDelta {
    let name = |name: &str| named.then(|| name.to_owned());
    let payload = Bytes::from_static(b"n4567890123456789x");
    ObjectDelta { id, app: name("miso"), object: name("counter"), copies: 0, payload, depth: 0 }
}

fn fields() -> ObjectFields {
    let (names, digests) = (vec!["n".into(), "m".into()], vec![1, 2]);
    ObjectFields { app: "a".into(), object: "o".into(), names, digests }
}

#[test]
fn each_message_has_these_bytes() {
    let interests = vec![InterestEntry { app: "miso".into(), pattern: "room-*".into() }];
    let payload = Bytes::from_static(b"piece");
    let chunk = Chunk {
        app: "a".into(),
        object: "o".into(),
        copies: 3,
        offset_bytes: 300,
        last: true,
        payload,
        depth: 0,
    };
    let objects =
        Objects { round: 7, from: vec![1], to: vec![9], hashes: vec![5], digests: vec![6], partial: true };
    for (kind, expected) in [
        (
            Kind::Interests(Interests { version: 2, interests }),
            "0a1208021 20e0a046d69736f1206726f6f6d2d2a".replace(' ', ""),
        ),
        (
            Kind::Deltas(Deltas { deltas: vec![delta(1, true)] }),
            "12270a25080112046d69736f1a07636f756e7465722a126e3435363738393031323334353637383978".into(),
        ),
        (
            Kind::Deltas(Deltas { deltas: vec![delta(1, false)] }),
            "12180a1608012a126e3435363738393031323334353637383978".into(),
        ),
        // A change from outside has no byte for its depth; an older version skips the field.
        (
            Kind::Deltas(Deltas { deltas: vec![ObjectDelta { depth: 9, ..delta(1, false) }] }),
            "121a0a1808012a126e34353637383930313233343536373839783009".into(),
        ),
        (
            Kind::Chunk(Chunk { depth: 9, ..chunk.clone() }),
            "1a160a0161120 16f180320ac022801320570696563653809".replace(' ', ""),
        ),
        (Kind::Chunk(chunk), "1a140a0161120 16f180320ac02280132057069656365".replace(' ', "")),
        (
            Kind::Summary(Summary { round: 7, root: 0x0102, interests_version: 3, ..Summary::default() }),
            "220d0807110201000000000000 1803".replace(' ', ""),
        ),
        (
            Kind::Buckets(Buckets { round: 7, ..Buckets::default() }),
            "2a020807".into(),
        ),
        (
            Kind::Objects(objects),
            "322c080712080100000000000000 1a080900000000000000 22080500000000000000 2a080600000000000000 3001"
                .replace(' ', ""),
        ),
        (
            Kind::Differences(Differences {
                round: 7,
                wanted: vec![5],
                objects: vec![fields()],
                last: true,
            }),
            "3a2e080712080500000000000000 1a1e 0a0161 12016f 1a016e 1a016d 2210 0100000000000000 \
             0200000000000000 2001"
                .replace(' ', ""),
        ),
        (
            Kind::Wants(Wants { round: 7, objects: vec![fields()], last: true }),
            "42240807121e 0a0161 12016f 1a016e 1a016d 2210 0100000000000000 0200000000000000 1801"
                .replace(' ', ""),
        ),
        (Kind::Finished(Finished { round: 7 }), "4a020807".into()),
        (Kind::RoundPlease(RoundPlease {}), "5200".into()),
    ] {
        let message = Message::from(kind);
        let frame = message.encode_frame();
        assert_eq!(hex(&frame), expected, "{message:?}");
        assert_eq!(Message::decode_frame(frame, MESSAGE_LIMIT_BYTES), Ok(message));
    }
}

#[test]
fn an_update_is_small() {
    let first = Message::from(Kind::Deltas(Deltas { deltas: vec![delta(1, true)] })).encode_frame();
    let further = Message::from(Kind::Deltas(Deltas { deltas: vec![delta(1, false)] })).encode_frame();
    assert!(first.len() <= 45, "{}", first.len());
    assert!(further.len() <= 30, "{}", further.len());
}

#[test]
fn what_newer_versions_add_is_skipped() {
    // A kind that does not exist: field 15, two bytes.
    let unknown = Message::decode_frame(Bytes::from_static(&[0x7a, 2, 8, 1]), MESSAGE_LIMIT_BYTES);
    assert_eq!(unknown, Ok(Message { kind: None }));
    // A field more in a known kind.
    let finished =
        Message::decode_frame(Bytes::from_static(&[0x4a, 4, 8, 7, 0x78, 9]), MESSAGE_LIMIT_BYTES);
    assert_eq!(finished, Ok(Kind::Finished(Finished { round: 7 }).into()));
}

#[test]
fn what_is_over_a_limit_is_a_typed_error() {
    let decode =
        |kind: Kind| Message::decode_frame(Message::from(kind).encode_frame(), MESSAGE_LIMIT_BYTES);
    let long = Bytes::from(vec![0; MESSAGE_LIMIT_BYTES + 1]);
    let error = Message::decode_frame(long, MESSAGE_LIMIT_BYTES).unwrap_err();
    assert_eq!(error.to_string(), "a message of 327681 bytes; at most 327680 are allowed");

    let entry = InterestEntry { app: "a".into(), pattern: "*".into() };
    let many = Interests { version: 1, interests: vec![entry; INTERESTS + 1] };
    let error = decode(Kind::Interests(many)).unwrap_err();
    assert_eq!(error.to_string(), "a message with 4097 of `interests`; at most 4096 are allowed");

    let named = Deltas { deltas: vec![ObjectDelta { object: Some("x".repeat(1025)), ..delta(1, true) }] };
    assert!(matches!(decode(Kind::Deltas(named)), Err(WireError::TooMany { what: "object", .. })));
    let numbered = Deltas { deltas: vec![delta(KEY_IDS + 1, false)] };
    assert!(matches!(decode(Kind::Deltas(numbered)), Err(WireError::TooMany { what: "id", .. })));
    let nameless = Deltas { deltas: vec![delta(0, false)] };
    assert!(matches!(decode(Kind::Deltas(nameless)), Err(WireError::Inconsistent { .. })));

    let buckets = Buckets {
        round: 1,
        digests: vec![0; BUCKETS],
        objects: vec![0; BUCKETS - 1],
        ..Buckets::default()
    };
    assert!(matches!(decode(Kind::Buckets(buckets)), Err(WireError::Inconsistent { .. })));
    for (from, to, hashes) in [
        (vec![5], vec![4], vec![]),
        (vec![1, 3], vec![3, 4], vec![]),
        (vec![1], vec![], vec![]),
        (vec![1], vec![2], vec![2, 1]),
    ] {
        let digests = vec![0; hashes.len()];
        let objects = Objects { round: 1, from, to, hashes, digests, partial: false };
        assert!(matches!(decode(Kind::Objects(objects)), Err(WireError::Inconsistent { .. })));
    }
}

proptest! {
    #![proptest_config(toy::seeded())]
    #[test]
    fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u8..16) {
        let length = bytes.len().min(127);
        let framed = [&[kind << 3 | 2, length as u8], &bytes[..length]].concat();
        let _ = Message::decode_frame(framed.into(), MESSAGE_LIMIT_BYTES);
        let _ = Message::decode_frame(bytes.into(), MESSAGE_LIMIT_BYTES);
    }
}
