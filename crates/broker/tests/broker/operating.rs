//! What an operator sees and does: clients, clients that are dropped, retained messages, watched topics.

use std::sync::Arc;

use edgefaas_broker::{
    BrokerConfig, ClientQuery, Fate, Hooks, MemoryStorage, Message, Origin, PublishOutcome, QoS, Search,
    TopicName, Transport, Version,
};

use crate::raw::{Raw, connect, publish, text};
use crate::support::{Server, soon};

/// Connects with a session that is kept for 100 s, and a will on `will`.
async fn keep_with_will(server: &Server, client_id: &str) -> Raw {
    let mut raw = Raw::open(server.address).await;
    let will = [&[0][..], &text("will"), &text(client_id)].concat();
    raw.send(&connect(5, 4, &[0x11, 0, 0, 0, 100], client_id, &will)).await;
    let ack = raw.receive().await;
    assert_eq!((ack.kind(), ack.reason()), (2, 0));
    raw
}

fn query(search: &str, after: Option<&str>, limit: usize) -> ClientQuery {
    let after = after.map(str::to_owned);
    ClientQuery { search: Search::new(search), after, limit, connected_only: false }
}

fn message(topic: &str, payload: &str) -> Message {
    Message::new(TopicName::new(topic.to_owned()).expect("valid"), payload.to_owned())
}

fn node() -> Origin {
    Origin::Node { source: "test".into(), depth: 0, requester: None }
}

#[tokio::test]
async fn clients_are_listed_in_order_a_part_at_a_time() {
    let server = Server::start().await;
    let mut clients = Vec::new();
    // More than are visited under one lock.
    for number in 0..300 {
        let level = if number % 2 == 0 { 4 } else { 5 };
        clients.push(Raw::connect(server.address, level, &format!("Sensor-{number:03}")).await);
    }
    let first = server.broker.clients(&query("", None, 10));
    assert_eq!((first.sessions, first.connected, first.more), (300, 300, true));
    let ids: Vec<&str> = first.clients.iter().map(|client| &*client.client_id).collect();
    assert_eq!((ids[0], ids[9]), ("Sensor-000", "Sensor-009"));
    let connection = first.clients[1].connection.expect("it is connected");
    assert_eq!((connection.version, connection.transport), (Version::V5, Transport::Tcp));
    assert!(first.clients[1].since_unix_ms > 0);
    let mut seen = 0;
    let mut after: Option<String> = None;
    loop {
        let page = server.broker.clients(&query("", after.as_deref(), 70));
        seen += page.clients.len();
        after = page.clients.last().map(|client| client.client_id.to_string());
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, 300);
    let found = server.broker.clients(&query("sensor-29", None, 100));
    assert_eq!((found.clients.len(), found.more), (10, false));
    let by_address = server.broker.clients(&query("127.0.0.1", Some("Sensor-297"), 100));
    assert_eq!(by_address.clients.len(), 2);
    assert_eq!(server.broker.clients(&query("nobody", None, 100)).clients, []);
    server.stop().await;
}

#[tokio::test]
async fn a_client_has_its_subscriptions_and_messages_connected_or_not() {
    let storage = Arc::new(MemoryStorage::default());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), storage.clone()).await;
    let mut kept = keep_with_will(&server, "kept").await;
    kept.subscribe(5, "b/#", 1).await;
    kept.subscribe(5, "a", 2).await;
    kept.subscribe(5, "a", 0).await;
    server.broker.publish(&node(), message("b/1", "x").with_qos(QoS::AtLeastOnce));
    kept.receive().await;
    let filters = |server: &Server| {
        let (client, filters) = server.broker.client("kept").expect("a session");
        let filters: Vec<_> =
            filters.iter().map(|(filter, qos)| format!("{filter} {}", *qos as u8)).collect();
        assert_eq!(client.subscriptions, 2);
        assert_eq!(filters, ["a 0", "b/# 1"]);
        client
    };
    let client = filters(&server);
    assert_eq!((client.waiting, client.in_flight), (0, 1));
    drop(kept);
    server.until("it is away", |stats| stats.connections == 0).await;
    server.broker.publish(&node(), message("b/2", "x").with_qos(QoS::AtLeastOnce));
    let client = filters(&server);
    assert_eq!((client.connection, client.waiting, client.in_flight), (None, 1, 1));
    assert_eq!(server.broker.client("nobody"), None);
    let copy = Arc::new(storage.snapshot());
    server.stop().await;
    let server = Server::over(BrokerConfig::default(), Hooks::default(), copy).await;
    let client = filters(&server);
    assert!(client.connection.is_none() && client.since_unix_ms > 0, "{client:?}");
    let connected = ClientQuery { connected_only: true, ..query("", None, 10) };
    assert_eq!(server.broker.clients(&connected).clients, []);
    server.stop().await;
}

#[tokio::test]
async fn a_dropped_client_is_told_and_keeps_its_session() {
    let server = Server::start().await;
    let mut reader = Raw::connect(server.address, 5, "reader").await;
    reader.subscribe(5, "will", 0).await;
    let mut kept = keep_with_will(&server, "kept").await;
    kept.subscribe(5, "a", 1).await;
    let dropped = soon("it is dropped", server.broker.drop_client("kept", Fate::Kept)).await;
    assert_eq!(dropped, Some(true));
    let last = kept.until_closed().await;
    assert_eq!((last[0].kind(), last[0].reason()), (14, 0x98), "administrative action");
    assert_eq!(reader.receive().await.topic(), "will");
    assert_eq!(server.broker.client("kept").map(|(client, _)| client.subscriptions), Some(1));
    assert_eq!(server.broker.drop_client("kept", Fate::Kept).await, Some(false));
    assert_eq!(server.broker.drop_client("nobody", Fate::Forgotten).await, None);
    server.stop().await;
}

