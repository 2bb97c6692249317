//! A compiled definition: every name resolved, every expression parsed, nothing left to find out while it runs.

mod calls;
mod compile;
mod events;
mod reader;
mod tasks;
mod unreachable;

use std::sync::Arc;

use serde_json::Value;

use crate::expression::{Expression, Template};
use crate::schema::Schema;
pub use compile::{Compiled, compile};

/// The index of a task in [`Program::nodes`].
pub type NodeId = u32;

/// Steps an instance may take, unless `metadata.steps` says otherwise.
pub const DEFAULT_STEPS: u64 = 100_000;

/// A definition that can be run.
#[derive(Debug)]
pub struct Program {
    /// `document.namespace`.
    pub namespace: String,
    /// `document.name`.
    pub name: String,
    /// `document.version`.
    pub version: String,
    /// `document.title`, or `summary`.
    pub title: Option<String>,
    /// `document.metadata.durable`: each step's outcome is kept before the next begins.
    pub durable: bool,
    /// `document.metadata.steps`: the maximum of steps of an instance.
    pub max_steps: u64,
    /// `document.metadata.instances`: the maximum of instances at a time, if given.
    pub max_instances: Option<u64>,
    /// What the workflow does with its input and output.
    pub data: DataFlow,
    /// Of the whole.
    pub timeout: Option<DurationSpec>,
    /// What starts it by itself.
    pub schedule: Option<Schedule>,
    /// Names of the secrets that expressions may read.
    pub secrets: Vec<String>,
    /// The tasks.
    pub nodes: Vec<Node>,
    /// `do`.
    pub root: Block,
}

impl Program {
    /// A task.
    pub fn node(&self, id: NodeId) -> &Node {
        // Ids come from the compiler, and from event logs that name the definition by its digest.
        &self.nodes[id as usize]
    }

    /// The functions it calls, each once, in order.
    pub fn functions(&self) -> Vec<String> {
        let calls = self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::Call(call) => Some(call.function.clone()),
            _ => None,
        });
        let mut names: Vec<String> = calls.collect();
        names.sort();
        names.dedup();
        names
    }

    /// The workflows it runs, each once, in order.
    pub fn workflows(&self) -> Vec<String> {
        let runs = self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::RunWorkflow(run) => Some(run.name.clone()),
            _ => None,
        });
        let mut names: Vec<String> = runs.collect();
        names.sort();
        names.dedup();
        names
    }
}

/// A list of tasks, one after another.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// The tasks in order.
    pub tasks: Vec<NodeId>,
}

/// A task.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// A JSON pointer into the definition (RFC 6901).
    pub path: String,
    /// What it does.
    pub kind: Kind,
    /// `if`.
    pub condition: Option<Expression>,
    /// `input`, `output`, `export`.
    pub data: DataFlow,
    /// `timeout`.
    pub timeout: Option<DurationSpec>,
    /// `then`.
    pub then: Flow,
    /// Bytes of data with which its expressions are evaluated within about a millisecond.
    pub quick_bytes: u64,
}

/// What happens to data on the way in and out.
#[derive(Debug, Default)]
pub struct DataFlow {
    /// `input.schema`, for what comes in.
    pub input_schema: Option<Schema>,
    /// `input.from`.
    pub from: Option<Template>,
    /// `output.as`.
    pub output: Option<Template>,
    /// `output.schema`, for what `output.as` gave.
    pub output_schema: Option<Schema>,
    /// `export.as`: the new context.
    pub export: Option<Template>,
    /// `export.schema`.
    pub export_schema: Option<Schema>,
}

/// What comes after a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The next task of the list.
    Continue,
    /// Nothing more of this list.
    Exit,
    /// Nothing more of the workflow.
    End,
    /// The task at this position of the same list.
    Goto(u32),
}

/// A length of time.
#[derive(Debug, Clone)]
pub enum DurationSpec {
    /// Milliseconds.
    Fixed(u64),
    /// Known when it is needed.
    Computed(Template),
}

/// What a task does.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each task of a definition")]
pub enum Kind {
    /// `do`.
    Do(Block),
    /// `fork`.
    Fork(Fork),
    /// `for`.
    For(For),
    /// `switch`.
    Switch(Vec<Case>),
    /// `try`.
    Try(Try),
    /// `wait`.
    Wait(DurationSpec),
    /// `set`.
    Set(Template),
    /// `raise`.
    Raise(Template),
    /// `emit`.
    Emit(Emit),
    /// `listen`.
    Listen(Listen),
    /// `call: NAME`.
    Call(Call),
    /// `call: http`.
    Http(Http),
    /// `call: asyncapi` that sends.
    Publish(Publish),
    /// `run: workflow`.
    RunWorkflow(RunWorkflow),
    /// `run: script`.
    RunScript(RunScript),
}

