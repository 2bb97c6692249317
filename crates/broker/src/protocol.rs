//! The inbound protocol of one connection: a packet in, a step out. No I/O, no clock.

use std::collections::HashSet;
use std::num::{NonZeroU16, NonZeroU32};

use bytestring::ByteString;

use crate::message::{Message, QoS, Version};
use crate::topic::{TopicFilter, TopicName};
use crate::wire::{
    DisconnectReasonCode, Packet, Publish, PublishAck2Reason, PublishAckReason, Subscribe,
    SubscribeAckReason, SubscriptionOptions, UnsubscribeAckReason,
};

/// State of the inbound protocol: topic aliases, QoS 2 exchanges, open acknowledgements.
#[derive(Debug)]
pub(crate) struct Protocol {
    version: Version,
    /// Index is the alias less one.
    aliases: Vec<Option<TopicName>>,
    alias_maximum: u16,
    receive_maximum: NonZeroU16,
    /// QoS 2 messages that were routed and wait for PUBREL.
    unreleased: HashSet<NonZeroU16>,
    /// QoS 1 messages whose PUBACK is not sent.
    unacknowledged: usize,
    may_change_expiry: bool,
}

/// The effect of a packet.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    Reply(Reply),
    /// Publish, then send the reply of [`Protocol::published`].
    Publish {
        message: Message,
        answer: Answer,
    },
    /// The client releases a QoS 2 message: PUBCOMP, once that is stored.
    Released {
        packet_id: NonZeroU16,
        known: bool,
    },
    /// The client acknowledges something the broker sent.
    Ack(Ack),
    Subscribe {
        packet_id: NonZeroU16,
        subscriptions: Vec<Subscription>,
    },
    Unsubscribe {
        packet_id: NonZeroU16,
        filters: Vec<TopicFilter>,
    },
    End(End),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    PubAck(NonZeroU16, PublishAckReason),
    PubRec(NonZeroU16, PublishAckReason),
    PubRel(NonZeroU16, PublishAck2Reason),
    PubComp(NonZeroU16, PublishAck2Reason),
    SubAck(NonZeroU16, Vec<SubscribeAckReason>),
    UnsubAck(NonZeroU16, Vec<UnsubscribeAckReason>),
    PingResp,
}

/// The acknowledgement that a PUBLISH gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    None,
    PubAck(NonZeroU16),
    PubRec(NonZeroU16),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ack {
    /// PUBACK.
    Acknowledged(NonZeroU16),
    /// PUBREC.
    Received { packet_id: NonZeroU16, failed: bool },
    /// PUBCOMP.
    Completed(NonZeroU16),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subscription {
    pub filter: TopicFilter,
    pub options: SubscriptionOptions,
    pub identifier: Option<NonZeroU32>,
}

/// The reason for the end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct End {
    /// Reason code of the broker's DISCONNECT; `None` if the client cannot read one.
    pub reason: Option<DisconnectReasonCode>,
    pub detail: String,
    /// True if the will is published.
    pub will: bool,
    /// A Session Expiry Interval that the client chose in its DISCONNECT.
    pub session_expiry_seconds: Option<u32>,
}

impl End {
    /// The broker ends the connection.
    pub(crate) fn error(reason: DisconnectReasonCode, detail: impl Into<String>) -> End {
        End { reason: Some(reason), detail: detail.into(), will: true, session_expiry_seconds: None }
    }

    /// The connection is lost.
    pub(crate) fn lost(detail: impl Into<String>) -> End {
        End { reason: None, detail: detail.into(), will: true, session_expiry_seconds: None }
    }
}

impl Protocol {
    pub(crate) fn new(
        version: Version,
        alias_maximum: u16,
        receive_maximum: NonZeroU16,
        session_expiry_seconds: u32,
        unreleased: HashSet<NonZeroU16>,
    ) -> Protocol {
        Protocol {
            version,
            aliases: Vec::new(),
            alias_maximum,
            receive_maximum,
            unreleased,
            unacknowledged: 0,
            may_change_expiry: session_expiry_seconds > 0,
        }
    }

