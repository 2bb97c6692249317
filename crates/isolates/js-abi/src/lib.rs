//! What the node and the JavaScript engine inside an isolate say to each other.
//!
//! Every message is [postcard]; addresses and lengths travel as plain wasm integers. The node and the
//! committed `engine.wasm` are built from the same version of this crate: [`VERSION`] is checked when the
//! engine is loaded, so a change of any type here needs a new `engine.wasm` (see `js-engine/README.md`).
//!
//! Imports of the engine, all in the module `edgefaas`:
//!
//! | import | meaning |
//! |---|---|
//! | `call(ptr, len, number) -> len` | carries out a [`Request`] at once; the [`Answer`] is then fetched by `take`, unless it is [`NUMBER`]: an [`Answer::Integer`] whose 8 bytes, the lowest first, are at `number` |
//! | `start(ptr, len) -> ticket` | begins a [`Start`]; `-len` is a refusal, whose [`Answer`] is fetched by `take` |
//! | `take(ptr)` | copies the last answer to `ptr` |
//! | `random(ptr, len)` | fills with random bytes |
//!
//! Exports of the engine:
//!
//! | export | meaning |
//! |---|---|
//! | `abi_version() -> u32` | [`VERSION`] |
//! | `engine_init()` | makes the runtime and evaluates the prelude |
//! | `alloc(len) -> ptr` | room for a message; the engine takes it over with the call that follows |
//! | `input() -> ptr` | [`INPUT_BYTES`] of room for an [`Invocation`] that is small enough |
//! | `load(ptr, len) -> i64` | a [`Load`]; returns a [`Loaded`] |
//! | `invoke(ptr, len) -> i64` | an [`Invocation`]; returns an [`Outcome`] |
//! | `resolve(ticket, ptr, len)` | an [`Answer`] for a ticket |
//! | `run_jobs() -> i64` | runs what can run; returns an [`Outcome`] |
//! | `reset()` | forgets the invocation and its messages, where another one follows in the same isolate |
//!
//! A returned `i64` is `ptr << 32 | len`.

#![no_std]

extern crate alloc;

mod objects;

use alloc::string::String;
use alloc::vec::Vec;

pub use objects::{Change, FieldType, FieldValue, Read};
pub use postcard::Error;
use serde::{Deserialize, Serialize};

/// The version of everything in this crate.
pub const VERSION: u32 = 8;

/// What `call` gives in place of a length where the answer is a number, which lies in the engine's memory already.
pub const NUMBER: u32 = u32::MAX;

/// An invocation up to this size needs no allocation in the isolate.
pub const INPUT_BYTES: usize = 4096;

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    postcard::to_allocvec(message)
}

/// Encodes a message at the end of `buffer`.
pub fn encode_into<T: Serialize>(message: &T, buffer: Vec<u8>) -> Result<Vec<u8>, Error> {
    postcard::to_extend(message, buffer)
}

/// Decodes a message; its strings and bytes stay in `bytes`.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Error> {
    postcard::from_bytes(bytes)
}

/// The modules of a function, ready to be evaluated.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load<'a> {
    /// The path of the entry module.
    pub entry: &'a str,
    /// All modules.
    #[serde(borrow)]
    pub modules: Vec<Source<'a>>,
    /// For `Math.random` while top-level code runs.
    pub seed: u64,
}

/// One module as JavaScript.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Source<'a> {
    /// Its path, as stacks show it.
    pub path: &'a str,
    /// JavaScript text.
    pub code: &'a str,
    /// Import specifier to path.
    #[serde(borrow)]
    pub imports: Vec<(&'a str, &'a str)>,
}

/// What became of a [`Load`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loaded {
    /// The handler is there.
    Ready,
    /// A module does not compile, or its top level threw.
    Failed(Thrown),
    /// There is no default export that could be a handler.
    NoHandler {
        /// What the entry module does export.
        exports: Vec<String>,
        /// What its default export is, if there is one.
        default: Option<String>,
    },
    /// A top-level `await` waits for something that never comes.
    NeverSettles,
}

/// One run of the handler.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Invocation<'a> {
    /// The invocation's id.
    pub id: &'a str,
    /// The function's name.
    pub function: &'a str,
    /// When the run ends, in milliseconds since the Unix epoch.
    pub deadline_unix_ms: u64,
    /// For `Math.random`.
    pub seed: u64,
    /// What happened.
    #[serde(borrow)]
    pub trigger: Trigger<'a>,
    /// Body, payload or call data.
    pub body: &'a [u8],
}

/// Names and values.
pub type Pairs<'a> = Vec<(&'a str, &'a str)>;

/// What an event's kind brings.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Trigger<'a> {
    Http {
        method: &'a str,
        path: &'a str,
        query: &'a str,
        #[serde(borrow)]
        headers: Pairs<'a>,
    },
    Mqtt {
        topic: &'a str,
        qos: u8,
        retain: bool,
        content_type: Option<&'a str>,
        response_topic: Option<&'a str>,
        correlation_data: Option<&'a [u8]>,
        #[serde(borrow)]
        user_properties: Pairs<'a>,
    },
    Cron {
        schedule: &'a str,
        scheduled_unix_ms: u64,
    },
    Object {
        object: &'a str,
        field: &'a str,
    },
    Call {
        caller: Option<&'a str>,
    },
    Workflow {
        workflow: &'a str,
        instance: &'a str,
        task: &'a str,
    },
}

