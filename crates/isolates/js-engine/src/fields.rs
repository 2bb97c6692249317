//! Fields of objects, as `libraries/objects.js` asks for them.

use edgefaas_js_abi::{Change, FieldType, FieldValue, Read, Request};
use rquickjs::prelude::{Opt, Rest};
use rquickjs::{Array, Ctx, Exception, IntoJs, String as JsString, Value};

use crate::boundary::Utf8;
use crate::{convert, natives};

/// `(object, field, path, change, …)`: carries out a change, whose name is that of the message with a small first
/// letter and is followed by its fields in order.
pub fn change<'js>(ctx: Ctx<'js>, arguments: Rest<Value<'js>>) -> rquickjs::Result<Value<'js>> {
    let arguments = Arguments { ctx: &ctx, values: &arguments };
    let (object, field, path) = (arguments.text(0)?, arguments.text(1)?, arguments.path()?);
    let (name, texts) = (arguments.text(3)?, [arguments.text(4)?, arguments.text(5)?, arguments.text(6)?]);
    let bytes = |index: usize| texts[index].as_bytes();
    let change = match name.as_str() {
        "counterAdd" => Change::CounterAdd(arguments.number(4)? as i64),
        "registerSet" => Change::RegisterSet(bytes(0)),
        "gCounterAdd" => Change::GCounterAdd(arguments.number(4)? as u64),
        "boundedCounterAdd" => Change::BoundedCounterAdd(arguments.number(4)? as i64),
        "mvRegisterSet" => Change::MvRegisterSet(bytes(0)),
        "gSetAdd" => Change::GSetAdd(bytes(0)),
        "setAdd" => Change::SetAdd(bytes(0)),
        "setRemove" => Change::SetRemove(bytes(0)),
        "setClear" => Change::SetClear,
        "mapRemove" => Change::MapRemove(&texts[0]),
        "mapClear" => Change::MapClear,
        "ewFlagSet" => Change::EwFlagSet(arguments.flag(4)),
        "dwFlagSet" => Change::DwFlagSet(arguments.flag(4)),
        "listInsert" => Change::ListInsert { index: arguments.number(4)? as u32, value: bytes(1) },
        "listPush" => Change::ListPush(bytes(0)),
        "listSet" => Change::ListSet { index: arguments.number(4)? as u32, value: bytes(1) },
        "listRemove" => Change::ListRemove(arguments.number(4)? as u32),
        "textSplice" => Change::TextSplice {
            at: arguments.number(4)? as u32,
            delete: arguments.number(5)? as u32,
            insert: &texts[2],
        },
        "jsonSet" => Change::JsonSet { pointer: &texts[0], value: &texts[1] },
        "jsonRemove" => Change::JsonRemove { pointer: &texts[0] },
        unknown => return Err(Exception::throw_type(&ctx, &format!("there is no change {unknown}"))),
    };
    let path = path.iter().map(String::as_str).collect();
    natives::ask(&ctx, &Request::ObjectChange { object: &object, field: &field, path, change })
}

/// `(object, field, path, read, type, element)`: `read` is `contains`, `keys`, `share` or the type again for the value.
pub fn read<'js>(ctx: Ctx<'js>, arguments: Rest<Value<'js>>) -> rquickjs::Result<Value<'js>> {
    let arguments = Arguments { ctx: &ctx, values: &arguments };
    let (object, field, path) = (arguments.text(0)?, arguments.text(1)?, arguments.path()?);
    let (name, type_name, element) = (arguments.text(3)?, arguments.text(4)?, arguments.text(5)?);
    let Some(field_type) = FieldType::from_name(&type_name) else {
        return Err(Exception::throw_type(&ctx, &format!("there is no type {type_name}")));
    };
    let read = match name.as_str() {
        "contains" => Read::Contains { field_type, element: element.as_bytes() },
        "keys" => Read::MapKeys,
        "share" => Read::Share,
        _ => Read::Value(field_type),
    };
    let path = path.iter().map(String::as_str).collect();
    natives::ask(&ctx, &Request::ObjectRead { object: &object, field: &field, path, read })
}

/// `(object, field)`: deletes a field; without `field` the whole object.
pub fn delete<'js>(
    ctx: Ctx<'js>,
    object: JsString<'js>,
    field: Opt<JsString<'js>>,
) -> rquickjs::Result<Value<'js>> {
    let (object, field) = (Utf8::of(object)?, field.0.map(Utf8::of).transpose()?);
    natives::ask(&ctx, &Request::ObjectDelete { object: &object, field: field.as_deref() })
}

/// A field's value for a function; keys are `[key, type, key, type, …]`.
pub fn value_of<'js>(ctx: &Ctx<'js>, value: &FieldValue<'_>) -> rquickjs::Result<Value<'js>> {
    match value {
        FieldValue::Integer(value) => (*value as f64).into_js(ctx),
        FieldValue::Unsigned(value) => (*value as f64).into_js(ctx),
        FieldValue::Register(None) => Ok(Value::new_undefined(ctx.clone())),
        FieldValue::Register(Some(json)) => natives::stored_json(ctx, json),
        FieldValue::Values(values) => {
            let array = Array::new(ctx.clone())?;
            for (index, json) in values.iter().enumerate() {
                array.set(index, natives::stored_json(ctx, json)?)?;
            }
            Ok(array.into_value())
        }
        FieldValue::Flag(value) => value.into_js(ctx),
        FieldValue::Text(text) => text.into_js(ctx),
        FieldValue::Json(json) => ctx.json_parse(*json),
        FieldValue::Keys(keys) => {
            let flat = keys.iter().flat_map(|(key, field_type)| [*key, field_type.as_str()]);
            flat.collect::<Vec<_>>().into_js(ctx)
        }
    }
}

/// What the prelude passes; it has checked it.
struct Arguments<'a, 'js> {
    ctx: &'a Ctx<'js>,
    values: &'a [Value<'js>],
}

impl Arguments<'_, '_> {
    /// A text; empty if it is none.
    fn text(&self, index: usize) -> rquickjs::Result<String> {
        match self.values.get(index) {
            Some(value) if value.is_string() => convert::text(self.ctx, value),
            _ => Ok(String::new()),
        }
    }

    fn path(&self) -> rquickjs::Result<Vec<String>> {
        let Some(array) = self.values.get(2).and_then(Value::as_array) else { return Ok(Vec::new()) };
        array.iter::<Value<'_>>().map(|key| convert::text(self.ctx, &key?)).collect()
    }

    fn number(&self, index: usize) -> rquickjs::Result<f64> {
        let number = self.values.get(index).and_then(Value::as_number);
        number.ok_or_else(|| Exception::throw_type(self.ctx, "a number was expected"))
    }

    fn flag(&self, index: usize) -> bool {
        self.values.get(index).and_then(Value::as_bool).unwrap_or(false)
    }
}
