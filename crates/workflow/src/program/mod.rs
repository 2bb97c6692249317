//! A compiled definition: every name is resolved and every expression is parsed before it runs.

mod asyncapi;
mod calls;
mod compile;
mod events;
mod openapi;
mod pattern;
mod reader;
mod tasks;
mod unreachable;

use std::sync::Arc;

use serde_json::Value;

use crate::api_document::AsyncOperation;
use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError};
use crate::expression::{Expression, Template};
use crate::schema::Schema;
pub use compile::{Compiled, compile, compile_for_deploy};
pub use pattern::{Pattern, PatternError};

/// The index of a task in [`Program::nodes`].
pub type NodeId = u32;

/// The default of `metadata.steps`: the maximum number of steps of an instance.
pub const DEFAULT_STEPS: u64 = 100_000;

/// A definition that can be run.
#[derive(Debug)]
pub struct Program {
    /// The whole definition, for `$workflow.definition` and `$task.definition`.
    pub definition: Data,
    /// `document.namespace`.
    pub namespace: String,
    /// `document.name`.
    pub name: String,
    /// `document.version`.
    pub version: String,
    /// `document.title`, or `summary`.
    pub title: Option<String>,
    /// `document.metadata.durable`: the outcome of each step is stored before the next step begins.
    pub durable: bool,
    /// `document.metadata.steps`: the maximum number of steps of an instance.
    pub max_steps: u64,
    /// `document.metadata.instances`: the maximum number of instances at the same time, if given.
    pub max_instances: Option<u64>,
    /// The schemas and transformations of the workflow's input and output.
    pub data: DataFlow,
    /// The timeout of the whole workflow.
    pub timeout: Option<DurationSpec>,
    /// The triggers that start the workflow.
    pub schedule: Option<Schedule>,
    /// Names of the secrets that expressions may read.
    pub secrets: Vec<String>,
    /// The secrets that `input.from` and `timeout` of the workflow name.
    pub secrets_at_start: Vec<String>,
    /// The secrets that `output.as` of the workflow names.
    pub secrets_at_end: Vec<String>,
    /// The tasks.
    pub nodes: Vec<Node>,
    /// `do`.
    pub root: Block,
}

impl Program {
    /// The task with this id.
    pub fn node(&self, id: NodeId) -> &Node {
        // Ids come from the compiler, and from event logs that name the definition by its digest.
        &self.nodes[id as usize]
    }

    /// The part of the definition at a JSON pointer (RFC 6901), null if there is none.
    pub fn definition_at(&self, pointer: &str) -> Data {
        let mut at = &self.definition;
        for part in pointer.split('/').skip(1) {
            let part = part.replace("~1", "/").replace("~0", "~");
            let next = match at.items() {
                Some(items) => part.parse().ok().and_then(|index| items.get(index)),
                None => at.get(&part),
            };
            match next {
                Some(next) => at = next,
                None => return Data::Null,
            }
        }
        at.clone()
    }

    /// The functions that it calls, each once, sorted.
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

    /// The error of a task that names a secret that is not set: an authorization error (specification, section "Secrets").
    pub fn missing_secret(&self, task: NodeId, is_set: &dyn Fn(&str) -> bool) -> Option<WorkflowError> {
        self.missing_of(&self.node(task).secrets, is_set)
    }

    /// The same for expressions of the workflow itself, which name these secrets.
    pub(crate) fn missing_of(
        &self,
        named: &[String],
        is_set: &dyn Fn(&str) -> bool,
    ) -> Option<WorkflowError> {
        let missing = named.iter().find(|name| !is_set(name))?;
        let detail = match self.secrets.contains(missing) {
            true => {
                format!("secret `{missing}` is not set: `edgefaas secrets set --app APP {missing}` sets it")
            }
            false => format!("secret `{missing}` is not in `use.secrets` of the workflow"),
        };
        Some(WorkflowError::new(ErrorKind::Authorization, detail))
    }

    /// The topics without expressions that its tasks send messages to, each with its task.
    pub fn constant_topics(&self) -> impl Iterator<Item = (&Node, &str)> {
        self.nodes.iter().filter_map(|node| {
            let topic = match &node.kind {
                Kind::Publish(Publish { channel: Channel::Topic(topic), .. }) => Some(topic),
                Kind::Emit(emit) => emit.topic.as_ref(),
                _ => None,
            };
            Some((node, topic?.literal()?.as_str()?))
        })
    }

