//! Frames that wait to be sent to one peer. No clock, no socket, no waiting.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::pacing::{Pacing, ProbePurpose};
use super::status::SentLoad;
use crate::network::frame::{self, Kind};

/// Size of one write to the stream, about.
const BATCH_BYTES: usize = 64 * 1_024;
/// Control frames that may wait; the others are sent at the next connection.
pub(super) const MAX_CONTROL_FRAMES: usize = 128;

/// Memory overhead of a frame; without it, empty frames would be unbounded.
const FRAME_OVERHEAD_BYTES: usize = 32;

/// Frames that wait for the peer's writer. Frames of the node are bounded by bytes, control frames by their number.
#[derive(Debug)]
pub(crate) struct OutgoingQueue {
    limit_bytes: usize,
    frames: VecDeque<Bytes>,
    /// Bytes of the frames that wait or are being written.
    bytes: usize,
    control: VecDeque<(Kind, Vec<u8>)>,
    ping: Option<u64>,
    pong: Option<u64>,
    pacing: Pacing,
    sent_load: SentLoad,
    facts: Option<Bytes>,
    someone_was_refused: bool,
}

/// The next bytes to write.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) bytes: BytesMut,
    pub(crate) data_bytes: usize,
}

impl OutgoingQueue {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            frames: VecDeque::new(),
            bytes: 0,
            control: VecDeque::new(),
            ping: None,
            pong: None,
            pacing: Pacing::default(),
            sent_load: SentLoad::default(),
            facts: None,
            someone_was_refused: false,
        }
    }

    /// Adds a frame of the node; false if the queue is full. A frame larger than the limit fits if nothing else waits.
    pub(crate) fn try_send(&mut self, frame: Bytes) -> bool {
        let bytes = self.bytes.saturating_add(cost_bytes(&frame));
        if self.bytes > 0 && bytes > self.limit_bytes {
            self.someone_was_refused = true;
            return false;
        }
        self.bytes = bytes;
        self.frames.push_back(frame);
        true
    }

    /// Adds a control frame.
    pub(crate) fn control(&mut self, kind: Kind, body: Vec<u8>) {
        if self.control.len() < MAX_CONTROL_FRAMES {
            self.control.push_back((kind, body));
        }
    }

    /// Adds a heartbeat; it replaces one that waits.
    pub(crate) fn ping(&mut self, token: u64) {
        self.ping = Some(token);
    }

    /// Adds the answer to a heartbeat; it replaces one that waits.
    pub(crate) fn pong(&mut self, token: u64) {
        self.pong = Some(token);
    }

    /// Adds the facts of this node; they replace those that wait.
    pub(crate) fn facts(&mut self, facts: Bytes) {
        self.facts = Some(facts);
    }

    /// The peer has answered a heartbeat; returns what that was for. More may be sent now.
    pub(crate) fn answered(&mut self, token: u64, round_trip_us: u64) -> ProbePurpose {
        self.pacing.answered(token, round_trip_us)
    }

    /// The next batch; `None` if nothing waits, or enough of the node's data is in flight. The load of this node goes with it
    /// if it is due.
    pub(crate) fn take(&mut self, load: &Bytes, now_us: u64) -> Option<Batch> {
        let now_ms = now_us / 1_000;
        let mut batch = Batch { bytes: BytesMut::new(), data_bytes: 0 };
        if let Some(token) = self.pong.take() {
            frame::put(&mut batch.bytes, Kind::Pong, &token.to_be_bytes());
        }
        if let Some(sent_us) = self.ping.take() {
            let token = self.pacing.heartbeat(sent_us);
            frame::put(&mut batch.bytes, Kind::Ping, &token.to_be_bytes());
        }
        if let Some(facts) = self.facts.take() {
            frame::put(&mut batch.bytes, Kind::Facts, &facts);
        }
        while batch.bytes.len() < BATCH_BYTES
            && let Some((kind, body)) = self.control.pop_front()
        {
            frame::put(&mut batch.bytes, kind, &body);
        }
        while batch.bytes.len() < BATCH_BYTES
            && self.pacing.has_room()
            && let Some(body) = self.frames.pop_front()
        {
            frame::put(&mut batch.bytes, Kind::Data, &body);
            batch.data_bytes += cost_bytes(&body);
            self.pacing.sent(body.len());
        }
        if self.pacing.needs_mark() {
            let token = self.pacing.mark(now_us);
            frame::put(&mut batch.bytes, Kind::Ping, &token.to_be_bytes());
        }
        if batch.bytes.is_empty() {
            return None;
        }
        if self.sent_load.is_due(load, now_ms) {
            frame::put(&mut batch.bytes, Kind::Load, load);
        }
        Some(batch)
    }

    /// The batch was written: its room is free again. True if a frame was refused and there is room again.
    pub(crate) fn written(&mut self, batch: &Batch) -> bool {
        self.bytes = self.bytes.saturating_sub(batch.data_bytes);
        let has_room = self.someone_was_refused && self.bytes <= self.limit_bytes / 2;
        self.someone_was_refused &= !has_room;
        has_room
    }
}

fn cost_bytes(frame: &Bytes) -> usize {
    frame.len().saturating_add(FRAME_OVERHEAD_BYTES)
}
