//! One file for each command.

mod build;
mod cluster;
mod compile;
mod coordinator;
mod deploy;
mod dev;
mod invoke;
mod list;
mod login;
mod logs;
mod new;
mod nodes;
mod objects;
mod queues;
mod rm;
mod rollback;
mod run;
mod secrets;
mod status;
mod store;
mod trace;
mod users;
mod workflow;

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
        Command::New(args) => new::run(&args, &global),
        Command::Build(args) => as_client(build::run(&args, &global)),
        Command::Deploy(args) => as_client(deploy::run(&args, &global)),
        Command::Invoke(args) => as_client(invoke::run(&args, &global)),
        Command::List => as_client(list::run(&global)),
        Command::Logs(args) => as_client(logs::run(&args, &global)),
        Command::Rm(args) => as_client(rm::run(&args, &global)),
        Command::Rollback(args) => as_client(rollback::run(&args, &global)),
        Command::Store(args) => store::run(&args, &global),
        Command::Status => as_client(status::run(&global)),
        Command::Compile(args) => return compile::compile(&args),
        Command::DryRun(args) => return compile::dry_run(&args),
        Command::Collect(args) => return compile::collect(&args),
        Command::Secrets(args) => as_client(secrets::run(&args, &global)),
        Command::Queues(args) => as_client(queues::run(&args, &global)),
        Command::Users(args) => as_client(users::run(&args, &global)),
        Command::Login(args) => as_client(login::run(&args, &global)),
        Command::Workflow(args) => as_client(workflow::run(&args, &global)),
        Command::Cluster(args) => as_client(cluster::run(&args, &global)),
        Command::Nodes => as_client(nodes::run(&global)),
        Command::Objects(args) => as_client(objects::run(&args, &global)),
        Command::Trace(args) => as_client(trace::run(&args, &global)),
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
