//! Retained messages: sections 3.3.1.3 and 3.8.3.1.

use std::time::Duration;

use crate::client::Client;
use crate::encode::{Connect, Message, p32};
use crate::server::Server;

const RETAIN_AS_PUBLISHED: u8 = 8;
const ONLY_NEW: u8 = 0x10;
const NEVER: u8 = 0x20;

/// Keeps this as the topic's retained message.
async fn keep(client: &mut Client, topic: &str, payload: &str, qos: u8) {
    client.publish(Message::new(topic, payload).qos(qos, 0).retain()).await;
}

/// Topic, payload, QoS and retain flag of the next messages, sorted.
async fn some(client: &mut Client, count: usize) -> Vec<(String, String, u8, bool)> {
    let mut messages = Vec::new();
    for _ in 0..count {
        let got = client.message().await;
        client.finish(&got).await;
        messages.push((got.topic.clone(), got.text().to_owned(), got.qos, got.retain));
    }
    messages.sort();
    messages
}

fn kept(topic: &str, payload: &str, qos: u8) -> (String, String, u8, bool) {
    (topic.to_owned(), payload.to_owned(), qos, true)
}

#[tokio::test]
async fn the_last_retained_message_of_each_topic_comes_upon_subscribing() {
    covers!("MQTT-3.3.1-5", "MQTT-3.3.1-9", "MQTT-3.8.4-8", "3.1.1 MQTT-3.3.1-6", "3.1.1 MQTT-3.3.1-8");
    let server = Server::start().await;
    for (level, base) in [(5, "new"), (4, "old")] {
        let topic = |name: &str| format!("{base}/{name}");
        let mut publisher = Client::new(&server, level, "publisher").await;
        for payload in ["first", "last"] {
            for (qos, name) in ["a", "b", "c/d"].into_iter().enumerate() {
                keep(&mut publisher, &topic(name), payload, qos as u8).await;
            }
        }
        for granted in 0..3u8 {
            let mut client = Client::new(&server, level, "client").await;
            client.subscribe(&topic("#"), granted).await;
            let expected = [
                kept(&topic("a"), "last", 0),
                kept(&topic("b"), "last", granted.min(1)),
                kept(&topic("c/d"), "last", granted),
            ];
            assert_eq!(some(&mut client, 3).await, expected);
            client.quiet().await;
            client.subscribe(&topic("+"), 0).await;
            assert_eq!(
                some(&mut client, 2).await,
                [kept(&topic("a"), "last", 0), kept(&topic("b"), "last", 0)]
            );
            client.subscribe(&topic("none"), 0).await;
            client.quiet().await;
        }
    }
}

#[tokio::test]
async fn an_empty_message_removes_the_retained_one_and_is_delivered() {
    covers!("MQTT-3.3.1-6", "MQTT-3.3.1-7");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Client::new(&server, level, "publisher").await;
        let mut watcher = Client::new(&server, level, "watcher").await;
        watcher.subscribe("t", 0).await;
        for qos in 0..3 {
            keep(&mut publisher, "t", "x", qos).await;
            assert_eq!(watcher.text().await, "x");
            keep(&mut publisher, "t", "", qos).await;
            assert_eq!(watcher.text().await, "", "it is passed on");
            let mut late = Client::new(&server, level, "late").await;
            late.subscribe("t", 0).await;
            late.quiet().await;
        }
    }
}

#[tokio::test]
async fn messages_that_are_not_retained_leave_the_retained_one_alone() {
    covers!("MQTT-3.3.1-8");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    keep(&mut publisher, "t", "kept", 1).await;
    for payload in ["other", ""] {
        publisher.publish(Message::new("t", payload).qos(1, 0)).await;
        publisher.publish(Message::new("u", payload).qos(1, 0)).await;
    }
    let mut late = Client::v5(&server, "late").await;
    late.subscribe("#", 1).await;
    assert_eq!(some(&mut late, 1).await, [kept("t", "kept", 1)]);
    late.quiet().await;
}

