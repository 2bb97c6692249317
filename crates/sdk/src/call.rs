use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::host::{Call, Host};
use crate::{HostError, Reply};

/// A call of another function in flight; a drop cancels it.
#[derive(Debug)]
#[must_use = "a call that is not waited for is given up"]
pub struct PendingCall {
    /// `None` after the answer was returned.
    call: Option<Result<Call, HostError>>,
}

impl PendingCall {
    pub(crate) fn start(host: &Host, function: &str, data: Result<Vec<u8>, HostError>) -> Self {
        Self { call: Some(data.and_then(|data| host.call(function, &data))) }
    }

    /// Waits for the answer. Earlier calls continue in the meantime.
    pub fn wait(self) -> Result<Reply, HostError> {
        match self.call {
            Some(call) => call?.wait(),
            None => panic!("the call was awaited to its end and then waited for"),
        }
    }
}

/// Panics when polled after it has returned the answer.
impl Future for PendingCall {
    type Output = Result<Reply, HostError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match self.call.as_mut().expect("a call is polled after its answer") {
            Ok(call) => std::task::ready!(call.poll(context.waker())),
            Err(refused) => Err(refused.clone()),
        };
        self.call = None;
        Poll::Ready(answer)
    }
}
