//! Streams between two members, whatever carries them: the transport, or memory in tests.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::OpenStreamError;

/// Bytes in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> ByteStream for T {}

/// A stream to a member. Dropping it resets the stream.
pub type MemberStream = Pin<Box<dyn ByteStream>>;

/// Opens a stream to a member, by its number.
pub type OpenStream =
    Arc<dyn Fn(u64) -> BoxFuture<'static, Result<MemberStream, OpenStreamError>> + Send + Sync>;
