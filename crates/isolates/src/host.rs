//! The interface between isolates and the node: the host calls of a function.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use bytes::Bytes;
pub use edgefaas_js_abi::{Change, FieldType, Read};
use serde::{Deserialize, Serialize};

use crate::event::{IncomingResponse, OutgoingRequest, Reply, StreamedResponse};

/// The key of `config` under which the SDKs read the name, zone and labels of the node, as JSON. No key of its own in `wit/`:
/// components that were built before still run.
pub const NODE_KEY: &str = "$node";

/// The future of a host call.
pub type HostFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// True if a function may open a TCP connection to an address without looking up a name.
pub type TcpPermission = Box<dyn Fn(SocketAddr) -> bool + Send + Sync>;

/// Held by an invocation for each of its TCP sockets, until it ends.
pub type SocketPermit = Box<dyn Send + Sync>;

/// Answers the host calls of one invocation.
///
/// The node implements it over its invoker, objects and broker; the tests and benches of this crate
/// implement it over plain memory. One value serves one invocation and is dropped with it, together with
/// its uncommitted writes.
pub trait Host: Send + 'static {
    /// Holds a message back until the invocation commits.
    fn publish(&mut self, message: PublishRequest) -> Result<(), HostError>;

    /// Starts a call of another function. Dropping the future cancels the call.
    fn call(
        &mut self,
        function: String,
        data: Bytes,
    ) -> Result<HostFuture<Result<Reply, HostError>>, HostError>;

    /// Starts a request to another server. Dropping the future closes its connection.
    ///
    /// # Errors
    /// Immediately: an invalid URL, a host that is not permitted, too many requests. From the future: no connection, no
    /// response in time, a response that is too large or of another protocol.
    fn fetch(
        &mut self,
        request: OutgoingRequest,
    ) -> Result<HostFuture<Result<IncomingResponse, HostError>>, HostError>;

    /// As [`Host::fetch`], with bodies that need not be whole. The body of the request is `body`, which the returned future waits
    /// for; that of `request` itself is empty. The body of the response comes in pieces.
    ///
    /// # Errors
    /// As [`Host::fetch`], and the error of `body`. A response that is too large without saying so fails in its body.
    fn fetch_streamed(
        &mut self,
        request: OutgoingRequest,
        body: HostFuture<Result<Bytes, HostError>>,
    ) -> Result<HostFuture<Result<StreamedResponse, FetchError>>, HostError>;

    /// The addresses that the function may open TCP connections to without looking up a name. None if it may open no
    /// connection at all.
    fn tcp(&mut self) -> Option<TcpPermission>;

    /// A TCP socket for the function.
    ///
    /// # Errors
    /// `Overloaded` if the function has its maximum of sockets.
    fn socket(&mut self) -> Result<SocketPermit, HostError>;

    /// Looks up a name that the function may open TCP connections to: its addresses, each with every port that is
    /// permitted.
    ///
    /// # Errors
    /// Immediately: a name that is not permitted. From the future: no address, or no permitted one.
    fn resolve(&mut self, name: &str) -> Result<HostFuture<Result<Vec<SocketAddr>, HostError>>, HostError>;

    /// Adds `amount` to a counter of an object.
    fn counter_add(&mut self, object: &str, field: &str, amount: i64) -> Result<(), HostError>;

    /// The value of a counter with this invocation's own additions.
    fn counter_value(&mut self, object: &str, field: &str) -> Result<i64, HostError>;

    /// Sets a register of an object.
    fn register_set(&mut self, object: &str, field: &str, value: Bytes) -> Result<(), HostError>;

    /// The value of a register, this invocation's own if it set one.
    fn register_get(&mut self, object: &str, field: &str) -> Result<Option<Bytes>, HostError>;

    /// Changes a field of an object, or an entry of a map in it: `path` has the keys that lead there through maps, and is
    /// empty for the field itself. Counters and registers that are fields come here from components that ask so, and by the
    /// methods above otherwise.
    ///
    /// # Errors
    /// A name, key or value that is invalid or over its limit, a field of another type, an object over its quota, a
    /// counter that would leave its range, an index or pointer that does not exist.
    fn object_change(
        &mut self,
        object: &str,
        field: &str,
        path: &[&str],
        change: Change<'_>,
    ) -> Result<(), HostError>;

    /// Reads a field, or an entry of a map in it, with this invocation's own changes. The kind of the answer
    /// follows from [`Read`]; an answer of another kind fails the function's call. A field that was never written has the initial
    /// value of its type.
    ///
    /// # Errors
    /// An invalid name or key, a field of another type.
    fn object_read(
        &mut self,
        object: &str,
        field: &str,
        path: &[&str],
        read: Read<'_>,
    ) -> Result<FieldValue, HostError>;

    /// Deletes a field of an object; without `field` all fields. Reads of this invocation see nothing of it afterwards, and a write
    /// makes a new field. A field that does not exist is no error.
    ///
    /// # Errors
    /// An invalid name, or more fields than an invocation may change.
    fn object_delete(&mut self, object: &str, field: Option<&str>) -> Result<(), HostError>;

    /// A line for the function's log.
    fn log(&mut self, level: LogLevel, message: String);

    /// A `config` value of the manifest as JSON text, or that of [`NODE_KEY`].
    fn config(&mut self, key: &str) -> Option<String>;

    /// All `config` keys of the manifest, in order.
    fn config_keys(&mut self) -> Vec<String>;

    /// A secret that the manifest names.
    fn secret(&mut self, name: &str) -> Option<String>;

    /// The names of the secrets that the manifest names and that are set.
    fn secret_names(&mut self) -> Vec<String>;
}

