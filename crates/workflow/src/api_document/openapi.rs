//! Operations of OpenAPI documents, and requests for them.

use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use super::parameters::{Filled, Parameter, fill_parameters};
use super::{ApiDocument, ApiDocumentError, ApiKind, ApiRequestError, suggestion};
use crate::instance::RequestParts;

/// The methods of a path.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
/// The name of the argument that is the request's body.
pub(super) const BODY: &str = "body";

/// An operation of a document.
#[derive(Debug)]
pub struct Operation {
    id: String,
    method: String,
    /// The URL of the server; relative if the document's is.
    server: String,
    path: String,
    pub(super) parameters: Vec<Parameter>,
    body: Option<Body>,
}

/// The body of a request.
#[derive(Debug)]
struct Body {
    media_types: Vec<String>,
    required: bool,
}

/// The parts of an operation object that a call needs.
#[derive(Deserialize)]
struct OperationObject {
    #[serde(default)]
    parameters: Vec<Value>,
    #[serde(rename = "requestBody")]
    request_body: Option<Value>,
    /// OpenAPI 2.
    consumes: Option<Vec<String>>,
    #[serde(default)]
    servers: Vec<Server>,
}

#[derive(Deserialize)]
struct Server {
    url: String,
    #[serde(default)]
    variables: Map<String, Value>,
}

#[derive(Deserialize)]
struct RequestBody {
    #[serde(default)]
    content: Map<String, Value>,
    #[serde(default)]
    required: bool,
}

impl Server {
    /// Its URL with the default values of its variables.
    fn url(&self) -> String {
        let mut url = self.url.clone();
        for (name, variable) in &self.variables {
            let default = variable.get("default").and_then(Value::as_str).unwrap_or_default();
            url = url.replace(&format!("{{{name}}}"), default);
        }
        url
    }
}

impl ApiDocument {
    /// The operation with this id.
    ///
    /// # Errors
    /// The document is not OpenAPI, has no such operation, or a part of it is invalid.
    pub fn operation(&self, id: &str) -> Result<Operation, ApiDocumentError> {
        if !matches!(self.kind, ApiKind::OpenApi2 | ApiKind::OpenApi3) {
            return Err(ApiDocumentError::OtherKind { wanted: "OpenAPI" });
        }
        let mut known = Vec::new();
        for (path, item) in self.root.get("paths").and_then(Value::as_object).into_iter().flatten() {
            let item = self.resolved(item)?;
            for method in METHODS {
                let Some(operation) = item.get(method) else { continue };
                match operation.get("operationId").and_then(Value::as_str) {
                    Some(found) if found == id => {
                        return self.operation_of(id, method, path, item, operation);
                    }
                    other => known.extend(other),
                }
            }
        }
        let near = suggestion(id, known.into_iter());
        Err(ApiDocumentError::UnknownOperation { id: id.to_owned(), near })
    }

    fn operation_of(
        &self,
        id: &str,
        method: &str,
        path: &str,
        item: &Value,
        operation: &Value,
    ) -> Result<Operation, ApiDocumentError> {
        let what = format!("operation `{id}`");
        let object: OperationObject = self.part(operation, &what)?;
        let mut parameters: Vec<Parameter> = Vec::new();
        let of_path = item.get("parameters").and_then(Value::as_array).into_iter().flatten();
        let of_operation = &object.parameters;
        for value in of_path.chain(of_operation) {
            let parameter: Parameter = self.part(self.resolved(value)?, &what)?;
            // Those of the operation override those of the path.
            parameters.retain(|known| !known.is_same(&parameter));
            parameters.push(parameter);
        }
        let body = match (&object.request_body, self.kind) {
            (Some(body), ApiKind::OpenApi3) => {
                let body: RequestBody = self.part(self.resolved(body)?, &what)?;
                let media_types = body.content.keys().cloned().collect();
                Some(Body { media_types, required: body.required })
            }
            _ => parameters.iter().find(|parameter| parameter.place == "body").map(|parameter| Body {
                media_types: object.consumes.clone().or_else(|| self.consumes()).unwrap_or_default(),
                required: parameter.required,
            }),
        };
        let server = match self.kind {
            ApiKind::OpenApi2 => self.host(),
            _ => self.server(&object.servers, item)?,
        };
        Ok(Operation {
            id: id.to_owned(),
            method: method.to_ascii_uppercase(),
            server,
            path: path.to_owned(),
            parameters,
            body,
        })
    }

    fn consumes(&self) -> Option<Vec<String>> {
        let types = self.root.get("consumes")?.as_array()?;
        Some(types.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect())
    }

    /// The first server of an operation, of its path, or of the document.
    fn server(&self, of_operation: &[Server], item: &Value) -> Result<String, ApiDocumentError> {
        if let Some(server) = of_operation.first() {
            return Ok(server.url());
        }
        for servers in [item.get("servers"), self.root.get("servers")].into_iter().flatten() {
            let servers: Vec<Server> = self.part(servers, "`servers`")?;
            if let Some(server) = servers.first() {
                return Ok(server.url());
            }
        }
        // The server of the document (OpenAPI 3.1, section "OpenAPI Object").
        Ok("/".to_owned())
    }

