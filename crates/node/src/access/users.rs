//! The users with their password hashes and roles: `users.toml` in the data directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use toml_edit::{DocumentMut, Item, Table};

use super::{Role, passwords};

/// Name of the file.
pub const USERS_FILE: &str = "users.toml";
/// Maximum length of a user name, in bytes.
const MAX_NAME_BYTES: usize = 64;
const HEADER: &str = "# The users of this node's MQTT broker; `edgefaas users` changes them.\n\n";

/// The users by name.
#[derive(Debug, Default, Clone)]
pub struct Users(BTreeMap<String, User>);

#[derive(Debug, Clone)]
struct User {
    password_hash: Arc<str>,
    /// At the control API; without one the user may use MQTT only.
    role: Option<Role>,
}

/// The users cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file cannot be read.
    #[error("the users {path} cannot be read: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// The file is invalid.
    #[error("the users {path} are not valid:\n{reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Position and reason.
        reason: String,
    },
    /// The file cannot be written.
    #[error("the users {path} cannot be written: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// The user name is invalid.
    #[error("`{name}` is not a valid user name: use 1 to 64 letters, digits, `_`, `-`, `.` and `@`")]
    Name {
        /// The given name.
        name: String,
    },
    /// The password is empty or too long.
    #[error("a password has 1 to {} bytes", passwords::MAX_PASSWORD_BYTES)]
    Password,
    /// The password could not be hashed.
    #[error("the password could not be hashed: {reason}")]
    Hash {
        /// The reason.
        reason: String,
    },
    /// The user exists already.
    #[error("user `{name}` exists already; `edgefaas users passwd {name}` changes the password")]
    Exists {
        /// The name.
        name: String,
    },
    /// The user does not exist.
    #[error("user `{name}` does not exist")]
    Unknown {
        /// The name.
        name: String,
    },
}

impl Users {
    /// Reads the users of a data directory; without a file no user exists.
    ///
    /// # Errors
    /// The file cannot be read or is invalid; the message gives the position.
    pub fn load(data_dir: &Path) -> Result<Self, UsersError> {
        read(&data_dir.join(USERS_FILE)).map(|(users, _)| users)
    }

    /// A user's password hash.
    pub fn hash(&self, name: &str) -> Option<&Arc<str>> {
        self.0.get(name).map(|user| &user.password_hash)
    }

    /// A user's role at the control API; `None` if the user has none or does not exist.
    pub fn role(&self, name: &str) -> Option<Role> {
        self.0.get(name)?.role
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Number of users.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if no user exists.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A change of the users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// A new user with this password hash.
    Add(&'a str, Option<Role>),
    /// Another password hash for a user.
    SetPassword(&'a str),
    /// Another role for a user, or none.
    SetRole(Option<Role>),
    /// Removes the user.
    Remove,
}

/// Changes the file in a data directory and returns the changed users. Manual edits of the file are kept, comments
/// included. The file is replaced atomically and is readable only by its owner.
///
/// # Errors
/// The change is invalid, or the file cannot be read or written; the file is unchanged.
pub fn change(data_dir: &Path, name: &str, change: Change<'_>) -> Result<Users, UsersError> {
    let path = data_dir.join(USERS_FILE);
    let (mut users, mut document) = read(&path)?;
    let exists = users.0.contains_key(name);
    match change {
        Change::Add(..) if !is_user_name(name) => return Err(UsersError::Name { name: name.to_owned() }),
        Change::Add(..) if exists => return Err(UsersError::Exists { name: name.to_owned() }),
        Change::SetPassword(_) | Change::SetRole(_) | Change::Remove if !exists => {
            return Err(UsersError::Unknown { name: name.to_owned() });
        }
        _ => {}
    }
    let table = document.entry("users").or_insert_with(implicit_table);
    let invalid = || UsersError::Parse { path: path.clone(), reason: "`users` is not a table".into() };
    let table = table.as_table_like_mut().ok_or_else(invalid)?;
    let (password_hash, role) = match change {
        Change::Remove => (None, None),
        Change::Add(hash, role) => (Some(hash), Some(role)),
        Change::SetPassword(hash) => (Some(hash), None),
        Change::SetRole(role) => (None, Some(role)),
    };
    if change == Change::Remove {
        table.remove(name);
        users.0.remove(name);
    } else {
        let entry = table.entry(name).or_insert_with(|| Item::Table(Table::new()));
        let entry = entry.as_table_like_mut().ok_or_else(invalid)?;
        let user = users.0.entry(name.to_owned());
        let user = user.or_insert_with(|| User { password_hash: Arc::default(), role: None });
        if let Some(hash) = password_hash {
            entry.insert("password", toml_edit::value(hash));
            user.password_hash = hash.into();
        }
        if let Some(role) = role {
            match role {
                Some(role) => entry.insert("role", toml_edit::value(role.name())),
                None => entry.remove("role"),
            };
            user.role = role;
        }
    }
    let header = if path.exists() { "" } else { HEADER };
    let text = format!("{header}{document}");
    edgefaas_platform::replace_file(&path, text.as_bytes())
        .map_err(|reason| UsersError::Write { path, reason })?;
    Ok(users)
}

/// Hashes a new password. Slow: not for a worker thread.
///
/// # Errors
/// The password is empty or too long.
pub fn hash_password(password: &[u8]) -> Result<String, UsersError> {
    if !(1..=passwords::MAX_PASSWORD_BYTES).contains(&password.len()) {
        return Err(UsersError::Password);
    }
    passwords::hash(password).map_err(|error| UsersError::Hash { reason: error.to_string() })
}

/// True if `name` is a valid user name: 1 to 64 letters, digits, `_`, `-`, `.` and `@`, so it is always a single topic
/// level.
pub fn is_user_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.@".contains(&byte))
}

fn read(path: &Path) -> Result<(Users, DocumentMut), UsersError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(reason) => return Err(UsersError::Read { path: path.to_owned(), reason }),
    };
    let invalid = |reason: String| UsersError::Parse { path: path.to_owned(), reason };
    let file: File = toml::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    let document = text.parse().map_err(|error: toml_edit::TomlError| invalid(error.to_string()))?;
    let users = file
        .users
        .into_iter()
        .map(|(name, Entry { password, role })| (name, User { password_hash: password.0.into(), role }));
    Ok((Users(users.collect()), document))
}

