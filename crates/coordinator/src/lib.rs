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
mod advance;
mod at_work;
mod callee;
mod compute;
mod coordinator;
mod delivery;
mod discard;
mod documents;
mod ending;
mod event_log;
mod event_queue;
mod function_step;
mod inbox;
mod incoming_messages;
mod instance;
mod instance_view;
mod kept_call;
mod kept_instances;
mod lifecycle;
mod manage;
mod outgoing_messages;
mod place;
mod requests;
mod root_budget;
mod roots_elsewhere;
mod rule_log;
mod run_state;
mod schedule;
mod script;
mod spans;
mod start_evaluation;
mod start_lanes;
mod start_order;
mod start_rules;
mod start_turn;
mod task_counts;
mod timer_loop;
mod timers;
mod tokens;
mod turn;

pub use coordinator::{Coordinator, CoordinatorParts, Figures, WorkflowLimits, WorkflowReading};
pub use incoming_messages::{Offered, trace_parent};
pub use instance::{Running, Start, declared_input_of, input_of};
pub use instance_view::InstanceView;
pub use kept_call::KeptCall;
pub use manage::{ChangeError, InstanceFilter, InstancesOf, Which};
pub use root_budget::RootLimits;
pub use schedule::run as run_schedules;
pub use task_counts::TaskCount;
pub use timer_loop::run as run_timers;
