//! Stateful objects as a running function sees them: the local replica, with what it has written itself.

use bytes::Bytes;
use edgefaas_crdt::{ApplyError, Field, FieldType, Operation, Value, WrongType};
use edgefaas_isolates::{Change, FieldType as GuestType, FieldValue, HostError, Read};
use edgefaas_state::objects::{
    FieldKey, MAX_PATH, MAX_VALUE_BYTES, NO_BOUNDED_IN_MAP, Pending, PendingError, json_of_value,
    name_error, own_object,
};
use edgefaas_state::store::{Batch, Durability};

use super::host::{InvocationHost, full};

impl InvocationHost {
    /// Writes to a field, to be committed with the invocation.
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
        let written = self.effects.lock().operate(objects, key.clone(), operation, now_ms);
        if let Err(PendingError::Apply(error @ ApplyError::BelowFloor { .. })) = &written {
            self.ask_for_share(key, error);
        }
        written.map_err(|error| match error {
            PendingError::Apply(error) => invalid(object, &error),
            PendingError::Store(error) => HostError::Failed(error.to_string()),
            PendingError::NoRoom => full(self.effects.lock().no_room()),
            PendingError::TooMany => HostError::Overloaded(format!(
                "one invocation may write at most {} fields",
                super::effects::MAX_FIELDS
            )),
        })
    }

    /// Peers that have shares of a bounded counter which this node lacks give some, for the next time.
    fn ask_for_share(&self, key: FieldKey, error: &ApplyError) {
        let ApplyError::BelowFloor { value, share, amount, .. } = error else { return };
        let objects = self.invoker.store.objects();
        if !objects.are_peers_wanted() || u64::try_from(*value).is_ok_and(|value| value < *amount) {
            return;
        }
        let store = self.invoker.store.clone();
        let mut batch = Batch::default();
        batch.operate(key, Operation::BoundedCounterWant(amount.saturating_sub(*share)));
        tokio::spawn(async move {
            if let Err(error) = store.committer().commit(batch, Durability::Written).await {
                tracing::warn!(%error, "a share of a bounded counter could not be asked for");
            }
        });
    }

    /// The value of a counter.
    pub(super) fn counter(&mut self, object: &str, field: &str) -> Result<i64, HostError> {
        let key = self.key(object, field)?;
        let effects = self.effects.lock();
        let pending = match effects.pending(&key) {
            Some(Pending::Added(amount)) => *amount,
            None => 0,
            Some(other) => return Err(wrong(&key, other.field_type(), FieldType::Counter)),
        };
        drop(effects);
        let value = self.stored(&key, FieldType::Counter, |field| {
            field.and_then(|field| field.counter(key.field()).ok()).map_or(0, |counter| counter.value())
        })?;
        Ok(value.saturating_add(pending))
    }

    /// The value of a register.
    pub(super) fn register(&mut self, object: &str, field: &str) -> Result<Option<Bytes>, HostError> {
        let key = self.key(object, field)?;
        match self.effects.lock().pending(&key) {
            Some(Pending::Set(value)) => return Ok(Some(value.clone())),
            Some(other) => return Err(wrong(&key, other.field_type(), FieldType::Register)),
            None => {}
        }
        self.stored(&key, FieldType::Register, |field| {
            field.and_then(|field| field.register(key.field()).ok()?.get().cloned())
        })
    }

    /// Reads anything of any type.
    pub(super) fn read(
        &mut self,
        object: &str,
        field: &str,
        path: &[&str],
        read: Read<'_>,
    ) -> Result<FieldValue, HostError> {
        let wanted = match &read {
            Read::Value(wanted) | Read::Contains { field_type: wanted, .. } => field_type(*wanted),
            Read::MapKeys => FieldType::Map,
            Read::Share => FieldType::BoundedCounter,
        };
        let whole = if path.is_empty() { wanted } else { FieldType::Map };
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
            let Some(inner) = inner else { return Ok(value_of(&read, &Field::empty(wanted), node)) };
            match inner.field_type() {
                actual if actual == wanted => Ok(value_of(&read, inner, node)),
                actual => {
                    let field = path.join("/");
                    Err(invalid(object, &WrongType { field, actual, wanted }.below(key.field())))
                }
            }
        };
        match self.effects.lock().pending(&key) {
            Some(Pending::Changed { field, .. }) if field.field_type() == whole => {
                return answer(Some(field));
            }
            Some(other) => return Err(wrong(&key, other.field_type(), whole)),
            None => {}
        }
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
        // Without a name it is the function's own, for which it needs no permission.
        if object.is_empty() {
            return match name_error("field", field) {
                Some(reason) => Err(HostError::Invalid(reason)),
                None => Ok(FieldKey::new(&self.function.app, &own_object(&self.function.name), field)),
            };
        }
        if let Some(reason) = name_error("object", object).or_else(|| name_error("field", field)) {
            return Err(HostError::Invalid(reason));
        }
        if !self.function.spec.permissions.allows_object(object) {
            return Err(self.not_permitted("object", object, "objects"));
        }
        Ok(FieldKey::new(&self.function.app, object, field))
    }

    /// Reads the field that everybody sees, if it is of the wanted type.
    fn stored<R>(
        &self,
        key: &FieldKey,
        wanted: FieldType,
        read: impl FnOnce(Option<&Field>) -> R,
    ) -> Result<R, HostError> {
        let read = self.invoker.store.objects().read(key, |field| match field {
            Some(field) if field.field_type() != wanted => Err(field.field_type()),
            field => Ok(read(field)),
        });
        match read {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(actual)) => Err(wrong(key, actual, wanted)),
            Err(error) => Err(HostError::Failed(error.to_string())),
        }
    }
}

