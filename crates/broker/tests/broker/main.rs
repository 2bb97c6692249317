//! The broker over real sockets.

mod delivery;
mod hooks;
mod illegal;
mod interop;
mod limits;
mod raw;
mod session;
mod support;