#[tokio::test]
async fn a_forgotten_client_leaves_nothing() {
    let storage = Arc::new(MemoryStorage::default());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), storage.clone()).await;
    for is_connected in [true, false] {
        let mut kept = keep_with_will(&server, "kept").await;
        kept.subscribe(5, "a", 1).await;
        let kept = if is_connected {
            Some(kept)
        } else {
            drop(kept);
            server.until("it is away", |stats| stats.connections == 0).await;
            None
        };
        for _ in 0..3 {
            server.broker.publish(&node(), message("a", "x").with_qos(QoS::AtLeastOnce));
        }
        let (client, _) = server.broker.client("kept").expect("a session");
        assert_eq!((client.waiting, client.in_flight), if is_connected { (0, 3) } else { (3, 0) });
        let dropped = soon("it is dropped", server.broker.drop_client("kept", Fate::Forgotten)).await;
        assert_eq!(dropped, Some(is_connected));
        let stats = server.broker.stats();
        assert_eq!((stats.sessions, stats.subscriptions, stats.stored_bytes), (0, 0, 0));
        assert_eq!(server.broker.client("kept"), None);
        drop(kept);
        // The next session of the same client is a new one.
        let mut raw = Raw::open(server.address).await;
        raw.send(&connect(5, 0, &[0x11, 0, 0, 0, 100], "kept", &[])).await;
        assert_eq!(raw.receive().await.body[0], 0, "no session is present");
        drop(raw);
        server.until("it is away", |stats| stats.connections == 0).await;
        server.broker.drop_client("kept", Fate::Forgotten).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn losses_of_a_session_are_counted() {
    let config = BrokerConfig { session_queue_messages: 10, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut slow = Raw::connect(server.address, 5, "slow").await;
    slow.subscribe(5, "t", 0).await;
    assert_eq!(server.broker.lost("slow"), Some(0));
    // The connection's task has no turn meanwhile: the bytes beyond the socket's buffer stay in the queue.
    let payload = "x".repeat(100_000);
    for _ in 0..200 {
        server.broker.publish(&node(), message("t", &payload));
    }
    let lost = server.broker.lost("slow").expect("a session");
    assert!(lost > 0);
    assert_eq!(server.broker.stats().messages_dropped, lost);
    assert_eq!(server.broker.lost("nobody"), None);
    server.stop().await;
}

#[tokio::test]
async fn retained_messages_are_visited_in_order() {
    let server = Server::start().await;
    for number in 0..10 {
        let retained = message(&format!("r/{number}"), "x").with_retain(true);
        assert!(matches!(server.broker.publish(&node(), retained), PublishOutcome::Routed(_)));
    }
    server.broker.publish(&node(), message("s", "y").with_retain(true));
    let topics = |prefix: &str, after: Option<&str>, max| {
        let mut topics = Vec::new();
        let next = server.broker.visit_retained(prefix, after, max, |retained| {
            assert!(retained.received_unix_ms > 0);
            topics.push(retained.message.topic().as_str().to_owned());
        });
        (topics, next)
    };
    assert_eq!(topics("", None, 100).0.len(), 11);
    assert_eq!(topics("r/", None, 2), (vec!["r/0".into(), "r/1".into()], Some("r/1".into())));
    assert_eq!(topics("r/", Some("r/8"), 2), (vec!["r/9".into()], None));
    assert_eq!(topics("r/", Some("a"), 1).0, ["r/0"], "a position before the prefix");
    assert_eq!(
        server.broker.retained("s").map(|retained| retained.message.payload().to_vec()),
        Some(b"y".to_vec())
    );
    server.broker.publish(&node(), message("s", "").with_retain(true));
    assert_eq!(server.broker.retained("s"), None);
    server.stop().await;
}

#[tokio::test]
async fn topics_are_watched_from_a_call_to_another() {
    let server = Server::start().await;
    server.broker.publish(&node(), message("kept", "1").with_retain(true));
    server.broker.publish(&node(), message("before", "1"));
    let topics = || {
        let mut topics = Vec::new();
        server.broker.visit_topics("", None, 100, |name, topic, rate| {
            let last = topic.last().map(|last| String::from_utf8_lossy(&last.payload).into_owned());
            topics.push((name.to_owned(), topic.messages(), last, rate > 0.0));
        });
        topics
    };
    assert_eq!(topics(), []);
    assert!(server.broker.watch_topics() && !server.broker.watch_topics());
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    raw.send(&publish(5, 0, "from/client", 0, &[], b"2")).await;
    raw.ping().await;
    server.broker.publish(&node(), message("from/node", "3"));
    server.broker.publish(&node(), message("from/node", "4"));
    let seen = topics();
    let seen: Vec<_> =
        seen.iter().map(|(name, count, last, _)| (name.as_str(), *count, last.as_deref())).collect();
    assert_eq!(seen, [("from/client", 1, Some("2")), ("from/node", 2, Some("4")), ("kept", 0, None)]);
    assert_eq!(server.broker.watch_totals().topics, 3);
    server.broker.unwatch_topics();
    server.broker.publish(&node(), message("after", "1"));
    assert_eq!((topics(), server.broker.watch_totals().topics), (Vec::new(), 0));
    server.stop().await;
}
