//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use edgefaas_client::app::COLLECT;
use edgefaas_client::args::{self as client, Global};
use edgefaas_client::exit;
use edgefaas_node::access::Role;
use edgefaas_platform::{LABEL_RULE, is_label};

/// Turns a Linux box into a serverless node: an MQTT broker that runs WebAssembly functions.
#[derive(Debug, Parser)]
#[command(name = "edgefaas", version, after_help = exit::HELP, arg_required_else_help = true)]
pub struct Cli<C: Subcommand> {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: C,
}

/// All commands.
#[expect(clippy::large_enum_variant, reason = "one in a process")]
#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(flatten)]
    User(UserCommand),
    #[command(flatten)]
    Child(ChildCommand),
}

/// Commands for users. Those of `client::Command` need no code of a node, and no data directory.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Run a node in the foreground
    Run(Run),
    /// Run functions and workflows for another MQTT broker, which its clients keep using
    Coordinator(Coordinator),
    /// Run a node with an app, redeploy it when a file changes and show its logs
    Dev(Dev),
    /// Run the tests of an app on a node of their own
    Test(Test),
    #[command(flatten)]
    Client(client::Command),
    /// Check, set, show, explain and remove placement policies
    #[command(subcommand)]
    Policy(Policy),
    /// Check the stored data of a stopped node
    #[command(subcommand)]
    Store(Store),
    /// Check whether a node would run here, and what makes it slow
    #[command(alias = "doctor")]
    SelfCheck(SelfCheck),
    /// Add, change and remove users of the MQTT broker; reload users, rules and certificates
    #[command(subcommand)]
    Users(Users),
    /// Replace this program or its Debian package by a verified one, restart its service, and return if the node does not get ready
    Upgrade(Upgrade),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write a manual page for each command
    Man {
        /// The folder of the pages; it is created
        folder: PathBuf,
    },
}

/// A shell with completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Commands that the program starts itself. No help, completion or manual page has them.
#[derive(Debug, Subcommand)]
pub enum ChildCommand {
    /// Compiles the code on stdin to stdout; a node starts it to deploy a function
    #[command(name = COMPILE, hide = true)]
    Compile(Compile),
    /// Compiles the workflows on stdin; a node starts it before it compiles them itself
    #[command(name = DRY_RUN, hide = true)]
    DryRun(DryRun),
    /// Writes all modules that the files on stdin import to stdout; `build`, `deploy` and `dev` start it for JavaScript functions
    #[command(name = COLLECT, hide = true)]
    Collect(Collect),
}

