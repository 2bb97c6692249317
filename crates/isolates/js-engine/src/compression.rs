//! The work of `CompressionStream` and `DecompressionStream`. Output comes in pieces of bounded size, so that data which grows
//! a thousandfold needs no more memory than its reader lets wait.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write;

use flate2::write::{DeflateEncoder, GzDecoder, GzEncoder, ZlibEncoder};
use flate2::{Compression, Decompress, FlushDecompress, Status};
use rquickjs::{Array, Ctx, Exception, TypedArray};

use crate::boundary::copy_view;

/// A piece of output is given when it has this size.
const PIECE_BYTES: usize = 64 << 10;

/// How much is read before the output is looked at; decompressed it has a thousand times this size at most.
const STEP_BYTES: usize = 1 << 10;

enum Codec {
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
    DeflateRaw(DeflateEncoder<Vec<u8>>),
    Gunzip(Box<GzDecoder<Vec<u8>>>),
    /// Of both deflate formats.
    Inflate {
        inner: Box<Decompress>,
        ended: bool,
    },
}

/// Codecs of the streams of this invocation.
#[derive(Default)]
struct Open {
    last: u32,
    codecs: HashMap<u32, Codec>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

/// The data is not of its format.
struct Malformed;

/// Forgets all streams, where another invocation follows.
pub fn reset() {
    OPEN.with_borrow_mut(|open| open.codecs.clear());
}

/// `(format, whether it decompresses)`: the number of a new codec. The caller has checked the format.
pub fn open(format: String, decompress: bool) -> u32 {
    let level = Compression::default();
    let codec = match (format.as_str(), decompress) {
        ("gzip", false) => Codec::Gzip(GzEncoder::new(Vec::new(), level)),
        ("gzip", true) => Codec::Gunzip(Box::new(GzDecoder::new(Vec::new()))),
        ("deflate", false) => Codec::Deflate(ZlibEncoder::new(Vec::new(), level)),
        (_, false) => Codec::DeflateRaw(DeflateEncoder::new(Vec::new(), level)),
        (format, true) => {
            Codec::Inflate { inner: Box::new(Decompress::new(format == "deflate")), ended: false }
        }
    };
    OPEN.with_borrow_mut(|open| {
        open.last = open.last.wrapping_add(1);
        open.codecs.insert(open.last, codec);
        open.last
    })
}

/// `(codec, bytes, from)`: `[output, where to go on]`; all was read if that is the length of the bytes.
pub fn push<'js>(
    ctx: Ctx<'js>,
    number: u32,
    bytes: TypedArray<'js, u8>,
    from: u32,
) -> rquickjs::Result<Array<'js>> {
    let bytes = copy_view(&bytes);
    let pushed = OPEN.with_borrow_mut(|open| match open.codecs.get_mut(&number) {
        Some(codec) => codec.push(&bytes, from as usize),
        None => Err(Malformed),
    });
    let Ok((output, at)) = pushed else { return Err(malformed(&ctx, number)) };
    let parts = Array::new(ctx.clone())?;
    parts.set(0, TypedArray::new(ctx, output)?)?;
    parts.set(1, at as u32)?;
    Ok(parts)
}

/// `(codec)`: the rest of the output.
pub fn end<'js>(ctx: Ctx<'js>, number: u32) -> rquickjs::Result<TypedArray<'js, u8>> {
    let codec = OPEN.with_borrow_mut(|open| open.codecs.remove(&number));
    match codec.ok_or(Malformed).and_then(Codec::end) {
        Ok(output) => TypedArray::new(ctx, output),
        Err(Malformed) => Err(Exception::throw_type(&ctx, "the compressed data is cut short or malformed")),
    }
}

/// Drops a codec whose stream ends early.
pub fn close(number: u32) {
    OPEN.with_borrow_mut(|open| open.codecs.remove(&number));
}

fn malformed(ctx: &Ctx<'_>, number: u32) -> rquickjs::Error {
    close(number);
    Exception::throw_type(ctx, "the compressed data is malformed, or more follows its end")
}

impl Codec {
    fn push(&mut self, bytes: &[u8], from: usize) -> Result<(Vec<u8>, usize), Malformed> {
        let mut output = Vec::new();
        let mut at = from;
        while at < bytes.len() && output.len() < PIECE_BYTES {
            let step = &bytes[at..bytes.len().min(at + STEP_BYTES)];
            at += self.step(step, &mut output)?;
        }
        Ok((output, at))
    }

    /// Reads all of `step`, or as much as there is room for output.
    fn step(&mut self, step: &[u8], output: &mut Vec<u8>) -> Result<usize, Malformed> {
        fn write(encoder: &mut impl Write, step: &[u8]) -> Result<usize, Malformed> {
            encoder.write_all(step).map(|()| step.len()).map_err(|_| Malformed)
        }
        let read = match self {
            Self::Gzip(encoder) => write(encoder, step),
            Self::Deflate(encoder) => write(encoder, step),
            Self::DeflateRaw(encoder) => write(encoder, step),
            Self::Gunzip(decoder) => write(decoder, step),
            Self::Inflate { inner, ended } => {
                if *ended {
                    return Err(Malformed);
                }
                let before = inner.total_in();
                output.reserve(PIECE_BYTES);
                let status =
                    inner.decompress_vec(step, output, FlushDecompress::None).map_err(|_| Malformed)?;
                *ended = status == Status::StreamEnd;
                return usize::try_from(inner.total_in() - before).map_err(|_| Malformed);
            }
        }?;
        match self {
            Self::Gzip(encoder) => output.append(encoder.get_mut()),
            Self::Deflate(encoder) => output.append(encoder.get_mut()),
            Self::DeflateRaw(encoder) => output.append(encoder.get_mut()),
            Self::Gunzip(decoder) => output.append(decoder.get_mut()),
            Self::Inflate { .. } => {}
        }
        Ok(read)
    }

    fn end(self) -> Result<Vec<u8>, Malformed> {
        match self {
            Self::Gzip(encoder) => encoder.finish().map_err(|_| Malformed),
            Self::Deflate(encoder) => encoder.finish().map_err(|_| Malformed),
            Self::DeflateRaw(encoder) => encoder.finish().map_err(|_| Malformed),
            // Checks the length and the checksum at the end.
            Self::Gunzip(decoder) => decoder.finish().map_err(|_| Malformed),
            Self::Inflate { inner, ended } => inflated(inner, ended),
        }
    }
}

/// What a decompressor still holds after all of its input.
fn inflated(mut inner: Box<Decompress>, mut ended: bool) -> Result<Vec<u8>, Malformed> {
    let mut output = Vec::new();
    while !ended {
        let before = inner.total_out();
        output.reserve(PIECE_BYTES);
        let status =
            inner.decompress_vec(&[], &mut output, FlushDecompress::Finish).map_err(|_| Malformed)?;
        ended = status == Status::StreamEnd;
        if !ended && inner.total_out() == before {
            return Err(Malformed);
        }
    }
    Ok(output)
}
