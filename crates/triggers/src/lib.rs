//! Triggers: MQTT messages, times and object changes that start functions and workflows. Each file turns its events into
//! invocations.

pub mod cron;
pub mod mqtt;
pub mod object_change;
