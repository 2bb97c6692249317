//! Errors of documents that describe a service, and of requests by them.

use crate::error::{ErrorKind, WorkflowError};

/// A document cannot be used for a call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiDocumentError {
    /// The text is neither JSON nor YAML.
    #[error("the document cannot be read: {reason}")]
    Unreadable {
        /// The parser's message.
        reason: String,
    },
    /// The document is of another kind.
    #[error("the document is not OpenAPI 2 or 3, nor AsyncAPI 2 or 3")]
    Unknown,
    /// A call of OpenAPI names a document of AsyncAPI, or the other way around.
    #[error("the document is not {wanted}")]
    OtherKind {
        /// The kind that the call needs.
        wanted: &'static str,
    },
    /// No operation has this id.
    #[error("the document has no operation `{id}`{}", near.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
    UnknownOperation {
        /// The id.
        id: String,
        /// A similar id.
        near: Option<String>,
    },
    /// A reference leads nowhere.
    #[error("the reference `{reference}` names a part that the document does not have")]
    Reference {
        /// The reference.
        reference: String,
    },
    /// A reference leads to another document.
    #[error(
        "the reference `{reference}` leads to another document, and only this one is read: put that part into it, as a bundler of \
         such documents does"
    )]
    OtherDocument {
        /// The reference.
        reference: String,
    },
    /// A reference leads through too many others.
    #[error("the reference `{reference}` leads through more than {max} others, perhaps in a circle")]
    Circle {
        /// The first reference.
        reference: String,
        /// The maximum number of references.
        max: usize,
    },
    /// A part of the document does not have its form.
    #[error("{what} in the document: {reason}")]
    Part {
        /// The part.
        what: String,
        /// The parser's message.
        reason: String,
    },
    /// The document does not say where the service is.
    #[error("the document names no server; add `servers`")]
    NoServer,
    /// The document has no server of this name or protocol.
    #[error("the document has no server {wanted}; it has {}", known.join(", "))]
    UnknownServer {
        /// The name or the protocol.
        wanted: String,
        /// The names of its servers.
        known: Vec<String>,
    },
    /// The server speaks another protocol than MQTT.
    #[error(
        "server `{server}` speaks `{protocol}`; this node speaks mqtt and mqtt5: name another `server`, or call a function"
    )]
    Protocol {
        /// The name of the server.
        server: String,
        /// Its protocol.
        protocol: String,
    },
    /// The server is another broker.
    #[error(
        "server `{server}` is `{host}`, another broker; a workflow uses the broker of its node: add a server with the host \
         `localhost` to the document, or name the topic as `channel`, and join the brokers by a bridge"
    )]
    OtherBroker {
        /// The name of the server.
        server: String,
        /// Its host.
        host: String,
    },
}

/// The arguments of a call do not fit its operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiRequestError {
    /// The document cannot be used.
    #[error(transparent)]
    Document(#[from] ApiDocumentError),
    /// A required argument is missing.
    #[error("operation `{operation}` needs the parameter `{name}` ({place})")]
    Missing {
        /// The operation.
        operation: String,
        /// The parameter.
        name: String,
        /// Its place in the request.
        place: String,
    },
    /// The operation has no such parameter.
    #[error("operation `{operation}` has no parameter `{name}`; it has {}", known.join(", "))]
    Unknown {
        /// The operation.
        operation: String,
        /// The parameter.
        name: String,
        /// The parameters that it has.
        known: Vec<String>,
    },
    /// The arguments are not an object.
    #[error("`parameters` of operation `{operation}` is not an object")]
    NoObject {
        /// The operation.
        operation: String,
    },
    /// The operation takes a body that is not supported.
    #[error("operation `{operation}` takes {media_type}; bodies are JSON, text or forms without files")]
    Body {
        /// The operation.
        operation: String,
        /// The media type.
        media_type: String,
    },
    /// Server and path are not a URL.
    #[error("`{url}` of operation `{operation}` is not an http or https URL")]
    Url {
        /// The operation.
        operation: String,
        /// The text.
        url: String,
    },
}

impl From<ApiDocumentError> for WorkflowError {
    fn from(error: ApiDocumentError) -> Self {
        Self::new(ErrorKind::Configuration, error.to_string())
    }
}

impl From<ApiRequestError> for WorkflowError {
    fn from(error: ApiRequestError) -> Self {
        let kind = match &error {
            ApiRequestError::Document(_) | ApiRequestError::Url { .. } | ApiRequestError::Body { .. } => {
                ErrorKind::Configuration
            }
            ApiRequestError::Missing { .. }
            | ApiRequestError::Unknown { .. }
            | ApiRequestError::NoObject { .. } => ErrorKind::Validation,
        };
        Self::new(kind, error.to_string())
    }
}
