//! The broker over real sockets.

mod delivery;
mod hooks;
mod illegal;
mod interop;
mod leaving;
mod limits;
mod operating;
mod persistence;
mod queues;
mod raw;
mod resilience;
mod session;
mod support;
