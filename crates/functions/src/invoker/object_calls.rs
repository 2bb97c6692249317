//! Object calls of a function: reads see the local replica and the function's own uncommitted writes and deletions.

use std::borrow::Cow;

use bytes::Bytes;
use edgefaas_crdt::{ApplyError, Field, FieldType, Operation, WrongType};
use edgefaas_isolates::{FieldValue, HostError, Read};
use edgefaas_state::objects::{
    FieldKey, MAX_VALUE_BYTES, NO_BOUNDED_IN_MAP, Pending, PendingError, Start, Write, name_error,
    own_object,
};

use super::effects::MAX_FIELDS;
use super::host::{InvocationHost, full};
use super::object_values::{field_type, in_map, value_of};

impl InvocationHost {
    /// Adds an operation on a field to the effects of the invocation.
    pub(super) fn operate(
        &mut self,
        object: &str,
        field: &str,
        operation: Operation,
    ) -> Result<(), HostError> {
        let key = self.key(object, field)?;
        if in_map(&operation) == Some(FieldType::BoundedCounter) {
            return Err(HostError::Invalid(NO_BOUNDED_IN_MAP.to_owned()));
        }
        let bytes = operation.size_bytes();
        if bytes > MAX_VALUE_BYTES {
            return Err(HostError::Invalid(format!(
                "field `{field}`: the value has {bytes} bytes; at most {MAX_VALUE_BYTES} are allowed"
            )));
        }
        let now_ms = self.invoker.clock.now_unix_ms();
        let objects = self.invoker.store.objects();
        let mut effects = self.effects.lock();
        let written = effects.operate(objects, key.clone(), operation, now_ms);
        if let Err(PendingError::Apply(error @ ApplyError::BelowFloor { .. })) = &written
            && !is_deleted(effects.pending(&key))
        {
            self.invoker.store.committer().request_share(&key, error);
        }
        drop(effects);
        written.map_err(|error| match error {
            PendingError::TooMany => {
                HostError::Overloaded(format!("one invocation may write at most {MAX_FIELDS} fields"))
            }
            error => self.refused(object, error),
        })
    }

    /// Adds the deletion of a field, or of all fields of the object, to the effects of the invocation.
    pub(super) fn delete(&mut self, object: &str, field: Option<&str>) -> Result<(), HostError> {
        let deleted = match field {
            Some(field) => {
                let key = self.key(object, field)?;
                self.effects.lock().delete_field(key)
            }
            None => {
                let name = self.object_name(object)?;
                let objects = self.invoker.store.objects();
                self.effects.lock().delete_object(objects, &self.function.app, &name)
            }
        };
        deleted.map_err(|error| match (error, field) {
            (PendingError::TooMany, Some(_)) => HostError::Overloaded(format!(
                "one invocation may write and delete at most {MAX_FIELDS} fields; delete the rest in another invocation"
            )),
            (PendingError::TooMany, None) => HostError::Overloaded(format!(
                "object `{object}` has too many fields to delete here: one invocation may write and delete at most {MAX_FIELDS} \
                 fields, with those that it has changed already; delete fields by their names in several invocations, or the object \
                 with `edgefaas objects delete`"
            )),
            (error, _) => self.refused(object, error),
        })
    }

    fn refused(&self, object: &str, error: PendingError) -> HostError {
        match error {
            PendingError::Apply(error) => invalid(object, &error),
            PendingError::NoRoom => full(self.effects.lock().no_room()),
            PendingError::Store(_) | PendingError::TooMany => HostError::Failed(error.to_string()),
        }
    }

    /// The value of a counter.
    pub(super) fn counter(&mut self, object: &str, field: &str) -> Result<i64, HostError> {
        let key = self.key(object, field)?;
        let effects = self.effects.lock();
        let pending = effects.pending(&key);
        let added = match pending.and_then(Pending::write) {
            Some(Write::Added(amount)) => *amount,
            None => 0,
            Some(other) => return Err(wrong_type(&key, other.field_type(), FieldType::Counter)),
        };
        if is_deleted(pending) {
            return Ok(added);
        }
        drop(effects);
        let value = self.stored(&key, FieldType::Counter, |field| {
            field.and_then(|field| field.counter(key.field()).ok()).map_or(0, |counter| counter.value())
        })?;
        Ok(value.saturating_add(added))
    }

    /// The value of a register.
    pub(super) fn register(&mut self, object: &str, field: &str) -> Result<Option<Bytes>, HostError> {
        let key = self.key(object, field)?;
        let effects = self.effects.lock();
        let pending = effects.pending(&key);
        match pending.and_then(Pending::write) {
            Some(Write::Set(value)) => return Ok(Some(value.clone())),
            Some(other) => return Err(wrong_type(&key, other.field_type(), FieldType::Register)),
            None if is_deleted(pending) => return Ok(None),
            None => {}
        }
        drop(effects);
        self.stored(&key, FieldType::Register, |field| {
            field.and_then(|field| field.register(key.field()).ok()?.get().cloned())
        })
    }

