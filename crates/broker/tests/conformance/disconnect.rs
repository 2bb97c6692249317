//! Sections 3.12 to 3.14: PINGREQ, DISCONNECT, and the keepalive.

use std::time::{Duration, Instant};

use crate::client::{Client, refused};
use crate::decode::Packet;
use crate::encode::{Connect, Message, Will, disconnect, p32, packet, ptext, subscribe};
use crate::server::Server;

#[tokio::test]
async fn every_ping_is_answered() {
    covers!("MQTT-3.12.4-1");
    let server = Server::start().await;
    for level in [4, 5] {
        let mut client = Client::new(&server, level, "client").await;
        client.send(&[0xc0, 0].repeat(50)).await;
        for _ in 0..50 {
            assert_eq!(client.receive().await, Packet::PingResp);
        }
        client.quiet().await;
    }
}

#[tokio::test]
async fn a_goodbye_of_any_form_closes_the_connection() {
    covers!("MQTT-3.14.4-2", "MQTT-3.14.2-1");
    let server = Server::start().await;
    let farewells = [
        vec![0xe0, 0],
        vec![0xe0, 1, 0],
        vec![0xe0, 2, 0, 0],
        disconnect(4, &[]),
        disconnect(0x80, &[ptext(0x1f, "why")]),
        disconnect(0, &[p32(0x11, 0)]),
    ];
    for bytes in farewells {
        let mut client = Client::v5(&server, "client").await;
        client.send(&bytes).await;
        assert_eq!(client.until_closed().await, [], "{bytes:x?}");
    }
    for (name, bytes) in [
        ("an unknown reason", disconnect(0x03, &[])),
        ("a property of others", disconnect(0, &[ptext(0x03, "x")])),
        ("an expiry interval twice", disconnect(0, &[p32(0x11, 0), p32(0x11, 0)])),
    ] {
        let reason = refused(&server, 5, &bytes).await;
        assert!(matches!(reason, 0x81 | 0x82), "{reason:#x} for {name}");
    }
}

#[tokio::test]
async fn nothing_is_processed_or_sent_after_disconnect() {
    covers!("MQTT-3.14.4-1", "MQTT-3.14.4-2", "MQTT-4.13.1-1");
    let server = Server::start().await;
    let mut watcher = Client::v5(&server, "watcher").await;
    watcher.subscribe("t", 0).await;
    let after =
        [subscribe(5, 1, &[], &[("t", 0)]), Message::new("t", "late").bytes(5), vec![0xc0, 0]].concat();
    let mut client = Client::v5(&server, "client").await;
    client.send(&[&[0xe0, 0][..], &after].concat()).await;
    assert_eq!(client.until_closed().await, [], "the client said goodbye");
    let mut client = Client::v5(&server, "client").await;
    client.send(&[packet(0x00, &[]), after].concat()).await;
    let packets = client.until_closed().await;
    assert!(matches!(packets[..], [Packet::Disconnect { reason: 0x81, .. }]), "{packets:?}");
    watcher.quiet().await;
}

#[tokio::test]
async fn silence_ends_the_connection_after_one_and_a_half_times_the_keepalive() {
    covers!("MQTT-3.1.2-22", "MQTT-3.2.2-22", "MQTT-3.1.2-8", "3.1.1 MQTT-3.1.2-24");
    let server = Server::start().await;
    let mut watcher = Client::v5(&server, "watcher").await;
    watcher.subscribe("will/#", 0).await;
    let mut silent = Vec::new();
    for level in [4, 5] {
        let will = Will::new(&format!("will/{level}"), "gone");
        let connect = Connect::new(level, &format!("silent {level}")).keepalive(1).will(will);
        let start = Instant::now();
        let client = Client::connect(&server, connect).await;
        assert_eq!(client.connack.properties.number(0x13), None, "the client's keepalive holds");
        silent.push((level, client, start));
    }
    let mut never = Client::connect(&server, Connect::v5("never").keepalive(0)).await;
    let mut lively = Client::connect(&server, Connect::v5("lively").keepalive(1)).await;
    // Bytes that make no packet are not a sign of life; these ones start a PUBLISH.
    let start = Instant::now();
    let mut trickle = Client::connect(&server, Connect::v5("trickle").keepalive(1)).await;
    let trickling = tokio::spawn(async move {
        trickle.send(&[0x30, 100]).await;
        let reason = trickle.disconnected().await;
        (reason, start.elapsed())
    });
    let pinging = tokio::spawn(async move {
        for _ in 0..6 {
            let since = Instant::now();
            tokio::time::sleep(Duration::from_millis(500)).await;
            if since.elapsed() > Duration::from_millis(1400) {
                // The machine has paused: this client was silent, too.
                return;
            }
            lively.ping().await;
        }
    });
    for (level, client, start) in &mut silent {
        assert_eq!(client.disconnected().await, if *level == 5 { 0x8d } else { 0 });
        let took = start.elapsed();
        assert!((1450..15_000).contains(&took.as_millis()), "closed after {took:?}");
        assert_eq!(watcher.text().await, "gone", "as if the network had failed");
    }
    pinging.await.expect("a client that pings stays");
    let (reason, took) = trickling.await.expect("no panic");
    assert!(reason == 0x8d && took > Duration::from_millis(1450), "{reason:#x} after {took:?}");
    never.ping().await;
}
