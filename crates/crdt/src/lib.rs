//! crdt
