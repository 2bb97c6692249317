//! Sections 3.8 to 3.11: SUBSCRIBE and UNSUBSCRIBE with their answers.

use edgefaas_broker::BrokerConfig;

use crate::client::{Client, refused};
use crate::decode::Packet;
use crate::encode::{Message, packet, pvar, subscribe, text, unsubscribe};
use crate::server::Server;

const NO_LOCAL: u8 = 4;

#[tokio::test]
async fn each_filter_gets_its_reason_in_order() {
    covers!(
        "MQTT-3.8.4-1",
        "MQTT-3.8.4-2",
        "MQTT-3.8.4-5",
        "MQTT-3.8.4-6",
        "MQTT-3.8.4-7",
        "MQTT-3.9.3-1",
        "MQTT-3.9.3-2",
        "MQTT-2.2.1-6",
        "3.1.1 MQTT-3.9.3-2",
    );
    let server =
        Server::with(BrokerConfig { max_subscriptions_per_session: 3, ..BrokerConfig::default() }).await;
    for (level, failed) in [(5, 0x97), (4, 0x80)] {
        let mut client = Client::new(&server, level, "client").await;
        let filters = [("a", 2), ("b/#", 0), ("c/+", 1), ("d", 1), ("a", 0)];
        assert_eq!(client.subscribe_to(&[], &filters).await, [2, 0, 1, failed, 0]);
        client.send(&subscribe(level, u16::MAX, &[], &[("b/#", 2)])).await;
        match client.receive().await {
            Packet::SubAck { id, reasons, .. } => assert_eq!((id, &reasons[..]), (u16::MAX, &[2][..])),
            other => panic!("{other:?}"),
        }
        // Those that were granted are there, the other is not.
        for topic in ["d", "a", "b/1", "c/1"] {
            client.publish(Message::new(topic, topic).qos(2, 0)).await;
        }
        for (topic, qos) in [("a", 0), ("b/1", 2), ("c/1", 1)] {
            let got = client.message().await;
            client.finish(&got).await;
            assert_eq!((&got.topic[..], got.qos), (topic, qos));
        }
        client.quiet().await;
    }
}

#[tokio::test]
async fn a_subscription_without_a_filter_is_a_protocol_error() {
    covers!("MQTT-3.8.3-2", "MQTT-3.10.3-2");
    let server = Server::start().await;
    for (level, reason) in [(5, 0x82), (4, 0)] {
        assert_eq!(refused(&server, level, &subscribe(level, 1, &[], &[])).await, reason);
        assert_eq!(refused(&server, level, &unsubscribe(level, 1, &[])).await, reason);
    }
}

#[tokio::test]
async fn options_that_are_not_allowed_are_refused() {
    covers!("MQTT-3.8.3-5", "3.1.1 MQTT-3.8.3-4");
    let server = Server::start().await;
    for (options, reason) in [(0x40, 0x81), (0x80, 0x81), (0xc1, 0x81), (3, 0x82), (0x30, 0x82)] {
        let bytes = subscribe(5, 1, &[], &[("fine", 0), ("t", options)]);
        assert_eq!(refused(&server, 5, &bytes).await, reason, "options {options:#x}");
    }
    // In 3.1.1 all but the QoS is reserved.
    for options in [3, 4, 8, 0x10, 0x20, 0x40, 0x80] {
        assert_eq!(refused(&server, 4, &subscribe(4, 1, &[], &[("t", options)])).await, 0);
    }
    let without = packet(0x82, &[&[0, 1, 0], &text("t")]);
    assert_eq!(refused(&server, 5, &without).await, 0x81, "a filter without options");
}

#[tokio::test]
async fn no_local_keeps_a_clients_own_messages_away() {
    covers!("MQTT-3.8.3-3");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    let mut other = Client::v5(&server, "other").await;
    client.subscribe("t/#", 1 | NO_LOCAL).await;
    other.subscribe("t/#", 1 | NO_LOCAL).await;
    client.say("t/1", "mine").await;
    assert_eq!(other.text().await, "mine");
    other.say("t/1", "theirs").await;
    assert_eq!(client.text().await, "theirs");
    client.quiet().await;
    other.quiet().await;
    // With a second subscription that wants them they come, once.
    client.subscribe("t/+", 0).await;
    client.say("t/1", "again").await;
    assert_eq!(client.text().await, "again");
    client.quiet().await;
}

