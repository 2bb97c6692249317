//! What must not cost anybody a message, a session or the broker: names at the limit, sizes over it, stores that are full,
//! clients that come back or do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use edgefaas_broker::{
    BrokerConfig, Client, Hooks, MemoryStorage, QoS, RejectReason, SessionHook, Space, TopicFilter,
};

use crate::raw::{Raw, connect, packet, publish, text};
use crate::support::{Server, soon};

const KEPT: &[u8] = &[0x11, 0, 0, 0, 100];

/// Connects with a session that is kept for 100 s and further properties.
async fn keep(server: &Server, client_id: &str, properties: &[u8]) -> (Raw, bool) {
    let mut raw = Raw::open(server.address).await;
    raw.send(&connect(5, 0, &[KEPT, properties].concat(), client_id, &[])).await;
    let ack = raw.receive().await;
    assert_eq!((ack.kind(), ack.reason()), (2, 0));
    let present = ack.body[0] == 1;
    (raw, present)
}

async fn over(config: BrokerConfig, storage: MemoryStorage) -> Server {
    Server::over(config, Hooks::default(), Arc::new(storage)).await
}

/// Publishes with QoS 1 and waits for the acknowledgement, whose reason it gives.
async fn say(raw: &mut Raw, topic: &str, properties: &[u8], payload: &[u8]) -> u8 {
    raw.send(&publish(5, 2, topic, 1, properties, payload)).await;
    let ack = raw.receive().await;
    assert_eq!(ack.kind(), 4);
    ack.body.get(2).copied().unwrap_or(0)
}

/// The payload of the next message, which is acknowledged.
async fn next(raw: &mut Raw) -> Vec<u8> {
    let frame = raw.receive().await;
    let payload = frame.rest()[1 + usize::from(frame.rest()[0])..].to_vec();
    if frame.first_byte & 2 != 0 {
        raw.send(&packet(0x40, &[&frame.packet_id().to_be_bytes()])).await;
    }
    payload
}

#[tokio::test]
async fn the_longest_names_do_not_harm_the_store() {
    let storage = Arc::new(MemoryStorage::default());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), storage.clone()).await;
    let longest = "t".repeat(65_535);
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for payload in ["a", "", "b"] {
        raw.send(&publish(5, 3, &longest, 1, &[], payload.as_bytes())).await;
        assert_eq!(raw.receive().await.kind(), 4);
    }
    let (mut kept, _) = keep(&server, "kept", &[]).await;
    kept.send(&packet(0x82, &[&[0, 1, 0], &text(&longest), &[1]])).await;
    let ack = kept.receive().await;
    assert_eq!((ack.kind(), ack.body[3]), (9, 0x8f));
    let mut refused = Raw::open(server.address).await;
    refused.send(&connect(5, 0, KEPT, &"c".repeat(65_001), &[])).await;
    assert_eq!(refused.receive().await.reason(), 0x85);
    // Everything is stored as before.
    kept.subscribe(5, "t", 1).await;
    assert_eq!(say(&mut raw, "t", &[], b"x").await, 0);
    server.stop().await;
    let server = over(BrokerConfig::default(), storage.snapshot()).await;
    let mut raw = Raw::connect(server.address, 5, "reader").await;
    raw.subscribe(5, &longest, 1).await;
    assert_eq!(next(&mut raw).await, b"b");
    server.stop().await;
}

#[tokio::test]
async fn one_that_is_too_large_for_the_client_does_not_stop_those_after_it() {
    let server = Server::start().await;
    // Maximum Packet Size 200.
    let (mut kept, _) = keep(&server, "kept", &[0x27, 0, 0, 0, 200]).await;
    kept.subscribe(5, "t", 1).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for payload in [&b"one"[..], &[b'x'; 500], b"two", b"three"] {
        assert_eq!(say(&mut raw, "t", &[], payload).await, 0);
    }
    for wanted in ["one", "two", "three"] {
        assert_eq!(next(&mut kept).await, wanted.as_bytes());
    }
    server.stop().await;
}

