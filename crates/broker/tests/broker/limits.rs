//! Overload and limits: nothing is unbounded, nothing is lost in silence.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use edgefaas_broker::{BrokerConfig, Message, Origin, PublishOutcome, QoS, RejectReason, TopicName};

use crate::raw::{Raw, connect, packet, publish, text};
use crate::support::{Server, soon};

/// Payload that fills socket buffers soon.
const LARGE: usize = 100_000;

fn node() -> Origin {
    Origin::Node { source: "test".into(), depth: 0, requester: None }
}

#[tokio::test]
async fn qos_0_beyond_the_queue_of_a_slow_subscriber_is_dropped_and_counted_and_others_get_it() {
    let config = BrokerConfig { session_queue_bytes: 4 * LARGE, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut slow = Raw::connect(server.address, 4, "slow").await;
    slow.subscribe(4, "t", 0).await;
    let mut quick = Raw::connect(server.address, 4, "quick").await;
    quick.subscribe(4, "t", 0).await;
    let mut publisher = Raw::connect(server.address, 4, "publisher").await;
    let mut sent = 0u64;
    while server.broker.stats().messages_dropped < 50 {
        publisher.send(&publish(4, 0, "t", 0, &[], &vec![1; LARGE])).await;
        quick.receive().await;
        sent += 1;
        assert!(sent < 5_000, "a subscriber that does not read is never noticed");
    }
    // What was not dropped arrives once it reads, in order and complete.
    publisher.ping().await;
    let stats = server.broker.stats();
    assert_eq!(stats.messages_out + stats.messages_dropped, 2 * sent);
    for _ in 0..sent - stats.messages_dropped {
        assert_eq!(slow.receive().await.rest().len(), LARGE);
    }
    slow.ping().await;
    server.stop().await;
}

#[tokio::test]
async fn qos_1_waits_for_a_slow_subscriber_and_loses_nothing() {
    let config = BrokerConfig {
        session_queue_bytes: 4 * LARGE,
        publish_wait: Duration::from_secs(15),
        ..BrokerConfig::default()
    };
    let server = Server::with(config, Vec::new()).await;
    let mut slow = Raw::connect(server.address, 5, "slow").await;
    slow.subscribe(5, "t", 1).await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    const COUNT: u16 = 300;
    let publishing = tokio::spawn(async move {
        let mut acked = 0;
        for id in 1..=COUNT {
            publisher.send(&publish(5, 2, "t", id, &[], &vec![1; LARGE])).await;
            let ack = publisher.receive().await;
            assert_eq!((ack.kind(), ack.packet_id()), (4, id));
            acked += 1;
        }
        acked
    });
    // The publisher comes to a stop.
    let mut before = u64::MAX;
    loop {
        let now = server.broker.stats().messages_in;
        if now == before && now > 0 {
            break;
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(before < COUNT.into(), "socket buffers took everything: {before}");
    // Another publisher of other things is not stopped.
    Raw::connect(server.address, 5, "other").await.ping().await;
    for number in 1..=COUNT {
        let message = slow.receive().await;
        assert_eq!(message.rest().len(), LARGE + 1, "message {number}");
        slow.send(&packet(0x40, &[&message.packet_id().to_be_bytes()])).await;
    }
    assert_eq!(publishing.await.expect("no panic"), COUNT);
    assert_eq!(server.broker.stats().messages_dropped, 0);
    server.stop().await;
}

#[tokio::test]
async fn waiting_has_an_end_and_is_not_repeated_for_a_subscriber_that_takes_nothing() {
    let config = BrokerConfig {
        session_queue_messages: 2,
        max_inflight: NonZeroU16::new(1).expect("not 0"),
        publish_wait: Duration::from_secs(1),
        ..BrokerConfig::default()
    };
    let server = Server::with(config, Vec::new()).await;
    // It reads, but acknowledges nothing: one in flight, two queued.
    let mut stuck = Raw::connect(server.address, 5, "stuck").await;
    stuck.subscribe(5, "t", 1).await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    let start = Instant::now();
    for id in 1..=20 {
        publisher.send(&publish(5, 2, "t", id, &[], b"x")).await;
        assert_eq!(publisher.receive().await.packet_id(), id);
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(1), "nobody waited: {took:?}");
    // 17 seconds if each had waited.
    assert!(took < Duration::from_secs(12), "everybody waited: {took:?}");
    assert_eq!(server.broker.stats().messages_dropped, 17);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_closed_in_the_end() {
    let config = BrokerConfig { write_timeout: Duration::from_millis(300), ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut deaf = Raw::connect(server.address, 4, "deaf").await;
    deaf.subscribe(4, "t", 0).await;
    let topic = TopicName::new("t").expect("valid");
    server
        .until("it is gone", |stats| {
            let message = Message::new(topic.clone(), vec![1; LARGE]);
            server.broker.publish(&node(), message);
            stats.connections == 0
        })
        .await;
    server.stop().await;
}

#[tokio::test]
async fn what_is_larger_than_a_client_takes_is_not_sent_to_it() {
    let server = Server::start().await;
    let mut small = Raw::open(server.address).await;
    small.send(&connect(5, 2, &[0x27, 0, 0, 0, 40, 0x21, 0, 1], "small", &[])).await;
    let mut large = Raw::connect(server.address, 5, "large").await;
    large.subscribe(5, "t", 1).await;
    assert_eq!(small.receive().await.kind(), 2);
    small.subscribe(5, "t", 1).await;
    // 2 fixed header, 3 topic, 2 identifier, 1 properties: 32 are left.
    large.send(&publish(5, 2, "t", 1, &[], &[1; 33])).await;
    large.send(&publish(5, 2, "t", 2, &[], &[2; 32])).await;
    let message = small.receive().await;
    assert_eq!(message.rest(), [&[0][..], &[2; 32]].concat());
    // With a receive maximum of 1, it came because the one that was not sent takes no place.
    assert_eq!(server.broker.stats().messages_dropped, 1);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_even_take_the_connack_is_closed() {
    let server = Server::start().await;
    let mut tiny = Raw::open(server.address).await;
    tiny.send(&connect(5, 2, &[0x27, 0, 0, 0, 5], "tiny", &[])).await;
    assert!(tiny.until_closed().await.is_empty());
    server.stop().await;
}

#[tokio::test]
async fn large_messages_pass_up_to_the_limit() {
    let config = BrokerConfig { max_packet_bytes: 5_000_000, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    for level in [4, 5] {
        let mut client = Raw::connect(server.address, level, "client").await;
        client.subscribe(level, "t", 1).await;
        let overhead = 1 + 4 + 3 + 2 + usize::from(level == 5);
        let payload: Vec<u8> = (0..5_000_000 - overhead).map(|index| (index % 251) as u8).collect();
        let whole = publish(level, 2, "t", 1, &[], &payload);
        assert_eq!(whole.len(), 5_000_000);
        client.send(&whole).await;
        let mut frames = [client.receive().await, client.receive().await];
        frames.sort_by_key(|frame| frame.kind());
        assert_eq!(&frames[0].rest()[usize::from(level == 5)..], payload);
        assert_eq!(frames[1].kind(), 4);
    }
    server.stop().await;
}

#[tokio::test]
async fn more_clients_than_allowed_are_refused() {
    let config = BrokerConfig { max_connections: 2, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let _first = Raw::connect(server.address, 5, "first").await;
    let second = Raw::connect(server.address, 5, "second").await;
    for (level, reason) in [(5, 0x89), (4, 3)] {
        let mut third = Raw::open(server.address).await;
        third.send(&connect(level, 2, &[], "third", &[])).await;
        assert_eq!(third.until_closed().await[0].reason(), reason);
    }
    // Taking over needs no place, and a free one can be had again.
    let _again = Raw::connect(server.address, 5, "first").await;
    drop(second);
    server.until("a place is free", |stats| stats.connections == 1).await;
    Raw::connect(server.address, 4, "third").await.ping().await;
    server.stop().await;
}

#[tokio::test]
async fn more_subscriptions_than_allowed_are_refused() {
    let config = BrokerConfig { max_subscriptions_per_session: 1, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    client.subscribe(5, "one", 0).await;
    client.subscribe(5, "one", 1).await;
    client.send(&packet(0x82, &[&[0, 1], &[0], &text("two"), &[0]])).await;
    assert_eq!(client.receive().await.body, [0, 1, 0, 0x97]);
    server.stop().await;
}

#[tokio::test]
async fn more_retained_messages_than_allowed_are_routed_but_not_kept() {
    let config =
        BrokerConfig { max_retained_messages: 2, max_retained_bytes: 10_000, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut watcher = Raw::connect(server.address, 5, "watcher").await;
    watcher.subscribe(5, "r/#", 0).await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    let cases: [(&str, usize, Option<u8>); 6] = [
        ("r/1", 10, None),
        ("r/2", 10, None),
        ("r/3", 10, Some(0x97)),
        ("r/2", 20_000, Some(0x97)),
        ("r/1", 0, None),
        ("r/3", 10, None),
    ];
    for (id, (topic, bytes, reason)) in (1..).zip(cases) {
        client.send(&publish(5, 3, topic, id, &[], &vec![7; bytes])).await;
        let ack = client.receive().await;
        assert_eq!(ack.body.get(2).copied().filter(|&reason| reason != 0), reason, "{topic} with {bytes}");
        assert_eq!((watcher.receive().await.topic(), ack.kind()), (topic, 4));
    }
    let stats = server.broker.stats();
    assert_eq!((stats.retained, stats.retained_refused), (2, 2));
    server.stop().await;
}

#[tokio::test]
async fn the_node_publishes_without_a_connection() {
    let server = Server::start().await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    client.subscribe(5, "t", 2).await;
    let topic = TopicName::new("t").expect("valid");
    let message = Message::new(topic.clone(), "hello").with_qos(QoS::ExactlyOnce).with_retain(true);
    let PublishOutcome::Routed(routed) = server.broker.publish(&node(), message) else {
        panic!("nobody consumes or refuses it")
    };
    assert_eq!((routed.subscribers, routed.dropped, routed.retain_refused), (1, 0, false));
    let got = client.receive().await;
    assert_eq!((got.first_byte, &got.rest()[1..]), (0x34, &b"hello"[..]));
    assert_eq!(server.broker.stats().retained, 1);
    let huge = Message::new(topic, vec![0; 2_000_000]);
    let refused = PublishOutcome::Rejected(RejectReason::ImplementationSpecific);
    assert_eq!(server.broker.publish(&node(), huge), refused);
    server.stop().await;
}

#[tokio::test]
async fn many_retained_messages_come_once_however_often_their_filter_is_repeated() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const TOPICS: usize = 1000;
    const FILTERS: usize = 20_000;
    let server = Server::start().await;
    let origin = Origin::Node { source: "test".into(), depth: 0, requester: None };
    for number in 0..TOPICS {
        let topic = TopicName::new(format!("retained/{number}")).unwrap();
        server.broker.publish(&origin, Message::new(topic, "x").with_retain(true));
    }
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    // CONNECT of MQTT 3.1.1 with a clean session; SUBSCRIBE to `#`, again and again; PINGREQ.
    stream.write_all(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01s").await.unwrap();
    let length = 2 + FILTERS * 4;
    let mut subscribe = vec![0x82, (length & 127) as u8 | 128, (length >> 7 & 127) as u8 | 128];
    subscribe.extend([(length >> 14) as u8, 0, 1]);
    (0..FILTERS).for_each(|_| subscribe.extend(b"\x00\x01#\x00"));
    stream.write_all(&subscribe).await.unwrap();
    stream.write_all(&[0xc0, 0]).await.unwrap();

    let (mut publishes, mut pinged, mut bytes) = (0, false, Vec::new());
    soon("all retained messages and the answer to the ping", async {
        while publishes < TOPICS || !pinged {
            assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0, "the connection stays");
            while let Some((kind, length)) = first_packet(&bytes) {
                publishes += usize::from(kind >> 4 == 3);
                pinged |= kind == 0xd0;
                bytes.drain(..length);
            }
        }
    })
    .await;
    assert_eq!(publishes, TOPICS);
    server.stop().await;
}

/// First byte and whole length of the packet that is at the start, if all of it is there.
fn first_packet(bytes: &[u8]) -> Option<(u8, usize)> {
    let (mut length, mut at) = (0, 1);
    loop {
        let byte = usize::from(*bytes.get(at)?);
        length |= (byte & 127) << (7 * (at - 1));
        at += 1;
        if byte < 128 {
            break;
        }
    }
    (bytes.len() >= at + length).then(|| (bytes[0], at + length))
}

#[tokio::test]
async fn clients_do_not_publish_the_brokers_own_figures() {
    use edgefaas_broker::{Client, Transport, Version};
    let server = Server::start().await;
    let topic = || TopicName::new("$SYS/broker/version").unwrap();
    let client = Origin::Client(std::sync::Arc::new(Client {
        client_id: "c".into(),
        username: None,
        peer: server.address,
        version: Version::V5,
        transport: Transport::Tcp,
    }));
    let outcome = server.broker.publish(&client, Message::new(topic(), "forged"));
    assert_eq!(outcome, PublishOutcome::Rejected(RejectReason::NotAuthorized));
    assert!(matches!(
        server.broker.publish(&Origin::Broker, Message::new(topic(), "1")),
        PublishOutcome::Routed(_)
    ));
    server.stop().await;
}
