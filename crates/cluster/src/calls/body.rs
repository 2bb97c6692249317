//! A head and its body on an HTTP/2 stream.

use std::future::poll_fn;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use edgefaas_platform::{Budget, Taken};
use h2::{RecvStream, SendStream};

use super::message::{Head, HeadError, LENGTH_BYTES, MAX_HEAD_BYTES};

/// Received pieces up to this size are copied: a piece is part of a larger buffer, which it would keep in memory.
const COPIED_BYTES: usize = 4 << 10;

/// Data up to this size is given to the connection without a wait for room in the window: the connection keeps it. A new stream has no
/// room until the task of the connection has opened it, so that a wait costs two changes of the thread and a packet of its own.
const UNRESERVED_BYTES: usize = 16 << 10;

/// The other side cannot be read or written.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The stream was reset, or the connection was lost.
    Lost(Option<h2::Error>),
    /// No progress within the limit.
    Stalled,
    /// The budget of bodies has no room.
    NoRoom,
    /// Invalid data.
    Head(HeadError),
}

impl From<h2::Error> for StreamError {
    fn from(error: h2::Error) -> Self {
        Self::Lost(Some(error))
    }
}

impl From<HeadError> for StreamError {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

/// Reads one head with its body.
pub(super) struct Reader<'a> {
    stream: &'a mut RecvStream,
    /// How long one piece may take; `None` if the caller has a deadline.
    stall: Option<Duration>,
    buffer: BytesMut,
}

impl<'a> Reader<'a> {
    pub fn new(stream: &'a mut RecvStream, stall: Option<Duration>) -> Self {
        Self { stream, stall, buffer: BytesMut::new() }
    }

    /// Reads a checked head and its body of at most `max_body_bytes`. Bodies that do not arrive with their head are charged to
    /// `budget`.
    pub async fn read<H: Head>(
        mut self,
        max_body_bytes: usize,
        budget: Option<&Budget>,
    ) -> Result<(H, Bytes, Option<Taken>), StreamError> {
        let head_bytes = loop {
            if let Some(length) = self.buffer.first_chunk::<LENGTH_BYTES>() {
                let head_bytes = u32::from_be_bytes(*length) as usize;
                if head_bytes > MAX_HEAD_BYTES {
                    return Err(HeadError::TooLong { actual_bytes: head_bytes }.into());
                }
                if self.buffer.len() >= LENGTH_BYTES + head_bytes {
                    break head_bytes;
                }
            }
            self.more(usize::MAX).await?;
        };
        self.buffer.advance(LENGTH_BYTES);
        let head = self.buffer.split_to(head_bytes).freeze();
        let head = H::decode(head).map_err(|_| HeadError::Undecodable)?;
        head.check()?;
        let body_bytes = head.body_bytes();
        if body_bytes > max_body_bytes as u64 {
            let (actual_bytes, limit_bytes) = (body_bytes, max_body_bytes);
            return Err(HeadError::BodyTooLarge { actual_bytes, limit_bytes }.into());
        }
        let body_bytes = body_bytes as usize;
        let mut taken = None;
        if self.buffer.len() < body_bytes {
            if let Some(budget) = budget {
                taken = Some(budget.take(body_bytes).ok_or(StreamError::NoRoom)?);
            }
            // The buffer grows with the data that arrives: a peer could announce a large body and send nothing.
            while self.buffer.len() < body_bytes {
                self.more(body_bytes).await?;
            }
        }
        if self.buffer.len() > body_bytes {
            return Err(HeadError::TooMuchData.into());
        }
        self.end().await?;
        Ok((head, self.buffer.freeze(), taken))
    }

    /// Appends the next piece, so that the buffer has at most `max_bytes`.
    async fn more(&mut self, max_bytes: usize) -> Result<(), StreamError> {
        let piece = self.piece().await?.ok_or(HeadError::Incomplete)?;
        if self.buffer.len() + piece.len() > max_bytes {
            return Err(HeadError::TooMuchData.into());
        }
        if self.buffer.is_empty() && piece.len() > COPIED_BYTES {
            // Without a copy, unless another call shares the buffer of the connection.
            self.buffer = BytesMut::from(piece);
        } else {
            self.buffer.extend_from_slice(&piece);
        }
        Ok(())
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, StreamError> {
        let data = poll_fn(|context| self.stream.poll_data(context));
        let data = match self.stall {
            Some(stall) => tokio::time::timeout(stall, data).await.map_err(|_| StreamError::Stalled)?,
            None => data.await,
        };
        let Some(piece) = data.transpose()? else { return Ok(None) };
        self.stream.flow_control().release_capacity(piece.len())?;
        Ok(Some(piece))
    }

    /// Reads the end of the stream: nothing follows the body.
    async fn end(&mut self) -> Result<(), StreamError> {
        while !self.stream.is_end_stream() {
            match self.piece().await? {
                None => return Ok(()),
                Some(piece) if piece.is_empty() => {}
                Some(_) => return Err(HeadError::TooMuchData.into()),
            }
        }
        Ok(())
    }
}

/// Sends the parts, the last one with the end of the stream. A large part waits for the window of the peer, at most `stall` for each
/// piece.
pub(super) async fn send(
    stream: &mut SendStream<Bytes>,
    parts: (Bytes, Bytes),
    stall: Duration,
) -> Result<(), StreamError> {
    let (first, second) = parts;
    let is_last = second.is_empty();
    send_part(stream, first, is_last, stall).await?;
    match is_last {
        true => Ok(()),
        false => send_part(stream, second, true, stall).await,
    }
}

async fn send_part(
    stream: &mut SendStream<Bytes>,
    mut data: Bytes,
    is_last: bool,
    stall: Duration,
) -> Result<(), StreamError> {
    if data.len() <= UNRESERVED_BYTES {
        return Ok(stream.send_data(data, is_last)?);
    }
    loop {
        stream.reserve_capacity(data.len());
        let mut room = stream.capacity();
        if room == 0 {
            let capacity = poll_fn(|context| stream.poll_capacity(context));
            let capacity = tokio::time::timeout(stall, capacity).await.map_err(|_| StreamError::Stalled)?;
            room = capacity.ok_or(StreamError::Lost(None))??;
        }
        let piece = data.split_to(room.min(data.len()));
        if piece.is_empty() {
            continue;
        }
        let is_end = data.is_empty();
        stream.send_data(piece, is_last && is_end)?;
        if is_end {
            return Ok(());
        }
    }
}
