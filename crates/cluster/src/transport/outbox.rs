//! Frames that wait to be sent to one peer. Bounded by bytes; adding one never waits.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::clock::TransportClock;
use super::status::{LocalStatus, SentLoad};
use crate::network::frame::{self, Kind};

/// Size of one write to the stream, about.
const BATCH_BYTES: usize = 64 * 1_024;
/// Control frames that may wait; the others are sent at the next connection.
const MAX_CONTROL_FRAMES: usize = 128;

/// Memory overhead of a frame; without it, empty frames would be unbounded.
const FRAME_OVERHEAD_BYTES: usize = 32;

/// Frames that wait for the peer's writer.
pub(crate) struct Outbox {
    limit_bytes: usize,
    status: Arc<LocalStatus>,
    clock: TransportClock,
    waiting: Mutex<Waiting>,
    ready: Notify,
    writable: Notify,
}

#[derive(Default)]
struct Waiting {
    frames: VecDeque<Bytes>,
    /// Bytes of the frames that wait or are being written.
    bytes: usize,
    control: VecDeque<(Kind, Vec<u8>)>,
    ping: Option<u64>,
    pong: Option<u64>,
    sent_load: SentLoad,
    facts: Option<Bytes>,
    someone_was_refused: bool,
}

/// The next bytes to write.
pub(crate) struct Batch {
    pub(crate) bytes: BytesMut,
    data_bytes: usize,
}

impl Outbox {
    /// The load of `status` goes with other frames.
    pub(crate) fn new(limit_bytes: usize, status: Arc<LocalStatus>, clock: TransportClock) -> Self {
        let (waiting, ready, writable) = Default::default();
        Self { limit_bytes, status, clock, waiting, ready, writable }
    }

    /// Adds a frame of the node; false if the outbox is full. A frame larger than the limit fits if nothing else waits.
    pub(crate) fn try_send(&self, frame: Bytes) -> bool {
        let mut waiting = self.waiting.lock();
        let bytes = waiting.bytes.saturating_add(cost_bytes(&frame));
        if waiting.bytes > 0 && bytes > self.limit_bytes {
            waiting.someone_was_refused = true;
            return false;
        }
        waiting.bytes = bytes;
        waiting.frames.push_back(frame);
        drop(waiting);
        self.ready.notify_one();
        true
    }

    /// Adds a control frame.
    pub(crate) fn control(&self, kind: Kind, body: Vec<u8>) {
        let mut waiting = self.waiting.lock();
        if waiting.control.len() < MAX_CONTROL_FRAMES {
            waiting.control.push_back((kind, body));
        }
        drop(waiting);
        self.ready.notify_one();
    }

    /// Adds a heartbeat; it replaces one that waits.
    pub(crate) fn ping(&self, token: u64) {
        self.waiting.lock().ping = Some(token);
        self.ready.notify_one();
    }

    /// Adds the answer to a heartbeat; it replaces one that waits.
    pub(crate) fn pong(&self, token: u64) {
        self.waiting.lock().pong = Some(token);
        self.ready.notify_one();
    }

    /// Adds the facts of this node; they replace those that wait.
    pub(crate) fn facts(&self, facts: Bytes) {
        self.waiting.lock().facts = Some(facts);
        self.ready.notify_one();
    }

    /// Waits for something to write. For one writer only. Cancel-safe.
    pub(crate) async fn next(&self) -> Batch {
        loop {
            if let Some(batch) = self.take() {
                return batch;
            }
            self.ready.notified().await;
        }
    }

    /// The batch was written: its room is free again.
    pub(crate) fn written(&self, batch: &Batch) {
        let mut waiting = self.waiting.lock();
        waiting.bytes = waiting.bytes.saturating_sub(batch.data_bytes);
        if waiting.someone_was_refused && waiting.bytes <= self.limit_bytes / 2 {
            waiting.someone_was_refused = false;
            drop(waiting);
            self.writable.notify_one();
        }
    }

    /// Waits until there is room again after a frame was refused.
    pub(crate) async fn writable(&self) {
        self.writable.notified().await;
    }

    fn take(&self) -> Option<Batch> {
        let mut waiting = self.waiting.lock();
        let mut batch = Batch { bytes: BytesMut::new(), data_bytes: 0 };
        let (pong, ping) = (waiting.pong.take(), waiting.ping.take());
        for (kind, token) in [(Kind::Pong, pong), (Kind::Ping, ping)] {
            if let Some(token) = token {
                frame::put(&mut batch.bytes, kind, &token.to_be_bytes());
            }
        }
        if let Some(facts) = waiting.facts.take() {
            frame::put(&mut batch.bytes, Kind::Facts, &facts);
        }
        while batch.bytes.len() < BATCH_BYTES
            && let Some((kind, body)) = waiting.control.pop_front()
        {
            frame::put(&mut batch.bytes, kind, &body);
        }
        while batch.bytes.len() < BATCH_BYTES
            && let Some(body) = waiting.frames.pop_front()
        {
            frame::put(&mut batch.bytes, Kind::Data, &body);
            batch.data_bytes += cost_bytes(&body);
        }
        if batch.bytes.is_empty() {
            return None;
        }
        let load = self.status.load();
        if waiting.sent_load.is_due(&load, self.clock.now_ms()) {
            frame::put(&mut batch.bytes, Kind::Load, &load);
        }
        Some(batch)
    }
}

fn cost_bytes(frame: &Bytes) -> usize {
    frame.len().saturating_add(FRAME_OVERHEAD_BYTES)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use edgefaas_platform::Clock;

    use super::*;

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
