//! One connection: the only module with I/O and timers.

mod acks;
mod attached;
mod handshake;
mod io;
mod packets;

use std::collections::VecDeque;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use self::acks::{Acks, Gate};
use self::attached::Attached;
use self::handshake::{Accepted, Refusal, handshake, refuse};
use self::io::{Io, read, write_or_flush};
use crate::broker::{Shared, Waiting};
use crate::client::{Peer, Transport};
use crate::hook::Hold;
use crate::limits::Bucket;
use crate::message::Message;
use crate::outbox::{Copies, Dated, Delivery, Loss, Page, Pushed};
use crate::session::{Answer, End, Reply, Session};
use crate::sessions::Replay;
use crate::stored::{self, Moment};
use crate::subscriptions::lower;
use crate::wal::{Entry, Progress, Space, StorageError};
use crate::wire::{Decoder, DisconnectReasonCode, EncodeError, Encoder};

/// What others want the client to get is fetched when less than this is left to be written.
const TAKE_BELOW_BYTES: usize = 16 * 1024;
/// How many retained topics are looked at in one go.
const REPLAY_SLICE: usize = 256;
/// A client that has this much to take from us is not read until it takes some.
const BACKLOG_BYTES: usize = 256 * 1024;

/// What is read of a client of which nothing is handled for now.
const STOPPED_BYTES: usize = 16 * 1024;
/// What a silent client gets on top, in which what has come already is read: it may be this node that did not look.
const LAST_LOOK: Duration = Duration::from_millis(50);

/// How long a message that a hook has no room for waits for being offered again, at most.
const BLOCKED_RETRY: Duration = Duration::from_secs(1);

/// How long what a client sent before it went may wait for its turn.
const LAST_PACKETS: Duration = Duration::from_secs(60);

/// Longest wait of the timer when nothing else is due.
const IDLE: Duration = Duration::from_secs(3600);

pub(crate) async fn serve<S>(shared: &Shared, stream: S, peer: Peer, cancel: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let entered = match peer.transport {
        Transport::Internal => Ok(None),
        _ => shared.enter(peer.address.ip()),
    };
    let _place = match entered {
        Ok(place) => place,
        Err(limit) => {
            shared.counters.connections_refused.add(1);
            tracing::debug!(peer = %peer.address, %limit, "connection refused");
            return;
        }
    };
    // One after another in memory, not side by side: there may be thousands of idle connections.
    let mut connection = match begin(shared, stream, &peer, &cancel).await {
        Begun::Accepted(connection) => connection,
        Begun::Refused(io, refusal) => return Box::pin(refuse(shared, *io, refusal, peer.address)).await,
        Begun::Cancelled => return,
    };
    let end = connection.run(&cancel).await;
    Box::pin(connection.close(end).farewell(shared)).await;
}

/// What came of a stream's first packets.
enum Begun<'a, S> {
    Accepted(Box<Connection<'a, S>>),
    Refused(Box<Io<S>>, Refusal),
    Cancelled,
}

async fn begin<'a, S>(
    shared: &'a Shared,
    stream: S,
    peer: &Peer,
    cancel: &CancellationToken,
) -> Begun<'a, S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    Box::pin(async move {
        let mut io = Io::new(stream);
        let mut decoder = Decoder::new(shared.config.max_packet_bytes as usize);
        let accepted = tokio::select! {
            accepted = handshake(shared, &mut io, &mut decoder, peer) => accepted,
            () = cancel.cancelled() => return Begun::Cancelled,
        };
        match accepted {
            Ok(accepted) => Begun::Accepted(Box::new(Connection::attach(shared, io, decoder, accepted))),
            Err(refusal) => Begun::Refused(Box::new(io), refusal),
        }
    })
    .await
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
    /// How fast the client may publish.
    rate: Option<Bucket>,
    /// It was faster: nothing is read before then.
    slowed_until: Option<Instant>,
    /// The session's messages wait for the store.
    awaits_store: bool,
    /// Messages of the session that are fetched from the store.
    fetching: Option<Fetching>,
    last_read: Instant,
    /// Whether the client was read the last time.
    reading: bool,
    /// Nothing came for the keepalive; what may have come meanwhile is looked for once more.
    silent: bool,
    /// There may be whole packets that were not handled.
    stopped: bool,
    /// Since when there is something to write and nothing of it was taken.
    unsent_since: Option<Instant>,
    pressure: bool,
    /// The client has gone, and some of what it sent before has still to be handled.
    gone: Option<Gone>,
}

