//! Section 3.3: PUBLISH and its properties.

use std::collections::HashMap;

use edgefaas_broker::BrokerConfig;

use crate::client::{Client, refused};
use crate::decode::Packet;
use crate::encode::{Connect, Message, p8, p16, p32, ptext, puser, pvar};
use crate::server::Server;

#[tokio::test]
async fn flags_that_are_not_allowed_are_malformed() {
    covers!("MQTT-3.3.1-2", "MQTT-3.3.1-4", "3.1.1 MQTT-4.8.0-1");
    let server = Server::start().await;
    for level in [4, 5] {
        let wrong = [
            Message::new("t", "x").dup(),
            Message::new("t", "x").qos(3, 1),
            Message::new("t", "x").qos(3, 1).dup().retain(),
        ];
        for message in wrong {
            let reason = refused(&server, level, &message.bytes(level)).await;
            assert_eq!(reason, if level == 5 { 0x81 } else { 0 }, "{message:?}");
        }
    }
}

#[tokio::test]
async fn dup_coming_in_is_not_dup_going_out() {
    covers!("MQTT-3.3.1-3", "MQTT-2.2.1-2", "MQTT-4.3.1-1", "MQTT-4.3.2-2", "MQTT-4.3.3-2");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut client = Client::new(&server, level, "client").await;
        client.subscribe("t", 2).await;
        let messages = [
            Message::new("t", "0"),
            Message::new("t", "1").qos(1, 11),
            Message::new("t", "2").qos(1, 12).dup(),
            Message::new("t", "3").qos(2, 13),
            Message::new("t", "4").qos(2, 14).dup(),
        ];
        for message in messages {
            client.publish(message.clone()).await;
            let got = client.message().await;
            assert_eq!(
                (got.dup, got.qos, got.id > 0),
                (false, message.qos, message.qos > 0),
                "{message:?}"
            );
            client.finish(&got).await;
        }
    }
}

#[tokio::test]
async fn topics_that_are_not_valid_are_refused() {
    covers!("MQTT-3.3.2-2", "MQTT-4.7.0-1", "MQTT-4.7.3-1");
    let server = Server::start().await;
    for topic in ["#", "+", "a/#", "a/+/b", "a+", "a#b"] {
        for level in [4, 5] {
            let reason = refused(&server, level, &Message::new(topic, "x").bytes(level)).await;
            assert_eq!(reason, if level == 5 { 0x90 } else { 0 }, "{topic}");
        }
    }
    assert_eq!(refused(&server, 4, &Message::new("", "x").bytes(4)).await, 0);
    assert_eq!(refused(&server, 5, &Message::new("", "x").bytes(5)).await, 0x82, "no topic and no alias");
}

