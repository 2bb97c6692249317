//! Options and commands that call a node.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use edgefaas_api::Fingerprint;
use edgefaas_manifest::Permission;

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The node's control API [default: the node of `edgefaas dev` in this folder, else http://127.0.0.1:7070]
    #[arg(long, global = true, value_name = "URL", env = "EDGEFAAS_NODE")]
    pub node: Option<String>,
    /// The node's admin token [default: `token` in the data directory of a node on this machine]
    #[arg(long, global = true, value_name = "TOKEN", env = "EDGEFAAS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The node's data directory; other commands read its token there
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The format of results
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub output: Format,
}

/// The format of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON document, or one a line.
    Json,
}

/// The commands that call a node, or that only need an app's folder.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a new app from a template
    New(New),
    /// Check an app and build its functions without deploying
    Build(Build),
    /// Build an app and make it live
    Deploy(Deploy),
    /// Run a function once and print its reply
    Invoke(Invoke),
    /// List live apps and functions
    List(List),
    /// Show the log of a function, or of all functions
    Logs(Logs),
    /// Remove an app and its functions, and with --with-objects its objects
    Rm(Rm),
    /// Make an earlier revision of an app live again
    Rollback(Rollback),
    /// Show warnings with their remedies, addresses, memory, counts and functions of the node
    Status,
    /// Show rates, processor time, memory, disk and temperature of the node over the last hour or week
    History(History),
    /// Show what has happened: deploys, warnings, members and bridges that came and went
    Events(Events),
    /// Show the messages in, out, waiting and lost of each topic filter with subscribers
    Queues(Queues),
    /// List the clients of the MQTT broker, show one with its subscriptions, end its connection
    Clients(Clients),
    /// List topics with their rates and last messages
    Topics(Topics),
    /// List and remove retained messages
    Retained(Retained),
    /// Publish an MQTT message
    Publish(Publish),
    /// Show MQTT messages as they arrive
    Subscribe(Subscribe),
    /// List durable invocations that have not ended; retry and discard them
    Invocations(Invocations),
    /// List durable invocations that failed for good, with their events; retry and discard them
    Dead(Invocations),
    /// Show what differs between two revisions of an app
    Diff(Diff),
    /// List the traces that are kept
    Traces(Traces),
    /// Show the settings in force, and where each comes from
    Settings(Settings),
    /// List, show, cancel and retry instances of workflows; draw a workflow
    #[command(subcommand)]
    Workflow(Workflow),
    /// Create a cluster, admit nodes and revoke members
    #[command(subcommand)]
    Cluster(Cluster),
    /// List the members of the cluster, with zone, labels and load
    Nodes(Nodes),
    /// Read, change, watch and back up stateful objects
    #[command(subcommand)]
    Objects(Objects),
    /// Show the times of an invocation or of an instance of a workflow
    Trace(Trace),
    /// Set, list and remove secrets
    #[command(subcommand)]
    Secrets(Secrets),
    /// Trust a node on another machine: check its certificate, give its token, store both
    Login(Login),
}

/// An app on disk.
#[derive(Debug, Clone, Args)]
pub struct App {
    /// A folder with edgefaas.toml, or a single .js, .mjs, .ts, .wasm or workflow .yaml file
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// A permission of a single file, such as publish=alerts/#, call=average or objects=room-* (repeatable)
    #[arg(long, value_name = "KIND=PATTERN")]
    pub allow: Vec<Permission>,
}

/// Options of `edgefaas new`.
#[derive(Debug, Args)]
pub struct New {
    /// The app's name and its folder
    pub name: String,
    /// The language of its first function
    #[arg(long, value_enum)]
    pub lang: Language,
    /// The events of its first function
    #[arg(long, value_enum, default_value_t)]
    pub template: Template,
}

/// The first function of a new app.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Template {
    /// Answers requests, and messages of one topic.
    #[default]
    Http,
    /// Runs on messages, and publishes others.
    Mqtt,
    /// Runs on a schedule.
    Cron,
    /// A durable workflow that calls a function.
    Workflow,
    /// A Hono app; JavaScript and TypeScript only.
    Hono,
}

impl Template {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Http, Self::Mqtt, Self::Cron, Self::Workflow, Self::Hono];
}

