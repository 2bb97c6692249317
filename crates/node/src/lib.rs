//! node

pub mod control;
pub mod manifest;
