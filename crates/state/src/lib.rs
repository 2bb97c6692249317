//! Durable state of a node: the store and the local replica of stateful objects.
//!
//! [`store`] is the node's one database, with one writer that commits related changes in one batch. [`objects`] keeps
//! fields of CRDT types in memory and in the store. Both share a crate since only the store's writer changes fields.
//!
//! This crate knows no functions, workflows or peers: an invocation hands over its changes as a [`store::Batch`].

mod error;
pub mod objects;
pub mod store;
