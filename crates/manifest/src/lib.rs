//! `edgefaas.toml`: the functions, workflows, objects and permissions of an app.
//!
//! `docs/manifest.md` describes every key. Parsing is pure: it reads no disk and no other app.

mod addresses;
mod check;
mod cors;
mod cron;
mod diagnostic;
mod hosts;
mod nodes;
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
pub use cors::{CorsOrigin, CorsOriginError};
pub use cron::{CronError, next_after, parse_cron};
pub use diagnostic::{ManifestError, Problem};
pub use hosts::{HttpPattern, TcpHost, TcpTarget, address_of, may_lead_to};
pub use nodes::{NodeCount, NodeSelection};
pub use object_class::{Classes, ObjectClass, ObjectDurability, Origin, Recovery};
pub use permissions::{Permission, PermissionError, PermissionKind, Permissions};
pub use single_file::{SingleFileError, single_file, single_file_name, single_workflow};

/// Maximum number of assets of an app: each is a part of the memory of functions, and WebAssembly has at most 100,000 of them.
pub const MAX_ASSETS: usize = 50_000;

/// The manifest's file name in an app folder.
pub const FILE_NAME: &str = "edgefaas.toml";

/// A valid manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The app's name.
    pub app: String,
    /// The functions by name; at least one if there are no workflows.
    pub functions: BTreeMap<String, Function>,
    /// The workflows.
    pub workflows: Workflows,
    /// Files that all functions may read in place: paths relative to the app folder, with `/` and with `*`, `**`, `?` and
    /// `[…]` as in a shell.
    pub assets: Vec<String>,
    /// Classes of objects, by patterns of their names; `*` stands for any characters.
    pub objects: BTreeMap<String, ObjectClass>,
    /// The nodes of a cluster on which the app runs.
    pub nodes: NodeSelection,
}

impl Manifest {
    /// Parses the text of a manifest. Errors call it `file`.
    ///
    /// # Errors
    ///
    /// All problems of the file, each with its position and a remedy.
    pub fn parse(text: &str, file: &str) -> Result<Self, ManifestError> {
        parse::manifest(text, file)
    }
}

/// The workflows of an app.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Workflows {
    /// Files with one definition each: paths relative to the app folder, with `/` and with `*`, `**`, `?` and `[…]` as in a
    /// shell.
    pub files: Vec<String>,
    /// Permissions beside the functions and workflows of the same app, by the name in the definition.
    pub permissions: BTreeMap<String, Permissions>,
    /// The order of instances, by the name in the definition; the default for the others.
    pub order: BTreeMap<String, InstanceOrder>,
}

/// The order of the instances that messages start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceOrder {
    /// The instances that have an order among themselves.
    pub key: OrderKey,
    /// What follows in that order.
    pub succession: Succession,
}

/// The key of an instance: those with the same key have an order among themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OrderKey {
    /// The topic of the message.
    #[default]
    Topic,
    /// The value of this expression over the event, as text of jq in `${ }`. Whoever compiles workflows compiles it.
    Expression(String),
}

/// What the instances of one key do one after another, in the order of the messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Succession {
    /// They start in order, and run at the same time.
    #[default]
    Start,
    /// They run one after another.
    Run,
}

/// One function of an app.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Its source: a path relative to the app folder with `/` and without `..`.
    pub main: String,
    /// Events that start it, beside calls by its name.
    pub triggers: Vec<Trigger>,
    /// Limits of one invocation, and of all of them together.
    pub limits: Limits,
    /// Its permissions; none by default.
    pub permissions: Permissions,
    /// An isolate that has answered may serve the next invocation. False by default.
    pub reuse: bool,
    /// Attempts of a durable invocation.
    pub retry: Retry,
    /// Configuration values, as the function sees them.
    pub config: BTreeMap<String, serde_json::Value>,
    /// Names of the secrets it may read.
    pub secrets: Vec<String>,
    /// The tag of the placement policies that decide where its invocations run; none for the policy `default`.
    pub placement: Option<String>,
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
    /// The form of `main`, by its extension.
    pub fn source_kind(&self) -> SourceKind {
        source_kind(&self.main)
    }
}

