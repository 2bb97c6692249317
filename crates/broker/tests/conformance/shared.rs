//! Section 4.8.2: shared subscriptions.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::client::{Client, refused};
use crate::encode::{Connect, Message, ack, pvar, subscribe};
use crate::server::Server;

#[tokio::test]
async fn shared_filters_that_are_not_valid_are_refused() {
    covers!("MQTT-4.8.2-1", "MQTT-4.8.2-2");
    let server = Server::start().await;
    let invalid = [
        "$share/",
        "$share//t",
        "$share/g",
        "$share/g/",
        "$share/g+/t",
        "$share/+/t",
        "$share/#/t",
        "$share/g#/t",
    ];
    for filter in invalid {
        let mut client = Client::v5(&server, "client").await;
        client.send(&subscribe(5, 1, &[], &[(filter, 0)])).await;
        // Refused alone or with its connection.
        match client.receive().await {
            crate::decode::Packet::SubAck { reasons, .. } => assert_eq!(reasons, [0x8f], "{filter}"),
            crate::decode::Packet::Disconnect { reason, .. } => {
                assert!(matches!(reason, 0x81 | 0x82 | 0x8f), "{reason:#x} for {filter}");
            }
            other => panic!("{other:?} for {filter}"),
        }
    }
    // Not shared at all: a topic as any other, but for its case.
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("$shared/g/t", 0).await;
    client.say("t", "x").await;
    client.quiet().await;
}

#[tokio::test]
async fn no_local_on_a_shared_subscription_is_a_protocol_error() {
    covers!("MQTT-3.8.3-4");
    let server = Server::start().await;
    assert_eq!(refused(&server, 5, &subscribe(5, 1, &[], &[("$share/g/t", 4)])).await, 0x82);
}

#[tokio::test]
async fn each_message_goes_to_one_member_of_each_group() {
    covers!("MQTT-4.5.0-1", "MQTT-4.8.2-1");
    const COUNT: usize = 60;
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    assert_ne!(publisher.connack.properties.number(0x2a), Some(0), "shared subscriptions are available");
    let mut alone = Client::v5(&server, "alone").await;
    alone.subscribe("t/#", 1).await;
    let mut groups = Vec::new();
    for (group, filter) in [("one", "t/+"), ("two", "t/+"), ("one", "t/#")] {
        let mut members = Vec::new();
        for number in 0..3 {
            let level = if number == 0 { 4 } else { 5 };
            let mut member = Client::new(&server, level, &format!("{group} {filter} {number}")).await;
            member.subscribe(&format!("$share/{group}/{filter}"), 1).await;
            members.push(member);
        }
        groups.push(members);
    }
    for number in 0..COUNT {
        publisher.say(&format!("t/{}", number % 7), &number.to_string()).await;
    }
    for number in 0..COUNT {
        assert_eq!(alone.text().await, number.to_string(), "who does not share gets them all");
    }
    for members in &mut groups {
        let mut all = BTreeSet::new();
        for member in members.iter_mut() {
            member.ping().await;
            member.ping().await;
            let mut own = Vec::new();
            while let Some(message) = member.taken() {
                member.finish(&message).await;
                own.push(message.text().parse::<usize>().expect("a number"));
            }
            assert!(own.is_sorted(), "in order: {own:?}");
            assert!(!own.is_empty(), "each has its share");
            for number in own {
                assert!(all.insert(number), "{number} went to two members");
            }
            member.quiet().await;
        }
        assert_eq!(all.len(), COUNT, "every message went to a member");
    }
}

#[tokio::test]
async fn retained_messages_do_not_come_to_shared_subscriptions() {
    covers!("MQTT-4.8.2-1");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    publisher.publish(Message::new("t", "kept").retain().qos(1, 0)).await;
    let mut member = Client::v5(&server, "member").await;
    member.subscribe("$share/g/t", 1).await;
    member.quiet().await;
    member.subscribe("t", 1).await;
    assert_eq!(member.text().await, "kept");
}

#[tokio::test]
async fn each_member_gets_messages_at_its_own_qos_and_with_its_identifier() {
    covers!("MQTT-4.8.2-3", "MQTT-3.3.4-3");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut members = Vec::new();
    for qos in 0..3u8 {
        let mut member = Client::v5(&server, &format!("member {qos}")).await;
        let identifier = pvar(0x0b, usize::from(qos) + 1);
        assert_eq!(member.subscribe_to(&[identifier], &[("$share/g/t", qos)]).await, [qos]);
        members.push(member);
    }
    for _ in 0..30 {
        publisher.publish(Message::new("t", "x").qos(2, 0)).await;
    }
    let mut count = 0;
    for (qos, member) in (0..).zip(&mut members) {
        member.ping().await;
        member.ping().await;
        while let Some(message) = member.taken() {
            assert_eq!((message.qos, message.properties.subscriptions()), (qos, vec![u32::from(qos) + 1]));
            member.finish(&message).await;
            count += 1;
        }
    }
    assert_eq!(count, 30);
}

