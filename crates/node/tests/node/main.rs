//! Tests of a real node in this process, with real clients over real sockets.
//!
//! All tests are one program, since each program links the whole node.

mod access;
mod bad_members;
mod clusters;
mod conformance;
mod control;
mod cron;
mod dead_letters;
mod deploys;
mod durable;
mod durable_limits;
mod gateway;
mod history;
mod limits;
mod messages;
mod mqtt;
mod object_deletion;
mod object_types;
mod objects;
mod operator;
mod outgoing;
mod placed_calls;
mod ran_on;
mod requests;
mod restart;
mod reuse;
mod support;
mod trace_export;
mod traces;
mod trigger_loops;
mod upgrade;
mod workflow_calls;
mod workflow_effects;
mod workflow_order;
mod workflow_rules;
mod workflow_secrets;
mod workflow_services;
mod workflows;
