//! Sections 1.5 and 2: strings, lengths, flags, identifiers, and packets that are cut short.

use crate::client::{Client, first, refused};
use crate::decode::Packet;
use crate::encode::{
    Connect, Message, Will, ack, p32, packet, ptext, puser, pvar, section, subscribe, text, unsubscribe,
};
use crate::server::Server;

/// CONNECTs with this string in each place that takes one.
fn connects(string: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let plain = Connect::v5("strings");
    let named = |username: &[u8]| Connect { username: Some(username.to_vec()), ..plain.clone() };
    let willing = |property: Vec<u8>| plain.clone().will(Will::new("w", "gone").with(property)).bytes();
    let will_topic = Will { topic: string.to_vec(), ..Will::new("", "gone") };
    vec![
        ("client identifier", plain.bytes_with(2, &text(string))),
        ("user name", named(string).bytes()),
        ("will topic", plain.clone().will(will_topic).bytes()),
        ("will content type", willing(ptext(0x03, string))),
        ("will response topic", willing(ptext(0x08, string))),
        ("will user property name", willing(puser(string, "v"))),
        ("will user property value", willing(puser("n", string))),
        ("user property name", plain.clone().with(puser(string, "v")).bytes()),
        ("user property value", plain.clone().with(puser("n", string)).bytes()),
        ("authentication method", plain.clone().with(ptext(0x15, string)).bytes()),
    ]
}

/// Packets after CONNECT with this string in each place that takes one.
fn packets(string: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let plain = Message::new("t", "x").qos(1, 1);
    let with = |property: Vec<u8>| plain.clone().with(property).bytes(5);
    let topic = Message { topic: string.to_vec(), ..plain.clone() };
    let filter = [&[0, 1, 0][..], &text(string)].concat();
    let reason = |first_byte, start: &[u8], property| packet(first_byte, &[start, &section(&[property])]);
    vec![
        ("topic", topic.bytes(5)),
        ("content type", with(ptext(0x03, string))),
        ("response topic", with(ptext(0x08, string))),
        ("user property name", with(puser(string, "v"))),
        ("user property value", with(puser("n", string))),
        ("filter of SUBSCRIBE", packet(0x82, &[&filter, &[0]])),
        ("user property of SUBSCRIBE", subscribe(5, 1, &[puser("n", string)], &[("t", 0)])),
        ("filter of UNSUBSCRIBE", packet(0xa2, &[&filter])),
        ("reason string of PUBACK", reason(0x40, &[0, 1, 0x80], ptext(0x1f, string))),
        ("reason string of DISCONNECT", reason(0xe0, &[0x80], ptext(0x1f, string))),
    ]
}

async fn assert_malformed(server: &Server, string: &[u8]) {
    let mut reasons = Vec::new();
    for (place, bytes) in connects(string) {
        match &first(server, 5, &bytes).await[..] {
            [Packet::ConnAck(connack)] => reasons.push((place, connack.reason)),
            other => panic!("{other:?} for {string:x?} as {place}"),
        }
    }
    for (place, bytes) in packets(string) {
        reasons.push((place, refused(server, 5, &bytes).await));
    }
    reasons.retain(|(_, reason)| *reason != 0x81);
    assert_eq!(reasons, [], "only 0x81 for {string:x?}");
}

#[tokio::test]
async fn strings_that_are_not_utf_8_are_malformed() {
    covers!(
        "MQTT-1.5.4-1",
        "MQTT-1.5.7-1",
        "MQTT-3.1.3-4",
        "MQTT-3.1.3-11",
        "MQTT-3.1.3-12",
        "MQTT-3.3.2-1",
        "MQTT-3.3.2-13",
        "MQTT-3.3.2-19",
        "MQTT-3.8.3-1",
        "MQTT-3.10.3-1",
        "MQTT-4.13.1-1",
    );
    let server = Server::start().await;
    // A surrogate, a lone byte, an overlong form, one that ends too early, one beyond U+10FFFF.
    let strings: [&[u8]; 5] =
        [&[0xed, 0xa0, 0x80], &[0xff], &[0xc0, 0xaf], &[b'a', 0xe2, 0x82], &[0xf4, 0x90, 0x80, 0x80]];
    for string in strings {
        assert_malformed(&server, string).await;
    }
}

