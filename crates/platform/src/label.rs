//! The form of labels, and of names of zones and placement tags.

/// The longest label, in bytes.
const MAX_LABEL_BYTES: usize = 63;

/// The rule of [`is_label`], for messages.
pub const LABEL_RULE: &str =
    "write 1 to 63 letters, digits, `_`, `-`, `.` and `=`, such as camera or floor=2";

/// True if `text` can be a label, the name of a zone or a placement tag: 1 to 63 of `[A-Za-z0-9._=-]`.
pub fn is_label(text: &str) -> bool {
    (1..=MAX_LABEL_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._=-".contains(&byte))
}
