//! Sections 4.3 and 4.9: the exchanges of QoS 1 and 2, their order, and the receive maximum.

use std::collections::HashSet;
use std::num::NonZeroU16;

use edgefaas_broker::BrokerConfig;

use crate::client::Client;
use crate::decode::Packet;
use crate::encode::{Connect, Message, ack, p16, p32};
use crate::server::Server;

fn receive_maximum(most: u16) -> Connect {
    Connect::v5("subscriber").with(p16(0x21, most))
}

#[tokio::test]
async fn qos_1_with_the_same_identifier_is_a_new_message_after_puback() {
    covers!("MQTT-4.3.2-4", "MQTT-4.3.2-5");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut client = Client::new(&server, level, "client").await;
        client.subscribe("t", 0).await;
        for (text, dup) in [("first", false), ("second", true), ("third", false)] {
            let message = Message { dup, ..Message::new("t", text).qos(1, 9) };
            client.publish(message).await;
            assert_eq!(client.text().await, text);
        }
    }
}

#[tokio::test]
async fn qos_2_goes_to_subscribers_once() {
    covers!("MQTT-4.3.3-8", "MQTT-4.3.3-10", "MQTT-4.3.3-11", "MQTT-4.3.3-12", "MQTT-2.2.1-5");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut client = Client::new(&server, level, "client").await;
        client.subscribe("t", 0).await;
        for text in ["one", "two"] {
            client.send(&Message::new("t", text).qos(2, 9).bytes(level)).await;
            assert_eq!(client.acked(5, 9).await, 0);
            for _ in 0..3 {
                client.send(&Message::new("t", text).qos(2, 9).dup().bytes(level)).await;
                assert_eq!(client.acked(5, 9).await, 0, "PUBREC again");
            }
            client.send(&ack(6, 9, 0)).await;
            assert_eq!(client.acked(7, 9).await, 0);
            assert_eq!(client.text().await, text);
            client.quiet().await;
        }
    }
}

#[tokio::test]
async fn an_identifier_is_free_after_a_refusal() {
    covers!("MQTT-4.3.3-9", "MQTT-3.5.2-1");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("t", 0).await;
    client.send(&Message::new("$SYS/forged", "x").qos(2, 9).bytes(5)).await;
    assert_eq!(client.acked(5, 9).await, 0x87);
    client.send(&Message::new("t", "new").qos(2, 9).bytes(5)).await;
    assert_eq!(client.acked(5, 9).await, 0);
    client.send(&ack(6, 9, 0)).await;
    assert_eq!(client.acked(7, 9).await, 0);
    assert_eq!(client.text().await, "new");
}

#[tokio::test]
async fn unknown_identifiers_are_told() {
    covers!("MQTT-3.6.2-1", "MQTT-3.7.2-1", "MQTT-4.3.3-11");
    let server = Server::start().await;
    for (level, not_found) in [(4, 0), (5, 0x92)] {
        let mut client = Client::new(&server, level, "client").await;
        client.send(&ack(6, 77, 0)).await;
        assert_eq!(client.acked(7, 77).await, not_found, "PUBREL");
        client.send(&ack(5, 77, 0)).await;
        assert_eq!(client.acked(6, 77).await, not_found, "PUBREC");
        // Nothing is there to answer these.
        client.send(&ack(4, 77, 0)).await;
        client.send(&ack(7, 77, 0)).await;
        client.quiet().await;
    }
}

#[tokio::test]
async fn qos_2_to_a_client_takes_its_four_steps() {
    covers!("MQTT-4.3.3-4", "MQTT-2.2.1-5", "MQTT-3.6.2-1");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut client = Client::new(&server, level, "client").await;
        client.subscribe("t", 2).await;
        // 0x10: no matching subscribers, which is not a refusal.
        for reason in if level == 5 { vec![0, 0x10] } else { vec![0] } {
            client.publish(Message::new("t", "x").qos(2, 0)).await;
            let got = client.message().await;
            assert_eq!((got.qos, got.dup), (2, false));
            for _ in 0..2 {
                client.send(&ack(5, got.id, reason)).await;
                assert_eq!(client.acked(6, got.id).await, 0, "PUBREL for every PUBREC");
            }
            client.send(&ack(7, got.id, 0)).await;
            client.quiet().await;
        }
    }
}

