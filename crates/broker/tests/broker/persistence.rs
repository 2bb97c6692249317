//! Sessions that outlive connections and brokers, shared subscriptions, delayed wills.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_broker::{
    BrokerConfig, Hooks, MemoryStorage, Message, Origin, PublishOutcome, QoS, RejectReason, Space,
    TopicFilter, TopicName, WhenQueueFull,
};

use crate::raw::{Raw, connect, packet, publish, text};
use crate::support::{Server, soon};

/// Connects with a session that is kept: for ever with MQTT 3.1.1, for 100 s with MQTT 5; says whether it was there.
async fn keep(server: &Server, level: u8, client_id: &str) -> (Raw, bool) {
    let mut raw = Raw::open(server.address).await;
    let properties: &[u8] = if level == 5 { &[0x11, 0, 0, 0, 100] } else { &[] };
    raw.send(&connect(level, 0, properties, client_id, &[])).await;
    let ack = raw.receive().await;
    assert_eq!((ack.kind(), ack.reason()), (2, 0));
    let present = ack.body[0] == 1;
    (raw, present)
}

fn payload(level: u8, rest: &[u8]) -> &[u8] {
    if level == 5 { &rest[1..] } else { rest }
}

async fn with_storage(config: BrokerConfig, storage: Arc<MemoryStorage>) -> Server {
    Server::over(config, Hooks::default(), storage).await
}

#[tokio::test]
async fn a_session_keeps_its_subscriptions_and_messages_while_its_client_is_away() {
    for level in [4, 5] {
        let server = Server::start().await;
        let (mut client, present) = keep(&server, level, "kept").await;
        assert!(!present);
        client.subscribe(level, "a/#", 2).await;
        drop(client);
        server.until("it is gone", |stats| stats.connections == 0).await;
        let mut publisher = Raw::connect(server.address, level, "publisher").await;
        for (flags, text) in [(0, "zero"), (2, "one"), (4, "two"), (2, "three")] {
            publisher.send(&publish(level, flags, "a/b", 7, &[], text.as_bytes())).await;
            match flags {
                2 => assert_eq!(publisher.receive().await.kind(), 4),
                4 => {
                    assert_eq!(publisher.receive().await.kind(), 5);
                    publisher.send(&[0x62, 2, 0, 7]).await;
                    assert_eq!(publisher.receive().await.kind(), 7);
                }
                _ => {}
            }
        }
        let waiting = server.broker.queue(&TopicFilter::new("a/#").unwrap()).expect("subscribed");
        assert_eq!((waiting.messages_in, waiting.waiting), (4, 3));
        let (mut client, present) = keep(&server, level, "kept").await;
        assert!(present);
        for (flags, text) in [(2, "one"), (4, "two"), (2, "three")] {
            let frame = client.receive().await;
            assert_eq!((frame.first_byte & 6, payload(level, frame.rest())), (flags, text.as_bytes()));
            let id = frame.packet_id().to_be_bytes();
            match flags {
                2 => client.send(&packet(0x40, &[&id])).await,
                _ => client.send(&packet(0x50, &[&id])).await,
            }
        }
        let release = client.receive().await;
        assert_eq!(release.first_byte, 0x62);
        client.send(&packet(0x70, &[&release.packet_id().to_be_bytes()])).await;
        client.ping().await;
        let (_, present) = {
            drop(client);
            let clean = Raw::connect(server.address, level, "kept").await;
            (clean, false)
        };
        assert!(!present);
        server.until("nothing waits", |stats| stats.stored_bytes == 0).await;
        server.stop().await;
    }
}

