//! Any text as a document that describes a service. Nothing panics.

use edgefaas_workflow::api_document::{ApiDocument, AsyncOperation};
use serde_json::{Value, json};

/// The first line is the id of an operation, the rest is the document.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let (id, text) = text.split_once('\n').unwrap_or(("a", text));
    let _ = ApiDocument::is_one(text);
    let Ok(document) = ApiDocument::read(text) else { return };
    let operation = AsyncOperation { name: id.to_owned(), ..AsyncOperation::default() };
    let _ = document.address(&operation);
    let Ok(operation) = document.operation(id) else { return };
    for arguments in
        [Value::Null, json!({"a": 1, "body": {"x": [1]}}), json!({"a": ["b", {"c": null}], "body": "t"})]
    {
        for url in [None, Some("https://a.example/b/c.json")] {
            let _ = operation.request(&arguments, url);
        }
    }
}