#[tokio::test]
async fn who_leaves_a_group_gets_no_more() {
    covers!("MQTT-3.10.4-1", "MQTT-3.10.4-2");
    let server = Server::start().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    let mut stays = Client::v5(&server, "stays").await;
    let mut unsubscribes = Client::v5(&server, "unsubscribes").await;
    let mut disconnects = Client::v5(&server, "disconnects").await;
    for member in [&mut stays, &mut unsubscribes, &mut disconnects] {
        member.subscribe("$share/g/t", 1).await;
    }
    assert_eq!(unsubscribes.unsubscribe(&["t", "$share/other/t", "$share/g/t"]).await, [0x11, 0x11, 0]);
    disconnects.leave().await;
    for number in 0..20 {
        publisher.say("t", &number.to_string()).await;
        assert_eq!(stays.text().await, number.to_string());
    }
    unsubscribes.quiet().await;
}

/// A member with a QoS 2 message of the group in flight, and another that has joined since.
async fn inflight(server: &Server, connect: Connect) -> (Client, Client, u16) {
    let mut first = Client::connect(server, connect).await;
    first.subscribe("$share/g/t", 2).await;
    let mut publisher = Client::v5(server, "publisher").await;
    publisher.publish(Message::new("t", "begun").qos(2, 0)).await;
    let got = first.message().await;
    assert_eq!((got.text(), got.qos), ("begun", 2));
    let mut second = Client::v5(server, "second").await;
    second.subscribe("$share/g/t", 2).await;
    (first, second, got.id)
}

#[tokio::test]
async fn a_qos_2_delivery_that_has_begun_is_completed_by_the_same_member() {
    covers!("MQTT-4.8.2-4");
    let server = Server::start().await;
    let (first, mut second, id) = inflight(&server, Connect::v5("first").lasting()).await;
    drop(first);
    let mut first = Client::connect(&server, Connect::v5("first").resume().lasting()).await;
    let got = first.message().await;
    assert_eq!((got.text(), got.id, got.dup), ("begun", id, true));
    first.finish(&got).await;
    first.quiet().await;
    second.quiet().await;
}

#[tokio::test]
async fn a_qos_2_delivery_that_has_begun_goes_to_nobody_else_when_its_session_ends() {
    covers!("MQTT-4.8.2-5");
    let server = Server::start().await;
    for expiry in [0, 1] {
        let (first, mut second, _) = inflight(&server, Connect::v5("first").expiry(expiry)).await;
        first.leave().await;
        tokio::time::sleep(Duration::from_millis(1500) * expiry).await;
        second.quiet().await;
        // It is the only member now, and gets what is new.
        let mut publisher = Client::v5(&server, "publisher").await;
        publisher.say("t", "new").await;
        assert_eq!(second.text().await, "new");
    }
}

#[tokio::test]
async fn a_message_that_a_member_refuses_goes_to_nobody_else() {
    covers!("MQTT-4.8.2-6");
    let server = Server::start().await;
    let (mut first, mut second, id) = inflight(&server, Connect::v5("first").lasting()).await;
    first.send(&ack(5, id, 0x83)).await;
    first.quiet().await;
    first.leave().await;
    second.quiet().await;
    let mut first = Client::connect(&server, Connect::v5("first").resume()).await;
    first.quiet().await;
}

#[tokio::test]
async fn a_group_whose_members_are_away_keeps_its_messages() {
    covers!("MQTT-4.5.0-1", "MQTT-3.1.2-23");
    let server = Server::start().await;
    let mut member = Client::connect(&server, Connect::v5("member").lasting()).await;
    member.subscribe("$share/g/t", 1).await;
    member.leave().await;
    let mut publisher = Client::v5(&server, "publisher").await;
    for number in 0..5 {
        publisher.say("t", &number.to_string()).await;
    }
    let mut member = Client::connect(&server, Connect::v5("member").resume()).await;
    for number in 0..5 {
        assert_eq!(member.text().await, number.to_string());
    }
    member.quiet().await;
}
