//! The loop of one connection: stream, mailbox, store, hooks and timer.

use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::futures::OwnedNotified;
use tokio::time::{sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Stream;
use super::inbound_publish::unblocked;
use super::io::{Buffers, Io, read, write_or_flush};
use super::state::{ClosedHalf, Connection};
use crate::hook::Hold;
use crate::mailbox::EndRequest;
use crate::moment::Moment;
use crate::protocol::End;
use crate::wire::DisconnectReasonCode;

impl Connection<'_> {
    /// Runs until the client or the broker ends the connection. Dropping the future is a lost connection.
    pub(super) async fn run<S: Stream>(&mut self, io: &mut Io<S>, cancel: &CancellationToken) -> End {
        let end = self.until_end(io, cancel).await;
        self.finish_publish().await;
        end
    }

    /// A message that waits for room goes on waiting when its publisher has disconnected, and for no longer: the publisher
    /// may have its acknowledgement already, or get it on its next connection.
    async fn finish_publish(&mut self) {
        self.publish.take_blocked();
        while let Some(until) = self.publish.deadline() {
            let now = self.context.now();
            match self.retry_publish(&now) {
                Some(room) if Instant::now() < until => {
                    let _ = timeout_at(until.into(), room).await;
                }
                Some(_) => self.give_up_publish(&now),
                None => {}
            }
        }
    }

    /// Runs the loop until the client or the broker ends the connection.
    async fn until_end<S: Stream>(&mut self, io: &mut Io<S>, cancel: &CancellationToken) -> End {
        let mailbox = self.attached.mailbox.clone();
        let mut cancelled = pin!(cancel.cancelled());
        let mut wake = pin!(mailbox.wake.notified());
        let mut timer_at = self.due(Instant::now());
        let mut timer = pin!(sleep_until(timer_at.into()));
        let mut room: Option<Pin<Box<OwnedNotified>>> = None;
        let mut now = self.context.now();
        loop {
            if let Err(end) = self.process(&now) {
                return end;
            }
            if let Some(departure) = self.departure.take_if(|_| !self.has_unhandled) {
                return End::lost(departure.detail);
            }
            if let Err(end) = self.release_acks() {
                return end;
            }
            let replaying = match self.departure.as_ref().map(|departure| departure.half) {
                None => self.collect(&now),
                Some(ClosedHalf::Sending) => false,
                Some(ClosedHalf::Both) => {
                    self.buffers.discard();
                    false
                }
            };
            if !self.publish.awaits_room() {
                room = None;
            } else if room.is_none() {
                room = self.retry_publish(&now);
                if room.is_none() {
                    continue;
                }
            }
            let due = self.due(now.instant);
            if due < timer_at {
                timer_at = due;
                timer.as_mut().reset(due.into());
            }
            if std::mem::take(&mut self.has_pressure) {
                // Subscribers on this runtime get their turn before their queues overflow.
                tokio::task::yield_now().await;
            }
            let behind = self.context.wal.is_behind();
            if self.has_unhandled && self.is_readable() {
                // The remaining packets can be handled now, and no notification will come for them.
                continue;
            }
            let readable = self.reads();
            self.keep_alive.set_reading(readable, now.instant);
            self.buffers.settle();
            let unflushed = self.buffers.unflushed;
            let awaits_store = self.acks.awaits_store() || self.outbound.awaits_store || behind;
            let hold = self.acks.hold().cloned();
            let Io { reader, writer } = io;
            let Buffers { inbound, outbound, sent, .. } = &mut self.buffers;
            tokio::select! {
                written = write_or_flush(writer, &outbound[*sent..]), if unflushed || *sent < outbound.len() => match written {
                    Ok(0) if *sent == outbound.len() => self.buffers.unflushed = false,
                    Ok(0) => {
                        now = self.context.now();
                        if let Some(end) = self.departs("the client closed the connection".to_owned(), ClosedHalf::Both, &now) {
                            return end;
                        }
                    }
                    Ok(bytes) => {
                        if let Err(error) = io.written(&mut self.buffers, bytes).await {
                            now = self.context.now();
                            if let Some(end) = self.departs(format!("write failed: {error}"), ClosedHalf::Both, &now) {
                                return end;
                            }
                        }
                        self.context.counters.bytes_out.add(bytes as u64);
                        now = self.context.now();
                        self.outbound.unsent_since = (self.buffers.unsent() > 0).then_some(now.instant);
                    }
                    Err(error) => {
                        now = self.context.now();
                        if let Some(end) = self.departs(format!("write failed: {error}"), ClosedHalf::Both, &now) {
                            return end;
                        }
                    }
                },
                read = read(reader, inbound), if readable => match read {
                    Ok(0) => {
                        now = self.context.now();
                        let detail = "the client closed the connection without DISCONNECT";
                        if let Some(end) = self.departs(detail.to_owned(), ClosedHalf::Sending, &now) {
                            return end;
                        }
                    }
                    Ok(bytes) => {
                        self.context.counters.bytes_in.add(bytes as u64);
                        now = self.context.now();
                        if !self.is_readable() {
                            // The packets of these bytes are not handled for now, but the client is alive.
                            self.keep_alive.restart(now.instant);
                        }
                    }
                    Err(error) => {
                        now = self.context.now();
                        if let Some(end) = self.departs(format!("read failed: {error}"), ClosedHalf::Both, &now) {
                            return end;
                        }
                    }
                },
                () = wake.as_mut() => {
                    wake.set(mailbox.wake.notified());
                    match mailbox.end_request() {
                        Some(EndRequest::TakeOver) => {
                            let detail = "another connection uses the same client identifier";
                            return End::error(DisconnectReasonCode::SessionTakenOver, detail);
                        }
                        Some(EndRequest::Administrative) => {
                            let detail = "an operator ended the connection";
                            return End::error(DisconnectReasonCode::AdministrativeAction, detail);
                        }
                        None => {}
                    }
                    if mailbox.take_recheck() {
                        self.recheck();
                    }
                    now = self.context.now();
                }
                // Other tasks of this runtime have their turn in between.
                () = tokio::task::yield_now(), if replaying => now = self.context.now(),
                alive = self.acks.store_progress(), if awaits_store => {
                    if !alive {
                        return End::lost("the broker is gone");
                    }
                    now = self.context.now();
                }
                fetched = self.outbound.fetched() => {
                    now = self.context.now();
                    let (page, entries) = match fetched {
                        Ok(fetched) => fetched,
                        Err(error) => {
                            tracing::error!(client_id = %mailbox.client_id, %error, "stored messages cannot be read");
                            let detail = "the session's messages cannot be read";
                            return End::error(DisconnectReasonCode::UnspecifiedError, detail);
                        }
                    };
                    let mut transaction = self.context.wal.begin();
                    mailbox.fetched(page, &entries, &now, &mut transaction);
                }
                () = completed(hold) => now = self.context.now(),
                () = unblocked(&mut self.publish) => {
                    now = self.context.now();
                    if let Err(end) = self.offer_again(&now) {
                        return end;
                    }
                }
                () = notified(&mut room) => {
                    room = None;
                    now = self.context.now();
                }
                () = timer.as_mut() => {
                    now = self.context.now();
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

    /// Handles all deadlines that have passed.
    fn overdue(&mut self, now: &Moment) -> Option<End> {
        if let Some(departure) = self.departure.take_if(|departure| now.instant >= departure.until) {
            return Some(End::lost(departure.detail));
        }
        let publish_is_due = self.publish.deadline().is_some_and(|deadline| now.instant >= deadline);
        if publish_is_due && self.publish.awaits_room() {
            self.give_up_publish(now);
        }
        if self.throttle.lift(now.instant) {
            self.keep_alive.restart(now.instant);
        }
        if publish_is_due
            && self.publish.is_blocked()
            && let Err(end) = self.offer_again(now)
        {
            return Some(end);
        }
        let write_timeout = self.context.config.write_timeout;
        if self.outbound.unsent_since.is_some_and(|since| now.instant >= since + write_timeout) {
            return Some(End::lost(format!("the client took nothing for {write_timeout:?}")));
        }
        if !self.reads() {
            return None;
        }
        self.keep_alive.expired(now.instant).map(|timeout| {
            let detail = format!("nothing came for {timeout:?}, one and a half times the keepalive");
            End::error(DisconnectReasonCode::KeepAliveTimeout, detail)
        })
    }

    fn collect(&mut self, now: &Moment) -> bool {
        self.outbound.collect(self.context, &mut self.attached, &mut self.buffers, now)
    }
}

/// Completes when the handles of a message are completed.
async fn completed(hold: Option<Arc<Hold>>) {
    match hold {
        Some(hold) => hold.released.notified().await,
        None => pending().await,
    }
}

async fn notified(room: &mut Option<Pin<Box<OwnedNotified>>>) {
    match room {
        Some(room) => room.as_mut().await,
        None => pending().await,
    }
}
