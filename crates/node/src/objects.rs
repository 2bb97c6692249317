//! Stateful objects as the node keeps them: where a field is, and how it is read.

use edgefaas_crdt::Field;
use fjall::Keyspace;

use crate::store::StoreError;

/// The longest name of an object or a field, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// The largest value of a register, in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Which field of which object of which app.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FieldKey {
    /// The app the object belongs to.
    pub app: String,
    /// The object's name.
    pub object: String,
    /// The field's name.
    pub field: String,
}

impl FieldKey {
    /// The key in the store: the three names with a zero byte between them, so that an app's objects and
    /// an object's fields lie together. Names hold no zero byte.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.app.len() + self.object.len() + self.field.len() + 2);
        key.extend_from_slice(self.app.as_bytes());
        key.push(0);
        key.extend_from_slice(self.object.as_bytes());
        key.push(0);
        key.extend_from_slice(self.field.as_bytes());
        key
    }
}

/// What is wrong with the name of an object or a field, if anything is.
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

/// A field's state; none if nobody has written to it.
pub(crate) fn read_field(fields: &Keyspace, key: &FieldKey) -> Result<Option<Field>, StoreError> {
    let Some(bytes) = fields.get(key.to_bytes())? else { return Ok(None) };
    Field::decode(&bytes).map(Some).map_err(|error| StoreError::Damaged {
        what: format!("field `{}` of object `{}` of app `{}`", key.field, key.object, key.app),
        reason: error.to_string(),
    })
}
