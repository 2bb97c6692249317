//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use edgefaas_manifest::Permission;
use edgefaas_node::tls::Fingerprint;

use crate::exit;

/// Turns a Linux box into a serverless node: an MQTT broker that runs WebAssembly functions.
#[derive(Debug, Parser)]
#[command(name = "edgefaas", version, after_help = exit::HELP, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The node's control API [default: that of `edgefaas dev` for this folder, else http://127.0.0.1:7070]
    #[arg(long, global = true, value_name = "URL", env = "EDGEFAAS_NODE")]
    pub node: Option<String>,
    /// The node's admin token [default: what a node on this machine wrote into its data directory]
    #[arg(long, global = true, value_name = "TOKEN", env = "EDGEFAAS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The node's data directory; other commands read its token there
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// How results are printed
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub output: Format,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON document, or one a line.
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node in the foreground
    Run(Run),
    /// Run functions and workflows for another MQTT broker, which stays the one that clients connect to
    Coordinator(Coordinator),
    /// Run a node with an app, redeploy it when a file changes and show its logs
    Dev(Dev),
    /// Start a new app from a template
    New(New),
    /// Check an app and build its functions without deploying
    Build(Build),
    /// Build an app and make it live
    Deploy(Deploy),
    /// Run a function once and print what it returns
    Invoke(Invoke),
    /// List the apps and functions that are live
    List,
    /// Show the log of a function, or of all
    Logs(Logs),
    /// Take an app and its functions away
    Rm(Rm),
    /// Make an earlier revision of an app live again
    Rollback(Rollback),
    /// Show how the node is
    Status,
    /// Look after the data of a node that does not run
    #[command(subcommand)]
    Store(Store),
    /// Show what passes and what waits under the topic filters that somebody subscribes to
    Queues(Queues),
    /// See, end and retry instances of workflows; draw a workflow
    #[command(subcommand)]
    Workflow(Workflow),
    /// Make a cluster of nodes, join one, and say who belongs to it
    #[command(subcommand)]
    Cluster(Cluster),
    /// List the nodes of the cluster and how they are connected
    Nodes,
    /// Read, change, watch and back up stateful objects
    #[command(subcommand)]
    Objects(Objects),
    /// Show where the time of an invocation or of an instance of a workflow went
    Trace(Trace),
    /// Set, list and remove secrets
    #[command(subcommand)]
    Secrets(Secrets),
    /// Add, change and remove users of the MQTT broker; reload who may do what
    #[command(subcommand)]
    Users(Users),
    /// Trust a node on another machine: see its certificate, give its token, keep both
    Login(Login),
    /// Deployed code on stdin, what it is compiled to on stdout; what a node starts to deploy a function
    #[command(name = COMPILE, hide = true)]
    Compile(Compile),
    /// Workflows on stdin; what a node starts before it compiles them itself
    #[command(name = DRY_RUN, hide = true)]
    DryRun(DryRun),
    /// All modules that a file imports on stdout; what `build`, `deploy` and `dev` start for a JavaScript function
    #[command(name = COLLECT, hide = true)]
    Collect(Collect),
}

#[derive(Debug, Subcommand)]
pub enum Store {
    /// Read everything that the node stored, and name the files that are missing or damaged
    Check(StoreCheck),
}

