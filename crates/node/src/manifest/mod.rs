//! `edgefaas.toml`: what an app consists of and what its functions may do.
//!
//! `docs/manifest.md` describes every key. Parsing is pure: it looks at no disk and no other app.

mod check;
mod diagnostic;
mod parse;
mod permissions;
mod reader;
mod single_file;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub(crate) use check::{glob_error, glob_matches};
pub use check::{is_name, is_secret_name, parse_cron};
pub use diagnostic::{ManifestError, Problem};
pub use permissions::{Permission, PermissionError, PermissionKind, Permissions};
pub use single_file::{SingleFileError, single_file, single_file_name};

/// The manifest's file name in an app folder.
pub const FILE_NAME: &str = "edgefaas.toml";

/// A valid manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The app's name.
    pub app: String,
    /// The functions by name; at least one.
    pub functions: BTreeMap<String, Function>,
}

impl Manifest {
    /// Parses the text of a manifest; `file` is what its errors call it.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the file at once, each with its place and the remedy.
    pub fn parse(text: &str, file: &str) -> Result<Self, ManifestError> {
        parse::manifest(text, file)
    }
}

/// One function of an app.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Its source: a path relative to the app folder with `/` and without `..`.
    pub main: String,
    /// What makes it run, beside calls by its name.
    pub triggers: Vec<Trigger>,
    /// What one invocation, and all of them together, may use.
    pub limits: Limits,
    /// What it may reach. Nothing by default.
    pub permissions: Permissions,
    /// Plain values, as the function sees them.
    pub config: BTreeMap<String, serde_json::Value>,
    /// Names of the secrets it may read.
    pub secrets: Vec<String>,
}

/// The form of a function's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    /// A `.js`, `.mjs` or `.ts` file.
    Script,
    /// A `.wasm` component.
    Component,
    /// The folder of a Rust crate.
    Crate,
}

impl Function {
    /// What `main` names, by its extension.
    pub fn source_kind(&self) -> SourceKind {
        source_kind(&self.main)
    }
}

/// What a path names as a function's source, by its extension: a folder if it has none that is known.
pub fn source_kind(path: &str) -> SourceKind {
    match path.rsplit('/').next().unwrap_or_default().rsplit_once('.').map(|(_, extension)| extension) {
        Some("js" | "mjs" | "ts") => SourceKind::Script,
        Some("wasm") => SourceKind::Component,
        _ => SourceKind::Crate,
    }
}

/// What makes a function run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// A message that passes the broker.
    Mqtt {
        /// A valid topic filter.
        filter: String,
        /// Take the message away from subscribers and the retained store. False by default.
        consume: bool,
    },
    /// A request at the gateway.
    Http {
        /// Starts with `/`; `{name}` stands for a segment, a final `{*name}` for the rest.
        path: String,
        /// Upper-case methods; empty means any.
        methods: Vec<String>,
        /// What a request needs; by default nothing on loopback and the node's token elsewhere.
        auth: Option<HttpAuth>,
    },
    /// A schedule; see [`parse_cron`].
    Cron {
        /// Five fields, or six with seconds first.
        schedule: String,
    },
}

/// What a request at the gateway needs, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpAuth {
    /// Nothing.
    None,
    /// A JSON Web Token, or the node's token.
    Jwt,
    /// The node's token.
    Token,
}

impl fmt::Display for Trigger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mqtt { filter, consume: false } => write!(out, "mqtt {filter}"),
            Self::Mqtt { filter, consume: true } => write!(out, "mqtt {filter} (consumes)"),
            Self::Http { path, methods, .. } if methods.is_empty() => write!(out, "http {path}"),
            Self::Http { path, methods, .. } => write!(out, "http {} {path}", methods.join(",")),
            Self::Cron { schedule } => write!(out, "cron {schedule}"),
        }
    }
}

/// What a function may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory of an invocation: 64 MiB by default, from 64 KiB to 4 GiB.
    pub memory_bytes: usize,
    /// Wall-clock time of an invocation: 30 s by default, from 1 ms to 1 h.
    pub timeout: Duration,
    /// Invocations at the same time: 64 by default, from 1 to 10,000.
    pub concurrency: u32,
    /// The body of an event: 1 MiB by default, from 1 B to 32 MiB.
    pub payload_bytes: usize,
    /// The answer: 8 MiB by default, from 1 B to 32 MiB.
    pub reply_bytes: usize,
    /// Invocations that wait because `concurrency` of them run.
    pub queue: Queue,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            timeout: Duration::from_secs(30),
            concurrency: 64,
            payload_bytes: 1 << 20,
            reply_bytes: 8 << 20,
            queue: Queue::default(),
        }
    }
}

/// A function's queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// 1,000 by default, from 1 to 100,000.
    pub capacity: u32,
    /// Which invocation is next. First in, first out by default.
    pub order: QueueOrder,
    /// What happens when there is no room. The new invocation is rejected by default.
    pub when_full: WhenFull,
}

impl Default for Queue {
    fn default() -> Self {
        Self { capacity: 1000, order: QueueOrder::Fifo, when_full: WhenFull::Reject }
    }
}

/// Which of the waiting invocations is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOrder {
    /// The oldest.
    Fifo,
    /// The newest: under overload some are answered fast instead of all late.
    Lifo,
}

/// What happens to a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The new invocation is rejected.
    Reject,
    /// The oldest one that waits makes room, and is rejected.
    DropOldest,
}

#[cfg(test)]
mod tests;
