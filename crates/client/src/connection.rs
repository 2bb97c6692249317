//! The connection to a node's control API.

use std::error::Error as _;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use edgefaas_api::ControlEndpoint;
use edgefaas_api::Fingerprint;
use edgefaas_api::control::control_client::ControlClient;
use edgefaas_api::default_data_dir;
use http_body_util::{BodyExt, Limited};
use tonic::codegen::http::StatusCode;
use tonic::codegen::{InterceptedService, Service};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::args::Global;
use crate::dev_file;
use crate::exit::{Exit, Failure};
use crate::known_nodes::KnownNodes;
use crate::output;
use crate::pinned_tls::PinnedConnector;
use crate::proof::{self, FoundIn, OnceConnector, Unproven};

/// The largest message in either direction.
pub const MESSAGE_BYTES: usize = 64 << 20;

const DEFAULT_URL: &str = "http://127.0.0.1:7070";
/// The default port of the control API.
const DEFAULT_PORT: u16 = 7070;
/// Time limit for an answer of a node.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The largest answer of `/readyz` that is shown, in bytes.
const MAX_READY_BYTES: usize = 4096;

/// Number of connections on which a command asks for a proof, if the node closes the previous ones.
const PROOF_ATTEMPTS: u32 = 5;

/// A connected client that sends the token with every call.
pub type Client = ControlClient<InterceptedService<Channel, Bearer>>;

/// Adds `authorization: Bearer TOKEN`.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// The address of a node's control API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeUrl {
    /// Uses TLS.
    pub secure: bool,
    /// A name or an address; an IPv6 address has brackets.
    pub host: String,
    /// [`DEFAULT_PORT`] by default.
    pub port: u16,
}

impl NodeUrl {
    /// Reads `http://HOST[:PORT]`, `https://HOST[:PORT]` or `HOST[:PORT]`, which means http on this machine
    /// and https elsewhere: a node that others can reach speaks TLS.
    ///
    /// # Errors
    /// `text` has another form.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let wrong = || {
            let message = format!("`{text}` is not the URL of a node; write one such as {DEFAULT_URL}");
            Failure::new(Exit::Usage, message)
        };
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, text),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let authority: tonic::codegen::http::uri::Authority = authority.parse().map_err(|_| wrong())?;
        let host = authority.host().to_lowercase();
        if host.is_empty() || authority.as_str().contains('@') {
            return Err(wrong());
        }
        let secure = match scheme {
            Some("http") => false,
            Some("https") => true,
            None => !is_loopback_host(&host),
            Some(_) => return Err(wrong()),
        };
        // An IPv6 address has colons of its own, in brackets.
        let has_port = authority.as_str().rsplit(']').next().is_some_and(|rest| rest.contains(':'));
        let port = match authority.port_u16() {
            Some(port) => port,
            None if has_port => return Err(wrong()),
            None => DEFAULT_PORT,
        };
        Ok(Self { secure, host, port })
    }

    /// True for this machine's own address or name.
    pub fn is_loopback(&self) -> bool {
        is_loopback_host(&self.host)
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(out, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// A connected client for objects, which sends the token with every call.
pub type ObjectsClient =
    edgefaas_api::objects::objects_client::ObjectsClient<InterceptedService<Channel, Bearer>>;

/// A connected client for durable invocations, which sends the token with every call.
pub type InvocationsClient =
    edgefaas_api::invocations::invocations_client::InvocationsClient<InterceptedService<Channel, Bearer>>;

/// A connected client for the broker, which sends the token with every call.
pub type MessagesClient =
    edgefaas_api::messages::messages_client::MessagesClient<InterceptedService<Channel, Bearer>>;

/// A future that this crate compiles, and not its user: it contains HTTP/2.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = anyhow::Result<T>> + 'a>>;

/// Connects to the node that the options, the environment or the current folder name.
pub fn connect(global: &Global) -> Boxed<'_, Client> {
    Box::pin(async move {
        let (channel, bearer) = find(global).await?;
        Ok(client(channel, bearer))
    })
}

/// A connected client for the history, which sends the token with every call.
pub type HistoryClient =
    edgefaas_api::history::history_client::HistoryClient<InterceptedService<Channel, Bearer>>;

/// Connects to the history service of the same node.
pub async fn connect_history(global: &Global) -> anyhow::Result<HistoryClient> {
    let (channel, bearer) = find(global).await?;
    Ok(HistoryClient::new(InterceptedService::new(channel, bearer)))
}

/// Connects to the objects service of the same node.
pub async fn connect_objects(global: &Global) -> anyhow::Result<ObjectsClient> {
    let (channel, bearer) = find(global).await?;
    Ok(objects_client(channel, bearer))
}

/// Connects to the service of durable invocations of the same node.
pub fn connect_invocations(global: &Global) -> Boxed<'_, InvocationsClient> {
    Box::pin(async move {
        let (channel, bearer) = find(global).await?;
        let client = InvocationsClient::new(InterceptedService::new(channel, bearer));
        Ok(client.max_decoding_message_size(MESSAGE_BYTES))
    })
}

