//! Hooks in the publish path.

use std::sync::Arc;

use edgefaas_broker::{
    BrokerConfig, ByteString, Message, Origin, Properties, PublishHook, PublishOutcome, Publishing,
    RejectReason, TopicName, Verdict, Version,
};
use parking_lot::Mutex;

use crate::raw::{Raw, publish};
use crate::support::Server;

/// Does what the topic says and keeps what it saw.
#[derive(Default)]
struct Script {
    seen: Mutex<Vec<(String, Message)>>,
}

impl PublishHook for Script {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let message = publishing.message();
        let who = match publishing.origin() {
            Origin::Client(client) if client.version == Version::V311 => {
                format!("{} by 3.1.1", client.client_id)
            }
            Origin::Client(client) => format!("{} by 5", client.client_id),
            Origin::Node { source, depth, .. } => format!("{source} at {depth}"),
            _ => "unknown".into(),
        };
        self.seen.lock().push((who, message.clone()));
        match message.topic().as_str() {
            "consume" => Verdict::Consume,
            "panic" => panic!("on purpose"),
            "rewrite" => {
                let properties = Properties {
                    user: vec![(ByteString::from("by"), ByteString::from("hook"))],
                    ..Properties::default()
                };
                let topic = TopicName::new("rewritten").expect("valid");
                Verdict::Rewrite(
                    message.clone().with_topic(topic).with_payload("changed").with_properties(properties),
                )
            }
            "reject/auth" => Verdict::Reject(RejectReason::NotAuthorized),
            "reject/quota" => Verdict::Reject(RejectReason::QuotaExceeded),
            "reject/topic" => Verdict::Reject(RejectReason::TopicNameInvalid),
            "reject/format" => Verdict::Reject(RejectReason::PayloadFormatInvalid),
            _ => Verdict::Forward,
        }
    }
}

async fn start(hooks: &[&Arc<Script>]) -> Server {
    let hooks = hooks.iter().map(|&hook| hook.clone() as Arc<dyn PublishHook>);
    Server::with(BrokerConfig::default(), hooks.collect()).await
}

#[tokio::test]
async fn forward_and_rewrite_reach_subscribers_and_the_next_hook() {
    let (first, second) = (Arc::new(Script::default()), Arc::new(Script::default()));
    let server = start(&[&first, &second]).await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    client.subscribe(5, "#", 0).await;
    client.send(&publish(5, 0, "plain", 0, &[], b"1")).await;
    let plain = client.receive().await;
    assert_eq!((plain.topic(), plain.rest()), ("plain", &b"\x001"[..]));
    client.send(&publish(5, 0, "rewrite", 0, &[], b"2")).await;
    let rewritten = client.receive().await;
    assert_eq!(rewritten.topic(), "rewritten");
    assert_eq!(rewritten.rest(), b"\x0b\x26\x00\x02by\x00\x04hookchanged");
    let topics = |hook: &Script| -> Vec<String> {
        hook.seen.lock().iter().map(|(who, message)| format!("{who}: {}", message.topic())).collect()
    };
    assert_eq!(topics(&first), ["client by 5: plain", "client by 5: rewrite"]);
    assert_eq!(topics(&second), ["client by 5: plain", "client by 5: rewritten"]);
    server.stop().await;
}

#[tokio::test]
async fn consume_is_acknowledged_but_neither_routed_nor_retained_nor_seen_by_later_hooks() {
    let (first, second) = (Arc::new(Script::default()), Arc::new(Script::default()));
    let server = start(&[&first, &second]).await;
    for level in [4, 5] {
        let mut client = Raw::connect(server.address, level, "client").await;
        client.subscribe(level, "#", 2).await;
        client.send(&publish(level, 3, "consume", 1, &[], b"x")).await;
        let ack = client.receive().await;
        assert_eq!((ack.kind(), ack.packet_id(), ack.body.get(2).copied().unwrap_or(0)), (4, 1, 0));
        client.send(&publish(level, 5, "consume", 2, &[], b"x")).await;
        let ack = client.receive().await;
        assert_eq!((ack.kind(), ack.packet_id(), ack.body.get(2).copied().unwrap_or(0)), (5, 2, 0));
        client.ping().await;
    }
    let stats = server.broker.stats();
    assert_eq!((stats.messages_consumed, stats.retained), (4, 0));
    assert_eq!((first.seen.lock().len(), second.seen.lock().len()), (4, 0));
    server.stop().await;
}

