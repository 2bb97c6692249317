//! Sections 3.1.2.5 and 3.1.3.2: wills.

use std::time::{Duration, Instant};

use crate::client::Client;
use crate::encode::{Connect, Message, Will, disconnect, p32, packet, ptext, puser};
use crate::server::Server;

async fn watcher(server: &Server) -> Client {
    let mut watcher = Client::v5(server, "watcher").await;
    watcher.subscribe("will/#", 2 | 8).await;
    watcher
}

fn mortal() -> Connect {
    Connect::v5("mortal").will(Will::new("will/mortal", "gone"))
}

#[tokio::test]
async fn the_will_is_published_unless_the_client_says_goodbye() {
    covers!(
        "MQTT-3.1.2-7",
        "MQTT-3.1.2-8",
        "MQTT-3.1.2-10",
        "MQTT-3.14.4-3",
        "3.1.1 MQTT-3.1.2-8",
        "3.1.1 MQTT-3.14.4-3",
    );
    let server = Server::start().await;
    let mut watcher = watcher(&server).await;
    let endings: [(u8, Vec<u8>, bool); 10] = [
        (5, vec![0xe0, 0], false),
        (5, vec![0xe0, 1, 0], false),
        (5, disconnect(0, &[]), false),
        (5, disconnect(4, &[]), true),
        (5, disconnect(0x80, &[]), true),
        (5, vec![], true),
        (5, packet(0x00, &[]), true),
        (4, vec![0xe0, 0], false),
        (4, vec![], true),
        (4, packet(0x36, &[&[0, 1, b't', 0, 1]]), true),
    ];
    for (level, last, published) in endings {
        let connect = Connect { level, ..mortal() };
        let mut client = Client::connect(&server, connect).await;
        client.send(&last).await;
        if last.is_empty() {
            drop(client);
        } else {
            client.until_closed().await;
        }
        if published {
            let got = watcher.message().await;
            watcher.finish(&got).await;
            assert_eq!((&got.topic[..], got.text()), ("will/mortal", "gone"), "{last:x?}");
        }
        // Not again at the end of the next connection.
        Client::v5(&server, "mortal").await.leave().await;
        drop(Client::v5(&server, "mortal").await);
        Client::v5(&server, "mortal").await.leave().await;
        watcher.quiet().await;
    }
}

#[tokio::test]
async fn the_will_has_the_qos_retain_flag_and_properties_it_was_given() {
    covers!(
        "MQTT-3.1.2-9",
        "MQTT-3.1.2-12",
        "MQTT-3.1.2-14",
        "MQTT-3.1.2-15",
        "MQTT-3.1.3-10",
        "MQTT-3.3.2-4"
    );
    let server = Server::start().await;
    let mut watcher = watcher(&server).await;
    for qos in 0..3 {
        for retain in [false, true] {
            let topic = format!("will/{qos}/{retain}");
            let properties = vec![
                vec![0x01, 1],
                p32(0x02, 500),
                ptext(0x03, "text/plain"),
                ptext(0x08, "reply"),
                ptext(0x09, [0, 255]),
                puser("b", "1"),
                puser("a", "2"),
                puser("b", "3"),
            ];
            let will = Will { retain, properties, ..Will::new(&topic, "gone").qos(qos) };
            drop(Client::connect(&server, Connect::v5("mortal").will(will)).await);
            let mut late = Client::v5(&server, "late").await;
            for live in [true, false] {
                let got = if live {
                    let got = watcher.message().await;
                    watcher.finish(&got).await;
                    got
                } else {
                    late.subscribe(&topic, 2).await;
                    if !retain {
                        late.quiet().await;
                        continue;
                    }
                    late.message().await
                };
                assert_eq!(
                    (&got.topic[..], got.text(), got.qos, got.retain),
                    (&topic[..], "gone", qos, retain)
                );
                let properties = &got.properties;
                assert_eq!(properties.number(0x01), Some(1));
                assert!(properties.number(0x02).is_some_and(|left| (490..=500).contains(&left)));
                assert_eq!(properties.bytes(0x03), Some(&b"text/plain"[..]));
                assert_eq!(properties.bytes(0x08), Some(&b"reply"[..]));
                assert_eq!(properties.bytes(0x09), Some(&[0, 255][..]));
                assert_eq!(properties.number(0x18), None, "the delay is not passed on");
                let user: Vec<String> =
                    properties.user().iter().map(|(name, value)| format!("{name}{value}")).collect();
                assert_eq!(user, ["b1", "a2", "b3"]);
            }
        }
    }
}

#[tokio::test]
async fn an_empty_retained_will_removes_the_retained_message() {
    covers!("MQTT-3.1.2-15", "MQTT-3.3.1-6");
    let server = Server::start().await;
    let mut watcher = watcher(&server).await;
    watcher.publish(Message::new("will/empty", "kept").qos(1, 0).retain()).await;
    assert_eq!(watcher.text().await, "kept");
    drop(Client::connect(&server, Connect::v5("mortal").will(Will::new("will/empty", "").retain())).await);
    assert_eq!(watcher.text().await, "");
    let mut late = Client::v5(&server, "late").await;
    late.subscribe("will/empty", 0).await;
    late.quiet().await;
}

