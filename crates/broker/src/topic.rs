//! Topic names and topic filters (MQTT 5, section 4.7), validated by type.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use bytestring::ByteString;

/// Topics of the broker itself: only it may publish to them, and they are not stored.
pub const SYS_PREFIX: &str = "$SYS/";

/// Longest topic name or filter in bytes: its length travels in two bytes.
pub const MAX_TOPIC_BYTES: usize = 65_535;

/// Largest number of levels of a topic name or filter. Not a rule of MQTT: it bounds the work and the stack of a match.
pub const MAX_TOPIC_LEVELS: usize = 200;

/// A valid topic name, to which messages are published. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(ByteString);

/// A valid topic filter of a subscription, with or without `+` and `#`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicFilter(ByteString);

/// The reason why a text is not a valid topic name. Positions are bytes from the start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicNameError {
    /// The text is empty.
    #[error("the topic is empty; a topic has at least one character")]
    Empty,
    /// The text is too long for the wire.
    #[error("the topic has {bytes} bytes; at most {MAX_TOPIC_BYTES} are allowed")]
    TooLong {
        /// Length of the text, in bytes.
        bytes: usize,
    },
    /// The text has too many levels.
    #[error("the topic has {levels} levels; at most {MAX_TOPIC_LEVELS} are allowed")]
    TooManyLevels {
        /// Number of levels in the text.
        levels: usize,
    },
    /// A null character.
    #[error("the topic has a null character at byte {at}; remove it")]
    Null {
        /// Position of the null character.
        at: usize,
    },
    /// A wildcard, which belongs into filters only.
    #[error("the topic has the wildcard '{wildcard}' at byte {at}; wildcards are for subscriptions only")]
    Wildcard {
        /// `+` or `#`.
        wildcard: char,
        /// Position of the wildcard.
        at: usize,
    },
}

/// The reason why a text is not a valid topic filter. Positions are bytes from the start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopicFilterError {
    /// The text is empty.
    #[error("the topic filter is empty; to subscribe to everything use #")]
    Empty,
    /// The text is too long for the wire.
    #[error("the topic filter has {bytes} bytes; at most {MAX_TOPIC_BYTES} are allowed")]
    TooLong {
        /// Length of the text, in bytes.
        bytes: usize,
    },
    /// The text has too many levels.
    #[error("the topic filter has {levels} levels; at most {MAX_TOPIC_LEVELS} are allowed")]
    TooManyLevels {
        /// Number of levels in the text.
        levels: usize,
    },
    /// A null character.
    #[error("the topic filter has a null character at byte {at}; remove it")]
    Null {
        /// Position of the null character.
        at: usize,
    },
    /// A wildcard beside other characters of its level, such as `a+`.
    #[error(
        "the topic filter has '{wildcard}' at byte {at} beside other characters; a wildcard is a whole level"
    )]
    WildcardNotAlone {
        /// `+` or `#`.
        wildcard: char,
        /// Position of the wildcard.
        at: usize,
    },
    /// A `#` that is not the last level.
    #[error(
        "the topic filter has '#' at byte {at} before its end; # is the last level or + a level in between"
    )]
    HashNotLast {
        /// Position of the `#`.
        at: usize,
    },
}

/// Checks a topic name.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn validate_name(topic: &str) -> Result<(), TopicNameError> {
    if topic.is_empty() {
        return Err(TopicNameError::Empty);
    }
    if topic.len() > MAX_TOPIC_BYTES {
        return Err(TopicNameError::TooLong { bytes: topic.len() });
    }
    let mut levels = 1;
    for (at, byte) in topic.bytes().enumerate() {
        match byte {
            0 => return Err(TopicNameError::Null { at }),
            b'+' | b'#' => return Err(TopicNameError::Wildcard { wildcard: byte.into(), at }),
            b'/' => levels += 1,
            _ => {}
        }
    }
    if levels > MAX_TOPIC_LEVELS {
        return Err(TopicNameError::TooManyLevels { levels });
    }
    Ok(())
}

