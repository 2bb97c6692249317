//! Secrets of an app under `edgefaas dev`: the file `.env` in its folder.

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
    /// A line has another form.
    #[error("{}: the entry after {previous} is not NAME=VALUE", path.display(), previous = previous.as_deref().unwrap_or("the beginning"))]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// The last name that was read.
        previous: Option<String>,
    },
    /// A name that no secret can have.
    #[error("{}: `{name}` is not a name of a secret: a name has 1 to 256 of letters, digits, `_`, `-` and `.`", path.display())]
    Name {
        /// Path of the file.
        path: PathBuf,
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
    let mut secrets = BTreeMap::new();
    let mut previous = None;
    for entry in dotenvy::from_read_iter(text.as_slice()) {
        // The library's error has the line, and so the secret.
        let Ok((name, value)) = entry else { return Err(EnvFileError::Malformed { path, previous }) };
        if !is_secret_name(&name) {
            return Err(EnvFileError::Name { path, name });
        }
        previous = Some(name.clone());
        secrets.insert(name, value);
    }
    Ok(secrets)
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
        write(folder.path(), "KEY=ok\nOTHER 'geheim\n", 0o600);
        let error = read(folder.path()).unwrap_err().to_string();
        assert!(error.ends_with("the entry after KEY is not NAME=VALUE"), "{error}");
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
}