/// Keys that were looked at and found allowed: a function that uses a field mostly uses it again.
#[derive(Default)]
pub(super) struct UsedKeys {
    /// With whether it is one of the function's own object, which is asked for without a name.
    keys: Vec<(bool, FieldKey)>,
    next: usize,
}

impl UsedKeys {
    /// More than that are not looked through.
    const MAX: usize = 8;

    fn get(&self, object: &str, field: &str) -> Option<&FieldKey> {
        let is_own = object.is_empty();
        let fits = |(own, key): &&(bool, FieldKey)| {
            *own == is_own && key.field() == field && (is_own || key.object() == object)
        };
        self.keys.iter().find(fits).map(|(_, key)| key)
    }

    fn add(&mut self, is_own: bool, key: FieldKey) {
        if self.keys.len() < Self::MAX {
            self.keys.push((is_own, key));
        } else {
            self.keys[self.next] = (is_own, key);
            self.next = (self.next + 1) % Self::MAX;
        }
    }
}

/// The operation that a change of a guest is.
pub(super) fn operation(change: Change<'_>) -> Operation {
    let bytes = Bytes::copy_from_slice;
    match change {
        Change::CounterAdd(amount) => Operation::CounterAdd(amount),
        Change::RegisterSet(value) => Operation::RegisterSet(bytes(value)),
        Change::GCounterAdd(amount) => Operation::GCounterAdd(amount),
        Change::BoundedCounterAdd(amount) => Operation::BoundedCounterAdd(amount),
        Change::MvRegisterSet(value) => Operation::MvRegisterSet(bytes(value)),
        Change::GSetAdd(value) => Operation::GSetAdd(bytes(value)),
        Change::SetAdd(value) => Operation::SetAdd(bytes(value)),
        Change::SetRemove(value) => Operation::SetRemove(bytes(value)),
        Change::SetClear => Operation::SetClear,
        Change::MapRemove(key) => Operation::MapRemove(key.to_owned()),
        Change::MapClear => Operation::MapClear,
        Change::EwFlagSet(flag) => Operation::EwFlagSet(flag),
        Change::DwFlagSet(flag) => Operation::DwFlagSet(flag),
        Change::ListInsert { index, value } => Operation::ListInsert(index, bytes(value)),
        Change::ListPush(value) => Operation::ListPush(bytes(value)),
        Change::ListSet { index, value } => Operation::ListSet(index, bytes(value)),
        Change::ListRemove(index) => Operation::ListRemove(index),
        Change::TextSplice { at, delete, insert } => {
            Operation::TextSplice { at, delete, insert: insert.to_owned() }
        }
        Change::JsonSet { pointer, value } => {
            Operation::JsonSet { pointer: pointer.to_owned(), value: value.to_owned() }
        }
        Change::JsonRemove { pointer } => Operation::JsonRemove { pointer: pointer.to_owned() },
    }
}

