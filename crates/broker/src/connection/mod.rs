//! One connection: the only module with I/O and timers.

mod acks;
mod handshake;
mod io;

use std::collections::{HashSet, VecDeque};
use std::future::pending;
use std::num::NonZeroU32;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::watch;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use self::acks::{Acks, Gate};
use self::handshake::{Accepted, handshake, refuse};
use self::io::{Io, write_or_flush};
use crate::broker::{Blocked, PublishOutcome, Published, Shared, Waiting, lower};
use crate::client::{Client, Origin, Peer};
use crate::hook::{Hold, RejectReason};
use crate::journal::Progress;
use crate::mailbox::Mailbox;
use crate::message::{Message, QoS, Version};
use crate::outbox::{Dated, Delivery, Loss, Outbox, Pushed, Release};
use crate::session::{Ack, Answer, End, Reply, Session, Step, Subscription};
use crate::topic::{TopicFilter, TopicName};
use crate::wire::{
    Decoder, DisconnectReasonCode, EncodeError, Encoder, Packet, PublishAck2Reason, PublishAckReason,
    RetainHandling, SubscribeAckReason, UnsubscribeAckReason,
};

/// How many retained topics are looked at in one go.
const REPLAY_SLICE: usize = 256;
/// A client that has this much to take from us is not read until it takes some.
const BACKLOG_BYTES: usize = 256 * 1024;

/// How long a message that a hook has no room for waits for being offered again, at most.
const BLOCKED_RETRY: Duration = Duration::from_secs(1);

/// Longest wait of the timer when nothing else is due.
const IDLE: Duration = Duration::from_secs(3600);

pub(crate) async fn serve<S>(shared: &Shared, stream: S, peer: Peer, cancel: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut io = Io::new(stream);
    let mut decoder = Decoder::new(shared.config.max_packet_bytes as usize);
    let accepted = tokio::select! {
        accepted = handshake(shared, &mut io, &mut decoder, &peer) => accepted,
        () = cancel.cancelled() => return,
    };
    match accepted {
        Ok(accepted) => Connection::attach(shared, io, decoder, accepted).run(cancel).await,
        Err(refusal) => refuse(shared, io, refusal, peer.address).await,
    }
}

struct Connection<'a, S> {
    shared: &'a Shared,
    io: Io<S>,
    decoder: Decoder,
    encoder: Encoder,
    session: Session,
    attached: Attached<'a>,
    keepalive: Option<Duration>,
    /// Deliveries of the last publish that found a full queue; nothing more is read before they are settled.
    waiting: Vec<Waiting>,
    waiting_until: Instant,
    /// The acknowledgement that is due once `waiting` is settled.
    deferred: Option<(Reply, Gate)>,
    /// A message that a hook has no room for; nothing more is read before it has.
    blocked: Option<Stopped>,
    /// Acknowledgements that are not sent yet.
    acks: Acks,
    progress: watch::Receiver<Progress>,
    /// Retained messages that a subscription still has to get.
    replay: VecDeque<Replay>,
    last_read: Instant,
    /// Since when there is something to write and nothing of it was taken.
    unsent_since: Option<Instant>,
    pressure: bool,
}

/// A message that is to be offered to the hooks again.
struct Stopped {
    message: Message,
    answer: Answer,
    until: Pin<Box<OwnedNotified>>,
    retry_at: Instant,
}

/// The retained messages of one subscription, found and sent a slice at a time.
struct Replay {
    filter: TopicFilter,
    qos: QoS,
    identifier: Option<NonZeroU32>,
    /// Found and not sent yet.
    topics: VecDeque<TopicName>,
    after: Option<TopicName>,
    walked: bool,
}

