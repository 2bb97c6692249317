//! Section 3.1: CONNECT.

use crate::client::{Client, first, refused};
use crate::decode::Packet;
use crate::encode::{Connect, Message, Will, p8, p16, p32, packet, ptext, subscribe, text};
use crate::server::Server;

/// The reason of the CONNACK that is all that comes before the connection is closed.
async fn connack(server: &Server, level: u8, bytes: &[u8]) -> u8 {
    match &first(server, level, bytes).await[..] {
        [Packet::ConnAck(connack)] => connack.reason,
        other => panic!("{other:?} instead of a CONNACK for {bytes:x?}"),
    }
}

#[tokio::test]
async fn another_first_packet_closes_the_connection_without_an_answer() {
    covers!("MQTT-3.1.0-1", "MQTT-3.14.0-1", "MQTT-3.2.0-1");
    let server = Server::start().await;
    let packets = [
        Message::new("t", "x").bytes(5),
        subscribe(5, 1, &[], &[("t", 0)]),
        vec![0xc0, 0],
        vec![0xe0, 0],
        vec![0xf0, 0],
        vec![0x00, 0],
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc],
    ];
    for bytes in packets {
        assert_eq!(first(&server, 5, &bytes).await, [], "{bytes:x?}");
    }
}

#[tokio::test]
async fn a_second_connect_is_a_protocol_error() {
    covers!("MQTT-3.1.0-2", "MQTT-3.2.0-2", "3.1.1 MQTT-3.1.0-2");
    let server = Server::start().await;
    for (level, reason) in [(5, 0x82), (4, 0)] {
        let mut client = Client::new(&server, level, "again").await;
        client.send(&Connect::new(level, "again").bytes()).await;
        let packets = client.until_closed().await;
        match &packets[..] {
            [Packet::Disconnect { reason: got, .. }] => assert_eq!(*got, reason),
            [] => assert_eq!(level, 4),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn another_protocol_is_refused() {
    covers!("MQTT-3.1.2-1", "MQTT-3.1.2-2", "3.1.1 MQTT-3.1.2-2", "MQTT-3.2.2-7", "MQTT-4.13.2-1");
    let server = Server::start().await;
    for name in ["MQTTX", "mqtt", "AMQP", ""] {
        let bytes = packet(0x10, &[&text(name), &[5, 2, 0, 60, 0], &text("c")]);
        match &first(&server, 5, &bytes).await[..] {
            [] => {}
            [Packet::ConnAck(connack)] => assert_eq!(connack.reason, 0x84),
            other => panic!("{other:?} for {name}"),
        }
    }
    for level in [6, 7, 0x85, 255] {
        let bytes = packet(0x10, &[&text("MQTT"), &[level, 2, 0, 60, 0], &text("c")]);
        assert_eq!(connack(&server, 5, &bytes).await, 0x84, "level {level}");
    }
    for level in [0, 1, 2, 3] {
        let bytes = packet(0x10, &[&text("MQTT"), &[level, 2, 0, 60], &text("c")]);
        assert_eq!(connack(&server, 4, &bytes).await, 1, "level {level}");
    }
    let old = packet(0x10, &[&text("MQIsdp"), &[3, 2, 0, 60], &text("c")]);
    assert_eq!(connack(&server, 4, &old).await, 1, "MQTT 3.1");
}

#[tokio::test]
async fn flags_that_contradict_one_another_are_malformed() {
    covers!(
        "MQTT-3.1.2-3",
        "MQTT-3.1.2-9",
        "MQTT-3.1.2-11",
        "MQTT-3.1.2-12",
        "MQTT-3.1.2-13",
        "MQTT-3.1.2-16",
        "MQTT-3.1.2-17",
        "MQTT-3.1.2-18",
        "MQTT-3.1.2-19",
        "MQTT-3.1.3-3",
        "MQTT-3.1.4-1",
    );
    let server = Server::start().await;
    let plain = Connect::v5("c");
    let willing = plain.clone().will(Will::new("w", "gone"));
    let named = Connect { username: Some(b"u".to_vec()), ..plain.clone() };
    let secret = Connect { password: Some(b"p".to_vec()), ..plain.clone() };
    let cases = [
        ("reserved flag", plain.bytes_with(0x03, &plain.payload())),
        ("will QoS without a will", plain.bytes_with(0x0a, &plain.payload())),
        ("will retain without a will", plain.bytes_with(0x22, &plain.payload())),
        ("will QoS 3", willing.bytes_with(0x1e, &willing.payload())),
        ("a will flag without a will", plain.bytes_with(0x06, &plain.payload())),
        (
            "a will topic without a payload",
            plain.bytes_with(0x06, &[text("c"), vec![0], text("w")].concat()),
        ),
        ("a will without its flag", willing.bytes_with(0x02, &willing.payload())),
        ("a user name flag without a user name", plain.bytes_with(0x82, &plain.payload())),
        ("a user name without its flag", named.bytes_with(0x02, &named.payload())),
        ("a password flag without a password", plain.bytes_with(0x42, &plain.payload())),
        ("a password without its flag", secret.bytes_with(0x02, &secret.payload())),
        ("no client identifier", plain.bytes_with(0x02, &[])),
    ];
    for (name, bytes) in cases {
        assert_eq!(connack(&server, 5, &bytes).await, 0x81, "{name}");
    }
    for (name, connect) in [("a user name", named), ("a password without a user name", secret)] {
        assert_eq!(Client::try_connect(&server, connect).await.connack.reason, 0, "{name}");
    }
}

#[tokio::test]
async fn properties_that_are_not_allowed_are_refused() {
    covers!("MQTT-3.1.4-1", "MQTT-3.2.2-7", "MQTT-3.2.2-8");
    let server = Server::start().await;
    let with =
        |properties: &[Vec<u8>]| Connect { properties: properties.to_vec(), ..Connect::v5("c") }.bytes();
    let willing = |properties: &[Vec<u8>]| {
        Connect::v5("c").will(Will { properties: properties.to_vec(), ..Will::new("w", "x") }).bytes()
    };
    let twice = |property: Vec<u8>| with(&[property.clone(), property]);
    let will_twice = |property: Vec<u8>| willing(&[property.clone(), property]);
    let cases = [
        ("receive maximum 0", with(&[p16(0x21, 0)]), 0x82),
        ("maximum packet size 0", with(&[p32(0x27, 0)]), 0x82),
        ("request response information 2", with(&[p8(0x19, 2)]), 0x82),
        ("request problem information 2", with(&[p8(0x17, 2)]), 0x82),
        ("receive maximum twice", twice(p16(0x21, 5)), 0x82),
        ("maximum packet size twice", twice(p32(0x27, 500)), 0x82),
        ("session expiry twice", twice(p32(0x11, 5)), 0x82),
        ("topic alias maximum twice", twice(p16(0x22, 5)), 0x82),
        ("request response information twice", twice(p8(0x19, 0)), 0x82),
        ("request problem information twice", twice(p8(0x17, 1)), 0x82),
        ("authentication method twice", twice(ptext(0x15, "a")), 0x82),
        ("authentication data without a method", with(&[ptext(0x16, "a")]), 0x82),
        ("will delay twice", will_twice(p32(0x18, 5)), 0x82),
        ("will payload format twice", will_twice(p8(0x01, 1)), 0x82),
        ("will expiry twice", will_twice(p32(0x02, 5)), 0x82),
        ("will content type twice", will_twice(ptext(0x03, "a")), 0x82),
        ("will response topic twice", will_twice(ptext(0x08, "a")), 0x82),
        ("will correlation data twice", will_twice(ptext(0x09, "a")), 0x82),
        ("an unknown property", with(&[p8(0x7e, 0)]), 0x81),
        ("a property of PUBLISH", with(&[p8(0x01, 1)]), 0x81),
        ("a property of CONNECT in the will", willing(&[p32(0x11, 5)]), 0x81),
    ];
    let mut wrong = Vec::new();
    for (name, bytes, reason) in cases {
        let got = connack(&server, 5, &bytes).await;
        if got != reason {
            wrong.push(format!("{name}: {got:#x}, not {reason:#x}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn every_field_is_taken_in_its_order() {
    covers!("MQTT-3.1.3-1", "MQTT-3.1.4-5", "MQTT-3.1.2-17", "MQTT-3.1.2-19");
    let server = Server::start().await;
    let mut watcher = Client::v5(&server, "watcher").await;
    watcher.subscribe("w/t", 2).await;
    let full = Connect {
        username: Some("üser".into()),
        password: Some(vec![0, 0xff, 0xfe]),
        properties: vec![
            p32(0x11, 0),
            p16(0x21, 20),
            p32(0x27, 70_000),
            p16(0x22, 10),
            p8(0x19, 1),
            p8(0x17, 1),
        ],
        ..Connect::v5("full").will(Will::new("w/t", "gone").qos(2).delay(0))
    };
    let mut client = Client::connect(&server, full).await;
    client.ping().await;
    drop(client);
    let message = watcher.message().await;
    assert_eq!((&message.topic[..], message.text(), message.qos), ("w/t", "gone", 2));
}

#[tokio::test]
async fn client_identifiers_of_letters_and_digits_are_allowed() {
    covers!("MQTT-3.1.3-5");
    let server = Server::start().await;
    for level in [4, 5] {
        for id in ["0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ", "a"] {
            assert_eq!(Client::new(&server, level, id).await.connack.properties.bytes(0x12), None);
        }
    }
}

#[tokio::test]
async fn an_empty_client_identifier_gets_one_that_works() {
    covers!("MQTT-3.1.3-6", "MQTT-3.1.3-7", "MQTT-3.2.2-16");
    let server = Server::start().await;
    let mut before: Vec<String> = Vec::new();
    for clean in [true, false, true, false] {
        let connect = Connect { clean, ..Connect::v5("").lasting() };
        let client = Client::connect(&server, connect).await;
        assert!(!client.connack.session_present, "a new session");
        let assigned = client.connack.properties.bytes(0x12).expect("an assigned client identifier");
        let assigned = String::from_utf8(assigned.to_vec()).expect("text");
        assert!(!assigned.is_empty() && !before.contains(&assigned), "{assigned} is new");
        client.leave().await;
        before.push(assigned);
    }
    for id in before {
        let again = Client::connect(&server, Connect::v5(&id).resume()).await;
        assert!(again.connack.session_present, "the session of {id}");
        assert_eq!(again.connack.properties.bytes(0x12), None, "nothing is assigned");
    }
}

#[tokio::test]
async fn failed_checks_close_the_connection() {
    covers!(
        "MQTT-3.1.4-2",
        "MQTT-3.2.2-6",
        "MQTT-3.2.2-7",
        "MQTT-4.12.0-1",
        "MQTT-4.12.0-4",
        "MQTT-4.13.2-1",
    );
    let server = Server::start().await;
    Client::connect(&server, Connect::v5("known").lasting()).await.leave().await;
    let cases = [
        ("a method", Connect::v5("known").resume().with(ptext(0x15, "SCRAM-SHA-256")), 0x8c),
        (
            "a method with data",
            Connect::v5("known").resume().with(ptext(0x15, "x")).with(ptext(0x16, [0])),
            0x8c,
        ),
        ("a will with a wildcard", Connect::v5("known").resume().will(Will::new("w/#", "x")), 0x90),
    ];
    for (name, connect, reason) in cases {
        match &first(&server, 5, &connect.bytes()).await[..] {
            [Packet::ConnAck(connack)] => {
                assert_eq!((connack.reason, connack.session_present), (reason, false), "{name}");
            }
            other => panic!("{other:?} for {name}"),
        }
    }
    let known = Client::connect(&server, Connect::v5("known").resume().lasting()).await;
    assert!(known.connack.session_present, "a refusal costs no session");
}

#[tokio::test]
async fn nothing_is_processed_after_a_refusal() {
    covers!("MQTT-3.1.4-6");
    let server = Server::start().await;
    let connect = Connect::v5("refused").with(ptext(0x15, "x")).bytes();
    let retained = Message::new("kept", "x").retain().bytes(5);
    assert_eq!(connack(&server, 5, &[connect, retained].concat()).await, 0x8c);
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("kept", 0).await;
    client.quiet().await;
}

#[tokio::test]
async fn connack_is_the_first_packet_and_the_only_one_of_its_kind() {
    covers!("MQTT-3.1.4-5", "MQTT-3.2.0-1", "MQTT-3.2.0-2");
    let server = Server::start().await;
    for level in [4, 5] {
        let all = [
            Connect::new(level, "eager").bytes(),
            subscribe(level, 1, &[], &[("t", 1)]),
            Message::new("t", "x").qos(1, 2).bytes(level),
            vec![0xc0, 0, 0xe0, 0],
        ];
        let packets = first(&server, level, &all.concat()).await;
        assert!(matches!(&packets[0], Packet::ConnAck(connack) if connack.reason == 0), "{packets:?}");
        let connacks = packets.iter().filter(|packet| matches!(packet, Packet::ConnAck(_)));
        assert_eq!(connacks.count(), 1, "{packets:?}");
        assert!(packets.contains(&Packet::PingResp), "{packets:?}");
    }
}

#[tokio::test]
async fn a_client_that_connects_again_ends_its_earlier_connection() {
    covers!("MQTT-3.1.4-3", "3.1.1 MQTT-3.1.4-2");
    let server = Server::start().await;
    for (before, after) in [(5, 5), (5, 4), (4, 5), (4, 4)] {
        let mut earlier = Client::new(&server, before, "twin").await;
        earlier.subscribe("old", 0).await;
        let mut later = Client::new(&server, after, "twin").await;
        assert_eq!(earlier.disconnected().await, if before == 5 { 0x8e } else { 0 });
        later.subscribe("new", 1).await;
        later.say("old", "for the earlier one").await;
        later.say("new", "for the later one").await;
        assert_eq!(later.text().await, "for the later one");
        later.quiet().await;
    }
}

#[tokio::test]
async fn auth_is_neither_sent_nor_taken() {
    covers!("MQTT-4.12.0-6", "MQTT-4.12.0-7");
    let server = Server::start().await;
    let client = Client::v5(&server, "client").await;
    assert_eq!(client.connack.properties.get(0x15), None, "no authentication method");
    for reason in [0x00, 0x18, 0x19] {
        assert_eq!(refused(&server, 5, &packet(0xf0, &[&[reason, 0]])).await, 0x82, "reason {reason:#x}");
    }
    let with_method = packet(0xf0, &[&[0x18, 4, 0x15, 0, 1, b'x']]);
    assert_eq!(refused(&server, 5, &with_method).await, 0x82);
}
