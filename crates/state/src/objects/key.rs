//! Keys of fields: app, object and field.

use std::fmt;
use std::sync::Arc;

/// Maximum length of the name of an object or a field, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// The names of an app, an object and a field. Cheap to clone.
///
/// The key in the store joins the names with zero bytes, so that the objects of an app and the fields of an object are
/// adjacent. A name contains no zero byte.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldKey {
    text: Arc<str>,
    app_bytes: u16,
    object_bytes: u16,
}

impl FieldKey {
    /// Makes a key. [`name_error`] must accept all names.
    pub fn new(app: &str, object: &str, field: &str) -> Self {
        let mut text = String::with_capacity(app.len() + object.len() + field.len() + 2);
        for (part, end) in [(app, "\0"), (object, "\0"), (field, "")] {
            text.push_str(part);
            text.push_str(end);
        }
        Self { text: text.into(), app_bytes: app.len() as u16, object_bytes: object.len() as u16 }
    }

    /// Parses a key of the store; `None` if it is not the key of a field.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut names = std::str::from_utf8(bytes).ok()?.split('\0');
        let (app, object, field) = (names.next()?, names.next()?, names.next()?);
        let whole =
            names.next().is_none() && name_error("", object).is_none() && name_error("", field).is_none();
        (whole && app.len() <= MAX_NAME_BYTES).then(|| Self::new(app, object, field))
    }

    /// The app that the object belongs to.
    pub fn app(&self) -> &str {
        &self.text[..self.app_bytes as usize]
    }

    /// The object's name.
    pub fn object(&self) -> &str {
        let start = self.app_bytes as usize + 1;
        &self.text[start..start + self.object_bytes as usize]
    }

    /// The field's name.
    pub fn field(&self) -> &str {
        &self.text[self.app_bytes as usize + self.object_bytes as usize + 2..]
    }

    /// The key in the store.
    pub fn as_bytes(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// Common prefix of the keys of all fields of the object.
    pub fn object_prefix(&self) -> &str {
        &self.text[..self.app_bytes as usize + self.object_bytes as usize + 2]
    }
}

impl fmt::Debug for FieldKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}.{}", self.app(), self.object(), self.field())
    }
}

/// Name of the private object of a function.
pub fn own_object(function: &str) -> String {
    format!("@{function}")
}

/// Common prefix of the keys of all fields of an object.
pub fn object_prefix(app: &str, object: &str) -> String {
    format!("{app}\0{object}\0")
}

/// Problem with the name of an object or a field; `None` if the name is valid.
pub fn name_error(kind: &str, name: &str) -> Option<String> {
    if name.is_empty() {
        return Some(format!("the {kind} name is empty"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Some(format!(
            "the {kind} name has {} bytes; at most {MAX_NAME_BYTES} are allowed",
            name.len()
        ));
    }
    name.chars()
        .any(char::is_control)
        .then(|| format!("the {kind} name {name:?} has a control character in it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_names_and_back() {
        let key = FieldKey::new("app", "raum/7 ü", "people");
        assert_eq!((key.app(), key.object(), key.field()), ("app", "raum/7 ü", "people"));
        assert_eq!(FieldKey::parse(key.as_bytes()), Some(key.clone()));
        assert!(key.as_bytes().starts_with(key.object_prefix().as_bytes()));
        assert_eq!(key.object_prefix(), object_prefix("app", "raum/7 ü"));
        for bad in [&b"a\0b"[..], b"a\0b\0c\0d", b"a\0\0c", b"a\0b\0", b"\xff\0b\0c", b""] {
            assert_eq!(FieldKey::parse(bad), None, "{bad:?}");
        }
    }
}
