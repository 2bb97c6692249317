//! The body of a deploy: it is received while other deploys wait, so it may not stall.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};
use tonic::Status;

/// The longest time without a byte of the app.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A body that fails with `DEADLINE_EXCEEDED` when its client sends nothing for [`STALL_TIMEOUT`].
pub(super) struct Upload<B> {
    body: B,
    /// Runs while the body is waited for.
    timer: Pin<Box<Sleep>>,
    is_waited_for: bool,
}

impl<B> Upload<B> {
    pub fn new(body: B) -> Self {
        Self { body, timer: Box::pin(sleep(STALL_TIMEOUT)), is_waited_for: false }
    }
}

impl<B> Body for Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            this.is_waited_for = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| Status::from_error(error.into()))));
        }
        if !std::mem::replace(&mut this.is_waited_for, true) {
            this.timer.as_mut().reset(Instant::now() + STALL_TIMEOUT);
        }
        ready!(this.timer.as_mut().poll(context));
        let seconds = STALL_TIMEOUT.as_secs();
        let told =
            format!("nothing of the app has arrived for {seconds} s, and other deploys wait: deploy again");
        Poll::Ready(Some(Err(Status::deadline_exceeded(told))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_received_and_one_that_stalls_fails() {
        let (sender, frames) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
        let frames = tokio_stream::wrappers::ReceiverStream::new(frames);
        let mut upload = Upload::new(StreamBody::new(frames));
        let sending = tokio::spawn(async move {
            for _ in 0..5 {
                sleep(STALL_TIMEOUT * 9 / 10).await;
                sender.send(Ok(Frame::data(Bytes::from_static(b"app")))).await.unwrap();
            }
            sender
        });
        for _ in 0..5 {
            let frame = upload.frame().await.expect("it goes on").expect("a frame");
            assert_eq!(frame.into_data().unwrap(), "app");
            // The time in which nobody reads does not count.
            sleep(STALL_TIMEOUT * 2).await;
        }
        let _sender = sending.await.unwrap();
        let since = Instant::now();
        let error = upload.frame().await.expect("it fails").expect_err("nothing comes");
        assert_eq!((error.code(), since.elapsed()), (tonic::Code::DeadlineExceeded, STALL_TIMEOUT));
    }
}
