//! Streams to members. Each end writes to the stream that it has opened, and reads from the other end's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use edgefaas_cluster::artefacts::wire::{MESSAGE_LIMIT_BYTES, Message};
use futures_util::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use prost::Message as _;
use tokio::sync::mpsc;

/// Messages that wait for one member. Chunks among them are bounded by the machine's window.
pub(super) const OUTBOX: usize = 512;
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream between two members.
pub trait PeerIo: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> PeerIo for S {}

/// Opens a stream to a member, within a time limit of its own.
pub type OpenStream =
    Arc<dyn Fn(u64) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn PeerIo>>> + Send>> + Send + Sync>;

/// Opens a stream and writes the messages of the outbox until it is closed.
pub(super) async fn write(
    node_id: u64,
    open: OpenStream,
    mut outbox: mpsc::Receiver<Message>,
) -> io::Result<()> {
    let mut stream = open(node_id).await?;
    while let Some(message) = outbox.recv().await {
        let len = message.encoded_len();
        let mut frame = BytesMut::with_capacity(4 + len);
        frame.put_u32(len as u32);
        message.encode(&mut frame).map_err(io::Error::other)?;
        let written = async {
            stream.write_all(&frame).await?;
            stream.flush().await
        };
        tokio::time::timeout(WRITE_TIMEOUT, written).await??;
    }
    stream.close().await
}

/// Reads a message; `None` at the end of the stream.
///
/// # Errors
/// The stream broke, or the message is invalid.
pub(super) async fn read(stream: &mut Box<dyn PeerIo>) -> io::Result<Option<Message>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length).await {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_LIMIT_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    Message::decode_frame(Bytes::from(frame)).map(Some).map_err(invalid)
}
