//! MQTT 3.1.1 where it says something else than MQTT 5.

use crate::client::{Client, first, refused};
use crate::decode::Packet;
use crate::encode::{Connect, Message, Will, packet, ptext, subscribe, text, unsubscribe};
use crate::server::Server;

#[tokio::test]
async fn a_connect_that_does_not_conform_is_closed_without_connack() {
    covers!("3.1.1 MQTT-3.1.4-1", "3.1.1 MQTT-3.1.2-22", "3.1.1 MQTT-1.4.0-1", "3.1.1 MQTT-1.4.0-2");
    let server = Server::start().await;
    let plain = Connect::v4("c");
    let willing = plain.clone().will(Will::new("w", "gone"));
    let named = |name: &[u8]| Connect { username: Some(name.to_vec()), ..plain.clone() };
    let secret = Connect { password: Some(b"p".to_vec()), ..plain.clone() };
    let cases = [
        ("reserved flag", plain.bytes_with(3, &plain.payload())),
        ("a password without a user name", secret.bytes()),
        ("will QoS 3", willing.bytes_with(0x1e, &willing.payload())),
        ("will QoS without a will", plain.bytes_with(0x0a, &plain.payload())),
        ("will retain without a will", plain.bytes_with(0x22, &plain.payload())),
        ("no will for its flag", plain.bytes_with(0x06, &plain.payload())),
        ("trailing bytes", plain.bytes_with(2, &[plain.payload(), vec![0]].concat())),
        ("an identifier that is not UTF-8", plain.bytes_with(2, &text([0xed, 0xa0, 0x80]))),
        ("an identifier with U+0000", plain.bytes_with(2, &text("a\0"))),
        ("a user name that is not UTF-8", named(&[0xff]).bytes()),
        (
            "a will topic that is not UTF-8",
            plain.bytes_with(6, &[text("c"), text([0xff]), text("x")].concat()),
        ),
        ("nothing", packet(0x10, &[&text("MQTT"), &[4, 2, 0, 60]])),
    ];
    for (name, bytes) in cases {
        assert_eq!(first(&server, 4, &bytes).await, [], "{name}");
    }
}

#[tokio::test]
async fn strings_that_are_not_allowed_close_the_connection() {
    covers!("3.1.1 MQTT-1.4.0-1", "3.1.1 MQTT-1.4.0-2", "3.1.1 MQTT-4.8.0-1");
    let server = Server::start().await;
    for string in [&b"\xff"[..], b"\xed\xa0\x80", b"a\0b", b"\xc0\x80"] {
        let topic = Message { topic: string.to_vec(), ..Message::new("", "x") };
        assert_eq!(refused(&server, 4, &topic.bytes(4)).await, 0);
        assert_eq!(refused(&server, 4, &packet(0x82, &[&[0, 1], &text(string), &[0]])).await, 0);
        assert_eq!(refused(&server, 4, &packet(0xa2, &[&[0, 1], &text(string)])).await, 0);
    }
}

#[tokio::test]
async fn an_empty_client_identifier_needs_a_clean_session() {
    covers!("3.1.1 MQTT-3.1.3-6", "3.1.1 MQTT-3.1.3-8");
    let server = Server::start().await;
    match &first(&server, 4, &Connect::v4("").resume().bytes()).await[..] {
        [Packet::ConnAck(connack)] => assert_eq!((connack.reason, connack.session_present), (2, false)),
        other => panic!("{other:?}"),
    }
    // Two of them are not the same client.
    let mut one = Client::new(&server, 4, "").await;
    let mut two = Client::new(&server, 4, "").await;
    one.subscribe("t", 0).await;
    two.say("t", "x").await;
    assert_eq!(one.text().await, "x");
    two.quiet().await;
}

#[tokio::test]
async fn clean_session_makes_a_session_that_ends_with_its_connection() {
    covers!("3.1.1 MQTT-3.1.2-4", "3.1.1 MQTT-3.1.2-6", "3.1.1 MQTT-3.2.2-2", "3.1.1 MQTT-3.2.2-3");
    let server = Server::start().await;
    let mut publisher = Client::new(&server, 4, "publisher").await;
    // CleanSession, and whether a session is present.
    for (clean, present) in
        [(true, false), (false, false), (false, true), (true, false), (true, false), (false, false)]
    {
        let connect = Connect { clean, ..Connect::v4("client") };
        let mut client = Client::connect(&server, connect).await;
        assert_eq!(client.connack.session_present, present, "CleanSession {clean}");
        if present {
            assert_eq!(client.text().await, "while it was away");
        } else {
            client.subscribe("t", 1).await;
        }
        client.quiet().await;
        client.leave().await;
        publisher.say("t", "while it was away").await;
    }
}

#[tokio::test]
async fn the_same_filter_again_brings_the_retained_messages_again() {
    covers!("3.1.1 MQTT-3.8.4-3");
    let server = Server::start().await;
    let mut client = Client::new(&server, 4, "client").await;
    client.publish(Message::new("t", "kept").qos(2, 0).retain()).await;
    for qos in [0, 2, 1] {
        client.subscribe("t", qos).await;
        let got = client.message().await;
        client.finish(&got).await;
        assert_eq!((got.text(), got.qos, got.retain), ("kept", qos, true));
        client.publish(Message::new("t", "live").qos(2, 0)).await;
        let got = client.message().await;
        client.finish(&got).await;
        assert_eq!((got.text(), got.qos, got.retain), ("live", qos, false));
        client.quiet().await;
    }
}

#[tokio::test]
async fn properties_stay_with_version_5() {
    covers!("MQTT-2.2.2-1", "3.1.1 MQTT-3.9.3-2");
    let server = Server::start().await;
    let mut old = Client::new(&server, 4, "old").await;
    let mut new = Client::v5(&server, "new").await;
    old.subscribe("t", 1).await;
    new.subscribe("t", 1).await;
    new.publish(Message::new("t", "from new").with(ptext(0x03, "text")).qos(1, 0)).await;
    old.say("t", "from old").await;
    for text in ["from new", "from old"] {
        assert_eq!(old.text().await, text);
        let got = new.message().await;
        new.finish(&got).await;
        assert_eq!((got.text(), got.properties.0.is_empty()), (text, text == "from old"));
    }
    // Answers have no reasons: these were never there.
    old.send(&unsubscribe(4, 7, &["never", "there"])).await;
    assert!(matches!(old.receive().await, Packet::UnsubAck { id: 7, reasons, .. } if reasons.is_empty()));
    old.send(&subscribe(4, 8, &[], &[("u", 2)])).await;
    assert!(matches!(old.receive().await, Packet::SubAck { id: 8, reasons, .. } if reasons == [2]));
}