    /// The effect of a packet after CONNECT.
    pub(crate) fn handle(&mut self, packet: Packet) -> Step {
        match packet {
            Packet::Publish(publish) => self.publish(publish).unwrap_or_else(Step::End),
            Packet::PubAck { packet_id } => Step::Ack(Ack::Acknowledged(packet_id)),
            Packet::PubRec { packet_id, failed } => Step::Ack(Ack::Received { packet_id, failed }),
            Packet::PubComp { packet_id } => Step::Ack(Ack::Completed(packet_id)),
            Packet::PubRel { packet_id } => {
                let known = self.unreleased.remove(&packet_id);
                Step::Released { packet_id, known }
            }
            Packet::Subscribe(subscribe) => self.subscribe(subscribe).unwrap_or_else(Step::End),
            Packet::Unsubscribe { packet_id, filters } => match filters.into_iter().map(filter).collect() {
                Ok(filters) => Step::Unsubscribe { packet_id, filters },
                Err(end) => Step::End(end),
            },
            Packet::PingReq => Step::Reply(Reply::PingResp),
            Packet::Disconnect { reason, .. } if !is_for_clients(reason) => {
                protocol_error("DISCONNECT has a reason that only a server may give")
            }
            Packet::Disconnect { reason, session_expiry_seconds } => {
                if session_expiry_seconds.is_some_and(|seconds| seconds > 0) && !self.may_change_expiry {
                    return protocol_error("DISCONNECT sets a session expiry after CONNECT had none");
                }
                let will = reason != DisconnectReasonCode::NormalDisconnection;
                Step::End(End {
                    reason: None,
                    detail: format!("the client disconnected ({reason:?})"),
                    will,
                    session_expiry_seconds,
                })
            }
            Packet::Connect(_) => protocol_error("a second CONNECT"),
            Packet::Auth => protocol_error("AUTH without an authentication method in CONNECT"),
        }
    }

    /// The reply to a PUBLISH whose outcome is known.
    pub(crate) fn published(&mut self, answer: Answer, reason: PublishAckReason) -> Option<Reply> {
        match answer {
            Answer::None => None,
            Answer::PubAck(packet_id) => Some(Reply::PubAck(packet_id, reason)),
            Answer::PubRec(packet_id) => {
                // MQTT 3.1.1 cannot refuse, so there the exchange goes on.
                if u8::from(reason) < 0x80 || self.version == Version::V311 {
                    self.unreleased.insert(packet_id);
                }
                Some(Reply::PubRec(packet_id, reason))
            }
        }
    }

    /// The QoS 2 messages that wait for PUBREL, for the next connection.
    pub(crate) fn into_unreleased(self) -> HashSet<NonZeroU16> {
        self.unreleased
    }

    /// QoS 1 and 2 messages of the client that are not acknowledged or released, `unacknowledged` of them QoS 1 or
    /// without their PUBREC.
    pub(crate) fn set_unacknowledged(&mut self, unacknowledged: usize) {
        self.unacknowledged = unacknowledged;
    }

    /// A QoS 2 message failed after it had been routed: its exchange ends with a negative PUBREC.
    pub(crate) fn unpublished(&mut self, packet_id: NonZeroU16) {
        self.unreleased.remove(&packet_id);
    }

    fn publish(&mut self, publish: Publish) -> Result<Step, End> {
        let topic = self.topic(&publish)?;
        let answer = match (publish.qos, publish.packet_id) {
            (QoS::AtMostOnce, _) | (_, None) => Answer::None,
            (QoS::AtLeastOnce, Some(packet_id)) => {
                self.check_receive_maximum()?;
                Answer::PubAck(packet_id)
            }
            (QoS::ExactlyOnce, Some(packet_id)) => {
                if self.unreleased.contains(&packet_id) {
                    // Sent again: it was routed the first time.
                    return Ok(Step::Reply(Reply::PubRec(packet_id, PublishAckReason::Success)));
                }
                self.check_receive_maximum()?;
                Answer::PubRec(packet_id)
            }
        };
        Ok(Step::Publish { message: publish.into_message(topic), answer })
    }