#[derive(Debug, Subcommand)]
pub enum Policy {
    /// Check a file; needs no node
    Check {
        /// The policies in YAML, or - for stdin
        file: PathBuf,
    },
    /// Set the policies of all nodes of the cluster
    Set {
        /// The policies in YAML, or - for stdin
        file: PathBuf,
        #[command(flatten)]
        wait: client::Wait,
    },
    /// Remove the policies of all nodes of the cluster
    Rm {
        #[command(flatten)]
        wait: client::Wait,
    },
    /// Print the policies of the cluster
    Show,
    /// Say where a call of a function would run, and why
    Explain {
        /// The function or workflow
        function: String,
        /// The node at which the call arrives [default: the one that answers]
        #[arg(long, value_name = "NODE")]
        entry: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Store {
    /// Read all stored data, and name missing and damaged files
    Check(StoreCheck),
}

#[derive(Debug, Args)]
pub struct SelfCheck {
    #[command(flatten)]
    pub listen: Listen,
}

#[derive(Debug, Args)]
pub struct StoreCheck {
    /// The node's configuration, which may name the data directory
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The name of the command that compiles in a child process.
pub const COMPILE: &str = "compile-stdio";

/// The name of the command that compiles workflows in a child process.
pub const DRY_RUN: &str = "dry-run-stdio";

#[derive(Debug, Args)]
pub struct Compile {
    /// The maximum memory of an isolate, in bytes
    pub max_memory_bytes: usize,
    /// The address space that each isolate reserves, in bytes
    pub reservation_bytes: u64,
    /// `isolates.compile_memory` of the node, in bytes
    pub compile_memory_bytes: u64,
    /// The kind of code
    pub task: CompileTask,
}

#[derive(Debug, Args)]
pub struct DryRun {
    /// Memory limit of the process, in bytes
    pub memory_bytes: u64,
}

#[derive(Debug, Args)]
pub struct Collect {
    /// Memory limit of the process, in bytes
    pub memory_bytes: u64,
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

/// Addresses of a node, and its place in a cluster.
#[derive(Debug, Clone, Args)]
pub struct Listen {
    /// Address of the HTTP gateway; port 0 selects a free port [default: 127.0.0.1:8080]
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
    /// The zone of this node in its cluster, such as a building [default: measured]
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub zone: Option<String>,
    /// A label of this node, to which deploys and placement policies refer; replaces those of the configuration (repeatable)
    #[arg(long = "label", value_name = "NAME", value_parser = label)]
    pub labels: Vec<String>,
    /// The node's configuration; the options above override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub listen: Listen,
    /// Start without the missing or damaged data of the store; damaged files move to `damaged` in the data directory
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
    /// Topics of the broker for functions and workflows (repeatable)
    #[arg(long = "in", value_name = "FILTER", required = true)]
    pub inward: Vec<String>,
    /// Topics of functions and workflows for the broker's clients (repeatable)
    #[arg(long = "out", value_name = "FILTER")]
    pub outward: Vec<String>,
    /// The user name at the broker
    #[arg(long, value_name = "NAME")]
    pub username: Option<String>,
    /// A file with the password at the broker
    #[arg(long, value_name = "FILE", requires = "username")]
    pub password_file: Option<PathBuf>,
    /// The highest quality of service of its subscriptions
    #[arg(long, default_value_t = 1, value_name = "QOS", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
}

#[derive(Debug, Args)]
pub struct Dev {
    #[command(flatten)]
    pub listen: Listen,
    #[command(flatten)]
    pub app: client::App,
}

#[derive(Debug, Args)]
pub struct Upgrade {
    /// The new program (packed with gzip or not) or Debian package with SHA256SUMS and SHA256SUMS.minisig beside it, or their folder
    #[arg(value_name = "FILE|FOLDER|URL", required_unless_present = "back")]
    pub source: Option<String>,
    /// The minisign public key of the release: its text, or a file
    #[arg(long, value_name = "KEY", env = "EDGEFAAS_PUBLIC_KEY")]
    pub key: Option<String>,
    /// Check only the SHA-256 sum, of a program that you built yourself
    #[arg(long, conflicts_with = "key")]
    pub unsigned: bool,
    /// Return to the program or package before the last upgrade
    #[arg(long, conflicts_with_all = ["source", "unsigned"])]
    pub back: bool,
    /// The Debian package that is installed, to return to it [default: the kept one]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["back", "no_way_back"])]
    pub previous: Option<PathBuf>,
    /// Upgrade the Debian package although the installed one is not kept
    #[arg(long, conflicts_with = "back")]
    pub no_way_back: bool,
    /// The installed program [default: this one]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// A command that restarts the node and ends when the old one has ended [default: systemctl, if it runs edgefaas.service]
    #[arg(long, value_name = "COMMAND")]
    pub restart: Option<String>,
    /// The time in which the node must be ready
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    pub wait: Duration,
}

#[derive(Debug, Args)]
pub struct Test {
    #[command(flatten)]
    pub app: client::App,
    /// Only tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub filter: Option<String>,
    /// Print the results as TAP, the Test Anything Protocol
    #[arg(long)]
    pub tap: bool,
    /// Write the results to a file in JUnit's XML
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Users {
    /// Add a user; reads the password from stdin, or asks for it without echo
    Add {
        /// The user's name
        name: String,
        /// What the user may do at the control port; without it the user may use MQTT only
        #[arg(long)]
        role: Option<UserRole>,
    },
    /// Set what a user may do at the control port and its dashboard
    Role {
        /// The user's name
        name: String,
        /// `none` for a user of MQTT alone
        role: UserRole,
    },
    /// Change a user's password; reads it from stdin, or asks for it without echo
    Passwd {
        /// The user's name
        name: String,
    },
    /// Remove a user and close the user's connections
    Rm {
        /// The user's name
        name: String,
    },
    /// List the users with their roles
    List,
    /// Read users, access rules, token keys and certificates again; connections stay open
    Reload,
}

/// A role at the control port, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum UserRole {
    /// Use MQTT only
    None,
    /// See everything but secrets
    Look,
    /// Also invoke, publish, retry, cancel, change objects, and roll back
    Operate,
    /// Also deploy, remove, and change secrets, users and the cluster
    Administer,
}

impl UserRole {
    /// The role; `None` for a user of MQTT alone.
    pub fn role(self) -> Option<Role> {
        match self {
            Self::None => None,
            Self::Look => Some(Role::Look),
            Self::Operate => Some(Role::Operate),
            Self::Administer => Some(Role::Administer),
        }
    }
}

/// The name of a zone or a label.
fn label(text: &str) -> Result<String, &'static str> {
    if is_label(text) { Ok(text.to_owned()) } else { Err(LABEL_RULE) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        super::Cli::<super::Command>::command().debug_assert();
    }
}
