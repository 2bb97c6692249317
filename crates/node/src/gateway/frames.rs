//! The binary messages of a WebSocket as one stream of bytes (RFC 6455, the server's side, without extensions).
//!
//! Headers are read and written by `tungstenite`. Payloads pass through in pieces, whatever the size of their frame: packets may
//! span frames and messages and share them (MQTT 5, section 6.0, [MQTT-6.0.0-2]), and no frame is kept until it is
//! complete (ADR 22).

use std::io::{self, Cursor};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

/// Most that is put into one frame.
const MAX_SENT_BYTES: usize = 64 * 1024;
/// What is read at a time.
const READ_BYTES: usize = 16 * 1024;
/// Payload of a control frame (section 5.5).
const MAX_CONTROL_BYTES: u64 = 125;

/// What comes next in what a client sent.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Nothing before more is there.
    Starved,
    /// So many bytes at the start of the input are payload, and can be read.
    Payload(usize),
    /// To be answered with the same payload.
    Ping(Bytes),
    /// Of no meaning.
    Pong,
    /// The client closes, with what it says about that.
    Close(Bytes),
    /// The client is disconnected with this status and reason.
    Wrong(CloseCode, &'static str),
}

/// Takes frames apart.
#[derive(Debug, Default)]
struct Decoder {
    /// Bytes of the frame that are still to come.
    left: u64,
    mask: [u8; 4],
    /// A message has begun whose final frame has not.
    in_message: bool,
}

impl Decoder {
    /// Takes the next step off the start of `input`; of payload only the mask, in place.
    fn next(&mut self, input: &mut BytesMut) -> Step {
        // A loop: a client may send any number of frames without payload.
        loop {
            if self.left > 0 {
                return self.payload(input);
            }
            if let Some(step) = self.header(input) {
                return step;
            }
        }
    }

    /// The part of the frame's payload that has come.
    fn payload(&mut self, input: &mut BytesMut) -> Step {
        let bytes = input.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if bytes == 0 {
            return Step::Starved;
        }
        unmask(&mut input[..bytes], self.mask);
        self.mask.rotate_left(bytes % 4);
        self.left -= bytes as u64;
        Step::Payload(bytes)
    }

    /// Reads the header of the next frame; `None` if a frame of data begins, which may be empty.
    fn header(&mut self, input: &mut BytesMut) -> Option<Step> {
        let mut cursor = Cursor::new(&input[..]);
        let (header, length) = match FrameHeader::parse(&mut cursor) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => return Some(Step::Starved),
            Err(_) => return Some(Step::Wrong(CloseCode::Protocol, "there is no such frame")),
        };
        let header_bytes = cursor.position() as usize;
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Some(Step::Wrong(CloseCode::Protocol, "reserved bits are set"));
        }
        let Some(mask) = header.mask else {
            return Some(Step::Wrong(CloseCode::Protocol, "a client masks its frames"));
        };
        match (header.opcode, self.in_message) {
            (OpCode::Control(control), _) => {
                if !header.is_final || length > MAX_CONTROL_BYTES {
                    return Some(Step::Wrong(CloseCode::Protocol, "control frames are short and whole"));
                }
                let length = length as usize;
                if input.len() < header_bytes + length {
                    return Some(Step::Starved);
                }
                input.advance(header_bytes);
                let mut payload = input.split_to(length);
                unmask(&mut payload, mask);
                return Some(control_step(control, payload.freeze()));
            }
            (OpCode::Data(Data::Text), false) => {
                return Some(Step::Wrong(CloseCode::Unsupported, "MQTT comes in binary messages"));
            }
            (OpCode::Data(Data::Binary), false) | (OpCode::Data(Data::Continue), true) => {}
            _ => {
                return Some(Step::Wrong(CloseCode::Protocol, "this frame does not follow the one before"));
            }
        }
        if length >> 63 != 0 {
            return Some(Step::Wrong(CloseCode::Protocol, "the length is none"));
        }
        input.advance(header_bytes);
        self.in_message = !header.is_final;
        (self.left, self.mask) = (length, mask);
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
                    Err(_) => Step::Wrong(CloseCode::Invalid, "the reason is no UTF-8"),
                }
            }
            _ => Step::Wrong(CloseCode::Protocol, "there is no such status"),
        },
        Control::Reserved(_) => Step::Wrong(CloseCode::Protocol, "there is no such frame"),
    }
}

/// Whether an endpoint may close with this status (section 7.4, and those registered since; [`CloseCode`] lacks 1014).
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

/// Appends a frame of a server: final and without a mask.
fn put_frame(output: &mut BytesMut, opcode: OpCode, payload: &[u8]) {
    let header = FrameHeader { opcode, ..FrameHeader::default() };
    let length = payload.len() as u64;
    output.reserve(header.len(length) + payload.len());
    // A buffer that grows takes all.
    let _ = header.format(length, &mut (&mut *output).writer());
    output.put_slice(payload);
}

/// The bytes in the binary messages of a WebSocket that a client has opened.
#[derive(Debug)]
pub struct PacketStream<S> {
    stream: S,
    decoder: Decoder,
    input: BytesMut,
    /// At the start of the input.
    readable: usize,
    output: BytesMut,
    /// The answer to a ping has to leave before more is read, or pings would pile up.
    pong_due: bool,
    /// Nothing more is read.
    ended: bool,
    /// Nothing more is sent behind the close.
    closed: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> PacketStream<S> {
    /// Over a connection that has switched protocols.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            decoder: Decoder::default(),
            input: BytesMut::new(),
            readable: 0,
            output: BytesMut::new(),
            pong_due: false,
            ended: false,
            closed: false,
        }
    }

    /// What the frames go over.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    fn close(&mut self, payload: &[u8]) {
        if !self.closed {
            put_frame(&mut self.output, OpCode::Control(Control::Close), payload);
            self.closed = true;
        }
        self.ended = true;
    }

    /// Sends what is to be sent, down to so many bytes.
    fn poll_drain(&mut self, context: &mut Context<'_>, max_left: usize) -> Poll<io::Result<()>> {
        while self.output.len() > max_left {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.output))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Starved | Step::Pong => {}
            Step::Payload(bytes) => self.readable = bytes,
            Step::Ping(payload) => {
                if !self.closed {
                    put_frame(&mut self.output, OpCode::Control(Control::Pong), &payload);
                    self.pong_due = true;
                }
            }
            // The status goes back, the reason does not.
            Step::Close(payload) => self.close(&payload[..payload.len().min(2)]),
            Step::Wrong(status, reason) => {
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
        while this.readable == 0 && !this.ended {
            if this.pong_due {
                ready!(this.poll_drain(context, 0))?;
                ready!(Pin::new(&mut this.stream).poll_flush(context))?;
                this.pong_due = false;
            }
            let step = this.decoder.next(&mut this.input);
            if step != Step::Starved {
                this.take(step);
                continue;
            }
            this.input.reserve(READ_BYTES);
            let read = tokio_util::io::poll_read_buf(Pin::new(&mut this.stream), context, &mut this.input);
            this.ended = ready!(read)? == 0;
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
        if this.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_drain(context, MAX_SENT_BYTES))?;
        let bytes = &bytes[..bytes.len().min(MAX_SENT_BYTES)];
        put_frame(&mut this.output, OpCode::Data(Data::Binary), bytes);
        // What can leave does; the rest does with the next call.
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

    /// Says goodbye, and that nothing follows.
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.close(&u16::from(CloseCode::Normal).to_be_bytes());
        ready!(this.poll_drain(context, 0))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
