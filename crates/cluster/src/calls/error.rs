//! Errors of remote calls.

use std::time::Duration;

use super::message::HeadError;

/// A remote call without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call has not run and will not: it may be placed elsewhere.
    #[error(transparent)]
    NotStarted(#[from] NotStarted),
    /// The member may have run the call, or may be running it.
    #[error(transparent)]
    MayHaveRun(#[from] MayHaveRun),
}

/// Reasons why a call has not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotStarted {
    /// No stream to the member could be opened.
    #[error("it is not reachable: {reason}")]
    Unreachable {
        /// The error of the transport.
        reason: String,
    },
    /// The member failed or refused a short time ago.
    #[error("it failed or refused a short time ago; calls go to it again in {wait:?}")]
    BackingOff {
        /// The remaining time.
        wait: Duration,
    },
    /// The maximum of calls to the member is in flight.
    #[error("{max} calls to it are in flight, the maximum")]
    TooManyCalls {
        /// The limit.
        max: usize,
    },
    /// The member refused the call: it has too many calls or bodies in flight.
    #[error("it refused the call: it has too many calls in flight")]
    Refused,
    /// The member took none of the body for too long.
    #[error("it took no data of the call for {after:?}")]
    Stalled {
        /// See [`CallLimits::stall`](super::CallLimits::stall).
        after: Duration,
    },
    /// The head or the body of the call is over a limit.
    #[error("the call is too large for another node: {actual_bytes} bytes, at most {limit_bytes}")]
    TooLarge {
        /// The size of the head or of the body.
        actual_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The deadline passed before the call was sent.
    #[error("the time limit ended before the call was sent")]
    TimedOut,
}

/// Reasons why it is unknown if a call has run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MayHaveRun {
    /// The connection ended before the answer.
    #[error("the connection was lost before the answer")]
    ConnectionLost {
        /// True if the member had said that the call has started.
        started: bool,
    },
    /// The member gave the call up.
    #[error("it gave the call up")]
    GivenUp,
    /// The deadline passed before the answer.
    #[error("it did not answer in time")]
    TimedOut {
        /// True if the member had said that the call has started.
        started: bool,
    },
    /// The answer is invalid.
    #[error("its answer is invalid: {0}")]
    Invalid(#[from] HeadError),
}

/// A call of a member that could not be read or answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IncomingError {
    /// The caller or the connection is gone.
    #[error("the caller has cancelled the call, or its connection was lost")]
    Cancelled,
    /// The caller sent or read nothing for too long.
    #[error("the caller made no progress for {after:?}")]
    Stalled {
        /// See [`CallLimits::stall`](super::CallLimits::stall).
        after: Duration,
    },
    /// The bodies that this member is sending exceed their limit.
    #[error("the bodies from this member are over {max_bytes} bytes")]
    NoRoom {
        /// See [`CallLimits::peer_body_bytes`](super::CallLimits::peer_body_bytes).
        max_bytes: usize,
    },
    /// The head is invalid.
    #[error(transparent)]
    Head(#[from] HeadError),
}
