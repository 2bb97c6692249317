//! Clients that send too little, too much or too slowly.

use std::time::Duration;

use edgefaas_broker::BrokerConfig;

use crate::client::Client;
use crate::decode::Packet;
use crate::encode::{Connect, Message};
use crate::server::Server;

#[tokio::test]
async fn connections_that_never_say_who_they_are_are_closed_and_keep_nobody_out() {
    covers!("MQTT-3.14.0-1", "MQTT-3.1.4-1");
    let config = BrokerConfig {
        connect_timeout: Duration::from_millis(400),
        max_connections: 100,
        ..BrokerConfig::default()
    };
    let server = Server::with(config).await;
    let connect = Connect::v5("slow").bytes();
    let mut halves = Vec::new();
    for number in 0..300 {
        let mut half = Client::open(server.address, 5).await;
        half.try_send(&connect[..number % connect.len()]).await;
        halves.push(half);
    }
    // A byte now and then is not a CONNECT either.
    let mut slow = Client::open(server.address, 5).await;
    for byte in &connect[..10] {
        slow.try_send(&[*byte]).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    for half in &mut halves {
        assert_eq!(half.until_closed().await, []);
    }
    assert_eq!(slow.until_closed().await, []);
    Client::v5(&server, "next").await.ping().await;
}

#[tokio::test]
async fn more_clients_than_allowed_are_told_that_the_server_is_busy() {
    covers!("MQTT-3.1.4-2", "MQTT-3.2.2-7");
    let server = Server::with(BrokerConfig { max_connections: 3, ..BrokerConfig::default() }).await;
    let mut clients = Vec::new();
    for number in 0..3 {
        clients.push(Client::v5(&server, &number.to_string()).await);
    }
    for (level, reason) in [(5, 0x89), (4, 3)] {
        let mut refused = Client::try_connect(&server, Connect::new(level, "more")).await;
        assert_eq!(refused.connack.reason, reason);
        assert_eq!(refused.until_closed().await, []);
    }
    for client in &mut clients {
        client.ping().await;
    }
}

#[tokio::test]
async fn a_flood_of_requests_is_answered_in_order() {
    covers!("MQTT-3.8.4-1", "MQTT-4.3.2-4");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    let mut bytes = Vec::new();
    for id in 1..=2000 {
        bytes.extend(crate::encode::subscribe(5, id, &[], &[("t", 0)]));
        bytes.extend(Message::new("u", "x").qos(1, id).bytes(5));
    }
    client.send(&bytes).await;
    let mut next = [1, 1];
    for _ in 0..4000 {
        let (at, id) = match client.receive().await {
            Packet::SubAck { id, .. } => (0, id),
            Packet::Ack { kind: 4, id, .. } => (1, id),
            other => panic!("{other:?}"),
        };
        assert_eq!(id, next[at]);
        next[at] += 1;
    }
}