#[derive(Debug, Args)]
pub struct StoreCheck {
    /// A file with the node's settings, which may name the data directory
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The name of the command that compiles in a child process.
pub const COMPILE: &str = "compile-stdio";

/// The name of the command that compiles workflows in a child process.
pub const DRY_RUN: &str = "dry-run-stdio";

/// The name of the command that parses modules in a child process.
pub const COLLECT: &str = "collect-stdio";

#[derive(Debug, Args)]
pub struct Compile {
    /// The most memory of an isolate, in bytes
    pub max_memory_bytes: usize,
    /// The address space that each isolate reserves, in bytes
    pub reservation_bytes: u64,
    /// `isolates.compile_memory` of the node, in bytes
    pub compile_memory_bytes: u64,
    /// What is done
    pub task: CompileTask,
}

#[derive(Debug, Args)]
pub struct DryRun {
    /// The memory that it may use, in bytes
    pub memory_bytes: u64,
}

#[derive(Debug, Args)]
pub struct Collect {
    /// The memory that it may use, in bytes
    pub memory_bytes: u64,
    /// The module that the others are reached from
    pub entry: PathBuf,
    /// The app folder
    pub root: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompileTask {
    /// Compiles a core module.
    Module,
    /// Compiles a component.
    Component,
    /// Evaluates JavaScript.
    Script,
}

/// Where a node listens.
#[derive(Debug, Clone, Args)]
pub struct Listen {
    /// Address of the HTTP gateway; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT")]
    pub http: Option<SocketAddr>,
    /// Address of the MQTT broker [default: 127.0.0.1:1883]
    #[arg(long, value_name = "ADDR:PORT")]
    pub mqtt: Option<SocketAddr>,
    /// Address of the MQTT broker over TLS [default: none]
    #[arg(long, value_name = "ADDR:PORT")]
    pub mqtts: Option<SocketAddr>,
    /// Address of the control API [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDR:PORT")]
    pub control: Option<SocketAddr>,
    /// Address for the other nodes of a cluster, by TCP and QUIC [default: 127.0.0.1:7071]
    #[arg(long, value_name = "ADDR:PORT")]
    pub p2p: Option<SocketAddr>,
    /// A file with the node's settings; the options above go before it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub listen: Listen,
    /// Go on without what is missing or damaged in the store; damaged files are moved to `damaged` in the data directory
    #[arg(long)]
    pub accept_loss: bool,
}

#[derive(Debug, Args)]
pub struct Coordinator {
    #[command(flatten)]
    pub listen: Listen,
    /// The broker: mqtt://HOST[:PORT] or mqtts://HOST[:PORT]
    #[arg(long, value_name = "URL")]
    pub broker: String,
    /// Topics that functions and workflows are to see (repeatable)
    #[arg(long = "in", value_name = "FILTER", required = true)]
    pub inward: Vec<String>,
    /// Topics on which they publish for the broker's clients (repeatable)
    #[arg(long = "out", value_name = "FILTER")]
    pub outward: Vec<String>,
    /// The user name at the broker
    #[arg(long, value_name = "NAME")]
    pub username: Option<String>,
    /// A file with the password at the broker
    #[arg(long, value_name = "FILE", requires = "username")]
    pub password_file: Option<PathBuf>,
    /// The highest quality of service that is asked for
    #[arg(long, default_value_t = 1, value_name = "QOS", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
}

#[derive(Debug, Args)]
pub struct Dev {
    #[command(flatten)]
    pub listen: Listen,
    #[command(flatten)]
    pub app: App,
}

/// An app on disk.
#[derive(Debug, Clone, Args)]
pub struct App {
    /// A folder with edgefaas.toml, or a single .js, .mjs, .ts, .wasm or workflow .yaml file
    pub path: PathBuf,
    /// What a single file may do, such as publish=alerts/#, call=average or objects=room-* (repeatable)
    #[arg(long, value_name = "KIND=PATTERN")]
    pub allow: Vec<Permission>,
}

#[derive(Debug, Args)]
pub struct New {
    /// The app's name and its folder
    pub name: String,
    /// The language of its first function
    #[arg(long, value_enum)]
    pub lang: Language,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Language {
    /// Rust, compiled to a WebAssembly component.
    Rust,
    /// JavaScript or TypeScript; needs no toolchain.
    Js,
}

#[derive(Debug, Args)]
pub struct Build {
    #[command(flatten)]
    pub app: App,
}

#[derive(Debug, Args)]
pub struct Deploy {
    #[command(flatten)]
    pub app: App,
    /// Refuse workflows that call what is not deployed, in place of a warning
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Args)]
pub struct Invoke {
    /// The function
    pub name: String,
    /// The event's body: text, @FILE, or - for stdin
    #[arg(short, long, value_name = "DATA|@FILE|-", allow_hyphen_values = true)]
    pub data: Option<String>,
}

#[derive(Debug, Args)]
pub struct Logs {
    /// The function; all if not given
    pub name: Option<String>,
    /// Keep on showing new lines
    #[arg(short, long)]
    pub follow: bool,
    /// Show at most so many of the lines that are kept
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tail: Option<u32>,
}

#[derive(Debug, Args)]
pub struct Rm {
    /// The app
    pub name: String,
}

#[derive(Debug, Args)]
pub struct Rollback {
    /// The app
    pub name: String,
    /// The revision, or an unambiguous start of it [default: the one before the live one]
    #[arg(long, value_name = "REVISION")]
    pub to: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Workflow {
    /// List instances that have not ended, or that failed and can be retried
    List {
        /// Only those of this workflow
        name: Option<String>,
        /// At most so many, the newest first
        #[arg(long, default_value_t = 100, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
    },
    /// Show an instance with its data
    Show {
        /// The instance's id
        id: String,
    },
    /// End an instance
    Cancel {
        /// The instance's id
        id: String,
    },
    /// Try the task again that failed (of a durable workflow)
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

#[derive(Debug, Args)]
pub struct Trace {
    /// The id of an invocation (the header Invocation-Id), of an instance, or a W3C trace id
    pub id: String,
}

#[derive(Debug, Subcommand)]
pub enum Cluster {
    /// Make a cluster with this node as its first member, and print a token for a second one
    Init {
        /// The node's name in the cluster [default: the machine's]
        #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
        name: Option<String>,
    },
    /// Print a token with which one more node may join, once
    Token {
        /// How long it is good, such as 10m or 2h
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = token_life)]
        life: std::time::Duration,
    },
    /// Make this node a member of a cluster
    Join {
        /// What `cluster init` or `cluster token` has printed on another node
        // Not `token`: that is an option of every command.
        #[arg(value_name = "TOKEN")]
        invitation: String,
        /// The node's name in the cluster [default: the machine's]
        #[arg(long, value_parser = clap::builder::NonEmptyStringValueParser::new())]
        name: Option<String>,
    },
    /// Put a node out of the cluster, for good
    Revoke {
        /// Its name or id
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
    /// A key of a map in the field; once more for maps in maps
    #[arg(long = "key", value_name = "KEY")]
    pub path: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Objects {
    /// List objects with their fields
    List {
        /// Only those of this app
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
        /// A key of a map in the field; once more for maps in maps
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
        #[command(flatten)]
        name: FieldName,
        /// The value as JSON; what is no JSON is a string
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// The field's type, where it is not there yet: register, mv-register, ew-flag, dw-flag, list, text, json
        #[arg(long = "type", value_name = "TYPE")]
        field_type: Option<String>,
        /// Where: an index of a list, or a JSON Pointer (RFC 6901) into a document
        #[arg(long, value_name = "PLACE")]
        at: Option<String>,
    },
    /// Add to a counter, a set or the end of a list
    Add {
        #[command(flatten)]
        name: FieldName,
        /// A number for counters, negative to subtract; else a value as JSON
        #[arg(allow_hyphen_values = true)]
        value: String,
        /// The field's type, where it is not there yet: counter, g-counter, bounded-counter, g-set, set, list
        #[arg(long = "type", value_name = "TYPE")]
        field_type: Option<String>,
    },
    /// Remove an element of a set or list, a key of a map, or a part of a JSON document
    Remove {
        #[command(flatten)]
        name: FieldName,
        /// An element of a set as JSON, an index of a list, a key of a map or a JSON Pointer into a document
        value: String,
    },
    /// Write objects into a file, while the node runs
    Export {
        /// The file, or `-` for stdout
        file: PathBuf,
        /// Only those of this app
        #[arg(long, value_name = "APP")]
        app: Option<String>,
    },
    /// Take in what `export` wrote; what is there already is merged with it
    Import {
        /// The file, or `-` for stdin
        file: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub enum Secrets {
    /// Set a secret of an app; its value is read from stdin, or asked for without echo
    Set {
        /// The secret's name
        name: String,
        /// The app; by default the one in this folder
        #[arg(long)]
        app: Option<String>,
    },
    /// List the names of the secrets that are set
    List {
        /// Those of one app alone
        #[arg(long)]
        app: Option<String>,
    },
    /// Forget a secret of an app
    Rm {
        /// The secret's name
        name: String,
        /// The app; by default the one in this folder
        #[arg(long)]
        app: Option<String>,
        /// One that an earlier version set for the whole node and that no app names
        #[arg(long, conflicts_with = "app")]
        unassigned: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum Users {
    /// Add a user; the password is read from stdin, or asked for without echo
    Add {
        /// The user's name
        name: String,
    },
    /// Give a user another password, which is read from stdin or asked for
    Passwd {
        /// The user's name
        name: String,
    },
    /// Take a user away and end the user's connections
    Rm {
        /// The user's name
        name: String,
    },
    /// List the names of the users
    List,
    /// Read users, access rules, token keys and certificates again, without ending connections
    Reload,
}

#[derive(Debug, Args)]
pub struct Queues {
    /// Only this topic filter
    pub filter: Option<String>,
    /// At most so many, those with the most messages waiting first
    #[arg(long, default_value_t = 50, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct Login {
    /// The node's control API, such as https://pi.local:7070
    #[arg(value_name = "URL")]
    pub url: String,
    /// The SHA-256 fingerprint that its certificate has to have; otherwise it is shown, and asked about
    #[arg(long, value_name = "SHA256")]
    pub fingerprint: Option<Fingerprint>,
}

/// How long a token is good: a second at least.
fn token_life(text: &str) -> Result<std::time::Duration, String> {
    let life = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match life.as_secs() {
        0 => Err("nobody could use the token within that; give a second at least, such as 10m".to_owned()),
        _ => Ok(life),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}
