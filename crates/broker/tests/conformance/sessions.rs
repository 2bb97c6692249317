//! Sections 3.1.2.4, 3.1.2.11.2 and 4.1: which session there is, and for how long.

use std::time::Duration;

use crate::client::Client;
use crate::encode::{Connect, Message, p32, pvar};
use crate::server::Server;

#[tokio::test]
async fn clean_start_decides_between_a_new_session_and_the_old_one() {
    covers!(
        "MQTT-3.1.2-4",
        "MQTT-3.1.2-5",
        "MQTT-3.1.2-6",
        "MQTT-3.1.4-4",
        "MQTT-3.2.2-2",
        "MQTT-3.2.2-3",
        "MQTT-3.1.2-23",
    );
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    // Clean Start, whether a session is present, and whether its subscription is.
    for (clean, present) in
        [(false, false), (false, true), (true, false), (false, true), (true, false), (true, false)]
    {
        let connect = Connect { clean, ..Connect::v5("client").lasting() };
        let mut client = Client::connect(&server, connect).await;
        assert_eq!(client.connack.session_present, present, "Clean Start {clean}");
        if present {
            assert_eq!(client.text().await, "while it was away");
        } else {
            client.quiet().await;
            publisher.say("t", "without a subscription").await;
            client.quiet().await;
            client.subscribe("t", 1).await;
        }
        publisher.say("t", "live").await;
        assert_eq!(client.text().await, "live");
        client.quiet().await;
        client.leave().await;
        publisher.say("t", "while it was away").await;
    }
}

#[tokio::test]
async fn a_session_ends_with_its_expiry_interval() {
    covers!("MQTT-4.1.0-2", "MQTT-3.1.2-23");
    let server = Server::start().await;
    let mut absent = Client::v5(&server, "absent").await;
    absent.subscribe("t", 1).await;
    absent.leave().await;
    // The short one is the last one: it is to be there again within its second.
    let cases = [("none", 0), ("long", 100), ("endless", u32::MAX), ("short", 1)];
    for (name, seconds) in cases {
        let mut client = Client::connect(&server, Connect::v5(name).expiry(seconds)).await;
        client.subscribe("t", 1).await;
        client.leave().await;
    }
    // A session of one second is there at once, and again has a second.
    let short = Client::connect(&server, Connect::v5("short").resume().expiry(1)).await;
    assert!(short.connack.session_present);
    short.leave().await;
    tokio::time::sleep(Duration::from_millis(2200)).await;
    for (name, present) in
        [("none", false), ("absent", false), ("short", false), ("long", true), ("endless", true)]
    {
        let mut client = Client::connect(&server, Connect::v5(name).resume()).await;
        assert_eq!(client.connack.session_present, present, "{name}");
        client.quiet().await;
    }
}

#[tokio::test]
async fn a_session_stays_while_its_connection_is_open() {
    covers!("MQTT-4.1.0-1");
    let server = Server::start().await;
    let mut client = Client::connect(&server, Connect::v5("client").expiry(1)).await;
    client.subscribe("t", 1).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    client.say("t", "still there").await;
    assert_eq!(client.text().await, "still there");
    drop(client);
    assert!(Client::connect(&server, Connect::v5("client").resume()).await.connack.session_present);
}

#[tokio::test]
async fn disconnect_changes_the_expiry_interval() {
    covers!("MQTT-4.1.0-2", "MQTT-3.14.2-2");
    let server = Server::start().await;
    for (before, after, present) in [(100, 0, false), (1, 100, true), (100, 1, false)] {
        let client = Client::connect(&server, Connect::v5("client").expiry(before)).await;
        assert_eq!(client.leave_with(0, &[p32(0x11, after)]).await, []);
        tokio::time::sleep(Duration::from_millis(if after == 0 { 0 } else { 1500 })).await;
        let again = Client::connect(&server, Connect::v5("client").resume()).await;
        assert_eq!(again.connack.session_present, present, "{before} s, then {after} s");
        again.leave().await;
    }
    // From 0 it cannot be raised.
    for connect in [Connect::v5("client"), Connect::v5("client").expiry(0)] {
        let mut client = Client::connect(&server, connect).await;
        client.send(&crate::encode::disconnect(0, &[p32(0x11, 5)])).await;
        assert_eq!(client.disconnected().await, 0x82);
        assert!(!Client::connect(&server, Connect::v5("client").resume()).await.connack.session_present);
    }
    let client = Client::v5(&server, "client").await;
    assert_eq!(client.leave_with(0, &[p32(0x11, 0)]).await, [], "from 0 to 0 is not a change");
}

