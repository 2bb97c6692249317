//! Sessions, byte by byte.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use edgefaas_broker::{BrokerConfig, Peer};

use crate::raw::{Frame, Raw, connect, packet, publish, text};
use crate::support::{Server, soon};

fn reasons(frames: &[Frame]) -> Vec<(u8, u8)> {
    frames.iter().map(|frame| (frame.kind(), frame.reason())).collect()
}

#[tokio::test]
async fn connack_of_version_5_says_what_there_is() {
    let server = Server::start().await;
    let mut raw = Raw::open(server.address).await;
    raw.send(&connect(5, 2, &[0x11, 0, 0, 0, 99], "", &[])).await;
    let ack = raw.receive().await;
    assert_eq!(ack.body[..2], [0, 0], "no session is present");
    let properties = &ack.body[3..];
    let has = |wanted: &[u8]| properties.windows(wanted.len()).any(|window| window == wanted);
    assert!(!has(&[0x11, 0, 0, 0]), "the session expiry interval is as asked for: {properties:x?}");
    assert!(has(&[0x21, 4, 0]), "receive maximum 1024: {properties:x?}");
    assert!(has(&[0x27, 0, 16, 0, 0]), "maximum packet size 1 MiB: {properties:x?}");
    assert!(has(&[0x22, 0, 32]), "topic alias maximum 32: {properties:x?}");
    assert!(!has(&[0x2a, 0]), "shared subscriptions are there: {properties:x?}");
    assert!(has(b"edgefaas-"), "an assigned client identifier: {properties:x?}");
    server.stop().await;
}