impl Kind {
    /// The DSL's word for it.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Do(_) => "do",
            Self::Fork(_) => "fork",
            Self::For(_) => "for",
            Self::Switch(_) => "switch",
            Self::Try(_) => "try",
            Self::Wait(_) => "wait",
            Self::Set(_) => "set",
            Self::Raise(_) => "raise",
            Self::Emit(_) => "emit",
            Self::Listen(_) => "listen",
            Self::Call(_) | Self::Http(_) | Self::Publish(_) => "call",
            Self::RunWorkflow(_) | Self::RunScript(_) => "run",
        }
    }
}

/// Branches at the same time.
#[derive(Debug)]
pub struct Fork {
    /// One task each.
    pub branches: Vec<NodeId>,
    /// The first one that ends ends the others.
    pub compete: bool,
}

/// A loop over items.
#[derive(Debug)]
pub struct For {
    /// The variable of the item.
    pub each: String,
    /// The variable of its index.
    pub at: String,
    /// The items.
    pub items: Expression,
    /// Goes on while this is true.
    pub condition: Option<Expression>,
    /// What is done with each.
    pub block: Block,
    /// `metadata.parallel`: so many at the same time, each with the loop's own input; the output is the list of theirs.
    pub parallel: Option<u32>,
}

/// A case of a switch.
#[derive(Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// Without one it is taken in any case.
    pub when: Option<Expression>,
    /// Where it leads.
    pub then: Flow,
}

/// Tasks whose errors are caught.
#[derive(Debug)]
pub struct Try {
    /// What is tried.
    pub block: Block,
    /// `catch.errors.with`: what an error must be like.
    pub with: Vec<(String, Value)>,
    /// `catch.as`: the error's variable.
    pub variable: String,
    /// `catch.when`.
    pub when: Option<Expression>,
    /// `catch.exceptWhen`.
    pub except_when: Option<Expression>,
    /// `catch.retry`.
    pub retry: Option<Arc<Retry>>,
    /// `catch.do`.
    pub handler: Option<Block>,
}

/// When and how often something is tried again.
#[derive(Debug)]
pub struct Retry {
    /// Only while this is true.
    pub when: Option<Expression>,
    /// Not when this is true.
    pub except_when: Option<Expression>,
    /// The maximum of retries.
    pub max_attempts: Option<u32>,
    /// The longest time of one attempt.
    pub attempt_duration: Option<DurationSpec>,
    /// The longest time from the first attempt to the start of the last.
    pub max_duration: Option<DurationSpec>,
    /// The wait, before it grows.
    pub delay: DurationSpec,
    /// How it grows.
    pub backoff: Backoff,
    /// What is left to chance: from and to.
    pub jitter: Option<(DurationSpec, DurationSpec)>,
}

/// How the wait between attempts grows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Backoff {
    /// It does not.
    Constant,
    /// By the delay, or so many milliseconds, with every attempt.
    Linear(Option<u64>),
    /// By this factor with every attempt.
    Exponential(f64),
}

/// An event that is sent.
#[derive(Debug)]
pub struct Emit {
    /// `with`.
    pub event: Template,
    /// `metadata.topic`: where it is published.
    pub topic: Option<Template>,
    /// `metadata.qos`, 1 by default.
    pub qos: u8,
}

/// A wait for events.
#[derive(Debug)]
pub struct Listen {
    /// `to`.
    pub strategy: Strategy,
    /// `read`.
    pub read: Read,
    /// `foreach`: what is done with each event as it comes.
    pub foreach: Option<Foreach>,
    /// `metadata.events`: a condition over many events, for [`crate::synthesizer`].
    pub rule: Option<Value>,
}

/// What is done with each event of a listen.
#[derive(Debug)]
pub struct Foreach {
    /// The variable of the event.
    pub item: String,
    /// The variable of its index.
    pub at: String,
    /// What is done.
    pub block: Block,
    /// `output.as`.
    pub output: Option<Template>,
    /// `export.as`.
    pub export: Option<Template>,
}

