//! What the rest of the broker holds of a connected client.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::message::Message;
use crate::outbox::{Dated, Delivery, Outbox, Pushed, Release, WrongAck};

/// A subscriber's outbox with the means to wake its connection and those who wait for room in it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    pub client_id: Arc<str>,
    /// How many subscriptions there are; with one, a message cannot match twice.
    pub subscriptions: AtomicUsize,
    /// The connection has something to do: bytes to send, or it was taken over.
    pub wake: Notify,
    /// There is room again.
    pub room: Arc<Notify>,
    taken_over: AtomicBool,
    kicked: AtomicBool,
    recheck: AtomicBool,
    outbox: Mutex<Outbox>,
}

impl Mailbox {
    pub(crate) fn new(client_id: Arc<str>, outbox: Outbox) -> Mailbox {
        Mailbox {
            client_id,
            subscriptions: AtomicUsize::new(0),
            wake: Notify::new(),
            room: Arc::new(Notify::new()),
            taken_over: AtomicBool::new(false),
            kicked: AtomicBool::new(false),
            recheck: AtomicBool::new(false),
            outbox: Mutex::new(outbox),
        }
    }

    /// See [`Outbox::push`]; wakes the connection when it has to send.
    pub(crate) fn push(
        &self,
        dated: Dated<'_>,
        owned: &mut Option<Message>,
        delivery: &Delivery,
        now: Instant,
    ) -> Pushed {
        let pushed = self.outbox.lock().push(dated, owned, delivery, now);
        if let Pushed::Accepted { wake: true, .. } = pushed {
            self.wake.notify_one();
        }
        pushed
    }

    /// Moves what is to be sent to `out` and counts what expired or did not fit meanwhile.
    pub(crate) fn take(&self, out: &mut BytesMut, now: Instant) -> u64 {
        let mut lost = 0;
        let awaited = self.outbox.lock().take(out, now, &mut lost);
        if awaited {
            self.room.notify_waiters();
        }
        lost
    }

    /// See [`Outbox::give_up`].
    pub(crate) fn give_up(&self) {
        self.outbox.lock().give_up();
    }

    pub(crate) fn acknowledged(&self, packet_id: NonZeroU16) -> Result<(), WrongAck> {
        self.outbox.lock().acknowledged(packet_id)
    }

    pub(crate) fn received(&self, packet_id: NonZeroU16, failed: bool) -> Result<Release, WrongAck> {
        self.outbox.lock().received(packet_id, failed)
    }

    pub(crate) fn completed(&self, packet_id: NonZeroU16) -> Result<(), WrongAck> {
        self.outbox.lock().completed(packet_id)
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

    /// The connection is over: whoever waits for room learns it.
    pub(crate) fn close(&self) {
        self.outbox.lock().close();
        self.room.notify_waiters();
    }
}
