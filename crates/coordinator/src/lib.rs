//! The coordinator: instances of workflows, advanced where the messages pass.
//!
//! ```text
//! start (HTTP, MQTT, call, schedule, event) --> Instance --advance--> actions --> functions, messages, waits
//!                                                  ^                                  |
//!                                                  +------------ event <--------------+
//! ```
//!
//! When a function ends, the task that ran it advances the instance and runs the next function: there is no hop through
//! a topic or a queue between two steps. An instance that waits is data in a table and holds neither an isolate nor a
//! task. `ARCHITECTURE.md` says what each file has.

mod actions;
mod callee;
mod compute;
mod coordinator;
mod discard;
mod drive;
mod ending;
mod event_log;
mod event_queue;
mod events;
mod inbox;
mod inspect;
mod instance;
mod lanes;
mod messages;
mod root;
mod run_state;
mod schedule;
mod script;
mod spans;
mod start_rules;
mod starts;
mod tell;
mod timers;
mod turn;
mod views;
mod wake;

pub use coordinator::{Coordinator, CoordinatorParts, Figures, WorkflowLimits, WorkflowReading};
pub use events::{Offered, trace_parent};
pub use inspect::ChangeError;
pub use instance::{Running, Start, input_of};
pub use root::RootLimits;
pub use schedule::run as run_schedules;
pub use views::InstanceView;
pub use wake::run as run_timers;
