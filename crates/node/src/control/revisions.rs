//! The difference between two revisions, as text.

use std::time::Duration;

use edgefaas_api::control::FileDifference;
use edgefaas_functions::registry::{FileChange, FileContent};
use similar::TextDiff;

/// Maximum bytes of a side that is compared line by line, and of a difference.
const MAX_TEXT_BYTES: usize = 256 << 10;
/// Time that the comparison of one file may take; after it the difference is coarser.
const TIME_LIMIT: Duration = Duration::from_millis(200);
/// Lines around a change.
const CONTEXT_LINES: usize = 3;

/// A file that differs, as `diff -u` shows it.
pub(super) fn difference(change: FileChange) -> FileDifference {
    let bytes = |content: &FileContent| match content {
        FileContent::Text(text) => text.len() as u64,
        FileContent::Other { bytes, .. } => *bytes,
    };
    let unified = match (text_of(change.from.as_ref()), text_of(change.to.as_ref())) {
        (Some(from), Some(to)) => unified(from, to),
        _ => String::new(),
    };
    FileDifference {
        from_bytes: change.from.as_ref().map(bytes),
        to_bytes: change.to.as_ref().map(bytes),
        file: change.file,
        unified,
    }
}

/// The text of a side; empty where the file is not there.
fn text_of(content: Option<&FileContent>) -> Option<&str> {
    match content {
        None => Some(""),
        Some(FileContent::Text(text)) if text.len() <= MAX_TEXT_BYTES => Some(text),
        Some(_) => None,
    }
}

fn unified(from: &str, to: &str) -> String {
    let diff = TextDiff::configure().timeout(TIME_LIMIT).diff_lines(from, to);
    let text = diff.unified_diff().context_radius(CONTEXT_LINES).to_string();
    if text.len() <= MAX_TEXT_BYTES { text } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Option<FileContent> {
        Some(FileContent::Text(text.to_owned()))
    }

    #[test]
    fn texts_are_compared_by_lines_and_others_by_their_sizes() {
        let change = |from, to| difference(FileChange { file: "f".into(), from, to });
        let changed = change(text("a\nb\nc\n"), text("a\nB\nc\n"));
        assert_eq!(changed.unified, "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
        assert_eq!((changed.from_bytes, changed.to_bytes), (Some(6), Some(6)));
        let new = change(None, text("a\n"));
        assert_eq!((&*new.unified, new.from_bytes), ("@@ -0,0 +1 @@\n+a\n", None));
        let other = change(text("a\n"), Some(FileContent::Other { bytes: 9, digest: "d".into() }));
        assert_eq!((&*other.unified, other.to_bytes), ("", Some(9)));
        let large = change(text(""), text(&"x\n".repeat(MAX_TEXT_BYTES)));
        assert_eq!((&*large.unified, large.to_bytes), ("", Some(2 * MAX_TEXT_BYTES as u64)));
    }
}
