use std::fmt;

/// A host call was refused or failed; the texts come from the node and name the object of the call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The manifest's permissions do not allow it.
    #[error("not permitted: {0}")]
    NotPermitted(String),
    /// No such function or other target.
    #[error("not found: {0}")]
    NotFound(String),
    /// Invalid arguments: a wrong topic, a payload over its limit, a field of another type.
    #[error("invalid: {0}")]
    Invalid(String),
    /// The node has no room now; try later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The operation ran and failed.
    #[error("{0}")]
    Failed(String),
}

/// A failure of the function: its state changes are dropped and its messages are not sent.
///
/// Any error turns into one with `?`; its message then has the causes, `a: b: c`.
pub struct Error {
    message: String,
}

impl Error {
    /// A failure with this message.
    pub fn new(message: impl fmt::Display) -> Self {
        // `{:#}` makes `anyhow::Error` and its like show their causes.
        Self { message: format!("{message:#}") }
    }

    /// The message that the node shows.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// `Error` itself is not a `std::error::Error`, otherwise this implementation would conflict.
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors have their cause in their own text already.
            if !message.ends_with(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        Self { message }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?})", self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("no average")]
    struct NoAverage(#[from] std::num::ParseIntError);

    #[test]
    fn causes_are_in_the_message_once() {
        let cause = "x".parse::<u8>().unwrap_err();
        assert_eq!(Error::from(NoAverage(cause)).message(), "no average: invalid digit found in string");
        let json = crate::event::json::<u8>("reply", b"x").unwrap_err();
        assert_eq!(
            Error::from(json).message(),
            "the reply is not JSON of type u8: expected value at line 1 column 1"
        );
    }
}