    /// `schemes`, `host` and `basePath` of OpenAPI 2.
    fn host(&self) -> String {
        let text = |key: &str| self.root.get(key).and_then(Value::as_str);
        let path = text("basePath").unwrap_or_default();
        let Some(host) = text("host") else { return format!("/{}", path.trim_start_matches('/')) };
        let schemes = self.root.get("schemes").and_then(Value::as_array);
        let has = |scheme: &str| schemes.is_some_and(|known| known.iter().any(|known| known == scheme));
        match (has("https"), has("http")) {
            (true, _) => format!("https://{host}{path}"),
            (false, true) => format!("http://{host}{path}"),
            // The scheme of the document itself.
            (false, false) => format!("//{host}{path}"),
        }
    }
}

impl Operation {
    /// The request of a call with these arguments: an object, or null for none. `document_url` is the URL of the document, for
    /// servers that are relative to it.
    ///
    /// # Errors
    /// The arguments do not fit the operation, or the document does not say where the server is.
    pub fn request(
        &self,
        arguments: &Value,
        document_url: Option<&str>,
    ) -> Result<RequestParts, ApiRequestError> {
        let operation = || self.id.clone();
        let no_arguments = Map::new();
        let arguments = match arguments {
            Value::Object(arguments) => arguments,
            Value::Null => &no_arguments,
            _ => return Err(ApiRequestError::NoObject { operation: operation() }),
        };
        self.check_names(arguments)?;
        let Filled { path, query, headers, form } = fill_parameters(self, &self.id, &self.path, arguments)?;
        let mut url = self.url(&path, document_url)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = RequestParts { method: self.method.clone(), headers, ..RequestParts::default() };
        if !form.is_empty() {
            request.set_form(form);
        } else if let Some(body) = &self.body {
            match arguments.get(self.body_name()) {
                None | Some(Value::Null) if body.required => {
                    let name = self.body_name().to_owned();
                    return Err(ApiRequestError::Missing {
                        operation: operation(),
                        name,
                        place: BODY.to_owned(),
                    });
                }
                None | Some(Value::Null) => {}
                Some(value) => self.set_body(&mut request, body, value)?,
            }
        }
        request.url = url.into();
        Ok(request)
    }

    /// The argument that is the body: `body` in OpenAPI 3, the name of the parameter in OpenAPI 2.
    fn body_name(&self) -> &str {
        self.parameters.iter().find(|known| known.place == "body").map_or(BODY, |known| &known.name)
    }

    fn check_names(&self, arguments: &Map<String, Value>) -> Result<(), ApiRequestError> {
        let is_known = |name: &str| {
            self.parameters.iter().any(|known| known.name == *name)
                || (self.body.is_some() && name == self.body_name())
        };
        let Some(name) = arguments.keys().find(|name| !is_known(name)) else { return Ok(()) };
        let mut known: Vec<String> = self.parameters.iter().map(|known| known.name.clone()).collect();
        if self.body.is_some() && !known.iter().any(|known| known == self.body_name()) {
            known.push(BODY.to_owned());
        }
        if known.is_empty() {
            known.push("none".to_owned());
        }
        Err(ApiRequestError::Unknown { operation: self.id.clone(), name: name.clone(), known })
    }

    fn url(&self, path: &str, document_url: Option<&str>) -> Result<Url, ApiRequestError> {
        let server = match document_url.and_then(|url| Url::parse(url).ok()) {
            Some(document) => document.join(&self.server).map(String::from).unwrap_or_default(),
            // A document of the app has no URL.
            None if self.server.starts_with("//") => format!("https:{}", self.server),
            None if self.server.starts_with('/') => return Err(ApiDocumentError::NoServer.into()),
            None => self.server.clone(),
        };
        let url = format!("{}{path}", server.trim_end_matches('/'));
        match Url::parse(&url) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(url),
            _ => Err(ApiRequestError::Url { operation: self.id.clone(), url }),
        }
    }

    fn set_body(
        &self,
        request: &mut RequestParts,
        body: &Body,
        value: &Value,
    ) -> Result<(), ApiRequestError> {
        let is_json = |name: &&String| {
            let name = name.split(';').next().unwrap_or_default().trim();
            name == "application/json" || name.ends_with("+json") || name == "*/*"
        };
        let json = body.media_types.iter().find(is_json);
        let media_type = match (json, body.media_types.first()) {
            (Some(name), _) if name != "*/*" => name.as_str(),
            (Some(_), _) | (None, None) => "application/json",
            (None, Some(first)) => first.as_str(),
        };
        let is_media = |wanted: &str| media_type.starts_with(wanted);
        match value {
            Value::Object(fields) if is_media("application/x-www-form-urlencoded") => {
                let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                request.set_form(fields.iter().map(|(name, value)| (name.clone(), text(value))).collect());
                return Ok(());
            }
            Value::String(text) if json.is_none() && !body.media_types.is_empty() => {
                request.body = text.clone().into_bytes();
            }
            _ if json.is_some() || body.media_types.is_empty() => {
                request.body = value.to_string().into_bytes()
            }
            _ => {
                let media_type = media_type.to_owned();
                return Err(ApiRequestError::Body { operation: self.id.clone(), media_type });
            }
        }
        request.headers.push(("content-type".to_owned(), media_type.to_owned()));
        Ok(())
    }
}
