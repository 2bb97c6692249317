//! Transfer of one part of a revision over one stream between two members: the receiver names the part and an offset, the
//! holder answers with its length and the rest of its bytes.
//!
//! A request is the length of the key (one byte), the key and the offset (eight bytes, big-endian). An answer is the length
//! of the part (eight bytes), all ones for a part that the holder does not have, and the bytes from the offset.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest key of a part: `asset-` and 64 hexadecimal digits.
const MAX_KEY_BYTES: usize = 70;
/// Largest part: a deploy is one message of the control API.
const MAX_PART_BYTES: u64 = 256 << 20;
/// Bytes that are written together. Changes of objects on the same connection wait for no more than that.
const PIECE_BYTES: usize = 64 << 10;
/// The answer of a holder that does not have the part.
const MISSING: u64 = u64::MAX;
/// Time in which a piece, or the head of a message, has to arrive.
const PIECE_TIMEOUT: Duration = Duration::from_secs(10);

/// The bytes of a part that have arrived; kept when a stream breaks, for the next holder.
#[derive(Debug, Default)]
pub struct Partial {
    bytes: BytesMut,
}

/// The end of an attempt.
#[derive(Debug, thiserror::Error)]
pub enum Attempt {
    /// The holder does not have the part.
    #[error("it does not have it")]
    Missing,
    /// The bytes are not those of the digest.
    #[error("the bytes do not match the digest")]
    WrongBytes,
    /// The part is larger than any deploy.
    #[error("it has {bytes} bytes")]
    TooLarge {
        /// Its length.
        bytes: u64,
    },
    /// The stream broke, or nothing arrived for 10 s.
    #[error(transparent)]
    Broken(#[from] io::Error),
}

/// Fetches a part, from where an earlier attempt ended. Cancel-safe: `partial` has what has arrived.
pub async fn fetch(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    key: &str,
    hash: [u8; 32],
    partial: &mut Partial,
    progress: impl Fn(u16),
) -> Result<Bytes, Attempt> {
    let mut request = vec![key.len() as u8];
    request.extend_from_slice(key.as_bytes());
    request.extend_from_slice(&(partial.bytes.len() as u64).to_be_bytes());
    in_time(stream.write_all(&request)).await?;
    in_time(stream.flush()).await?;
    let mut length = [0; 8];
    in_time(stream.read_exact(&mut length)).await?;
    let total = match u64::from_be_bytes(length) {
        MISSING => return Err(Attempt::Missing),
        bytes if bytes > MAX_PART_BYTES => return Err(Attempt::TooLarge { bytes }),
        bytes => bytes as usize,
    };
    let mut piece = vec![0; PIECE_BYTES];
    while partial.bytes.len() < total {
        let wanted = (total - partial.bytes.len()).min(PIECE_BYTES);
        let count = in_time(stream.read(&mut piece[..wanted])).await?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        partial.bytes.extend_from_slice(&piece[..count]);
        progress((partial.bytes.len() as u64 * 1000 / total as u64) as u16);
    }
    let bytes = std::mem::take(&mut partial.bytes).freeze();
    match *blake3::hash(&bytes).as_bytes() == hash && bytes.len() == total {
        true => Ok(bytes),
        false => Err(Attempt::WrongBytes),
    }
}

/// Serves one request. `read` gives a part by its key.
pub async fn serve<E: From<io::Error>>(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    read: impl AsyncFnOnce(String) -> Result<Option<Bytes>, E>,
) -> Result<(), E> {
    let mut length = [0; 1];
    in_time(stream.read_exact(&mut length)).await?;
    let [length] = length;
    let mut request = vec![0; usize::from(length) + 8];
    in_time(stream.read_exact(&mut request)).await?;
    let (key, offset) = request.split_at(usize::from(length));
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= MAX_KEY_BYTES).ok_or_else(invalid)?;
    let offset = offset.try_into().map(u64::from_be_bytes).map_err(|_| invalid())?;
    let Some(part) = read(key.to_owned()).await? else {
        in_time(stream.write_all(&MISSING.to_be_bytes())).await?;
        return Ok(in_time(stream.close()).await?);
    };
    in_time(stream.write_all(&(part.len() as u64).to_be_bytes())).await?;
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(part.len());
    for piece in part[from..].chunks(PIECE_BYTES) {
        in_time(stream.write_all(piece)).await?;
        in_time(stream.flush()).await?;
    }
    Ok(in_time(stream.close()).await?)
}

async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    tokio::time::timeout(PIECE_TIMEOUT, step).await.map_err(timed_out)?
}

#[cfg(test)]
mod tests {
    use futures_util::future::join;
    use tokio_util::compat::TokioAsyncReadCompatExt;

    use super::*;

    async fn transfer(
        part: Option<Bytes>,
        hash: [u8; 32],
        partial: &mut Partial,
    ) -> Result<Bytes, Attempt> {
        let (one, other) = tokio::io::duplex(1 << 16);
        let (mut client, mut server) = (one.compat(), other.compat());
        let read = async |key: String| -> io::Result<_> {
            assert_eq!(key, "asset-1");
            Ok(part)
        };
        let (fetched, served) =
            join(fetch(&mut client, "asset-1", hash, partial, |_| ()), serve(&mut server, read)).await;
        served.unwrap();
        fetched
    }

    #[tokio::test]
    async fn a_part_arrives_also_after_a_broken_stream_and_only_with_its_digest() {
        let part: Bytes = (0..300_000_u32).map(|at| (at % 251) as u8).collect::<Vec<_>>().into();
        let hash = *blake3::hash(&part).as_bytes();
        let mut partial = Partial::default();
        partial.bytes.extend_from_slice(&part[..200_000]);
        assert_eq!(transfer(Some(part.clone()), hash, &mut partial).await.unwrap(), part);
        let empty = *blake3::hash(b"").as_bytes();
        assert_eq!(
            transfer(Some(Bytes::new()), empty, &mut Partial::default()).await.unwrap(),
            Bytes::new()
        );
        let missing = transfer(None, hash, &mut Partial::default()).await;
        assert!(matches!(missing, Err(Attempt::Missing)));
        let wrong = transfer(Some(part), empty, &mut Partial::default()).await;
        assert!(matches!(wrong, Err(Attempt::WrongBytes)));
    }

    #[tokio::test]
    async fn garbage_is_refused() {
        for request in [&[200; 300][..], &[1, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]] {
            let (mut one, other) = tokio::io::duplex(1 << 16);
            tokio::io::AsyncWriteExt::write_all(&mut one, request).await.unwrap();
            let served = serve(&mut other.compat(), async |_| -> io::Result<_> { Ok(None) }).await;
            assert_eq!(served.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
