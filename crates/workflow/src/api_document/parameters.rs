//! Parameters of OpenAPI operations in a request.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::ApiRequestError;
use super::openapi::{BODY, Operation};

/// A parameter of an operation.
#[derive(Debug, Deserialize)]
pub(super) struct Parameter {
    pub name: String,
    /// `path`, `query`, `header`, `cookie`; in OpenAPI 2 also `formData` and `body`.
    #[serde(rename = "in")]
    pub place: String,
    #[serde(default)]
    pub required: bool,
    /// OpenAPI 3: the form of arrays and objects.
    style: Option<String>,
    explode: Option<bool>,
    /// OpenAPI 2: the form of arrays.
    #[serde(rename = "collectionFormat")]
    collection: Option<String>,
    /// OpenAPI 2: the type, which OpenAPI 3 has in a schema.
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Parameter {
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.place) == (&other.name, &other.place)
    }

    /// The pairs of a value in a query or a form.
    fn pairs(&self, value: &Value) -> Vec<(String, String)> {
        let one = |text: String| vec![(self.name.clone(), text)];
        // OpenAPI 2 has a type here and joins by commas; OpenAPI 3 repeats the name.
        let repeats = match (&self.collection, &self.kind) {
            (Some(format), _) => format == "multi",
            (None, Some(_)) => false,
            (None, None) => self.explode.unwrap_or(true),
        };
        let separator = match (self.collection.as_deref(), self.style.as_deref()) {
            (Some("ssv"), _) | (_, Some("spaceDelimited")) => " ",
            (Some("tsv"), _) => "\t",
            (Some("pipes"), _) | (_, Some("pipeDelimited")) => "|",
            _ => ",",
        };
        match value {
            Value::Array(items) if repeats => {
                items.iter().map(|item| (self.name.clone(), text(item))).collect()
            }
            Value::Array(items) => one(items.iter().map(text).collect::<Vec<_>>().join(separator)),
            Value::Object(fields) if self.style.as_deref() == Some("deepObject") => {
                fields.iter().map(|(key, value)| (format!("{}[{key}]", self.name), text(value))).collect()
            }
            Value::Object(fields) if self.kind.is_none() && repeats => {
                fields.iter().map(|(key, value)| (key.clone(), text(value))).collect()
            }
            Value::Object(fields) if self.kind.is_none() => one(listed(fields)),
            other => one(text(other)),
        }
    }

    /// A value in a path, a header or a cookie (style `simple`).
    fn simple(&self, value: &Value) -> String {
        match value {
            Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
            Value::Object(fields) => listed(fields),
            other => text(other),
        }
    }
}

/// `a,1,b,2`
fn listed(fields: &Map<String, Value>) -> String {
    fields.iter().flat_map(|(key, value)| [key.clone(), text(value)]).collect::<Vec<_>>().join(",")
}

/// A string without quotes, any other value as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The parts of a request that come from parameters.
#[derive(Default)]
pub(super) struct Filled {
    pub path: String,
    pub query: Vec<(String, String)>,
    pub headers: Vec<(String, String)>,
    /// Fields of a form, in OpenAPI 2.
    pub form: Vec<(String, String)>,
}

/// Puts the arguments of a call to their places.
pub(super) fn fill_parameters(
    operation: &Operation,
    id: &str,
    path: &str,
    arguments: &Map<String, Value>,
) -> Result<Filled, ApiRequestError> {
    let mut filled = Filled { path: path.to_owned(), ..Filled::default() };
    let mut cookies = Vec::new();
    for parameter in operation.parameters.iter().filter(|parameter| parameter.place != BODY) {
        let Parameter { name, place, .. } = parameter;
        let Some(value) = arguments.get(name).filter(|value| !value.is_null()) else {
            // A path is never without its parameters.
            if parameter.required || place == "path" {
                let (operation, name, place) = (id.to_owned(), name.clone(), place.clone());
                return Err(ApiRequestError::Missing { operation, name, place });
            }
            continue;
        };
        match place.as_str() {
            "path" => {
                let value = parameter.simple(value);
                let encoded: String = url::form_urlencoded::byte_serialize(value.as_bytes())
                    .map(|part| if part == "+" { "%20" } else { part })
                    .collect();
                filled.path = filled.path.replace(&format!("{{{name}}}"), &encoded);
            }
            "query" => filled.query.extend(parameter.pairs(value)),
            "header" => filled.headers.push((name.clone(), parameter.simple(value))),
            "cookie" => cookies.push(format!("{name}={}", parameter.simple(value))),
            "formData" if parameter.kind.as_deref() == Some("file") => {
                let media_type = "multipart/form-data".to_owned();
                return Err(ApiRequestError::Body { operation: id.to_owned(), media_type });
            }
            "formData" => filled.form.extend(parameter.pairs(value)),
            _ => {}
        }
    }
    if !cookies.is_empty() {
        filled.headers.push(("cookie".to_owned(), cookies.join("; ")));
    }
    Ok(filled)
}