    /// The emitted events whose type has no expression, each with its task and type.
    pub fn constant_event_types(&self) -> impl Iterator<Item = (&Node, &Emit, &str)> {
        self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::Emit(emit) => Some((node, emit, emit.kind.as_deref()?)),
            _ => None,
        })
    }

    /// The tasks that run a workflow.
    pub fn runs(&self) -> impl Iterator<Item = &RunWorkflow> {
        self.nodes.iter().filter_map(|node| match &node.kind {
            Kind::RunWorkflow(run) => Some(run),
            _ => None,
        })
    }

    /// The workflows that it runs, each once, sorted.
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
    /// The kind of the task, with its parameters.
    pub kind: Kind,
    /// `if`.
    pub condition: Option<Expression>,
    /// `input`, `output`, `export`.
    pub data: DataFlow,
    /// `timeout`.
    pub timeout: Option<DurationSpec>,
    /// `then`.
    pub then: Flow,
    /// The size of data, in bytes, with which its expressions take at most about a millisecond.
    pub quick_bytes: u64,
    /// The secrets that its expressions name, sorted.
    pub secrets: Vec<String>,
}

/// Schemas and transformations of input, output and context.
#[derive(Debug, Default)]
pub struct DataFlow {
    /// `input.schema`, for the raw input.
    pub input_schema: Option<Schema>,
    /// `input.from`.
    pub from: Option<Template>,
    /// `output.as`.
    pub output: Option<Template>,
    /// `output.schema`, for the result of `output.as`.
    pub output_schema: Option<Schema>,
    /// `export.as`: the new context.
    pub export: Option<Template>,
    /// `export.schema`.
    pub export_schema: Option<Schema>,
}

/// The next step after a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// The next task of the list.
    Continue,
    /// Leave this list.
    Exit,
    /// End the workflow.
    End,
    /// The task at this position of the same list.
    Goto(u32),
}

/// A length of time.
#[derive(Debug, Clone)]
pub enum DurationSpec {
    /// Milliseconds.
    Fixed(u64),
    /// Evaluated at run time.
    Computed(Template),
}

/// The kinds of tasks, with their parameters.
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
    /// `call: NAME` of a function in `use.functions`.
    Function(FunctionCall),
    /// `call: http`.
    Http(Http),
    /// `call: openapi`.
    OpenApi(OpenApi),
    /// `call: asyncapi` that sends.
    Publish(Publish),
    /// `run: workflow`.
    RunWorkflow(RunWorkflow),
    /// `run: script`.
    RunScript(RunScript),
}

impl Kind {
    /// The authentication policy of a call, if it has one.
    pub fn authentication(&self) -> Option<&Authentication> {
        match self {
            Self::Http(http) => http.authentication.as_ref(),
            Self::OpenApi(call) => call.authentication.as_ref(),
            _ => None,
        }
    }

    /// The DSL's keyword of the task.
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
            Self::Listen(Listen { consume: Some(_), .. }) => "call",
            Self::Listen(_) => "listen",
            Self::Call(_) | Self::Function(_) | Self::Http(_) | Self::OpenApi(_) | Self::Publish(_) => {
                "call"
            }
            Self::RunWorkflow(_) | Self::RunScript(_) => "run",
        }
    }
}

/// Branches that run at the same time.
#[derive(Debug)]
pub struct Fork {
    /// One task each.
    pub branches: Vec<NodeId>,
    /// True if the first branch that ends cancels the others.
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
    /// The loop continues while this is true.
    pub condition: Option<Expression>,
    /// The tasks of each iteration.
    pub block: Block,
    /// `metadata.parallel`: the maximum number of iterations at the same time. Each gets the input of the loop, and
    /// the output is the list of their outputs.
    pub parallel: Option<u32>,
}

/// A case of a switch.
#[derive(Debug)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// The condition. A case without one always matches.
    pub when: Option<Expression>,
    /// The next step.
    pub then: Flow,
}

/// Tasks whose errors are caught.
#[derive(Debug)]
pub struct Try {
    /// The tasks to try.
    pub block: Block,
    /// `catch.errors.with`: the fields that an error must have, with their values.
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

/// The conditions and limits of retries.
#[derive(Debug)]
pub struct Retry {
    /// Retry only if this is true.
    pub when: Option<Expression>,
    /// Do not retry if this is true.
    pub except_when: Option<Expression>,
    /// The maximum number of retries.
    pub max_attempts: Option<u32>,
    /// The maximum duration of one attempt.
    pub attempt_duration: Option<DurationSpec>,
    /// The maximum time from the first attempt to the start of the last.
    pub max_duration: Option<DurationSpec>,
    /// The delay before the first retry.
    pub delay: DurationSpec,
    /// The growth of the delay.
    pub backoff: Backoff,
    /// The minimum and the maximum of the random addition to the delay.
    pub jitter: Option<(DurationSpec, DurationSpec)>,
}

/// The growth of the delay between attempts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Backoff {
    /// The delay is constant.
    Constant,
    /// The delay grows by this number of milliseconds with every attempt; by `delay` if it is `None`.
    Linear(Option<u64>),
    /// The delay is multiplied by this factor with every attempt.
    Exponential(f64),
}

