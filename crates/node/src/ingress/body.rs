//! Reading the bodies of requests, with a bound on what all of them have in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;

/// Bytes of bodies that are on their way in, over all connections. Whole ones count as events.
pub const MAX_BODY_BYTES: usize = 64 << 20;
/// The longest time for a request's body to come in.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// What is read of a body that is not taken, and for how long: most clients look for an answer only when they have sent
/// all, and would find the connection gone.
const DRAIN_BYTES: usize = 1 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// What bodies that are on their way in have taken of [`MAX_BODY_BYTES`].
#[derive(Debug, Clone, Default)]
pub struct BodyBudget(Arc<AtomicUsize>);

/// Why there is no body.
#[derive(Debug)]
pub enum BodyError {
    /// It is over the limit.
    TooLarge {
        /// Its size; at least, where its end was not awaited.
        actual_bytes: usize,
    },
    /// All bodies together are.
    NoMemory,
    /// It took longer than [`BODY_TIMEOUT`].
    TooSlow,
    /// The connection failed, or what came is no body.
    Broken(String),
}

impl BodyBudget {
    /// Reads a body of at most `limit_bytes`. What is in memory of it is counted until it is whole.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub async fn read(
        &self,
        headers: &HeaderMap,
        mut body: Incoming,
        limit_bytes: usize,
    ) -> Result<Bytes, BodyError> {
        let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if let Some(actual_bytes) = declared.filter(|length| *length > limit_bytes) {
            // Who asks first sends nothing when the answer is no.
            if !headers.contains_key(EXPECT) {
                drain(&mut body).await;
            }
            return Err(BodyError::TooLarge { actual_bytes });
        }
        if declared == Some(0) {
            return Ok(Bytes::new());
        }
        let read = tokio::time::timeout(BODY_TIMEOUT, self.collect(&mut body, limit_bytes)).await;
        let read = read.unwrap_or(Err(BodyError::TooSlow));
        if matches!(read, Err(BodyError::TooLarge { .. } | BodyError::NoMemory)) {
            drain(&mut body).await;
        }
        read
    }

    async fn collect(&self, body: &mut Incoming, limit_bytes: usize) -> Result<Bytes, BodyError> {
        let mut taken = Taken { budget: &self.0, bytes: 0 };
        let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| BodyError::Broken(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            taken.add(data.len())?;
            if taken.bytes > limit_bytes {
                return Err(BodyError::TooLarge { actual_bytes: taken.bytes });
            }
            // Most bodies come in one piece, and need no copy.
            if taken.bytes == data.len() {
                first = data;
                continue;
            }
            rest.extend_from_slice(&std::mem::take(&mut first));
            rest.extend_from_slice(&data);
        }
        Ok(if rest.is_empty() { first } else { rest.freeze() })
    }
}

/// What one body has taken.
struct Taken<'a> {
    budget: &'a AtomicUsize,
    bytes: usize,
}

impl Taken<'_> {
    fn add(&mut self, bytes: usize) -> Result<(), BodyError> {
        self.bytes += bytes;
        let before = self.budget.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > MAX_BODY_BYTES { Err(BodyError::NoMemory) } else { Ok(()) }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.budget.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

async fn drain(body: &mut Incoming) {
    let rest = Limited::new(body, DRAIN_BYTES);
    tokio::pin!(rest);
    let reading = async { while let Some(Ok(_)) = rest.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}