/// The language of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Rust, compiled to a WebAssembly component.
    Rust,
    /// JavaScript; needs no toolchain.
    Js,
    /// TypeScript; needs no toolchain.
    Ts,
    /// Python, compiled to a WebAssembly component by componentize-py.
    Python,
}

/// Options of `edgefaas build`.
#[derive(Debug, Args)]
pub struct Build {
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub app: App,
    /// Refuse type errors, in place of a warning
    #[arg(long)]
    pub strict: bool,
}

/// Options of `edgefaas deploy`.
#[derive(Debug, Args)]
pub struct Deploy {
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub app: App,
    /// Refuse type errors, and workflows that call unknown functions, in place of a warning
    #[arg(long)]
    pub strict: bool,
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub reach: Reach,
}

/// The nodes of a command about an app.
#[derive(Debug, Args)]
pub struct Reach {
    /// This node alone, and not all nodes of its cluster
    #[arg(long)]
    pub this_node: bool,
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub wait: Wait,
}

/// The wait of a command for the other nodes.
#[derive(Debug, Args)]
pub struct Wait {
    /// Wait up to this time for the other nodes of the cluster
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = humantime::parse_duration)]
    pub wait: std::time::Duration,
}

impl Wait {
    /// The wait in milliseconds.
    pub fn wait_ms(&self) -> u32 {
        u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX)
    }
}

/// Options of `edgefaas nodes`.
#[derive(Debug, Args)]
pub struct Nodes {
    /// Show one member with its apps
    pub name: Option<String>,
    /// Show all columns, and nothing cut off
    #[arg(long, conflicts_with = "name")]
    pub wide: bool,
}

/// Options of `edgefaas list`.
#[derive(Debug, Args)]
pub struct List {
    /// Show the revision of each app on each node of the cluster
    #[arg(long)]
    pub nodes: bool,
}

/// Options of `edgefaas invoke`.
#[derive(Debug, Args)]
pub struct Invoke {
    /// The function
    pub name: String,
    /// The event's body: text, @FILE, or - for stdin
    #[arg(short, long, value_name = "DATA|@FILE|-", allow_hyphen_values = true)]
    pub data: Option<String>,
    /// An HTTP request, such as --http POST '/rooms?floor=2'
    #[arg(long, num_args = 2, value_names = ["METHOD", "PATH"], group = "event")]
    pub http: Option<Vec<String>>,
    /// A header of the request, such as -H 'accept: text/html' (repeatable)
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", requires = "http")]
    pub headers: Vec<String>,
    /// An MQTT message of this topic
    #[arg(long, value_name = "TOPIC", group = "event")]
    pub mqtt: Option<String>,
    /// The quality of service of the message
    #[arg(long, value_name = "QOS", default_value_t = 0, requires = "mqtt", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
    /// The message is a retained one
    #[arg(long, requires = "mqtt")]
    pub retain: bool,
    /// A schedule that is due now [default: the first one of the function]
    #[arg(long, value_name = "SCHEDULE", num_args = 0..=1, default_missing_value = "", group = "event")]
    pub cron: Option<String>,
    /// The change of a field to the JSON of -d, or its deletion without -d
    #[arg(long, num_args = 2, value_names = ["OBJECT", "FIELD"], group = "event")]
    pub object: Option<Vec<String>>,
}

/// Options of `edgefaas logs`.
#[derive(Debug, Args)]
pub struct Logs {
    /// The function [default: all functions]
    pub name: Option<String>,
    /// Follow new lines; if the node goes, the exit code is 3
    #[arg(short, long)]
    pub follow: bool,
    /// If the node goes, wait until it is back and follow it again
    #[arg(long, requires = "follow")]
    pub reconnect: bool,
    /// Show at most N of the kept lines
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tail: Option<u32>,
}

/// Options of `edgefaas history`.
#[derive(Debug, Args)]
pub struct History {
    /// The last week each 5 minutes [default: the last hour each 5 seconds]
    #[arg(long)]
    pub week: bool,
}

/// Options of `edgefaas events`.
#[derive(Debug, Args)]
pub struct Events {
    /// Follow new events; if the node goes, the exit code is 3
    #[arg(short, long)]
    pub follow: bool,
    /// Show at most N of the last 500 events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tail: Option<u32>,
}

/// Options of `edgefaas rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// The app
    pub name: String,
    /// Delete all objects of the app too; without it they are kept
    // The deletions would reach the other nodes, where the app stays.
    #[arg(long, conflicts_with = "this_node")]
    pub with_objects: bool,
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub reach: Reach,
}

