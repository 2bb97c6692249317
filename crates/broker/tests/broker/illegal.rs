//! Packets that are not allowed end their connection, with a reason in MQTT 5, and nothing else; packets that are
//! allowed, if strange, do not.

use crate::raw::{Raw, connect, packet, text};
use crate::support::Server;

/// Bytes from hexadecimal digits.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte =
        |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ascii"), 16).expect("hex");
    digits.chunks(2).map(byte).collect()
}

/// First packets: what they are, their bytes, and the CONNACK reason, if any.
fn bad_connects() -> Vec<(&'static str, Vec<u8>, Option<u8>)> {
    let level_6 = connect(6, 2, &[], "c", &[]);
    vec![
        ("receive maximum 0", connect(5, 2, &hex("21 0000"), "c", &[]), Some(0x82)),
        ("maximum packet size 0", connect(5, 2, &hex("27 00000000"), "c", &[]), Some(0x82)),
        ("a property twice", connect(5, 2, &hex("21 0005 21 0005"), "c", &[]), Some(0x82)),
        ("an unknown property", connect(5, 2, &hex("7e 00"), "c", &[]), Some(0x81)),
        ("reserved flag, 3.1.1", connect(4, 3, &[], "c", &[]), None),
        ("reserved flag, 5", connect(5, 3, &[], "c", &[]), Some(0x81)),
        ("will QoS 3, 3.1.1", connect(4, 0x1e, &[], "c", &[text("w"), text("m")].concat()), None),
        (
            "will QoS 3, 5",
            connect(5, 0x1e, &[], "c", &[vec![0], text("w"), text("m")].concat()),
            Some(0x81),
        ),
        ("will QoS without will, 5", connect(5, 0x0a, &[], "c", &[]), Some(0x81)),
        (
            "will with a wildcard",
            connect(5, 6, &[], "c", &[vec![0], text("w/#"), text("m")].concat()),
            Some(0x90),
        ),
        ("level 6", level_6, Some(0x84)),
        ("MQTT 3.1", packet(0x10, &[&text("MQIsdp"), &[3, 2, 0, 60], &text("c")]), Some(1)),
        ("another protocol", packet(0x10, &[&text("AMQP"), &[4, 2, 0, 60], &text("c")]), None),
        ("trailing bytes, 3.1.1", connect(4, 2, &[], "c", &[1, 2]), None),
        ("trailing bytes, 5", connect(5, 2, &[], "c", &[1, 2]), Some(0x81)),
        ("password without user name, 3.1.1", connect(4, 0x42, &[], "c", &text("pw")), None),
        ("empty identifier without clean session", connect(4, 0, &[], "", &[]), Some(2)),
        ("null in the identifier", connect(5, 2, &[], "a\0b", &[]), Some(0x81)),
        ("an authentication method", connect(5, 2, &hex("15 0001 61"), "c", &[]), Some(0x8c)),
        ("authentication data without method", connect(5, 2, &hex("16 0001 61"), "c", &[]), Some(0x82)),
        (
            "over the packet size",
            packet(0x10, &[&text("MQTT"), &[5, 2, 0, 60], &[0; 2_000_000]]),
            Some(0x95),
        ),
        ("PUBLISH first", packet(0x30, &[&text("a"), b"x"]), None),
        ("PINGREQ first", hex("c0 00"), None),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec(), None),
        ("TLS", hex("16 03 01 02 00 01 00 01 fc"), None),
    ]
}

