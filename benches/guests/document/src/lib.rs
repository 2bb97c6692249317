//! Answers with the property `name` of a JSON document that Redis keeps under the key in the query (`?key=small`). The document is read as
//! it comes: it may be larger than the function's memory.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use edgefaas::prelude::*;

/// Where the benchmark's topology has the database.
const SERVER: &str = "10.77.1.1:6379";
/// What stands in front of the value.
const PROPERTY: &[u8] = b"\"name\":\"";
/// The longest value.
const MAX_VALUE_BYTES: usize = 1024;

#[edgefaas::function]
fn document(event: Event) -> Result<Reply, Error> {
    let Trigger::Http(request) = event.trigger() else { return Err(Error::new("not an HTTP request")) };
    let key = request.query_value("key").unwrap_or_else(|| "small".into());
    let value = property(&key).map_err(|error| Error::new(format!("{key} at {SERVER}: {error}")))?;
    Ok(Reply::Text(value))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// GET, on a connection of this invocation's own, in the protocol RESP2. The whole document is read, as a driver of a document database does
/// that has no projection.
fn property(key: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(SERVER)?;
    stream.set_nodelay(true)?;
    write!(stream, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())?;
    let mut reader = BufReader::with_capacity(64 << 10, stream);
    let mut head = String::new();
    reader.read_line(&mut head)?;
    let bytes = head.trim().strip_prefix('$').and_then(|bytes| bytes.parse::<u64>().ok());
    let mut left = reader.take(bytes.ok_or_else(|| invalid(head.trim()))?);
    let mut found = None;
    // The end of the last part: the property may lie across two parts.
    let mut text = Vec::new();
    loop {
        let part = left.fill_buf()?;
        if part.is_empty() {
            break;
        }
        let read = part.len();
        if found.is_none() {
            text.extend_from_slice(part);
            found = value_in(&text)?;
            let kept = text.len().min(PROPERTY.len() + MAX_VALUE_BYTES);
            text.drain(..text.len() - kept);
        }
        left.consume(read);
    }
    if left.limit() > 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    found.ok_or_else(|| invalid("the document has no `name`"))
}

/// The value of the property, if the text has it with its end.
fn value_in(text: &[u8]) -> io::Result<Option<String>> {
    let Some(at) = text.windows(PROPERTY.len()).position(|window| window == PROPERTY) else { return Ok(None) };
    let value = &text[at + PROPERTY.len()..];
    let Some(end) = value.iter().position(|byte| *byte == b'"') else { return Ok(None) };
    let value = std::str::from_utf8(&value[..end]).map_err(|_| invalid("`name` is no text"))?;
    Ok(Some(value.to_owned()))
}
