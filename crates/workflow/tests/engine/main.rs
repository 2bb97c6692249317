//! What the engine does with every task and option, on a virtual clock.

#[path = "../host/mod.rs"]
mod host;

mod calls;
mod data;
mod errors;
mod events;
mod examples;
mod flow;
mod growth;
mod limits;
mod loops;
mod random;
mod refusals;
mod retries;
mod tasks;