#[tokio::test]
async fn reject_gives_its_reason_in_version_5_and_is_counted_in_both() {
    let hook = Arc::new(Script::default());
    let server = start(&[&hook]).await;
    let cases = [("auth", 0x87), ("quota", 0x97), ("topic", 0x90), ("format", 0x99)];
    for level in [4, 5] {
        let mut client = Raw::connect(server.address, level, "client").await;
        client.subscribe(level, "#", 0).await;
        for (name, reason) in cases {
            let topic = format!("reject/{name}");
            for (flags, kind) in [(2, 4), (4, 5)] {
                client.send(&publish(level, flags, &topic, 7, &[], b"x")).await;
                let ack = client.receive().await;
                assert_eq!((ack.kind(), ack.packet_id()), (kind, 7));
                assert_eq!(ack.body.get(2).copied(), (level == 5).then_some(reason), "{topic}");
                if (level, kind) == (4, 5) {
                    client.send(&[0x62, 2, 0, 7]).await;
                    assert_eq!(client.receive().await.kind(), 7);
                }
            }
            client.send(&publish(level, 0, &topic, 0, &[], b"x")).await;
            client.ping().await;
        }
    }
    assert_eq!(server.broker.stats().messages_rejected, 2 * 4 * 3);
    server.stop().await;
}

#[tokio::test]
async fn a_panic_rejects_the_message_and_nothing_else() {
    let hook = Arc::new(Script::default());
    let server = start(&[&hook]).await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    client.subscribe(5, "#", 0).await;
    client.send(&publish(5, 2, "panic", 1, &[], b"x")).await;
    assert_eq!(client.receive().await.body[..3], [0, 1, 0x80]);
    client.send(&publish(5, 0, "after", 0, &[], b"x")).await;
    assert_eq!(client.receive().await.topic(), "after");
    let stats = server.broker.stats();
    assert_eq!((stats.hook_panics, stats.messages_rejected), (1, 1));
    server.stop().await;
}

#[tokio::test]
async fn what_a_hook_keeps_is_complete_and_its_own() {
    let hook = Arc::new(Script::default());
    let server = start(&[&hook]).await;
    let mut client = Raw::connect(server.address, 5, "client").await;
    for number in 0..100u8 {
        let properties = [0x09, 0, 2, number, number];
        client.send(&publish(5, 2, &format!("kept/{number}"), 1, &properties, &[number; 64])).await;
        client.receive().await;
    }
    for (number, (_, message)) in (0..).zip(hook.seen.lock().iter()) {
        assert_eq!(message.topic().as_str(), format!("kept/{number}"));
        assert_eq!(message.payload(), [number; 64]);
        let correlation = message.properties().and_then(|properties| properties.correlation_data.clone());
        assert_eq!(correlation.as_deref(), Some(&[number, number][..]));
    }
    server.stop().await;
}

#[tokio::test]
async fn wills_and_the_node_go_through_hooks_too() {
    let hook = Arc::new(Script::default());
    let server = start(&[&hook]).await;
    let node = Origin::Node { source: "comfort".into(), depth: 3, requester: None };
    let consume = Message::new(TopicName::new("consume").expect("valid"), "x");
    assert_eq!(server.broker.publish(&node, consume), PublishOutcome::Consumed);
    let mut client = Raw::open(server.address).await;
    let will = [crate::raw::text("reject/auth"), crate::raw::text("x")].concat();
    client.send(&crate::raw::connect(4, 6, &[], "mortal", &will)).await;
    client.receive().await;
    drop(client);
    server.until("the will is refused", |stats| stats.messages_rejected == 1).await;
    let who: Vec<String> = hook.seen.lock().iter().map(|(who, _)| who.clone()).collect();
    assert_eq!(who, ["comfort at 3", "mortal by 3.1.1"]);
    server.stop().await;
}