/// An event that is sent.
#[derive(Debug)]
pub struct Emit {
    /// `with`.
    pub event: Template,
    /// The type of the event, if it is text without an expression.
    pub kind: Option<String>,
    /// `metadata.topic`: the topic of the message.
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
    /// `foreach`: the tasks for each event.
    pub foreach: Option<Foreach>,
    /// `metadata.events`: a condition over many events, for [`crate::synthesizer`].
    pub rule: Option<Value>,
    /// The end of a subscription of `call: asyncapi`; `None` for a `listen`.
    pub consume: Option<Consume>,
    /// The operation of such a subscription, whose channel is looked up when the task begins.
    pub operation: Option<(Resource, AsyncOperation)>,
}

/// The tasks for each event of a listen.
#[derive(Debug)]
pub struct Foreach {
    /// The variable of the event.
    pub item: String,
    /// The variable of its index.
    pub at: String,
    /// The tasks.
    pub block: Block,
    /// `output.as`.
    pub output: Option<Template>,
    /// `export.as`.
    pub export: Option<Template>,
}

/// The events that a listen or a schedule waits for.
#[derive(Debug)]
pub struct Strategy {
    /// The number of filters that must match.
    pub mode: Mode,
    /// The filters, at least one. `any: []` becomes one filter that matches every event.
    pub filters: Vec<EventFilter>,
    /// The end of an `any`.
    pub until: Option<Until>,
}

/// The number of filters of a strategy that must match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The only filter.
    One,
    /// Any filter.
    Any,
    /// Every filter, once.
    All,
}

/// The condition that ends the collection of events.
#[derive(Debug)]
pub enum Until {
    /// A condition over the list of events so far.
    Condition(Expression),
    /// An event that matches one of the filters.
    Event(Vec<EventFilter>),
    /// An event of each filter.
    Events(Vec<EventFilter>),
    /// `until: false`: the collection does not end.
    Never,
}

/// The part of an event that the workflow reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// Its data.
    Data,
    /// All of it, as a CloudEvent.
    Envelope,
    /// Its data without conversion, independent of its type.
    Raw,
    /// Its data, headers and correlation id, as a message of AsyncAPI.
    Message,
}

/// The conditions that an event must meet.
#[derive(Debug, Clone)]
pub struct EventFilter {
    /// Attributes and their required values. The value of `subject` is an MQTT topic filter.
    pub attributes: Vec<(String, Template)>,
    /// Attributes whose text must match a pattern.
    pub patterns: Vec<(String, Pattern)>,
    /// The condition on its data.
    pub data: Option<DataTest>,
    /// Parts of the event whose values must equal those in other events, or in the workflow's data.
    pub correlate: Vec<Correlation>,
}

/// A condition on an event's data.
#[derive(Debug, Clone)]
pub enum DataTest {
    /// True with the data as `.`.
    Condition(Expression),
    /// The data contains at least this value.
    Contains(Value),
    /// True with the event as a message of AsyncAPI as `.`.
    Message(Expression),
}

/// A part of an event that selects the instance to which the event belongs.
#[derive(Debug, Clone)]
pub struct Correlation {
    /// Its name.
    pub name: String,
    /// An expression over the event that returns the part.
    pub from: Expression,
    /// The expected value; the value in the first event if it is not given.
    pub expect: Option<Template>,
}

/// A call of a function.
#[derive(Debug)]
pub struct Call {
    /// The function.
    pub function: String,
    /// `with`: the input of the function; the task's input if it is not given.
    pub with: Option<Template>,
}

/// A call of a function that the definition has in `use.functions`: its task, with the arguments as input.
#[derive(Debug)]
pub struct FunctionCall {
    /// The name of the function.
    pub name: String,
    /// `with`: the input of the function; the task's input if it is not given.
    pub with: Option<Template>,
    /// The task of the function.
    pub block: Block,
}

