//! What the engine does with every task and option, on a virtual clock.

#[path = "../host/mod.rs"]
mod host;

mod flow;
