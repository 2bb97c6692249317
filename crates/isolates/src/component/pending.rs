//! Host calls that a component waits for: resources of the function world.

use wasmtime_wasi::p2::Pollable;

use crate::event::{IncomingResponse, Reply};
use crate::host::{HostError, HostFuture};

/// A pending call of another function.
pub type PendingCall = Pending<Reply>;
/// A pending request to another server.
pub type PendingResponse = Pending<IncomingResponse>;

/// A host call that a component waits for.
pub enum Pending<T> {
    /// The call is in flight.
    Running(HostFuture<Result<T, HostError>>),
    /// Answered, and the answer not taken yet.
    Answered(Result<T, HostError>),
    /// The answer was taken.
    Taken,
}

impl<T> Pending<T> {
    /// Takes the answer. None before it is there, and after it was taken.
    pub fn take(&mut self) -> Option<Result<T, HostError>> {
        match std::mem::replace(self, Self::Taken) {
            Self::Answered(answer) => Some(answer),
            running => {
                *self = running;
                None
            }
        }
    }
}

#[async_trait::async_trait]
impl<T: Send + 'static> Pollable for Pending<T> {
    async fn ready(&mut self) {
        if let Self::Running(future) = self {
            *self = Self::Answered(future.await);
        }
    }
}