#[tokio::test]
async fn qos_2_from_a_client_is_routed_once() {
    let server = Server::start().await;
    for level in [4, 5] {
        let mut subscriber = Raw::connect(server.address, level, "subscriber").await;
        subscriber.subscribe(level, "t", 0).await;
        let mut publisher = Raw::connect(server.address, level, "publisher").await;
        publisher.send(&publish(level, 4, "t", 9, &[], b"once")).await;
        let received = publisher.receive().await;
        assert_eq!((received.kind(), received.packet_id()), (5, 9), "PUBREC");
        publisher.send(&publish(level, 12, "t", 9, &[], b"once")).await;
        let received = publisher.receive().await;
        assert_eq!((received.kind(), received.packet_id()), (5, 9), "PUBREC again");
        publisher.send(&packet(0x62, &[&[0, 9]])).await;
        let completed = publisher.receive().await;
        assert_eq!((completed.kind(), completed.packet_id()), (7, 9), "PUBCOMP");
        // Released: the identifier is free for another message.
        publisher.send(&publish(level, 4, "t", 9, &[], b"another")).await;
        assert_eq!(publisher.receive().await.kind(), 5);
        publisher.send(&packet(0x62, &[&[0, 9]])).await;
        assert_eq!(publisher.receive().await.kind(), 7);
        // Nothing to release: not found, where that can be said.
        publisher.send(&packet(0x62, &[&[0, 9]])).await;
        let completed = publisher.receive().await;
        assert_eq!(completed.body.get(2).copied(), (level == 5).then_some(0x92));
        let properties = usize::from(level == 5);
        assert_eq!(&subscriber.receive().await.rest()[properties..], b"once");
        assert_eq!(&subscriber.receive().await.rest()[properties..], b"another");
        subscriber.ping().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn qos_2_to_a_client_goes_through_its_four_steps() {
    let server = Server::start().await;
    for level in [4, 5] {
        let mut subscriber = Raw::connect(server.address, level, "subscriber").await;
        subscriber.subscribe(level, "t", 2).await;
        let mut publisher = Raw::connect(server.address, level, "publisher").await;
        publisher.send(&publish(level, 4, "t", 1, &[], b"x")).await;
        let message = subscriber.receive().await;
        assert_eq!(message.first_byte, 0x34, "QoS 2, no DUP, no retain");
        let id = message.packet_id().to_be_bytes();
        for _ in 0..2 {
            subscriber.send(&packet(0x50, &[&id])).await;
            let release = subscriber.receive().await;
            assert_eq!((release.first_byte, &release.body[..2]), (0x62, &id[..]), "PUBREL for each PUBREC");
        }
        subscriber.send(&packet(0x70, &[&id])).await;
        subscriber.ping().await;
        // Over: a further PUBREC finds nothing.
        subscriber.send(&packet(0x50, &[&id])).await;
        let release = subscriber.receive().await;
        assert_eq!(release.body.get(2).copied(), (level == 5).then_some(0x92));
    }
    server.stop().await;
}

#[tokio::test]
async fn an_acknowledgement_of_the_wrong_kind_is_a_protocol_error() {
    let server = Server::start().await;
    for (qos, wrong) in [(1, 0x50), (1, 0x70), (2, 0x40), (2, 0x70)] {
        let mut subscriber = Raw::connect(server.address, 5, "subscriber").await;
        subscriber.subscribe(5, "t", qos).await;
        let mut publisher = Raw::connect(server.address, 5, "publisher").await;
        publisher.send(&publish(5, qos << 1, "t", 1, &[], b"x")).await;
        let id = subscriber.receive().await.packet_id().to_be_bytes();
        subscriber.send(&packet(wrong, &[&id])).await;
        assert_eq!(reasons(&subscriber.until_closed().await), [(14, 0x82)], "QoS {qos}, packet {wrong:#x}");
    }
    server.stop().await;
}

#[tokio::test]
async fn acknowledgements_leave_in_the_order_of_the_messages() {
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Raw::connect(server.address, level, "publisher").await;
        let mut bytes = Vec::new();
        for id in 1..=200 {
            bytes.extend(publish(level, if id % 3 == 0 { 4 } else { 2 }, "t", id, &[], b"x"));
        }
        publisher.send(&bytes).await;
        for id in 1..=200 {
            let ack = publisher.receive().await;
            assert_eq!((ack.kind(), ack.packet_id()), (if id % 3 == 0 { 5 } else { 4 }, id));
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn receive_maximum_of_the_client_bounds_what_is_in_flight() {
    let server = Server::start().await;
    let mut subscriber = Raw::open(server.address).await;
    subscriber.send(&connect(5, 2, &[0x21, 0, 2], "subscriber", &[])).await;
    subscriber.receive().await;
    subscriber.subscribe(5, "t", 2).await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    for id in 1..=6u16 {
        publisher.send(&publish(5, if id % 2 == 0 { 4 } else { 2 }, "t", id, &[], &[id as u8])).await;
        publisher.receive().await;
    }
    let first = subscriber.receive().await;
    let second = subscriber.receive().await;
    assert_eq!((first.rest(), second.rest()), (&[0, 1][..], &[0, 2][..]));
    // Nothing more comes until one of the two is done, and then one.
    subscriber.ping().await;
    subscriber.send(&packet(0x40, &[&first.packet_id().to_be_bytes()])).await;
    let third = subscriber.receive().await;
    assert_eq!(third.rest(), [0, 3]);
    subscriber.ping().await;
    // QoS 2 counts until PUBCOMP.
    subscriber.send(&packet(0x50, &[&second.packet_id().to_be_bytes()])).await;
    assert_eq!(subscriber.receive().await.kind(), 6);
    subscriber.ping().await;
    subscriber.send(&packet(0x70, &[&second.packet_id().to_be_bytes()])).await;
    let fourth = subscriber.receive().await;
    assert_eq!(fourth.rest(), [0, 4]);
    // PUBREC with an error ends the exchange as well: in flight are then 5 and, after its refusal, not 4 but 6.
    let fourth = fourth.packet_id().to_be_bytes();
    subscriber.send(&packet(0x40, &[&third.packet_id().to_be_bytes()])).await;
    assert_eq!(subscriber.receive().await.rest(), [0, 5]);
    subscriber.ping().await;
    subscriber.send(&packet(0x50, &[&fourth, &[0x83]])).await;
    assert_eq!(subscriber.receive().await.rest(), [0, 6]);
    server.stop().await;
}

#[tokio::test]
async fn receive_maximum_of_the_broker_is_enforced() {
    let config =
        BrokerConfig { receive_maximum: NonZeroU16::new(2).expect("not 0"), ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    for id in 1..=3 {
        publisher.send(&publish(5, 4, "t", id, &[], b"x")).await;
    }
    let frames = publisher.until_closed().await;
    assert_eq!(frames.iter().map(Frame::kind).collect::<Vec<_>>(), [5, 5, 14]);
    assert_eq!(frames[2].reason(), 0x93);
    server.stop().await;
}

#[tokio::test]
async fn topic_aliases_stand_for_their_topics() {
    let server = Server::start().await;
    let mut subscriber = Raw::connect(server.address, 5, "subscriber").await;
    subscriber.subscribe(5, "#", 0).await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    publisher.send(&publish(5, 0, "one", 0, &[0x23, 0, 1], b"1")).await;
    publisher.send(&publish(5, 0, "two", 0, &[0x23, 0, 32], b"2")).await;
    publisher.send(&publish(5, 0, "", 0, &[0x23, 0, 1], b"3")).await;
    publisher.send(&publish(5, 0, "", 0, &[0x23, 0, 32], b"4")).await;
    publisher.send(&publish(5, 0, "other", 0, &[0x23, 0, 1], b"5")).await;
    publisher.send(&publish(5, 0, "", 0, &[0x23, 0, 1], b"6")).await;
    let mut got = Vec::new();
    for _ in 0..6 {
        let frame = subscriber.receive().await;
        assert_eq!(frame.rest()[0], 0, "the alias stays between publisher and broker");
        got.push(format!("{} {}", frame.topic(), frame.rest()[1] as char));
    }
    assert_eq!(got, ["one 1", "two 2", "one 3", "two 4", "other 5", "other 6"]);
    server.stop().await;
}

#[tokio::test]
async fn a_client_gets_a_message_once_with_all_its_subscription_identifiers() {
    let server = Server::start().await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    client.send(&packet(0x82, &[&[0, 1], &[2, 0x0b, 1], &text("a/#"), &[0]])).await;
    client.send(&packet(0x82, &[&[0, 2], &[3, 0x0b, 200, 1], &text("a/+"), &[1]])).await;
    client.send(&packet(0x82, &[&[0, 3], &[0], &text("a/b"), &[2]])).await;
    for _ in 0..3 {
        assert_eq!(client.receive().await.kind(), 9);
    }
    client.send(&publish(5, 2, "a/b", 5, &[], b"x")).await;
    let (mut ack, mut message) = (client.receive().await, client.receive().await);
    if ack.kind() == 3 {
        std::mem::swap(&mut ack, &mut message);
    }
    assert_eq!((ack.kind(), message.first_byte), (4, 0x32), "QoS 1: the lower of 1 and the highest");
    let mut identifiers = message.rest()[1..6].to_vec();
    identifiers.sort_unstable();
    assert_eq!((message.rest()[0], identifiers), (5, vec![1, 1, 0x0b, 0x0b, 200]));
    client.ping().await;
    server.stop().await;
}

#[tokio::test]
async fn no_local_keeps_a_clients_own_messages_away() {
    let server = Server::start().await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    client.subscribe(5, "t/#", 0b100).await;
    client.send(&publish(5, 0, "t/1", 0, &[], b"own")).await;
    client.ping().await;
    let mut other = Raw::connect(server.address, 5, "other").await;
    other.send(&publish(5, 0, "t/1", 0, &[], b"other")).await;
    assert_eq!(&client.receive().await.rest()[1..], b"other");
    server.stop().await;
}

#[tokio::test]
async fn retained_messages_follow_the_options_of_the_subscription() {
    let server = Server::start().await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    publisher.send(&publish(5, 3, "r/a", 1, &[], b"1")).await;
    publisher.send(&publish(5, 3, "r/b", 2, &[], b"2")).await;
    publisher.send(&publish(5, 3, "rx", 3, &[], b"3")).await;
    publisher.send(&publish(5, 3, "$r/a", 4, &[], b"4")).await;
    publisher.ping_after(4).await;
    assert_eq!(server.broker.stats().retained, 4);

    let mut client = Raw::connect(server.address, 5, "client").await;
    let first_byte_and_topic = |frame: Frame| (frame.first_byte, frame.topic().to_owned());
    // Send at subscribe: with the retain flag.
    client.subscribe(5, "r/#", 0b00_0001).await;
    assert_eq!(first_byte_and_topic(client.receive().await), (0x33, "r/a".into()));
    assert_eq!(first_byte_and_topic(client.receive().await), (0x33, "r/b".into()));
    // Only when the subscription is new: it is not.
    client.subscribe(5, "r/#", 0b01_0001).await;
    client.ping().await;
    // Never.
    client.subscribe(5, "+/a", 0b10_0001).await;
    client.ping().await;
    // A leading wildcard does not match $-topics.
    client.subscribe(5, "#", 0b00_0000).await;
    for topic in ["r/a", "r/b", "rx"] {
        assert_eq!(first_byte_and_topic(client.receive().await), (0x31, topic.into()));
    }
    client.ping().await;
    // An update is sent without the flag to who is there, with it to those who asked for it as published.
    let mut as_published = Raw::connect(server.address, 5, "as published").await;
    as_published.subscribe(5, "r/a", 0b10_1000).await;
    publisher.send(&publish(5, 1, "r/a", 0, &[], b"new")).await;
    assert_eq!(first_byte_and_topic(client.receive().await), (0x30, "r/a".into()));
    assert_eq!(first_byte_and_topic(as_published.receive().await), (0x31, "r/a".into()));
    // An empty payload removes it, and is itself delivered.
    publisher.send(&publish(5, 1, "r/a", 0, &[], b"")).await;
    assert_eq!(client.receive().await.rest(), [0]);
    assert_eq!(server.broker.stats().retained, 3);
    server.stop().await;
}

impl Raw {
    /// Takes this many acknowledgements and a PINGRESP.
    async fn ping_after(&mut self, acks: usize) {
        for _ in 0..acks {
            assert!(matches!(self.receive().await.kind(), 4 | 5));
        }
        self.ping().await;
    }
}

#[tokio::test]
async fn many_retained_messages_reach_a_subscriber_beyond_its_queue() {
    let config = BrokerConfig { session_queue_messages: 10, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut publisher = Raw::connect(server.address, 4, "publisher").await;
    for number in 0..500 {
        publisher.send(&publish(4, 1, &format!("r/{number:03}"), 0, &[], b"x")).await;
    }
    publisher.ping().await;
    let mut client = Raw::connect(server.address, 4, "client").await;
    client.send(&packet(0x82, &[&[0, 1], &text("r/+"), &[0]])).await;
    assert_eq!(client.receive().await.kind(), 9);
    for number in 0..500 {
        assert_eq!(client.receive().await.topic(), format!("r/{number:03}"));
    }
    assert_eq!(server.broker.stats().messages_dropped, 0);
    server.stop().await;
}

#[tokio::test]
async fn message_expiry_counts_down_and_out() {
    let server = Server::start().await;
    let mut live = Raw::connect(server.address, 5, "live").await;
    live.subscribe(5, "e/#", 0).await;
    let mut publisher = Raw::connect(server.address, 5, "publisher").await;
    publisher.send(&publish(5, 1, "e/long", 0, &[2, 0, 0, 0, 100], b"x")).await;
    let sent = Instant::now();
    publisher.send(&publish(5, 1, "e/short", 0, &[2, 0, 0, 0, 1], b"x")).await;
    publisher.send(&publish(5, 1, "e/none", 0, &[2, 0, 0, 0, 0], b"x")).await;
    for left in [100, 1, 0] {
        assert_eq!(live.receive().await.rest(), [5, 2, 0, 0, 0, left, b'x']);
    }
    // Until the short one is gone, as a later subscriber sees it.
    soon("expiry", async {
        loop {
            let mut late = Raw::connect(server.address, 5, "late").await;
            late.subscribe(5, "e/#", 0).await;
            let long = late.receive().await;
            late.send(&[0xc0, 0]).await;
            let next = late.receive().await;
            if next.kind() == 13 {
                assert!(sent.elapsed() >= Duration::from_secs(1), "the short one lived");
                assert_eq!(long.topic(), "e/long");
                assert!((90..=99).contains(&long.rest()[5]), "some of it is over: {long:?}");
                break;
            }
            assert_eq!(next.topic(), "e/short");
        }
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn unsuback_says_which_subscriptions_there_were() {
    let server = Server::start().await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    let filters = [text("$share/g/t"), vec![1], text("t"), vec![1]].concat();
    client.send(&packet(0x82, &[&[0, 1], &[0], &filters])).await;
    assert_eq!(client.receive().await.body, [0, 1, 0, 1, 1]);
    let filters = [text("t"), text("u"), text("$share/g/t"), text("$share/h/t")].concat();
    client.send(&packet(0xa2, &[&[0, 2], &[0], &filters])).await;
    assert_eq!(client.receive().await.body, [0, 2, 0, 0, 0x11, 0, 0x11]);
    server.stop().await;
}

#[tokio::test]
async fn a_second_connection_takes_the_identifier_over_and_the_first_ones_will_is_published() {
    let server = Server::start().await;
    let mut watcher = Raw::connect(server.address, 5, "watcher").await;
    watcher.subscribe(5, "will/#", 1).await;
    let mut first = Raw::open(server.address).await;
    let will = [vec![0], text("will/first"), text("taken")].concat();
    first.send(&connect(5, 0x0e, &[], "same", &will)).await;
    first.receive().await;
    first.subscribe(5, "t", 0).await;
    let mut second = Raw::connect(server.address, 5, "same").await;
    assert_eq!(reasons(&first.until_closed().await), [(14, 0x8e)]);
    assert_eq!(watcher.receive().await.topic(), "will/first");
    server
        .until("two clients, one subscription", |stats| (stats.connections, stats.subscriptions) == (2, 1))
        .await;
    second.ping().await;
    server.stop().await;
}

#[tokio::test]
async fn a_will_is_published_unless_the_client_says_goodbye() {
    let server = Server::start().await;
    let mut watcher = Raw::connect(server.address, 5, "watcher").await;
    watcher.subscribe(5, "will/#", 2).await;
    let endings: [(&str, &[u8], bool); 5] = [
        ("goodbye", &[0xe0, 0], false),
        ("with-will", &[0xe0, 1, 4], true),
        ("error", &[0xe0, 1, 0x81], true),
        ("silent", &[], true),
        ("malformed", &[0x00, 0], true),
    ];
    for (name, last, published) in endings {
        let mut client = Raw::open(server.address).await;
        let properties = [5, 2, 0, 0, 0, 9];
        let will = [&properties[..], &text(format!("will/{name}")), &text("gone")].concat();
        client.send(&connect(5, 0x16, &[], name, &will)).await;
        client.receive().await;
        client.send(last).await;
        drop(client);
        server.until("the client is gone", |stats| stats.connections == 1).await;
        if published {
            let message = watcher.receive().await;
            assert_eq!((message.topic(), message.first_byte), (format!("will/{name}").as_str(), 0x34));
            assert_eq!(message.rest(), [&properties[..], b"gone"].concat());
        } else {
            watcher.ping().await;
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn keepalive_is_enforced_at_one_and_a_half_times() {
    /// If the machine pauses for so long, the lively client is silent, too.
    const SILENT: Duration = Duration::from_millis(1400);
    let server = Server::start().await;
    let with_keepalive = |seconds: u8, client_id: &str| {
        let mut bytes = connect(5, 2, &[], client_id, &[]);
        bytes[11] = seconds;
        bytes
    };
    let mut never = Raw::open(server.address).await;
    never.send(&with_keepalive(0, "never")).await;
    never.receive().await;
    let mut lively = Raw::open(server.address).await;
    lively.send(&with_keepalive(1, "lively")).await;
    lively.receive().await;
    let mut silent = Raw::open(server.address).await;
    let start = Instant::now();
    silent.send(&with_keepalive(1, "silent")).await;
    silent.receive().await;
    let mut last_ping = Instant::now();
    let frames = {
        let pinging = async {
            while last_ping.elapsed() < SILENT {
                lively.ping().await;
                last_ping = Instant::now();
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            frames = silent.until_closed() => frames,
            () = pinging => unreachable!("it pings for ever"),
        }
    };
    let took = start.elapsed();
    assert_eq!(reasons(&frames), [(14, 0x8d)]);
    assert!(took >= Duration::from_millis(1500), "closed after {took:?}");
    never.ping().await;
    let connections = server.broker.stats().connections;
    if last_ping.elapsed() < SILENT {
        assert_eq!(connections, 2, "the lively one is there too");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_connection_without_connect_is_closed() {
    let config = BrokerConfig { connect_timeout: Duration::from_millis(100), ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut raw = Raw::open(server.address).await;
    raw.send(&connect(5, 2, &[], "c", &[])[..8]).await;
    assert!(raw.until_closed().await.is_empty());
    assert_eq!(server.broker.stats().connections_refused, 1);
    server.stop().await;
}

#[tokio::test]
async fn shutting_down_tells_version_5_and_publishes_wills() {
    let server = Server::start().await;
    let mut new = Raw::connect(server.address, 5, "new").await;
    let mut old = Raw::connect(server.address, 4, "old").await;
    let broker = server.broker.clone();
    server
        .stop_while(async {
            assert_eq!(reasons(&new.until_closed().await), [(14, 0x8b)]);
            assert!(old.until_closed().await.is_empty());
        })
        .await;
    assert_eq!(broker.stats().connections, 0);
}

impl Server {
    async fn stop_while(self, meanwhile: impl Future<Output = ()>) {
        tokio::join!(self.stop(), meanwhile);
    }
}

#[tokio::test]
async fn dropping_the_future_ends_the_session() {
    let server = Server::start().await;
    let mut watcher = Raw::connect(server.address, 4, "watcher").await;
    watcher.subscribe(4, "will", 0).await;
    let (mut client, stream) = tokio::io::duplex(4096);
    let broker = server.broker.clone();
    let serving = tokio::spawn(async move {
        let peer = "127.0.0.1:1".parse().expect("an address");
        broker.serve(stream, Peer::tcp(peer), tokio_util::sync::CancellationToken::new()).await;
    });
    let will = [text("will"), text("aborted")].concat();
    tokio::io::AsyncWriteExt::write_all(&mut client, &connect(4, 6, &[], "piped", &will))
        .await
        .expect("sends");
    server.until("it is connected", |stats| stats.connections == 2).await;
    serving.abort();
    assert_eq!(watcher.receive().await.rest(), b"aborted");
    server.until("it is gone", |stats| stats.connections == 1).await;
    server.stop().await;
}
