//! Translation of packets between both ends of a bridge. No I/O, no clock.
//!
//! ```text
//!   this node's broker                            the other broker
//!   session `$bridge/NAME`  --PUBLISH 5--> relay --PUBLISH 5-->
//!                           <--PUBREC 5--        <--PUBREC 5--
//!                           --PUBREL 5-->        --PUBREL 5-->
//!                           <--PUBCOMP 5-        <--PUBCOMP 5-
//!   Broker::publish_with         <-------------- PUBLISH 7
//!   stored                       --------------> PUBREC 7
//! ```
//!
//! Outgoing messages: the bridge's session in this node's broker is the queue, and packet identifiers pass unchanged.
//! The session sends a message again with the same identifier, also after a restart, so the other broker recognises it:
//! QoS 2 is exactly once from end to end, without any state here.
//!
//! Incoming messages: a QoS 2 identifier is recorded in the same commit as its message, and removed at PUBREL.

use std::collections::HashSet;

use edgefaas_broker::{ByteString, Message, Properties, QoS, TopicName};
use rumqttc::v5::mqttbytes as v5;
use rumqttc::v5::mqttbytes::v5::{
    Packet, PubAck, PubAckReason, PubComp, PubRec, PubRecReason, PubRel, Publish, PublishProperties,
    SubscribeReasonCode, UnsubAckReason,
};

use super::loop_prevention::{Hops, MAX_HOPS, VIA_PROPERTY};
use super::topics::Topics;

/// Translation of the packets of one connection.
#[derive(Debug)]
pub struct Relay<'a> {
    /// Topic mapping.
    pub topics: &'a Topics,
    /// This node's id in [`VIA_PROPERTY`].
    pub node_id: &'a str,
    /// True if the protocol version supports properties (MQTT 5).
    pub has_properties: bool,
    /// True if the other broker supports retained messages.
    pub retain_available: bool,
    /// The other broker's QoS 2 messages that wait for PUBREL.
    pub unreleased: &'a mut HashSet<u16>,
}

/// Effect of a received packet, which the connection executes.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Send this to the other broker.
    ToRemote(Packet),
    /// Send this to this node's broker.
    ToLocal(Packet),
    /// Publish this message on this node; once it is stored, send `ack` to the other broker.
    Publish {
        /// The message, on its local topic.
        message: Box<Message>,
        /// Acknowledgement of QoS 1 and 2.
        ack: Option<Packet>,
        /// Identifier to record with the message, for QoS 2.
        record: Option<u16>,
    },
    /// Remove the recorded identifier, then send PUBCOMP.
    Release(u16),
    /// The other broker has answered SUBSCRIBE.
    Subscribed,
    /// The other broker has answered UNSUBSCRIBE, with a reason for each filter. MQTT 3.1.1 has no reasons: the list is empty and
    /// all filters are unsubscribed.
    Unsubscribed(Vec<UnsubAckReason>),
    /// Send this acknowledgement after all earlier ones.
    Acknowledge(Packet),
    /// A message or a subscription was refused; the text is the reason.
    Refused(String),
    /// The other broker has acknowledged a message, or a message without acknowledgement was sent to it.
    Delivered,
    /// One of the brokers has disconnected; the text is the reason.
    End(String),
}

