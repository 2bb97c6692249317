//! Queues that are full, and whose room is whose.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use edgefaas_broker::{
    BrokerConfig, Client, Hooks, MemoryStorage, QoS, RejectReason, SessionHook, TopicFilter, WhenQueueFull,
};

use crate::raw::{Frame, Raw, connect, packet, publish};
use crate::support::Server;

/// Connects with a session that is kept for 100 s and further properties.
async fn keep(server: &Server, client_id: &str, properties: &[u8]) -> Raw {
    let mut raw = Raw::open(server.address).await;
    raw.send(&connect(5, 0, &[&[0x11, 0, 0, 0, 100], properties].concat(), client_id, &[])).await;
    let ack = raw.receive().await;
    assert_eq!((ack.kind(), ack.reason()), (2, 0));
    raw
}

/// Subscribes with QoS 1 and a session that is kept, and goes.
async fn leave(server: &Server, client_id: &str, filters: &[&str]) {
    let before = server.broker.stats().connections;
    let mut raw = keep(server, client_id, &[]).await;
    for filter in filters {
        raw.subscribe(5, filter, 1).await;
    }
    drop(raw);
    server.until("it is away", |stats| stats.connections == before).await;
}

/// Publishes with QoS 1 and gives the reason of the acknowledgement.
async fn say(raw: &mut Raw, topic: &str, payload: &[u8]) -> u8 {
    raw.send(&publish(5, 2, topic, 1, &[], payload)).await;
    let ack = raw.receive().await;
    assert_eq!(ack.kind(), 4);
    ack.body.get(2).copied().unwrap_or(0)
}

fn number(frame: &Frame) -> u32 {
    u32::from_be_bytes(frame.rest()[1..5].try_into().expect("a number"))
}

async fn acknowledge(raw: &mut Raw, frame: &Frame) {
    raw.send(&packet(0x40, &[&frame.packet_id().to_be_bytes()])).await;
}

#[tokio::test]
async fn a_group_gives_a_message_to_the_one_that_has_room() {
    for when_queue_full in [WhenQueueFull::Reject, WhenQueueFull::DropOldest] {
        let config = BrokerConfig { stored_queue_messages: 3, when_queue_full, ..BrokerConfig::default() };
        let server = Server::with(config, Vec::new()).await;
        leave(&server, "full", &["own", "$share/g/t"]).await;
        leave(&server, "free", &["$share/g/t"]).await;
        let mut raw = Raw::connect(server.address, 5, "publisher").await;
        for payload in [b"1", b"2", b"3"] {
            assert_eq!(say(&mut raw, "own", payload).await, 0);
        }
        for payload in [b"4", b"5", b"6"] {
            assert_eq!(say(&mut raw, "t", payload).await, 0);
        }
        for (client_id, payloads) in [("full", [b'1', b'2', b'3']), ("free", [b'4', b'5', b'6'])] {
            let mut kept = keep(&server, client_id, &[]).await;
            for payload in payloads {
                assert_eq!(kept.receive().await.rest()[1], payload);
            }
        }
        assert_eq!(server.broker.stats().messages_dropped, 0);
        server.stop().await;
    }
}

