//! Section 3.2: CONNACK, and what CONNECT asks of later packets.

use std::num::NonZeroU16;

use edgefaas_broker::BrokerConfig;

use crate::client::Client;
use crate::decode::Packet;
use crate::encode::{Connect, Message, Will, ack, p8, p16, p32, ptext, subscribe, unsubscribe};
use crate::server::Server;

#[tokio::test]
async fn connack_says_what_the_broker_takes() {
    covers!("MQTT-3.2.2-1", "MQTT-3.2.2-8", "MQTT-2.2.2-1");
    let config = BrokerConfig {
        receive_maximum: NonZeroU16::new(7).expect("not 0"),
        max_packet_bytes: 5000,
        topic_alias_maximum: 3,
        ..BrokerConfig::default()
    };
    let server = Server::with(config).await;
    let properties = Client::v5(&server, "client").await.connack.properties;
    assert_eq!(properties.number(0x21), Some(7), "receive maximum");
    assert_eq!(properties.number(0x27), Some(5000), "maximum packet size");
    assert_eq!(properties.number(0x22), Some(3), "topic alias maximum");
    for (identifier, name) in [(0x24, "maximum QoS"), (0x13, "server keepalive")] {
        assert_eq!(properties.number(identifier), None, "{name}");
    }
    for (identifier, name) in
        [(0x25, "retain"), (0x28, "wildcards"), (0x29, "subscription identifiers"), (0x2a, "shared")]
    {
        assert_ne!(properties.number(identifier), Some(0), "{name} are available");
    }
    // 3.1.1 has two bytes and nothing else.
    assert_eq!(Client::new(&server, 4, "old").await.last_bytes, 4);
}

#[tokio::test]
async fn the_session_expiry_interval_holds_unless_connack_says_another() {
    covers!("MQTT-3.1.2-23");
    let server = Server::start().await;
    for asked in [0, 1, 60, u32::MAX] {
        let client = Client::connect(&server, Connect::v5("client").expiry(asked)).await;
        let granted = client.connack.properties.number(0x11).unwrap_or(asked);
        assert!(granted <= asked && (granted > 0) == (asked > 0), "{granted} s for {asked} s");
    }
}

#[tokio::test]
async fn response_information_is_not_given_unasked() {
    covers!("MQTT-3.1.2-28");
    let server = Server::start().await;
    for connect in [Connect::v5("c"), Connect::v5("c").with(p8(0x19, 0))] {
        assert_eq!(Client::connect(&server, connect).await.connack.properties.get(0x1a), None);
    }
    // Asked for it, the broker may give it.
    Client::connect(&server, Connect::v5("c").with(p8(0x19, 1))).await.ping().await;
}

/// Brings the broker to every answer with an error that a client can get without losing its connection.
async fn provoke(client: &mut Client) -> Vec<Packet> {
    let requests = [
        ack(6, 900, 0),
        ack(5, 901, 0),
        unsubscribe(5, 902, &["nothing"]),
        subscribe(5, 903, &[], &[("over/the/limit", 1)]),
        Message::new("$SYS/broker/forged", "x").qos(1, 904).bytes(5),
        Message::new("$SYS/broker/forged", "x").qos(2, 905).bytes(5),
    ];
    let mut answers = Vec::new();
    for request in requests {
        client.send(&request).await;
        answers.push(client.receive().await);
    }
    answers
}

fn reason_and_properties(packet: &Packet) -> (u8, &crate::decode::Properties) {
    match packet {
        Packet::Ack { reason, properties, .. } | Packet::Disconnect { reason, properties } => {
            (*reason, properties)
        }
        Packet::SubAck { reasons, properties, .. } | Packet::UnsubAck { reasons, properties, .. } => {
            (reasons[0], properties)
        }
        other => panic!("{other:?} has no reason"),
    }
}

#[tokio::test]
async fn without_problem_information_there_are_no_reason_strings() {
    covers!("MQTT-3.1.2-29");
    let server =
        Server::with(BrokerConfig { max_subscriptions_per_session: 0, ..BrokerConfig::default() }).await;
    let mut client = Client::connect(&server, Connect::v5("client").with(p8(0x17, 0))).await;
    for answer in provoke(&mut client).await {
        let (reason, properties) = reason_and_properties(&answer);
        assert!(reason > 0 && properties.0.is_empty(), "{answer:?}");
    }
}

