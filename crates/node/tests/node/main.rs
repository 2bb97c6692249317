//! A real node in this process, spoken to by real clients over real sockets.
//!
//! One program for all of them: every further one would link the whole node once more.

mod access;
mod bad_members;
mod clusters;
mod control;
mod cron;
mod deploys;
mod durable;
mod durable_limits;
mod gateway;
mod limits;
mod mqtt;
mod object_types;
mod objects;
mod outgoing;
mod requests;
mod restart;
mod reuse;
mod support;
mod upgrade;
mod workflows;
