//! Secrets of an app under `edgefaas dev`: the file `.env` in its folder.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use edgefaas_manifest::is_secret_name;
use edgefaas_platform::regular_file;
use rustix::fs::OFlags;

/// Name of the file.
pub const FILE_NAME: &str = ".env";
/// Limit of its size, in bytes.
const MAX_BYTES: u64 = 256 << 10;
/// The mark at the start of a text by some editors.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// The permissions of everyone but the owner.
const OTHERS: u32 = 0o077;

/// A file that gives no secrets. The messages show no values.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    /// Other users can read the secrets.
    #[error("other users have access to {} (mode {mode:o}), and its secrets are not used; run: chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// Path of the file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The system does not give it, or it is a link.
    #[error("{} cannot be read: {error}; it is a plain file, and no link", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
    /// It is too large.
    #[error("{} has more than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
    },
    /// An entry has another form.
    #[error("{}:{line}: the entry {problem}", path.display())]
    Entry {
        /// Path of the file.
        path: PathBuf,
        /// The first line of the entry, from 1.
        line: usize,
        /// What is wrong with it.
        problem: EntryProblem,
    },
}

/// An entry that gives no secret.
#[derive(Debug, thiserror::Error)]
pub enum EntryProblem {
    /// Another form, or a character that has to be in quotes.
    #[error("is not NAME=VALUE; quote a value with spaces or special characters: NAME='a value'")]
    Form,
    /// The file ends before its quote.
    #[error("has a quote that is not closed")]
    OpenQuote,
    /// It is not text.
    #[error("is not UTF-8")]
    NotText,
    /// A name that no secret can have.
    #[error(
        "has the name `{name}`, which no secret can have: a name has 1 to 256 of letters, digits, `_`, `-` and `.`"
    )]
    Name {
        /// The name.
        name: String,
    },
}

/// The secrets in the file of an app; none without a file.
///
/// # Errors
/// The file is not private, or not of the form NAME=VALUE.
pub fn read(root: &Path) -> Result<BTreeMap<String, String>, EnvFileError> {
    let path = root.join(FILE_NAME);
    // A downloaded app may have a link of this name, to a file of the user.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match File::options().read(true).custom_flags(flags).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(EnvFileError::Unreadable { path, error }),
    };
    let mut text = Vec::new();
    match file.metadata().and_then(|metadata| regular_file::check(&metadata).map(|()| metadata)) {
        Ok(metadata) if metadata.mode() & OTHERS != 0 => {
            return Err(EnvFileError::Exposed { path, mode: metadata.mode() & 0o777 });
        }
        Ok(_) => {}
        Err(error) => return Err(EnvFileError::Unreadable { path, error }),
    }
    if let Err(error) = file.take(MAX_BYTES + 1).read_to_end(&mut text) {
        return Err(EnvFileError::Unreadable { path, error });
    }
    if text.len() as u64 > MAX_BYTES {
        return Err(EnvFileError::TooLarge { path });
    }
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
    entries(text).map_err(|BadEntry { line, problem }| EnvFileError::Entry { path, line, problem })
}

/// The first entry that gives no secret.
#[derive(Debug)]
struct BadEntry {
    /// The first line of the entry, from 1.
    line: usize,
    problem: EntryProblem,
}

/// The entries of a file.
fn entries(text: &[u8]) -> Result<BTreeMap<String, String>, BadEntry> {
    let lines = Cell::new(0);
    let mut secrets = BTreeMap::new();
    for entry in dotenvy::from_read_iter(Lines { rest: text, lines: &lines }) {
        let (name, value) = entry.map_err(|error| problem(error, lines.get(), text))?;
        if !is_secret_name(&name) {
            let line = lines.get() - value.matches('\n').count();
            return Err(BadEntry { line, problem: EntryProblem::Name { name } });
        }
        secrets.insert(name, value);
    }
    Ok(secrets)
}

