//! The broker over real sockets.

mod delivery;
mod hooks;
mod illegal;
mod interop;
mod limits;
mod persistence;
mod raw;
mod resilience;
mod session;
mod support;