#[tokio::test]
async fn what_is_in_flight_is_sent_again_with_its_identifier() {
    for level in [4, 5] {
        let server = Server::start().await;
        let (mut client, _) = keep(&server, level, "kept").await;
        client.subscribe(level, "t", 2).await;
        let mut publisher = Raw::connect(server.address, level, "publisher").await;
        publisher.send(&publish(level, 2, "t", 1, &[], b"one")).await;
        publisher.send(&publish(level, 4, "t", 2, &[], b"two")).await;
        publisher.send(&publish(level, 4, "t", 3, &[], b"three")).await;
        let first = [client.receive().await, client.receive().await, client.receive().await];
        let ids = first.each_ref().map(|frame| frame.packet_id());
        assert!(first.iter().all(|frame| frame.first_byte & 8 == 0), "not sent before");
        client.send(&packet(0x50, &[&ids[1].to_be_bytes()])).await;
        assert_eq!(client.receive().await.first_byte, 0x62);
        drop(client);
        let (mut client, present) = keep(&server, level, "kept").await;
        assert!(present);
        let again = [client.receive().await, client.receive().await, client.receive().await];
        assert_eq!((again[0].first_byte, again[0].packet_id()), (0x3a, ids[0]), "QoS 1, DUP");
        assert_eq!((again[1].first_byte, again[1].packet_id()), (0x62, ids[1]), "PUBREL");
        assert_eq!((again[2].first_byte, again[2].packet_id()), (0x3c, ids[2]), "QoS 2, DUP");
        server.stop().await;
    }
}

