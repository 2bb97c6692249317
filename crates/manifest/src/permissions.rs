//! Permissions of a function. It may use only the topics, functions, objects and servers that they name.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use edgefaas_broker::TopicFilter;
use edgefaas_broker::topic::validate_filter;

use super::check::{glob_error, glob_matches};
use super::hosts::{HttpPattern, TcpHost, TcpTarget};
use super::reader::suggestion;

/// The permissions of one function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Filters of the topics it may publish to.
    pub publish: Vec<TopicFilter>,
    /// Patterns of function names, in which `*` stands for any characters.
    pub call: Vec<String>,
    /// Patterns of object names, in which `*` stands for any characters, `/` among them.
    pub objects: Vec<String>,
    /// Servers it may send HTTP requests to.
    pub http: Arc<[HttpPattern]>,
    /// Servers it may open TCP connections to.
    pub tcp: Arc<[TcpTarget]>,
}

impl Permissions {
    /// Whether it may publish to this topic name.
    pub fn allows_publish(&self, topic: &str) -> bool {
        self.publish.iter().any(|filter| filter.matches(topic))
    }

    /// Whether it may call this function.
    pub fn allows_call(&self, function: &str) -> bool {
        self.call.iter().any(|pattern| glob_matches(pattern, function))
    }

    /// Whether it may open a TCP connection to this address without a lookup of a name.
    pub fn allows_tcp(&self, address: SocketAddr) -> bool {
        self.tcp.iter().any(|target| target.names_address(address))
    }

    /// The ports of a name that it may open TCP connections to.
    pub fn tcp_ports(&self, name: &str) -> Vec<u16> {
        let name = name.trim_end_matches('.');
        let named = |target: &&TcpTarget| match &target.host {
            TcpHost::Name(host) => host.eq_ignore_ascii_case(name),
            TcpHost::Network(_) => false,
        };
        self.tcp.iter().filter(named).map(|target| target.port).collect()
    }

    /// Whether it may read and write this object.
    pub fn allows_object(&self, object: &str) -> bool {
        self.objects.iter().any(|pattern| glob_matches(pattern, object))
    }
}

/// One permission as written on a command line: `KIND=PATTERN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Permission {
    /// The key of `permissions` it belongs to.
    pub kind: PermissionKind,
    /// The allowed topics, functions, objects or servers.
    pub pattern: String,
}

/// The keys of `permissions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PermissionKind {
    /// Topics to publish to.
    Publish,
    /// Functions to call.
    Call,
    /// Objects to read and write.
    Objects,
    /// Servers to send HTTP requests to.
    Http,
    /// Servers to open TCP connections to.
    Tcp,
}

impl PermissionKind {
    pub(super) const ALL: [Self; 5] = [Self::Publish, Self::Call, Self::Objects, Self::Http, Self::Tcp];

    /// Its key in the manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Call => "call",
            Self::Objects => "objects",
            Self::Http => "http",
            Self::Tcp => "tcp",
        }
    }

    /// The reason why a pattern of this kind is invalid; `None` if it is valid.
    pub(super) fn pattern_error(self, pattern: &str) -> Option<String> {
        match self {
            Self::Publish => validate_filter(pattern).err().map(|error| error.to_string()),
            Self::Call | Self::Objects => glob_error(pattern).map(str::to_owned),
            Self::Http => pattern.parse::<HttpPattern>().err().map(|error| error.to_string()),
            Self::Tcp => pattern.parse::<TcpTarget>().err().map(|error| error.to_string()),
        }
    }
}

impl fmt::Display for PermissionKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// A permission on the command line is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PermissionError {
    /// `=` is missing.
    #[error("`{text}` is not a permission; write KIND=PATTERN, such as publish=alerts/#")]
    Form {
        /// The text of the user.
        text: String,
    },
    /// The part before `=` is not a kind.
    #[error("`{kind}` is not a kind of permission; {help}")]
    Kind {
        /// The text of the user.
        kind: String,
        /// The known kinds.
        help: String,
    },
    /// The part after `=` is invalid.
    #[error("the pattern `{pattern}` of the permission `{kind}` is invalid: {reason}")]
    Pattern {
        /// The kind of the permission.
        kind: PermissionKind,
        /// The text of the user.
        pattern: String,
        /// The reason.
        reason: String,
    },
}

impl FromStr for Permission {
    type Err = PermissionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, pattern) =
            text.split_once('=').ok_or_else(|| PermissionError::Form { text: text.into() })?;
        let known = PermissionKind::ALL.map(PermissionKind::as_str);
        let kind = PermissionKind::ALL
            .into_iter()
            .find(|known| known.as_str() == kind)
            .ok_or_else(|| PermissionError::Kind { kind: kind.into(), help: suggestion(kind, &known) })?;
        match kind.pattern_error(pattern) {
            Some(reason) => Err(PermissionError::Pattern { kind, pattern: pattern.into(), reason }),
            None => Ok(Self { kind, pattern: pattern.into() }),
        }
    }
}
