//! Streams to members. Each end writes to the stream that it has opened, and reads from the other end's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use edgefaas_cluster::artefacts::wire::{MESSAGE_LIMIT_BYTES, Message};
use edgefaas_cluster::{MemberStream, OpenStream, OpenStreamError};
use prost::Message as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::Traffic;

/// Messages that wait for one member. Chunks among them are bounded by the machine's window.
pub(super) const OUTBOX: usize = 512;
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The end of a stream.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamEnd {
    /// It could not be opened.
    #[error(transparent)]
    NotOpened(#[from] OpenStreamError),
    /// It broke, or a message is invalid.
    #[error(transparent)]
    Broken(#[from] io::Error),
    /// The other end has closed it.
    #[error("the member has closed it")]
    Closed,
}

/// Opens a stream and writes the messages of the outbox until it is closed.
pub(super) async fn write(
    node_id: u64,
    open: OpenStream,
    mut outbox: mpsc::Receiver<Message>,
    traffic: Arc<Traffic>,
) -> Result<(), StreamEnd> {
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
        tokio::time::timeout(WRITE_TIMEOUT, written)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        traffic.sent_bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
    }
    Ok(stream.shutdown().await?)
}

/// Reads a message.
pub(super) async fn read(stream: &mut MemberStream, traffic: &Traffic) -> Result<Message, StreamEnd> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(StreamEnd::Closed),
        Err(error) => return Err(error.into()),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_LIMIT_BYTES {
        let error = io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes"));
        return Err(error.into());
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    traffic.received_bytes.fetch_add(4 + length as u64, Ordering::Relaxed);
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    Ok(Message::decode_frame(Bytes::from(frame)).map_err(invalid)?)
}