#[tokio::test]
async fn everything_is_back_in_a_new_broker() {
    let storage = Arc::new(MemoryStorage::default());
    let server = with_storage(BrokerConfig::default(), storage.clone()).await;
    let (mut client, _) = keep(&server, 5, "kept").await;
    client.subscribe(5, "t/+", 2).await;
    let mut publisher = Raw::open(server.address).await;
    publisher.send(&connect(5, 0, &[0x11, 0, 0, 0, 100], "publisher", &[])).await;
    publisher.receive().await;
    publisher.send(&publish(5, 5, "t/retained", 9, &[], b"last")).await;
    assert_eq!(publisher.receive().await.first_byte, 0x50);
    // Killed: nobody says goodbye.
    let copy = Arc::new(storage.snapshot());
    let server2 = with_storage(BrokerConfig::default(), copy.clone()).await;
    let (mut client2, present) = keep(&server2, 5, "kept").await;
    assert!(present);
    let frame = client2.receive().await;
    assert_eq!((frame.topic(), frame.first_byte & 6, frame.rest()), ("t/retained", 4, &b"\0last"[..]));
    // The publisher's QoS 2 message is known.
    let (mut publisher2, present) = keep(&server2, 5, "publisher").await;
    assert!(present);
    publisher2.send(&publish(5, 0xd, "t/retained", 9, &[], b"last")).await;
    assert_eq!(publisher2.receive().await.body[..2], [0, 9]);
    publisher2.send(&[0x62, 2, 0, 9]).await;
    let completed = publisher2.receive().await;
    assert_eq!((completed.kind(), completed.packet_id()), (7, 9));
    client2.send(&packet(0x50, &[&frame.packet_id().to_be_bytes()])).await;
    assert_eq!(client2.receive().await.kind(), 6);
    client2.send(&packet(0x70, &[&frame.packet_id().to_be_bytes()])).await;
    client2.ping().await;
    let mut late = Raw::connect(server2.address, 5, "late").await;
    late.subscribe(5, "t/#", 0).await;
    assert_eq!(late.receive().await.rest(), b"\0last");
    // Sessions that end leave nothing.
    for client_id in ["kept", "publisher"] {
        Raw::connect(server2.address, 5, client_id).await;
    }
    publisher2.until_closed().await;
    let mut clear = Raw::connect(server2.address, 5, "clear").await;
    clear.send(&publish(5, 3, "t/retained", 1, &[], b"")).await;
    clear.receive().await;
    soon("the store is empty", async {
        while copy.len(Space::State) + copy.len(Space::Queue) > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    server2.stop().await;
    server.stop().await;
}

#[tokio::test]
async fn acknowledgements_wait_for_the_store_and_leave_in_order() {
    let storage = Arc::new(MemoryStorage::default());
    let server = with_storage(BrokerConfig::default(), storage.clone()).await;
    let (mut client, _) = keep(&server, 5, "kept").await;
    client.subscribe(5, "kept/#", 1).await;
    storage.pause();
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    publisher.send(&publish(5, 2, "kept/1", 1, &[], b"x")).await;
    publisher.send(&publish(5, 2, "nobody", 2, &[], b"x")).await;
    // The subscriber has the first one already; the publisher nothing, but it is served.
    assert_eq!(client.receive().await.topic(), "kept/1");
    publisher.ping().await;
    storage.resume(server.broker.wal());
    assert_eq!(publisher.receive().await.packet_id(), 1);
    assert_eq!(publisher.receive().await.packet_id(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_new_session_is_stored_before_its_client_knows_of_it() {
    for level in [4, 5] {
        let storage = Arc::new(MemoryStorage::default());
        let server = with_storage(BrokerConfig::default(), storage.clone()).await;
        storage.pause();
        let (address, at_ack) = (server.address, storage.clone());
        let connecting = tokio::spawn(async move {
            let mut client = Raw::open(address).await;
            let properties: &[u8] = if level == 5 { &[0x11, 0, 0, 0, 100] } else { &[] };
            client.send(&connect(level, 0, properties, "kept", &[])).await;
            let ack = client.receive().await;
            (ack.reason(), at_ack.len(Space::State))
        });
        let wal = server.broker.wal();
        let waits = async {
            while wal.waiting_bytes() == 0 {
                tokio::task::yield_now().await;
            }
        };
        soon("the record waits", waits).await;
        // Clients without a session to keep do not wait.
        let mut other = Raw::connect(server.address, level, "passing").await;
        for _ in 0..10 {
            other.ping().await;
        }
        storage.resume(wal);
        assert_eq!(connecting.await.expect("a CONNACK"), (0, 1));
        server.stop().await;
    }
}

#[tokio::test]
async fn a_full_queue_drops_its_oldest_or_refuses_by_configuration() {
    for (policy, reason) in [(WhenQueueFull::DropOldest, 0), (WhenQueueFull::Reject, 0x97)] {
        let config =
            BrokerConfig { stored_queue_messages: 2, when_queue_full: policy, ..BrokerConfig::default() };
        let server = with_storage(config, Arc::default()).await;
        let (mut client, _) = keep(&server, 5, "kept").await;
        client.subscribe(5, "t", 1).await;
        drop(client);
        server.until("it is gone", |stats| stats.connections == 0).await;
        let mut publisher = Raw::connect(server.address, 5, "publisher").await;
        let mut last = 0;
        for number in 1..=4u8 {
            publisher.send(&publish(5, 2, "t", number.into(), &[], &[number])).await;
            let ack = publisher.receive().await;
            last = ack.body.get(2).copied().unwrap_or(0);
        }
        assert_eq!(last, reason);
        let (mut client, _) = keep(&server, 5, "kept").await;
        let got = [client.receive().await, client.receive().await];
        let got = got.each_ref().map(|frame| frame.rest()[1]);
        let figures = server.broker.queue(&TopicFilter::new("t").unwrap()).unwrap();
        match policy {
            WhenQueueFull::DropOldest => assert_eq!((got, figures.dropped), ([3, 4], 2)),
            WhenQueueFull::Reject => assert_eq!((got, figures.dropped), ([1, 2], 0)),
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn an_older_publisher_that_can_not_be_refused_waits_for_room() {
    let config = BrokerConfig {
        stored_queue_messages: 1,
        when_queue_full: WhenQueueFull::Reject,
        ..BrokerConfig::default()
    };
    let server = with_storage(config, Arc::default()).await;
    let (mut client, _) = keep(&server, 4, "kept").await;
    client.subscribe(4, "t", 1).await;
    drop(client);
    server.until("it is gone", |stats| stats.connections == 0).await;
    let mut publisher = Raw::connect(server.address, 4, "publisher").await;
    publisher.send(&publish(4, 2, "t", 1, &[], b"1")).await;
    assert_eq!(publisher.receive().await.packet_id(), 1);
    publisher.send(&publish(4, 2, "t", 2, &[], b"2")).await;
    let (mut client, _) = keep(&server, 4, "kept").await;
    let first = client.receive().await;
    client.send(&packet(0x40, &[&first.packet_id().to_be_bytes()])).await;
    assert_eq!(client.receive().await.rest(), b"2");
    assert_eq!(publisher.receive().await.packet_id(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_backlog_larger_than_memory_comes_in_order() {
    let server = Server::start().await;
    let (mut client, _) = keep(&server, 5, "kept").await;
    client.subscribe(5, "t", 1).await;
    drop(client);
    server.until("it is gone", |stats| stats.connections == 0).await;
    let node = Origin::Node { source: "test".into(), depth: 0, requester: None };
    let send = |number: u32| {
        let message = Message::new(TopicName::new("t").unwrap(), number.to_be_bytes().to_vec());
        server.broker.publish(&node, message.with_qos(QoS::AtLeastOnce))
    };
    for number in 0..3_000 {
        assert!(matches!(send(number), PublishOutcome::Routed(routed) if routed.dropped == 0));
    }
    let (mut client, _) = keep(&server, 5, "kept").await;
    for number in 0..4_000u32 {
        if number == 1_000 {
            (3_000..4_000).for_each(|number| assert!(matches!(send(number), PublishOutcome::Routed(_))));
        }
        let frame = client.receive().await;
        assert_eq!(frame.rest()[1..], number.to_be_bytes());
        client.send(&packet(0x40, &[&frame.packet_id().to_be_bytes()])).await;
    }
    client.ping().await;
    assert_eq!(server.broker.stats().stored_bytes, 0);
    server.stop().await;
}

#[tokio::test]
async fn a_session_ends_when_its_time_is_over_and_its_will_is_published() {
    let server = Server::start().await;
    let mut watcher = Raw::connect(server.address, 5, "watcher").await;
    watcher.subscribe(5, "will/#", 0).await;
    let mut client = Raw::open(server.address).await;
    // Session expiry 1 s, will delay 60 s: the end of the session comes first.
    let will = [vec![5, 0x18, 0, 0, 0, 60], text("will/late"), text("gone")].concat();
    client.send(&connect(5, 4, &[0x11, 0, 0, 0, 1], "short", &will)).await;
    client.receive().await;
    client.subscribe(5, "t", 1).await;
    drop(client);
    assert_eq!(watcher.receive().await.topic(), "will/late");
    server.until("it is over", |stats| stats.sessions == 1 && stats.sessions_expired == 1).await;
    assert_eq!(server.broker.stats().subscriptions, 1);
    server.stop().await;
}

#[tokio::test]
async fn a_delayed_will_is_not_published_when_the_client_is_back_in_time() {
    let server = Server::start().await;
    let mut watcher = Raw::connect(server.address, 5, "watcher").await;
    watcher.subscribe(5, "will/#", 0).await;
    let will = |topic: &str, delay: u8| [vec![5, 0x18, 0, 0, 0, delay], text(topic), text("x")].concat();
    let mut client = Raw::open(server.address).await;
    client.send(&connect(5, 4, &[0x11, 0, 0, 0, 100], "c", &will("will/first", 60))).await;
    client.receive().await;
    drop(client);
    server.until("it is gone", |stats| stats.connections == 1).await;
    let mut client = Raw::open(server.address).await;
    client.send(&connect(5, 4, &[0x11, 0, 0, 0, 100], "c", &will("will/second", 1))).await;
    assert_eq!(client.receive().await.body[0], 1, "the session is present");
    drop(client);
    assert_eq!(watcher.receive().await.topic(), "will/second");
    // With a clean start the session before is over, and its will is due.
    let mut client = Raw::open(server.address).await;
    client.send(&connect(5, 4, &[0x11, 0, 0, 0, 100], "c", &will("will/third", 60))).await;
    client.receive().await;
    drop(client);
    server.until("it is gone", |stats| stats.connections == 1).await;
    Raw::connect(server.address, 5, "c").await;
    assert_eq!(watcher.receive().await.topic(), "will/third");
    server.stop().await;
}

#[tokio::test]
async fn a_shared_subscription_gives_each_message_to_one() {
    let server = Server::start().await;
    let mut members = Vec::new();
    for name in ["a", "b", "c"] {
        let mut member = Raw::connect(server.address, 5, name).await;
        member.subscribe(5, "$share/group/t/+", 1).await;
        members.push(member);
    }
    let mut alone = Raw::connect(server.address, 5, "alone").await;
    alone.subscribe(5, "$share/other/t/#", 0).await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    for number in 0..9u8 {
        publisher.send(&publish(5, 3, "t/x", u16::from(number) + 1, &[], &[number])).await;
        publisher.receive().await;
    }
    let mut got = Vec::new();
    for member in &mut members {
        for _ in 0..3 {
            let frame = member.receive().await;
            assert_eq!(frame.first_byte, 0x32, "QoS 1, not retained");
            got.push(frame.rest()[1]);
        }
        member.ping().await;
    }
    got.sort_unstable();
    assert_eq!(got, (0..9).collect::<Vec<_>>());
    for number in 0..9 {
        assert_eq!(alone.receive().await.rest()[1], number);
    }
    // Those who come later get nothing that is retained.
    let mut late = Raw::connect(server.address, 5, "late").await;
    late.subscribe(5, "$share/group/t/+", 1).await;
    late.ping().await;
    // The others do the work of those who leave.
    drop(members);
    drop(late);
    server.until("only two are left", |stats| stats.connections == 2).await;
    assert_eq!((server.broker.stats().subscriptions, server.broker.stats().shared_subscriptions), (1, 1));
    server.stop().await;
}

#[tokio::test]
async fn what_waits_expires() {
    let server = Server::start().await;
    let (mut client, _) = keep(&server, 5, "kept").await;
    client.subscribe(5, "t", 1).await;
    drop(client);
    server.until("it is gone", |stats| stats.connections == 0).await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    let start = Instant::now();
    publisher.send(&publish(5, 2, "t", 1, &[2, 0, 0, 0, 1], b"short")).await;
    publisher.receive().await;
    publisher.send(&publish(5, 2, "t", 2, &[2, 0, 0, 0, 50], b"long")).await;
    publisher.receive().await;
    // The event to wait for is the time itself.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let (mut client, _) = keep(&server, 5, "kept").await;
    let frame = client.receive().await;
    let rest = frame.rest();
    assert_eq!((rest[..5].to_vec(), &rest[6..]), (vec![5, 2, 0, 0, 0], &b"long"[..]));
    // At least the second of the sleep is over, and no more than has passed here.
    let least = 49u64.saturating_sub(start.elapsed().as_secs());
    assert!((least..50).contains(&u64::from(rest[5])), "{} seconds are left of 50", rest[5]);
    assert_eq!(server.broker.stats().messages_dropped, 1);
    server.stop().await;
}

#[tokio::test]
async fn another_user_does_not_get_the_session() {
    use edgefaas_broker::{ConnectDecision, ConnectRequest, Grant, SessionHook};
    /// Takes everybody at their word.
    struct Trusting;
    impl SessionHook for Trusting {
        fn on_connect(&self, request: &ConnectRequest) -> ConnectDecision {
            let username = request.username.clone();
            Box::pin(async move { Ok(Grant { username }) })
        }
    }
    let hooks = Hooks { publish: Vec::new(), session: vec![Arc::new(Trusting)] };
    let server = Server::over(BrokerConfig::default(), hooks, Arc::default()).await;
    for (user, answer) in [("alice", [0, 0]), ("mallory", [0, 0x87]), ("alice", [1, 0])] {
        let mut raw = Raw::open(server.address).await;
        let rest = text(user);
        raw.send(&connect(5, 0x80, &[0x11, 0, 0, 0, 100], "device", &rest)).await;
        assert_eq!(raw.receive().await.body[..2], answer, "{user}");
        raw.send(&[0xe0, 0]).await;
        raw.until_closed().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn without_a_store_what_has_to_be_kept_is_refused() {
    let storage = Arc::new(MemoryStorage::default());
    let server = with_storage(BrokerConfig::default(), storage.clone()).await;
    let (mut client, _) = keep(&server, 5, "kept").await;
    client.subscribe(5, "t", 1).await;
    storage.pause();
    server.broker.wal().set_full(true);
    let node = Origin::Node { source: "test".into(), depth: 0, requester: None };
    let message =
        |topic: &str| Message::new(TopicName::new(topic).unwrap(), "x").with_qos(QoS::AtLeastOnce);
    let full = PublishOutcome::Rejected(RejectReason::QuotaExceeded);
    assert_eq!(server.broker.publish(&node, message("t")), full);
    assert_eq!(server.broker.publish(&node, message("u").with_retain(true)), full);
    assert!(matches!(server.broker.publish(&node, message("u")), PublishOutcome::Routed(_)));
    server.broker.wal().set_full(false);
    assert!(matches!(server.broker.publish(&node, message("t")), PublishOutcome::Routed(_)));
    server.stop().await;
}

#[tokio::test]
async fn figures_of_the_broker_are_retained_while_the_store_is_full() {
    let config = BrokerConfig { sys_interval: Duration::from_millis(50), ..BrokerConfig::default() };
    let server = with_storage(config, Arc::default()).await;
    server.broker.wal().set_full(true);
    // A figure that was never published before.
    let mut watched = Raw::connect(server.address, 5, "watched").await;
    watched.subscribe(5, "late", 0).await;
    let mut first = Raw::connect(server.address, 5, "first").await;
    first.subscribe(5, "$SYS/broker/queues/late", 0).await;
    assert_eq!(first.receive().await.topic(), "$SYS/broker/queues/late");
    let mut second = Raw::connect(server.address, 5, "second").await;
    second.subscribe(5, "$SYS/broker/queues/late", 0).await;
    // Those that are published meanwhile are not marked as retained.
    soon("a retained figure", async { while second.receive().await.first_byte & 1 == 0 {} }).await;
    let node = Origin::Node { source: "test".into(), depth: 0, requester: None };
    let of_client = Message::new(TopicName::new("mine").unwrap(), "x").with_retain(true);
    let PublishOutcome::Routed(routed) = server.broker.publish(&node, of_client) else {
        panic!("a message with QoS 0 is routed");
    };
    assert!(routed.retain_refused);
    server.stop().await;
}

#[tokio::test]
async fn figures_are_published_under_sys_and_by_filter() {
    let config = BrokerConfig { sys_interval: Duration::from_millis(50), ..BrokerConfig::default() };
    let server = with_storage(config, Arc::default()).await;
    let mut watched = Raw::connect(server.address, 5, "watched").await;
    watched.subscribe(5, "a/+/b", 0).await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    client.subscribe(5, "$SYS/broker/clients/connected", 0).await;
    let frame = client.receive().await;
    assert_eq!(frame.topic(), "$SYS/broker/clients/connected");
    // The other figures may change meanwhile.
    client.send(&packet(0x82, &[&[0, 1], &[0], &text("$SYS/broker/queues/#"), &[0]])).await;
    while client.receive().await.kind() != 9 {}
    loop {
        let frame = client.receive().await;
        if frame.topic() == "$SYS/broker/queues/a/%2B/b" {
            let text = String::from_utf8(frame.rest()[1..].to_vec()).unwrap();
            assert!(
                text.starts_with(r#"{"subscribers":1,"in":0,"out":0,"waiting":0,"dropped":0,"#),
                "{text}"
            );
            break;
        }
    }
    // Gone with its subscriber.
    watched.send(&[0xe0, 0]).await;
    loop {
        let frame = client.receive().await;
        if frame.topic() == "$SYS/broker/queues/a/%2B/b" && frame.rest() == b"\0" {
            break;
        }
    }
    let mut wildcard = Raw::connect(server.address, 5, "wildcard").await;
    wildcard.subscribe(5, "#", 0).await;
    wildcard.ping().await;
    server.stop().await;
}