impl Relay<'_> {
    /// Handles a packet of this node's broker.
    pub fn on_local(&self, packet: Packet) -> Vec<Effect> {
        match packet {
            Packet::Publish(publish) => self.outgoing(publish),
            Packet::PubRel(release) => {
                vec![Effect::ToRemote(Packet::PubRel(PubRel::new(release.pkid, None)))]
            }
            Packet::SubAck(ack) => ack
                .return_codes
                .iter()
                .filter(|code| !matches!(code, SubscribeReasonCode::Success(_)))
                .map(|code| Effect::Refused(format!("this node refused a subscription: {code:?}")))
                .collect(),
            Packet::Disconnect(end) => {
                vec![Effect::End(format!("this node's broker ended the connection: {:?}", end.reason_code))]
            }
            _ => Vec::new(),
        }
    }

    /// Handles a packet of the other broker.
    pub fn on_remote(&mut self, packet: Packet) -> Vec<Effect> {
        match packet {
            Packet::Publish(publish) => self.incoming(publish),
            Packet::PubRel(release) => match self.unreleased.remove(&release.pkid) {
                true => vec![Effect::Release(release.pkid)],
                false => vec![Effect::Acknowledge(Packet::PubComp(PubComp::new(release.pkid, None)))],
            },
            Packet::PubAck(ack) => {
                let accepted =
                    matches!(ack.reason, PubAckReason::Success | PubAckReason::NoMatchingSubscribers);
                let result = match accepted {
                    true => Effect::Delivered,
                    false => Effect::Refused(format!("a message was refused: {:?}", ack.reason)),
                };
                vec![Effect::ToLocal(Packet::PubAck(PubAck::new(ack.pkid, None))), result]
            }
            Packet::PubRec(ack) => {
                let accepted =
                    matches!(ack.reason, PubRecReason::Success | PubRecReason::NoMatchingSubscribers);
                let mut effects = Vec::new();
                if !accepted {
                    effects.push(Effect::Refused(format!("a message was refused: {:?}", ack.reason)));
                }
                let reason = if accepted { PubRecReason::Success } else { ack.reason };
                let ack = PubRec { pkid: ack.pkid, reason, properties: None };
                effects.insert(0, Effect::ToLocal(Packet::PubRec(ack)));
                effects
            }
            Packet::PubComp(ack) => {
                vec![Effect::ToLocal(Packet::PubComp(PubComp::new(ack.pkid, None))), Effect::Delivered]
            }
            Packet::SubAck(ack) => {
                let codes = ack.return_codes.iter();
                let refused = codes.filter(|code| !matches!(code, SubscribeReasonCode::Success(_)));
                let refused =
                    refused.map(|code| Effect::Refused(format!("a subscription was refused: {code:?}")));
                refused.chain([Effect::Subscribed]).collect()
            }
            Packet::UnsubAck(ack) => vec![Effect::Unsubscribed(ack.reasons)],
            Packet::Disconnect(end) => {
                vec![Effect::End(format!("the other broker ended the connection: {:?}", end.reason_code))]
            }
            _ => Vec::new(),
        }
    }

    fn outgoing(&self, mut publish: Publish) -> Vec<Effect> {
        let topic = std::str::from_utf8(&publish.topic).unwrap_or_default();
        let properties = publish.properties.take();
        let hops = Hops::of(properties.iter().flat_map(|properties| &properties.user_properties));
        // A message that another bridge of this node received lists this node last. An earlier entry means that the message has
        // returned.
        let returned = hops.contains_before_last(self.node_id);
        let is_full = hops.is_full();
        let extended = hops.with(self.node_id);
        let mapped = self.topics.to_remote(topic);
        let lost = match &mapped {
            None => Some(no_entry(topic)),
            Some(_) => (is_full && !returned).then(|| too_many_hops(topic)),
        };
        let Some(topic) = mapped.filter(|_| !returned && !is_full) else {
            let ack = match publish.qos {
                v5::QoS::AtMostOnce => None,
                v5::QoS::AtLeastOnce => Some(Packet::PubAck(PubAck::new(publish.pkid, None))),
                v5::QoS::ExactlyOnce => {
                    let reason = PubRecReason::ImplementationSpecificError;
                    Some(Packet::PubRec(PubRec { pkid: publish.pkid, reason, properties: None }))
                }
            };
            return ack.map(Effect::ToLocal).into_iter().chain(lost).collect();
        };
        publish.topic = topic.into();
        publish.retain &= self.retain_available;
        if self.has_properties {
            let mut properties = properties.unwrap_or_default();
            properties.subscription_identifiers.clear();
            properties.topic_alias = None;
            set_hops(&mut properties.user_properties, extended);
            publish.properties = Some(properties);
        }
        let sent = (publish.qos == v5::QoS::AtMostOnce).then_some(Effect::Delivered);
        std::iter::once(Effect::ToRemote(Packet::Publish(publish))).chain(sent).collect()
    }

    fn incoming(&mut self, publish: Publish) -> Vec<Effect> {
        let ack = match publish.qos {
            v5::QoS::AtMostOnce => None,
            v5::QoS::AtLeastOnce => Some(Packet::PubAck(PubAck::new(publish.pkid, None))),
            v5::QoS::ExactlyOnce => Some(Packet::PubRec(PubRec::new(publish.pkid, None))),
        };
        let done =
            |ack: Option<Packet>, lost| ack.map(Effect::Acknowledge).into_iter().chain(lost).collect();
        let once = publish.qos == v5::QoS::ExactlyOnce;
        if once && self.unreleased.contains(&publish.pkid) {
            return done(ack, None);
        }
        let record = once.then_some(publish.pkid);
        let mut properties = publish.properties.unwrap_or_default();
        let topic = std::str::from_utf8(&publish.topic).unwrap_or_default();
        let hops = Hops::of(&properties.user_properties);
        // A message that has passed this node before is a duplicate.
        let (returned, is_full) = (hops.contains(self.node_id), hops.is_full());
        let extended = hops.with(self.node_id);
        let mapped = self.topics.to_local(topic).and_then(|topic| TopicName::new(topic).ok());
        let lost = match &mapped {
            None => Some(no_entry(topic)),
            Some(_) => (is_full && !returned).then(|| too_many_hops(topic)),
        };
        let Some(topic) = mapped.filter(|_| !returned && !is_full) else { return done(ack, lost) };
        set_hops(&mut properties.user_properties, extended);
        let message = Message::new(topic, publish.payload)
            .with_qos(qos(publish.qos))
            .with_retain(publish.retain)
            .with_properties(own_properties(properties));
        if let Some(pkid) = record {
            self.unreleased.insert(pkid);
        }
        vec![Effect::Publish { message: Box::new(message), ack, record }]
    }
}

