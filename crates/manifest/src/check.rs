//! Forms of names, filters, schedules and paths. Each check gives the reason if one is invalid.

use super::topics;

/// The longest name of an app or a function, in bytes.
const MAX_NAME_BYTES: usize = 63;
/// The longest name of a secret and the longest pattern of a permission, in bytes.
const MAX_PATTERN_BYTES: usize = 256;
/// First segments of the gateway's own paths.
const RESERVED_PATHS: [&str; 4] = ["fn", "workflows", "invocations", "mqtt"];

/// Prefixes of the node's own topics that triggers may name.
pub const NODE_TRIGGERS: [&str; 2] = [topics::DEAD_LETTERS, topics::EVENTS];

/// The rule for names of apps and functions, for messages.
pub(super) const NAME_RULE: &str =
    "a name has 1 to 63 of a-z, 0-9, `_` and `-`, and starts with a letter or a digit";

/// True if `name` can name an app or a function: `[a-z0-9][a-z0-9_-]{0,62}`.
pub fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= MAX_NAME_BYTES
        && name.bytes().next().is_some_and(allowed)
        && name.bytes().all(|byte| allowed(byte) || byte == b'_' || byte == b'-')
}

/// Whether `name` can be an asset's: a path of 1 to 255 bytes relative to the app folder, with `/`, without `.` and `..`.
pub fn is_asset_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && !name.contains(['\\', '\0'])
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// True if `name` can name a secret: 1 to 256 of letters, digits, `_`, `-` and `.`.
pub fn is_secret_name(name: &str) -> bool {
    (1..=MAX_PATTERN_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// True if `text` matches `pattern`, in which `*` stands for any characters, `/` among them.
pub fn glob_matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(mut text) = text.strip_prefix(head) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let tail = pieces.pop().unwrap_or_default();
    // Each piece at its first position leaves the most room for the next ones.
    for piece in pieces {
        match text.find(piece) {
            Some(at) => text = &text[at + piece.len()..],
            None => return false,
        }
    }
    text.ends_with(tail)
}

/// The reason why a pattern with `*` is invalid; `None` if it is valid.
pub fn glob_error(pattern: &str) -> Option<&'static str> {
    if pattern.is_empty() {
        Some("it is empty")
    } else if pattern.len() > MAX_PATTERN_BYTES {
        Some("it has more than 256 bytes")
    } else if pattern.contains(char::is_control) {
        Some("it has a control character")
    } else if pattern.contains(['?', '[', ']', '{', '}']) {
        Some("only `*` stands for other characters; `?`, `[]` and `{}` do not")
    } else {
        None
    }
}

/// The reason why a path is invalid for an HTTP trigger; `None` if it is valid. `{name}` stands for one segment and a final
/// `{*name}` for the rest.
pub(super) fn http_path_error(path: &str) -> Option<String> {
    let Some(inside) = path.strip_prefix('/') else {
        return Some("it does not start with `/`".into());
    };
    let first = inside.split('/').next().unwrap_or_default();
    if RESERVED_PATHS.contains(&first) {
        return Some(format!("`/{first}` belongs to the gateway"));
    }
    if path.contains(['?', '#']) {
        return Some("a trigger's path has no `?` and no `#`".into());
    }
    if let Some(character) = path.chars().find(|c| !c.is_ascii_graphic()) {
        return Some(format!("{character:?} must be percent-encoded"));
    }
    if path.len() > 1024 {
        return Some("it has more than 1024 bytes".into());
    }
    matchit::Router::new().insert(path, ()).err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names() {
        for good in ["a", "0", "room-average_2", &"x".repeat(63)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-a", "_a", "A", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("room-*", "room-1", true),
            ("room-*", "room", false),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--c--b", false),
            ("a*a", "a", false),
            ("*x*", "axb", true),
            ("ab", "abc", false),
        ] {
            assert_eq!(glob_matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    /// The plain definition, exponential but obviously right.
    fn glob_oracle(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => (0..=text.len()).any(|at| glob_oracle(rest, &text[at..])),
            Some((byte, rest)) => text.first() == Some(byte) && glob_oracle(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn globs_match_as_defined(pattern in "[ab*]{0,6}", text in "[ab]{0,8}") {
            prop_assert_eq!(glob_matches(&pattern, &text), glob_oracle(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn checks_never_panic(text in ".{0,40}") {
            let _ = crate::parse_cron(&text);
            let _ = http_path_error(&text);
            let _ = glob_error(&text);
        }
    }
}
