//! JSON Schema of inputs, outputs and exports.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// Errors of one value that are told.
const TOLD: usize = 5;

/// A schema that values are held against.
#[derive(Clone)]
pub struct Schema(Arc<jsonschema::Validator>);

impl fmt::Debug for Schema {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Schema")
    }
}

impl Schema {
    /// Compiles a schema. References lead into the schema itself only: nothing is fetched.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let options = jsonschema::options();
        options.build(schema).map(|validator| Self(Arc::new(validator))).map_err(|error| error.to_string())
    }

    /// Whether a value fits.
    ///
    /// # Errors
    /// The first few places where it does not.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        if self.0.is_valid(value) {
            return Ok(());
        }
        let told = self.0.iter_errors(value).take(TOLD).map(|error| {
            let message: String = error.to_string().chars().take(200).collect();
            match error.instance_path().to_string() {
                path if path.is_empty() => message,
                path => format!("{path}: {message}"),
            }
        });
        Err(told.collect::<Vec<_>>().join("; "))
    }
}