    /// A client keeps within the Receive Maximum (MQTT 5, section 3.3.4); MQTT 3.1.1 knows none.
    fn check_receive_maximum(&self) -> Result<(), End> {
        let open = self.unreleased.len() + self.unacknowledged;
        if self.version == Version::V5 && open >= self.receive_maximum.get().into() {
            let detail = format!("more than {} QoS 1 and 2 messages are open", self.receive_maximum);
            return Err(End::error(DisconnectReasonCode::ReceiveMaximumExceeded, detail));
        }
        Ok(())
    }

    /// The topic of a PUBLISH, by its alias if it has one (MQTT 5, section 3.3.2.3.4).
    fn topic(&mut self, publish: &Publish) -> Result<TopicName, End> {
        let alias = match publish.topic_alias {
            None => return topic_name(&publish.topic),
            Some(alias) if alias.get() > self.alias_maximum => {
                let detail = format!("topic alias {alias} is over the maximum of {}", self.alias_maximum);
                return Err(End::error(DisconnectReasonCode::TopicAliasInvalid, detail));
            }
            Some(alias) => usize::from(alias.get()) - 1,
        };
        if publish.topic.is_empty() {
            let known = self.aliases.get(alias).cloned().flatten();
            return known.ok_or_else(|| {
                let detail = format!("topic alias {} was never set", alias + 1);
                End::error(DisconnectReasonCode::ProtocolError, detail)
            });
        }
        let topic = topic_name(&publish.topic)?.detached();
        if self.aliases.len() <= alias {
            self.aliases.resize(alias + 1, None);
        }
        self.aliases[alias] = Some(topic.clone());
        Ok(topic)
    }

    fn subscribe(&self, subscribe: Subscribe) -> Result<Step, End> {
        let mut subscriptions = Vec::with_capacity(subscribe.filters.len());
        for (text, options) in subscribe.filters {
            let filter = filter(text)?;
            if filter.is_shared() {
                if filter.share().is_none() {
                    let detail = format!("{filter} is not $share/GROUP/FILTER");
                    return Err(End::error(DisconnectReasonCode::TopicFilterInvalid, detail));
                }
                if options.no_local {
                    let detail = format!("No Local is not allowed for the shared {filter}");
                    return Err(End::error(DisconnectReasonCode::ProtocolError, detail));
                }
            }
            subscriptions.push(Subscription { filter, options, identifier: subscribe.identifier });
        }
        Ok(Step::Subscribe { packet_id: subscribe.packet_id, subscriptions })
    }
}

fn topic_name(topic: &ByteString) -> Result<TopicName, End> {
    TopicName::new(topic.clone())
        .map_err(|error| End::error(DisconnectReasonCode::TopicNameInvalid, format!("PUBLISH: {error}")))
}

fn filter(text: ByteString) -> Result<TopicFilter, End> {
    match TopicFilter::new(text) {
        Ok(filter) => Ok(filter.detached()),
        Err(error) => Err(End::error(DisconnectReasonCode::TopicFilterInvalid, error.to_string())),
    }
}

fn protocol_error(detail: &str) -> Step {
    Step::End(End::error(DisconnectReasonCode::ProtocolError, detail))
}

/// True if a client may disconnect with this reason (MQTT 5, section 3.14.2.1).
fn is_for_clients(reason: DisconnectReasonCode) -> bool {
    matches!(u8::from(reason), 0x00 | 0x04 | 0x80..=0x83 | 0x90 | 0x93..=0x99)
}