/// Options of `edgefaas rollback`.
#[derive(Debug, Args)]
pub struct Rollback {
    /// The app
    pub name: String,
    /// The revision, or an unambiguous start of it [default: the one before the live one]
    #[arg(long, value_name = "REVISION")]
    pub to: Option<String>,
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(flatten)]
    pub reach: Reach,
}

/// Options of `edgefaas invocations` and `edgefaas dead`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Invocations {
    /// Only those of this function
    #[arg(long)]
    pub function: Option<String>,
    /// The maximum number of invocations
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(subcommand)]
    pub change: Option<InvocationChange>,
}

/// Commands below `edgefaas invocations` and `edgefaas dead`.
#[derive(Debug, Subcommand)]
pub enum InvocationChange {
    /// Show an invocation with its event
    Show {
        /// The invocation's id
        id: String,
    },
    /// Start dead ones again with the same event, or let waiting ones make their next attempt now
    Retry(Chosen),
    /// Forget dead ones, or end waiting ones
    Discard(Chosen),
}

/// The invocations that a change is for.
#[derive(Debug, Args)]
pub struct Chosen {
    /// The ids
    #[arg(required_unless_present = "all", conflicts_with = "all", value_name = "ID")]
    pub ids: Vec<String>,
    /// All that the list shows without a limit, the oldest first
    #[arg(long)]
    pub all: bool,
    /// With `--all`: only those of this function
    #[arg(long, requires = "all")]
    pub function: Option<String>,
}

/// Options of `edgefaas diff`.
#[derive(Debug, Args)]
pub struct Diff {
    /// The app
    pub app: String,
    /// The earlier revision, or an unambiguous start of it [default: the one before the live one]
    pub from: Option<String>,
    /// The later revision [default: the live one]
    pub to: Option<String>,
}

/// Options of `edgefaas traces`.
#[derive(Debug, Args)]
pub struct Traces {
    /// Only those with an error
    #[arg(long)]
    pub failed: bool,
    /// Only those with this text in the name of the function or workflow, or in the id
    #[arg(long, value_name = "TEXT")]
    pub search: Option<String>,
    /// The maximum number of traces, the newest first
    #[arg(long, default_value_t = 50, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub limit: u32,
}

/// Options of `edgefaas settings`.
#[derive(Debug, Args)]
pub struct Settings {
    /// Only settings with this text in their names
    pub key: Option<String>,
}

/// Commands below `edgefaas workflow`.
#[derive(Debug, Subcommand)]
pub enum Workflow {
    /// List instances: those that have not ended or can be retried, then the ended ones that are kept
    List {
        /// Only instances of this workflow
        name: Option<String>,
        /// Only instances whose call had this Idempotency-Key or REQUEST-ID
        #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
        key: Option<String>,
        /// The maximum number of instances, the newest first
        #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Show an instance with its data
    Show {
        /// The instance's id
        id: String,
    },
    /// End an instance, or all that have not ended of a workflow or an app
    #[command(group(clap::ArgGroup::new("instances").required(true)))]
    Cancel {
        /// The instance's id
        #[arg(group = "instances")]
        id: Option<String>,
        /// All instances of this workflow
        #[arg(long, group = "instances", value_name = "WORKFLOW")]
        all: Option<String>,
        /// All instances of all workflows of this app, also of one that was removed
        #[arg(long, group = "instances", value_name = "APP")]
        app: Option<String>,
        /// With `--all` or `--app`: those that have failed and can be retried, in place of those that have not ended
        #[arg(long, conflicts_with = "id")]
        failed: bool,
    },
    /// Retry the failed task of a durable instance
    Retry {
        /// The instance's id
        id: String,
    },
    /// Print a workflow as a Mermaid flowchart
    Graph {
        /// A workflow of the node, or the file of a definition
        name: String,
        /// Removed: Mermaid is the only format
        #[arg(long, value_name = "FILE", hide = true)]
        svg: Option<PathBuf>,
    },
}

/// Options of `edgefaas trace`.
#[derive(Debug, Args)]
pub struct Trace {
    /// The id of an invocation (the header Invocation-Id), of an instance, or a W3C trace id
    pub id: String,
}

/// Commands below `edgefaas cluster`.
#[derive(Debug, Subcommand)]
pub enum Cluster {
    /// Create a cluster with this node as its first member, and print a join token for a second one
    Init {
        /// The node's name in the cluster [default: the machine's]
        #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
        name: Option<String>,
    },
    /// Print a join token, which admits one node once
    Token {
        /// The life of the token, such as 10m or 2h
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = token_life)]
        life: std::time::Duration,
    },
    /// Make this node a member of a cluster
    Join {
        /// The join token that `cluster init` or `cluster token` printed on another node
        // Not `token`: that is an option of every command.
        #[arg(value_name = "TOKEN")]
        invitation: String,
        /// The node's name in the cluster [default: the machine's]
        #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
        name: Option<String>,
    },
    /// Revoke a member, permanently
    Revoke {
        /// The member's name or id
        name: String,
    },
}