/// Connects to the messages service of the same node.
pub async fn connect_messages(global: &Global) -> anyhow::Result<MessagesClient> {
    let (channel, bearer) = find(global).await?;
    Ok(MessagesClient::new(InterceptedService::new(channel, bearer))
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES))
}

fn objects_client(channel: Channel, bearer: Bearer) -> ObjectsClient {
    ObjectsClient::new(InterceptedService::new(channel, bearer))
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES)
}

/// Asks the node whether it is ready: `/readyz`.
///
/// # Errors
/// The node does not answer, or is not ready; its answer says why.
pub fn ready(global: &Global) -> Boxed<'_, ()> {
    Box::pin(async move {
        let (mut channel, _) = find(global).await?;
        // The channel adds the address.
        let request =
            tonic::codegen::http::Request::get("http://node/readyz").body(tonic::body::Body::empty())?;
        std::future::poll_fn(|context| channel.poll_ready(context)).await?;
        let answer = channel.call(request).await?;
        let status = answer.status();
        if status == StatusCode::OK {
            return Ok(());
        }
        let body = Limited::new(answer.into_body(), MAX_READY_BYTES).collect().await;
        let reason = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned());
        let reason = output::line(reason.unwrap_or_default().trim());
        Err(Failure::new(Exit::Busy, format!("the node is not ready: {reason} ({status})")))
    })
}

fn client(channel: Channel, bearer: Bearer) -> Client {
    ControlClient::with_interceptor(channel, bearer)
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES)
}

/// The token of a call, with its source.
enum Token {
    None,
    /// The user gave it for this node, with `edgefaas login` or an option.
    Given(String),
    /// The command found it on this machine.
    Found(String, FoundIn),
}

impl Token {
    fn text(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Given(token) | Self::Found(token, _) => Some(token),
        }
    }
}

async fn find(global: &Global) -> anyhow::Result<(Channel, Bearer)> {
    let (dev, not_counted) =
        std::env::current_dir().map(|folder| dev_file::find(&folder)).unwrap_or_default();
    if global.node.is_none() && global.data_dir.is_none() {
        not_counted.iter().for_each(|reason| eprintln!("warning: {reason}"));
    }
    // The endpoint of a node on this machine that speaks TLS.
    let local = local_endpoint(global.data_dir.as_deref());
    let url = match (&global.node, &dev, &global.data_dir) {
        (Some(url), ..) => NodeUrl::parse(url)?,
        // A data directory selects its own node, not the one of this folder.
        (None, Some(dev), None) => NodeUrl::parse(&dev.control)?,
        (None, ..) => NodeUrl::parse(local.as_ref().map_or(DEFAULT_URL, |local| &local.url))?,
    };
    let known = if url.secure { KnownNodes::load()?.get(&url.to_string()).cloned() } else { None };
    let named = global.data_dir.is_some();
    let found = global.node.is_none() && !named;
    let dev_url = dev.as_ref().and_then(|dev| NodeUrl::parse(&dev.control).ok());
    let is_local = local.as_ref().is_some_and(|local| local.url == url.to_string());
    let pin = match (&known, &dev, &local) {
        (_, Some(dev), _) if dev_url.as_ref() == Some(&url) => {
            dev.fingerprint.as_ref().and_then(|text| text.parse().ok())
        }
        (_, _, Some(local)) if named || is_local => local.fingerprint.parse().ok(),
        (Some(known), ..) => known.pin(),
        _ => None,
    };
    let token = match (&global.token, dev) {
        // A given token is for the node that is named, not for one that is found.
        (Some(token), Some(dev)) if found && *token != dev.token => {
            let message = format!(
                "the given token is not that of the node of `edgefaas dev` at {url}, and was not sent; leave \
                 --token and EDGEFAAS_TOKEN out, or name the node it is for with --node URL"
            );
            return Err(Failure::new(Exit::Refused, message));
        }
        (Some(token), _) => Token::Given(token.clone()),
        (None, Some(dev)) if dev_url.as_ref() == Some(&url) => Token::Found(dev.token, FoundIn::DevFile),
        // A node with a certificate pinned by a login never gets the token of a data directory.
        (None, _) => match known.filter(|_| !(is_local || named && local.is_some())) {
            Some(known) => Token::Given(known.token),
            None => local_token(url.is_loopback() || is_local, global.data_dir.as_deref())?,
        },
    };
    open(&url, &token, pin).await
}