#[tokio::test]
async fn a_refusal_of_the_client_ends_the_exchange() {
    covers!("MQTT-4.4.0-2", "MQTT-4.3.3-4", "MQTT-4.9.0-2");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut client = Client::connect(&server, receive_maximum(1).lasting()).await;
    client.subscribe("t", 2).await;
    for (text, qos) in [("one", 1), ("two", 2), ("three", 1)] {
        publisher.publish(Message::new("t", text).qos(qos, 0)).await;
    }
    for (text, qos) in [("one", 1), ("two", 2)] {
        let got = client.message().await;
        assert_eq!((got.text(), got.qos), (text, qos));
        client.send(&ack(if qos == 1 { 4 } else { 5 }, got.id, 0x83)).await;
    }
    // No PUBREL came, and the place is free.
    assert_eq!(client.text().await, "three");
    client.quiet().await;
    client.leave().await;
    let mut client = Client::connect(&server, receive_maximum(1).resume()).await;
    assert!(client.connack.session_present);
    client.quiet().await;
}

#[tokio::test]
async fn packet_identifiers_in_flight_differ() {
    covers!("MQTT-2.2.1-4", "MQTT-4.3.2-1", "MQTT-4.3.3-1");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Client::new(&server, level, "publisher").await;
        let mut client = Client::new(&server, level, "subscriber").await;
        client.subscribe("t", 2).await;
        let mut used = HashSet::new();
        let mut inflight = Vec::new();
        for number in 0..600 {
            publisher.publish(Message::new("t", "x").qos(1 + (number % 2) as u8, 0)).await;
            let got = client.message().await;
            assert!(used.insert(got.id), "{} is in use", got.id);
            inflight.push(got);
            if number % 3 == 0 {
                let done = inflight.swap_remove(number % inflight.len());
                client.finish(&done).await;
                used.remove(&done.id);
            }
        }
    }
}

#[tokio::test]
async fn the_broker_keeps_to_the_clients_receive_maximum() {
    covers!(
        "MQTT-3.3.4-9",
        "MQTT-3.3.4-10",
        "MQTT-4.9.0-1",
        "MQTT-4.9.0-2",
        "MQTT-4.9.0-3",
        "MQTT-4.3.2-3",
        "MQTT-4.3.3-3",
    );
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    for most in [1, 2, 5] {
        let mut client = Client::connect(&server, receive_maximum(most)).await;
        client.subscribe("t", 2).await;
        for number in 0..20u8 {
            publisher.publish(Message::new("t", [number]).qos(1 + number % 2, 0)).await;
        }
        let mut expected = 0..20u8;
        let mut inflight = Vec::new();
        for number in expected.by_ref().take(most.into()) {
            let got = client.message().await;
            assert_eq!(got.payload, [number]);
            inflight.push(got);
        }
        while !inflight.is_empty() {
            // Everything else is answered, QoS 0 passes, and nothing more of QoS 1 and 2 comes.
            assert_eq!(client.subscribe_to(&[], &[("other", 0)]).await, [0]);
            client.publish(Message::new("other", "quick")).await;
            assert_eq!(client.text().await, "quick");
            assert_eq!(client.unsubscribe(&["other"]).await, [0]);
            client.quiet().await;
            let done = inflight.remove(0);
            if done.qos == 2 {
                // PUBREC frees no place.
                client.send(&ack(5, done.id, 0)).await;
                assert_eq!(client.acked(6, done.id).await, 0);
                client.quiet().await;
                client.send(&ack(7, done.id, 0)).await;
            } else {
                client.finish(&done).await;
            }
            if let Some(number) = expected.next() {
                let got = client.message().await;
                assert_eq!(got.payload, [number]);
                inflight.push(got);
            }
        }
    }
}

