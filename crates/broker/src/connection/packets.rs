//! What the packets of a connected client do.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::acks::Gate;
use super::{Attached, BLOCKED_RETRY, Connection, Stopped};
use crate::broker::{Blocked, PublishOutcome, Published};
use crate::hook::RejectReason;
use crate::message::{Message, QoS, Version};
use crate::outbox::Release;
use crate::session::{Ack, Answer, End, Reply, Step, Subscription};
use crate::sessions::Replay;
use crate::stored::{self, MAX_KEPT_NAME_BYTES, Moment};
use crate::wal::{Change, Space, Ticket};
use crate::wire::{
    DisconnectReasonCode, Packet, PublishAck2Reason, PublishAckReason, RetainHandling, SubscribeAckReason,
    UnsubscribeAckReason,
};

impl<S> Connection<'_, S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    /// Handles what was read, as far as it may be handled now.
    pub(super) fn process(&mut self, now: &Moment) -> Result<(), End> {
        self.stopped = true;
        while self.is_readable() {
            match self.decoder.decode(&mut self.io.inbound) {
                Ok(Some(packet)) => {
                    if let (Some(rate), Packet::Publish(_)) = (&mut self.rate, &packet)
                        && let Some(wait) = rate.spend(now.instant)
                    {
                        // This one still passes; the next one has to wait.
                        self.slowed_until = Some(now.instant + wait);
                    }
                    // Whole packets count, not bytes (MQTT 5, section 3.1.2.10).
                    self.last_read = now.instant;
                    self.silent = false;
                    self.handle(packet, now)?;
                }
                Ok(None) => {
                    self.stopped = false;
                    break;
                }
                Err(error) => return Err(End::error(error.reason(), error.to_string())),
            }
        }
        Ok(())
    }

    fn handle(&mut self, packet: Packet, now: &Moment) -> Result<(), End> {
        match self.session.handle(packet) {
            Step::Reply(Reply::PingResp) => self.reply(Reply::PingResp),
            // A QoS 2 message that was sent again: the first one may not be stored yet.
            Step::Reply(reply) => {
                let ticket = self.attached.mailbox.session.map(|_| self.shared.wal.so_far());
                self.acks.push(reply, Gate { ticket, hold: None });
            }
            Step::Publish { message, answer } => self.publish(message, answer, now),
            Step::Ack(ack) => self.ack(ack)?,
            Step::Released { packet_id, known } => {
                let ticket = self.attached.mailbox.session.filter(|_| known).map(|session| {
                    let key = stored::incoming_key(session, packet_id.get());
                    let change = Change { space: Space::State, key, value: None };
                    self.shared.wal.begin().append(change, true)
                });
                let reason = match known {
                    true => PublishAck2Reason::Success,
                    false => PublishAck2Reason::PacketIdNotFound,
                };
                self.acks.push(Reply::PubComp(packet_id, reason), Gate { ticket, hold: None });
            }
            Step::Subscribe { packet_id, subscriptions } => {
                let mut last = None;
                let status = subscriptions.into_iter().map(|subscription| {
                    let (reason, ticket) = self.subscribe(subscription);
                    last = ticket.or(last);
                    reason
                });
                let status = status.collect();
                self.acks.push(Reply::SubAck(packet_id, status), Gate { ticket: last, hold: None });
            }
            Step::Unsubscribe { packet_id, filters } => {
                let mut last = None;
                let status = filters.iter().map(|filter| {
                    self.attached.filters.remove(filter);
                    let (removed, ticket) = self.shared.unsubscribe(&self.attached.mailbox, filter);
                    last = ticket.or(last);
                    match removed {
                        true => UnsubscribeAckReason::Success,
                        false => UnsubscribeAckReason::NoSubscriptionExisted,
                    }
                });
                let status = status.collect();
                self.replay.retain(|replay| self.attached.filters.contains(&replay.filter));
                self.acks.push(Reply::UnsubAck(packet_id, status), Gate { ticket: last, hold: None });
            }
            Step::End(end) => return Err(end),
        }
        Ok(())
    }

    fn publish(&mut self, message: Message, answer: Answer, now: &Moment) {
        let Attached { mailbox, origin, .. } = &self.attached;
        let waiting = Some(&mut self.waiting);
        let changes = match (mailbox.session, answer) {
            // Stored with the message: after a crash it is known to be there.
            (Some(session), Answer::PubRec(packet_id)) => vec![Change {
                space: Space::State,
                key: stored::incoming_key(session, packet_id.get()),
                value: Some(Bytes::new()),
            }],
            _ => Vec::new(),
        };
        let published = self.shared.publish(origin, Some(mailbox), message, changes, now, waiting);
        let Published { outcome, ticket, hold } = match published {
            Ok(published) => published,
            Err(Blocked { message, until }) => {
                let mut until = Box::pin(until.notified_owned());
                until.as_mut().enable();
                // A copy, so that it does not keep the read buffer.
                let message = message.clone();
                let retry_at = now.instant + BLOCKED_RETRY;
                self.blocked = Some(Stopped { message, answer, until, retry_at });
                return;
            }
        };
        if let PublishOutcome::Routed(routed) = outcome {
            self.pressure |= routed.pressure;
        }
        self.waiting_until = now.instant + self.shared.config.publish_wait;
        let Some(reply) = self.session.published(answer, ack_reason(outcome)) else {
            return;
        };
        if let (Some(session), Reply::PubRec(packet_id, reason)) = (mailbox.session, &reply)
            && u8::from(*reason) >= 0x80
            && self.encoder.version() == Version::V5
            && ticket.is_some()
        {
            // It is no longer waited for: or, after a restart, the next message with this identifier would count as this one.
            let key = stored::incoming_key(session, packet_id.get());
            let change = Change { space: Space::State, key, value: None };
            self.shared.wal.begin().append(change, false);
        }
        let gate = Gate { ticket, hold };
        if self.waiting.is_empty() {
            self.push_ack(reply, gate);
        } else {
            self.deferred = Some((reply, gate));
        }
    }

    pub(super) fn push_ack(&mut self, reply: Reply, gate: Gate) {
        self.acks.push(reply, gate);
        self.session.set_unacknowledged(self.acks.unacknowledged());
    }

    /// Offers the message again that a hook had no room for.
    pub(super) fn offer_again(&mut self, now: &Moment) -> Result<(), End> {
        if let Some(Stopped { message, answer, .. }) = self.blocked.take() {
            self.last_read = now.instant;
            self.publish(message, answer, now);
        }
        self.process(now)
    }

    /// Sends the acknowledgements whose time has come, in order.
    pub(super) fn release_acks(&mut self) -> Result<(), End> {
        if self.acks.is_empty() {
            return Ok(());
        }
        let progress = *self.progress.borrow_and_update();
        while let Some((reply, result)) = self.acks.next(progress) {
            let reply = match (reply, result) {
                (reply, Ok(())) => reply,
                (Reply::PubAck(packet_id, _), Err(reason)) if self.encoder.version() == Version::V5 => {
                    Reply::PubAck(packet_id, reject_code(reason))
                }
                (Reply::PubRec(packet_id, _), Err(reason)) if self.encoder.version() == Version::V5 => {
                    self.session.unpublished(packet_id);
                    if let Some(session) = self.attached.mailbox.session {
                        // Or it would be taken for the next message with this identifier, after a restart.
                        let key = stored::incoming_key(session, packet_id.get());
                        let change = Change { space: Space::State, key, value: None };
                        self.shared.wal.begin().append(change, false);
                    }
                    Reply::PubRec(packet_id, reject_code(reason))
                }
                // There is no way to say it: the client keeps the message and sends it again.
                (_, Err(reason)) => {
                    let detail = format!("it could not be acknowledged: {reason:?}");
                    return Err(End::error(DisconnectReasonCode::UnspecifiedError, detail));
                }
            };
            self.reply(reply);
        }
        self.session.set_unacknowledged(self.acks.unacknowledged());
        Ok(())
    }

    fn reply(&mut self, reply: Reply) {
        let out = &mut self.io.outbound;
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
        self.note_unsent(encoded);
    }

    fn ack(&mut self, ack: Ack) -> Result<(), End> {
        let mailbox = &self.attached.mailbox;
        let mut transaction = self.shared.wal.begin();
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
                    self.acks.push(Reply::PubRel(packet_id, reason), Gate { ticket, hold: None });
                })
            }
        };
        result.map_err(|_| {
            let detail = format!("{ack:?} does not fit the QoS of the message it acknowledges");
            End::error(DisconnectReasonCode::ProtocolError, detail)
        })
    }

    fn subscribe(&mut self, subscription: Subscription) -> (SubscribeAckReason, Option<Ticket>) {
        let Attached { mailbox, filters, client, .. } = &mut self.attached;
        let config = &self.shared.config;
        let known = filters.contains(&subscription.filter);
        if !known && filters.len() >= config.max_subscriptions_per_session {
            return (SubscribeAckReason::QuotaExceeded, None);
        }
        if !known {
            let bytes = self.shared.subscriptions.read().bytes() + subscription.filter.as_str().len();
            if bytes > config.max_subscription_bytes || (mailbox.is_stored() && self.shared.wal.is_full()) {
                return (SubscribeAckReason::QuotaExceeded, None);
            }
        }
        if mailbox.is_stored() && subscription.filter.as_str().len() > MAX_KEPT_NAME_BYTES {
            return (SubscribeAckReason::TopicFilterInvalid, None);
        }
        let mut subscription = subscription;
        match self.shared.authorize(client, &subscription.filter, subscription.options.qos) {
            Ok(granted) => subscription.options.qos = granted,
            Err(reason) => return (subscribe_code(reason), None),
        }
        let options = subscription.options;
        let replay = match options.retain_handling {
            RetainHandling::AtSubscribe => true,
            RetainHandling::AtSubscribeNew => !known,
            RetainHandling::NoAtSubscribe => false,
        };
        // Subscribed first: what is published from now on comes by itself, what was before is found.
        let (_, ticket) = self.shared.subscribe(mailbox, &subscription);
        // One session of several gets a message, so that nobody gets the retained ones (MQTT 5, section 4.8.2).
        if replay && !subscription.filter.is_shared() {
            if known {
                self.replay.retain(|replay| replay.filter != subscription.filter);
            }
            self.replay.push_back(Replay {
                filter: subscription.filter.clone(),
                qos: options.qos,
                identifier: subscription.identifier,
                figures: self.shared.monitor.figures(&subscription.filter),
                topics: VecDeque::new(),
                after: None,
                walked: false,
            });
        }
        filters.insert(subscription.filter);
        let granted = match options.qos {
            QoS::AtMostOnce => SubscribeAckReason::GrantedQos0,
            QoS::AtLeastOnce => SubscribeAckReason::GrantedQos1,
            QoS::ExactlyOnce => SubscribeAckReason::GrantedQos2,
        };
        (granted, ticket)
    }

    /// Ends the subscriptions that are not allowed any more.
    pub(super) fn recheck(&mut self) {
        self.attached.recheck();
        self.attached.doubt();
        self.replay.retain(|replay| self.attached.filters.contains(&replay.filter));
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
