//! Checks of replies, in either language.

use http::{HeaderName, HeaderValue};

use crate::event::Reply;
use crate::outcome::{Limits, RunError};

/// The maximum of headers of a response.
const MAX_HEADERS: usize = 256;

/// Checks a reply against its limits and against HTTP: a status of 200 to 599 and at most 256 headers with valid names and
/// values. Their size counts into `limits.reply_bytes`.
///
/// # Errors
/// `ReplyTooLarge` or `InvalidReply`.
pub fn check_reply(reply: Reply, limits: Limits) -> Result<Reply, RunError> {
    let actual_bytes = match &reply {
        Reply::None => 0,
        Reply::Json(text) | Reply::Text(text) => text.len(),
        Reply::Bytes(bytes) => bytes.len(),
        Reply::Http(response) => {
            if !(200..=599).contains(&response.status) {
                let reason = format!("status {} is not between 200 and 599", response.status);
                return Err(RunError::InvalidReply { reason });
            }
            check_headers(&response.headers)
                .map_err(|error| RunError::InvalidReply { reason: error.to_string() })?;
            let pairs = response.headers.iter();
            response.body.len() + pairs.map(|(name, value)| name.len() + value.len()).sum::<usize>()
        }
    };
    if actual_bytes > limits.reply_bytes {
        return Err(RunError::ReplyTooLarge { actual_bytes, limit_bytes: limits.reply_bytes });
    }
    Ok(reply)
}

/// A header that HTTP cannot carry. The error does not show its value, which may be a secret.
#[derive(Debug, thiserror::Error)]
enum HeaderError {
    #[error("it has {count} headers; the limit is {MAX_HEADERS}")]
    TooMany { count: usize },
    #[error("{name:?} is not a valid header name")]
    Name { name: String },
    #[error(
        "the value of header {name:?} holds a character that is not visible ASCII, space or tab; percent-encode it"
    )]
    Value { name: String },
}

fn check_headers(headers: &[(String, String)]) -> Result<(), HeaderError> {
    if headers.len() > MAX_HEADERS {
        return Err(HeaderError::TooMany { count: headers.len() });
    }
    for (name, value) in headers {
        let shown = || name.chars().take(100).collect();
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(HeaderError::Name { name: shown() });
        }
        // RFC 9110, section 5.5: values beyond ASCII have no agreed meaning.
        if HeaderValue::from_str(value).is_err() {
            return Err(HeaderError::Value { name: shown() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::event::HttpResponse;

    fn check(headers: Vec<(String, String)>) -> Result<Reply, RunError> {
        let response = HttpResponse { status: 200, headers, body: Bytes::from_static(b"body") };
        check_reply(Reply::Http(response), Limits { reply_bytes: 2000, ..Limits::default() })
    }

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn headers_are_what_http_can_carry() {
        check(vec![header("X-A", "b"), header("x-a", ""), header("set-cookie", "a=1;\tb=2")]).unwrap();
        for (name, value) in
            [("", "v"), ("a b", "v"), ("a:", "v"), ("ä", "v"), ("x-cr", "a\r\nb: c"), ("x-nul", "\0")]
        {
            let error = check(vec![header(name, value)]).unwrap_err();
            assert!(
                matches!(&error, RunError::InvalidReply { reason } if reason.contains(name)),
                "{error:?}"
            );
        }
        check(vec![header("a", "b"); 256]).unwrap();
        let error = check(vec![header("a", "b"); 257]).unwrap_err();
        assert!(error.to_string().contains("257 headers"), "{error}");
    }

    #[test]
    fn headers_count_into_the_size() {
        let error = check(vec![header("name", &"v".repeat(1993))]).unwrap_err();
        assert_eq!(error, RunError::ReplyTooLarge { actual_bytes: 2001, limit_bytes: 2000 });
        check(vec![header("name", &"v".repeat(1992))]).unwrap();
    }
}
