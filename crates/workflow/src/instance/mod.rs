//! One run of a workflow: [`Instance::advance`] takes an event and gives the actions that the host must carry out.
//!
//! An instance is plain data. It knows no clock, no thread and no function: the time comes with every event, and
//! [`Action`]s go back. The same events at the same times give the same state again, so that an instance can be rebuilt
//! from its event log.

mod action;
mod advance;
mod begin;
mod calls;
mod depth;
mod event;
mod fault;
mod filter;
mod finish;
mod frame;
mod iterate;
mod listen;
mod listen_state;
mod memory;
mod request;
mod retry;
mod rules;
mod run;
mod scope;
mod send;
mod state;
mod stored;
mod timers;
mod work;

pub use action::{Action, Content, Note, NoteKind, Outgoing};
pub use event::{Cut, Environment, Event, FrameId};
pub use filter::{ActiveFilter, accepts, has_attributes_of, start_filter};
pub use request::{RequestParts, read_answer};
pub use rules::{ScheduleRuleError, firing_value, schedule_rule};
pub use run::NextTask;
pub use state::{Instance, Status};
pub use stored::SnapshotError;