#[tokio::test]
async fn the_same_filter_again_replaces_the_subscription() {
    covers!("MQTT-3.8.4-3", "MQTT-3.8.4-4");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut client = Client::v5(&server, "client").await;
    publisher.publish(Message::new("t", "kept").qos(2, 0).retain()).await;
    for (identifier, qos) in [(Some(5), 0), (Some(6), 2), (None, 1)] {
        let properties: Vec<Vec<u8>> = identifier.iter().map(|id| pvar(0x0b, *id)).collect();
        assert_eq!(client.subscribe_to(&properties, &[("t", qos)]).await, [qos]);
        publisher.publish(Message::new("t", "live").qos(2, 0)).await;
        for text in ["kept", "live"] {
            let got = client.message().await;
            client.finish(&got).await;
            let identifiers: Vec<u32> = identifier.iter().map(|id| *id as u32).collect();
            assert_eq!((got.text(), got.qos), (text, qos));
            assert_eq!(got.properties.subscriptions(), identifiers);
        }
        client.quiet().await;
    }
}

#[tokio::test]
async fn no_message_is_lost_while_a_subscription_is_replaced() {
    covers!("MQTT-3.8.4-4");
    const COUNT: u32 = 500;
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("t", 1).await;
    let publishing = tokio::spawn(async move {
        for number in 0..COUNT {
            publisher.say("t", &number.to_string()).await;
        }
    });
    let mut replaced = 0;
    for number in 0..COUNT {
        assert_eq!(client.text().await, number.to_string());
        if number % 5 == 0 {
            client.subscribe("t", 1).await;
            replaced += 1;
        }
    }
    publishing.await.expect("published");
    assert_eq!(replaced, 100);
    client.quiet().await;
}

#[tokio::test]
async fn overlapping_subscriptions_bring_one_copy_at_the_highest_qos_with_all_identifiers() {
    covers!("MQTT-3.3.4-2", "MQTT-3.3.4-3", "MQTT-3.3.4-4", "MQTT-3.8.4-8");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe_to(&[pvar(0x0b, 1)], &[("a/#", 0)]).await;
    client.subscribe_to(&[pvar(0x0b, 268_435_455)], &[("a/+", 2)]).await;
    client.subscribe_to(&[], &[("a/b", 1)]).await;
    for qos in 0..3 {
        client.publish(Message::new("a/b", "x").qos(qos, 0)).await;
        let got = client.message().await;
        client.finish(&got).await;
        assert_eq!(got.qos, qos, "the highest granted is 2");
        assert_eq!(got.properties.subscriptions(), [1, 268_435_455]);
        client.quiet().await;
    }
}

#[tokio::test]
async fn delivery_is_at_the_lower_qos() {
    covers!("MQTT-3.8.4-8");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Client::new(&server, level, "publisher").await;
        for granted in 0..3u8 {
            let mut client = Client::new(&server, level, "client").await;
            client.subscribe("t", granted).await;
            for published in 0..3u8 {
                publisher.publish(Message::new("t", "x").qos(published, 0)).await;
                let got = client.message().await;
                client.finish(&got).await;
                assert_eq!(got.qos, published.min(granted));
            }
        }
    }
}

#[tokio::test]
async fn unsubscribing_takes_exactly_the_same_filter() {
    covers!(
        "MQTT-3.10.4-1",
        "MQTT-3.10.4-2",
        "MQTT-3.10.4-4",
        "MQTT-3.10.4-5",
        "MQTT-3.10.4-6",
        "MQTT-3.11.3-1",
        "MQTT-3.11.3-2",
        "MQTT-2.2.1-6",
    );
    let server = Server::start().await;
    for level in [4, 5] {
        let mut client = Client::new(&server, level, "client").await;
        client.subscribe_to(&[], &[("a/b", 1), ("a/+", 1), ("c", 1), ("d", 1)]).await;
        let codes = |reasons: &[u8]| if level == 5 { reasons.to_vec() } else { Vec::new() };
        assert_eq!(client.unsubscribe(&["a/#", "#", "A/b", "a/b/"]).await, codes(&[0x11; 4]));
        client.say("a/b", "still").await;
        assert_eq!(client.text().await, "still");
        assert_eq!(client.unsubscribe(&["a/b", "none", "c", "c"]).await, codes(&[0, 0x11, 0, 0x11]));
        client.say("a/b", "by the other filter").await;
        assert_eq!(client.text().await, "by the other filter");
        assert_eq!(client.unsubscribe(&["a/+"]).await, codes(&[0]));
        for topic in ["a/b", "c"] {
            client.say(topic, "to nobody").await;
        }
        client.say("d", "the rest").await;
        assert_eq!(client.text().await, "the rest");
        client.quiet().await;
    }
}

#[tokio::test]
async fn a_delivery_that_has_begun_is_completed_after_unsubscribing() {
    covers!("MQTT-3.10.4-3");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("t", 2).await;
    for qos in [1, 2] {
        client.publish(Message::new("t", "begun").qos(qos, 0)).await;
    }
    let begun = [client.message().await, client.message().await];
    client.unsubscribe(&["t"]).await;
    client.publish(Message::new("t", "too late").qos(1, 0)).await;
    for message in &begun {
        client.finish(message).await;
    }
    client.quiet().await;
}