/// Sets the list of the nodes that the message has passed.
fn set_hops(user_properties: &mut Vec<(String, String)>, hops: String) {
    user_properties.retain(|(name, _)| name != VIA_PROPERTY);
    user_properties.push((VIA_PROPERTY.to_owned(), hops));
}

fn no_entry(topic: &str) -> Effect {
    Effect::Refused(format!("a message on {topic:?} matches no entry of `topics`"))
}

fn too_many_hops(topic: &str) -> Effect {
    Effect::Refused(format!(
        "a message on {topic:?} has passed {MAX_HOPS} nodes and is not relayed further"
    ))
}

fn own_properties(properties: PublishProperties) -> Properties {
    let user = properties.user_properties.into_iter().map(|(name, value)| (name.into(), value.into()));
    Properties {
        payload_is_utf8: properties.payload_format_indicator == Some(1),
        expiry_seconds: properties.message_expiry_interval,
        content_type: properties.content_type.map(ByteString::from),
        response_topic: properties.response_topic.and_then(|topic| TopicName::new(topic).ok()),
        correlation_data: properties.correlation_data,
        user: user.collect(),
    }
}

fn qos(qos: v5::QoS) -> QoS {
    match qos {
        v5::QoS::AtMostOnce => QoS::AtMostOnce,
        v5::QoS::AtLeastOnce => QoS::AtLeastOnce,
        v5::QoS::ExactlyOnce => QoS::ExactlyOnce,
    }
}

#[cfg(test)]
mod tests {
    use rumqttc::v5::mqttbytes::v5::SubAck;

    use super::*;
    use crate::bridge::config::{BridgeQoS, Direction, TopicSection};

