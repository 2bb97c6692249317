//! Answers of a collector to an export (OTLP 1.x, sections "OTLP/gRPC Response" and "OTLP/HTTP Response").

use std::fmt;
use std::time::Duration;

use edgefaas_functions::outgoing::FetchError;

/// Maximum length of a collector's text in an error, in characters.
const MESSAGE_CHARS: usize = 200;

/// The end of one attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    Accepted(PartialSuccess),
    Failed(ExportError, Retry),
}

/// Whether the same spans are sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    Never,
    /// After the exporter's own pause.
    Later,
    /// After the pause that the collector asks for.
    After(Duration),
}

/// Spans that an otherwise successful export left out; they are not sent again. Nothing by default.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartialSuccess {
    pub rejected_spans: u64,
    pub message: Message,
}

impl PartialSuccess {
    /// True if all spans were accepted without a warning.
    pub fn is_whole(&self) -> bool {
        self.rejected_spans == 0 && self.message.0.is_empty()
    }
}

/// A text of a collector: one line, at most [`MESSAGE_CHARS`] characters.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Message(String);

impl Message {
    pub fn new(text: &str) -> Self {
        let mut line: String =
            text.chars().take(MESSAGE_CHARS).collect::<String>().escape_debug().collect();
        if text.chars().nth(MESSAGE_CHARS).is_some() {
            line.push('…');
        }
        Self(line)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_empty() { "without a reason" } else { &self.0 })
    }
}

/// Spans that could not be exported.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExportError {
    /// The collector cannot be reached.
    #[error(transparent)]
    NotSent(#[from] FetchError),
    /// It does not answer within [`ATTEMPT_TIMEOUT`](super::ATTEMPT_TIMEOUT).
    #[error("the collector did not answer within {:?}", super::ATTEMPT_TIMEOUT)]
    TimedOut,
    /// It does not accept the spans; over HTTP.
    #[error("the collector answered {status}: {message}")]
    Refused { status: u16, message: Message },
    /// It does not accept the spans; over gRPC.
    #[error("the collector answered {code:?}: {message}")]
    Status { code: tonic::Code, message: Message },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_collectors_are_short_lines() {
        assert_eq!(Message::new("").to_string(), "without a reason");
        assert_eq!(Message::new("a\nb\u{1b}[31m").to_string(), "a\\nb\\u{1b}[31m");
        assert_eq!(Message::new(&"ä".repeat(100_000)).to_string().chars().count(), MESSAGE_CHARS + 1);
    }
}