    /// Reads a field, or an entry of its nested maps, of any type.
    pub(super) fn read(
        &mut self,
        object: &str,
        field: &str,
        path: &[&str],
        read: Read<'_>,
    ) -> Result<FieldValue, HostError> {
        let expected = match &read {
            Read::Value(expected) | Read::Contains { field_type: expected, .. } => field_type(*expected),
            Read::MapKeys => FieldType::Map,
            Read::Share => FieldType::BoundedCounter,
        };
        let whole = if path.is_empty() { expected } else { FieldType::Map };
        match whole {
            FieldType::Counter => return Ok(FieldValue::Integer(self.counter(object, field)?)),
            FieldType::Register => return Ok(FieldValue::Register(self.register(object, field)?)),
            _ => {}
        }
        let key = self.key(object, field)?;
        let path: Vec<String> = path.iter().map(|key| (*key).to_owned()).collect();
        let node = self.invoker.store.objects().replica().node;
        let answer = |field: Option<&Field>| -> Result<FieldValue, HostError> {
            let inner = match field {
                Some(field) => {
                    field.at_path(&path).map_err(|error| invalid(object, &error.below(key.field())))?
                }
                None => None,
            };
            let Some(inner) = inner else { return Ok(value_of(&read, &Field::empty(expected), node)) };
            match inner.field_type() {
                actual if actual == expected => Ok(value_of(&read, inner, node)),
                actual => {
                    let field = path.join("/");
                    Err(invalid(object, &WrongType { field, actual, wanted: expected }.below(key.field())))
                }
            }
        };
        let effects = self.effects.lock();
        let pending = effects.pending(&key);
        match pending.and_then(Pending::write) {
            Some(Write::Changed { field, .. }) if field.field_type() == whole => {
                return answer(Some(field));
            }
            Some(other) => return Err(wrong_type(&key, other.field_type(), whole)),
            None if is_deleted(pending) => return answer(None),
            None => {}
        }
        drop(effects);
        self.stored(&key, whole, answer)?
    }

    fn key(&mut self, object: &str, field: &str) -> Result<FieldKey, HostError> {
        if let Some(key) = self.used_keys.get(object, field) {
            return Ok(key.clone());
        }
        let key = self.new_key(object, field)?;
        self.used_keys.add(object.is_empty(), key.clone());
        Ok(key)
    }

    fn new_key(&self, object: &str, field: &str) -> Result<FieldKey, HostError> {
        if let Some(reason) = name_error("field", field) {
            return Err(HostError::Invalid(reason));
        }
        Ok(FieldKey::new(&self.function.app, &self.object_name(object)?, field))
    }

    /// Name of an object that the function may use. Without a name it is the function's own object, which needs no permission.
    fn object_name<'a>(&self, object: &'a str) -> Result<Cow<'a, str>, HostError> {
        if object.is_empty() {
            return Ok(own_object(&self.function.name).into());
        }
        if let Some(reason) = name_error("object", object) {
            return Err(HostError::Invalid(reason));
        }
        if !self.function.spec.permissions.allows_object(object) {
            return Err(self.not_permitted("object", object, "objects"));
        }
        Ok(object.into())
    }

    /// Reads the committed field.
    ///
    /// # Errors
    /// `Invalid` if the field has another type than `expected`.
    fn stored<R>(
        &self,
        key: &FieldKey,
        expected: FieldType,
        read: impl FnOnce(Option<&Field>) -> R,
    ) -> Result<R, HostError> {
        let read = self.invoker.store.objects().read(key, |field| match field {
            Some(field) if field.field_type() != expected => Err(field.field_type()),
            field => Ok(read(field)),
        });
        match read {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(actual)) => Err(wrong_type(key, actual, expected)),
            Err(error) => Err(HostError::Failed(error.to_string())),
        }
    }
}

/// True if the invocation has deleted the stored field.
fn is_deleted(pending: Option<&Pending>) -> bool {
    pending.is_some_and(|pending| pending.start() == Start::Deleted)
}

fn wrong_type(key: &FieldKey, actual: FieldType, expected: FieldType) -> HostError {
    invalid(key.object(), &WrongType { field: key.field().to_owned(), actual, wanted: expected })
}

fn invalid(object: &str, error: &dyn std::fmt::Display) -> HostError {
    HostError::Invalid(format!("object `{object}`: {error}"))
}