#[tokio::test]
async fn a_delayed_will_comes_after_its_delay() {
    covers!("MQTT-3.1.2-8", "MQTT-3.1.2-10");
    let server = Server::start().await;
    let mut watcher = watcher(&server).await;
    let will = Will::new("will/mortal", "gone").delay(1);
    let client = Client::connect(&server, Connect::v5("mortal").lasting().will(will)).await;
    let start = Instant::now();
    drop(client);
    assert_eq!(watcher.text().await, "gone");
    let took = start.elapsed();
    assert!((900..15_000).contains(&took.as_millis()), "after {took:?}");
    // Once.
    drop(Client::connect(&server, Connect::v5("mortal").resume().lasting()).await);
    tokio::time::sleep(Duration::from_millis(1300)).await;
    watcher.quiet().await;
}

#[tokio::test]
async fn a_client_that_is_back_before_the_delay_has_no_will() {
    covers!("MQTT-3.1.3-9", "MQTT-3.1.2-8");
    let server = Server::start().await;
    let mut watcher = watcher(&server).await;
    let will = || Will::new("will/mortal", "gone").delay(1);
    drop(Client::connect(&server, Connect::v5("mortal").lasting().will(will())).await);
    let mut client = Client::connect(&server, Connect::v5("mortal").resume().lasting().will(will())).await;
    assert!(client.connack.session_present);
    tokio::time::sleep(Duration::from_millis(1500)).await;
    client.ping().await;
    watcher.quiet().await;
    // Taking over is a new connection, too.
    let mut after = Client::connect(&server, Connect::v5("mortal").resume().lasting()).await;
    assert_eq!(client.disconnected().await, 0x8e);
    tokio::time::sleep(Duration::from_millis(1300)).await;
    after.ping().await;
    watcher.quiet().await;
}

#[tokio::test]
async fn a_delayed_will_comes_when_the_session_ends_before() {
    covers!("MQTT-3.1.2-8", "MQTT-4.1.0-2");
    let server = Server::start().await;
    let mut watcher = watcher(&server).await;
    let connect = || Connect::v5("mortal").will(Will::new("will/mortal", "gone").delay(60));
    let start = Instant::now();
    // The session ends with its connection.
    drop(Client::connect(&server, connect()).await);
    assert_eq!(watcher.text().await, "gone", "expiry 0");
    // By a last word.
    let client = Client::connect(&server, connect().lasting()).await;
    client.leave_with(4, &[p32(0x11, 0)]).await;
    assert_eq!(watcher.text().await, "gone", "expiry 0 in DISCONNECT");
    // By a clean start of the next connection.
    drop(Client::connect(&server, connect().lasting()).await);
    watcher.quiet().await;
    let mut next = Client::v5(&server, "mortal").await;
    assert_eq!(watcher.text().await, "gone", "Clean Start");
    next.ping().await;
    next.leave().await;
    // By its expiry.
    drop(Client::connect(&server, connect().expiry(1)).await);
    assert_eq!(watcher.text().await, "gone", "expiry 1");
    assert!(start.elapsed() < Duration::from_secs(15), "none waited for its delay");
    watcher.quiet().await;
}

#[tokio::test]
async fn a_goodbye_discards_a_delayed_will() {
    covers!("MQTT-3.14.4-3", "MQTT-3.1.2-10");
    let server = Server::start().await;
    let mut watcher = watcher(&server).await;
    let will = Will::new("will/mortal", "gone").delay(1);
    Client::connect(&server, Connect::v5("mortal").lasting().will(will)).await.leave().await;
    tokio::time::sleep(Duration::from_millis(1300)).await;
    watcher.quiet().await;
}

#[tokio::test]
async fn a_takeover_publishes_a_will_that_is_not_delayed() {
    covers!("MQTT-3.1.2-8", "MQTT-3.1.4-3");
    let server = Server::start().await;
    let mut watcher = watcher(&server).await;
    for clean in [true, false] {
        let mut before = Client::connect(&server, mortal().lasting()).await;
        let next = Connect { clean, ..Connect::v5("mortal").lasting() };
        let after = Client::connect(&server, next).await;
        assert_eq!(before.disconnected().await, 0x8e);
        assert_eq!(watcher.text().await, "gone");
        after.leave().await;
        watcher.quiet().await;
    }
}

#[tokio::test]
async fn a_will_waits_for_those_who_are_away() {
    covers!("MQTT-4.5.0-1", "MQTT-3.1.2-8");
    let server = Server::start().await;
    let mut away = Client::connect(&server, Connect::v5("away").lasting()).await;
    away.subscribe("will/#", 1).await;
    away.leave().await;
    let mut watcher = watcher(&server).await;
    drop(Client::connect(&server, mortal()).await);
    assert_eq!(watcher.text().await, "gone");
    let mut away = Client::connect(&server, Connect::v5("away").resume()).await;
    assert_eq!(away.text().await, "gone");
}
