//! Documents that describe a service: OpenAPI 2.0 (Swagger) and 3, AsyncAPI 2 and 3. Only what a call needs is read; no other
//! document is fetched.

mod asyncapi;
mod error;
mod openapi;
mod parameters;

use serde::Deserialize;
use serde_json::Value;

pub use asyncapi::{Address, AsyncOperation, ParameterError};
pub use error::{ApiDocumentError, ApiRequestError};
pub use openapi::Operation;

use crate::document::read;

/// Maximum number of references that lead to one object.
const MAX_REFERENCES: usize = 8;

/// The kinds of documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiKind {
    /// OpenAPI 2.0, which is called Swagger.
    OpenApi2,
    /// OpenAPI 3.0, 3.1 and later.
    OpenApi3,
    /// AsyncAPI 2.
    AsyncApi2,
    /// AsyncAPI 3.
    AsyncApi3,
}

/// A document that describes a service.
#[derive(Debug)]
pub struct ApiDocument {
    kind: ApiKind,
    root: Value,
}

impl ApiDocument {
    /// Reads a document, JSON or YAML. The limits of YAML are those of workflows.
    ///
    /// # Errors
    /// `Unreadable` if it is neither; `Unknown` if it is not one of [`ApiKind`].
    pub fn read(text: &str) -> Result<Self, ApiDocumentError> {
        let root = match serde_json::from_str(text) {
            Ok(root) => root,
            Err(_) => read(text)
                .map_err(|error| ApiDocumentError::Unreadable { reason: error.to_string() })?
                .to_json(),
        };
        let kind = kind_of(&root).ok_or(ApiDocumentError::Unknown)?;
        Ok(Self { kind, root })
    }

    /// True if a text is such a document and not a workflow. Texts that cannot be read are workflows with an error.
    pub fn is_one(text: &str) -> bool {
        read(text).is_ok_and(|root| {
            root.get("document").is_none()
                && ["openapi", "swagger", "asyncapi"].iter().any(|key| root.get(key).is_some())
        })
    }

    /// The kind of the document.
    pub fn kind(&self) -> ApiKind {
        self.kind
    }

    /// An object, or the one that its `$ref` leads to.
    fn resolved<'v>(&'v self, value: &'v Value) -> Result<&'v Value, ApiDocumentError> {
        let mut at = value;
        for _ in 0..MAX_REFERENCES {
            let Some(reference) = at.get("$ref").and_then(Value::as_str) else { return Ok(at) };
            at = self.referenced(reference)?;
        }
        let reference = value.get("$ref").and_then(Value::as_str).unwrap_or_default().to_owned();
        Err(ApiDocumentError::Circle { reference, max: MAX_REFERENCES })
    }

    /// The value at a reference into this document.
    fn referenced(&self, reference: &str) -> Result<&Value, ApiDocumentError> {
        let Some(pointer) = reference.strip_prefix('#') else {
            return Err(ApiDocumentError::OtherDocument { reference: reference.to_owned() });
        };
        let found = self.root.pointer(pointer);
        found.ok_or_else(|| ApiDocumentError::Reference { reference: reference.to_owned() })
    }

    /// A part of the document as a type.
    fn part<'v, T: Deserialize<'v>>(&self, value: &'v Value, what: &str) -> Result<T, ApiDocumentError> {
        T::deserialize(value)
            .map_err(|error| ApiDocumentError::Part { what: what.to_owned(), reason: error.to_string() })
    }
}

fn kind_of(root: &Value) -> Option<ApiKind> {
    let version = |key: &str| {
        let version = root.get(key)?;
        Some(version.as_str().map_or_else(|| version.to_string(), str::to_owned))
    };
    let is = |key: &str, major: &str| version(key).is_some_and(|version| version.starts_with(major));
    [
        ("swagger", "2", ApiKind::OpenApi2),
        ("openapi", "3.", ApiKind::OpenApi3),
        ("asyncapi", "2.", ApiKind::AsyncApi2),
        ("asyncapi", "3.", ApiKind::AsyncApi3),
    ]
    .into_iter()
    .find_map(|(key, major, kind)| is(key, major).then_some(kind))
}

/// The known name that is most similar to one that is not known, as the end of a message.
fn suggestion<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<String> {
    let scored = known.map(|known| (strsim::jaro_winkler(name, known), known));
    let best = scored.filter(|(score, _)| *score > 0.8).max_by(|a, b| a.0.total_cmp(&b.0));
    best.map(|(_, known)| known.to_owned())
}

#[cfg(test)]
mod tests;