#[tokio::test]
async fn the_messages_of_an_ended_session_are_nobody_elses() {
    let storage = Arc::new(MemoryStorage::default());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), storage.clone()).await;
    let (mut kept, _) = keep(&server, "old", &[]).await;
    kept.subscribe(5, "old", 1).await;
    kept.send(&[0xe0, 0]).await;
    kept.until_closed().await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for _ in 0..1000 {
        say(&mut raw, "old", &[], b"secret").await;
    }
    // Ended, and its messages not deleted yet when the power goes.
    let before = storage.snapshot();
    let copy = Arc::new(before);
    let ending = Server::over(BrokerConfig::default(), Hooks::default(), copy.clone()).await;
    drop(Raw::connect(ending.address, 5, "old").await);
    let mut cut = copy.snapshot();
    soon("its record is deleted", async {
        while cut.len(Space::State) > 0 {
            tokio::task::yield_now().await;
            cut = copy.snapshot();
        }
    })
    .await;
    assert!(cut.len(Space::Queue) > 0, "it was cut too late");
    ending.stop().await;
    server.stop().await;
    let server = over(BrokerConfig::default(), cut).await;
    let (mut new, present) = keep(&server, "new", &[]).await;
    assert!(!present);
    new.subscribe(5, "new", 1).await;
    new.send(&[0xe0, 0]).await;
    new.until_closed().await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for number in 0..50u8 {
        assert_eq!(say(&mut raw, "new", &[], &[number]).await, 0);
    }
    let (mut new, present) = keep(&server, "new", &[]).await;
    assert!(present);
    for number in 0..50u8 {
        assert_eq!(next(&mut new).await, [number]);
    }
    server.stop().await;
}

#[tokio::test]
async fn sessions_that_are_away_leave_room_for_those_that_are_there() {
    let config = BrokerConfig { max_stored_queue_bytes: 64 * 1024, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let (mut hog, _) = keep(&server, "hog", &[]).await;
    hog.subscribe(5, "hog", 1).await;
    drop(hog);
    server.until("it is away", |stats| stats.connections == 0).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for _ in 0..200 {
        say(&mut raw, "hog", &[], &[b'x'; 1000]).await;
    }
    let (mut here, _) = keep(&server, "here", &[]).await;
    here.subscribe(5, "here", 1).await;
    let (mut away, _) = keep(&server, "away", &[]).await;
    away.subscribe(5, "away", 1).await;
    drop(away);
    server.until("it is away", |stats| stats.connections == 2).await;
    for number in 0..50u8 {
        assert_eq!(say(&mut raw, "here", &[], &[number]).await, 0);
        assert_eq!(next(&mut here).await, [number]);
    }
    assert_eq!(say(&mut raw, "away", &[], b"for later").await, 0);
    assert!(server.broker.stats().stored_bytes <= 64 * 1024);
    let (mut away, _) = keep(&server, "away", &[]).await;
    assert_eq!(next(&mut away).await, b"for later");
    server.stop().await;
}

#[tokio::test]
async fn what_waits_for_room_is_kept_though_its_publisher_goes() {
    let config = BrokerConfig { stored_queue_messages: 2, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    // Receive Maximum 1.
    let (mut slow, _) = keep(&server, "slow", &[0x21, 0, 1]).await;
    slow.subscribe(5, "t", 2).await;
    let (mut raw, _) = keep(&server, "publisher", &[]).await;
    for number in 1..=4u8 {
        raw.send(&publish(5, 4, "t", number.into(), &[], &[number])).await;
    }
    for number in 1..=3u8 {
        assert_eq!((raw.receive().await.packet_id(), number), (number.into(), number));
    }
    // The fourth waits for room; its publisher comes back meanwhile and sends it again.
    drop(raw);
    let (mut raw, present) = keep(&server, "publisher", &[]).await;
    assert!(present);
    raw.send(&publish(5, 0xc, "t", 4, &[], &[4])).await;
    let received = raw.receive().await;
    assert_eq!((received.kind(), received.packet_id()), (5, 4));
    let mut got = Vec::new();
    // It had waited for a second when its publisher was let in again: the oldest that waited may be gone, and is counted.
    while got.len() as u64 + server.broker.stats().messages_dropped < 4 {
        let frame = slow.receive().await;
        match frame.kind() {
            3 => {
                got.push(frame.rest()[1]);
                slow.send(&packet(0x50, &[&frame.packet_id().to_be_bytes()])).await;
            }
            _ => slow.send(&packet(0x70, &[&frame.packet_id().to_be_bytes()])).await,
        }
    }
    assert_eq!((got.first(), got.last()), (Some(&1), Some(&4)), "{got:?}");
    server.stop().await;
}

#[tokio::test]
async fn an_identifier_that_was_refused_is_free_after_a_restart() {
    let storage = Arc::new(MemoryStorage::default());
    let config = BrokerConfig { max_retained_messages: 0, ..BrokerConfig::default() };
    let server = Server::over(config.clone(), Hooks::default(), storage.clone()).await;
    let (mut raw, _) = keep(&server, "publisher", &[]).await;
    raw.send(&publish(5, 5, "t", 7, &[], b"refused")).await;
    let refused = raw.receive().await;
    assert_eq!((refused.kind(), refused.body[2]), (5, 0x97));
    // After this everything before it is stored.
    raw.subscribe(5, "other", 1).await;
    server.stop().await;
    let server = over(config, storage.snapshot()).await;
    let (mut raw, present) = keep(&server, "publisher", &[]).await;
    assert!(present);
    let mut reader = Raw::connect(server.address, 5, "reader").await;
    reader.subscribe(5, "t", 0).await;
    raw.send(&publish(5, 4, "t", 7, &[], b"new")).await;
    assert_eq!(raw.receive().await.kind(), 5);
    assert_eq!(next(&mut reader).await, b"new");
    server.stop().await;
}

#[tokio::test]
async fn a_publisher_that_waits_in_vain_is_missed_when_it_goes() {
    let storage = Arc::new(MemoryStorage::default());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), storage.clone()).await;
    let (mut kept, _) = keep(&server, "kept", &[]).await;
    kept.subscribe(5, "t", 1).await;
    storage.pause();
    server.broker.wal().set_full(true);
    for number in 0..5 {
        let mut raw = Raw::connect(server.address, 4, &format!("publisher-{number}")).await;
        raw.send(&publish(4, 2, "t", 1, &[], b"x")).await;
    }
    server.until("they are gone", |stats| stats.connections == 1).await;
    server.stop().await;
}

