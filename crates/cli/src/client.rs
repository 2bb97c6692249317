//! The connection to a node's control API.

use std::error::Error as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use edgefaas_node::config::default_data_dir;
use edgefaas_node::control::proto::control_client::ControlClient;
use tonic::codegen::InterceptedService;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::args::Global;
use crate::dev_file;
use crate::exit::{Exit, Failure};
use crate::output;

/// The largest message either side sends.
pub const MESSAGE_BYTES: usize = 64 << 20;

const DEFAULT_URL: &str = "http://127.0.0.1:7070";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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

/// Connects to the node that the options, the environment or the current folder name.
pub async fn connect(global: &Global) -> anyhow::Result<Client> {
    let dev = std::env::current_dir().ok().and_then(|folder| dev_file::find(&folder));
    let url = match (&global.node, &dev, &global.data_dir) {
        (Some(url), ..) if url.contains("://") => url.clone(),
        (Some(url), ..) => format!("http://{url}"),
        // A data directory says which node is meant, and that it is not the one of this folder.
        (None, Some(dev), None) => dev.control.clone(),
        (None, ..) => DEFAULT_URL.to_owned(),
    };
    let found = global.node.is_none() && global.data_dir.is_none();
    let token = match (&global.token, dev) {
        // A token that is given is meant for the node that is named, not for one that is found.
        (Some(token), Some(dev)) if found && *token != dev.token => {
            let message = format!(
                "the token given is not that of the node of `edgefaas dev` at {url}, and was not sent; leave \
                 --token and EDGEFAAS_TOKEN out, or name the node it is for with --node URL"
            );
            return Err(Failure::new(Exit::Refused, message));
        }
        (Some(token), _) => Some(token.clone()),
        (None, Some(dev)) if dev.control == url => Some(dev.token),
        (None, _) => local_token(&url, global.data_dir.as_deref())?,
    };
    connect_to(&url, token.as_deref()).await
}

/// Connects to the control API at `url`.
pub async fn connect_to(url: &str, token: Option<&str>) -> anyhow::Result<Client> {
    if url.starts_with("https://") {
        let message = format!("`{url}`: TLS to the control API is not supported yet; use an http:// URL");
        return Err(Failure::new(Exit::Usage, message));
    }
    let endpoint = Endpoint::from_shared(url.to_owned())
        .ok()
        .filter(|endpoint| endpoint.uri().host().is_some())
        .ok_or_else(|| {
            let message = format!("`{url}` is no URL of a node; write one such as {DEFAULT_URL}");
            Failure::new(Exit::Usage, message)
        })?;
    let bearer = token.map(|token| format!("Bearer {token}").parse()).transpose().map_err(|_| {
        Failure::new(Exit::Usage, "the token has characters that a token cannot have; check --token")
    })?;
    let channel = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .connect()
        .await
        .map_err(|error| unreachable(url, &error))?;
    Ok(ControlClient::with_interceptor(channel, Bearer(bearer))
        .max_decoding_message_size(MESSAGE_BYTES)
        .max_encoding_message_size(MESSAGE_BYTES))
}

/// Turns an error of a call into one with an exit code. The node's message says what, on what and what
/// to do.
pub fn failure(status: &Status) -> anyhow::Error {
    // Only a status made on this side has a source: the connection is gone.
    if status.source().is_some() {
        let reason = root_cause(status);
        let message = format!("the connection to the node broke: {reason}; is it still running?");
        return Failure::new(Exit::Unreachable, message);
    }
    let exit = match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Exit::Refused,
        Code::NotFound => Exit::NotFound,
        Code::InvalidArgument | Code::AlreadyExists | Code::FailedPrecondition => Exit::Invalid,
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
        (_, message) => message.to_owned(),
    };
    Failure::new(exit, message)
}

fn unreachable(url: &str, error: &tonic::transport::Error) -> anyhow::Error {
    let message = format!(
        "no node answers at {url}: {}; start one with `edgefaas run` or `edgefaas dev PATH`, or name \
         another with --node URL",
        root_cause(error)
    );
    Failure::new(Exit::Unreachable, message)
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// The token that a node on this machine wrote. A node elsewhere never gets to see it, unless a data
/// directory is named.
fn local_token(url: &str, data_dir: Option<&Path>) -> anyhow::Result<Option<String>> {
    if data_dir.is_none() && !is_loopback(url) {
        return Ok(None);
    }
    let path = data_dir.map_or_else(default_data_dir, PathBuf::from).join("token");
    match std::fs::read_to_string(&path) {
        Ok(token) => Ok(Some(token.trim().to_owned())),
        // The node says that it needs one, if there is a node at all.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!(
                "the node's token {} cannot be read: {error}; run this as the node's user or give --token",
                path.display()
            );
            Err(Failure::new(Exit::Refused, message))
        }
    }
}

/// True if the URL names this machine itself.
pub fn is_loopback(url: &str) -> bool {
    let Ok(uri) = url.parse::<tonic::codegen::http::Uri>() else { return false };
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let url = "http://192.168.1.2:7070";
        assert_eq!(local_token(url, Some(folder.path())).unwrap().as_deref(), Some("secret"));
        assert_eq!(local_token(url, None).unwrap(), None);
    }
}
