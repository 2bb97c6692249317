//! Clients that go while the broker has not handled everything they sent.

use std::collections::BTreeSet;

use edgefaas_broker::{BrokerConfig, WhenQueueFull};

use crate::raw::{Raw, connect, packet, publish, text};
use crate::support::Server;

/// Connects with MQTT 3.1.1 and a will on `will`.
async fn with_will(server: &Server, client_id: &str) -> Raw {
    let mut raw = Raw::open(server.address).await;
    raw.send(&connect(4, 2 | 4, &[], client_id, &[text("will"), text("it is gone")].concat())).await;
    assert_eq!(raw.receive().await.reason(), 0);
    raw
}

async fn reader(server: &Server) -> Raw {
    let mut reader = Raw::connect(server.address, 5, "reader").await;
    reader.subscribe(5, "t", 0).await;
    reader.subscribe(5, "will", 0).await;
    reader
}

#[tokio::test]
async fn all_that_a_client_sent_counts_however_slowly_it_is_taken() {
    let config = BrokerConfig { max_messages_per_second: 50, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut reader = reader(&server).await;
    let mut quick = with_will(&server, "quick").await;
    let mut sent: Vec<u8> = (0..100u8).flat_map(|number| publish(4, 0, "t", 0, &[], &[number])).collect();
    sent.extend([0xe0, 0]);
    quick.send(&sent).await;
    drop(quick);
    for number in 0..100u8 {
        let frame = reader.receive().await;
        assert_eq!((frame.topic(), &frame.rest()[1..]), ("t", &[number][..]));
    }
    server.until("it has gone", |stats| stats.connections == 1).await;
    // The DISCONNECT was seen.
    reader.ping().await;
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_is_lost_on_the_way_has_its_messages_and_its_will_sent() {
    let config = BrokerConfig { max_messages_per_second: 50, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut reader = reader(&server).await;
    let mut quick = with_will(&server, "quick").await;
    let mut sent: Vec<u8> = (0..100u8).flat_map(|number| publish(4, 0, "t", 0, &[], &[number])).collect();
    // The beginning of one more.
    sent.extend([0x30, 100, 0, 1]);
    quick.send(&sent).await;
    drop(quick);
    for number in 0..100u8 {
        assert_eq!(&reader.receive().await.rest()[1..], [number]);
    }
    assert_eq!(reader.receive().await.topic(), "will");
    server.stop().await;
}

#[tokio::test]
async fn what_a_client_sent_behind_a_message_that_waits_is_handled_though_it_has_gone() {
    let config = BrokerConfig {
        stored_queue_messages: 1,
        when_queue_full: WhenQueueFull::Reject,
        ..BrokerConfig::default()
    };
    let server = Server::with(config, Vec::new()).await;
    let mut away = Raw::open(server.address).await;
    away.send(&connect(5, 0, &[0x11, 0, 0, 0, 100], "away", &[])).await;
    away.receive().await;
    away.subscribe(5, "full", 1).await;
    drop(away);
    server.until("it is away", |stats| stats.connections == 0).await;
    let mut reader = reader(&server).await;
    let mut quick = with_will(&server, "quick").await;
    // MQTT 3.1.1 has no word for "no room": the second waits, and with it what follows.
    let sent = [
        publish(4, 2, "full", 1, &[], b"1"),
        publish(4, 2, "full", 2, &[], b"2"),
        publish(4, 0, "t", 0, &[], b"behind"),
        vec![0xe0, 0],
    ];
    quick.send(&sent.concat()).await;
    assert_eq!(quick.receive().await.packet_id(), 1);
    drop(quick);
    // Room comes with the client's return.
    let mut away = Raw::open(server.address).await;
    away.send(&connect(5, 0, &[0x11, 0, 0, 0, 100], "away", &[])).await;
    assert_eq!(away.receive().await.kind(), 2);
    let mut got = BTreeSet::new();
    while got.len() < 2 {
        let frame = away.receive().await;
        got.insert(frame.rest()[1]);
        away.send(&packet(0x40, &[&frame.packet_id().to_be_bytes()])).await;
    }
    let frame = reader.receive().await;
    assert_eq!((frame.topic(), &frame.rest()[1..]), ("t", &b"behind"[..]));
    server.until("it has gone", |stats| stats.connections == 2).await;
    reader.ping().await;
    server.stop().await;
}