/// Packets after CONNECT: what they are, their level, their bytes, and the DISCONNECT reason in MQTT 5.
fn bad_packets() -> Vec<(&'static str, u8, Vec<u8>, u8)> {
    let v5: &[u8] = &[0];
    let a = &text("a")[..];
    vec![
        ("a second CONNECT", 5, connect(5, 2, &[], "c", &[]), 0x82),
        ("a second CONNECT, 3.1.1", 4, connect(4, 2, &[], "c", &[]), 0x82),
        ("AUTH", 5, hex("f0 00"), 0x82),
        ("AUTH, 3.1.1", 4, hex("f0 00"), 0x81),
        ("PUBLISH QoS 1 id 0", 5, packet(0x32, &[a, &[0, 0], v5]), 0x81),
        ("PUBLISH QoS 1 id 0, 3.1.1", 4, packet(0x32, &[a, &[0, 0]]), 0x81),
        ("PUBLISH QoS 3", 5, packet(0x36, &[a, &[0, 1], v5]), 0x81),
        ("PUBLISH wildcard", 5, packet(0x30, &[&text("a/#"), v5]), 0x90),
        ("PUBLISH wildcard, 3.1.1", 4, packet(0x30, &[&text("a/+")]), 0x90),
        ("PUBLISH empty topic, 3.1.1", 4, packet(0x30, &[&text("")]), 0x90),
        ("PUBLISH empty topic, no alias", 5, packet(0x30, &[&text(""), v5]), 0x82),
        ("PUBLISH topic not UTF-8", 5, packet(0x30, &[&text([0xff, 0xc0]), v5]), 0x81),
        ("PUBLISH topic with null", 5, packet(0x30, &[&text("a\0b"), v5]), 0x81),
        ("PUBLISH 300 levels", 5, packet(0x30, &[&text("/".repeat(299)), v5]), 0x90),
        ("PUBLISH a property twice", 5, packet(0x30, &[a, &hex("0a 0200000009 0200000008")]), 0x82),
        ("PUBLISH properties too long", 5, packet(0x30, &[a, &hex("7f 0101")]), 0x81),
        ("PUBLISH no properties", 5, packet(0x30, &[a]), 0x81),
        ("PUBLISH subscription id", 5, packet(0x30, &[a, &hex("02 0b05"), b"x"]), 0x82),
        ("PUBLISH alias 0", 5, packet(0x30, &[a, &hex("03 230000"), b"x"]), 0x94),
        ("PUBLISH alias over the maximum", 5, packet(0x30, &[a, &hex("03 230063"), b"x"]), 0x94),
        ("PUBLISH unknown alias", 5, packet(0x30, &[&text(""), &hex("03 230003"), b"x"]), 0x82),
        ("PUBLISH response topic wildcard", 5, packet(0x30, &[a, &hex("05 08 0002 612b"), b"x"]), 0x82),
        ("PUBLISH DUP QoS 0", 4, packet(0x38, &[a]), 0x81),
        ("PUBLISH DUP QoS 0, 5", 5, packet(0x38, &[a, v5]), 0x81),
        ("PUBLISH over the limit", 5, packet(0x30, &[a, v5, &[1; 1_100_000]]), 0x95),
        ("PUBLISH over the limit, 3.1.1", 4, packet(0x30, &[a, &[1; 1_100_000]]), 0x95),
        ("length of 5 bytes", 5, hex("30 ff ff ff ff 01"), 0x81),
        ("SUBSCRIBE flags 0", 5, packet(0x80, &[&[0, 1], v5, a, &[1]]), 0x81),
        ("SUBSCRIBE id 0", 5, packet(0x82, &[&[0, 0], v5, a, &[1]]), 0x81),
        ("SUBSCRIBE reserved bits", 5, packet(0x82, &[&[0, 1], v5, a, &[0xc1]]), 0x81),
        ("SUBSCRIBE retain handling 3", 5, packet(0x82, &[&[0, 1], v5, a, &[0x31]]), 0x82),
        ("SUBSCRIBE QoS 3", 5, packet(0x82, &[&[0, 1], v5, a, &[3]]), 0x82),
        ("SUBSCRIBE subscription id 0", 5, packet(0x82, &[&[0, 1], &hex("02 0b00"), a, &[1]]), 0x82),
        ("SUBSCRIBE a/#/b", 5, packet(0x82, &[&[0, 1], v5, &text("a/#/b"), &[1]]), 0x8f),
        ("SUBSCRIBE a+", 4, packet(0x82, &[&[0, 1], &text("a+"), &[1]]), 0x8f),
        ("SUBSCRIBE nothing", 5, packet(0x82, &[&[0, 1], v5]), 0x82),
        ("SUBSCRIBE nothing, 3.1.1", 4, packet(0x82, &[&[0, 1]]), 0x82),
        ("SUBSCRIBE no-local bit, 3.1.1", 4, packet(0x82, &[&[0, 1], a, &[5]]), 0x81),
        ("UNSUBSCRIBE nothing", 5, packet(0xa2, &[&[0, 1], v5]), 0x82),
        ("UNSUBSCRIBE flags 0", 4, packet(0xa0, &[&[0, 1], a]), 0x81),
        ("PUBREL flags 0", 5, hex("60 02 0001"), 0x81),
        ("PUBACK id 0", 5, hex("40 02 0000"), 0x81),
        ("PUBACK trailing bytes, 3.1.1", 4, hex("40 04 0001 0000"), 0x81),
        ("PUBACK unknown reason", 5, hex("40 03 0001 7f"), 0x81),
        ("PINGREQ with a body", 4, hex("c0 01 00"), 0x81),
        ("DISCONNECT with a body, 3.1.1", 4, hex("e0 01 00"), 0x81),
        ("DISCONNECT session expiry after none", 5, hex("e0 07 00 05 11 0000000a"), 0x82),
        ("type 0", 4, hex("00 00"), 0x81),
        ("CONNACK from a client", 5, hex("20 03 00 00 00"), 0x82),
        ("SUBACK from a client", 5, hex("90 04 0001 00 00"), 0x82),
        ("PINGRESP from a client", 5, hex("d0 00"), 0x82),
    ]
}

