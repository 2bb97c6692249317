//! The binary messages of a WebSocket as one byte stream (RFC 6455, server side, without extensions).
//!
//! `tungstenite` parses and formats the frame headers. Payloads pass through in pieces, whatever the size of the frame: an MQTT
//! packet may span frames and messages, and a frame may contain several packets (MQTT 5, section 6.0, [MQTT-6.0.0-2]). The
//! gateway does not buffer a frame until it is complete (ADR 22).

use std::io::{self, Cursor};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

/// Maximum payload of a sent frame.
const MAX_SENT_BYTES: usize = 64 * 1024;
/// Free space in the input buffer before each read.
const READ_BYTES: usize = 16 * 1024;
/// Maximum payload of a control frame (section 5.5).
const MAX_CONTROL_BYTES: u64 = 125;

/// Next element of the client's input.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The decoder needs more input.
    NeedsInput,
    /// This number of bytes at the start of the input is unmasked payload.
    Payload(usize),
    /// A ping; the pong carries the same payload.
    Ping(Bytes),
    /// A pong; ignored.
    Pong,
    /// The client closes the connection with this status and reason.
    Close(Bytes),
    /// The input violates the protocol; the connection is closed with this status and reason.
    Violation(CloseCode, &'static str),
}

/// Incremental decoder of frames.
#[derive(Debug, Default)]
struct Decoder {
    /// Remaining payload bytes of the current frame.
    remaining: u64,
    mask: [u8; 4],
    /// True between the first and the final frame of a message.
    in_message: bool,
}

impl Decoder {
    /// Decodes the next element and removes it from the start of `input`; payload is unmasked and stays in `input`.
    fn next(&mut self, input: &mut BytesMut) -> Step {
        // A loop instead of recursion: a client may send any number of frames without payload.
        loop {
            if self.remaining > 0 {
                return self.payload(input);
            }
            if let Some(step) = self.header(input) {
                return step;
            }
        }
    }

    /// Unmasks the available part of the frame's payload.
    fn payload(&mut self, input: &mut BytesMut) -> Step {
        let bytes = input.len().min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        if bytes == 0 {
            return Step::NeedsInput;
        }
        unmask(&mut input[..bytes], self.mask);
        self.mask.rotate_left(bytes % 4);
        self.remaining -= bytes as u64;
        Step::Payload(bytes)
    }

    /// Decodes the header of the next frame; `None` for a data frame, which may be empty.
    fn header(&mut self, input: &mut BytesMut) -> Option<Step> {
        let mut cursor = Cursor::new(&input[..]);
        let (header, length) = match FrameHeader::parse(&mut cursor) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Some(Step::NeedsInput),
            Err(_) => return Some(Step::Violation(CloseCode::Protocol, "unknown opcode")),
        };
        let header_bytes = cursor.position() as usize;
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Some(Step::Violation(CloseCode::Protocol, "reserved bits are set"));
        }
        let Some(mask) = header.mask else {
            return Some(Step::Violation(CloseCode::Protocol, "frames of a client must be masked"));
        };
        match (header.opcode, self.in_message) {
            (OpCode::Control(control), _) => {
                if !header.is_final || length > MAX_CONTROL_BYTES {
                    return Some(Step::Violation(
                        CloseCode::Protocol,
                        "control frames must be final and have at most 125 bytes",
                    ));
                }
                let length = length as usize;
                if input.len() < header_bytes + length {
                    return Some(Step::NeedsInput);
                }
                input.advance(header_bytes);
                let mut payload = input.split_to(length);
                unmask(&mut payload, mask);
                return Some(control_step(control, payload.freeze()));
            }
            (OpCode::Data(Data::Text), false) => {
                return Some(Step::Violation(CloseCode::Unsupported, "MQTT needs binary messages"));
            }
            (OpCode::Data(Data::Binary), false) | (OpCode::Data(Data::Continue), true) => {}
            _ => {
                return Some(Step::Violation(
                    CloseCode::Protocol,
                    "unexpected opcode between the frames of a message",
                ));
            }
        }
        if length >> 63 != 0 {
            return Some(Step::Violation(CloseCode::Protocol, "the frame length exceeds 63 bits"));
        }
        input.advance(header_bytes);
        self.in_message = !header.is_final;
        (self.remaining, self.mask) = (length, mask);
        None
    }
}

