//! The queue of one session, shared by its connection and all publishers.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::delivery::{Dated, Delivery};
use crate::message::QoS;
use crate::moment::Moment;
use crate::monitor::Figures;
use crate::outbox::{Bounds, Copies, MayRead, Outbox, Page, Pushed, Release, Taken, Totals, WrongAck};
use crate::stats::ConnectionCounters;
use crate::topic::TopicFilter;
use crate::wal::{Entry, Progress, Transaction};
use crate::wire::Encoder;

/// A subscriber's outbox, with notifications for its connection and for publishers that wait for room in it. It lives
/// as long as its session.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub client_id: Arc<str>,
    /// The number of a session that outlives its connections.
    pub session: Option<u64>,
    /// Number of the session's subscriptions that are not shared; with one, a message cannot match twice.
    pub subscriptions: AtomicUsize,
    /// The connection has something to do: bytes to send, or a request.
    pub wake: Notify,
    /// The outbox has room again.
    pub room: Arc<Notify>,
    /// The connection has given the session back.
    pub released: Arc<Notify>,
    /// An [`EndRequest`], or 0.
    end_request: AtomicU8,
    recheck: AtomicBool,
    /// The session ends with its connection.
    forgotten: AtomicBool,
    /// Messages that found no room, or were too large for the client.
    lost: AtomicU64,
    /// Filters of the session's subscriptions, with the granted QoS. No publish looks at them.
    filters: Mutex<HashMap<TopicFilter, QoS>>,
    outbox: Mutex<Outbox>,
    /// Locked after the outbox.
    direct: Mutex<Option<Direct>>,
}

/// The socket of a connection, for publishers that [write directly](Mailbox::send_or_wake).
#[derive(Debug, Clone)]
pub(crate) struct Direct {
    pub socket: Arc<TcpStream>,
    pub counters: Arc<ConnectionCounters>,
}

/// The reason why a connection is requested to end. Of two requests the greater one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndRequest {
    /// An operator ends it.
    Administrative = 1,
    /// Another connection has come with the same client identifier.
    TakeOver = 2,
}

impl Mailbox {
    pub(crate) fn new(
        client_id: Arc<str>,
        session: Option<u64>,
        bounds: Bounds,
        totals: Arc<Totals>,
    ) -> Mailbox {
        Mailbox {
            client_id,
            session,
            subscriptions: AtomicUsize::new(0),
            wake: Notify::new(),
            room: Arc::new(Notify::new()),
            released: Arc::new(Notify::new()),
            end_request: AtomicU8::new(0),
            recheck: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            filters: Mutex::default(),
            outbox: Mutex::new(Outbox::new(session, bounds, totals)),
            direct: Mutex::default(),
        }
    }

    /// See [`Outbox::restore`].
    pub(crate) fn restore(
        &self,
        number: u64,
        weight: u32,
        expiry: Option<(Instant, u32)>,
        figures: &Arc<Figures>,
    ) {
        self.outbox.lock().restore(number, weight, expiry, figures);
    }

    /// A new connection has the session: requests to the last one are void.
    pub(crate) fn reset(&self) {
        self.end_request.store(0, Relaxed);
        self.recheck.store(false, Relaxed);
        self.forgotten.store(false, Relaxed);
    }

    /// Adds or replaces the filter of a subscription.
    pub(crate) fn add_filter(&self, filter: TopicFilter, granted: QoS) {
        self.filters.lock().insert(filter, granted);
    }

    /// Removes the filter of a subscription.
    pub(crate) fn remove_filter(&self, filter: &TopicFilter) {
        self.filters.lock().remove(filter);
    }

    /// True if the session has a subscription with this filter.
    pub(crate) fn has_filter(&self, filter: &TopicFilter) -> bool {
        self.filters.lock().contains_key(filter)
    }

    /// Number of the session's subscriptions.
    pub(crate) fn filter_count(&self) -> usize {
        self.filters.lock().len()
    }

