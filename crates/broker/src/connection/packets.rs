//! Effects of the packets of a connected client.

use bytes::Bytes;

use super::attached::Attached;
use super::inbound_publish::BlockedPublish;
use super::pending_acks::Gate;
use super::state::Connection;
use crate::hook::RejectReason;
use crate::message::{Message, QoS, Version};
use crate::moment::Moment;
use crate::outbox::Release;
use crate::protocol::{Ack, Answer, End, Reply, Step, Subscription};
use crate::router::{PublishOutcome, Published};
use crate::stored::{self, MAX_KEPT_NAME_BYTES};
use crate::wal::{Change, Space, Ticket};
use crate::wire::{
    DisconnectReasonCode, Packet, PublishAck2Reason, PublishAckReason, RetainHandling, SubscribeAckReason,
    UnsubscribeAckReason,
};

impl Connection<'_> {
    /// Handles packets that were read, as far as they may be handled now.
    pub(super) fn process(&mut self, now: &Moment) -> Result<(), End> {
        self.has_unhandled = true;
        while self.is_readable() {
            match self.decoder.decode(&mut self.buffers.inbound) {
                Ok(Some(packet)) => {
                    if matches!(packet, Packet::Publish(_)) {
                        self.throttle.count(now.instant);
                    }
                    self.keep_alive.packet(now.instant);
                    self.handle(packet, now)?;
                }
                Ok(None) => {
                    self.has_unhandled = false;
                    break;
                }
                Err(error) => return Err(End::error(error.reason(), error.to_string())),
            }
        }
        Ok(())
    }

    fn handle(&mut self, packet: Packet, now: &Moment) -> Result<(), End> {
        match self.protocol.handle(packet) {
            Step::Reply(Reply::PingResp) => self.reply(Reply::PingResp),
            // A QoS 2 message that was sent again: the first one may not be stored yet.
            Step::Reply(reply) => {
                let ticket = self.attached.mailbox.session.map(|_| self.context.wal.so_far());
                self.acks.push(reply, Gate::stored(ticket));
            }
            Step::Publish { message, answer } => self.publish(message, answer, now),
            Step::Ack(ack) => self.ack(ack)?,
            Step::Released { packet_id, known } => {
                let ticket = self.attached.mailbox.session.filter(|_| known).map(|session| {
                    let key = stored::incoming_key(session, packet_id.get());
                    let change = Change { space: Space::State, key, value: None };
                    self.context.wal.begin().append(change, true)
                });
                let reason = match known {
                    true => PublishAck2Reason::Success,
                    false => PublishAck2Reason::PacketIdNotFound,
                };
                self.acks.push(Reply::PubComp(packet_id, reason), Gate::stored(ticket));
            }
            Step::Subscribe { packet_id, subscriptions } => {
                let mut last = None;
                let status = subscriptions.into_iter().map(|subscription| {
                    let (reason, ticket) = self.subscribe(subscription);
                    last = ticket.or(last);
                    reason
                });
                let status = status.collect();
                self.acks.push(Reply::SubAck(packet_id, status), Gate::stored(last));
            }
            Step::Unsubscribe { packet_id, filters: unwanted } => {
                let mut last = None;
                let status = unwanted.iter().map(|filter| {
                    self.attached.mailbox.remove_filter(filter);
                    let (removed, ticket) = self.context.router.unsubscribe(&self.attached.mailbox, filter);
                    last = ticket.or(last);
                    match removed {
                        true => UnsubscribeAckReason::Success,
                        false => UnsubscribeAckReason::NoSubscriptionExisted,
                    }
                });
                let status = status.collect();
                let Attached { mailbox, replays, .. } = &mut self.attached;
                replays.retain(|replay| mailbox.has_filter(&replay.filter));
                self.acks.push(Reply::UnsubAck(packet_id, status), Gate::stored(last));
            }
            Step::End(end) => return Err(end),
        }
        Ok(())
    }

    fn publish(&mut self, message: Message, answer: Answer, now: &Moment) {
        let Attached { mailbox, origin, .. } = &self.attached;
        let changes = match (mailbox.session, answer) {
            // Stored with the message: after a crash both exist, or neither.
            (Some(session), Answer::PubRec(packet_id)) => vec![Change {
                space: Space::State,
                key: stored::incoming_key(session, packet_id.get()),
                value: Some(Bytes::new()),
            }],
            _ => Vec::new(),
        };
        let mut deferred = self.publish.take_spare();
        let router = &self.context.router;
        let published = router.publish(origin, Some(mailbox), message, changes, now, Some(&mut deferred));
        let Published { outcome, ticket, hold } = match published {
            Ok(published) => published,
            Err(blocked) => return self.publish.block(blocked, answer, now.instant),
        };
        if let PublishOutcome::Routed(routed) = outcome {
            self.has_pressure |= routed.pressure;
        }
        let reply = self.protocol.published(answer, ack_reason(outcome));
        if let (Some(session), Some(Reply::PubRec(packet_id, reason))) = (mailbox.session, &reply)
            && u8::from(*reason) >= 0x80
            && self.encoder.version() == Version::V5
            && ticket.is_some()
        {
            // The exchange has ended: after a restart the next message with this identifier must not count as this one.
            let key = stored::incoming_key(session, packet_id.get());
            let change = Change { space: Space::State, key, value: None };
            self.context.wal.begin().append(change, false);
        }
        let ack = reply.map(|reply| (reply, Gate { ticket, hold }));
        if !deferred.is_empty() {
            let until = now.instant + self.context.config.publish_wait;
            return self.publish.await_room(deferred, until, ack);
        }
        self.publish.done(deferred);
        if let Some((reply, gate)) = ack {
            self.push_ack(reply, gate);
        }
    }

    /// Offers the message again that a hook had no room for.
    pub(super) fn offer_again(&mut self, now: &Moment) -> Result<(), End> {
        if let Some(BlockedPublish { message, answer, .. }) = self.publish.take_blocked() {
            self.keep_alive.restart(now.instant);
            self.publish(message, answer, now);
        }
        self.process(now)
    }

    /// Sends the acknowledgements whose gates are open, in order.
    pub(super) fn release_acks(&mut self) -> Result<(), End> {
        if self.acks.is_empty() {
            return Ok(());
        }
        let progress = self.acks.progress();
        while let Some((reply, result)) = self.acks.next(progress) {
            let reply = match (reply, result) {
                (reply, Ok(())) => reply,
                (Reply::PubAck(packet_id, _), Err(reason)) if self.encoder.version() == Version::V5 => {
                    Reply::PubAck(packet_id, reject_code(reason))
                }
                (Reply::PubRec(packet_id, _), Err(reason)) if self.encoder.version() == Version::V5 => {
                    self.protocol.unpublished(packet_id);
                    if let Some(session) = self.attached.mailbox.session {
                        // After a restart, the next message with this identifier must not count as this one.
                        let key = stored::incoming_key(session, packet_id.get());
                        let change = Change { space: Space::State, key, value: None };
                        self.context.wal.begin().append(change, false);
                    }
                    Reply::PubRec(packet_id, reject_code(reason))
                }
                // The protocol has no such answer: the client keeps the message and sends it again.
                (_, Err(reason)) => {
                    let detail = format!("it could not be acknowledged: {reason:?}");
                    return Err(End::error(DisconnectReasonCode::UnspecifiedError, detail));
                }
            };
            self.reply(reply);
        }
        self.protocol.set_unacknowledged(self.acks.unacknowledged());
        Ok(())
    }

    fn reply(&mut self, reply: Reply) {
        let out = &mut self.buffers.outbound;
        let encoded = match reply {
            Reply::PubAck(packet_id, reason) => self.encoder.puback(out, packet_id, reason),
            Reply::PubRec(packet_id, reason) => self.encoder.pubrec(out, packet_id, reason),
            Reply::PubRel(packet_id, reason) => self.encoder.pubrel(out, packet_id, reason),
            Reply::PubComp(packet_id, reason) => self.encoder.pubcomp(out, packet_id, reason),
            Reply::SubAck(packet_id, status) => self.encoder.suback(out, packet_id, status),
            Reply::UnsubAck(packet_id, status) => self.encoder.unsuback(out, packet_id, status),
            Reply::PingResp => {
                self.encoder.pingresp(out);
                Ok(())
            }
        };
        // A reply over the client's maximum packet size cannot be sent (MQTT 5, section 3.1.2.11.4).
        if let Err(error) = encoded {
            tracing::debug!(client_id = %self.attached.mailbox.client_id, %error, "a reply was not sent");
        }
    }

    fn ack(&mut self, ack: Ack) -> Result<(), End> {
        let mailbox = &self.attached.mailbox;
        let mut transaction = self.context.wal.begin();
        let result = match ack {
            Ack::Acknowledged(packet_id) => mailbox.acknowledged(packet_id, &mut transaction),
            Ack::Completed(packet_id) => mailbox.completed(packet_id, &mut transaction),
            Ack::Received { packet_id, failed } => {
                mailbox.received(packet_id, failed, &mut transaction).map(|release| {
                    let (reason, ticket) = match release {
                        Release::Ended => return,
                        Release::Send(ticket) => (PublishAck2Reason::Success, ticket),
                        Release::NotFound => (PublishAck2Reason::PacketIdNotFound, None),
                    };
                    self.acks.push(Reply::PubRel(packet_id, reason), Gate::stored(ticket));
                })
            }
        };
        result.map_err(|_| {
            let detail = format!("{ack:?} does not fit the QoS of the message it acknowledges");
            End::error(DisconnectReasonCode::ProtocolError, detail)
        })
    }

    fn subscribe(&mut self, subscription: Subscription) -> (SubscribeAckReason, Option<Ticket>) {
        let Attached { mailbox, client, replays, .. } = &mut self.attached;
        let config = &self.context.config;
        let known = mailbox.has_filter(&subscription.filter);
        if !known && mailbox.filter_count() >= config.max_subscriptions_per_session {
            return (SubscribeAckReason::QuotaExceeded, None);
        }
        if !known {
            let bytes = self.context.router.subscription_bytes() + subscription.filter.as_str().len();
            if bytes > config.max_subscription_bytes || (mailbox.is_stored() && self.context.wal.is_full())
            {
                return (SubscribeAckReason::QuotaExceeded, None);
            }
        }
        if mailbox.is_stored() && subscription.filter.as_str().len() > MAX_KEPT_NAME_BYTES {
            return (SubscribeAckReason::TopicFilterInvalid, None);
        }
        let mut subscription = subscription;
        match self.context.hooks.authorize(client, &subscription.filter, subscription.options.qos) {
            Ok(granted) => subscription.options.qos = granted,
            Err(reason) => return (subscribe_code(reason), None),
        }
        let options = subscription.options;
        let replay = match options.retain_handling {
            RetainHandling::AtSubscribe => true,
            RetainHandling::AtSubscribeNew => !known,
            RetainHandling::NoAtSubscribe => false,
        };
        // Subscribed first: later publishes are delivered, earlier ones are found in the retained store.
        let ticket = self.context.router.subscribe(mailbox, &subscription);
        // Shared subscriptions get no retained messages (MQTT 5, section 4.8.2).
        if replay && !subscription.filter.is_shared() {
            if known {
                replays.retain(|replay| replay.filter != subscription.filter);
            }
            replays.push_back(self.context.router.replay(&subscription));
        }
        mailbox.add_filter(subscription.filter, options.qos);
        let granted = match options.qos {
            QoS::AtMostOnce => SubscribeAckReason::GrantedQos0,
            QoS::AtLeastOnce => SubscribeAckReason::GrantedQos1,
            QoS::ExactlyOnce => SubscribeAckReason::GrantedQos2,
        };
        (granted, ticket)
    }

    /// Asks the hooks again, because permissions have changed.
    pub(super) fn recheck(&mut self) {
        self.attached.recheck_subscriptions();
        self.attached.recheck_waiting();
    }
}