#[tokio::test]
async fn an_illegal_first_packet_is_refused_and_the_next_client_is_served() {
    let server = Server::start().await;
    for (name, bytes, reason) in bad_connects() {
        let mut raw = Raw::open(server.address).await;
        raw.try_send(&bytes).await;
        let answers: Vec<(u8, u8)> =
            raw.until_closed().await.iter().map(|frame| (frame.kind(), frame.reason())).collect();
        let expected: Vec<(u8, u8)> = reason.map(|reason| (2, reason)).into_iter().collect();
        assert_eq!(answers, expected, "{name}");
        Raw::connect(server.address, 5, "next").await.ping().await;
    }
    assert_eq!(server.broker.stats().connections_refused, bad_connects().len() as u64);
    server.stop().await;
}

#[tokio::test]
async fn an_illegal_packet_ends_the_connection_and_the_next_client_is_served() {
    let server = Server::start().await;
    for (name, level, bytes, reason) in bad_packets() {
        let mut raw = Raw::connect(server.address, level, "bad").await;
        raw.try_send(&bytes).await;
        let answers: Vec<(u8, u8)> =
            raw.until_closed().await.iter().map(|frame| (frame.kind(), frame.reason())).collect();
        let expected = if level == 5 { vec![(14, reason)] } else { Vec::new() };
        assert_eq!(answers, expected, "{name}");
        Raw::connect(server.address, level, "next").await.ping().await;
    }
    server
        .until("every error is counted", |stats| stats.protocol_errors == bad_packets().len() as u64)
        .await;
    server.stop().await;
}