/// Where a run stands when the engine hands back control.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome<'a> {
    /// The handler waits for a ticket.
    Pending,
    /// It has answered.
    Done(#[serde(borrow)] Reply<'a>),
    /// It threw.
    Failed(Thrown),
    /// It answered with something that cannot be sent.
    InvalidReply(String),
}

/// An answer of a function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Reply<'a> {
    None,
    Json(&'a str),
    Text(&'a str),
    Bytes(&'a [u8]),
    Http {
        status: u16,
        #[serde(borrow)]
        headers: Pairs<'a>,
        body: &'a [u8],
    },
}

/// A JavaScript value that was thrown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thrown {
    /// What kind of failure it is.
    pub kind: ThrownKind,
    /// `Name: message`.
    pub message: String,
    /// The stack as QuickJS writes it; empty if the value was not an error.
    pub stack: String,
}

/// Failures that are limits rather than the function's own errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ThrownKind {
    Error,
    OutOfMemory,
    StackOverflow,
}

/// A host call that is answered at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Request<'a> {
    Log {
        level: Level,
        message: &'a str,
    },
    Publish(#[serde(borrow)] Message<'a>),
    CounterAdd {
        object: &'a str,
        field: &'a str,
        amount: i64,
    },
    CounterValue {
        object: &'a str,
        field: &'a str,
    },
    RegisterSet {
        object: &'a str,
        field: &'a str,
        value: &'a [u8],
    },
    RegisterGet {
        object: &'a str,
        field: &'a str,
    },
    /// Changes a field of an object, or an entry of a map in it. Counters and registers that are fields have requests of
    /// their own above, which are shorter.
    ObjectChange {
        object: &'a str,
        field: &'a str,
        /// The keys that lead from the field into maps; empty for the field itself.
        #[serde(borrow)]
        path: Vec<&'a str>,
        #[serde(borrow)]
        change: Change<'a>,
    },
    /// Reads one; the answer is [`Answer::Field`].
    ObjectRead {
        object: &'a str,
        field: &'a str,
        /// See [`Request::ObjectChange`].
        #[serde(borrow)]
        path: Vec<&'a str>,
        #[serde(borrow)]
        read: Read<'a>,
    },
    /// Where an asset lies; the answer is [`Answer::Place`].
    Asset {
        name: &'a str,
    },
    /// All `config` values; the answer is one JSON object.
    Config,
    /// The names of the secrets.
    SecretNames,
    Secret {
        name: &'a str,
    },
    /// The node's name, zone and labels; the answer is one JSON object, or nothing if the node is in no cluster.
    Node,
    /// Drops a ticket; what it stands for is cancelled.
    Cancel {
        ticket: u32,
    },
    /// Deletes a field of an object, or all fields of it.
    ObjectDelete {
        object: &'a str,
        /// None for all fields.
        field: Option<&'a str>,
    },
    /// The text of a group of rare globals; the answer is [`Answer::Text`]. Answered at deploy as well.
    Library {
        name: &'a str,
    },
    /// A time zone; the answer is one JSON array, or nothing if there is no such zone: its name, and the changes of its
    /// offset as seconds since the Unix epoch and seconds east of UTC. Answered at deploy as well.
    Zone {
        /// In any case of letters.
        name: &'a str,
    },
    /// The names of all time zones. Answered at deploy as well.
    ZoneNames,
}

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// An MQTT message to be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Message<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: u8,
    pub retain: bool,
    pub content_type: Option<&'a str>,
    pub response_topic: Option<&'a str>,
    pub correlation_data: Option<&'a [u8]>,
    #[serde(borrow)]
    pub user_properties: Pairs<'a>,
}

/// A host call that may take its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Start<'a> {
    Call {
        function: &'a str,
        data: &'a [u8],
    },
    Sleep {
        duration_ms: u64,
    },
    /// The answer is [`Answer::Fetched`].
    Fetch {
        method: &'a str,
        url: &'a str,
        #[serde(borrow)]
        headers: Pairs<'a>,
        body: &'a [u8],
        redirect: Redirect,
    },
}

/// What `fetch` does with a redirection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Redirect {
    Follow,
    Error,
    Manual,
}

/// What the host says to a [`Request`] or, later, to a [`Start`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Answer<'a> {
    Nothing,
    Integer(i64),
    Text(&'a str),
    Bytes(&'a [u8]),
    Names(#[serde(borrow)] Vec<&'a str>),
    Field(#[serde(borrow)] FieldValue<'a>),
    /// Bytes that lie in the engine's memory.
    Place {
        address: u32,
        bytes: u32,
    },
    Reply(#[serde(borrow)] Reply<'a>),
    /// Bytes of a body, before [`Answer::Fetched`] has the last ones. The ticket stays open.
    Piece {
        body: &'a [u8],
        /// The size of the whole body, if the server has said it.
        total_bytes: Option<u64>,
    },
    Fetched {
        status: u16,
        #[serde(borrow)]
        headers: Pairs<'a>,
        /// The body after all its pieces.
        body: &'a [u8],
        /// Where the answer came from in the end.
        url: &'a str,
        redirected: bool,
    },
    Refused {
        code: Code,
        message: &'a str,
    },
}

/// Why a host call failed; functions see it as `error.code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum Code {
    NotPermitted,
    NotFound,
    Invalid,
    Overloaded,
    Failed,
    /// There is no invocation: top-level code runs at deploy.
    Deploying,
}

impl Code {
    /// The code's name as functions see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotPermitted => "NotPermitted",
            Self::NotFound => "NotFound",
            Self::Invalid => "Invalid",
            Self::Overloaded => "Overloaded",
            Self::Failed => "Failed",
            Self::Deploying => "Deploying",
        }
    }
}
