//! The large document, by `wasi:http`: the answer is read piece by piece, all of it, as a driver of a document database does
//! that has no projection.

use wasip2::http::outgoing_handler::{OutgoingRequest, handle};
use wasip2::http::types::{Fields, IncomingBody, Scheme};
use wasip2::io::streams::StreamError;

use crate::scan::Scan;

/// Where the benchmark's topology has webdis, which answers with values of Redis.
const SERVER: &str = "10.77.2.1:7379";
const PATH: &str = "/GET/large.txt";
const PIECE_BYTES: u64 = 256 << 10;

pub fn name() -> Result<String, String> {
    let request = OutgoingRequest::new(Fields::new());
    let set = request.set_scheme(Some(&Scheme::Http)).is_ok()
        && request.set_authority(Some(SERVER)).is_ok()
        && request.set_path_with_query(Some(PATH)).is_ok();
    if !set {
        return Err("not a request".to_owned());
    }
    let answer = handle(request, None).map_err(|error| format!("{SERVER}: {error}"))?;
    answer.subscribe().block();
    let answer = answer.get().and_then(Result::ok).ok_or("the answer was taken")?;
    let answer = answer.map_err(|error| format!("{SERVER}: {error}"))?;
    if answer.status() != 200 {
        return Err(format!("{SERVER}: status {}", answer.status()));
    }
    let body = answer.consume().map_err(|()| "the answer has no body")?;
    let stream = body.stream().map_err(|()| "the body has no stream")?;
    let mut scan = Scan::new();
    loop {
        match stream.blocking_read(PIECE_BYTES) {
            Ok(piece) => scan.feed(&piece),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(error)) => {
                return Err(format!("{SERVER}: {}", error.to_debug_string()));
            }
        }
    }
    drop(stream);
    IncomingBody::finish(body);
    scan.found.ok_or_else(|| "the document has no `name`".to_owned())
}