/// A field of an object.
#[derive(Debug, Clone, Args)]
pub struct FieldName {
    /// The app that the object belongs to
    pub app: String,
    /// The object's name
    pub object: String,
    /// The field's name
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub field: String,
    /// A key of a map in the field; repeat it for maps in maps
    #[arg(long = "key", value_name = "KEY")]
    pub path: Vec<String>,
}

/// Commands below `edgefaas objects`.
#[derive(Debug, Subcommand)]
pub enum Objects {
    /// List objects with their fields
    List {
        /// Only objects of this app
        app: Option<String>,
    },
    /// Show the value of a field, or of all fields of an object
    Get {
        /// The app that the object belongs to
        app: String,
        /// The object's name
        object: String,
        /// The field's name
        field: Option<String>,
        /// A key of a map in the field; repeat it for maps in maps
        #[arg(long = "key", value_name = "KEY", requires = "field")]
        path: Vec<String>,
    },
    /// Show changes as they happen
    Watch {
        /// The app that the objects belong to
        app: String,
        /// A pattern of object names, in which `*` stands for any characters
        object: String,
        /// A pattern of field names
        field: Option<String>,
    },
    /// Set a register, a flag, a text, an element of a list or a part of a JSON document
    Set {
        #[allow(missing_docs)]
        #[command(flatten)]
        name: FieldName,
        /// The value as JSON; text that is not JSON is a string
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// The type of a new field
        #[arg(long = "type", value_name = "TYPE", value_parser = ["register", "mv-register", "ew-flag", "dw-flag", "list", "text", "json"])]
        field_type: Option<String>,
        /// An index of a list, or a JSON Pointer (RFC 6901) into a document
        #[arg(long, value_name = "INDEX|POINTER")]
        at: Option<String>,
    },
    /// Add to a counter, a set or the end of a list
    Add {
        #[allow(missing_docs)]
        #[command(flatten)]
        name: FieldName,
        /// A number for counters, negative to subtract; otherwise a value as JSON
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// The type of a new field
        #[arg(long = "type", value_name = "TYPE", value_parser = ["counter", "g-counter", "bounded-counter", "g-set", "set", "list"])]
        field_type: Option<String>,
    },
    /// Remove an element of a set or list, a key of a map, or a part of a JSON document
    Remove {
        #[allow(missing_docs)]
        #[command(flatten)]
        name: FieldName,
        /// An element of a set as JSON, an index of a list, a key of a map or a JSON Pointer into a document
        value: String,
    },
    /// Delete a field, or whole objects
    Delete {
        /// The app that the objects belong to
        app: String,
        /// The object's name, or a pattern in which `*` stands for any characters
        object: String,
        /// The name of a field [default: all fields]
        #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
        field: Option<String>,
        /// Delete the objects of a pattern without a question
        #[arg(long)]
        yes: bool,
    },
    /// Write objects to a file, while the node runs
    Export {
        /// The file, or `-` for stdout
        file: PathBuf,
        /// Only objects of this app
        #[arg(long, value_name = "APP")]
        app: Option<String>,
    },
    /// Read the file of an `export` and merge it with existing objects
    Import {
        /// The file, or `-` for stdin
        file: PathBuf,
    },
}