#[tokio::test]
async fn a_resumed_session_has_the_expiry_interval_of_its_new_connection() {
    covers!("MQTT-4.1.0-2", "MQTT-3.1.2-5");
    let server = Server::start().await;
    Client::connect(&server, Connect::v5("client").lasting()).await.leave().await;
    let client = Client::connect(&server, Connect::v5("client").resume()).await;
    assert!(client.connack.session_present);
    client.leave().await;
    let client = Client::connect(&server, Connect::v5("client").resume()).await;
    assert!(!client.connack.session_present, "it ended with a connection that asked for nothing");
}

#[tokio::test]
async fn a_session_belongs_to_its_client_identifier() {
    covers!("MQTT-3.1.3-2");
    let server = Server::start().await;
    let names = ["client", "Client", "client ", "clienté"];
    for name in names {
        let mut client = Client::connect(&server, Connect::v5(name).resume().lasting()).await;
        assert!(!client.connack.session_present, "{name:?} is another one");
        client.subscribe(&format!("to/{name}"), 1).await;
        client.leave().await;
    }
    let mut publisher = Client::v5(&server, "publisher").await;
    for name in names {
        publisher.say(&format!("to/{name}"), name).await;
    }
    for name in names {
        let mut client = Client::connect(&server, Connect::v5(name).resume()).await;
        assert!(client.connack.session_present);
        assert_eq!(client.text().await, name);
        client.quiet().await;
    }
}

#[tokio::test]
async fn subscriptions_are_kept_with_their_options() {
    covers!("MQTT-3.1.2-5", "MQTT-3.3.4-3", "MQTT-3.8.3-3", "MQTT-3.3.1-13");
    let server = Server::start().await;
    let mut client = Client::connect(&server, Connect::v5("client").lasting()).await;
    assert_eq!(client.subscribe_to(&[pvar(0x0b, 700)], &[("t/#", 2 | 4 | 8)]).await, [2]);
    assert_eq!(client.subscribe_to(&[], &[("u", 1)]).await, [1]);
    client.leave().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    publisher.publish(Message::new("t/1", "away").qos(2, 0).retain()).await;
    let mut client = Client::connect(&server, Connect::v5("client").resume()).await;
    publisher.publish(Message::new("t/1", "live").qos(2, 0).retain()).await;
    client.publish(Message::new("t/1", "own").qos(1, 0)).await;
    publisher.publish(Message::new("u", "other").qos(2, 0)).await;
    for text in ["away", "live"] {
        let got = client.message().await;
        client.finish(&got).await;
        assert_eq!((got.text(), got.qos, got.retain), (text, 2, true));
        assert_eq!(got.properties.subscriptions(), [700]);
    }
    let got = client.message().await;
    assert_eq!((got.text(), got.qos, got.properties.subscriptions()), ("other", 1, vec![]));
}

#[tokio::test]
async fn a_takeover_keeps_the_session_or_drops_it_as_asked() {
    covers!("MQTT-3.1.4-3", "MQTT-3.1.2-4", "MQTT-3.1.2-5");
    let server = Server::start().await;
    for clean in [false, true] {
        let mut before = Client::connect(&server, Connect::v5("twin").lasting()).await;
        before.subscribe("t", 1).await;
        let connect = Connect { clean, ..Connect::v5("twin").lasting() };
        let mut after = Client::connect(&server, connect).await;
        assert_eq!(before.disconnected().await, 0x8e);
        assert_eq!(after.connack.session_present, !clean);
        after.say("t", "x").await;
        if !clean {
            assert_eq!(after.text().await, "x");
        }
        after.quiet().await;
    }
}

#[tokio::test]
async fn versions_share_their_sessions() {
    covers!("MQTT-3.1.3-2", "3.1.1 MQTT-3.1.2-4");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    for (before, after) in [(4, 5), (5, 4)] {
        let id = format!("from {before}");
        let mut client = Client::connect(&server, Connect::new(before, &id).lasting()).await;
        client.subscribe(&id, 1).await;
        client.leave().await;
        publisher.publish(Message::new(&id, "x").qos(1, 0).with(vec![0x01, 1])).await;
        let mut client = Client::connect(&server, Connect::new(after, &id).resume()).await;
        assert!(client.connack.session_present);
        assert_eq!(client.text().await, "x");
    }
}