#[tokio::test]
async fn strings_with_a_null_character_are_malformed() {
    covers!("MQTT-1.5.4-2", "MQTT-1.5.7-1", "MQTT-4.7.3-2");
    assert_malformed(&Server::start().await, b"a\0b").await;
}

#[tokio::test]
async fn a_byte_order_mark_is_a_character() {
    covers!("MQTT-1.5.4-3", "MQTT-4.7.3-4");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "\u{feff}c").await;
    client.subscribe("\u{feff}t", 1).await;
    let properties = [ptext(0x03, "\u{feff}text"), puser("\u{feff}n", "v\u{feff}")];
    for topic in ["t", "\u{feff}t"] {
        let message = Message::new(topic, "\u{feff}x").qos(1, 0);
        client.publish(Message { properties: properties.to_vec(), ..message }).await;
    }
    let got = client.message().await;
    assert_eq!((&got.topic[..], got.text()), ("\u{feff}t", "\u{feff}x"));
    assert_eq!(got.properties.bytes(0x03), Some("\u{feff}text".as_bytes()));
    assert_eq!(got.properties.user(), [("\u{feff}n".into(), "v\u{feff}".into())]);
    client.quiet().await;
}

#[tokio::test]
async fn lengths_that_take_more_bytes_than_needed_are_malformed() {
    covers!("MQTT-1.5.5-1");
    let server = Server::start().await;
    let long = |first_byte: u8, length: &[u8], body: &[u8]| [&[first_byte][..], length, body].concat();
    let topic = text("t");
    let cases = [
        ("remaining length of PINGREQ", long(0xc0, &[0x80, 0], &[])),
        ("remaining length of PUBLISH", long(0x30, &[0x84, 0x80, 0], &[&topic[..], &[0]].concat())),
        ("five bytes", long(0x30, &[0xff, 0xff, 0xff, 0xff, 1], &[])),
        ("property length of PUBLISH", packet(0x30, &[&topic, &[0x80, 0], b"x"])),
        ("property length of SUBSCRIBE", packet(0x82, &[&[0, 1, 0x80, 0], &topic, &[0]])),
        ("subscription identifier", packet(0x82, &[&[0, 1, 3, 0x0b, 0x85, 0], &topic, &[0]])),
    ];
    for (name, bytes) in cases {
        assert_eq!(refused(&server, 5, &bytes).await, 0x81, "{name}");
    }
    let mut connect = Connect::v5("c").bytes();
    let whole = connect.len() - 2;
    connect.splice(1..2, [whole as u8 | 0x80, 0]);
    match &first(&server, 5, &connect).await[..] {
        [Packet::ConnAck(connack)] => assert_eq!(connack.reason, 0x81),
        [] => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn reserved_flags_are_malformed() {
    covers!(
        "MQTT-2.1.3-1",
        "MQTT-3.6.1-1",
        "MQTT-3.8.1-1",
        "MQTT-3.10.1-1",
        "MQTT-3.14.1-1",
        "MQTT-3.15.1-1",
        "3.1.1 MQTT-2.2.2-2",
    );
    let server = Server::start().await;
    for level in [4, 5] {
        let properties: &[u8] = if level == 5 { &[0] } else { &[] };
        let filter = [&[0, 1][..], properties, &text("t")].concat();
        let legal = [
            (4, 0, vec![0, 1]),
            (5, 0, vec![0, 1]),
            (6, 2, vec![0, 1]),
            (7, 0, vec![0, 1]),
            (8, 2, [&filter[..], &[0]].concat()),
            (10, 2, filter),
            (12, 0, vec![]),
            (14, 0, vec![]),
            (15, 0, vec![]),
        ];
        for (kind, right, body) in legal {
            for flags in (0..16).filter(|flags| *flags != right) {
                let reason = refused(&server, level, &packet(kind << 4 | flags, &[&body])).await;
                assert_eq!(reason, if level == 5 { 0x81 } else { 0 }, "type {kind} with flags {flags:04b}");
            }
        }
        // CONNECT: the version that could be told is not known to be right, so silence will do.
        for flags in 1..16 {
            let mut connect = Connect::new(level, "c").bytes();
            connect[0] |= flags;
            for packet in first(&server, level, &connect).await {
                assert!(matches!(&packet, Packet::ConnAck(connack) if connack.reason != 0), "{packet:?}");
            }
        }
    }
}

#[tokio::test]
async fn packet_types_that_are_reserved_or_for_servers_are_refused() {
    covers!("MQTT-2.1.3-1", "MQTT-4.13.1-1", "3.1.1 MQTT-4.8.0-1");
    let server = Server::start().await;
    let cases: [(&str, Vec<u8>, u8); 6] = [
        ("type 0", packet(0x00, &[]), 0x81),
        ("CONNACK", packet(0x20, &[&[0, 0, 0]]), 0x82),
        ("SUBACK", packet(0x90, &[&[0, 1, 0, 0]]), 0x82),
        ("UNSUBACK", packet(0xb0, &[&[0, 1, 0, 0]]), 0x82),
        ("PINGRESP", packet(0xd0, &[]), 0x82),
        ("AUTH without a method", packet(0xf0, &[]), 0x82),
    ];
    for (name, bytes, reason) in cases {
        assert_eq!(refused(&server, 5, &bytes).await, reason, "{name}");
        assert_eq!(refused(&server, 4, &bytes).await, 0, "{name}, 3.1.1");
    }
}

#[tokio::test]
async fn a_packet_identifier_of_0_is_refused() {
    covers!("MQTT-2.2.1-3");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut packets = vec![
            Message::new("t", "x").qos(1, 0).bytes(level),
            Message::new("t", "x").qos(2, 0).bytes(level),
            subscribe(level, 0, &[], &[("t", 0)]),
            unsubscribe(level, 0, &["t"]),
        ];
        packets.extend((4..=7).map(|kind| ack(kind, 0, 0)));
        for bytes in packets {
            let reason = refused(&server, level, &bytes).await;
            let expected: &[u8] = if level == 5 { &[0x81, 0x82] } else { &[0] };
            assert!(expected.contains(&reason), "{reason:#x} for {bytes:x?}");
        }
    }
}

/// Sends the packet with its body cut after each number of bytes but those that leave a legal one.
async fn assert_cuts_are_malformed(server: &Server, whole: &[u8], legal: &[usize]) {
    let body = &whole[2..];
    assert!(whole[1] < 128, "a length of one byte");
    for bytes in (0..body.len()).filter(|bytes| !legal.contains(bytes)) {
        let cut = packet(whole[0], &[&body[..bytes]]);
        let reason = refused(server, 5, &cut).await;
        assert!(matches!(reason, 0x81 | 0x82), "{reason:#x} for {cut:x?}");
    }
}

#[tokio::test]
async fn packets_that_end_within_a_field_are_malformed() {
    covers!("MQTT-4.13.1-1", "MQTT-4.13.2-1", "MQTT-3.1.4-1");
    let server = Server::start().await;
    let all = [ptext(0x03, "text"), ptext(0x09, "1"), p32(0x02, 9), puser("n", "v")];
    let message = Message { properties: all.to_vec(), ..Message::new("topic", "").qos(1, 1) };
    assert_cuts_are_malformed(&server, &message.bytes(5), &[]).await;
    let filters = subscribe(5, 1, &[pvar(0x0b, 300), puser("n", "v")], &[("filter", 1)]);
    assert_cuts_are_malformed(&server, &filters, &[]).await;
    assert_cuts_are_malformed(&server, &unsubscribe(5, 1, &["filter"]), &[]).await;
    let reason = [ptext(0x1f, "why"), puser("n", "v")];
    for first_byte in [0x40, 0x50, 0x62, 0x70] {
        let ack =
            packet(first_byte, &[&[0, 1, if first_byte > 0x60 { 0x92 } else { 0x80 }], &section(&reason)]);
        assert_cuts_are_malformed(&server, &ack, &[2, 3]).await;
    }
    let goodbye = packet(0xe0, &[&[4], &section(&reason)]);
    assert_cuts_are_malformed(&server, &goodbye, &[0, 1]).await;

    let will = Will::new("will", "gone").with(ptext(0x03, "text")).delay(1);
    let connect = Connect {
        username: Some(b"user".to_vec()),
        password: Some(b"password".to_vec()),
        ..Connect::v5("client").with(p32(0x11, 9)).will(will)
    };
    let whole = connect.bytes();
    for bytes in 0..whole.len() - 2 {
        match &first(&server, 5, &packet(0x10, &[&whole[2..2 + bytes]])).await[..] {
            [] if bytes < 7 => {}
            [Packet::ConnAck(connack)] => {
                assert!(matches!(connack.reason, 0x81 | 0x82), "{connack:?} after {bytes} bytes");
            }
            other => panic!("{other:?} for a CONNECT of {bytes} bytes"),
        }
    }
}

#[tokio::test]
async fn bytes_after_the_last_field_are_malformed() {
    covers!("MQTT-4.13.1-1");
    let server = Server::start().await;
    let cases = [
        ("PINGREQ", 5, packet(0xc0, &[&[0]])),
        ("PINGREQ, 3.1.1", 4, packet(0xc0, &[&[0]])),
        ("PUBACK", 5, packet(0x40, &[&[0, 1, 0, 0, 7]])),
        ("PUBACK, 3.1.1", 4, packet(0x40, &[&[0, 1, 0]])),
        ("PUBREL", 5, packet(0x62, &[&[0, 1, 0, 0, 7]])),
        ("PUBREL, 3.1.1", 4, packet(0x62, &[&[0, 1, 0]])),
        ("DISCONNECT", 5, packet(0xe0, &[&[0, 0, 7]])),
        ("DISCONNECT, 3.1.1", 4, packet(0xe0, &[&[0]])),
    ];
    for (name, level, bytes) in cases {
        assert_eq!(refused(&server, level, &bytes).await, if level == 5 { 0x81 } else { 0 }, "{name}");
    }
    let trailing = Connect::v5("c").bytes_with(2, &[text("c"), vec![7]].concat());
    match &first(&server, 5, &trailing).await[..] {
        [Packet::ConnAck(connack)] => assert_eq!(connack.reason, 0x81),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn properties_that_do_not_belong_are_malformed_and_repeated_ones_a_protocol_error() {
    covers!("MQTT-2.2.2-1", "MQTT-4.13.1-1");
    let server = Server::start().await;
    let message = |properties: Vec<Vec<u8>>| Message { properties, ..Message::new("t", "x") }.bytes(5);
    let cases = [
        ("an unknown property", message(vec![vec![0x7e, 0]]), 0x81),
        ("receive maximum in PUBLISH", message(vec![vec![0x21, 0, 5]]), 0x81),
        ("a section longer than the packet", packet(0x30, &[&text("t"), &[0x7f, 1, 1]]), 0x81),
        ("content type in SUBSCRIBE", subscribe(5, 1, &[ptext(0x03, "x")], &[("t", 0)]), 0x81),
        ("payload format twice", message(vec![vec![1, 1], vec![1, 1]]), 0x82),
        ("expiry twice", message(vec![p32(2, 1), p32(2, 1)]), 0x82),
        ("content type twice", message(vec![ptext(3, "x"), ptext(3, "x")]), 0x82),
        ("response topic twice", message(vec![ptext(8, "x"), ptext(8, "x")]), 0x82),
        ("correlation data twice", message(vec![ptext(9, "x"), ptext(9, "x")]), 0x82),
        ("alias twice", message(vec![vec![0x23, 0, 1], vec![0x23, 0, 1]]), 0x82),
        ("two subscription identifiers", subscribe(5, 1, &[pvar(11, 1), pvar(11, 2)], &[("t", 0)]), 0x82),
        ("subscription identifier 0", subscribe(5, 1, &[pvar(11, 0)], &[("t", 0)]), 0x82),
    ];
    let mut wrong = Vec::new();
    for (name, bytes, reason) in cases {
        let got = refused(&server, 5, &bytes).await;
        if got != reason {
            wrong.push(format!("{name}: {got:#x}, not {reason:#x}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn packets_come_in_any_pieces() {
    covers!("MQTT-4.2.0-1");
    let server = Server::start().await;
    let all = [
        Connect::v5("pieces").bytes(),
        subscribe(5, 1, &[], &[("t", 1)]),
        Message::new("t", "x").qos(1, 2).bytes(5),
        vec![0xc0, 0],
    ];
    let bytes = all.concat();
    for size in [1, 2, 7, bytes.len()] {
        let mut client = Client::open(server.address, 5).await;
        for piece in bytes.chunks(size) {
            client.send(piece).await;
            tokio::task::yield_now().await;
        }
        let mut got = Vec::new();
        for _ in 0..5 {
            got.push(client.receive().await);
        }
        assert!(matches!(got[0], Packet::ConnAck(_)), "{got:?}");
        assert_eq!(got.iter().filter(|packet| matches!(packet, Packet::Publish(_))).count(), 1);
        assert!(got.contains(&Packet::PingResp), "{got:?}");
    }
}