#[tokio::test]
async fn what_was_in_flight_takes_no_room() {
    for when_queue_full in [WhenQueueFull::Reject, WhenQueueFull::DropOldest] {
        let config = BrokerConfig { stored_queue_messages: 2, when_queue_full, ..BrokerConfig::default() };
        let server = Server::with(config, Vec::new()).await;
        let mut kept = keep(&server, "kept", &[]).await;
        kept.subscribe(5, "t", 1).await;
        let mut raw = Raw::connect(server.address, 5, "publisher").await;
        for payload in 0..10u32 {
            assert_eq!(say(&mut raw, "t", &payload.to_be_bytes()).await, 0);
            assert_eq!(number(&kept.receive().await), payload);
        }
        drop(kept);
        server.until("it is away", |stats| stats.connections == 1).await;
        for payload in 10..12u32 {
            assert_eq!(say(&mut raw, "t", &payload.to_be_bytes()).await, 0);
        }
        let sessions = server.broker.sessions("kept");
        assert_eq!(sessions[0].waiting, 2);
        let mut kept = keep(&server, "kept", &[]).await;
        for payload in 0..12u32 {
            assert_eq!(number(&kept.receive().await), payload);
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_message_that_is_never_acknowledged_does_not_cost_those_after_it() {
    let storage = Arc::new(MemoryStorage::default());
    let config = BrokerConfig { stored_queue_messages: 10, ..BrokerConfig::default() };
    let server = Server::over(config.clone(), Hooks::default(), storage.clone()).await;
    let mut kept = keep(&server, "kept", &[]).await;
    kept.subscribe(5, "t", 1).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    assert_eq!(say(&mut raw, "t", &0u32.to_be_bytes()).await, 0);
    kept.receive().await;
    drop(kept);
    server.until("it is away", |stats| stats.connections == 1).await;
    const LAST: u32 = 10_000;
    for payload in 1..=LAST {
        raw.send(&publish(5, 2, "t", 1, &[], &payload.to_be_bytes())).await;
    }
    for _ in 1..=LAST {
        assert_eq!(raw.receive().await.kind(), 4);
    }
    let copy = Arc::new(storage.snapshot());
    // It was given up when so many after it had been, and with it the room for the numbers in between.
    let mut kept = keep(&server, "kept", &[]).await;
    for payload in LAST - 9..=LAST {
        let frame = kept.receive().await;
        assert_eq!((number(&frame), frame.first_byte), (payload, 0x32));
        acknowledge(&mut kept, &frame).await;
    }
    server.stop().await;
    // The same after a restart.
    let server = Server::over(config, Hooks::default(), copy).await;
    let mut kept = keep(&server, "kept", &[]).await;
    for payload in LAST - 9..=LAST {
        assert_eq!(number(&kept.receive().await), payload);
    }
    server.stop().await;
}

#[tokio::test]
async fn numbers_go_on_where_they_were_when_a_restart_finds_an_empty_queue() {
    let storage = Arc::new(MemoryStorage::default());
    let server = Server::over(BrokerConfig::default(), Hooks::default(), storage.clone()).await;
    let mut kept = keep(&server, "kept", &[]).await;
    kept.subscribe(5, "t", 1).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for payload in 0..10u32 {
        assert_eq!(say(&mut raw, "t", &payload.to_be_bytes()).await, 0);
        let frame = kept.receive().await;
        acknowledge(&mut kept, &frame).await;
    }
    // After this the acknowledgements are stored.
    kept.subscribe(5, "other", 1).await;
    let cut = Arc::new(storage.snapshot());
    server.stop().await;
    let server = Server::over(BrokerConfig::default(), Hooks::default(), cut.clone()).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    assert_eq!(say(&mut raw, "t", b"waits").await, 0);
    server.stop().await;
    let server = Server::over(BrokerConfig::default(), Hooks::default(), Arc::new(cut.snapshot())).await;
    let mut kept = keep(&server, "kept", &[]).await;
    let frame = kept.receive().await;
    assert_eq!((frame.first_byte, &frame.rest()[1..]), (0x32, &b"waits"[..]), "it was never sent before");
    server.stop().await;
}

#[tokio::test]
async fn what_is_too_large_for_its_subscribers_takes_no_memory_from_others() {
    let config = BrokerConfig { max_buffered_bytes: 1024 * 1024, ..BrokerConfig::default() };
    let server = Server::with(config, Vec::new()).await;
    let mut small = Vec::new();
    for number in 0..10 {
        let mut raw = Raw::open(server.address).await;
        // Maximum Packet Size 200.
        raw.send(&connect(5, 2, &[0x27, 0, 0, 0, 200], &format!("small-{number}"), &[])).await;
        raw.receive().await;
        raw.subscribe(5, "big", 0).await;
        small.push(raw);
    }
    let mut large = Raw::connect(server.address, 5, "large").await;
    large.subscribe(5, "large", 1).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for _ in 0..3 {
        assert_eq!(say(&mut raw, "big", &[b'x'; 200_000]).await, 0);
        for small in &mut small {
            small.ping().await;
        }
    }
    assert_eq!(server.broker.stats().buffered_bytes, 0);
    assert_eq!(say(&mut raw, "large", &[b'x'; 500_000]).await, 0);
    assert_eq!(large.receive().await.topic(), "large");
    server.stop().await;
}

/// Refuses everything once it is told to.
#[derive(Default)]
struct Shut(AtomicBool);

impl SessionHook for Shut {
    fn on_subscribe(&self, _: &Client, filter: &TopicFilter, qos: QoS) -> Result<QoS, RejectReason> {
        match self.0.load(Ordering::Relaxed) && filter.as_str().starts_with("r/") {
            true => Err(RejectReason::NotAuthorized),
            false => Ok(qos),
        }
    }
}

#[tokio::test]
async fn what_is_retained_and_not_sent_yet_is_not_for_one_that_may_not_read_it_any_more() {
    let shut = Arc::new(Shut::default());
    let hooks = Hooks { publish: Vec::new(), session: vec![shut.clone()] };
    let server = Server::over(BrokerConfig::default(), hooks, Arc::default()).await;
    let mut raw = Raw::connect(server.address, 5, "publisher").await;
    for number in 0..300 {
        raw.send(&publish(5, 3, &format!("r/{number}"), 1, &[], b"secret")).await;
        assert_eq!(raw.receive().await.kind(), 4);
    }
    // Receive Maximum 1, so that all but one wait to be looked for.
    let mut kept = keep(&server, "kept", &[0x21, 0, 1]).await;
    kept.subscribe(5, "open", 1).await;
    kept.send(&packet(0x82, &[&[0, 2, 0], &crate::raw::text("r/#"), &[1]])).await;
    while kept.receive().await.kind() != 3 {}
    drop(kept);
    server.until("it is away", |stats| stats.connections == 1).await;
    shut.0.store(true, Ordering::Relaxed);
    server.broker.recheck();
    let mut kept = keep(&server, "kept", &[]).await;
    say(&mut raw, "open", b"this it may").await;
    // Whatever was in flight may come again; nothing else does.
    let mut secrets = 0;
    loop {
        let frame = kept.receive().await;
        acknowledge(&mut kept, &frame).await;
        if frame.topic() == "open" {
            break;
        }
        secrets += 1;
    }
    assert!(secrets <= 1, "{secrets} came");
    kept.ping().await;
    server.stop().await;
}
