//! Open work within an instance: tasks to begin, and ends of tasks to pass on.

use serde::{Deserialize, Serialize};

use super::event::FrameId;
use crate::data::Data;
use crate::error::WorkflowError;
use crate::program::{Flow, NodeId};

/// A piece of open work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Work {
    /// Begin a task.
    Enter { parent: FrameId, slot: u32, node: NodeId, raw: Data },
    /// A task of `parent` has ended.
    Done { parent: FrameId, slot: u32, output: Data, flow: Then },
    /// A task of `parent` has failed.
    Fail { parent: FrameId, slot: u32, node: NodeId, raw: Data, error: WorkflowError },
    /// Continue with a frame whose timer is due.
    Due { frame: FrameId },
    /// Continue with the rules whose timers are due.
    Rules,
}

/// The decided next step.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) enum Then {
    Next,
    Exit,
    End,
    Goto(u32),
}

impl Work {
    /// The data of the work, and the frame to which it belongs.
    pub(super) fn data(&self) -> Option<(FrameId, &Data)> {
        match self {
            Self::Enter { parent, raw: data, .. }
            | Self::Done { parent, output: data, .. }
            | Self::Fail { parent, raw: data, .. } => Some((*parent, data)),
            Self::Due { .. } | Self::Rules => None,
        }
    }
}

impl From<Flow> for Then {
    fn from(flow: Flow) -> Self {
        match flow {
            Flow::Continue => Self::Next,
            Flow::Exit => Self::Exit,
            Flow::End => Self::End,
            Flow::Goto(position) => Self::Goto(position),
        }
    }
}
