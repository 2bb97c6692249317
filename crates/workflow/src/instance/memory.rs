//! The memory of an instance. Each frame counts the data that only it holds, so the total is known without visiting
//! the data.

use super::event::FrameId;
use super::frame::{Frame, State, Trying};
use super::listen_state::Listening;
use super::state::Instance;
use super::work::Work;
use crate::data::Data;

impl Instance {
    pub(super) fn add_frame(&mut self, frame: Frame) -> FrameId {
        self.last_frame += 1;
        let bytes = self.bytes_of(&frame);
        self.calls += u32::from(frame.is_call());
        self.frames.insert(self.last_frame, Box::new(frame));
        self.hold(self.last_frame, bytes);
        self.last_frame
    }

    pub(super) fn take_frame(&mut self, id: FrameId) -> Option<Box<Frame>> {
        let frame = self.frames.remove(&id)?;
        self.calls -= u32::from(frame.is_call());
        self.held_bytes = self.held_bytes.saturating_sub(frame.held_bytes);
        Some(frame)
    }

    /// Makes a frame that waited for a document wait for events.
    pub(super) fn wait_for_events(&mut self, id: FrameId) {
        if let Some(frame) = self.frames.get_mut(&id) {
            self.calls -= u32::from(frame.is_call());
            frame.state = State::Listen(Box::default());
            self.hold(id, size_of::<Listening>() as u64);
        }
    }

    /// Adds to the memory that a frame holds.
    pub(super) fn hold(&mut self, id: FrameId, bytes: u64) {
        if let Some(frame) = self.frames.get_mut(&id) {
            frame.held_bytes += bytes;
            self.held_bytes += bytes;
        }
    }

    /// Subtracts from the memory that a frame holds.
    pub(super) fn release(&mut self, id: FrameId, bytes: u64) {
        if let Some(frame) = self.frames.get_mut(&id) {
            let bytes = bytes.min(frame.held_bytes);
            frame.held_bytes -= bytes;
            self.held_bytes = self.held_bytes.saturating_sub(bytes);
        }
    }

    /// Memory of the data in a frame that its parent does not share, in bytes.
    pub(super) fn bytes_of(&self, frame: &Frame) -> u64 {
        /// Its place among the frames.
        const PLACE_BYTES: usize = 24;
        let around = frame.parent.and_then(|parent| self.frames.get(&parent));
        let is_known = |value: &Data| {
            let known = around.iter().flat_map(|around| [&around.input, &around.raw]);
            known.chain([&self.input, &self.context]).any(|known| value.is_shared_with(known))
        };
        let mut bytes = (size_of::<Frame>() + PLACE_BYTES + 64 * frame.variables.len()) as u64;
        if !is_known(&frame.raw) {
            bytes += frame.raw.bytes();
        }
        if !is_known(&frame.input) && !frame.input.is_shared_with(&frame.raw) {
            bytes += frame.input.bytes();
        }
        bytes
            + match &frame.state {
                State::Fork { outputs, .. } => outputs_bytes(outputs),
                State::For { items, outputs, .. } => items.bytes() + outputs_bytes(outputs),
                State::Try(_) => size_of::<Trying>() as u64,
                State::Listen(listening) => size_of::<Listening>() as u64 + listening.bytes(),
                _ => 0,
            }
    }

    /// Memory of the data in a piece of work that its parent frame does not share, in bytes.
    pub(super) fn bytes_of_work(&self, work: &Work) -> u64 {
        let Some((parent, data)) = work.data() else { return 0 };
        let frame = self.frames.get(&parent);
        let known = frame.iter().flat_map(|frame| [&frame.input, &frame.raw]);
        let mut known = known.chain([&self.input, &self.context]);
        if known.any(|known| data.is_shared_with(known)) { 0 } else { data.bytes() }
    }

    /// Estimated memory, in bytes, computed without visiting the data. Data that a task shares with its parent counts
    /// once. Events stored by the rule of a `listen` count once for each time that the rule stores them.
    pub fn bytes(&self) -> usize {
        let own = size_of::<Self>() + size_of::<Work>() * self.work.capacity();
        // What is further down goes on with what frames hold.
        let next = self.work.last().or_else(|| self.fault.as_ref()?.work.last());
        let next_bytes = next.map_or(0, |work| self.bytes_of_work(work));
        own + (self.input.bytes() + self.context.bytes() + self.held_bytes + next_bytes) as usize
    }
}

pub(super) fn outputs_bytes(outputs: &[Option<Data>]) -> u64 {
    let held: u64 = outputs.iter().flatten().map(Data::bytes).sum();
    size_of_val(outputs) as u64 + held
}