#[tokio::test]
async fn nothing_retained_comes_after_the_end_of_a_subscription_and_all_of_it_after_a_pause() {
    const TOPICS: usize = 3000;
    let server = Server::start().await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for number in 0..TOPICS {
        raw.send(&publish(5, 3, &format!("r/{number}"), 1, &[], b"x")).await;
        assert_eq!(raw.receive().await.kind(), 4);
    }
    let subscribe = packet(0x82, &[&[0, 1, 0], &text("r/#"), &[1]]);
    let unsubscribe = packet(0xa2, &[&[0, 2, 0], &text("r/#")]);
    let mut quick = Raw::connect(server.address, 5, "quick").await;
    quick.send(&[subscribe.clone(), unsubscribe].concat()).await;
    while quick.receive().await.kind() != 11 {}
    quick.ping().await;
    // A session that loses its connection in between gets the others later.
    let (mut kept, _) = keep(&server, "kept", &[0x21, 0, 10]).await;
    kept.send(&subscribe).await;
    while kept.receive().await.kind() != 9 {}
    drop(kept);
    server.until("it is away", |stats| stats.connections == 2).await;
    let (mut kept, present) = keep(&server, "kept", &[]).await;
    assert!(present);
    let mut topics = std::collections::HashSet::new();
    while topics.len() < TOPICS {
        let frame = kept.receive().await;
        topics.insert(frame.topic().to_owned());
        kept.send(&packet(0x40, &[&frame.packet_id().to_be_bytes()])).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_retained_and_has_expired_is_deleted_from_the_store() {
    let storage = Arc::new(MemoryStorage::default());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), storage.clone()).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for number in 0..100 {
        // Message Expiry Interval 0: for those who are there now.
        raw.send(&publish(5, 3, &format!("r/{number}"), 1, &[2, 0, 0, 0, 0], b"x")).await;
        assert_eq!(raw.receive().await.kind(), 4);
    }
    assert_eq!(storage.len(Space::State), 100);
    server.stop().await;
    let copy = Arc::new(storage.snapshot());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), copy.clone()).await;
    assert_eq!(server.broker.stats().retained, 0);
    soon("they are deleted", async {
        while copy.len(Space::State) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn what_waits_is_not_for_a_client_that_may_not_have_it_any_more() {
    struct Rules(AtomicBool);
    impl SessionHook for Rules {
        fn on_subscribe(&self, _: &Client, filter: &TopicFilter, qos: QoS) -> Result<QoS, RejectReason> {
            let secret = filter.matches("secret/x") || filter.as_str().starts_with("secret");
            match secret && self.0.load(Ordering::Relaxed) {
                true => Err(RejectReason::NotAuthorized),
                false => Ok(qos),
            }
        }
    }
    let rules = Arc::new(Rules(AtomicBool::new(false)));
    let hooks = Hooks { publish: Vec::new(), session: vec![rules.clone()] };
    let server = Server::over(BrokerConfig::default(), hooks, Arc::default()).await;
    let (mut spy, _) = keep(&server, "spy", &[]).await;
    spy.subscribe(5, "secret/#", 1).await;
    spy.subscribe(5, "open", 1).await;
    drop(spy);
    server.until("it is away", |stats| stats.connections == 0).await;
    rules.0.store(true, Ordering::Relaxed);
    server.broker.recheck();
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for (topic, payload) in [("secret/x", "no"), ("open", "yes"), ("secret/x", "no")] {
        assert_eq!(say(&mut raw, topic, &[], payload.as_bytes()).await, 0);
    }
    let (mut spy, present) = keep(&server, "spy", &[]).await;
    assert!(present);
    assert_eq!(next(&mut spy).await, b"yes");
    spy.ping().await;
    assert_eq!(server.broker.stats().messages_dropped, 2);
    server.stop().await;
}

#[tokio::test]
async fn what_was_never_sent_is_no_repetition_after_a_restart() {
    let storage = Arc::new(MemoryStorage::default());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), storage.clone()).await;
    let (mut kept, _) = keep(&server, "kept", &[]).await;
    kept.subscribe(5, "t", 1).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    say(&mut raw, "t", &[], b"sent").await;
    // Sent and not acknowledged.
    assert_eq!(kept.receive().await.first_byte, 0x32);
    drop(kept);
    server.until("it is away", |stats| stats.connections == 1).await;
    say(&mut raw, "t", &[], b"waits").await;
    server.stop().await;
    let server = over(BrokerConfig::default(), storage.snapshot()).await;
    let (mut kept, _) = keep(&server, "kept", &[]).await;
    for (first_byte, payload) in [(0x3a, b"sent"), (0x32, b"wait")] {
        let frame = kept.receive().await;
        assert_eq!((frame.first_byte, &frame.rest()[1..5]), (first_byte, &payload[..]));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_group_takes_what_one_of_its_members_has_room_for() {
    let config = BrokerConfig {
        stored_queue_messages: 2,
        when_queue_full: edgefaas_broker::WhenQueueFull::Reject,
        ..BrokerConfig::default()
    };
    let server = Server::with(config, Vec::new()).await;
    let (mut away, _) = keep(&server, "away", &[]).await;
    away.subscribe(5, "$share/g/t", 1).await;
    drop(away);
    server.until("it is away", |stats| stats.connections == 0).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    let answers = [say(&mut raw, "t", &[], b"1").await, say(&mut raw, "t", &[], b"2").await];
    assert_eq!((answers, say(&mut raw, "t", &[], b"3").await), ([0, 0], 0x97));
    let mut worker = Raw::connect(server.address, 5, "worker").await;
    worker.subscribe(5, "$share/g/t", 1).await;
    for number in 0..20u8 {
        assert_eq!(say(&mut raw, "t", &[], &[number]).await, 0);
        assert_eq!(next(&mut worker).await, [number]);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_bridge_of_mosquitto_is_a_client_that_does_not_get_back_what_it_sent() {
    let server = Server::start().await;
    let mut bridge = Raw::open(server.address).await;
    bridge.send(&packet(0x10, &[&text("MQTT"), &[0x84, 2, 0, 0], &text("bridge")])).await;
    let ack = bridge.receive().await;
    assert_eq!((ack.kind(), &ack.body[..]), (2, &[0, 0][..]));
    bridge.subscribe(4, "#", 0).await;
    bridge.send(&publish(4, 0, "t", 0, &[], b"own")).await;
    let mut raw = Raw::connect(server.address, 5, "other").await;
    bridge.ping().await;
    raw.send(&publish(5, 1, "t", 0, &[], b"kept")).await;
    let frame = bridge.receive().await;
    assert_eq!((frame.first_byte, frame.rest()), (0x31, &b"kept"[..]));
    server.stop().await;
}