#[tokio::test]
async fn properties_pass_unaltered() {
    covers!(
        "MQTT-3.3.2-4",
        "MQTT-3.3.2-15",
        "MQTT-3.3.2-16",
        "MQTT-3.3.2-17",
        "MQTT-3.3.2-18",
        "MQTT-3.3.2-20",
    );
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut subscriber = Client::v5(&server, "subscriber").await;
    let mut old = Client::new(&server, 4, "old").await;
    let binary: Vec<u8> = (0..=255).collect();
    let user = [("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("b", "3"), ("ü", "€")];
    for (qos, retain) in [(0, false), (1, false), (2, false), (1, true)] {
        if !retain {
            subscriber.subscribe("t", qos).await;
            old.subscribe("t", qos).await;
        }
        let mut message = Message::new("t", "{}").qos(qos, 0);
        message.retain = retain;
        message.properties = vec![
            p8(0x01, 1),
            ptext(0x03, "application/json"),
            ptext(0x08, "reply/to/me"),
            ptext(0x09, &binary),
        ];
        message.properties.extend(user.map(|(name, value)| puser(name, value)));
        publisher.publish(message).await;
        if retain {
            // The same from the retained store.
            subscriber.message().await;
            old.message().await;
            subscriber.unsubscribe(&["t"]).await;
            subscriber.subscribe("t", 0).await;
            old.subscribe("t", 0).await;
        }
        let got = subscriber.message().await;
        subscriber.finish(&got).await;
        let properties = &got.properties;
        assert_eq!(properties.number(0x01), Some(1), "payload format indicator");
        assert_eq!(properties.bytes(0x03), Some(&b"application/json"[..]));
        assert_eq!(properties.bytes(0x08), Some(&b"reply/to/me"[..]));
        assert_eq!(properties.bytes(0x09), Some(&binary[..]));
        let passed = properties.user();
        let passed: Vec<_> = passed.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        assert_eq!(passed, user, "user properties in their order");
        assert_eq!(got.properties.0.len(), 4 + user.len(), "and nothing else");
        let got = old.message().await;
        old.finish(&got).await;
        assert_eq!(got.text(), "{}");
    }
}

#[tokio::test]
async fn properties_that_are_empty_or_absent_stay_so() {
    covers!("MQTT-3.3.2-4", "MQTT-3.3.2-16", "MQTT-3.3.2-20", "MQTT-2.2.2-1");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("t", 0).await;
    client.publish(Message::new("t", "plain")).await;
    assert_eq!(client.message().await.properties.0, []);
    let empty =
        Message { properties: vec![ptext(0x03, ""), ptext(0x09, "")], ..Message::new("t", "empty") };
    client.publish(empty).await;
    let got = client.message().await;
    assert_eq!((got.properties.bytes(0x03), got.properties.bytes(0x09)), (Some(&[][..]), Some(&[][..])));
    client.publish(Message::new("t", "bytes").with(p8(0x01, 0))).await;
    assert_ne!(client.message().await.properties.number(0x01), Some(1), "payload format indicator 0");
}

#[tokio::test]
async fn a_response_topic_with_a_wildcard_is_refused() {
    covers!("MQTT-3.3.2-14");
    let server = Server::start().await;
    for topic in ["reply/+", "#", "a+"] {
        let reason = refused(&server, 5, &Message::new("t", "x").with(ptext(0x08, topic)).bytes(5)).await;
        assert!(matches!(reason, 0x81 | 0x82 | 0x90), "{reason:#x} for {topic}");
    }
}

#[tokio::test]
async fn a_subscription_identifier_from_a_client_is_refused() {
    covers!("MQTT-3.3.4-6");
    let server = Server::start().await;
    assert_eq!(refused(&server, 5, &Message::new("t", "x").with(pvar(0x0b, 5)).bytes(5)).await, 0x82);
}

#[tokio::test]
async fn every_alias_up_to_the_maximum_stands_for_its_topic() {
    covers!("MQTT-3.3.2-12");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    let maximum = client.connack.properties.number(0x22).expect("topic alias maximum") as u16;
    assert!(maximum > 1);
    client.subscribe("#", 1).await;
    for alias in 1..=maximum {
        client.publish(Message::new(&format!("t/{alias}"), "set").with(p16(0x23, alias))).await;
    }
    // Set anew while it is in use.
    client.publish(Message::new("t/other", "set").with(p16(0x23, 1))).await;
    for alias in (1..=maximum).rev() {
        client.publish(Message::new("", "used").with(p16(0x23, alias)).qos(1, 0)).await;
    }
    let set = (1..=maximum).map(|alias| format!("t/{alias}")).chain(["t/other".into()]);
    let used = (2..=maximum).rev().map(|alias| format!("t/{alias}")).chain(["t/other".into()]);
    let expected = set.map(|topic| (topic, "set")).chain(used.map(|topic| (topic, "used")));
    for (topic, text) in expected {
        let got = client.message().await;
        assert_eq!((&got.topic, got.text()), (&topic, text));
        client.finish(&got).await;
    }
}

#[tokio::test]
async fn aliases_out_of_range_are_refused() {
    covers!("MQTT-3.3.2-8", "MQTT-3.3.2-9", "MQTT-3.2.2-17", "MQTT-3.2.2-18");
    let server = Server::start().await;
    let maximum = Client::v5(&server, "client").await.connack.properties.number(0x22).expect("a maximum");
    for alias in [0, maximum as u16 + 1, u16::MAX] {
        let bytes = Message::new("t", "x").with(p16(0x23, alias)).bytes(5);
        assert_eq!(refused(&server, 5, &bytes).await, 0x94, "alias {alias}");
    }
    let unknown = Message::new("", "x").with(p16(0x23, 1)).bytes(5);
    assert_eq!(refused(&server, 5, &unknown).await, 0x82, "an alias that was never set");
    let none = Server::with(BrokerConfig { topic_alias_maximum: 0, ..BrokerConfig::default() }).await;
    let connack = Client::v5(&none, "client").await.connack;
    assert_eq!(connack.properties.number(0x22).unwrap_or(0), 0);
    assert_eq!(refused(&none, 5, &Message::new("t", "x").with(p16(0x23, 1)).bytes(5)).await, 0x94);
}

#[tokio::test]
async fn aliases_end_with_their_connection() {
    covers!("MQTT-3.3.2-7");
    let server = Server::start().await;
    let mut client = Client::connect(&server, Connect::v5("client").lasting()).await;
    client.publish(Message::new("t", "x").with(p16(0x23, 1))).await;
    client.leave().await;
    let mut client = Client::connect(&server, Connect::v5("client").resume().lasting()).await;
    assert!(client.connack.session_present);
    client.send(&Message::new("", "x").with(p16(0x23, 1)).bytes(5)).await;
    assert_eq!(client.disconnected().await, 0x82);
}

#[tokio::test]
async fn the_broker_keeps_to_the_clients_alias_maximum() {
    covers!("MQTT-3.1.2-26", "MQTT-3.1.2-27", "MQTT-3.3.2-11");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    for maximum in [None, Some(0), Some(1), Some(2), Some(u16::MAX)] {
        let connect = Connect::v5("client");
        let connect = match maximum {
            Some(maximum) => connect.with(p16(0x22, maximum)),
            None => connect,
        };
        // A new connection starts without aliases, whatever an earlier one had.
        let mut client = Client::connect(&server, connect).await;
        client.subscribe("t/#", 1).await;
        let mut known: HashMap<u32, String> = HashMap::new();
        for number in 0..40 {
            let topic = format!("t/{}", number % 4);
            publisher.publish(Message::new(&topic, topic.as_bytes()).qos((number % 2) as u8, 0)).await;
            let got = client.message().await;
            client.finish(&got).await;
            if let Some(alias) = got.properties.number(0x23) {
                assert!(alias <= maximum.unwrap_or(0).into(), "alias {alias} of {maximum:?}");
                if !got.topic.is_empty() {
                    known.insert(alias, got.topic.clone());
                }
                assert_eq!(known.get(&alias).map(String::as_str), Some(got.text()), "alias {alias}");
            } else {
                assert_eq!(got.topic, got.text());
            }
        }
    }
}

#[tokio::test]
async fn a_message_is_answered_as_its_qos_says() {
    covers!("MQTT-3.3.4-1", "MQTT-2.2.1-5", "MQTT-3.4.2-1", "MQTT-3.5.2-1", "MQTT-3.7.2-1");
    let server = Server::start().await;
    for level in [4, 5] {
        for matched in [false, true] {
            let mut client = Client::new(&server, level, "client").await;
            let mut other = Client::new(&server, level, "other").await;
            if matched {
                other.subscribe("t", 0).await;
            }
            client.send(&Message::new("t", "0").bytes(level)).await;
            client.quiet().await;
            for id in [1, 256, u16::MAX] {
                client.send(&Message::new("t", "1").qos(1, id).bytes(level)).await;
                let expected: &[u8] = if matched || level == 4 { &[0] } else { &[0, 0x10] };
                assert!(expected.contains(&client.acked(4, id).await));
                client.send(&Message::new("t", "2").qos(2, id).bytes(level)).await;
                assert!(expected.contains(&client.acked(5, id).await));
                client.send(&crate::encode::ack(6, id, 0)).await;
                assert_eq!(client.acked(7, id).await, 0);
            }
            client.quiet().await;
        }
    }
}

#[tokio::test]
async fn the_expiry_interval_is_passed_on() {
    covers!("MQTT-3.3.2-6");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("t", 1).await;
    for seconds in [1, 60, u32::MAX] {
        client.publish(Message::new("t", "x").with(p32(0x02, seconds)).qos(1, 0)).await;
        let got = client.message().await;
        client.finish(&got).await;
        let left = got.properties.number(0x02).expect("an expiry interval");
        assert!(left == seconds || left == seconds - 1, "{left} of {seconds} s");
    }
    client.publish(Message::new("t", "x")).await;
    assert_eq!(client.message().await.properties.number(0x02), None);
}

#[tokio::test]
async fn payloads_of_any_bytes_and_sizes_pass() {
    covers!("MQTT-3.3.4-1", "MQTT-1.5.5-1");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut client = Client::new(&server, level, "client").await;
        client.subscribe("t", 2).await;
        // Around the borders of the remaining length.
        for size in [0, 1, 120, 121, 122, 123, 124, 125, 16_370, 16_378, 16_380, 16_384, 500_000] {
            let payload: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            client.send(&Message::new("t", &payload).bytes(level)).await;
            let got = client.receive().await;
            assert!(matches!(got, Packet::Publish(got) if got.payload == payload), "{size} bytes");
        }
    }
}
