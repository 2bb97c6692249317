//! Durable state of a node: the store and the local replica of stateful objects.
//!
//! [`store`] is the one database, with one writer that commits what belongs together in one batch. [`objects`] keeps fields
//! of CRDT types in memory and in the store. They share a crate since only the store's writer changes fields.
//!
//! This crate knows no function, no workflow and no peer: what an invocation changed comes as a [`store::Batch`].

mod error;
pub mod objects;
pub mod store;
