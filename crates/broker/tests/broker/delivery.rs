//! Real clients (rumqttc), both versions, every quality of service.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use rumqttc::v5;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::{Server, soon};

/// A client of either version, its event loop on a task of its own.
struct Client {
    handle: Handle,
    /// Topic, payload, QoS and retain flag of what it gets.
    messages: mpsc::UnboundedReceiver<(String, Vec<u8>, u8, bool)>,
    /// One for each SUBACK.
    subscribed: mpsc::UnboundedReceiver<()>,
    /// One for each acknowledged publish.
    acknowledged: mpsc::UnboundedReceiver<()>,
    task: JoinHandle<()>,
}

enum Handle {
    V4(rumqttc::AsyncClient),
    V5(v5::AsyncClient),
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    fn new(address: SocketAddr, level: u8, id: &str) -> Client {
        let (to_messages, messages) = mpsc::unbounded_channel();
        let (to_subscribed, subscribed) = mpsc::unbounded_channel();
        let (to_acknowledged, acknowledged) = mpsc::unbounded_channel();
        let host = address.ip().to_string();
        let (handle, task) = if level == 4 {
            use rumqttc::{Event, Packet};
            let mut options = rumqttc::MqttOptions::new(id, host, address.port());
            options.set_keep_alive(Duration::from_secs(5)).set_max_packet_size(1 << 20, 1 << 20);
            let (client, mut events) = rumqttc::AsyncClient::new(options, 100);
            let task = tokio::spawn(async move {
                while let Ok(event) = events.poll().await {
                    match event {
                        Event::Incoming(Packet::Publish(publish)) => {
                            let message = (
                                publish.topic,
                                publish.payload.to_vec(),
                                publish.qos as u8,
                                publish.retain,
                            );
                            let _ = to_messages.send(message);
                        }
                        Event::Incoming(Packet::SubAck(_)) => {
                            let _ = to_subscribed.send(());
                        }
                        Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_)) => {
                            let _ = to_acknowledged.send(());
                        }

                        _ => {}
                    }
                }
            });
            (Handle::V4(client), task)
        } else {
            use v5::Event;
            use v5::mqttbytes::v5::Packet;
            let mut options = v5::MqttOptions::new(id, host, address.port());
            options.set_keep_alive(Duration::from_secs(5)).set_max_packet_size(Some(1 << 20));
            let (client, mut events) = v5::AsyncClient::new(options, 100);
            let task = tokio::spawn(async move {
                while let Ok(event) = events.poll().await {
                    match event {
                        Event::Incoming(Packet::Publish(publish)) => {
                            let topic = String::from_utf8(publish.topic.to_vec()).expect("text");
                            let message =
                                (topic, publish.payload.to_vec(), publish.qos as u8, publish.retain);
                            let _ = to_messages.send(message);
                        }
                        Event::Incoming(Packet::SubAck(_)) => {
                            let _ = to_subscribed.send(());
                        }
                        Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_)) => {
                            let _ = to_acknowledged.send(());
                        }

                        _ => {}
                    }
                }
            });
            (Handle::V5(client), task)
        };
        Client { handle, messages, subscribed, acknowledged, task }
    }

    async fn subscribe(&mut self, filter: &str, qos: u8) {
        match &self.handle {
            Handle::V4(client) => {
                client.subscribe(filter, rumqttc::qos(qos).expect("a QoS")).await.expect("sends")
            }
            Handle::V5(client) => {
                client.subscribe(filter, v5::mqttbytes::qos(qos).expect("a QoS")).await.expect("sends");
            }
        }
        soon("SUBACK", self.subscribed.recv()).await.expect("the client runs");
    }

    async fn publish(&mut self, topic: &str, qos: u8, retain: bool, payload: impl Into<Vec<u8>>) {
        match &self.handle {
            Handle::V4(client) => {
                client
                    .publish(topic, rumqttc::qos(qos).expect("a QoS"), retain, payload)
                    .await
                    .expect("sends");
            }
            Handle::V5(client) => {
                let qos = v5::mqttbytes::qos(qos).expect("a QoS");
                client.publish(topic, qos, retain, payload.into()).await.expect("sends");
            }
        }
    }

    async fn receive(&mut self) -> (String, Vec<u8>, u8, bool) {
        soon("a message", self.messages.recv()).await.expect("the client runs")
    }
}