/// Connects to the control API at `url`; with TLS only to the node whose certificate has the fingerprint `pin`.
pub fn connect_to<'a>(
    url: &'a NodeUrl,
    token: Option<&str>,
    pin: Option<Fingerprint>,
) -> Boxed<'a, Client> {
    let token = token.map_or(Token::None, |token| Token::Given(token.to_owned()));
    Box::pin(async move {
        let (channel, bearer) = open(url, &token, pin).await?;
        Ok(client(channel, bearer))
    })
}

/// Connects to the objects service at `url`, as [`connect_to`] does.
pub fn connect_objects_to<'a>(url: &'a NodeUrl, token: Option<&str>) -> Boxed<'a, ObjectsClient> {
    let token = token.map_or(Token::None, |token| Token::Given(token.to_owned()));
    Box::pin(async move {
        let (channel, bearer) = open(url, &token, None).await?;
        Ok(objects_client(channel, bearer))
    })
}

async fn open(url: &NodeUrl, token: &Token, pin: Option<Fingerprint>) -> anyhow::Result<(Channel, Bearer)> {
    if url.secure && pin.is_none() {
        let message = format!(
            "the certificate of {url} is not known; run `edgefaas login {url}` once to check and trust it"
        );
        return Err(Failure::new(Exit::Refused, message));
    }
    if !url.secure && !url.is_loopback() && token.text().is_some() {
        let message = format!(
            "{url} would send the token over the network for everyone to read; use https: \
             `edgefaas login https://{}:{}`",
            url.host, url.port
        );
        return Err(Failure::new(Exit::Refused, message));
    }
    let bearer = token.text().map(|token| format!("Bearer {token}").parse()).transpose();
    let bearer = bearer.map_err(|_| {
        Failure::new(Exit::Usage, "the token has characters that a token cannot have; check --token")
    })?;
    // tonic sees http; the connector adds TLS.
    let endpoint = Endpoint::from_shared(format!("http://{}:{}", url.host, url.port))
        .map_err(|error| unreachable(url, &error))?
        .connect_timeout(CONNECT_TIMEOUT);
    let channel = if url.secure {
        let connector = PinnedConnector::new(&url.host, url.port, pin)?;
        let connected = endpoint.connect_with_connector(connector.clone()).await;
        connected.map_err(|error| match (connector.seen(), pin) {
            (Some(seen), Some(pin)) if seen != pin => changed(url, seen, pin),
            _ => unreachable(url, &error),
        })?
    } else if let Token::Found(token, found_in) = token {
        let mut attempt = 1;
        let mut closed = None;
        loop {
            let connector = OnceConnector::new(url);
            let connected = endpoint.connect_with_connector(connector.clone()).await;
            let mut channel = match (connected, closed.take()) {
                (Ok(channel), _) => channel,
                // What went before says more.
                (Err(_), Some(unproven)) => return Err(failure_of(&unproven)),
                (Err(error), None) => return Err(unreachable(url, &error)),
            };
            match proof::ask(&mut channel, &connector, url, token, found_in).await {
                Ok(()) => break channel,
                // Nothing was sent, and the node may have closed the connection in favour of a newer one.
                Err(error @ Unproven::Closed { .. }) if attempt < PROOF_ATTEMPTS => {
                    attempt += 1;
                    closed = Some(error);
                }
                Err(error) => return Err(failure_of(&error)),
            }
        }
    } else {
        endpoint.connect().await.map_err(|error| unreachable(url, &error))?
    };
    Ok((channel, Bearer(bearer)))
}

/// The error for another certificate than the pinned one: nothing was sent.
fn changed(url: &NodeUrl, seen: Fingerprint, pin: Fingerprint) -> anyhow::Error {
    let message = format!(
        "the certificate of {url} has the fingerprint {seen}, but {pin} is trusted; nothing was sent; if the \
         node prints the new fingerprint at its start, run `edgefaas login {url}` again, otherwise another program \
         intercepts the connection"
    );
    Failure::new(Exit::Refused, message)
}

/// Turns an error of a call into one with an exit code. The node's message names the operation, its object and
/// the remedy.
pub fn failure(status: &Status) -> anyhow::Error {
    // Only a status that this side made has a source: the connection broke.
    if status.source().is_some() {
        let reason = root_cause(status);
        let message = format!("the connection to the node broke: {reason}; is it still running?");
        return Failure::new(Exit::Unreachable, message);
    }
    let exit = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Exit::Refused,
        Code::NotFound => Exit::NotFound,
        Code::InvalidArgument | Code::AlreadyExists | Code::FailedPrecondition | Code::OutOfRange => {
            Exit::Invalid
        }
        Code::ResourceExhausted | Code::Unavailable => Exit::Busy,
        _ => Exit::Failed,
    };
    let message = output::message(status.message());
    let message = match (exit, message.as_str()) {
        (Exit::Refused, message) => format!(
            "the node refused the call: {message}; give its token with --token or EDGEFAAS_TOKEN, or its \
             data directory with --data-dir"
        ),
        (_, "") => format!("the node answered {}", status.code()),
        // The codec's message has the sizes in bytes, and no remedy.
        (Exit::Invalid, message) if is_too_large(status) => format!(
            "the message is too large for the node: {message}; the limit is a sixteenth of the node's memory limit, from 4 to \
             64 MiB: remove assets, or give the node more memory"
        ),
        (_, message) => message.to_owned(),
    };
    Failure::new(exit, message)
}

