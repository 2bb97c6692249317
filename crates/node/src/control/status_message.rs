//! The size of error messages. A gRPC message is a header, and clients refuse headers of more than 8 to 16 KiB with an error of
//! their own. Messages contain names of the request, which may be long.

use http::{HeaderName, Response};
use tonic::Status;

const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Contains the message once more.
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// Maximum size of the encoded message, in bytes.
const MAX_BYTES: usize = 7 << 10;
/// Encoded bytes of a cut message at its begin and at its end.
const BEGIN_BYTES: usize = 5 << 10;
const END_BYTES: usize = 1 << 10;

/// Cuts a message that is too long in the middle: its end has the remedy.
pub(super) fn cut_message<B>(mut response: Response<B>) -> Response<B> {
    let is_long = |header: &http::HeaderValue| header.len() > MAX_BYTES;
    if !response.headers().get(GRPC_MESSAGE).is_some_and(is_long) {
        return response;
    }
    let Some(status) = Status::from_header_map(response.headers()) else { return response };
    let cut = Status::new(status.code(), cut(status.message())).into_http::<()>();
    response.headers_mut().remove(GRPC_DETAILS);
    match cut.headers().get(GRPC_MESSAGE) {
        Some(message) => response.headers_mut().insert(GRPC_MESSAGE, message.clone()),
        None => response.headers_mut().remove(GRPC_MESSAGE),
    };
    response
}

fn cut(message: &str) -> String {
    let begin = fitting(message.chars(), BEGIN_BYTES);
    let (begin, rest) = message.split_at(begin);
    let end = fitting(rest.chars().rev(), END_BYTES);
    let (_, end) = rest.split_at(rest.len() - end);
    format!("{begin} … {end}")
}

/// Length of the first characters that take at most `max_bytes` when they are percent-encoded.
fn fitting(chars: impl Iterator<Item = char>, max_bytes: usize) -> usize {
    let encoded_bytes = |c: char| if c.is_ascii_alphanumeric() { 1 } else { 3 * c.len_utf8() };
    let fit = chars.scan(0, |sum, c| {
        *sum += encoded_bytes(c);
        (*sum <= max_bytes).then_some(c.len_utf8())
    });
    fit.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_in_the_middle() {
        for (name, is_cut) in
            [("f".repeat(100), false), ("f".repeat(100_000), true), ("\u{1f980}".repeat(9_000), true)]
        {
            let message = format!("there is no function `{name}`; did you mean `g`?");
            let response = cut_message(Status::not_found(&message).into_http::<()>());
            assert!(response.headers()[GRPC_MESSAGE].len() <= MAX_BYTES);
            let status = Status::from_header_map(response.headers()).unwrap();
            assert_eq!((status.code(), status.message() == message), (tonic::Code::NotFound, !is_cut));
            assert!(status.message().starts_with("there is no function `"), "{status}");
            assert!(status.message().ends_with("`; did you mean `g`?"), "{status}");
            assert_eq!(status.message().contains(" … "), is_cut);
        }
    }
}
