//! Sections 4.4 and 4.5: what a session brings when it is taken up again.

use std::time::Duration;

use crate::client::Client;
use crate::decode::Packet;
use crate::encode::{Connect, Message, ack, p16, p32, ptext, puser};
use crate::server::Server;

fn lasting(level: u8) -> Connect {
    Connect::new(level, "client").lasting()
}

/// The same session once more; its CONNACK says that it is there.
async fn again(server: &Server, level: u8) -> Client {
    let client = Client::connect(server, lasting(level).resume()).await;
    assert!(client.connack.session_present);
    client
}

#[tokio::test]
async fn what_was_not_acknowledged_is_sent_again_with_its_identifier() {
    covers!(
        "MQTT-4.4.0-1",
        "MQTT-3.3.1-1",
        "MQTT-4.3.2-3",
        "MQTT-4.3.3-3",
        "MQTT-4.3.3-5",
        "MQTT-4.3.3-6",
        "MQTT-3.2.0-1",
        "3.1.1 MQTT-4.4.0-1",
    );
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Client::new(&server, level, "publisher").await;
        let mut client = Client::connect(&server, lasting(level)).await;
        client.subscribe("t", 2).await;
        for (text, qos) in [("done", 1), ("one", 1), ("two", 2), ("released", 2), ("last", 1)] {
            publisher.publish(Message::new("t", text).qos(qos, 0)).await;
        }
        let mut got = Vec::new();
        for _ in 0..5 {
            got.push(client.message().await);
        }
        client.finish(&got[0]).await;
        client.send(&ack(5, got[3].id, 0)).await;
        assert_eq!(client.acked(6, got[3].id).await, 0);
        // Nothing is sent again while the connection stays.
        client.quiet().await;
        for _ in 0..3 {
            drop(client);
            client = again(&server, level).await;
            let mut publishes = Vec::new();
            let mut released = 0;
            for _ in 0..4 {
                match client.receive().await {
                    Packet::Publish(publish) => publishes.push(publish),
                    Packet::Ack { kind: 6, id, reason: 0, .. } => {
                        assert_eq!(id, got[3].id, "PUBREL");
                        released += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(released, 1);
            for (publish, before) in publishes.iter().zip([&got[1], &got[2], &got[4]]) {
                assert!(publish.dup);
                assert_eq!(
                    (publish.id, publish.qos, &publish.payload),
                    (before.id, before.qos, &before.payload)
                );
            }
            client.quiet().await;
        }
        client.send(&ack(7, got[3].id, 0)).await;
        for message in [&got[1], &got[2], &got[4]] {
            client.finish(message).await;
        }
        client.quiet().await;
        client.leave().await;
        again(&server, level).await.quiet().await;
        Client::new(&server, level, "client").await.leave().await;
    }
}

#[tokio::test]
async fn messages_wait_for_a_client_that_is_away() {
    covers!(
        "MQTT-4.5.0-1",
        "MQTT-4.6.0-5",
        "MQTT-3.1.2-5",
        "MQTT-3.1.2-23",
        "MQTT-3.3.1-1",
        "3.1.1 MQTT-3.1.2-4",
        "3.1.1 MQTT-3.1.2-5",
        "3.1.1 MQTT-3.2.2-2",
    );
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Client::v5(&server, "publisher").await;
        let mut client = Client::connect(&server, lasting(level)).await;
        client.subscribe("t/#", 2).await;
        publisher.publish(Message::new("t/0", "in flight").qos(1, 0)).await;
        let inflight = client.message().await;
        drop(client);
        for number in 0..200 {
            let message = Message::new(&format!("t/{}", number % 3), number.to_string());
            publisher.publish(message.qos(1 + (number % 2) as u8, 0)).await;
        }
        let mut client = again(&server, level).await;
        let first = client.message().await;
        assert_eq!((first.id, first.dup, first.text()), (inflight.id, true, "in flight"));
        client.finish(&first).await;
        // While the rest is on its way, more is published.
        for number in 200..220 {
            publisher.publish(Message::new("t/1", number.to_string()).qos(1 + (number % 2) as u8, 0)).await;
        }
        for number in 0..220 {
            let got = client.message().await;
            assert_eq!((got.text(), got.dup), (&number.to_string()[..], false), "never sent before");
            assert_eq!(u32::from(got.qos), 1 + number % 2);
            client.finish(&got).await;
        }
        client.quiet().await;
        Client::new(&server, level, "client").await.leave().await;
    }
}

#[tokio::test]
async fn waiting_messages_keep_their_properties_and_expire() {
    covers!("MQTT-3.3.2-5", "MQTT-3.3.2-6", "MQTT-3.3.2-17", "MQTT-3.3.2-18", "MQTT-3.3.2-16");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut client = Client::connect(&server, lasting(5)).await;
    client.subscribe("t", 2).await;
    client.leave().await;
    let properties = [ptext(0x03, "text/plain"), ptext(0x08, "reply"), ptext(0x09, [0, 1, 2])];
    let user = [puser("b", "1"), puser("a", "2"), puser("b", "3")];
    for (text, qos, seconds) in [("short", 1, 1), ("long", 1, 100), ("short", 2, 1), ("endless", 2, 0)] {
        let mut message = Message::new("t", text).qos(qos, 0).with(vec![0x01, 1]);
        message.properties.extend(properties.iter().chain(&user).cloned());
        if seconds > 0 {
            message = message.with(p32(0x02, seconds));
        }
        publisher.publish(message).await;
    }
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let mut client = again(&server, 5).await;
    for (text, left) in [("long", Some(90..=99)), ("endless", None)] {
        let got = client.message().await;
        client.finish(&got).await;
        assert_eq!(got.text(), text);
        let expiry = got.properties.number(0x02);
        assert_eq!(expiry.is_some(), left.is_some());
        assert!(left.is_none_or(|left| left.contains(&expiry.unwrap_or(0))), "{expiry:?} s");
        assert_eq!(got.properties.number(0x01), Some(1));
        assert_eq!(got.properties.bytes(0x03), Some(&b"text/plain"[..]));
        assert_eq!(got.properties.bytes(0x08), Some(&b"reply"[..]));
        assert_eq!(got.properties.bytes(0x09), Some(&[0, 1, 2][..]));
        let user: Vec<String> =
            got.properties.user().iter().map(|(name, value)| format!("{name}{value}")).collect();
        assert_eq!(user, ["b1", "a2", "b3"]);
    }
    client.quiet().await;
}

#[tokio::test]
async fn a_message_that_was_sent_does_not_expire() {
    covers!("MQTT-4.3.3-7");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut client = Client::connect(&server, lasting(5)).await;
    client.subscribe("t", 2).await;
    publisher.publish(Message::new("t", "sent").qos(2, 0).with(p32(0x02, 1))).await;
    let sent = client.message().await;
    drop(client);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let mut client = again(&server, 5).await;
    let got = client.message().await;
    assert_eq!((got.text(), got.id, got.dup), ("sent", sent.id, true));
    client.finish(&got).await;
    client.quiet().await;
}

#[tokio::test]
async fn a_message_that_waits_for_its_turn_expires() {
    covers!("MQTT-3.3.2-5");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut client = Client::connect(&server, Connect::v5("slow").with(p16(0x21, 1))).await;
    client.subscribe("t", 1).await;
    for (text, seconds) in [("first", 100), ("second", 1), ("third", 100)] {
        publisher.publish(Message::new("t", text).qos(1, 0).with(p32(0x02, seconds))).await;
    }
    let first = client.message().await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    client.finish(&first).await;
    assert_eq!(client.text().await, "third");
    client.quiet().await;
}

#[tokio::test]
async fn a_publishers_qos_2_exchange_goes_on_in_its_session() {
    covers!("MQTT-4.3.3-10", "MQTT-4.3.3-11", "MQTT-4.1.0-1", "MQTT-4.3.3-12");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut watcher = Client::new(&server, level, "watcher").await;
        watcher.subscribe("t", 0).await;
        let mut client = Client::connect(&server, lasting(level)).await;
        for id in [7, 8] {
            client.send(&Message::new("t", format!("message {id}")).qos(2, id).bytes(level)).await;
            client.acked(5, id).await;
        }
        drop(client);
        let mut client = again(&server, level).await;
        client.send(&Message::new("t", "message 7").qos(2, 7).dup().bytes(level)).await;
        client.acked(5, 7).await;
        drop(client);
        let mut client = again(&server, level).await;
        for id in [7, 8] {
            client.send(&ack(6, id, 0)).await;
            assert_eq!(client.acked(7, id).await, 0, "it was known");
            assert_eq!(watcher.text().await, format!("message {id}"));
        }
        watcher.quiet().await;
        client.send(&Message::new("t", "new").qos(2, 7).bytes(level)).await;
        client.acked(5, 7).await;
        assert_eq!(watcher.text().await, "new");
        // A new session knows nothing of it.
        let mut client = Client::new(&server, level, "client").await;
        client.send(&ack(6, 7, 0)).await;
        assert_eq!(client.acked(7, 7).await, if level == 5 { 0x92 } else { 0 });
    }
}

