//! A function's stdout and stderr, line by line into its log.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::host::{Host, LogLevel};

/// The buffer until the next host call or the end of the run, in bytes. Output beyond it is dropped, with a warning in the
/// log.
const BUFFER_BYTES: usize = 64 << 10;

/// Buffers of the two output streams of a run.
#[derive(Clone, Default)]
pub struct LineLog {
    stdout: Arc<Mutex<Buffer>>,
    stderr: Arc<Mutex<Buffer>>,
}

#[derive(Default)]
struct Buffer {
    text: Vec<u8>,
    dropped_bytes: usize,
    /// The last panic message, kept after its lines were logged.
    panic: Option<String>,
}

impl LineLog {
    /// The stream behind stdout.
    pub fn stdout(&self) -> LineStream {
        LineStream(self.stdout.clone())
    }

    /// The stream behind stderr.
    pub fn stderr(&self) -> LineStream {
        LineStream(self.stderr.clone())
    }

    /// Hands all that was written to the log: stdout as info, stderr as error.
    pub fn flush(&self, host: &mut dyn Host) {
        for (buffer, level) in [(&self.stdout, LogLevel::Info), (&self.stderr, LogLevel::Error)] {
            let mut buffer = buffer.lock();
            if buffer.text.is_empty() && buffer.dropped_bytes == 0 {
                continue;
            }
            let text = String::from_utf8_lossy(&std::mem::take(&mut buffer.text)).into_owned();
            if let Some(start) = text.find(" panicked at ") {
                buffer.panic = Some(text[start + " panicked at ".len()..].to_owned());
            }
            for line in text.lines().filter(|line| !line.is_empty()) {
                host.log(level, line.to_owned());
            }
            let dropped_bytes = std::mem::take(&mut buffer.dropped_bytes);
            if dropped_bytes > 0 {
                host.log(LogLevel::Warn, format!("{dropped_bytes} bytes of output were dropped"));
            }
        }
    }

    /// Location and message of the panic that was written to stderr, if one was.
    pub fn panic(&self) -> Option<(String, String)> {
        let buffer = self.stderr.lock();
        let text = buffer.panic.as_deref()?;
        let (location, rest) = text.split_once('\n')?;
        let message = rest.lines().take_while(|line| !line.starts_with("note: ")).collect::<Vec<_>>();
        Some((location.trim_end_matches(':').to_owned(), message.join("\n")))
    }
}

/// The stdout or stderr stream; always ready.
#[derive(Clone)]
pub struct LineStream(Arc<Mutex<Buffer>>);

impl LineStream {
    fn append(&self, bytes: &[u8]) {
        let mut buffer = self.0.lock();
        let room = BUFFER_BYTES.saturating_sub(buffer.text.len());
        let kept = bytes.len().min(room);
        buffer.text.extend_from_slice(&bytes[..kept]);
        buffer.dropped_bytes += bytes.len() - kept;
    }
}

impl IsTerminal for LineStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LineStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[async_trait::async_trait]
impl Pollable for LineStream {
    async fn ready(&mut self) {}
}

impl OutputStream for LineStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.append(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(BUFFER_BYTES)
    }
}

impl AsyncWrite for LineStream {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        self.append(bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}