#[tokio::test]
async fn a_client_over_the_brokers_receive_maximum_is_disconnected() {
    covers!("MQTT-3.3.4-7");
    let most = NonZeroU16::new(4).expect("not 0");
    let server = Server::with(BrokerConfig { receive_maximum: most, ..BrokerConfig::default() }).await;
    let mut client = Client::v5(&server, "client").await;
    assert_eq!(client.connack.properties.number(0x21), Some(4));
    for round in 0..3 {
        // Up to the maximum, as often as one likes.
        for id in 1..=4 {
            client.send(&Message::new("t", "x").qos(2, id + round * 10).bytes(5)).await;
        }
        for id in 1..=4 {
            client.acked(5, id + round * 10).await;
        }
        for id in 1..=4 {
            client.send(&ack(6, id + round * 10, 0)).await;
            assert_eq!(client.acked(7, id + round * 10).await, 0);
        }
    }
    for id in 1..=5 {
        client.send(&Message::new("t", "x").qos(2, id).bytes(5)).await;
    }
    let packets = client.until_closed().await;
    assert_eq!(packets.len(), 5, "{packets:?}");
    assert!(matches!(packets[4], Packet::Disconnect { reason: 0x93, .. }), "{packets:?}");
}

#[tokio::test]
async fn messages_and_answers_keep_their_order() {
    covers!("MQTT-4.6.0-5", "MQTT-4.6.0-6");
    const EACH: u16 = 300;
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Client::new(&server, level, "publisher").await;
        let mut client = Client::new(&server, level, "subscriber").await;
        client.subscribe("a/#", 2).await;
        let mut bytes = Vec::new();
        for number in 1..=EACH {
            let message = Message::new(&format!("a/{}", number % 2), number.to_be_bytes());
            bytes.extend(message.qos((number % 3) as u8, number).bytes(level));
        }
        publisher.send(&bytes).await;
        // PUBACKs and PUBRECs come in the order of their messages, PUBCOMPs in that of their PUBRELs.
        for number in (1..=EACH).filter(|number| number % 3 > 0) {
            publisher.acked(if number % 3 == 1 { 4 } else { 5 }, number).await;
        }
        let twice = (1..=EACH).filter(|number| number % 3 == 2);
        let releases: Vec<Vec<u8>> = twice.clone().map(|number| ack(6, number, 0)).collect();
        publisher.send(&releases.concat()).await;
        for number in twice {
            publisher.acked(7, number).await;
        }
        let mut next: Vec<u16> =
            (0..6).map(|kind| (1..=EACH).find(|n| n % 6 == kind).expect("some")).collect();
        for _ in 0..EACH {
            let got = client.message().await;
            client.finish(&got).await;
            let number = u16::from_be_bytes(got.payload[..].try_into().expect("2 bytes"));
            let next = &mut next[usize::from(number % 6)];
            assert_eq!((number, u16::from(got.qos)), (*next, number % 3), "in order for its topic and QoS");
            *next += 6;
        }
    }
}

#[tokio::test]
async fn the_exchange_goes_on_when_the_message_expires() {
    covers!("MQTT-4.3.3-13");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    let mut other = Client::v5(&server, "other").await;
    client.send(&Message::new("t", "x").qos(2, 3).with(p32(0x02, 1)).bytes(5)).await;
    assert!(client.acked(5, 3).await < 0x80);
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    other.ping().await;
    client.send(&Message::new("t", "x").qos(2, 3).dup().with(p32(0x02, 1)).bytes(5)).await;
    assert!(client.acked(5, 3).await < 0x80);
    client.send(&ack(6, 3, 0)).await;
    assert_eq!(client.acked(7, 3).await, 0);
}
