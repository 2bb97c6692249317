//! Remote calls between two members, over HTTP/2 (RFC 9113): the caller opens one stream of the transport, on which many
//! calls run at the same time. HTTP/2 gives multiplexing, flow control per call, and cancellation.
//!
//! ```text
//! caller                                      executing node
//!   HEADERS, DATA: CallHead + body  ------>     reads both, within a budget and a deadline
//!                                   <------   HEADERS: the call has started (only if it takes a while)
//!                                   <------   DATA: OutcomeHead + body
//!   RST_STREAM: cancelled           ------>
//!                                   <------   RST_STREAM (REFUSED_STREAM): nothing was started
//! ```
//!
//! A head is a protocol buffer after its length (4 bytes, big-endian). This module knows calls as bytes with metadata: it
//! knows neither functions nor placement. It has no keep-alive of its own: the channel of the two members ends with its
//! connection, and all calls with it.

mod body;
mod connection;
mod error;
mod incoming;
mod limits;
mod load;
mod message;
mod peers;

pub use connection::Answer;
pub use error::{CallError, IncomingError, MayHaveRun, NotStarted};
pub use incoming::{Cancelled, IncomingCall, IncomingCalls, serve, serve_until};
pub use limits::CallLimits;
pub use load::CallLoad;
pub use message::{CallHead, HeadError, MAX_HEAD_BYTES, MAX_SPANS_BYTES, OutcomeHead};
pub use peers::Calls;

#[cfg(test)]
mod tests;