/// A request to a server.
#[derive(Debug)]
pub struct Http {
    /// Method.
    pub method: String,
    /// The URL. `{name}` is replaced by a value of the input.
    pub endpoint: Template,
    /// Headers.
    pub headers: Option<Template>,
    /// Query.
    pub query: Option<Template>,
    /// Body.
    pub body: Option<Template>,
    /// The authentication, if any.
    pub authentication: Option<Authentication>,
    /// The part of the response that the task uses.
    pub output: HttpOutput,
    /// True if redirects are followed.
    pub redirect: bool,
}

/// A call of an operation that an OpenAPI document describes.
#[derive(Debug)]
pub struct OpenApi {
    /// The document.
    pub document: Resource,
    /// The id of the operation.
    pub operation: String,
    /// The arguments, an object by name.
    pub parameters: Option<Template>,
    /// The authentication, if any.
    pub authentication: Option<Authentication>,
    /// The part of the response that the task uses.
    pub output: HttpOutput,
    /// True if redirects are no errors.
    pub redirect: bool,
}

/// A document outside of the definition.
#[derive(Debug)]
pub struct Resource {
    /// Its place.
    pub place: ResourcePlace,
    /// The authentication of the request for it, if any.
    pub authentication: Option<Authentication>,
}

/// The place of a document.
#[derive(Debug)]
pub enum ResourcePlace {
    /// A file of the app: a path relative to its folder.
    File(String),
    /// A URL.
    Url(Template),
}

/// The topic of a call of AsyncAPI.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each task of a definition")]
pub enum Channel {
    /// The topic itself.
    Topic(Template),
    /// The channel of an operation in a document.
    Operation(Resource, AsyncOperation),
}

impl Listen {
    /// True if an expression over the events so far ends it.
    pub(crate) fn has_end_condition(&self) -> bool {
        let consume = self.consume.as_ref();
        matches!(self.strategy.until, Some(Until::Condition(_)))
            || consume.is_some_and(|consume| consume.condition.is_some() || consume.until.is_some())
    }
}

/// The end of a subscription. Without any of them it does not end.
#[derive(Debug, Default)]
pub struct Consume {
    /// The number of messages.
    pub amount: Option<u64>,
    /// The time from its start.
    pub duration: Option<DurationSpec>,
    /// It goes on while this is true for the list of messages so far; with `foreach` those that it has worked on.
    pub condition: Option<Expression>,
    /// It ends when this is true for the same list.
    pub until: Option<Expression>,
}

/// The authentication of a request.
#[derive(Debug)]
pub struct Authentication {
    /// Its kind.
    pub scheme: Scheme,
    /// Its properties, an object.
    pub policy: Template,
}

/// The kinds of authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// User name and password (RFC 7617): `username`, `password`.
    Basic,
    /// A token (RFC 6750): `token`.
    Bearer,
    /// A token of an authorization server (RFC 6749): `authority`, `grant` and others.
    OAuth2,
    /// The same; the metadata of the authority name the server.
    OpenIdConnect,
}

/// The part of an HTTP response that a task uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpOutput {
    /// The body in base64.
    Raw,
    /// The body, as JSON if it is JSON.
    Content,
    /// The whole response.
    Response,
}

/// A message to a topic of the broker.
#[derive(Debug)]
pub struct Publish {
    /// The topic.
    pub channel: Channel,
    /// The payload: JSON, or a string without quotes.
    pub payload: Template,
    /// User properties.
    pub headers: Option<Template>,
    /// The quality of service, 0 to 2.
    pub qos: u8,
    /// The RETAIN flag.
    pub retain: bool,
}

/// A run of another workflow.
#[derive(Debug)]
pub struct RunWorkflow {
    /// Its name.
    pub name: String,
    /// Its namespace; any if it is not given.
    pub namespace: Option<String>,
    /// Its version; the latest if it is not given.
    pub version: Option<String>,
    /// Its input; the task's input if it is not given.
    pub input: Option<Template>,
    /// True if the task waits for the end of the run.
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
    /// True if the task waits for the end of the run.
    pub wait: bool,
}

/// The triggers that start a workflow.
#[derive(Debug)]
pub struct Schedule {
    /// A cron expression.
    pub cron: Option<String>,
    /// An interval in milliseconds.
    pub every_ms: Option<u64>,
    /// The delay in milliseconds from the end of an instance to the start of the next.
    pub after_ms: Option<u64>,
    /// Events.
    pub on: Option<Strategy>,
    /// `document.metadata.events`: a condition over several events, for [`crate::synthesizer`].
    pub rule: Option<Value>,
}