/// The operation on the field that one on what is at `path` in its maps is.
pub(super) fn at_path(path: &[&str], operation: Operation) -> Result<Operation, HostError> {
    if path.len() > MAX_PATH {
        return Err(HostError::Invalid(format!("maps may be nested {MAX_PATH} deep, not {}", path.len())));
    }
    if let Some(reason) = path.iter().find_map(|key| name_error("map's key", key)) {
        return Err(HostError::Invalid(reason));
    }
    let nest = |operation, key: &&str| Operation::MapUpdate((*key).to_owned(), Box::new(operation));
    Ok(path.iter().rev().fold(operation, nest))
}

/// The type of what an operation changes in a map; none if it changes a field as a whole.
fn in_map(operation: &Operation) -> Option<FieldType> {
    match operation {
        Operation::MapUpdate(_, inner) => in_map(inner).or(Some(inner.field_type())),
        _ => None,
    }
}

fn value_of(read: &Read<'_>, field: &Field, node: u64) -> FieldValue {
    match read {
        Read::Contains { element, .. } => FieldValue::Flag(field.contains(element).unwrap_or(false)),
        Read::Share => {
            let share = field.bounded_counter("").map_or(0, |counter| counter.share(node));
            FieldValue::Unsigned(share)
        }
        Read::MapKeys => match field.value() {
            Value::Map(entries) => FieldValue::Keys(
                entries.into_iter().map(|(key, (kind, _))| (key, guest_type(kind))).collect(),
            ),
            _ => FieldValue::Keys(Vec::new()),
        },
        Read::Value(_) => match field.value() {
            Value::Integer(number) => FieldValue::Integer(number),
            Value::Unsigned(number) => FieldValue::Unsigned(number),
            Value::Register(value) => FieldValue::Register(value),
            Value::Values(values) | Value::List(values) => FieldValue::Values(values),
            Value::Flag(flag) => FieldValue::Flag(flag),
            Value::Text(text) => FieldValue::Text(text),
            Value::Json(text) => FieldValue::Json(text),
            map @ Value::Map(_) => FieldValue::Json(json_of_value(&map).to_string()),
        },
    }
}

fn field_type(of: GuestType) -> FieldType {
    match of {
        GuestType::Counter => FieldType::Counter,
        GuestType::Register => FieldType::Register,
        GuestType::GCounter => FieldType::GCounter,
        GuestType::BoundedCounter => FieldType::BoundedCounter,
        GuestType::MvRegister => FieldType::MvRegister,
        GuestType::GSet => FieldType::GSet,
        GuestType::Set => FieldType::Set,
        GuestType::Map => FieldType::Map,
        GuestType::EwFlag => FieldType::EwFlag,
        GuestType::DwFlag => FieldType::DwFlag,
        GuestType::List => FieldType::List,
        GuestType::Text => FieldType::Text,
        GuestType::Json => FieldType::Json,
    }
}

fn guest_type(of: FieldType) -> GuestType {
    match of {
        FieldType::Counter => GuestType::Counter,
        FieldType::Register => GuestType::Register,
        FieldType::GCounter => GuestType::GCounter,
        FieldType::BoundedCounter => GuestType::BoundedCounter,
        FieldType::MvRegister => GuestType::MvRegister,
        FieldType::GSet => GuestType::GSet,
        FieldType::Set => GuestType::Set,
        FieldType::Map => GuestType::Map,
        FieldType::EwFlag => GuestType::EwFlag,
        FieldType::DwFlag => GuestType::DwFlag,
        FieldType::List => GuestType::List,
        FieldType::Text => GuestType::Text,
        FieldType::Json => GuestType::Json,
    }
}

fn wrong(key: &FieldKey, actual: FieldType, wanted: FieldType) -> HostError {
    invalid(key.object(), &WrongType { field: key.field().to_owned(), actual, wanted })
}

fn invalid(object: &str, error: &dyn std::fmt::Display) -> HostError {
    HostError::Invalid(format!("object `{object}`: {error}"))
}
