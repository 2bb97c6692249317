//! Finds the property `name` in JSON that comes in pieces.

use memchr::memmem::Finder;

/// What stands in front of the value.
const PROPERTY: &[u8] = b"\"name\":\"";
/// The longest value.
const MAX_VALUE_BYTES: usize = 1024;

/// What was seen of a document.
pub struct Scan {
    finder: Finder<'static>,
    /// The end of the last piece: the property may lie across two.
    tail: Vec<u8>,
    /// The value, if its end was seen.
    pub found: Option<String>,
}

impl Scan {
    pub fn new() -> Self {
        Self { finder: Finder::new(PROPERTY), tail: Vec::new(), found: None }
    }

    /// Looks at the next piece.
    pub fn feed(&mut self, piece: &[u8]) {
        if self.found.is_some() {
            return;
        }
        // The piece itself is not copied: only the end of the last one with the beginning of this one.
        let kept = PROPERTY.len() + MAX_VALUE_BYTES;
        self.tail.extend_from_slice(&piece[..piece.len().min(kept)]);
        self.found = value_in(&self.finder, &self.tail).or_else(|| value_in(&self.finder, piece));
        if piece.len() >= kept {
            self.tail.clear();
            self.tail.extend_from_slice(&piece[piece.len() - kept..]);
        } else {
            let surplus = self.tail.len().saturating_sub(kept);
            self.tail.drain(..surplus);
        }
    }
}

/// The value of the property, if the text has it with its end.
fn value_in(finder: &Finder<'_>, text: &[u8]) -> Option<String> {
    let value = &text[finder.find(text)? + PROPERTY.len()..];
    let end = value.iter().position(|byte| *byte == b'"')?;
    Some(String::from_utf8_lossy(&value[..end]).into_owned())
}