/// An implicit table: `[users.NAME]` needs no `[users]` above it.
fn implicit_table() -> Item {
    let mut table = Table::new();
    table.set_implicit(true);
    Item::Table(table)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    users: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    password: Hash,
    role: Option<Role>,
}

struct Hash(String);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if passwords::is_hash(&text) {
            return Ok(Self(text));
        }
        let help = "this is not an argon2 hash of a password; `edgefaas users passwd NAME` makes one";
        Err(serde::de::Error::custom(help))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn some_hash() -> String {
        hash_password(b"secret").unwrap()
    }

    #[test]
    fn changes_are_stored_and_keep_the_rest_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, hash) = (folder.path(), some_hash());
        assert!(Users::load(dir).unwrap().is_empty());
        change(dir, "ada", Change::Add(&hash, None)).unwrap();
        change(dir, "b@x.org", Change::Add(&hash, None)).unwrap();
        let path = dir.join(USERS_FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(HEADER), "{text}");
        std::fs::write(&path, text.replace("[users.ada]", "# the first\n[users.ada]")).unwrap();

        let other = some_hash();
        change(dir, "ada", Change::SetPassword(&other)).unwrap();
        change(dir, "b@x.org", Change::Remove).unwrap();
        assert_eq!(Users::load(dir).unwrap().role("ada"), None);
        change(dir, "ada", Change::SetRole(Some(Role::Operate))).unwrap();
        let users = Users::load(dir).unwrap();
        assert_eq!(users.names().collect::<Vec<_>>(), ["ada"]);
        assert_eq!(users.role("ada"), Some(Role::Operate));
        assert_eq!(users.hash("ada").unwrap().as_ref(), other);
        assert!(std::fs::read_to_string(&path).unwrap().contains("# the first\n[users.ada]"));
    }

    #[test]
    fn an_invalid_change_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, hash) = (folder.path(), some_hash());
        change(dir, "ada", Change::Add(&hash, None)).unwrap();
        let before = std::fs::read(dir.join(USERS_FILE)).unwrap();
        let error = |name, what| change(dir, name, what).unwrap_err();
        assert!(matches!(error("ada", Change::Add(&hash, None)), UsersError::Exists { .. }));
        assert!(matches!(error("bob", Change::SetPassword(&hash)), UsersError::Unknown { .. }));
        assert!(matches!(error("bob", Change::Remove), UsersError::Unknown { .. }));
        for name in ["", "a/b", "#", "+", "ä", &"x".repeat(65)] {
            assert!(matches!(error(name, Change::Add(&hash, None)), UsersError::Name { .. }), "{name}");
        }
        assert!(matches!(hash_password(b""), Err(UsersError::Password)));
        assert_eq!(std::fs::read(dir.join(USERS_FILE)).unwrap(), before);
    }

    #[test]
    fn the_error_of_an_invalid_file_names_the_position() {
        let folder = tempfile::tempdir().unwrap();
        for (text, words) in [
            ("[users.ada]\npassword = \"secret\"\n", "line 2"),
            ("[users.ada]\npasword = \"x\"\n", "unknown field `pasword`"),
            ("user = 1\n", "unknown field `user`"),
            ("[users.ada]\n", "missing field `password`"),
            ("[users.ada]\npassword = \"$x\"\nrole = \"root\"\n", "line "),
        ] {
            std::fs::write(folder.path().join(USERS_FILE), text).unwrap();
            let error = Users::load(folder.path()).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("users.toml"), "{error}");
            assert!(!error.contains("argon2id"), "no hash in an error");
            change(folder.path(), "bob", Change::Remove).unwrap_err();
            assert_eq!(std::fs::read_to_string(folder.path().join(USERS_FILE)).unwrap(), text);
        }
    }
}