#[tokio::test]
async fn strange_but_legal_first_packets_are_accepted() {
    let server = Server::start().await;
    let will_properties = hex("1a 1800000005 0101 0200000009 03000161 0800026c6d 0900020102");
    let full = [will_properties, text("w/t"), text("gone"), text("user"), text("pw")].concat();
    let will_expiry_0 = [hex("05 0200000000"), text("w"), text("x")].concat();
    let legal: Vec<(&str, Vec<u8>)> = vec![
        ("topic alias maximum 0", connect(5, 2, &hex("22 0000"), "c", &[])),
        (
            "all properties",
            connect(
                5,
                0xee,
                &hex("11000000ff 210014 2700010000 220010 1901 1701 26000161000162"),
                "c",
                &full,
            ),
        ),
        ("binary password, 3.1.1", connect(4, 0xc2, &[], "c", &[text("u"), text([0xff, 0xfe])].concat())),
        ("binary password, 5", connect(5, 0xc2, &[], "c", &[text("u"), text([0xff, 0xfe])].concat())),
        ("password without user name, 5", connect(5, 0x42, &[], "c", &text("pw"))),
        ("empty identifier, 3.1.1", connect(4, 2, &[], "", &[])),
        ("empty identifier, 5", connect(5, 2, &[], "", &[])),
        ("empty identifier without clean start, 5", connect(5, 0, &[], "", &[])),
        ("expiry and receive maximum", connect(5, 0, &hex("11ffffffff 210001"), "c", &[])),
        ("empty will", connect(5, 6, &[], "c", &[vec![0], text("w"), text("")].concat())),
        ("empty user name", connect(4, 0x82, &[], "c", &text(""))),
        ("a user property twice", connect(5, 2, &hex("26000161000162 26000161000163"), "c", &[])),
        ("will expiry 0", connect(5, 6, &[], "c", &will_expiry_0)),
    ];
    for (name, bytes) in legal {
        let mut raw = Raw::open(server.address).await;
        // One byte at a time for the first ones: a packet may come in any pieces.
        for piece in bytes.chunks(7) {
            raw.send(piece).await;
        }
        let ack = raw.receive().await;
        assert_eq!((ack.kind(), ack.reason()), (2, 0), "{name}: {ack:?}");
        raw.ping().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn strange_but_legal_packets_are_accepted() {
    let server = Server::start().await;
    let v5: &[u8] = &[0];
    let a = &text("a")[..];
    let legal: Vec<(&str, u8, Vec<u8>)> = vec![
        ("expiry 0", 5, packet(0x30, &[a, &hex("05 0200000000"), b"x"])),
        ("empty payload, retained", 5, packet(0x31, &[a, v5])),
        ("alias with topic", 5, packet(0x30, &[a, &hex("03 230003"), b"x"])),
        ("topic /", 5, packet(0x30, &[&text("/"), v5])),
        ("topic with accents", 4, packet(0x30, &[&text("é/ü")])),
        ("topic with a byte order mark", 4, packet(0x30, &[&text("\u{feff}a")])),
        ("PUBACK for nothing", 5, hex("40 02 0009")),
        ("PUBACK with reason and text", 5, hex("40 0d 0001 87 09 1f 0006 6e6f70656e6f")),
        ("PUBCOMP for nothing", 4, hex("70 02 0009")),
    ];
    for (name, level, bytes) in legal {
        let mut raw = Raw::connect(server.address, level, "legal").await;
        raw.send(&bytes).await;
        raw.send(&[0xc0, 0]).await;
        assert_eq!(raw.receive().await.first_byte, 0xd0, "{name}");
    }
    server.stop().await;
}

#[tokio::test]
async fn every_packet_may_come_in_single_bytes() {
    let server = Server::start().await;
    let mut raw = Raw::open(server.address).await;
    let mut bytes = connect(5, 2, &[], "slow", &[]);
    bytes.extend(packet(0x82, &[&[0, 1], &[0], &text("t/+"), &[1]]));
    bytes.extend(packet(0x32, &[&text("t/1"), &[0, 7], &[0], b"hello"]));
    for byte in bytes {
        raw.send(&[byte]).await;
    }
    let mut kinds: Vec<u8> = Vec::new();
    for _ in 0..4 {
        kinds.push(raw.receive().await.kind());
    }
    kinds.sort_unstable();
    assert_eq!(kinds, [2, 3, 4, 9], "CONNACK, PUBLISH, PUBACK and SUBACK");
    server.stop().await;
}
