//! Patterns for attributes of events: regular expressions.

use regex::{Regex, RegexBuilder};

/// Maximum size of a compiled pattern, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// A regular expression that a whole text must match. Clones share it. Matching takes time linear in the text.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

/// A pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The compiled pattern is too large.
    #[error("the regular expression takes more than {} KiB; use fewer repetitions", max_bytes >> 10)]
    TooLarge {
        /// The maximum size in bytes.
        max_bytes: usize,
    },
    /// The pattern is not a regular expression.
    #[error("it is not a regular expression: {reason}")]
    Syntax {
        /// The message of the parser, on one line.
        reason: String,
    },
}

impl Pattern {
    /// True if a text is written as a regular expression: it has a sign that only those have. A dot is not one of them.
    pub fn is_meant(text: &str) -> bool {
        text.contains(['\\', '^', '$', '*', '+', '?', '(', ')', '[', ']', '{', '}', '|'])
    }

    /// Compiles a regular expression.
    ///
    /// # Errors
    /// See [`PatternError`].
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let whole = RegexBuilder::new(&format!("^(?:{text})$")).size_limit(MAX_BYTES).build();
        whole.map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => PatternError::TooLarge { max_bytes: MAX_BYTES },
            other => {
                let text = other.to_string();
                let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
                PatternError::Syntax { reason: reason.to_owned() }
            }
        })
    }

    /// True if the whole text matches, or is the pattern itself: a URL with `?` is also the name of what it names.
    pub fn matches(&self, text: &str) -> bool {
        text == self.text() || self.0.is_match(text)
    }

    /// The regular expression.
    pub fn text(&self) -> &str {
        let text = self.0.as_str();
        text.strip_prefix("^(?:").and_then(|text| text.strip_suffix(")$")).unwrap_or(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_a_whole_text() {
        let pattern = Pattern::parse(r"com\.example\.(order|item)\..*").unwrap();
        assert!(pattern.matches("com.example.order.placed"));
        assert!(!pattern.matches("com.example.orders.placed"));
        assert!(!pattern.matches("x.com.example.item.sold"));
        let url = "https://example.com/s?room=1";
        assert!(Pattern::is_meant(url) && Pattern::parse(url).unwrap().matches(url));
        assert_eq!(pattern.text(), r"com\.example\.(order|item)\..*");
        assert!(matches!(Pattern::parse("a("), Err(PatternError::Syntax { .. })));
        assert!(matches!(Pattern::parse("(a{1,1000}){1,1000}"), Err(PatternError::TooLarge { .. })));
    }
}