/// Commands below `edgefaas secrets`.
#[derive(Debug, Subcommand)]
pub enum Secrets {
    /// Set a secret of an app; reads the value from stdin, or asks for it without echo
    Set {
        /// The secret's name
        name: String,
        /// The app [default: the app in this folder]
        #[arg(long)]
        app: Option<String>,
        /// On this node alone, and not on all nodes of its cluster
        #[arg(long)]
        this_node: bool,
    },
    /// List the names of the secrets that are set
    List {
        /// Only secrets of this app
        #[arg(long)]
        app: Option<String>,
    },
    /// Remove a secret of an app
    Rm {
        /// The secret's name
        name: String,
        /// The app [default: the app in this folder]
        #[arg(long)]
        app: Option<String>,
        /// A secret that an earlier version set for the whole node and that no app names
        #[arg(long, conflicts_with = "app")]
        unassigned: bool,
        /// On this node alone, and not on all nodes of its cluster
        #[arg(long)]
        this_node: bool,
    },
}

/// Options of `edgefaas queues`.
#[derive(Debug, Args)]
pub struct Queues {
    /// Only this topic filter
    pub filter: Option<String>,
    /// The maximum number of filters, those with the most waiting messages first
    #[arg(long, default_value_t = 50, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Options of `edgefaas clients`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Clients {
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(subcommand)]
    pub command: Option<ClientsCommand>,
    /// Only clients with this text in their id, user or address, whatever the case
    #[arg(long, value_name = "TEXT")]
    pub search: Option<String>,
    /// Only clients that are connected
    #[arg(long)]
    pub connected: bool,
    /// The maximum number of clients, in the order of their ids
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Commands below `edgefaas clients`.
#[derive(Debug, Subcommand)]
pub enum ClientsCommand {
    /// Show one client with its subscriptions
    Show {
        /// The client's id
        id: String,
    },
    /// End the connection of a client; its will is published
    Drop {
        /// The client's id
        id: String,
        /// End its session too: its subscriptions and waiting messages are deleted
        #[arg(long)]
        forget: bool,
    },
}

/// Options of `edgefaas topics`.
#[derive(Debug, Args)]
pub struct Topics {
    /// Only topics that match this filter [default: all but those that begin with $]
    pub filter: Option<String>,
    /// Only topics with this text in their names, whatever the case
    #[arg(long, value_name = "TEXT")]
    pub search: Option<String>,
    /// The maximum number of topics, in the order of their names
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Options of `edgefaas retained`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Retained {
    // Not a doc comment: clap would show it as the command's description.
    #[allow(missing_docs)]
    #[command(subcommand)]
    pub command: Option<RetainedCommand>,
    /// Only topics that match this filter [default: all but those that begin with $]
    pub filter: Option<String>,
    /// Only topics with this text in their names, whatever the case
    #[arg(long, value_name = "TEXT")]
    pub search: Option<String>,
    /// The maximum number of messages, in the order of their topics
    #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// Commands below `edgefaas retained`.
#[derive(Debug, Subcommand)]
pub enum RetainedCommand {
    /// Remove the retained message of a topic, with an empty retained message
    Rm {
        /// The topic
        topic: String,
    },
}

/// Options of `edgefaas publish`.
#[derive(Debug, Args)]
pub struct Publish {
    /// The topic
    pub topic: String,
    /// The payload [default: stdin]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "file")]
    pub data: Option<String>,
    /// A file with the payload
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The quality of service; with 1 and 2 the command ends when the message is stored
    #[arg(long, value_name = "QOS", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
    /// Keep it as the last message of its topic, for later subscribers
    #[arg(long)]
    pub retain: bool,
    /// Its content type, such as application/json
    #[arg(long, value_name = "TYPE")]
    pub content_type: Option<String>,
}

/// Options of `edgefaas subscribe`.
#[derive(Debug, Args)]
pub struct Subscribe {
    /// The topic filter, such as sensors/#
    pub filter: String,
    /// Show the retained messages first
    #[arg(long)]
    pub retained: bool,
    /// End after this number of messages
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Options of `edgefaas login`.
#[derive(Debug, Args)]
pub struct Login {
    /// The node's control API, such as https://pi.local:7070
    #[arg(value_name = "URL")]
    pub url: String,
    /// The SHA-256 fingerprint of its certificate [default: shows it and asks for confirmation]
    #[arg(long, value_name = "SHA256")]
    pub fingerprint: Option<Fingerprint>,
}

/// The life of a join token, at least 1 s.
fn token_life(text: &str) -> Result<std::time::Duration, String> {
    let life = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match life.as_secs() {
        0 => Err("the life of a token is at least 1 s; give a longer one, such as 10m".to_owned()),
        _ => Ok(life),
    }
}