/// The entry that ends in line `last`. The library's error has the text of the entry, and so the secret.
fn problem(error: dotenvy::Error, last: usize, text: &[u8]) -> BadEntry {
    match error {
        dotenvy::Error::LineParse(entry, at) => {
            let first = last + 1 - entry.lines().count().clamp(1, last.max(1));
            // The library reads on to the end of the file.
            let is_open =
                at == entry.len() && entry.contains(['"', '\'']) && text.ends_with(entry.as_bytes());
            BadEntry {
                line: first,
                problem: if is_open { EntryProblem::OpenQuote } else { EntryProblem::Form },
            }
        }
        _ => BadEntry { line: last, problem: EntryProblem::NotText },
    }
}

/// Gives a text line by line, and counts the lines.
struct Lines<'a> {
    rest: &'a [u8],
    lines: &'a Cell<usize>,
}

impl Read for Lines<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').map_or(self.rest.len(), |at| at + 1);
        let length = end.min(buffer.len());
        let (line, rest) = self.rest.split_at(length);
        if length > 0 && (line.ends_with(b"\n") || rest.is_empty()) {
            self.lines.set(self.lines.get() + 1);
        }
        buffer[..length].copy_from_slice(line);
        self.rest = rest;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(folder: &Path, text: &str, mode: u32) {
        let path = folder.join(FILE_NAME);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn names_and_values_are_read() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).unwrap().is_empty());
        write(folder.path(), "# comment\nKEY='a b'\nexport OTHER=c # end\n", 0o600);
        let secrets = read(folder.path()).unwrap();
        assert_eq!(
            secrets,
            [("KEY", "a b"), ("OTHER", "c")].map(|(a, b)| (a.to_owned(), b.to_owned())).into()
        );
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_and_no_error_has_a_value() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o644, 0o640, 0o604] {
            write(folder.path(), "KEY=geheim\n", mode);
            let error = read(folder.path()).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && error.contains(&format!("{mode:o}")), "{error}");
        }
        let target = folder.path().join("target");
        fs::rename(folder.path().join(FILE_NAME), &target).unwrap();
        std::os::unix::fs::symlink(&target, folder.path().join(FILE_NAME)).unwrap();
        assert!(matches!(read(folder.path()), Err(EnvFileError::Unreadable { .. })));
        fs::remove_file(folder.path().join(FILE_NAME)).unwrap();
        let private = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let pipe = folder.path().join(FILE_NAME);
        rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, private, 0).unwrap();
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("it is a named pipe"), "{error}");
    }

    #[test]
    fn an_error_has_the_line_and_no_value() {
        let long = "x".repeat(20_000);
        for (text, line, words) in [
            ("KEY=ok\n\n# comment\nOTHER 'geheim'\n", 4, "is not NAME=VALUE"),
            ("KEY=geheim geheim\nA=b\n", 1, "is not NAME=VALUE"),
            ("A=b\r\nC=d\r\n=geheim\r\n", 3, "is not NAME=VALUE"),
            ("A='b\nc\nd'\n\nB\n", 5, "is not NAME=VALUE"),
            ("A='b\nc\nd' geheim\nB=c\n", 1, "is not NAME=VALUE"),
            ("A=b\nC='geheim\nD=e\nF=g\n", 2, "has a quote that is not closed"),
            ("A=b\nC=\"geheim", 2, "has a quote that is not closed"),
            ("A=b\n1C=geheim\n", 2, "is not NAME=VALUE"),
            ("A=b\nC", 2, "is not NAME=VALUE"),
            (&format!("A={long}\nB geheim\n"), 2, "is not NAME=VALUE"),
            (&format!("A='b\nb'\n{}='geheim\ngeheim'\n", "n".repeat(300)), 3, "which no secret can have"),
        ] {
            let BadEntry { line: found, problem } = entries(text.as_bytes()).unwrap_err();
            let said = problem.to_string();
            assert!(found == line && said.contains(words), "{text:?}: {found} {said}");
            assert!(!said.contains("geheim"), "{said}");
        }
        assert!(matches!(
            entries(b"A=b\nC=\xff\n"),
            Err(BadEntry { line: 2, problem: EntryProblem::NotText })
        ));

        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "\u{feff}A=b\r\nC d\n", 0o600);
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("/.env:2: the entry is not NAME=VALUE"), "{error}");
        write(folder.path(), "\u{feff}A=b\r\n", 0o600);
        assert_eq!(read(folder.path()).unwrap()["A"], "b");
    }
}
