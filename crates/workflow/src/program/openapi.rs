//! Compiles `call: openapi`, and documents outside of the definition.

use super::compile::Compiler;
use super::tasks::settled;
use super::{OpenApi, Resource, ResourcePlace};
use crate::document::Located;

impl Compiler {
    pub(super) fn openapi(&mut self, value: &Located, with: Option<&Located>) -> Option<OpenApi> {
        let Some(with) = with else {
            let message = "`call: openapi` needs `with: {document, operationId}`";
            self.reader.problems.add(value.place, message);
            return None;
        };
        let known = ["document", "operationId", "parameters", "authentication", "output", "redirect"];
        self.reader.check_keys(with, "`with`", &known);
        let document = self.reader.required(with, "document", "`with`");
        let document = document.and_then(|document| self.resource(document));
        let operation = self.reader.required(with, "operationId", "`with`");
        let operation = operation.and_then(|operation| self.reader.text(operation, "`operationId`"));
        let parameters = with.get("parameters");
        let parameters = parameters.map(|parameters| self.reader.template(parameters, "`parameters`"));
        let authentication = with.get("authentication").map(|policy| self.authentication(policy));
        let output = self.http_output(with)?;
        let redirect = self.reader.boolean(with.get("redirect"), "`redirect`", false);
        Some(OpenApi {
            document: document?,
            operation: operation?,
            parameters: settled(parameters)?,
            authentication: settled(authentication)?,
            output,
            redirect,
        })
    }

    /// An external resource: `{name, endpoint}`. An endpoint without a scheme, or with `file:`, is a file of the app.
    pub(super) fn resource(&mut self, value: &Located) -> Option<Resource> {
        let value = self.reader.object(value, "`document`")?;
        self.reader.check_keys(value, "`document`", &["name", "endpoint"]);
        let endpoint = self.reader.required(value, "endpoint", "`document`")?;
        let (uri, authentication) = match endpoint.is_object() {
            false => (endpoint, None),
            true => {
                self.reader.check_keys(endpoint, "`endpoint`", &["uri", "authentication"]);
                let authentication = endpoint.get("authentication");
                let authentication = authentication.map(|policy| self.authentication(policy));
                (self.reader.required(endpoint, "uri", "`endpoint`")?, settled(authentication)?)
            }
        };
        let template = self.reader.template(uri, "`endpoint`")?;
        let place = match template.literal().and_then(|literal| literal.as_str()) {
            None if template.literal().is_some() => {
                self.reader
                    .problems
                    .add(uri.place, "the endpoint of a document is a URL or a file of the app");
                return None;
            }
            None => ResourcePlace::Url(template),
            Some(text) => match file_of(text) {
                Some(file) if is_absolute(text) => {
                    // A stored definition of an earlier version may have it.
                    let help = "name the file by its path in the folder of the app, such as apis/pets.yaml";
                    let message = format!("`{text}` is an absolute path; a document is a file of the app");
                    self.reader.deploy_problems.add_with_help(uri.place, message, help);
                    ResourcePlace::File(file)
                }
                Some(file) => ResourcePlace::File(file),
                None if text.starts_with("http://") || text.starts_with("https://") => {
                    ResourcePlace::Url(template)
                }
                None => {
                    let help = "name a file of the app, such as apis/pets.yaml, or an http or https URL";
                    let message = format!("`{text}` is neither a file nor a URL of a document");
                    self.reader.problems.add_with_help(uri.place, message, help);
                    return None;
                }
            },
        };
        Some(Resource { place, authentication })
    }
}

/// True if a `file:` URL has an absolute path.
fn is_absolute(text: &str) -> bool {
    let path = text.strip_prefix("file:").unwrap_or_default();
    path.strip_prefix("//").unwrap_or(path).starts_with('/')
}

/// The path of a file of the app, relative to its folder.
fn file_of(text: &str) -> Option<String> {
    let path = match text.strip_prefix("file:") {
        Some(path) => path.trim_start_matches('/'),
        None if text.contains("://") => return None,
        None => text.strip_prefix("./").unwrap_or(text),
    };
    let is_inside = !path.is_empty() && !path.starts_with('/') && !path.split('/').any(|part| part == "..");
    is_inside.then(|| path.to_owned())
}