#[tokio::test]
async fn a_refused_message_is_not_sent_again() {
    covers!("MQTT-4.4.0-2");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut client = Client::connect(&server, lasting(5)).await;
    client.subscribe("t", 2).await;
    for (qos, kind) in [(1, 4), (2, 5)] {
        publisher.publish(Message::new("t", "x").qos(qos, 0)).await;
        let got = client.message().await;
        client.send(&ack(kind, got.id, 0x80)).await;
    }
    client.quiet().await;
    drop(client);
    again(&server, 5).await.quiet().await;
}

#[tokio::test]
async fn an_unsubscribed_message_in_flight_is_completed_after_a_reconnect() {
    covers!("MQTT-3.10.4-3");
    let server = Server::start().await;
    let mut client = Client::connect(&server, lasting(5)).await;
    client.subscribe("t", 2).await;
    client.publish(Message::new("t", "begun").qos(2, 0)).await;
    let begun = client.message().await;
    client.unsubscribe(&["t"]).await;
    client.say("t", "too late").await;
    client.quiet().await;
    drop(client);
    let mut client = again(&server, 5).await;
    let got = client.message().await;
    assert_eq!((got.id, got.text()), (begun.id, "begun"));
    client.finish(&got).await;
    client.quiet().await;
}

#[tokio::test]
async fn a_smaller_receive_maximum_holds_for_what_is_sent_again() {
    covers!("MQTT-3.3.4-9", "MQTT-4.4.0-1");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut client = Client::connect(&server, lasting(5)).await;
    client.subscribe("t", 2).await;
    for number in 0..8 {
        publisher.publish(Message::new("t", number.to_string()).qos(1 + (number % 2) as u8, 0)).await;
    }
    let mut ids = Vec::new();
    for _ in 0..8 {
        ids.push(client.message().await.id);
    }
    drop(client);
    let mut client = Client::connect(&server, lasting(5).resume().with(p16(0x21, 2))).await;
    assert!(client.connack.session_present);
    let mut inflight = vec![client.message().await, client.message().await];
    for (number, id) in ids.into_iter().enumerate() {
        client.quiet().await;
        let got = inflight.remove(0);
        assert_eq!((got.text(), got.id, got.dup), (&number.to_string()[..], id, true));
        client.finish(&got).await;
        if number < 6 {
            inflight.push(client.message().await);
        }
    }
    client.quiet().await;
}

#[tokio::test]
async fn a_takeover_sends_again_what_the_earlier_connection_did_not_acknowledge() {
    covers!("MQTT-4.4.0-1", "MQTT-3.1.4-3");
    let server = Server::start().await;
    let mut before = Client::connect(&server, lasting(5)).await;
    before.subscribe("t", 2).await;
    for (text, qos) in [("one", 1), ("two", 2)] {
        before.publish(Message::new("t", text).qos(qos, 0)).await;
    }
    let sent = [before.message().await, before.message().await];
    let mut after = again(&server, 5).await;
    assert_eq!(before.disconnected().await, 0x8e);
    for message in &sent {
        let got = after.message().await;
        assert_eq!((got.id, got.text(), got.dup), (message.id, message.text(), true));
        after.finish(&got).await;
    }
    after.quiet().await;
}