/// True for the codec's refusal of a large message. An index out of range has the same code.
fn is_too_large(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("message length too large")
}

fn failure_of(error: &Unproven) -> anyhow::Error {
    Failure::new(error.exit(), error.to_string())
}

/// The error if no node answers.
pub fn unreachable(url: &NodeUrl, error: &dyn std::error::Error) -> anyhow::Error {
    let message = format!(
        "no node answers at {url}: {}; start one with `edgefaas run` or `edgefaas dev PATH`, or name \
         another with --node URL",
        root_cause(error)
    );
    Failure::new(Exit::Unreachable, message)
}

/// The message of the first error of a chain.
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The endpoint that a node on this machine with TLS has written.
fn local_endpoint(data_dir: Option<&Path>) -> Option<ControlEndpoint> {
    ControlEndpoint::read(&data_dir.map_or_else(default_data_dir, PathBuf::from))
}

/// The token of a node on this machine. A node on another machine never gets it, unless a data
/// directory is named.
fn local_token(is_local: bool, data_dir: Option<&Path>) -> anyhow::Result<Token> {
    if data_dir.is_none() && !is_local {
        return Ok(Token::None);
    }
    let path = data_dir.map_or_else(default_data_dir, PathBuf::from).join("token");
    match std::fs::read_to_string(&path) {
        Ok(token) => Ok(Token::Found(token.trim().to_owned(), FoundIn::File(path))),
        // The node, if there is one, answers that it needs a token.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Token::None),
        Err(error) => {
            let message = format!(
                "the node's token {} cannot be read: {error}; run this as the node's user or give --token",
                path.display()
            );
            Err(Failure::new(Exit::Refused, message))
        }
    }
}

/// True if the URL names this machine.
pub fn is_loopback(url: &str) -> bool {
    NodeUrl::parse(url).is_ok_and(|url| url.is_loopback())
}

fn is_loopback_host(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_nodes() {
        for (text, expected) in [
            ("http://127.0.0.1:7070", Some("http://127.0.0.1:7070")),
            ("127.0.0.1:1", Some("http://127.0.0.1:1")),
            ("[::1]:1", Some("http://[::1]:1")),
            ("localhost", Some("http://localhost:7070")),
            ("Pi.local", Some("https://pi.local:7070")),
            ("https://pi/", Some("https://pi:7070")),
            ("https://[fe80::1]:1", Some("https://[fe80::1]:1")),
            ("http://pi:80", Some("http://pi:80")),
            ("ftp://pi", None),
            ("https://", None),
            ("", None),
            ("https://me@pi", None),
            ("127.0.0.1:99999", None),
            ("pi:", None),
            ("[::1]", Some("http://[::1]:7070")),
            ("https://pi/path", None),
            ("a b", None),
        ] {
            let parsed = NodeUrl::parse(text).ok().map(|url| url.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn the_local_token_is_for_local_nodes() {
        for (url, expected) in [
            ("http://127.0.0.1:7070", true),
            ("http://[::1]:7070", true),
            ("http://localhost:1", true),
            ("http://192.168.1.2:7070", false),
            ("http://127.0.0.1.example.com", false),
            ("nonsense", false),
        ] {
            assert_eq!(is_loopback(url), expected, "{url}");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "secret\n").unwrap();
        assert_eq!(local_token(false, Some(folder.path())).unwrap().text(), Some("secret"));
        assert_eq!(local_token(false, None).unwrap().text(), None);
    }

    #[tokio::test]
    async fn a_token_does_not_cross_the_network_in_the_clear() {
        let url = NodeUrl::parse("http://192.0.2.1:7070").unwrap();
        let error = connect_to(&url, Some("t"), None).await.unwrap_err().to_string();
        assert!(error.contains("for everyone to read"), "{error}");
        let url = NodeUrl::parse("https://192.0.2.1").unwrap();
        let error = connect_to(&url, Some("t"), None).await.unwrap_err().to_string();
        assert!(error.contains("edgefaas login https://192.0.2.1:7070"), "{error}");
    }
}
