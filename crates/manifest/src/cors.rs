//! Origins of web pages that may send requests (CORS).

use std::fmt;
use std::str::FromStr;

/// Origins that a setting permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsOrigin {
    /// `*`: pages of all sites.
    Any,
    /// An origin, such as `https://example.org`, in lower case.
    One(String),
    /// An origin with any port, such as `http://localhost:*`; the text up to the port.
    AnyPort(String),
}

/// A text that is no origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an origin; write one such as \"https://example.org\", \"http://localhost:*\" or \"*\""
)]
pub struct CorsOriginError {
    /// The text.
    pub text: String,
}

impl fmt::Display for CorsOrigin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => out.write_str("*"),
            Self::One(origin) => out.write_str(origin),
            Self::AnyPort(base) => write!(out, "{base}:*"),
        }
    }
}

impl FromStr for CorsOrigin {
    type Err = CorsOriginError;

    fn from_str(text: &str) -> Result<Self, CorsOriginError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let wrong = || CorsOriginError { text: text.to_owned() };
        let origin = text.to_ascii_lowercase();
        let (base, any_port) = match origin.strip_suffix(":*") {
            Some(base) => (base, true),
            None => (origin.as_str(), false),
        };
        let url = url::Url::parse(base).map_err(|_| wrong())?;
        let is_web = matches!(url.scheme(), "http" | "https");
        // Without path, query, user and default port.
        if !is_web || url.origin().ascii_serialization() != base || (any_port && url.port().is_some()) {
            return Err(wrong());
        }
        Ok(if any_port { Self::AnyPort(base.to_owned()) } else { Self::One(origin) })
    }
}

impl CorsOrigin {
    /// True if the value of a header `Origin` is one of these origins.
    pub fn matches(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        match self {
            Self::Any => true,
            Self::One(one) => *one == origin,
            Self::AnyPort(base) => origin.strip_prefix(base.as_str()).is_some_and(|rest| {
                let is_port =
                    |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
                rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read_and_matched() {
        for (text, origin, expected) in [
            ("*", "https://a.example", true),
            ("https://a.example", "https://a.example", true),
            ("https://A.example", "https://a.EXAMPLE", true),
            ("https://a.example", "http://a.example", false),
            ("https://a.example", "https://a.example:8443", false),
            ("http://localhost:*", "http://localhost:5173", true),
            ("http://localhost:*", "http://localhost", true),
            ("http://localhost:*", "http://localhost:", false),
            ("http://localhost:*", "http://localhost.evil.example", false),
            ("http://localhost:*", "http://localhost:1.evil.example", false),
            ("http://[::1]:*", "http://[::1]:3000", true),
        ] {
            let pattern: CorsOrigin = text.parse().unwrap();
            assert_eq!(pattern.matches(origin), expected, "{text} {origin}");
        }
        for wrong in [
            "",
            "example.org",
            "https://a/",
            "https://a/b",
            "ftp://a",
            "null",
            "http://a:1:*",
            "https://a:443",
        ] {
            assert!(wrong.parse::<CorsOrigin>().is_err(), "{wrong}");
        }
    }
}