fn ack_reason(outcome: PublishOutcome) -> PublishAckReason {
    match outcome {
        PublishOutcome::Routed(routed) if routed.retain_refused => PublishAckReason::QuotaExceeded,
        PublishOutcome::Routed(routed) if routed.subscribers == 0 => {
            PublishAckReason::NoMatchingSubscribers
        }
        PublishOutcome::Routed(_) | PublishOutcome::Consumed => PublishAckReason::Success,
        PublishOutcome::Rejected(reason) => reject_code(reason),
    }
}

fn reject_code(reason: RejectReason) -> PublishAckReason {
    match reason {
        RejectReason::Unspecified => PublishAckReason::UnspecifiedError,
        RejectReason::ImplementationSpecific => PublishAckReason::ImplementationSpecificError,
        RejectReason::NotAuthorized => PublishAckReason::NotAuthorized,
        RejectReason::TopicNameInvalid => PublishAckReason::TopicNameInvalid,
        RejectReason::QuotaExceeded => PublishAckReason::QuotaExceeded,
        RejectReason::PayloadFormatInvalid => PublishAckReason::PayloadFormatInvalid,
    }
}

fn subscribe_code(reason: RejectReason) -> SubscribeAckReason {
    match reason {
        RejectReason::NotAuthorized => SubscribeAckReason::NotAuthorized,
        RejectReason::TopicNameInvalid => SubscribeAckReason::TopicFilterInvalid,
        RejectReason::QuotaExceeded => SubscribeAckReason::QuotaExceeded,
        RejectReason::ImplementationSpecific => SubscribeAckReason::ImplementationSpecificError,
        RejectReason::Unspecified | RejectReason::PayloadFormatInvalid => {
            SubscribeAckReason::UnspecifiedError
        }
    }
}