#[tokio::test]
async fn every_qos_reaches_every_qos_between_versions() {
    let server = Server::start().await;
    for (from, to) in [(4, 4), (4, 5), (5, 4), (5, 5)] {
        let mut publisher = Client::new(server.address, from, "publisher");
        for subscribed in 0..=2u8 {
            let mut subscriber = Client::new(server.address, to, "subscriber");
            subscriber.subscribe("room/+/temperature", subscribed).await;
            for published in 0..=2u8 {
                for number in 0..20u8 {
                    publisher.publish("room/1/temperature", published, false, [number]).await;
                }
                for number in 0..20u8 {
                    let expected =
                        ("room/1/temperature".to_owned(), vec![number], published.min(subscribed), false);
                    assert_eq!(subscriber.receive().await, expected, "MQTT {from} to {to}");
                }
                if published > 0 {
                    for _ in 0..20 {
                        soon("an acknowledgement", publisher.acknowledged.recv())
                            .await
                            .expect("the client runs");
                    }
                }
            }
        }
    }
    let stats = server.broker.stats();
    assert_eq!((stats.messages_in, stats.messages_out, stats.messages_dropped), (720, 720, 0));
    server.stop().await;
}

#[tokio::test]
async fn retained_messages_reach_later_subscribers() {
    let server = Server::start().await;
    let mut publisher = Client::new(server.address, 5, "publisher");
    publisher.publish("state/lamp", 1, true, "on").await;
    soon("PUBACK", publisher.acknowledged.recv()).await.expect("the client runs");
    for level in [4, 5] {
        let mut late = Client::new(server.address, level, "late");
        late.subscribe("state/#", 1).await;
        assert_eq!(late.receive().await, ("state/lamp".to_owned(), b"on".to_vec(), 1, true));
    }
    server.stop().await;
}

#[tokio::test]
async fn large_payloads_arrive_whole() {
    let server = Server::start().await;
    for level in [4, 5] {
        let mut client = Client::new(server.address, level, "client");
        client.subscribe("large", 2).await;
        let payload: Vec<u8> = (0..900_000u32).map(|index| (index * 7 % 253) as u8).collect();
        client.publish("large", 2, false, payload.clone()).await;
        assert!(client.receive().await.1 == payload, "the payload is changed");
    }
    server.stop().await;
}

/// Publishers and subscribers on different threads and runtimes; every QoS 1 message arrives once, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_publishers_and_subscribers_on_many_threads() {
    const EACH: u32 = 2_000;
    let server = Server::start().await;
    let mut subscribers = Vec::new();
    for number in 0..4 {
        let mut client =
            Client::new(server.address, if number % 2 == 0 { 4 } else { 5 }, &format!("s{number}"));
        client.subscribe("load/#", 1).await;
        subscribers.push(client);
    }
    let mut publishing = Vec::new();
    for number in 0..4u32 {
        let mut client =
            Client::new(server.address, if number % 2 == 0 { 4 } else { 5 }, &format!("p{number}"));
        publishing.push(tokio::spawn(async move {
            for count in 0..EACH {
                client.publish(&format!("load/{number}"), 1, false, count.to_be_bytes()).await;
            }
            for _ in 0..EACH {
                soon("PUBACK", client.acknowledged.recv()).await.expect("the client runs");
            }
        }));
    }
    for subscriber in &mut subscribers {
        let mut next = [0u32; 4];
        for _ in 0..4 * EACH {
            let (topic, payload, _, _) = subscriber.receive().await;
            let publisher: usize = topic["load/".len()..].parse().expect("a number");
            assert_eq!(payload, next[publisher].to_be_bytes(), "in order, once");
            next[publisher] += 1;
        }
    }
    for task in publishing {
        task.await.expect("no panic");
    }
    assert_eq!(server.broker.stats().messages_dropped, 0);
    server.stop().await;
}

#[tokio::test]
async fn assigned_identifiers_differ() {
    let server = Server::start().await;
    let mut identifiers = HashSet::new();
    let mut open = Vec::new();
    for _ in 0..10 {
        let mut raw = crate::raw::Raw::open(server.address).await;
        raw.send(&crate::raw::connect(5, 2, &[], "", &[])).await;
        let ack = raw.receive().await;
        let at =
            ack.body.windows(9).position(|window| window == b"edgefaas-").expect("an assigned identifier");
        let length = usize::from(ack.body[at - 1]);
        identifiers.insert(ack.body[at..at + length].to_vec());
        open.push(raw);
    }
    assert_eq!(identifiers.len(), 10);
    assert_eq!(server.broker.stats().connections, 10);
    server.stop().await;
}