/// The form of a function's source, by the extension of its path; a folder if the extension is unknown.
pub fn source_kind(path: &str) -> SourceKind {
    match path.rsplit('/').next().unwrap_or_default().rsplit_once('.').map(|(_, extension)| extension) {
        Some("js" | "mjs" | "ts") => SourceKind::Script,
        Some("wasm") => SourceKind::Component,
        _ => SourceKind::Crate,
    }
}

/// A rule that starts a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trigger {
    /// A message that passes the broker.
    Mqtt {
        /// A valid topic filter.
        filter: String,
        /// Withhold the message from subscribers and the retained store. False by default.
        consume: bool,
        /// The highest QoS of the trigger. If it and the QoS of a message are 1 or more, the message stays on the disk until
        /// its invocation has ended. 0 by default.
        qos: u8,
        /// Messages of one topic run one after another, in order. False by default.
        ordered: bool,
        /// A payload for the line that `edgefaas dev` suggests. It has no effect on the node.
        example: Option<String>,
    },
    /// A request at the gateway.
    Http {
        /// Starts with `/`; `{name}` stands for a segment, a final `{*name}` for the rest.
        path: String,
        /// Upper-case methods; empty means any.
        methods: Vec<String>,
        /// Credentials of a request; by default none on loopback, elsewhere the gateway token.
        auth: Option<HttpAuth>,
        /// Origins whose pages may send requests, beside those that the gateway permits; none by default.
        cors: Vec<CorsOrigin>,
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

/// Credentials of a request at the gateway, from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HttpAuth {
    /// No credentials.
    None,
    /// A JSON Web Token, or the gateway token.
    Jwt,
    /// The gateway token.
    Token,
}

impl fmt::Display for Trigger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mqtt { filter, consume, qos, ordered, .. } => {
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

/// Number and times of the attempts of a durable invocation. The caller of any other invocation can retry it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Attempts in all: 1 by default, up to 1,000.
    pub attempts: u32,
    /// Wait before the second attempt; doubled before each further one. 1 s by default, up to a day.
    pub backoff: Duration,
    /// The longest wait: 5 min by default, up to a day.
    pub max_backoff: Duration,
    /// The random part of each wait, from 0 to 1; 0.1 by default.
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
    /// The wait after a failed attempt, counted from 1. `chance` is from 0 to 1 and shortens the wait by that part of
    /// [`jitter`](Self::jitter), so that simultaneous failures do not retry together.
    pub fn wait_after(&self, attempt: u32, chance: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let wait = self.backoff.saturating_mul(1 << doublings).min(self.max_backoff.max(self.backoff));
        wait.mul_f64(1.0 - self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0))
    }
}

/// Limits of a function.
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
    /// Isolates that may wait for their next invocation, with `isolation = "reuse"`: 8 by default, from 1 to 10,000.
    pub instances: u32,
    /// The body of an event: 1 MiB by default, from 1 B to 32 MiB.
    pub payload_bytes: usize,
    /// The answer: 8 MiB by default, from 1 B to 32 MiB.
    pub reply_bytes: usize,
    /// The body of another server's answer to a request: 8 MiB by default, from 1 B to 64 GiB. Of JavaScript at most
    /// `memory_bytes`.
    pub response_bytes: u64,
    /// Calls of functions and requests to servers that one invocation may make: 1,000 by default, from 0 to 100,000.
    pub calls: u32,
    /// Log of one invocation: 256 KiB by default, from 0 to 16 MiB.
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
            response_bytes: 8 << 20,
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
    /// Order of the invocations. First in, first out by default.
    pub order: QueueOrder,
    /// Result of one more invocation than `capacity`. It is rejected by default.
    pub when_full: WhenFull,
}

impl Default for Queue {
    fn default() -> Self {
        Self { capacity: 1000, order: QueueOrder::Fifo, when_full: WhenFull::Reject }
    }
}

/// Order of waiting invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOrder {
    /// The oldest is next.
    Fifo,
    /// The newest is next: under overload some are answered in time instead of all late.
    Lifo,
}

/// Result of one more invocation for a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The new invocation is rejected.
    Reject,
    /// The oldest waiting invocation is rejected.
    DropOldest,
    /// The broker does not read from the MQTT client until there is room. Callers that cannot wait, as with HTTP, are
    /// rejected.
    Block,
}

#[cfg(test)]
mod tests;
