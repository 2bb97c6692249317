//! Search for a text in names, whatever the case.

/// A text to search for. The empty one is in every name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// In lower case.
    text: String,
}

impl Search {
    /// A search for `text`.
    pub fn new(text: &str) -> Search {
        Search { text: text.to_lowercase() }
    }

    /// True if `name` has the text in it.
    pub fn matches(&self, name: &str) -> bool {
        if self.text.is_empty() {
            return true;
        }
        if !name.is_ascii() {
            return name.to_lowercase().contains(&self.text);
        }
        // Without an allocation: most names are ASCII, and a list may visit many of them.
        let text = self.text.as_bytes();
        name.as_bytes().windows(text.len()).any(|part| part.eq_ignore_ascii_case(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_whatever_the_case() {
        for (text, name, expected) in [
            ("", "", true),
            ("", "a", true),
            ("room", "hall/ROOM-7", true),
            ("Room-7", "hall/room-7", true),
            ("room-8", "hall/room-7", false),
            ("longer than the name", "name", false),
            ("GRÖSSE", "die größe/grösse", true),
            ("ö", "o", false),
        ] {
            assert_eq!(Search::new(text).matches(name), expected, "{text} in {name}");
        }
    }
}
