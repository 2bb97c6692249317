use std::net::SocketAddr;

use edgefaas_broker::{Client, Transport, Version};
use edgefaas_isolates::{HttpRequest, HttpResponse, MqttMessage, Trigger};
use proptest::prelude::*;

use super::*;
use crate::records::{Damage, decode, encode};

fn mqtt() -> Pending {
    Pending {
        id: 0x0198_0000_0000_0000_0000_0000_0000_0001,
        attempt: 3,
        due_unix_ms: 1_800_000_000_123,
        order_key: Some(7),
        keep: Some(Keep { key: Some([9; 16]), auth: None }),
        answer: Some(AnswerTo {
            topic: "replies/1".into(),
            correlation_data: Some(Bytes::from_static(b"\x00\xff")),
            requester: Some(ClientRecord::from(&Client {
                client_id: "c".into(),
                username: Some("u".into()),
                peer: SocketAddr::from(([127, 0, 0, 1], 1883)),
                version: Version::V5,
                transport: Transport::Tls,
            })),
        }),
        principal: Principal::Mqtt { client_id: "c".into() },
        trace_parent: None,
        depth: 2,
        event: Event {
            trigger: Trigger::Mqtt(MqttMessage {
                topic: "a/b".into(),
                qos: 1,
                user_properties: vec![("k".into(), "v".into())],
                ..MqttMessage::default()
            }),
            body: Bytes::from_static(b"payload"),
        },
    }
}

fn http() -> Pending {
    let request = HttpRequest {
        method: "POST".into(),
        path: "/x".into(),
        query: "q=1".into(),
        headers: vec![("accept".into(), "*/*".into())],
    };
    Pending {
        id: u128::MAX,
        attempt: 1,
        due_unix_ms: 0,
        order_key: None,
        keep: Some(Keep { key: None, auth: Some(2) }),
        answer: None,
        principal: Principal::Http,
        trace_parent: Some("00-1-2-01".into()),
        depth: 0,
        event: Event { trigger: Trigger::Http(request), body: Bytes::new() },
    }
}

fn known(result: Result<Reply, StoredProblem>) -> Known {
    let outcome = StoredOutcome { result, attempts: 2, timing_us: [1, 20, 300], fault: None };
    Known { function: "f".into(), auth: Some(1), state: KnownState::Done(outcome) }
}

fn known_on() -> Known {
    let outcome = StoredOutcome {
        result: Ok(Reply::Text("t".into())),
        attempts: 1,
        timing_us: [1, 2, 3],
        fault: None,
    };
    let ended = Ended { outcome, node: Some("hall".into()) };
    Known { function: "f".into(), auth: None, state: ended.into() }
}

fn failed() -> StoredProblem {
    let (title, detail) = ("Function failed".into(), "Error: no".into());
    StoredProblem { title, status: 500, detail, near: vec!["g".into()] }
}

fn dead() -> Dead {
    Dead { pending: mqtt(), attempts: 3, problem: failed() }
}

/// Format version 1 never expires: do not change these files, only add new ones.
#[test]
fn records_of_version_1_have_the_same_bytes() {
    let reply = HttpResponse {
        status: 201,
        headers: vec![("x".into(), "y".into())],
        body: Bytes::from_static(b"made"),
    };
    let records: [(&str, Vec<u8>); 9] = [
        ("pending-mqtt", encode(&mqtt())),
        ("pending-http", encode(&http())),
        (
            "known-pending",
            encode(&Known { function: "f".into(), auth: None, state: KnownState::Pending(42) }),
        ),
        ("known-reply", encode(&known(Ok(Reply::Http(reply))))),
        ("known-on", encode(&known_on())),
        ("known-failed", encode(&known(Err(failed())))),
        ("reserved", encode(&Reserved { id: 5, request: [1; 16] })),
        ("expiry", encode(&Expiry { bytes: 100, key: Some([2; 16]) })),
        ("dead", encode(&dead())),
    ];
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/durable");
    for (name, bytes) in records {
        let path = folder.join(format!("{name}.v1"));
        if std::env::var_os("EDGEFAAS_WRITE_GOLDEN").is_some() && !path.exists() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}");
    }
}

#[test]
fn decoded_records_equal_the_encoded_ones() {
    assert_eq!(decode::<Pending>(&encode(&mqtt())), Ok(mqtt()));
    assert_eq!(decode::<Pending>(&encode(&http())), Ok(http()));
    let problem = known(Err(failed()));
    assert_eq!(decode::<Known>(&encode(&problem)), Ok(problem));
    assert_eq!(decode::<Known>(&encode(&known_on())), Ok(known_on()));
    assert_eq!(decode::<Dead>(&encode(&dead())), Ok(dead()));
    assert_eq!(pending_id(&encode(&mqtt())), Some(mqtt().id));
}

#[test]
fn keys_sort_like_their_numbers_and_can_be_parsed() {
    let numbers = [1, 255, 256, u64::MAX];
    assert!(numbers.map(|n| pending_key("f", n)).is_sorted());
    assert!(numbers.map(|n| expiry_key(n, Ulid::nil())).is_sorted());
    assert_eq!(parse_pending_key(&pending_key("f-1", 7)), Some(("f-1", 7)));
    let plain = ExpiryKey { finished_unix_ms: 7, id: Ulid(8), external: None };
    assert_eq!(parse_expiry_key(&expiry_key(7, Ulid(8))), Some(plain));
    for kind in [EXPIRY, LISTED_EXPIRY] {
        let key = external_expiry_key(kind, 7, Ulid(8), "greet");
        assert_eq!(key[0], kind);
        let named = ExpiryKey { finished_unix_ms: 7, id: Ulid(8), external: Some("greet") };
        assert_eq!(parse_expiry_key(&key), Some(named));
    }
    assert_eq!(parse_expiry_key(&known_key(Ulid(8))), None);
    let key = |ended_unix_ms| DeadKey { ended_unix_ms, id: Ulid(8) };
    assert!(numbers.map(|n| dead_key(key(n), "f")).is_sorted());
    assert_eq!(parse_dead_key(&dead_key(key(7), "f-1")), Some((key(7), "f-1")));
    assert_eq!(parse_dead_key(&dead_key(key(7), "")), None);
}

proptest! {
    #[test]
    fn damage_is_detected(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>()) {
        let good = encode(&mqtt());
        let mut bytes = good.clone();
        bytes[at.index(good.len())] ^= 1 << bit;
        prop_assert!(decode::<Pending>(&bytes).is_err());
        prop_assert_eq!(decode::<Pending>(&good[..cut.index(good.len())]), Err(Damage::Checksum));
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        // With a valid checksum, so that the fields are decoded.
        let mut body = vec![1];
        body.extend_from_slice(&bytes);
        let checksum = crc32fast::hash(&body).to_le_bytes();
        body.extend_from_slice(&checksum);
        let _ = decode::<Pending>(&body);
        let _ = decode::<Known>(&body);
        let _ = decode::<Dead>(&body);
        let _ = (parse_pending_key(&bytes), parse_dead_key(&bytes), pending_id(&bytes));
    }
}
