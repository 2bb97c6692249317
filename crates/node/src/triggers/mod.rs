//! Triggers: messages, the clock and changes of objects that start functions and workflows. Each turns its event into an
//! invocation.

pub mod cron;
pub mod mqtt;
pub mod object_change;
