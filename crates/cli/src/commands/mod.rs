//! One file for each command that needs a node in this process, or its data directory. The others are in `edgefaas-client`.

mod compile;
mod coordinator;
mod dev;
mod manual;
mod policy;
mod run;
mod self_check;
mod store;
mod test;
mod upgrade;
mod users;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context;
use tokio::runtime::Builder;

use crate::args::{ChildCommand, Cli, Command, UserCommand};

/// Runs a command to its end.
pub fn run(cli: Cli<Command>) -> anyhow::Result<ExitCode> {
    let Cli { global, command } = cli;
    let command = match command {
        Command::User(command) => command,
        Command::Child(ChildCommand::Compile(args)) => return compile::compile(&args),
        Command::Child(ChildCommand::DryRun(args)) => return compile::dry_run(&args),
        Command::Child(ChildCommand::Collect(args)) => return compile::collect(&args),
    };
    let done = match command {
        UserCommand::Run(args) => with_node(run::run(&args, &global)),
        UserCommand::Coordinator(args) => with_node(coordinator::run(&args, &global)),
        UserCommand::Dev(args) => with_node(dev::run(&args, &global)),
        UserCommand::Test(args) => with_node(test::run(&args, &global)),
        UserCommand::Client(command) => edgefaas_client::commands::run(&command, &global),
        UserCommand::Policy(args) => as_client(policy::run(&args, &global)),
        UserCommand::Store(args) => store::run(&args, &global),
        UserCommand::Users(args) => as_client(users::run(&args, &global)),
        UserCommand::Upgrade(args) => as_client(upgrade::run(&args, &global)),
        UserCommand::Completions { shell } => manual::completions(shell),
        UserCommand::Man { folder } => manual::pages(&folder),
        UserCommand::SelfCheck(args) => self_check::run(&args, &global),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// A client runs one short task.
fn as_client(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(command)
}

/// A node serves its control API beside the task of the command.
fn with_node(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(command)
}
