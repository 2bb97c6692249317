//! One file for each command that needs a node in this process, or its data directory. The others are in `edgefaas-client`.

mod compile;
mod coordinator;
mod dev;
mod policy;
mod run;
mod self_check;
mod store;
mod test;
mod users;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context;
use tokio::runtime::Builder;

use crate::args::{Cli, Command};

/// Runs a command to its end.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { global, command } = cli;
    let done = match command {
        Command::Run(args) => with_node(run::run(&args, &global)),
        Command::Coordinator(args) => with_node(coordinator::run(&args, &global)),
        Command::Dev(args) => with_node(dev::run(&args, &global)),
        Command::Test(args) => with_node(test::run(&args, &global)),
        Command::Client(command) => edgefaas_client::commands::run(&command, &global),
        Command::Policy(args) => as_client(policy::run(&args, &global)),
        Command::Store(args) => store::run(&args, &global),
        Command::SelfCheck(args) => self_check::run(&args, &global),
        Command::Users(args) => as_client(users::run(&args, &global)),
        Command::Compile(args) => return compile::compile(&args),
        Command::DryRun(args) => return compile::dry_run(&args),
        Command::Collect(args) => return compile::collect(&args),
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