/// The answer to a [`Read`] of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// Value of a counter or bounded counter.
    Integer(i64),
    /// Value of a g-counter, or a bounded counter's share.
    Unsigned(u64),
    /// Value of a register; none if it was never set.
    Register(Option<Bytes>),
    /// Values of an mv-register, a g-set, a set or a list.
    Values(Vec<Bytes>),
    /// Value of an ew-flag or dw-flag, or true if a set has the element.
    Flag(bool),
    /// Value of a text.
    Text(String),
    /// Value of a json field, or a whole map as one JSON object.
    Json(String),
    /// The keys of a map and the types of their entries, in order.
    Keys(Vec<(String, FieldType)>),
}

impl FieldValue {
    /// True if this value can be the answer to `read`.
    pub fn answers(&self, read: &Read<'_>) -> bool {
        match read {
            Read::Contains { .. } => matches!(self, Self::Flag(_)),
            Read::MapKeys => matches!(self, Self::Keys(_)),
            Read::Share => matches!(self, Self::Unsigned(_)),
            Read::Value(field_type) => match field_type {
                FieldType::Counter | FieldType::BoundedCounter => matches!(self, Self::Integer(_)),
                FieldType::GCounter => matches!(self, Self::Unsigned(_)),
                FieldType::Register => matches!(self, Self::Register(_)),
                FieldType::MvRegister | FieldType::GSet | FieldType::Set | FieldType::List => {
                    matches!(self, Self::Values(_))
                }
                FieldType::EwFlag | FieldType::DwFlag => matches!(self, Self::Flag(_)),
                FieldType::Text => matches!(self, Self::Text(_)),
                FieldType::Map | FieldType::Json => matches!(self, Self::Json(_)),
            },
        }
    }
}

/// Reads from `host`, and checks that the answer is of the kind that `read` asks for.
pub(crate) fn read_object(
    host: &mut dyn Host,
    object: &str,
    field: &str,
    path: &[&str],
    read: Read<'_>,
) -> Result<FieldValue, HostError> {
    let value = host.object_read(object, field, path, read)?;
    if value.answers(&read) {
        return Ok(value);
    }
    let field_type = read.field_type();
    Err(HostError::Failed(format!(
        "the node has something else than the value of a {field_type} for field `{field}` of object `{object}`; \
         this is a mistake of the node's"
    )))
}

/// A message that a function publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishRequest {
    /// The topic name; no wildcards.
    pub topic: String,
    /// The payload.
    pub payload: Bytes,
    /// Quality of service, 0 to 2.
    pub qos: u8,
    /// The RETAIN flag.
    pub retain: bool,
    /// MQTT 5 content type.
    pub content_type: Option<String>,
    /// MQTT 5 response topic.
    pub response_topic: Option<String>,
    /// MQTT 5 correlation data.
    pub correlation_data: Option<Bytes>,
    /// MQTT 5 user properties, in order.
    pub user_properties: Vec<(String, String)>,
}

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

impl LogLevel {
    /// The level's name in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A host call was refused or failed. Functions see it as an error that they can catch, with this kind and text: the
/// `error` variant of `wit/`. The host writes the text for the author of the function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The manifest's permissions do not name it.
    #[error("not permitted: {0}")]
    NotPermitted(String),
    /// The requested thing does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The arguments are invalid.
    #[error("invalid: {0}")]
    Invalid(String),
    /// A limit is reached; try later.
    #[error("overloaded: {0}")]
    Overloaded(String),
    /// The call was carried out and failed.
    #[error("{0}")]
    Failed(String),
}

/// A request to another server has no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct FetchError {
    /// The kind, for programs.
    pub cause: FetchCause,
    /// The error with its text.
    pub error: HostError,
}

/// The kinds of a [`FetchError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchCause {
    /// The manifest's permissions do not name the server.
    Denied,
    /// The request is invalid.
    Invalid,
    /// A limit is reached.
    Overloaded,
    /// The server's name has no address.
    NoAddress,
    /// The address is not permitted.
    AddressDenied,
    /// The node has no route to the address.
    Unreachable,
    /// The server refuses connections.
    Refused,
    /// The connection was not made within the time limit.
    ConnectTimeout,
    /// The server's certificate is not trusted, or not its own.
    Certificate,
    /// TLS failed for another reason.
    Tls,
    /// The server closed the connection before it had answered.
    Closed,
    /// The response is not HTTP.
    Protocol,
    /// The body of the response is too large.
    TooLarge {
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// Anything else.
    Other,
}

impl From<HostError> for FetchError {
    fn from(error: HostError) -> Self {
        let cause = match &error {
            HostError::NotPermitted(_) => FetchCause::Denied,
            HostError::Invalid(_) => FetchCause::Invalid,
            HostError::Overloaded(_) => FetchCause::Overloaded,
            HostError::NotFound(_) | HostError::Failed(_) => FetchCause::Other,
        };
        Self { cause, error }
    }
}
