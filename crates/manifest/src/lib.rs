//! `edgefaas.toml`: what an app consists of and what its functions may do.
//!
//! `docs/manifest.md` describes every key. Parsing is pure: it looks at no disk and no other app.

mod addresses;
mod check;
mod cron;
mod diagnostic;
mod hosts;
mod object_class;
mod parse;
mod permissions;
mod reader;
mod single_file;
pub mod topics;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use addresses::AddressKind;
pub use check::{NODE_TRIGGERS, glob_error, glob_matches, is_asset_name, is_name, is_secret_name};
pub use cron::{next_after, parse_cron};
pub use diagnostic::{ManifestError, Problem};
pub use hosts::{HttpPattern, TcpHost, TcpTarget, address_of, may_lead_to};
pub use object_class::{Classes, ObjectClass, ObjectDurability, Origin, Recovery};
pub use permissions::{Permission, PermissionError, PermissionKind, Permissions};
pub use single_file::{SingleFileError, single_file, single_file_name, single_workflow};

/// The manifest's file name in an app folder.
pub const FILE_NAME: &str = "edgefaas.toml";

/// A valid manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The app's name.
    pub app: String,
    /// The functions by name; at least one where there are no workflows.
    pub functions: BTreeMap<String, Function>,
    /// The workflows.
    pub workflows: Workflows,
    /// Files that all functions may read in place: paths relative to the app folder, with `/`, where `*`, `**`, `?` and
    /// `[…]` stand for what they do in a shell.
    pub assets: Vec<String>,
    /// How objects are kept, by patterns of their names in which `*` stands for any characters.
    pub objects: BTreeMap<String, ObjectClass>,
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

/// The workflows of an app.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workflows {
    /// Files with a definition each: paths relative to the app folder, with `/`, where `*`, `**`, `?` and `[…]` stand for
    /// what they do in a shell.
    pub files: Vec<String>,
    /// What they may reach beside the functions and workflows of their app, by the name in the definition.
    pub permissions: BTreeMap<String, Permissions>,
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
    /// An instance that has answered may have the next invocation. False by default.
    pub reuse: bool,
    /// What happens to a durable invocation that fails.
    pub retry: Retry,
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
        /// The highest QoS that is honoured: a message whose own QoS and this are 1 or more is kept on the disk until
        /// its invocation has ended. 0 by default.
        qos: u8,
        /// Messages of one topic run one after another, in order. False by default.
        ordered: bool,
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
    /// A change of a stateful object.
    Object {
        /// A pattern of object names, in which `*` stands for any characters.
        object: String,
        /// A pattern of field names; none for all.
        field: Option<String>,
        /// Only changes of this node, or of others; none for both.
        origin: Option<Origin>,
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
            Self::Mqtt { filter, consume, qos, ordered } => {
                write!(out, "mqtt {filter}")?;
                let qos = (*qos > 0).then(|| format!("qos {qos}"));
                let words = [qos.as_deref(), consume.then_some("consumes"), ordered.then_some("in order")];
                let words: Vec<_> = words.into_iter().flatten().collect();
                if words.is_empty() { Ok(()) } else { write!(out, " ({})", words.join(", ")) }
            }
            Self::Http { path, methods, .. } if methods.is_empty() => write!(out, "http {path}"),
            Self::Http { path, methods, .. } => write!(out, "http {} {path}", methods.join(",")),
            Self::Cron { schedule } => write!(out, "cron {schedule}"),
            Self::Object { object, field, origin } => {
                write!(out, "object {object}")?;
                field.as_ref().map_or(Ok(()), |field| write!(out, " field {field}"))?;
                origin.map_or(Ok(()), |origin| write!(out, " ({})", origin.as_str()))
            }
        }
    }
}

/// How often and when a durable invocation is run again that failed. Those who wait for the answer of any other
/// invocation may try again themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Runs in all: 1 by default, up to 1,000.
    pub attempts: u32,
    /// Wait before the second run; doubled before each further one. 1 s by default, up to a day.
    pub backoff: Duration,
    /// The longest wait: 5 min by default, up to a day.
    pub max_backoff: Duration,
    /// The part of each wait that is left to chance, from 0 to 1; 0.1 by default.
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            attempts: 1,
            backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(300),
            jitter: 0.1,
        }
    }
}

impl Retry {
    /// The wait after a failed attempt, counted from 1. `chance` is from 0 to 1: the wait is shorter by as much of
    /// [`jitter`](Self::jitter), so that what failed together does not come back together.
    pub fn wait_after(&self, attempt: u32, chance: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let wait = self.backoff.saturating_mul(1 << doublings).min(self.max_backoff.max(self.backoff));
        wait.mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0))
    }
}

/// What a function may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory of an invocation: 64 MiB by default, from 64 KiB to 4 GiB.
    pub memory_bytes: usize,
    /// Wall-clock time of an invocation: 30 s by default, from 1 ms to 1 h.
    pub timeout: Duration,
    /// Time on its thread, within `timeout`: none by default, from 1 ms to 1 h.
    pub cpu: Option<Duration>,
    /// Invocations at the same time: 64 by default, from 1 to 10,000.
    pub concurrency: u32,
    /// Instances that may wait for their next invocation, with `isolation = "reuse"`: 8 by default, from 1 to 10,000.
    pub instances: u32,
    /// The body of an event: 1 MiB by default, from 1 B to 32 MiB.
    pub payload_bytes: usize,
    /// The answer: 8 MiB by default, from 1 B to 32 MiB.
    pub reply_bytes: usize,
    /// Calls of functions and requests to servers that one invocation may make: 1,000 by default, from 0 to 100,000.
    pub calls: u32,
    /// What one invocation may log: 256 KiB by default, from 0 to 16 MiB.
    pub log_bytes: usize,
    /// Invocations that wait because `concurrency` of them run.
    pub queue: Queue,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            timeout: Duration::from_secs(30),
            cpu: None,
            concurrency: 64,
            instances: 8,
            payload_bytes: 1 << 20,
            reply_bytes: 8 << 20,
            calls: 1000,
            log_bytes: 256 << 10,
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
    /// The MQTT client is not read until there is room. Where nobody can be made to wait, as with HTTP, the new
    /// invocation is rejected.
    Block,
}

#[cfg(test)]
mod tests;