#[tokio::test]
async fn retain_handling_says_when_they_come() {
    covers!("MQTT-3.3.1-9", "MQTT-3.3.1-10", "MQTT-3.3.1-11", "MQTT-3.8.4-4");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    keep(&mut publisher, "t", "kept", 1).await;
    let mut client = Client::connect(&server, Connect::v5("client").lasting()).await;
    // Options, and whether the retained message comes.
    let steps = [
        (NEVER, false),
        (ONLY_NEW, false),
        (0, true),
        (0, true),
        (ONLY_NEW | 1, false),
        (NEVER | 2, false),
    ];
    for (options, comes) in steps {
        client.subscribe("t", options).await;
        if comes {
            assert_eq!(some(&mut client, 1).await, [kept("t", "kept", options & 1)]);
        }
        client.quiet().await;
    }
    assert_eq!(client.unsubscribe(&["t"]).await, [0]);
    client.subscribe("t", ONLY_NEW | 1).await;
    assert_eq!(some(&mut client, 1).await, [kept("t", "kept", 1)], "new again");
    client.leave().await;
    // It is not new in a session that is taken up again.
    let mut client = Client::connect(&server, Connect::v5("client").resume().lasting()).await;
    assert!(client.connack.session_present);
    client.quiet().await;
    client.subscribe("t", ONLY_NEW | 1).await;
    client.quiet().await;
}

#[tokio::test]
async fn the_retain_flag_is_kept_where_asked_for() {
    covers!("MQTT-3.3.1-12", "MQTT-3.3.1-13", "3.1.1 MQTT-3.3.1-9");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut cleared = Client::v5(&server, "cleared").await;
    let mut passed = Client::v5(&server, "passed").await;
    let mut old = Client::new(&server, 4, "old").await;
    cleared.subscribe("t", 1).await;
    passed.subscribe("t", 1 | RETAIN_AS_PUBLISHED).await;
    old.subscribe("t", 1).await;
    for retain in [true, false] {
        publisher.publish(Message { retain, ..Message::new("t", "x").qos(1, 0) }).await;
        for (client, expected) in [(&mut cleared, false), (&mut passed, retain), (&mut old, false)] {
            let got = client.message().await;
            client.finish(&got).await;
            assert_eq!(got.retain, expected);
        }
    }
}

#[tokio::test]
async fn an_expired_retained_message_does_not_come() {
    covers!("MQTT-3.3.2-5", "MQTT-3.3.2-6");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    for (topic, seconds) in [("t/short", 1), ("t/long", 100)] {
        let message = Message::new(topic, "x").retain().with(p32(0x02, seconds)).qos(1, 0);
        publisher.publish(message).await;
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("t/#", 1).await;
    let got = client.message().await;
    client.finish(&got).await;
    assert_eq!(got.topic, "t/long");
    let left = got.properties.number(0x02).expect("an expiry interval");
    assert!((90..=99).contains(&left), "{left} s");
    client.quiet().await;
}

#[tokio::test]
async fn retained_messages_outlive_the_session_of_their_publisher() {
    covers!("3.1.1 MQTT-3.1.2-7");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Client::new(&server, level, "publisher").await;
        keep(&mut publisher, "t", "kept", 1).await;
        publisher.leave().await;
        // A clean session of the same name changes nothing.
        Client::new(&server, level, "publisher").await.leave().await;
        let mut late = Client::new(&server, level, "late").await;
        late.subscribe("t", 1).await;
        assert_eq!(some(&mut late, 1).await, [kept("t", "kept", 1)]);
    }
}

#[tokio::test]
async fn many_retained_messages_all_come() {
    covers!("MQTT-3.3.1-9");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut expected = Vec::new();
    for number in 0..2000 {
        let topic = format!("many/{number:04}");
        publisher.send(&Message::new(&topic, "x").retain().bytes(5)).await;
        expected.push(kept(&topic, "x", 0));
    }
    publisher.ping().await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("many/#", 2).await;
    assert_eq!(some(&mut client, 2000).await, expected);
    client.quiet().await;
}