    fn topics() -> Topics {
        Topics::new(&[TopicSection {
            filter: "#".into(),
            direction: Direction::Both,
            qos: BridgeQoS(QoS::ExactlyOnce),
            local_prefix: "here/".into(),
            remote_prefix: "there/".into(),
        }])
    }

    fn relay<'a>(topics: &'a Topics, unreleased: &'a mut HashSet<u16>, node_id: &'a str) -> Relay<'a> {
        Relay { topics, node_id, has_properties: true, retain_available: true, unreleased }
    }

    fn publish(topic: &str, qos: v5::QoS, pkid: u16) -> Publish {
        let mut publish = Publish::new(topic, qos, "x", None);
        publish.pkid = pkid;
        publish
    }

    #[test]
    fn packet_identifiers_pass_unchanged_and_the_node_is_added_to_the_hops() {
        let (topics, mut unreleased) = (topics(), HashSet::new());
        let mut relay = relay(&topics, &mut unreleased, "n1");
        let effects = relay.on_local(Packet::Publish(publish("here/a", v5::QoS::ExactlyOnce, 5)));
        let [Effect::ToRemote(Packet::Publish(sent))] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!((&sent.topic[..], sent.pkid), (&b"there/a"[..], 5));
        let properties = sent.properties.as_ref().unwrap();
        assert_eq!(properties.user_properties, [(VIA_PROPERTY.to_owned(), "n1".to_owned())]);
        let effects = relay.on_remote(Packet::PubRec(PubRec::new(5, None)));
        assert_eq!(effects, [Effect::ToLocal(Packet::PubRec(PubRec::new(5, None)))]);
        let effects = relay.on_remote(Packet::PubComp(PubComp::new(5, None)));
        assert_eq!(effects, [Effect::ToLocal(Packet::PubComp(PubComp::new(5, None))), Effect::Delivered]);
    }

    #[test]
    fn the_answer_to_a_subscription_makes_the_bridge_ready_and_its_refusals_are_told() {
        let (topics, mut unreleased) = (topics(), HashSet::new());
        let mut relay = relay(&topics, &mut unreleased, "n1");
        let codes =
            vec![SubscribeReasonCode::Success(v5::QoS::AtLeastOnce), SubscribeReasonCode::NotAuthorized];
        let effects =
            relay.on_remote(Packet::SubAck(SubAck { pkid: 9, return_codes: codes, properties: None }));
        let [Effect::Refused(reason), Effect::Subscribed] = &effects[..] else { panic!("{effects:?}") };
        assert!(reason.contains("NotAuthorized"), "{reason}");
    }

    #[test]
    fn a_message_that_has_passed_this_node_is_acknowledged_and_dropped() {
        let (topics, mut unreleased) = (topics(), HashSet::new());
        for (hops, accepted) in [("n2", true), ("n2,n1", false), ("n1", false), ("n11", true), ("", true)] {
            let mut received = publish("there/a", v5::QoS::AtLeastOnce, 9);
            let user_properties = vec![(VIA_PROPERTY.to_owned(), hops.to_owned())];
            received.properties =
                Some(PublishProperties { user_properties, ..PublishProperties::default() });
            let effects = relay(&topics, &mut unreleased, "n1").on_remote(Packet::Publish(received));
            let published = matches!(effects[..], [Effect::Publish { .. }]);
            let acknowledged = matches!(effects[..], [Effect::Acknowledge(Packet::PubAck(_))]);
            assert_eq!((published, acknowledged), (accepted, !accepted), "{hops}");
        }
    }

    #[test]
    fn a_message_that_has_passed_eight_nodes_is_not_relayed() {
        let (topics, mut unreleased) = (topics(), HashSet::new());
        for hops in 1..=12 {
            let nodes: Vec<String> = (0..hops).map(|hop| format!("node{hop}")).collect();
            let user_properties = vec![(VIA_PROPERTY.to_owned(), nodes.join(","))];
            let properties = PublishProperties { user_properties, ..PublishProperties::default() };
            let mut relay = relay(&topics, &mut unreleased, "n1");
            let mut incoming = publish("there/a", v5::QoS::AtLeastOnce, 9);
            incoming.properties = Some(properties.clone());
            match (&relay.on_remote(Packet::Publish(incoming))[..], hops < MAX_HOPS) {
                ([Effect::Publish { message, .. }], true) => {
                    let user = &message.properties().unwrap().user;
                    assert_eq!(user[0].1.split(',').count(), hops + 1, "this node is appended");
                }
                ([Effect::Acknowledge(Packet::PubAck(_)), Effect::Refused(reason)], false) => {
                    assert!(reason.contains("8 nodes"), "{reason}");
                }
                other => panic!("{hops}: {other:?}"),
            }
            let mut outgoing = publish("here/a", v5::QoS::AtLeastOnce, 9);
            outgoing.properties = Some(properties);
            let effects = relay.on_local(Packet::Publish(outgoing));
            let is_sent = matches!(effects[..], [Effect::ToRemote(_)]);
            assert_eq!(is_sent, hops < MAX_HOPS, "{hops}: {effects:?}");
        }
    }

    #[test]
    fn a_repeated_qos_2_message_is_only_acknowledged() {
        let (topics, mut unreleased) = (topics(), HashSet::new());
        let mut relay = relay(&topics, &mut unreleased, "n1");
        let received = || Packet::Publish(publish("there/a", v5::QoS::ExactlyOnce, 3));
        let recorded = |effects: &[Effect]| matches!(effects, [Effect::Publish { record: Some(3), .. }]);
        assert!(recorded(&relay.on_remote(received())));
        assert!(matches!(relay.on_remote(received())[..], [Effect::Acknowledge(Packet::PubRec(_))]));
        let release = || Packet::PubRel(PubRel::new(3, None));
        assert_eq!(relay.on_remote(release()), [Effect::Release(3)]);
        assert!(matches!(relay.on_remote(release())[..], [Effect::Acknowledge(Packet::PubComp(_))]));
        assert!(recorded(&relay.on_remote(received())));
    }

    #[test]
    fn a_message_that_returned_over_another_bridge_is_not_sent() {
        let (topics, mut unreleased) = (topics(), HashSet::new());
        for (hops, sent) in
            [("", Some("n1")), ("n2", Some("n2,n1")), ("n2,n1", Some("n2,n1")), ("n1,n2", None)]
        {
            let mut publish = publish("here/a", v5::QoS::AtLeastOnce, 9);
            let user_properties = vec![(VIA_PROPERTY.to_owned(), hops.to_owned())];
            publish.properties =
                Some(PublishProperties { user_properties, ..PublishProperties::default() });
            let effects = relay(&topics, &mut unreleased, "n1").on_local(Packet::Publish(publish));
            match (&effects[..], sent) {
                ([Effect::ToRemote(Packet::Publish(publish))], Some(sent)) => {
                    let properties = publish.properties.as_ref().unwrap();
                    assert_eq!(properties.user_properties, [(VIA_PROPERTY.to_owned(), sent.to_owned())]);
                }
                ([Effect::ToLocal(Packet::PubAck(_))], None) => {}
                other => panic!("{hops}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_message_without_an_entry_is_acknowledged_to_this_node_and_counted() {
        let (topics, mut unreleased) = (topics(), HashSet::new());
        let relay = relay(&topics, &mut unreleased, "n1");
        let effects = relay.on_local(Packet::Publish(publish("other", v5::QoS::AtLeastOnce, 4)));
        let [Effect::ToLocal(Packet::PubAck(ack)), Effect::Refused(reason)] = &effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!((ack, reason.contains("\"other\"")), (&PubAck::new(4, None), true));
    }
}
