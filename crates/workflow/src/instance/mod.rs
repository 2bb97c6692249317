//! One run of a workflow: [`Instance::advance`] takes an event and gives the actions that the host must carry out.
//!
//! An instance is plain data. It has no access to a clock, a thread or a function. The time comes with every event,
//! and the instance returns [`Action`]s. The same events at the same times lead to the same state, so an instance can
//! be rebuilt from its event log.

mod action;
mod advance;
mod authorization;
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
mod permits;
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

pub use action::{Action, Content, DocumentSource, Note, NoteKind, Outgoing};
pub use authorization::{Credentials, TokenEncoding, TokenEndpoint, TokenRequest};
pub(crate) use authorization::{unsupported_client, unsupported_grant};
pub use event::{Cut, Environment, Event, FrameId};
pub use filter::{ActiveFilter, accepts, has_attributes_of, start_filter};
pub use permits::{Effect, Permits, Refused};
pub(crate) use request::expand;
pub use request::{RequestParts, SentRequest, read_answer};
pub use rules::{ScheduleRuleError, firing_value, schedule_rule};
pub use run::NextTask;
pub use state::{Instance, Status};
pub use stored::SnapshotError;
