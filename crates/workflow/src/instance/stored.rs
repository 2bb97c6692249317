//! An instance as bytes, for snapshots in the event log: JSON of the instance and of the state of its rules.

use std::collections::BTreeMap;

use super::event::FrameId;
use super::frame::{Frame, State};
use super::memory::outputs_bytes;
use super::state::Instance;
use super::work::Work;
use crate::data::Data;
use crate::program::{NodeId, Program};
use crate::synthesizer::{self, Synthesizer};

/// A snapshot that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes are not a snapshot: damaged, or written by a version with another format.
    #[error("the snapshot of the instance is damaged, or of another version: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The snapshot names a task that the definition does not have.
    #[error(
        "the snapshot names task {node}, and the definition has {tasks} tasks: it is of another definition"
    )]
    OtherDefinition {
        /// The number of the task.
        node: NodeId,
        /// The number of tasks of the definition.
        tasks: usize,
    },
}

impl Instance {
    /// A snapshot for the event log, taken at the time `now_ms`.
    ///
    /// # Errors
    /// If the data has no JSON form, which it has by construction.
    pub fn to_bytes(&self, now_ms: u64) -> Result<Vec<u8>, serde_json::Error> {
        let rules: BTreeMap<FrameId, synthesizer::State> = self
            .synthesizers
            .iter()
            .map(|(frame, synthesizer)| (*frame, synthesizer.state(now_ms)))
            .collect();
        serde_json::to_vec(&(self, rules))
    }

    /// Approximate size of the output of [`to_bytes`](Self::to_bytes), in bytes. Shared data is written once for each
    /// use.
    pub fn written_bytes(&self) -> u64 {
        let of_frame = |frame: &Frame| {
            let variables: u64 = frame.variables.iter().map(|(_, value)| value.bytes()).sum();
            let state = match &frame.state {
                State::Fork { outputs, .. } => outputs_bytes(outputs),
                State::For { items, outputs, .. } => items.bytes() + outputs_bytes(outputs),
                State::Listen(listening) => listening.bytes(),
                _ => 0,
            };
            frame.raw.bytes() + frame.input.bytes() + variables + state
        };
        let open = self.work.iter().chain(self.fault.iter().flat_map(|fault| &fault.work));
        let work: u64 = open.filter_map(Work::data).map(|(_, data)| data.bytes()).sum();
        let rules: usize = self.synthesizers.values().map(Synthesizer::bytes).sum();
        let failed = self.fault.iter().flat_map(|fault| fault.rules.values());
        let failed: usize = failed.map(synthesizer::State::bytes).sum();
        self.input.bytes()
            + self.context.bytes()
            + work
            + (rules + failed) as u64
            + self.frames.values().map(|frame| of_frame(frame)).sum::<u64>()
    }

    /// Reads a snapshot that [`to_bytes`](Self::to_bytes) wrote. The clocks continue from `now_ms`.
    ///
    /// # Errors
    /// `Malformed` if the bytes are not a snapshot; `OtherDefinition` if `program` lacks a task that it names.
    pub fn from_bytes(bytes: &[u8], program: &Program, now_ms: u64) -> Result<Self, SnapshotError> {
        let (mut instance, rules): (Self, BTreeMap<FrameId, synthesizer::State>) =
            serde_json::from_slice(bytes)?;
        let open = instance.work.iter().chain(instance.fault.iter().flat_map(|fault| &fault.work));
        let begun = open.filter_map(|work| match work {
            Work::Enter { node, .. } | Work::Fail { node, .. } => Some(*node),
            Work::Done { .. } | Work::Due { .. } | Work::Rules => None,
        });
        let tasks = program.nodes.len();
        let mut named = instance.frames.values().filter_map(|frame| frame.node).chain(begun);
        if let Some(node) = named.find(|node| *node as usize >= tasks) {
            return Err(SnapshotError::OtherDefinition { node, tasks });
        }
        instance.calls = instance.frames.values().filter(|frame| frame.is_call()).count() as u32;
        instance.share_data();
        let held: Vec<(FrameId, u64)> =
            instance.frames.iter().map(|(id, frame)| (*id, instance.bytes_of(frame))).collect();
        for (id, bytes) in held {
            instance.hold(id, bytes);
        }
        for (frame, state) in rules {
            let Some(rule) = instance.rule_of(frame, program) else { continue };
            instance.add_rule(frame, Synthesizer::restore(rule, state, now_ms));
        }
        let failed = instance.fault.iter().flat_map(|fault| &fault.rules);
        let failed: Vec<(FrameId, usize)> = failed.map(|(id, state)| (*id, state.bytes())).collect();
        failed.into_iter().for_each(|(id, bytes)| instance.hold_rule(id, bytes));
        Ok(instance)
    }

    /// Shares data that several frames have in common, as before the snapshot was written.
    fn share_data(&mut self) {
        let ids: Vec<FrameId> = self.frames.keys().copied().collect();
        for id in ids {
            let parent = self.frames.get(&id).and_then(|frame| self.frames.get(&frame.parent?));
            let around =
                parent.map_or([Data::Null, Data::Null], |frame| [frame.input.clone(), frame.raw.clone()]);
            let Some(frame) = self.frames.get_mut(&id) else { continue };
            let all = [&around[0], &around[1], &self.input, &self.context];
            for value in [&mut frame.raw, &mut frame.input] {
                if let Some(same) = all.into_iter().find(|known| known.is_same(value)) {
                    *value = same.clone();
                }
            }
            if frame.input.is_same(&frame.raw) {
                frame.input = frame.raw.clone();
            }
        }
    }
}
