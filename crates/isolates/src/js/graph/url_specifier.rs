//! Specifiers of ES modules that are URLs, by the rules of Node.js.

use percent_encoding::percent_decode_str;

/// A specifier as a path and the part of the URL behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UrlSpecifier {
    /// The path, or the name of a package with a path, without escapes.
    pub path: String,
    /// The query and the fragment with their marks. A module has an instance for each of them.
    pub suffix: String,
}

/// A specifier that is no URL of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    /// `%2f` or `%5c`.
    #[error(
        "%2f and %5c stand for \"/\" and \"\\\", which a name in a path cannot have; write the path with /"
    )]
    Separator,
    /// `%` without two digits behind it.
    #[error(
        "an import is a URL, in which % begins an escape: two hexadecimal digits must follow, and a % itself is %25"
    )]
    Escape,
    /// The bytes behind the escapes are no text.
    #[error("its escapes are not UTF-8")]
    NotUtf8,
    /// A package's name, and not a path behind it, has a mark of URLs.
    #[error("the name of a package has no ?, # or %")]
    PackageName,
}

/// Parses the specifier of an `import`.
///
/// # Errors
/// Node.js refuses it too.
pub(super) fn parse(specifier: &str) -> Result<UrlSpecifier, Malformed> {
    let is_path = specifier.starts_with(['.', '/']);
    // `#` begins a name of `imports` in package.json.
    let first = usize::from(specifier.starts_with('#'));
    let end = specifier[first..].find(['?', '#']).map_or(specifier.len(), |at| at + first);
    let (path, suffix) = specifier.split_at(end);
    // As the parser of URLs does.
    let path =
        if is_path { path.replace('\\', "/").replace(['\t', '\n', '\r'], "") } else { path.to_owned() };
    let path = if is_path && suffix.is_empty() { path.trim_end_matches(|c| c <= ' ') } else { &path };
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        let escape = rest.get(at + 1..at + 3).ok_or(Malformed::Escape)?;
        if !escape.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Malformed::Escape);
        }
        if escape.eq_ignore_ascii_case("2f") || escape.eq_ignore_ascii_case("5c") {
            return Err(Malformed::Separator);
        }
        rest = &rest[at + 3..];
    }
    let is_package = !is_path && first == 0;
    if is_package
        && (package_name(path).contains('%') || (!suffix.is_empty() && package_name(path) == path))
    {
        return Err(Malformed::PackageName);
    }
    let path = percent_decode_str(path).decode_utf8().map_err(|_| Malformed::NotUtf8)?;
    Ok(UrlSpecifier { path: path.into_owned(), suffix: suffix.to_owned() })
}

/// The specifier up to the path behind the name of the package.
fn package_name(specifier: &str) -> &str {
    let slashes = if specifier.starts_with('@') { 1 } else { 0 };
    let end = specifier.match_indices('/').nth(slashes).map_or(specifier.len(), |(at, _)| at);
    &specifier[..end]
}

/// The path of a file in a graph, in which a suffix can be told from a name.
pub(super) fn escaped(path: &str) -> String {
    path.replace('%', "%25").replace('?', "%3F").replace('#', "%23")
}

/// The path without a suffix.
pub(crate) fn without_suffix(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifiers_are_urls() {
        for (specifier, path, suffix) in [
            ("./a.js", "./a.js", ""),
            ("./a%20b.js?1#x", "./a b.js", "?1#x"),
            ("./%e2%82%ac.js#a?b", "./€.js", "#a?b"),
            ("./a%3Fb%23c%25.js", "./a?b#c%.js", ""),
            (".\\a.js ", "./a.js", ""),
            ("./a.js?", "./a.js", "?"),
            ("@p/q", "@p/q", ""),
            ("#own/a%20b", "#own/a b", ""),
            ("#own?1", "#own", "?1"),
            ("p/x%20y.js?1", "p/x y.js", "?1"),
        ] {
            let expected = UrlSpecifier { path: path.to_owned(), suffix: suffix.to_owned() };
            assert_eq!(parse(specifier), Ok(expected), "{specifier}");
        }
        for (specifier, error) in [
            ("./a%2fb.js", Malformed::Separator),
            ("p/a%5Cb.js", Malformed::Separator),
            ("./100%.js", Malformed::Escape),
            ("./a%", Malformed::Escape),
            ("./a%2", Malformed::Escape),
            ("./%€.js", Malformed::Escape),
            ("./a%ff.js", Malformed::NotUtf8),
            ("p?1", Malformed::PackageName),
            ("%70", Malformed::PackageName),
            ("%2e/mod.js", Malformed::PackageName),
            ("@p/%71/a.js", Malformed::PackageName),
            ("@p/q#1", Malformed::PackageName),
        ] {
            assert_eq!(parse(specifier), Err(error), "{specifier}");
        }
    }
}
