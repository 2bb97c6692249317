//! JSON Schema validation of inputs, outputs and exports.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use boon::{CompileError, Compiler, SchemaIndex, Schemas, UrlLoader, ValidationError};
use serde_json::Value;

/// The URL of a schema while it is compiled.
const NAME: &str = "workflow:schema";
/// Maximum length of the list of misfits in a message, in characters.
const MAX_MESSAGE_CHARS: usize = 1000;

/// A compiled schema. Clones share it.
#[derive(Clone)]
pub struct Schema {
    schemas: Arc<Schemas>,
    index: SchemaIndex,
}

impl fmt::Debug for Schema {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Schema")
    }
}

impl Schema {
    /// Compiles a JSON Schema. The draft is 2020-12 unless `$schema` names another. References can only point into the schema
    /// itself: no document is fetched or read from a file.
    ///
    /// # Errors
    /// `Invalid` with the places where the value is not a JSON Schema, `Remote` for a reference to another document, `Unusable`
    /// for any other error of the schema compiler.
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        let mut compiler = Compiler::new();
        compiler.use_loader(Box::new(Nowhere));
        compiler.add_resource(NAME, schema.clone())?;
        let mut schemas = Schemas::new();
        let index = compiler.compile(NAME, &mut schemas)?;
        Ok(Self { schemas: Arc::new(schemas), index })
    }

    /// Checks a value against the schema. The time grows with the size of the value and of the schema.
    ///
    /// # Errors
    /// The places where the value does not fit the schema, each with the reason.
    pub fn check(&self, value: &Value) -> Result<(), Misfits> {
        self.schemas.validate(value, self.index).map_err(|error| Misfits::of(&error))
    }
}

/// A JSON value cannot be used as a schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The value is not a JSON Schema.
    #[error(transparent)]
    Invalid(Misfits),
    /// A reference points to another document.
    #[error("a schema is not fetched from elsewhere ({url}); put it into this one, under $defs")]
    Remote {
        /// The URL of the document.
        url: String,
    },
    /// The schema compiler rejects the schema for another reason.
    #[error("{reason}")]
    Unusable {
        /// The compiler's message, on one line.
        reason: String,
    },
}

/// The places where a value does not fit a schema. The message has at most 1,000 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfits(Vec<Misfit>);

/// One place where a value does not fit a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The location in the value, as a JSON pointer; empty for the value itself.
    pub pointer: String,
    /// The reason why the value does not fit.
    pub reason: String,
}

impl Misfits {
    /// The places, at least one. The list ends when the texts of the places reach 1,000 characters.
    pub fn places(&self) -> &[Misfit] {
        &self.0
    }

    fn of(error: &ValidationError<'_, '_>) -> Self {
        let mut misfits = Vec::new();
        let mut left_chars = MAX_MESSAGE_CHARS;
        collect(error, &mut misfits, &mut left_chars);
        Self(misfits)
    }
}

/// Collects the innermost errors. The errors that enclose them are left out.
fn collect(error: &ValidationError<'_, '_>, misfits: &mut Vec<Misfit>, left_chars: &mut usize) {
    if *left_chars == 0 {
        return;
    }
    if error.causes.is_empty() {
        let misfit = Misfit {
            pointer: error.instance_location.to_string(),
            reason: one_line(&error.kind.to_string()),
        };
        let chars = misfit.pointer.chars().count() + misfit.reason.chars().count();
        *left_chars = left_chars.saturating_sub(chars);
        misfits.push(misfit);
    }
    error.causes.iter().for_each(|cause| collect(cause, misfits, left_chars));
}

impl Error for Misfits {}

impl fmt::Display for Misfits {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<String> = self.0.iter().map(Misfit::to_string).collect();
        let text = each.join("; ");
        let end = text.char_indices().nth(MAX_MESSAGE_CHARS).map_or(text.len(), |(at, _)| at);
        out.write_str(&text[..end])
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pointer.is_empty() {
            true => out.write_str(&self.reason),
            false => write!(out, "{}: {}", self.pointer, self.reason),
        }
    }
}

impl From<CompileError> for SchemaError {
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::ValidationError { src, .. } => Self::Invalid(Misfits::of(&src)),
            CompileError::LoadUrlError { url, .. } => Self::Remote { url },
            other => Self::Unusable { reason: one_line(&other.to_string()) },
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A loader that loads no document.
struct Nowhere;

/// A schema refers to another document, which is not loaded.
#[derive(Debug, thiserror::Error)]
#[error("`{url}` is not loaded")]
struct NotLoaded {
    url: String,
}

impl UrlLoader for Nowhere {
    fn load(&self, url: &str) -> Result<Value, Box<dyn Error>> {
        Err(Box::new(NotLoaded { url: url.to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_does_not_fit_is_told_with_its_place() {
        let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer", "minimum": 1}}});
        let schema = Schema::compile(&schema).unwrap();
        assert_eq!(schema.check(&json!({"a": 1})), Ok(()));
        let said = schema.check(&json!({"a": 0})).unwrap_err().to_string();
        assert!(said.starts_with("/a: "), "{said}");
        let said = schema.check(&json!({})).unwrap_err().to_string();
        assert!(said.contains("'a'"), "{said}");
    }

    #[test]
    fn a_message_has_an_end() {
        let schema = Schema::compile(&json!({"items": {"type": "string"}})).unwrap();
        let misfits = schema.check(&json!(vec![1; 5000])).unwrap_err();
        assert!(misfits.places().len() < 500, "{}", misfits.places().len());
        assert_eq!(misfits.to_string().chars().count(), MAX_MESSAGE_CHARS);
    }

    #[test]
    fn nothing_is_fetched_or_read() {
        for reference in ["file:///etc/passwd", "http://127.0.0.1:1/x", "other.json"] {
            assert!(Schema::compile(&json!({"$ref": reference})).is_err(), "{reference}");
        }
        assert!(matches!(Schema::compile(&json!({"type": 5})), Err(SchemaError::Invalid(_))));
        let remote = Schema::compile(&json!({"$ref": "http://127.0.0.1:1/x"})).unwrap_err();
        assert_eq!(remote, SchemaError::Remote { url: "http://127.0.0.1:1/x".into() });
        assert!(remote.to_string().contains("put it into this one"), "{remote}");
        assert!(Schema::compile(&json!({"$defs": {"n": {"type": "number"}}, "$ref": "#/$defs/n"})).is_ok());
    }
}