fn control_step(control: Control, payload: Bytes) -> Step {
    match control {
        Control::Ping => Step::Ping(payload),
        Control::Pong => Step::Pong,
        Control::Close => match payload[..] {
            [] => Step::Close(payload),
            [high, low, ref reason @ ..] if is_status(u16::from_be_bytes([high, low])) => {
                match std::str::from_utf8(reason) {
                    Ok(_) => Step::Close(payload),
                    Err(_) => Step::Violation(CloseCode::Invalid, "the close reason is not UTF-8"),
                }
            }
            _ => Step::Violation(CloseCode::Protocol, "invalid close status"),
        },
        Control::Reserved(_) => Step::Violation(CloseCode::Protocol, "unknown opcode"),
    }
}

/// True if an endpoint may send this close status (section 7.4 and later registrations; [`CloseCode`] lacks 1014).
fn is_status(status: u16) -> bool {
    matches!(status, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

fn unmask(bytes: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([mask, mask].concat().try_into().unwrap_or_default());
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        chunk.copy_from_slice(&(u64::from_ne_bytes(word) ^ wide).to_ne_bytes());
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= mask;
    }
}

/// Appends a server frame: final and unmasked.
fn put_frame(output: &mut BytesMut, opcode: OpCode, payload: &[u8]) {
    let header = FrameHeader { opcode, ..FrameHeader::default() };
    let length = payload.len() as u64;
    output.reserve(header.len(length) + payload.len());
    // Writing to a growing buffer cannot fail.
    let _ = header.format(length, &mut (&mut *output).writer());
    output.put_slice(payload);
}

/// Byte stream over the binary messages of a client's WebSocket.
#[derive(Debug)]
pub struct PacketStream<S> {
    stream: S,
    decoder: Decoder,
    input: BytesMut,
    /// Unmasked payload bytes at the start of `input`.
    readable: usize,
    output: BytesMut,
    /// A pong must be sent before the next read. Otherwise the pongs to a client that sends only pings would accumulate.
    pong_due: bool,
    /// No further input is read.
    read_ended: bool,
    /// A close frame is in `output` or was sent; no frame may follow it.
    close_sent: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> PacketStream<S> {
    /// For a connection after the upgrade.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: Decoder::default(),
            input: BytesMut::new(),
            readable: 0,
            output: BytesMut::new(),
            pong_due: false,
            read_ended: false,
            close_sent: false,
        }
    }

    /// The underlying connection.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Queues a close frame, unless there was one, and ends reading.
    fn close(&mut self, payload: &[u8]) {
        if !self.close_sent {
            put_frame(&mut self.output, OpCode::Control(Control::Close), payload);
            self.close_sent = true;
        }
        self.read_ended = true;
    }

    /// Writes output until at most `max_remaining` bytes of it remain.
    fn poll_drain(&mut self, context: &mut Context<'_>, max_remaining: usize) -> Poll<io::Result<()>> {
        while self.output.len() > max_remaining {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.output))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn handle(&mut self, step: Step) {
        match step {
            Step::NeedsInput | Step::Pong => {}
            Step::Payload(bytes) => self.readable = bytes,
            Step::Ping(payload) => {
                if !self.close_sent {
                    put_frame(&mut self.output, OpCode::Control(Control::Pong), &payload);
                    self.pong_due = true;
                }
            }
            // The answer repeats the status without the reason.
            Step::Close(payload) => self.close(&payload[..payload.len().min(2)]),
            Step::Violation(status, reason) => {
                self.close(&[&u16::from(status).to_be_bytes(), reason.as_bytes()].concat());
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for PacketStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.readable == 0 && !this.read_ended {
            if this.pong_due {
                ready!(this.poll_drain(context, 0))?;
                ready!(Pin::new(&mut this.stream).poll_flush(context))?;
                this.pong_due = false;
            }
            let step = this.decoder.next(&mut this.input);
            if step != Step::NeedsInput {
                this.handle(step);
                continue;
            }
            this.input.reserve(READ_BYTES);
            let read = tokio_util::io::poll_read_buf(Pin::new(&mut this.stream), context, &mut this.input);
            this.read_ended = ready!(read)? == 0;
        }
        let bytes = this.readable.min(buffer.remaining());
        buffer.put_slice(&this.input[..bytes]);
        this.input.advance(bytes);
        this.readable -= bytes;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for PacketStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.close_sent {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_drain(context, MAX_SENT_BYTES))?;
        let bytes = &bytes[..bytes.len().min(MAX_SENT_BYTES)];
        put_frame(&mut this.output, OpCode::Data(Data::Binary), bytes);
        // Writes as much as possible now; later calls write the rest.
        if let Poll::Ready(Err(error)) = this.poll_drain(context, 0) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(context, 0))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    /// Sends a close frame and closes the sending side of the connection.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.close(&u16::from(CloseCode::Normal).to_be_bytes());
        ready!(this.poll_drain(context, 0))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