/// Which events are waited for.
#[derive(Debug)]
pub struct Strategy {
    /// How many of the filters.
    pub mode: Mode,
    /// The filters, one at least; with `any: []` one that takes every event.
    pub filters: Vec<EventFilter>,
    /// Ends an `any`.
    pub until: Option<Until>,
}

/// How many of the filters of a strategy have to match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// There is one.
    One,
    /// Any.
    Any,
    /// Every one, once.
    All,
}

/// What ends the collecting of events.
#[derive(Debug)]
pub enum Until {
    /// A condition over the list of events so far.
    Condition(Expression),
    /// An event.
    Event(Vec<EventFilter>),
    /// `until: false`: nothing does.
    Never,
}

/// What is read of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// Its data.
    Data,
    /// All of it, as a CloudEvent.
    Envelope,
    /// Its data as it came, without a look at its type.
    Raw,
}

/// What an event must be like.
#[derive(Debug, Clone)]
pub struct EventFilter {
    /// Attributes and the values they must have; in `subject` an MQTT topic filter.
    pub attributes: Vec<(String, Template)>,
    /// What its data must be like.
    pub data: Option<DataTest>,
    /// Parts that must be what they are in other events, or in the workflow's data.
    pub correlate: Vec<Correlation>,
}

/// A condition on an event's data.
#[derive(Debug, Clone)]
pub enum DataTest {
    /// True with the data as `.`.
    Condition(Expression),
    /// The data has at least this.
    Contains(Value),
}

/// A part of an event that tells to which instance it belongs.
#[derive(Debug, Clone)]
pub struct Correlation {
    /// Its name.
    pub name: String,
    /// Over the event.
    pub from: Expression,
    /// Its value; that of the first event if it is not given.
    pub expect: Option<Template>,
}

/// A call of a function.
#[derive(Debug)]
pub struct Call {
    /// The function.
    pub function: String,
    /// `with`: what it gets; the task's input if it is not given.
    pub with: Option<Template>,
}

/// A request to a server.
#[derive(Debug)]
pub struct Http {
    /// Method.
    pub method: String,
    /// URL, in which `{name}` stands for a value of the input.
    pub endpoint: Template,
    /// Headers.
    pub headers: Option<Template>,
    /// Query.
    pub query: Option<Template>,
    /// Body.
    pub body: Option<Template>,
    /// The authentication, if any.
    pub authentication: Option<Authentication>,
    /// What is read of the answer.
    pub output: HttpOutput,
    /// Whether answers that lead elsewhere are followed.
    pub redirect: bool,
}

/// How a request says who sends it.
#[derive(Debug)]
pub enum Authentication {
    /// User name and password (RFC 7617).
    Basic(Template, Template),
    /// A token (RFC 6750).
    Bearer(Template),
}

/// What is read of an HTTP answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpOutput {
    /// The body in base64.
    Raw,
    /// The body, as JSON if it is JSON.
    Content,
    /// All of it.
    Response,
}

/// A message to a topic of the broker.
#[derive(Debug)]
pub struct Publish {
    /// The topic.
    pub topic: Template,
    /// The payload: JSON, or a string as it is.
    pub payload: Template,
    /// User properties.
    pub headers: Option<Template>,
    /// 0 to 2.
    pub qos: u8,
    /// The RETAIN flag.
    pub retain: bool,
}

/// A run of another workflow.
#[derive(Debug)]
pub struct RunWorkflow {
    /// Its name.
    pub name: String,
    /// Its input; the task's if it is not given.
    pub input: Option<Template>,
    /// Its end is waited for.
    pub wait: bool,
}

/// A run of a script.
#[derive(Debug)]
pub struct RunScript {
    /// The digest-named source, so that it is compiled once.
    pub code: Arc<str>,
    /// Variables it sees.
    pub arguments: Option<Template>,
    /// Variables of its environment.
    pub environment: Option<Template>,
    /// Its end is waited for.
    pub wait: bool,
}

/// What starts a workflow by itself.
#[derive(Debug)]
pub struct Schedule {
    /// A cron expression.
    pub cron: Option<String>,
    /// An interval in milliseconds.
    pub every_ms: Option<u64>,
    /// So many milliseconds after the end of an instance.
    pub after_ms: Option<u64>,
    /// Events.
    pub on: Option<Strategy>,
    /// `document.metadata.events`: a condition over many of them, for [`crate::synthesizer`].
    pub rule: Option<Value>,
}
