//! JSON Schema of inputs, outputs and exports.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use boon::{CompileError, Compiler, SchemaIndex, Schemas, UrlLoader};
use serde_json::Value;

/// What schemas call themselves while they are compiled.
const NAME: &str = "workflow:schema";
/// Characters of what is wrong with a value that are told.
const TOLD_CHARS: usize = 1000;

/// A schema that values are held against.
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
    /// Compiles a schema (JSON Schema, 2020-12 unless it says otherwise). References lead into the schema itself only: nothing
    /// is fetched or read.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let mut compiler = Compiler::new();
        compiler.use_loader(Box::new(Nowhere));
        compiler.add_resource(NAME, schema.clone()).map_err(|error| error.to_string())?;
        let mut schemas = Schemas::new();
        let index = compiler.compile(NAME, &mut schemas).map_err(problem)?;
        Ok(Self { schemas: Arc::new(schemas), index })
    }

    /// Whether a value fits.
    ///
    /// # Errors
    /// The places where it does not, and why.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        self.schemas.validate(value, self.index).map_err(|error| told(&error))
    }
}

fn problem(error: CompileError) -> String {
    match error {
        CompileError::ValidationError { src, .. } => told(&src),
        CompileError::LoadUrlError { src, .. } => src.to_string(),
        other => one_line(&other.to_string()),
    }
}

fn told(error: &boon::ValidationError<'_, '_>) -> String {
    let mut all: Vec<String> = Vec::new();
    leaves(error, &mut all);
    all.join("; ").chars().take(TOLD_CHARS).collect()
}

/// What is wrong, without the parts of the schema that it is wrong for.
fn leaves(error: &boon::ValidationError<'_, '_>, told: &mut Vec<String>) {
    if error.causes.is_empty() {
        let place = error.instance_location.to_string();
        let what = one_line(&error.kind.to_string());
        told.push(if place.is_empty() { what } else { format!("{place}: {what}") });
    }
    error.causes.iter().for_each(|cause| leaves(cause, told));
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where other schemas would come from.
struct Nowhere;

impl UrlLoader for Nowhere {
    fn load(&self, url: &str) -> Result<Value, Box<dyn Error>> {
        Err(format!("a schema is not fetched from elsewhere ({url}); put it into this one, under $defs")
            .into())
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
        let said = schema.check(&json!({"a": 0})).unwrap_err();
        assert!(said.starts_with("/a: "), "{said}");
        let said = schema.check(&json!({})).unwrap_err();
        assert!(said.contains("'a'"), "{said}");
    }

    #[test]
    fn nothing_is_fetched_or_read() {
        for reference in ["file:///etc/passwd", "http://127.0.0.1:1/x", "other.json"] {
            assert!(Schema::compile(&json!({"$ref": reference})).is_err(), "{reference}");
        }
        assert!(Schema::compile(&json!({"type": 5})).is_err());
        assert!(Schema::compile(&json!({"$defs": {"n": {"type": "number"}}, "$ref": "#/$defs/n"})).is_ok());
    }
}
