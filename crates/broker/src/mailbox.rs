//! What the rest of the broker holds of a session.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::monitor::Figures;
use crate::outbox::{
    Bounds, Copies, Dated, Delivery, MayRead, Outbox, Page, Pushed, Release, Taken, Totals, WrongAck,
};
use crate::stored::Moment;
use crate::wal::{Entry, Progress, Transaction};
use crate::wire::Encoder;

/// A subscriber's outbox with the means to wake its connection and those who wait for room in it. It lives as long as
/// its session.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub client_id: Arc<str>,
    /// The number of a session that outlives its connections.
    pub session: Option<u64>,
    /// How many subscriptions there are that are not shared; with one, a message cannot match twice.
    pub subscriptions: AtomicUsize,
    /// The connection has something to do: bytes to send, or it was taken over.
    pub wake: Notify,
    /// There is room again.
    pub room: Arc<Notify>,
    /// The connection has given the session back.
    pub released: Arc<Notify>,
    taken_over: AtomicBool,
    kicked: AtomicBool,
    recheck: AtomicBool,
    outbox: Mutex<Outbox>,
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
            taken_over: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            recheck: AtomicBool::new(false),
            outbox: Mutex::new(Outbox::new(session, bounds, totals)),
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

    /// Another connection has the session from now on: what the last one was asked does not concern it.
    pub(crate) fn reset(&self) {
        self.taken_over.store(false, Relaxed);
        self.kicked.store(false, Relaxed);
        self.recheck.store(false, Relaxed);
    }

    /// See [`Outbox::connect`].
    pub(crate) fn connect(&self, encoder: Encoder, window: NonZeroU16, alias_maximum: u16) {
        self.outbox.lock().connect(encoder, window, alias_maximum);
    }

    /// See [`Outbox::doubt`].
    pub(crate) fn doubt(&self, may_read: MayRead) {
        self.outbox.lock().doubt(may_read);
    }

    /// See [`Outbox::disconnect`]. Whoever waits for room learns it.
    pub(crate) fn disconnect(&self) -> u64 {
        let lost = self.outbox.lock().disconnect();
        self.room.notify_waiters();
        lost
    }

    /// See [`Outbox::forget`].
    pub(crate) fn forget(&self) -> u64 {
        self.outbox.lock().forget()
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
        let pushed = self.outbox.lock().push(dated, copies, delivery, figures, now, transaction);
        if let Pushed::Accepted { wake: true, .. } | Pushed::Over { wake: true } = pushed {
            self.wake.notify_one();
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

    /// Whether the client is there and has room.
    pub(crate) fn is_ready(&self) -> bool {
        self.outbox.lock().is_ready()
    }

    /// Whether the session waits for messages while its client is not there.
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
    pub(crate) fn expire(&self, most: usize, now: Instant, transaction: &mut Transaction<'_>) -> usize {
        self.outbox.lock().expire(most, now, transaction)
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

    /// Another connection has come with the same client identifier.
    pub(crate) fn take_over(&self) {
        self.taken_over.store(true, Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn is_taken_over(&self) -> bool {
        self.taken_over.load(Relaxed)
    }

    /// The connection is to end.
    pub(crate) fn kick(&self) {
        self.kicked.store(true, Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn is_kicked(&self) -> bool {
        self.kicked.load(Relaxed)
    }

    /// Who may subscribe to what has changed.
    pub(crate) fn recheck(&self) {
        self.recheck.store(true, Relaxed);
        self.wake.notify_one();
    }

    pub(crate) fn take_recheck(&self) -> bool {
        self.recheck.swap(false, Relaxed)
    }
}