/// Checks a topic filter. `$share/GROUP/FILTER` is checked like any other filter.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn validate_filter(filter: &str) -> Result<(), TopicFilterError> {
    if filter.is_empty() {
        return Err(TopicFilterError::Empty);
    }
    if filter.len() > MAX_TOPIC_BYTES {
        return Err(TopicFilterError::TooLong { bytes: filter.len() });
    }
    if let Some(at) = filter.bytes().position(|byte| byte == 0) {
        return Err(TopicFilterError::Null { at });
    }
    let levels = filter.split('/').count();
    if levels > MAX_TOPIC_LEVELS {
        return Err(TopicFilterError::TooManyLevels { levels });
    }
    let mut start = 0;
    for (index, level) in filter.split('/').enumerate() {
        if level == "#" {
            if index + 1 < levels {
                return Err(TopicFilterError::HashNotLast { at: start });
            }
        } else if level != "+"
            && let Some(offset) = level.find(['+', '#'])
        {
            let wildcard = char::from(level.as_bytes()[offset]);
            return Err(TopicFilterError::WildcardNotAlone { wildcard, at: start + offset });
        }
        start += level.len() + 1;
    }
    Ok(())
}

impl TopicName {
    /// Checks and takes a topic name.
    ///
    /// # Errors
    /// See [`validate_name`].
    pub fn new(topic: impl Into<ByteString>) -> Result<TopicName, TopicNameError> {
        let topic = topic.into();
        validate_name(&topic)?;
        Ok(TopicName(topic))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn text(&self) -> &ByteString {
        &self.0
    }

    /// A copy that shares no buffer with this one.
    pub(crate) fn detached(&self) -> TopicName {
        TopicName(detached(&self.0))
    }
}

impl TopicFilter {
    /// Checks and takes a topic filter.
    ///
    /// # Errors
    /// See [`validate_filter`].
    pub fn new(filter: impl Into<ByteString>) -> Result<TopicFilter, TopicFilterError> {
        let filter = filter.into();
        validate_filter(&filter)?;
        Ok(TopicFilter(filter))
    }

    /// The filter as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the filter has a `+` or a `#`.
    pub fn has_wildcards(&self) -> bool {
        self.0.bytes().any(|byte| matches!(byte, b'+' | b'#'))
    }

    /// True if the filter is a shared subscription, `$share/GROUP/FILTER` (MQTT 5, section 4.8.2).
    pub fn is_shared(&self) -> bool {
        self.0.starts_with("$share/")
    }

    /// Group and inner filter of a shared subscription. `None` for any other filter, and where one of the two is missing
    /// or the group has a wildcard, which no subscription may have (MQTT 5, section 4.8.2).
    pub fn share(&self) -> Option<(&str, TopicFilter)> {
        let (group, inner) = self.0.strip_prefix("$share/")?.split_once('/')?;
        if group.is_empty() || group.contains(['+', '#']) {
            return None;
        }
        TopicFilter::new(inner).ok().map(|inner| (group, inner))
    }

    /// The levels in front of the first wildcard: every topic it matches starts with this text.
    pub fn literal_prefix(&self) -> &str {
        match self.0.find(['+', '#']) {
            Some(at) => self.0[..at].strip_suffix('/').unwrap_or_default(),
            None => &self.0,
        }
    }

    /// True if the filter matches a topic name. A leading wildcard does not match a topic that starts with `$`.
    pub fn matches(&self, topic: &str) -> bool {
        if topic.starts_with('$') && self.0.starts_with(['+', '#']) {
            return false;
        }
        let mut levels = topic.split('/');
        for part in self.0.split('/') {
            if part == "#" {
                return true;
            }
            match levels.next() {
                Some(level) if part == "+" || part == level => {}
                _ => return false,
            }
        }
        levels.next().is_none()
    }

    pub(crate) fn detached(&self) -> TopicFilter {
        TopicFilter(detached(&self.0))
    }
}

fn detached(text: &ByteString) -> ByteString {
    let text: &str = text;
    ByteString::from(text)
}

macro_rules! text_impls {
    ($name:ident, $error:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                self.as_str()
            }
        }

        impl FromStr for $name {
            type Err = $error;

            fn from_str(text: &str) -> Result<$name, $error> {
                $name::new(text)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = $error;

            fn try_from(text: &str) -> Result<$name, $error> {
                $name::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = $error;

            fn try_from(text: String) -> Result<$name, $error> {
                $name::new(text)
            }
        }
    };
}

text_impls!(TopicName, TopicNameError);
text_impls!(TopicFilter, TopicFilterError);