/// A client's place in the broker; given up on drop, whatever the reason.
struct Attached<'a> {
    shared: &'a Shared,
    mailbox: Arc<Mailbox>,
    client: Arc<Client>,
    origin: Origin,
    filters: HashSet<TopicFilter>,
    will: Option<Message>,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.shared.detach(&self.mailbox);
        for filter in self.filters.drain() {
            self.shared.unsubscribe(&self.mailbox, &filter);
        }
        self.mailbox.close();
        if let Some(will) = self.will.take() {
            let now = Instant::now();
            let _ = self.shared.publish(&self.origin, Some(&self.mailbox), will, Vec::new(), now, None);
        }
        self.shared.tell_hooks(|hook| hook.on_disconnect(&self.client));
    }
}

impl<'a, S> Connection<'a, S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    fn attach(shared: &'a Shared, io: Io<S>, decoder: Decoder, accepted: Accepted) -> Self {
        let Accepted { connect, client, encoder } = accepted;
        let version = connect.version;
        let config = &shared.config;
        let outbox = Outbox::new(
            Encoder::new(version, connect.maximum_packet_bytes),
            connect.receive_maximum.min(config.max_inflight),
            config.session_queue_messages,
            config.session_queue_bytes,
        );
        let mailbox = Arc::new(Mailbox::new(client.client_id.clone(), outbox));
        shared.attach(&mailbox);
        tracing::debug!(client_id = %client.client_id, peer = %client.peer, ?version, "client connected");
        shared.tell_hooks(|hook| hook.on_connected(&client));
        let origin = Origin::Client(client.clone());
        let now = Instant::now();
        Connection {
            shared,
            io,
            decoder,
            encoder,
            session: Session::new(
                version,
                config.topic_alias_maximum,
                config.receive_maximum,
                connect.session_expiry_seconds,
            ),
            attached: Attached {
                shared,
                mailbox,
                client,
                origin,
                filters: HashSet::new(),
                will: connect.will,
            },
            // One and a half times the keepalive (MQTT 5, section 3.1.2.10).
            keepalive: (connect.keepalive_seconds > 0)
                .then(|| Duration::from_millis(1500 * u64::from(connect.keepalive_seconds))),
            waiting: Vec::new(),
            waiting_until: now,
            deferred: None,
            blocked: None,
            acks: Acks::default(),
            progress: shared.journal.watch(),
            replay: VecDeque::new(),
            last_read: now,
            unsent_since: None,
            pressure: false,
        }
    }

    async fn run(mut self, cancel: CancellationToken) {
        let end = self.until_end(cancel).await;
        let Connection { shared, mut io, mut attached, mut encoder, .. } = self;
        if !end.will {
            attached.will = None;
        }
        let client_id = attached.mailbox.client_id.clone();
        drop(attached);
        match end.reason {
            Some(reason) => {
                tracing::debug!(%client_id, ?reason, detail = end.detail, "connection ended by the broker");
                if !matches!(
                    reason,
                    DisconnectReasonCode::ServerShuttingDown | DisconnectReasonCode::SessionTakenOver
                ) {
                    shared.counters.protocol_errors.add(1);
                }
                encoder.disconnect(&mut io.outbound, reason, Some(&end.detail));
            }
            None => tracing::debug!(%client_id, detail = end.detail, "connection ended"),
        }
        io.farewell(shared).await;
    }

    async fn until_end(&mut self, cancel: CancellationToken) -> End {
        let mailbox = self.attached.mailbox.clone();
        let mut cancelled = pin!(cancel.cancelled());
        let mut wake = pin!(mailbox.wake.notified());
        let mut timer_at = self.due(Instant::now());
        let mut timer = pin!(sleep_until(timer_at.into()));
        let mut room: Option<Pin<Box<OwnedNotified>>> = None;
        let mut now = Instant::now();
        loop {
            if let Err(end) = self.process(now) {
                return end;
            }
            if let Err(end) = self.release_acks() {
                return end;
            }
            let replaying = self.collect(now);
            if self.waiting.is_empty() {
                room = None;
            } else if room.is_none() {
                room = self.await_room(now);
                if room.is_none() {
                    continue;
                }
            }
            let due = self.due(now);
            if due < timer_at {
                timer_at = due;
                timer.as_mut().reset(due.into());
            }
            if std::mem::take(&mut self.pressure) {
                // Subscribers on this runtime get their turn before their queues overflow.
                tokio::task::yield_now().await;
            }
            let readable = self.is_readable();
            self.io.make_room();
            let unflushed = self.io.unflushed;
            let awaits_store = self.acks.awaits_store();
            let hold = self.acks.hold().cloned();
            let Io { reader, writer, inbound, outbound, sent, .. } = &mut self.io;
            tokio::select! {
                written = write_or_flush(writer, &outbound[*sent..]), if unflushed || *sent < outbound.len() => match written {
                    Ok(0) if *sent == outbound.len() => self.io.unflushed = false,
                    Ok(0) => return End::lost("the client closed the connection"),
                    Ok(bytes) => {
                        if let Err(error) = self.io.written(bytes).await {
                            return End::lost(format!("write failed: {error}"));
                        }
                        self.shared.counters.bytes_out.add(bytes as u64);
                        now = Instant::now();
                        self.unsent_since = (self.io.unsent() > 0).then_some(now);
                        if !readable {
                            // It was not read meanwhile, so its silence means nothing.
                            self.last_read = now;
                        }
                    }
                    Err(error) => return End::lost(format!("write failed: {error}")),
                },
                read = reader.read_buf(inbound), if readable => match read {
                    Ok(0) => return End::lost("the client closed the connection without DISCONNECT"),
                    Ok(bytes) => {
                        self.io.read(bytes);
                        self.shared.counters.bytes_in.add(bytes as u64);
                        now = Instant::now();
                        self.last_read = now;
                    }
                    Err(error) => return End::lost(format!("read failed: {error}")),
                },
                () = wake.as_mut() => {
                    wake.set(mailbox.wake.notified());
                    if mailbox.is_taken_over() {
                        let detail = "another connection uses the same client identifier";
                        return End::error(DisconnectReasonCode::SessionTakenOver, detail);
                    }
                    if mailbox.is_kicked() {
                        let detail = "an operator ended the connection";
                        return End::error(DisconnectReasonCode::AdministrativeAction, detail);
                    }
                    if mailbox.take_recheck() {
                        self.recheck();
                    }
                    now = Instant::now();
                }
                // The others of this runtime have their turn in between.
                () = tokio::task::yield_now(), if replaying => now = Instant::now(),
                changed = self.progress.changed(), if awaits_store => {
                    if changed.is_err() {
                        return End::lost("the broker is gone");
                    }
                }
                () = released(hold) => {}
                () = unblocked(&mut self.blocked) => {
                    now = Instant::now();
                    if let Err(end) = self.offer_again(now) {
                        return end;
                    }
                }
                () = notified(&mut room) => {
                    room = None;
                    now = Instant::now();
                }
                () = timer.as_mut() => {
                    now = Instant::now();
                    if let Some(end) = self.overdue(now) {
                        return end;
                    }
                    timer_at = self.due(now);
                    timer.as_mut().reset(timer_at.into());
                }
                () = cancelled.as_mut() => {
                    self.collect(now);
                    return End::error(DisconnectReasonCode::ServerShuttingDown, "the server shuts down");
                }
            }
        }
    }

    /// Handles what was read, as far as it may be handled now.
    fn process(&mut self, now: Instant) -> Result<(), End> {
        while self.is_readable() {
            match self.decoder.decode(&mut self.io.inbound) {
                Ok(Some(packet)) => self.handle(packet, now)?,
                Ok(None) => break,
                Err(error) => return Err(End::error(error.reason(), error.to_string())),
            }
        }
        Ok(())
    }

    fn handle(&mut self, packet: Packet, now: Instant) -> Result<(), End> {
        match self.session.handle(packet) {
            Step::Reply(Reply::PingResp) => self.reply(Reply::PingResp),
            Step::Reply(reply) => self.acks.push(reply, Gate::default()),
            Step::Publish { message, answer } => self.publish(message, answer, now),
            Step::Ack(ack) => self.ack(ack)?,
            Step::Subscribe { packet_id, subscriptions } => {
                let status = subscriptions.into_iter().map(|subscription| match subscription {
                    Ok(subscription) => self.subscribe(subscription),
                    Err(reason) => reason,
                });
                let status = status.collect();
                self.acks.push(Reply::SubAck(packet_id, status), Gate::default());
            }
            Step::Unsubscribe { packet_id, filters } => {
                let status = filters.iter().map(|filter| {
                    self.attached.filters.remove(filter);
                    match self.shared.unsubscribe(&self.attached.mailbox, filter) {
                        true => UnsubscribeAckReason::Success,
                        false => UnsubscribeAckReason::NoSubscriptionExisted,
                    }
                });
                let status = status.collect();
                self.acks.push(Reply::UnsubAck(packet_id, status), Gate::default());
            }
            Step::End(end) => return Err(end),
        }
        Ok(())
    }

    fn publish(&mut self, message: Message, answer: Answer, now: Instant) {
        let Attached { mailbox, origin, .. } = &self.attached;
        let waiting = Some(&mut self.waiting);
        let published = self.shared.publish(origin, Some(mailbox), message, Vec::new(), now, waiting);
        let Published { outcome, ticket, hold } = match published {
            Ok(published) => published,
            Err(Blocked { message, until }) => {
                let mut until = Box::pin(until.notified_owned());
                until.as_mut().enable();
                // A copy, so that it does not keep the read buffer.
                let message = message.clone();
                self.blocked = Some(Stopped { message, answer, until, retry_at: now + BLOCKED_RETRY });
                return;
            }
        };
        if let PublishOutcome::Routed(routed) = outcome {
            self.pressure |= routed.pressure;
        }
        self.waiting_until = now + self.shared.config.publish_wait;
        let Some(reply) = self.session.published(answer, ack_reason(outcome)) else {
            return;
        };
        let gate = Gate { ticket, hold };
        if self.waiting.is_empty() {
            self.acks.push(reply, gate);
        } else {
            self.deferred = Some((reply, gate));
        }
    }

    /// Offers the message again that a hook had no room for.
    fn offer_again(&mut self, now: Instant) -> Result<(), End> {
        if let Some(Stopped { message, answer, .. }) = self.blocked.take() {
            self.last_read = now;
            self.publish(message, answer, now);
        }
        self.process(now)
    }

    /// Sends the acknowledgements whose time has come, in order.
    fn release_acks(&mut self) -> Result<(), End> {
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
        Ok(())
    }

    fn reply(&mut self, reply: Reply) {
        let out = &mut self.io.outbound;
        let encoded = match reply {
            Reply::PubAck(packet_id, reason) => self.encoder.puback(out, packet_id, reason),
            Reply::PubRec(packet_id, reason) => self.encoder.pubrec(out, packet_id, reason),
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
        let result = match ack {
            Ack::Acknowledged(packet_id) => mailbox.acknowledged(packet_id),
            Ack::Completed(packet_id) => mailbox.completed(packet_id),
            Ack::Received { packet_id, failed } => mailbox.received(packet_id, failed).map(|release| {
                let reason = match release {
                    Release::Ended => return,
                    Release::Send => PublishAck2Reason::Success,
                    Release::NotFound => PublishAck2Reason::PacketIdNotFound,
                };
                let encoded = self.encoder.pubrel(&mut self.io.outbound, packet_id, reason);
                self.note_unsent(encoded);
            }),
        };
        result.map_err(|_| {
            let detail = format!("{ack:?} does not fit the QoS of the message it acknowledges");
            End::error(DisconnectReasonCode::ProtocolError, detail)
        })
    }

    fn subscribe(&mut self, subscription: Subscription) -> SubscribeAckReason {
        let Attached { mailbox, filters, client, .. } = &mut self.attached;
        let config = &self.shared.config;
        let known = filters.contains(&subscription.filter);
        if !known && filters.len() >= config.max_subscriptions_per_session {
            return SubscribeAckReason::QuotaExceeded;
        }
        let mut subscription = subscription;
        match self.shared.authorize(client, &subscription.filter, subscription.options.qos) {
            Ok(granted) => subscription.options.qos = granted,
            Err(reason) => return subscribe_code(reason),
        }
        let options = subscription.options;
        let replay = match options.retain_handling {
            RetainHandling::AtSubscribe => true,
            RetainHandling::AtSubscribeNew => !known,
            RetainHandling::NoAtSubscribe => false,
        };
        // Subscribed first: what is published from now on comes by itself, what was before is found.
        self.shared.subscribe(mailbox, &subscription);
        if replay {
            if known {
                self.replay.retain(|replay| replay.filter != subscription.filter);
            }
            self.replay.push_back(Replay {
                filter: subscription.filter.clone(),
                qos: options.qos,
                identifier: subscription.identifier,
                topics: VecDeque::new(),
                after: None,
                walked: false,
            });
        }
        filters.insert(subscription.filter);
        match options.qos {
            QoS::AtMostOnce => SubscribeAckReason::GrantedQos0,
            QoS::AtLeastOnce => SubscribeAckReason::GrantedQos1,
            QoS::ExactlyOnce => SubscribeAckReason::GrantedQos2,
        }
    }

    /// Ends the subscriptions that are not allowed any more.
    fn recheck(&mut self) {
        let Attached { shared, mailbox, client, filters, .. } = &mut self.attached;
        filters.retain(|filter| {
            let allowed = shared.authorize(client, filter, QoS::ExactlyOnce).is_ok();
            if !allowed {
                tracing::info!(client_id = %client.client_id, %filter, "a subscription is not allowed any more");
                shared.unsubscribe(mailbox, filter);
            }
            allowed
        });
        self.replay.retain(|replay| self.attached.filters.contains(&replay.filter));
    }

    /// Fetches what others want this client to get, once what was fetched before is written; true if there are more
    /// retained messages to look for.
    fn collect(&mut self, now: Instant) -> bool {
        let more = self.continue_replay(now);
        if self.io.unsent() < BACKLOG_BYTES {
            let lost = self.attached.mailbox.take(&mut self.io.outbound, now);
            self.shared.counters.messages_dropped.add(lost);
        }
        if self.io.unsent() > 0 {
            self.unsent_since.get_or_insert(now);
        }
        more
    }

    /// Goes on with the retained messages; true if there was room for more than it looked for in one go.
    fn continue_replay(&mut self, now: Instant) -> bool {
        let mut budget = REPLAY_SLICE;
        while let Some(next) = self.replay.front_mut() {
            let Some(topic) = next.topics.front() else {
                if next.walked {
                    self.replay.pop_front();
                    continue;
                }
                if budget == 0 {
                    return true;
                }
                let slice = self.shared.retained_slice(&next.filter, next.after.as_ref(), budget, now);
                budget = budget.saturating_sub(slice.visited.max(1));
                next.walked = slice.after.is_none();
                (next.topics, next.after) = (slice.topics, slice.after);
                continue;
            };
            if let Some((message, received)) = self.shared.retained_message(topic, now) {
                let delivery = Delivery {
                    qos: lower(message.qos(), next.qos),
                    retain: true,
                    identifiers: next.identifier.into_iter().collect(),
                };
                let dated = Dated { message: &message, received };
                match self.attached.mailbox.push(dated, &mut None, &delivery, now) {
                    Pushed::Accepted { .. } => self.shared.counters.messages_out.add(1),
                    // Goes on when something was written or acknowledged.
                    Pushed::Full | Pushed::Lost(Loss::Full) => return false,
                    Pushed::Lost(_) => self.shared.counters.messages_dropped.add(1),
                }
            }
            next.topics.pop_front();
        }
        false
    }

    /// Tries the waiting deliveries again; `None` when they are settled, otherwise what to wait for.
    fn await_room(&mut self, now: Instant) -> Option<Pin<Box<OwnedNotified>>> {
        while let Some(next) = self.waiting.last() {
            let mut room = Box::pin(next.mailbox.room.clone().notified_owned());
            room.as_mut().enable();
            let dated = Dated { message: &next.message, received: next.received };
            match next.mailbox.push(dated, &mut None, &next.delivery, now) {
                Pushed::Accepted { .. } => self.shared.counters.messages_out.add(1),
                Pushed::Full => return Some(room),
                Pushed::Lost(_) => self.shared.counters.messages_dropped.add(1),
            }
            self.waiting.pop();
        }
        self.settle(now);
        None
    }

    /// The publish that had to wait is done: acknowledge it. Waiting was ours, so the client's keepalive starts anew.
    fn settle(&mut self, now: Instant) {
        self.last_read = now;
        if let Some((reply, gate)) = self.deferred.take() {
            self.acks.push(reply, gate);
        }
    }

    fn is_readable(&self) -> bool {
        self.waiting.is_empty()
            && self.blocked.is_none()
            && self.io.unsent() < BACKLOG_BYTES
            && self.acks.len() < usize::from(self.shared.config.receive_maximum.get())
    }

    /// When the timer has to look next.
    fn due(&self, now: Instant) -> Instant {
        let idle = now + IDLE;
        let keepalive =
            self.keepalive.filter(|_| self.is_readable()).map(|keepalive| self.last_read + keepalive);
        let write = self.unsent_since.map(|since| since + self.shared.config.write_timeout);
        let waiting = (!self.waiting.is_empty()).then_some(self.waiting_until);
        let blocked = self.blocked.as_ref().map(|blocked| blocked.retry_at);
        [keepalive, write, waiting, blocked].into_iter().flatten().fold(idle, Instant::min)
    }

    fn overdue(&mut self, now: Instant) -> Option<End> {
        if !self.waiting.is_empty() && now >= self.waiting_until {
            for waiting in self.waiting.drain(..) {
                // Only the last one was waited for; the others may have had room for long.
                let dated = Dated { message: &waiting.message, received: waiting.received };
                match waiting.mailbox.push(dated, &mut None, &waiting.delivery, now) {
                    Pushed::Accepted { .. } => self.shared.counters.messages_out.add(1),
                    Pushed::Full => {
                        waiting.mailbox.give_up();
                        self.shared.counters.messages_dropped.add(1);
                    }
                    Pushed::Lost(_) => self.shared.counters.messages_dropped.add(1),
                }
            }
            self.settle(now);
        }
        if self.blocked.as_ref().is_some_and(|blocked| now >= blocked.retry_at)
            && let Err(end) = self.offer_again(now)
        {
            return Some(end);
        }
        let write_timeout = self.shared.config.write_timeout;
        if self.unsent_since.is_some_and(|since| now >= since + write_timeout) {
            return Some(End::lost(format!("the client took nothing for {write_timeout:?}")));
        }
        let keepalive = self.keepalive.filter(|_| self.is_readable())?;
        (now >= self.last_read + keepalive).then(|| {
            let detail = format!("nothing came for {keepalive:?}, one and a half times the keepalive");
            End::error(DisconnectReasonCode::KeepAliveTimeout, detail)
        })
    }

    /// A reply that is larger than the client takes cannot be sent (MQTT 5, section 3.1.2.11.4).
    fn note_unsent(&self, encoded: Result<(), EncodeError>) {
        if let Err(error) = encoded {
            tracing::debug!(client_id = %self.attached.mailbox.client_id, %error, "a reply was not sent");
        }
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

async fn released(hold: Option<Arc<Hold>>) {
    match hold {
        Some(hold) => hold.released.notified().await,
        None => pending().await,
    }
}

async fn unblocked(blocked: &mut Option<Stopped>) {
    match blocked {
        Some(blocked) => blocked.until.as_mut().await,
        None => pending().await,
    }
}

async fn notified(room: &mut Option<Pin<Box<OwnedNotified>>>) {
    match room {
        Some(room) => room.as_mut().await,
        None => pending().await,
    }
}
