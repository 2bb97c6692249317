//! What a reply is on the wire, for HTTP and MQTT alike.

use bytes::Bytes;
use edgefaas_isolates::Reply;

/// JSON text.
pub const JSON: &str = "application/json";
/// Plain text.
pub const TEXT: &str = "text/plain; charset=utf-8";
/// Bytes of no known kind.
pub const BYTES: &str = "application/octet-stream";

/// The body of a reply and its media type; nothing for an HTTP response, which has its own.
pub fn body_of(reply: Reply) -> Result<(Bytes, Option<&'static str>), edgefaas_isolates::HttpResponse> {
    match reply {
        Reply::None => Ok((Bytes::new(), None)),
        Reply::Json(text) => Ok((text.into(), Some(JSON))),
        Reply::Text(text) => Ok((text.into(), Some(TEXT))),
        Reply::Bytes(bytes) => Ok((bytes, Some(BYTES))),
        Reply::Http(response) => Err(response),
    }
}
