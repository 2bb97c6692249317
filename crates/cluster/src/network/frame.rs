//! Frames on a stream: a 32-bit big-endian length, a byte with the kind, and as many bytes as the length
//! says, the kind counted in.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Overhead of every frame.
pub(crate) const HEADER_BYTES: usize = 5;

/// The kind of a frame. An unknown kind is skipped, so that newer versions can add some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A frame of the node; all others are control frames.
    Data,
    /// Heartbeat: 8 bytes that come back in a pong.
    Ping,
    Pong,
    Hello,
    Verdict,
    Members,
    Revocations,
    /// The peer leaves.
    Goodbye,
    /// Revocations, each signed by itself.
    RevocationSet,
    /// A copy of the receiver was refused; the address at which the copy is.
    Copied,
    /// Load of the sender.
    Load,
    /// Facts of the sender.
    Facts,
    Unknown,
}

/// The reason why no frame could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(io::Error),
    /// A frame is over the limit.
    #[error("a frame of {bytes} bytes is over the limit of {limit_bytes}")]
    TooLarge {
        /// The size that its header claims.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A frame has no kind.
    #[error("a frame has no kind")]
    Empty,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Ping => 1,
            Self::Pong => 2,
            Self::Hello => 3,
            Self::Verdict => 4,
            Self::Members => 5,
            Self::Revocations => 6,
            Self::Goodbye => 7,
            Self::RevocationSet => 8,
            Self::Copied => 9,
            Self::Load => 10,
            Self::Facts => 11,
            Self::Unknown => u8::MAX,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Data,
            1 => Self::Ping,
            2 => Self::Pong,
            3 => Self::Hello,
            4 => Self::Verdict,
            5 => Self::Members,
            6 => Self::Revocations,
            7 => Self::Goodbye,
            8 => Self::RevocationSet,
            9 => Self::Copied,
            10 => Self::Load,
            11 => Self::Facts,
            _ => Self::Unknown,
        }
    }
}

/// Appends a frame. One over 4 GiB cannot be written; the limits keep it away from here.
pub(crate) fn put(out: &mut BytesMut, kind: Kind, body: &[u8]) {
    out.reserve(HEADER_BYTES + body.len());
    out.put_u32(u32::try_from(body.len() + 1).unwrap_or(u32::MAX));
    out.put_u8(kind.code());
    out.put_slice(body);
}

/// Takes the first frame of bytes that [`put`] wrote; `None` if there is none, or only a part of one.
pub(crate) fn split(bytes: &mut Bytes) -> Option<(Kind, Bytes)> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let code = *rest.first()?;
    let length = u32::from_be_bytes(*length) as usize;
    if length == 0 || rest.len() < length {
        return None;
    }
    let mut frame = bytes.split_to(4 + length);
    Some((Kind::from_code(code), frame.split_off(HEADER_BYTES)))
}

/// Writes one frame and flushes it.
pub(crate) async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    kind: Kind,
    body: &[u8],
) -> io::Result<()> {
    let mut out = BytesMut::new();
    put(&mut out, kind, body);
    stream.write_all(&out).await?;
    stream.flush().await
}

/// Reads one frame. `progress` is called whenever bytes arrive. Not cancel-safe.
pub(crate) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    limit_bytes: usize,
    mut progress: impl FnMut(usize),
) -> Result<(Kind, Bytes), ReadError> {
    let mut length = [0; 4];
    fill(stream, &mut length, &mut progress).await?;
    let bytes = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    let body_bytes = bytes.checked_sub(1).ok_or(ReadError::Empty)?;
    if body_bytes > limit_bytes {
        return Err(ReadError::TooLarge { bytes: body_bytes, limit_bytes });
    }
    let mut kind = [0];
    fill(stream, &mut kind, &mut progress).await?;
    let mut body = vec![0; body_bytes];
    fill(stream, &mut body, &mut progress).await?;
    let [kind] = kind;
    Ok((Kind::from_code(kind), body.into()))
}

async fn fill(
    stream: &mut (impl AsyncRead + Unpin),
    mut into: &mut [u8],
    progress: &mut impl FnMut(usize),
) -> Result<(), ReadError> {
    while !into.is_empty() {
        match stream.read(into).await {
            Ok(0) => return Err(ReadError::Closed),
            Ok(count) => {
                progress(count);
                into = into.get_mut(count..).unwrap_or_default();
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(ReadError::Closed),
            Err(error) => return Err(ReadError::Io(error)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::io::Cursor;
    use proptest::prelude::*;

    use super::*;

    async fn read_all(bytes: &[u8], limit: usize) -> (Vec<(Kind, Bytes)>, ReadError) {
        let (mut stream, mut frames) = (Cursor::new(bytes), Vec::new());
        loop {
            match read(&mut stream, limit, |_| ()).await {
                Ok(frame) => frames.push(frame),
                Err(error) => return (frames, error),
            }
        }
    }

    #[tokio::test]
    async fn frames_come_out_as_they_went_in() {
        let mut out = BytesMut::new();
        put(&mut out, Kind::Data, b"hello");
        put(&mut out, Kind::Ping, &[]);
        let (frames, end) = read_all(&out, 5).await;
        assert_eq!(frames, [(Kind::Data, "hello".into()), (Kind::Ping, Bytes::new())]);
        assert!(matches!(end, ReadError::Closed));
        let (frames, end) = read_all(&out, 4).await;
        assert!(frames.is_empty());
        assert!(matches!(end, ReadError::TooLarge { bytes: 5, limit_bytes: 4 }));
        let (_, end) = read_all(&[0, 0, 0, 0], 4).await;
        assert!(matches!(end, ReadError::Empty));
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(read_all(&bytes, 64));
        }
    }
}
