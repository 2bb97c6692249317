//! Frames that wait to be sent to one peer. Bounded by bytes; adding one never waits.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::clock::TransportClock;
use super::outgoing_queue::{Batch, OutgoingQueue};
use super::pacing::ProbePurpose;
use super::status::LocalStatus;
use crate::network::frame::Kind;

/// Frames that wait for the peer's writer: an [`OutgoingQueue`] that wakes the writer.
pub(crate) struct Outbox {
    status: Arc<LocalStatus>,
    clock: TransportClock,
    waiting: Mutex<OutgoingQueue>,
    ready: Notify,
    writable: Notify,
}

impl Outbox {
    /// The load of `status` goes with other frames.
    pub(crate) fn new(limit_bytes: usize, status: Arc<LocalStatus>, clock: TransportClock) -> Self {
        let (ready, writable) = Default::default();
        Self { status, clock, waiting: Mutex::new(OutgoingQueue::new(limit_bytes)), ready, writable }
    }

    /// Adds a frame of the node; false if the outbox is full. A frame larger than the limit fits if nothing else waits.
    pub(crate) fn try_send(&self, frame: Bytes) -> bool {
        let is_added = self.waiting.lock().try_send(frame);
        if is_added {
            self.ready.notify_one();
        }
        is_added
    }

    /// Adds a control frame.
    pub(crate) fn control(&self, kind: Kind, body: Vec<u8>) {
        self.waiting.lock().control(kind, body);
        self.ready.notify_one();
    }

    /// Adds a heartbeat; it replaces one that waits.
    pub(crate) fn ping(&self, token: u64) {
        self.waiting.lock().ping(token);
        self.ready.notify_one();
    }

    /// Adds the answer to a heartbeat; it replaces one that waits.
    pub(crate) fn pong(&self, token: u64) {
        self.waiting.lock().pong(token);
        self.ready.notify_one();
    }

    /// The peer has answered a heartbeat; returns what that was for.
    pub(crate) fn answered(&self, token: u64, round_trip_us: u64) -> ProbePurpose {
        let purpose = self.waiting.lock().answered(token, round_trip_us);
        self.ready.notify_one();
        purpose
    }

    /// Adds the facts of this node; they replace those that wait.
    pub(crate) fn facts(&self, facts: Bytes) {
        self.waiting.lock().facts(facts);
        self.ready.notify_one();
    }

    /// Waits for something to write. For one writer only. Cancel-safe.
    pub(crate) async fn next(&self) -> Batch {
        loop {
            let (load, now_us) = (self.status.load(), self.clock.now_us());
            let batch = self.waiting.lock().take(&load, now_us);
            if let Some(batch) = batch {
                return batch;
            }
            self.ready.notified().await;
        }
    }

    /// The batch was written: its room is free again.
    pub(crate) fn written(&self, batch: &Batch) {
        let has_room = self.waiting.lock().written(batch);
        if has_room {
            self.writable.notify_one();
        }
    }

    /// Waits until there is room again after a frame was refused.
    pub(crate) async fn writable(&self) {
        self.writable.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use futures_util::FutureExt;

    use edgefaas_platform::Clock;

    use super::super::outgoing_queue::MAX_CONTROL_FRAMES;
    use super::*;
    use crate::network::frame;

    fn outbox(limit_bytes: usize) -> Outbox {
        Outbox::new(limit_bytes, Arc::default(), TransportClock::new(Clock::system()))
    }

    #[tokio::test]
    async fn a_full_outbox_says_when_there_is_room_again() {
        let outbox = outbox(164);
        assert!(outbox.try_send(vec![0; 60].into()));
        assert!(outbox.try_send(vec![0; 40].into()));
        assert!(!outbox.try_send(vec![0; 1].into()));
        let batch = outbox.next().await;
        assert!(!outbox.try_send(vec![0; 1].into()), "what is being written counts");
        assert!(outbox.writable().now_or_never().is_none());
        outbox.written(&batch);
        assert!(outbox.writable().now_or_never().is_some());
        assert!(outbox.writable().now_or_never().is_none());
        assert!(outbox.try_send(vec![0; 300].into()), "a large one fits alone");
        assert!(!outbox.try_send(vec![0; 1].into()));
    }

    #[tokio::test]
    async fn the_channels_own_frames_go_first_and_are_bounded() {
        let outbox = outbox(100);
        outbox.try_send("data".into());
        for _ in 0..1_000 {
            outbox.control(Kind::Members, vec![7]);
        }
        outbox.ping(1);
        outbox.ping(2);
        outbox.pong(9);
        let batch = outbox.next().await;
        assert_eq!(batch.bytes.len(), 2 * 13 + MAX_CONTROL_FRAMES * 6 + 9);
        assert_eq!(batch.bytes.get(5 + 7), Some(&9));
        assert_eq!(batch.bytes.get(13 + 5 + 7), Some(&2));
        assert!(outbox.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn the_status_passes_what_waits_and_needs_no_room() {
        let outbox = outbox(40);
        assert!(outbox.try_send("x".into()));
        assert!(!outbox.try_send(vec![0; 40].into()), "it is full");
        outbox.status.set_load("load".into()).unwrap();
        outbox.facts("old".into());
        outbox.facts("facts".into());
        let mut expected = BytesMut::new();
        frame::put(&mut expected, Kind::Facts, b"facts");
        frame::put(&mut expected, Kind::Data, b"x");
        frame::put(&mut expected, Kind::Load, b"load");
        assert_eq!(outbox.next().await.bytes, expected);
        outbox.status.set_load("more".into()).unwrap();
        assert!(outbox.next().now_or_never().is_none(), "a load alone makes no batch");
    }
}