/// How the connection ended, while the client's last packets are handled.
struct Gone {
    detail: String,
    /// When the rest of them is given up.
    until: Instant,
    /// It may still read: it has only said that it sends no more.
    listens: bool,
}

/// A message that is to be offered to the hooks again.
struct Stopped {
    message: Message,
    answer: Answer,
    until: Pin<Box<OwnedNotified>>,
    retry_at: Instant,
}

/// A part of the session's messages on its way from the store.
struct Fetching {
    page: Page,
    read: JoinHandle<Result<Vec<Entry>, StorageError>>,
}

impl<'a, S> Connection<'a, S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    fn attach(shared: &'a Shared, io: Io<S>, decoder: Decoder, accepted: Accepted<'a>) -> Self {
        let Accepted { connect, encoder, keepalive_seconds, mut attached } = accepted;
        let config = &shared.config;
        let version = connect.version;
        attached.mailbox.connect(
            Encoder::new(version, connect.maximum_packet_bytes),
            connect.receive_maximum.min(config.max_inflight),
            connect.topic_alias_maximum,
        );
        attached.doubt();
        let client = &attached.client;
        tracing::debug!(client_id = %client.client_id, peer = %client.peer, ?version, "client connected");
        shared.tell_hooks(|hook| hook.on_connected(client));
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
                attached.expiry_seconds,
                std::mem::take(&mut attached.unreleased),
            ),
            replay: std::mem::take(&mut attached.replays),
            attached,
            // One and a half times the keepalive (MQTT 5, section 3.1.2.10).
            keepalive: (keepalive_seconds > 0)
                .then(|| Duration::from_millis(1500 * u64::from(keepalive_seconds))),
            rate: (config.max_messages_per_second > 0)
                .then(|| Bucket::new(config.max_messages_per_second, config.max_messages_per_second, now)),
            slowed_until: None,
            awaits_store: false,
            fetching: None,
            waiting: Vec::new(),
            waiting_until: now,
            deferred: None,
            blocked: None,
            acks: Acks::default(),
            progress: shared.wal.watch(),
            last_read: now,
            reading: true,
            silent: false,
            stopped: false,
            unsent_since: None,
            pressure: false,
            gone: None,
        }
    }

    /// Until the client or the broker ends it.
    async fn run(&mut self, cancel: &CancellationToken) -> End {
        let end = self.until_end(cancel).await;
        self.finish_waiting().await;
        end
    }

    /// Gives the session back; what is left is to say goodbye.
    fn close(self: Box<Self>, end: End) -> Io<S> {
        let Connection { shared, mut io, mut attached, mut encoder, session, replay, .. } = *self;
        attached.unreleased = session.into_unreleased();
        attached.replays = replay;
        if !end.will {
            attached.will = None;
        }
        if let Some(seconds) = end.session_expiry_seconds {
            attached.expiry_seconds = seconds.min(shared.config.max_session_expiry_seconds);
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
        io
    }

    /// A message that waits for room goes on waiting when its publisher has gone, and for no longer: its publisher may know
    /// already that it was taken, or learn it on the next connection.
    async fn finish_waiting(&mut self) {
        self.blocked = None;
        while !self.waiting.is_empty() {
            match self.await_room(&self.shared.now()) {
                Some(room) if Instant::now() < self.waiting_until => {
                    let _ = timeout_at(self.waiting_until.into(), room).await;
                }
                _ => drop(self.overdue(&self.shared.now())),
            }
        }
    }

    async fn until_end(&mut self, cancel: &CancellationToken) -> End {
        let mailbox = self.attached.mailbox.clone();
        let mut cancelled = pin!(cancel.cancelled());
        let mut wake = pin!(mailbox.wake.notified());
        let mut timer_at = self.due(Instant::now());
        let mut timer = pin!(sleep_until(timer_at.into()));
        let mut room: Option<Pin<Box<OwnedNotified>>> = None;
        let mut now = self.shared.now();
        loop {
            if let Err(end) = self.process(&now) {
                return end;
            }
            if let Some(gone) = self.gone.take_if(|_| !self.stopped) {
                return End::lost(gone.detail);
            }
            if let Err(end) = self.release_acks() {
                return end;
            }
            let replaying = match &self.gone {
                None => self.collect(&now),
                Some(gone) => {
                    if !gone.listens {
                        self.io.discard();
                    }
                    false
                }
            };
            if self.waiting.is_empty() {
                room = None;
            } else if room.is_none() {
                room = self.await_room(&now);
                if room.is_none() {
                    continue;
                }
            }
            let due = self.due(now.instant);
            if due < timer_at {
                timer_at = due;
                timer.as_mut().reset(due.into());
            }
            if std::mem::take(&mut self.pressure) {
                // Subscribers on this runtime get their turn before their queues overflow.
                tokio::task::yield_now().await;
            }
            let behind = self.shared.wal.is_behind();
            if self.stopped && self.is_readable() {
                // What kept the rest from being handled is over, and nobody will say so again.
                continue;
            }
            let readable = self.reads();
            if readable && !self.reading {
                // It was not read meanwhile, so its silence means nothing.
                self.last_read = now.instant;
            }
            self.reading = readable;
            self.io.settle();
            let unflushed = self.io.unflushed;
            let awaits_store = self.acks.awaits_store() || self.awaits_store || behind;
            let hold = self.acks.hold().cloned();
            let Io { reader, writer, inbound, outbound, sent, .. } = &mut self.io;
            tokio::select! {
                written = write_or_flush(writer, &outbound[*sent..]), if unflushed || *sent < outbound.len() => match written {
                    Ok(0) if *sent == outbound.len() => self.io.unflushed = false,
                    Ok(0) => {
                        now = self.shared.now();
                        if let Some(end) = self.leaves("the client closed the connection".to_owned(), false, &now) {
                            return end;
                        }
                    }
                    Ok(bytes) => {
                        if let Err(error) = self.io.written(bytes).await {
                            now = self.shared.now();
                            if let Some(end) = self.leaves(format!("write failed: {error}"), false, &now) {
                                return end;
                            }
                        }
                        self.shared.counters.bytes_out.add(bytes as u64);
                        now = self.shared.now();
                        self.unsent_since = (self.io.unsent() > 0).then_some(now.instant);
                    }
                    Err(error) => {
                        now = self.shared.now();
                        if let Some(end) = self.leaves(format!("write failed: {error}"), false, &now) {
                            return end;
                        }
                    }
                },
                read = read(reader, inbound), if readable => match read {
                    Ok(0) => {
                        now = self.shared.now();
                        let detail = "the client closed the connection without DISCONNECT";
                        if let Some(end) = self.leaves(detail.to_owned(), true, &now) {
                            return end;
                        }
                    }
                    Ok(bytes) => {
                        self.shared.counters.bytes_in.add(bytes as u64);
                        now = self.shared.now();
                        if !self.is_readable() {
                            // Whatever it is, it is a sign of life, and will not be looked at for now.
                            self.last_read = now.instant;
                        }
                    }
                    Err(error) => {
                        now = self.shared.now();
                        if let Some(end) = self.leaves(format!("read failed: {error}"), false, &now) {
                            return end;
                        }
                    }
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
                    now = self.shared.now();
                }
                // The others of this runtime have their turn in between.
                () = tokio::task::yield_now(), if replaying => now = self.shared.now(),
                changed = self.progress.changed(), if awaits_store => {
                    if changed.is_err() {
                        return End::lost("the broker is gone");
                    }
                    now = self.shared.now();
                }
                fetched = fetched(&mut self.fetching) => {
                    now = self.shared.now();
                    let (page, entries) = match fetched {
                        Ok(fetched) => fetched,
                        Err(error) => {
                            tracing::error!(client_id = %mailbox.client_id, %error, "stored messages cannot be read");
                            let detail = "the session's messages cannot be read";
                            return End::error(DisconnectReasonCode::UnspecifiedError, detail);
                        }
                    };
                    let mut transaction = self.shared.wal.begin();
                    mailbox.fetched(page, &entries, &now, &mut transaction);
                }
                () = released(hold) => now = self.shared.now(),
                () = unblocked(&mut self.blocked) => {
                    now = self.shared.now();
                    if let Err(end) = self.offer_again(&now) {
                        return end;
                    }
                }
                () = notified(&mut room) => {
                    room = None;
                    now = self.shared.now();
                }
                () = timer.as_mut() => {
                    now = self.shared.now();
                    if let Some(end) = self.overdue(&now) {
                        return end;
                    }
                    timer_at = self.due(now.instant);
                    timer.as_mut().reset(timer_at.into());
                }
                () = cancelled.as_mut() => {
                    self.collect(&now);
                    return End::error(DisconnectReasonCode::ServerShuttingDown, "the server shuts down");
                }
            }
        }
    }

    /// The client is gone. What it sent before, perhaps a DISCONNECT, is handled first, as it would have been had its turn
    /// come at once.
    fn leaves(&mut self, detail: String, listens: bool, now: &Moment) -> Option<End> {
        if !self.stopped || self.io.inbound.is_empty() {
            return Some(End::lost(detail));
        }
        let until = self.gone.as_ref().map_or(now.instant + LAST_PACKETS, |gone| gone.until);
        self.gone = Some(Gone { detail, until, listens });
        None
    }

    /// Fetches what others want this client to get, once what was fetched before is written; true if there are more
    /// retained messages to look for.
    fn collect(&mut self, now: &Moment) -> bool {
        let mut more = self.continue_replay(now);
        if self.io.unsent() < TAKE_BELOW_BYTES {
            let progress = self.shared.wal.progress();
            let mut transaction = self.shared.wal.begin();
            let out = &mut self.io.outbound;
            let taken = self.attached.mailbox.take(out, now.instant, progress, &mut transaction);
            self.shared.counters.messages_dropped.add(taken.lost);
            // What was lost has left room, and nothing that is written will wake this connection for it.
            more |= taken.lost > 0 && !self.replay.is_empty();
            self.awaits_store = taken.awaits_store;
            if let Some(page) = taken.page {
                let storage = self.shared.wal.storage().clone();
                let from = stored::queue_key(page.session, page.from);
                // On a thread that may wait for the disk.
                let read =
                    tokio::task::spawn_blocking(move || storage.scan(Space::Queue, &from, page.messages));
                self.fetching = Some(Fetching { page, read });
            }
        }
        if self.io.unsent() > 0 {
            self.unsent_since.get_or_insert(now.instant);
        }
        more
    }

    /// Goes on with the retained messages; true if there was room for more than it looked for in one go.
    fn continue_replay(&mut self, now: &Moment) -> bool {
        let mut budget = REPLAY_SLICE;
        if self.shared.wal.is_behind() {
            // What is retained is stored once more for a session that is kept. It goes on when the store has got further.
            return false;
        }
        while let Some(next) = self.replay.front_mut() {
            let Some(topic) = next.topics.front() else {
                if next.walked {
                    self.replay.pop_front();
                    continue;
                }
                if budget == 0 {
                    return true;
                }
                let slice =
                    self.shared.retained_slice(&next.filter, next.after.as_ref(), budget, now.instant);
                budget = budget.saturating_sub(slice.visited.max(1));
                next.walked = slice.after.is_none();
                (next.topics, next.after) = (slice.topics, slice.after);
                continue;
            };
            if let Some((message, received)) = self.shared.retained_message(topic, now.instant) {
                let delivery = Delivery {
                    qos: lower(message.qos(), next.qos),
                    retain: true,
                    identifiers: next.identifier.into_iter().collect(),
                };
                let dated = Dated { message: &message, received };
                if self.shared.wal.is_behind() {
                    return false;
                }
                let mailbox = &self.attached.mailbox;
                if !mailbox.has_room() {
                    return false;
                }
                let mut transaction = self.shared.wal.begin();
                match mailbox.push(
                    dated,
                    &mut Copies::default(),
                    &delivery,
                    &next.figures,
                    now,
                    &mut transaction,
                ) {
                    Pushed::Accepted { .. } | Pushed::Over { .. } => {
                        self.shared.counters.messages_out.add(1);
                    }
                    Pushed::Skipped => {}
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
    fn await_room(&mut self, now: &Moment) -> Option<Pin<Box<OwnedNotified>>> {
        while let Some(next) = self.waiting.last() {
            let mut room = Box::pin(next.mailbox.room.clone().notified_owned());
            room.as_mut().enable();
            let Some((message, delivery)) = &next.message else {
                if !next.mailbox.has_room() {
                    return Some(room);
                }
                self.waiting.pop();
                continue;
            };
            let dated = Dated { message, received: next.received };
            let (shared, figures) = (self.shared, &next.figures);
            let mut transaction = shared.wal.begin();
            match next.mailbox.push(dated, &mut Copies::default(), delivery, figures, now, &mut transaction)
            {
                Pushed::Accepted { .. } | Pushed::Over { .. } => shared.counters.messages_out.add(1),
                Pushed::Skipped => {}
                Pushed::Full => return Some(room),
                Pushed::Lost(_) => {
                    figures.lost(1);
                    shared.counters.messages_dropped.add(1);
                }
            }
            if let Some((_, gate)) = &mut self.deferred {
                gate.ticket = transaction.ticket().or(gate.ticket);
            }
            self.waiting.pop();
        }
        self.settle(now.instant);
        None
    }

    /// The publish that had to wait is done: acknowledge it. Waiting was ours, so the client's keepalive starts anew.
    fn settle(&mut self, now: Instant) {
        self.last_read = now;
        if let Some((reply, gate)) = self.deferred.take() {
            self.push_ack(reply, gate);
        }
    }

    fn is_readable(&self) -> bool {
        self.waiting.is_empty()
            && self.blocked.is_none()
            && self.slowed_until.is_none()
            && !self.shared.wal.is_behind()
            && self.io.unsent() < BACKLOG_BYTES
            && self.acks.len() < usize::from(self.shared.config.receive_maximum.get())
    }

    /// Whether bytes are read: a little also while nothing is handled, so that it is noticed when the client goes.
    fn reads(&self) -> bool {
        self.gone.is_none() && (self.is_readable() || self.io.inbound.len() < STOPPED_BYTES)
    }

    /// When the timer has to look next.
    fn due(&self, now: Instant) -> Instant {
        let idle = now + IDLE;
        let keepalive =
            self.keepalive.filter(|_| self.reads()).map(|keepalive| self.silent_from(keepalive));
        let write = self.unsent_since.map(|since| since + self.shared.config.write_timeout);
        let waiting = (!self.waiting.is_empty()).then_some(self.waiting_until);
        let blocked = self.blocked.as_ref().map(|blocked| blocked.retry_at);
        let gone = self.gone.as_ref().map(|gone| gone.until);
        [keepalive, write, waiting, blocked, gone, self.slowed_until]
            .into_iter()
            .flatten()
            .fold(idle, Instant::min)
    }

    /// When the client has been silent for too long.
    fn silent_from(&self, keepalive: Duration) -> Instant {
        self.last_read + keepalive + if self.silent { LAST_LOOK } else { Duration::ZERO }
    }

    fn overdue(&mut self, now: &Moment) -> Option<End> {
        if let Some(gone) = self.gone.take_if(|gone| now.instant >= gone.until) {
            return Some(End::lost(gone.detail));
        }
        if !self.waiting.is_empty() && now.instant >= self.waiting_until {
            for waiting in self.waiting.drain(..) {
                let (shared, figures) = (self.shared, &waiting.figures);
                let mut transaction = shared.wal.begin();
                let lost = match &waiting.message {
                    // Only the last one was waited for; the others may have had room for long.
                    Some((message, delivery)) => {
                        let dated = Dated { message, received: waiting.received };
                        match waiting.mailbox.push(
                            dated,
                            &mut Copies::default(),
                            delivery,
                            figures,
                            now,
                            &mut transaction,
                        ) {
                            Pushed::Accepted { .. } | Pushed::Over { .. } => {
                                shared.counters.messages_out.add(1);
                                0
                            }
                            Pushed::Skipped => 0,
                            Pushed::Full => {
                                waiting.mailbox.give_up();
                                1
                            }
                            Pushed::Lost(_) => 1,
                        }
                    }
                    None if waiting.mailbox.has_room() => 0,
                    // The session gives its oldest messages up.
                    None => {
                        waiting.mailbox.give_up();
                        waiting.mailbox.trim(&mut transaction)
                    }
                };
                figures.lost(lost);
                shared.counters.messages_dropped.add(lost);
                if let Some((_, gate)) = &mut self.deferred {
                    gate.ticket = transaction.ticket().or(gate.ticket);
                }
            }
            self.settle(now.instant);
        }
        if self.slowed_until.is_some_and(|until| now.instant >= until) {
            self.slowed_until = None;
            // It was not read meanwhile, so its silence means nothing.
            self.last_read = now.instant;
        }
        if self.blocked.as_ref().is_some_and(|blocked| now.instant >= blocked.retry_at)
            && let Err(end) = self.offer_again(now)
        {
            return Some(end);
        }
        let write_timeout = self.shared.config.write_timeout;
        if self.unsent_since.is_some_and(|since| now.instant >= since + write_timeout) {
            return Some(End::lost(format!("the client took nothing for {write_timeout:?}")));
        }
        let keepalive = self.keepalive.filter(|_| self.reads())?;
        let is_silent = now.instant >= self.silent_from(keepalive);
        if is_silent && !std::mem::replace(&mut self.silent, true) {
            return None;
        }
        is_silent.then(|| {
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

async fn fetched(fetching: &mut Option<Fetching>) -> Result<(Page, Vec<Entry>), StorageError> {
    let Some(Fetching { page, read }) = fetching else { return pending().await };
    let (page, read) = (*page, read.await);
    *fetching = None;
    match read {
        Ok(entries) => Ok((page, entries?)),
        // The runtime stops.
        Err(_) => pending().await,
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