    /// Filters of the session's subscriptions with the granted QoS, in no particular order.
    pub(crate) fn filters(&self) -> Vec<(TopicFilter, QoS)> {
        self.filters.lock().iter().map(|(filter, qos)| (filter.clone(), *qos)).collect()
    }

    /// Removes all filters.
    pub(crate) fn take_filters(&self) -> HashMap<TopicFilter, QoS> {
        std::mem::take(&mut *self.filters.lock())
    }

    /// Ends the session with its connection, which is asked to end. The caller holds the lock of the session table.
    pub(crate) fn forget_at_end(&self) {
        self.forgotten.store(true, Relaxed);
    }

    /// True if the session ends with its connection.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Relaxed)
    }

    /// Messages that found no room, or were too large for the client, since the session began or the node started.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// See [`Outbox::connect`]. With `direct`, publishers may write to the client themselves.
    pub(crate) fn connect(
        &self,
        encoder: Encoder,
        window: NonZeroU16,
        alias_maximum: u16,
        direct: Option<Direct>,
    ) {
        let mut outbox = self.outbox.lock();
        outbox.connect(encoder, window, alias_maximum);
        *self.direct.lock() = direct;
    }

    /// The connection is about to end: only it writes from now on. See [`Outbox::take_rest`].
    pub(crate) fn end_direct(&self, out: &mut BytesMut) {
        let mut outbox = self.outbox.lock();
        *self.direct.lock() = None;
        outbox.take_rest(out);
    }

    /// See [`Outbox::recheck`].
    pub(crate) fn recheck_waiting(&self, may_read: MayRead) {
        self.outbox.lock().recheck(may_read);
    }

    /// See [`Outbox::disconnect`]. Notifies publishers that wait for room.
    pub(crate) fn disconnect(&self) -> u64 {
        let mut outbox = self.outbox.lock();
        *self.direct.lock() = None;
        let lost = outbox.disconnect();
        drop(outbox);
        self.room.notify_waiters();
        lost
    }

    /// See [`Outbox::forget`].
    pub(crate) fn forget(&self) -> u64 {
        self.outbox.lock().forget()
    }

    /// Writes what was pushed to the client itself, if the client is at rest; wakes the connection if not. The write does
    /// not block.
    pub(crate) fn send_or_wake(&self, now: Instant) {
        let mut outbox = self.outbox.lock();
        let direct = self.direct.lock();
        let written = direct.as_ref().zip(outbox.lend(now)).and_then(|(direct, bytes)| {
            let written = direct.socket.try_write(bytes).ok()?;
            direct.counters.bytes_out.add(written as u64);
            Some(written)
        });
        drop(direct);
        // An error is the connection's to find.
        let is_done = written.is_some_and(|bytes| outbox.written(bytes, now));
        drop(outbox);
        if !is_done {
            self.wake.notify_one();
        }
    }

    /// See [`Outbox::push`]; wakes the connection when it has to send.
    pub(crate) fn push(
        &self,
        dated: Dated<'_>,
        copies: &mut Copies,
        delivery: &Delivery,
        figures: &Arc<Figures>,
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) -> Pushed {
        let pushed = self.push_only(dated, copies, delivery, figures, now, transaction);
        if let Pushed::Accepted { wake: true, .. } | Pushed::Over { wake: true } = pushed {
            self.wake.notify_one();
        }
        pushed
    }

    /// See [`Outbox::push`]; the caller wakes the connection, or [writes](Self::send_or_wake), when it has to send.
    pub(crate) fn push_only(
        &self,
        dated: Dated<'_>,
        copies: &mut Copies,
        delivery: &Delivery,
        figures: &Arc<Figures>,
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) -> Pushed {
        let pushed = self.outbox.lock().push(dated, copies, delivery, figures, now, transaction);
        if let Pushed::Lost(_) = pushed {
            self.lost.fetch_add(1, Relaxed);
        }
        pushed
    }

    /// See [`Outbox::take`].
    pub(crate) fn take(
        &self,
        out: &mut BytesMut,
        now: Instant,
        progress: Progress,
        transaction: &mut Transaction<'_>,
    ) -> Taken {
        let taken = self.outbox.lock().take(out, now, progress, transaction);
        if taken.awaited {
            self.room.notify_waiters();
        }
        taken
    }

    /// See [`Outbox::fetched`].
    pub(crate) fn fetched(
        &self,
        page: Page,
        entries: &[Entry],
        now: &Moment,
        transaction: &mut Transaction<'_>,
    ) {
        self.outbox.lock().fetched(page, entries, now, transaction);
    }

    /// See [`Outbox::give_up`].
    pub(crate) fn give_up(&self) {
        self.outbox.lock().give_up();
    }

    /// True if the client is connected and has room.
    pub(crate) fn is_ready(&self) -> bool {
        self.outbox.lock().is_ready()
    }

    /// True if the session queues messages while its client is not connected.
    pub(crate) fn is_stored(&self) -> bool {
        self.session.is_some()
    }

    /// See [`Outbox::restore_mark`].
    pub(crate) fn restore_mark(&self, mark: u64) {
        self.outbox.lock().restore_mark(mark);
    }

    /// See [`Outbox::mark`].
    pub(crate) fn mark(&self, transaction: &mut Transaction<'_>) {
        self.outbox.lock().mark(transaction);
    }

    /// See [`Outbox::has_room`].
    pub(crate) fn has_room(&self) -> bool {
        self.outbox.lock().has_room()
    }

    /// See [`Outbox::trim`].
    pub(crate) fn trim(&self, transaction: &mut Transaction<'_>) -> u64 {
        self.outbox.lock().trim(transaction)
    }

    /// See [`Outbox::expire`].
    pub(crate) fn expire(
        &self,
        max_messages: usize,
        now: Instant,
        transaction: &mut Transaction<'_>,
    ) -> usize {
        self.outbox.lock().expire(max_messages, now, transaction)
    }

    /// See [`Outbox::is_stored_full`].
    pub(crate) fn is_stored_full(&self, weight: usize) -> bool {
        self.session.is_some() && self.outbox.lock().is_stored_full(weight)
    }

    /// See [`Outbox::waiting`].
    pub(crate) fn waiting(&self) -> (u64, u64) {
        self.outbox.lock().waiting()
    }

    /// See [`Outbox::in_flight`].
    pub(crate) fn in_flight(&self) -> u64 {
        self.outbox.lock().in_flight()
    }

    pub(crate) fn acknowledged(
        &self,
        packet_id: NonZeroU16,
        transaction: &mut Transaction<'_>,
    ) -> Result<(), WrongAck> {
        self.outbox.lock().acknowledged(packet_id, transaction)
    }

    pub(crate) fn received(
        &self,
        packet_id: NonZeroU16,
        failed: bool,
        transaction: &mut Transaction<'_>,
    ) -> Result<Release, WrongAck> {
        self.outbox.lock().received(packet_id, failed, transaction)
    }

    pub(crate) fn completed(
        &self,
        packet_id: NonZeroU16,
        transaction: &mut Transaction<'_>,
    ) -> Result<(), WrongAck> {
        self.outbox.lock().completed(packet_id, transaction)
    }

    /// Asks the connection to end.
    pub(crate) fn end(&self, request: EndRequest) {
        self.end_request.fetch_max(request as u8, Relaxed);
        self.wake.notify_one();
    }

    /// The request to end the connection, if there is one.
    pub(crate) fn end_request(&self) -> Option<EndRequest> {
        match self.end_request.load(Relaxed) {
            0 => None,
            1 => Some(EndRequest::Administrative),
            _ => Some(EndRequest::TakeOver),
        }
    }

    /// Asks the connection to recheck its subscriptions and waiting messages: permissions have changed.
    pub(crate) fn recheck(&self) {
        self.recheck.store(true, Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn take_recheck(&self) -> bool {
        self.recheck.swap(false, Relaxed)
    }
}
