//! The manifest of an app that is a single file.

use std::path::Path;

use super::check::{NAME_RULE, is_name};
use super::permissions::{Permission, PermissionKind};

/// The name of a file is not valid for an app.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the function would be called `{name}` after its file, but {NAME_RULE}; rename the file")]
pub struct SingleFileError {
    /// The file's name without its extension.
    pub name: String,
}

/// The name of the function, and of its app, that a single file makes: the file's name without its
/// extension.
///
/// # Errors
///
/// When that is not a function's name.
pub fn single_file_name(file: &Path) -> Result<String, SingleFileError> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if is_name(&name) { Ok(name) } else { Err(SingleFileError { name }) }
}

/// The text of a manifest for an app of one function, both called `name`, without triggers.
pub fn single_file(name: &str, main: &str, allow: &[Permission]) -> String {
    use toml::{Table, Value};
    let mut function = Table::from_iter([("main".to_owned(), Value::from(main))]);
    grant(&mut function, allow);
    let functions = Table::from_iter([(name.to_owned(), Value::Table(function))]);
    Table::from_iter([
        ("app".to_owned(), Value::from(name)),
        ("functions".to_owned(), Value::Table(functions)),
    ])
    .to_string()
}

/// The text of a manifest for an app called `app` that is the one workflow `name` in `file`.
pub fn single_workflow(app: &str, name: &str, file: &str, allow: &[Permission]) -> String {
    use toml::{Table, Value};
    let mut workflow = Table::new();
    grant(&mut workflow, allow);
    let files = Value::Array(vec![Value::from(glob::Pattern::escape(file))]);
    let mut workflows = Table::from_iter([("files".to_owned(), files)]);
    if !workflow.is_empty() {
        workflows.insert(name.to_owned(), Value::Table(workflow));
    }
    Table::from_iter([
        ("app".to_owned(), Value::from(app)),
        ("workflows".to_owned(), Value::Table(workflows)),
    ])
    .to_string()
}

fn grant(to: &mut toml::Table, allow: &[Permission]) {
    use toml::{Table, Value};
    let mut permissions = Table::new();
    for kind in PermissionKind::ALL {
        let patterns: Vec<Value> = allow
            .iter()
            .filter(|permission| permission.kind == kind)
            .map(|permission| Value::from(permission.pattern.as_str()))
            .collect();
        if !patterns.is_empty() {
            permissions.insert(kind.as_str().into(), Value::Array(patterns));
        }
    }
    if !permissions.is_empty() {
        to.insert("permissions".into(), Value::Table(permissions));
    }
}