#[tokio::test]
async fn no_reason_string_makes_a_packet_too_large() {
    covers!(
        "MQTT-3.1.2-24",
        "MQTT-3.2.2-19",
        "MQTT-3.4.2-2",
        "MQTT-3.5.2-2",
        "MQTT-3.6.2-2",
        "MQTT-3.7.2-2",
        "MQTT-3.9.2-1",
        "MQTT-3.11.2-1",
        "MQTT-3.14.2-3",
    );
    let server =
        Server::with(BrokerConfig { max_subscriptions_per_session: 0, ..BrokerConfig::default() }).await;
    // The smallest limit that lets the CONNACK pass.
    let limit = Client::v5(&server, "client").await.last_bytes;
    assert!(limit < 64, "the CONNACK is a small packet: {limit}");
    let limited = |bytes: usize| Connect::v5("client").with(p32(0x27, bytes as u32));
    let mut client = Client::connect(&server, limited(limit)).await;
    for answer in provoke(&mut client).await {
        assert!(reason_and_properties(&answer).0 > 0, "{answer:?} comes, with its reason");
    }
    client.send(&[0xf0, 0]).await;
    match client.receive().await {
        Packet::Disconnect { reason, .. } => assert_eq!(reason, 0x82),
        other => panic!("{other:?}"),
    }
    assert!(client.last_bytes <= limit, "{} of {limit} bytes", client.last_bytes);
    // A refusal of five bytes passes where a reason string does not.
    for connect in [limited(5).with(ptext(0x15, "x")), limited(5).will(Will::new("#", "x"))] {
        let refused = Client::try_connect(&server, connect).await;
        assert!(refused.connack.reason >= 0x80 && refused.last_bytes <= 5, "{:?}", refused.connack);
    }
}

#[tokio::test]
async fn the_brokers_limits_are_announced_and_enforced() {
    covers!("MQTT-3.2.2-15");
    let server = Server::with(BrokerConfig { max_packet_bytes: 1000, ..BrokerConfig::default() }).await;
    for level in [4, 5] {
        let overhead = 1 + 2 + 3 + usize::from(level == 5);
        let message = |bytes: usize| Message::new("t", vec![b'x'; bytes - overhead]);
        let mut client = Client::new(&server, level, "client").await;
        client.subscribe("t", 0).await;
        assert_eq!(message(1000).bytes(level).len(), 1000);
        client.send(&message(1000).bytes(level)).await;
        assert_eq!(client.message().await.payload.len(), 1000 - overhead);
        client.try_send(&message(1001).bytes(level)).await;
        assert_eq!(client.disconnected().await, if level == 5 { 0x95 } else { 0 });
    }
    // In CONNECT as well, and before all of it has come.
    let large = Connect { password: Some(vec![0; 1000]), ..Connect::v5("large") };
    assert_eq!(Client::try_connect(&server, large).await.connack.reason, 0x95);
    let mut endless = Client::v5(&server, "endless").await;
    endless.send(&[0x30, 0xff, 0xff, 0xff, 0x7f]).await;
    assert_eq!(endless.disconnected().await, 0x95);
}

#[tokio::test]
async fn a_message_larger_than_the_client_takes_counts_as_sent() {
    covers!("MQTT-3.1.2-24", "MQTT-3.1.2-25");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    for qos in 0..3u8 {
        let connect = Connect::v5("small").with(p32(0x27, 100)).with(p16(0x21, 1));
        let mut small = Client::connect(&server, connect).await;
        small.subscribe("t", qos).await;
        // 2 bytes of header, 3 of topic, the identifier, 1 of properties.
        let room = 100 - 6 - if qos > 0 { 2 } else { 0 };
        for bytes in [room + 1, room, 1000, 1] {
            publisher.publish(Message::new("t", vec![b'x'; bytes]).qos(qos, 0)).await;
        }
        for bytes in [room, 1] {
            let message = small.message().await;
            assert_eq!((message.payload.len(), message.qos), (bytes, qos));
            assert!(small.last_bytes <= 100);
            // With a receive maximum of 1 the next one comes only if the large one takes no place.
            small.finish(&message).await;
        }
        small.quiet().await;
    }
}
