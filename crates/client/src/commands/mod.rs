//! One file for each command.

mod build;
mod clients;
mod cluster;
pub mod deploy;
mod diff;
mod events;
mod history;
mod invocations;
mod invoke;
mod list;
mod login;
mod logs;
mod new;
mod nodes;
mod objects;
mod publish;
mod queues;
mod retained;
mod rm;
mod rollback;
mod secrets;
mod settings;
mod status;
mod subscribe;
mod topics;
mod trace;
mod traces;
mod workflow;

use anyhow::Context;
use tokio::runtime::Builder;

use self::invocations::Kind;
use crate::args::{Command, Global};
use crate::exit::{self, Exit, Failure};
use crate::other_port;

/// Runs a command to its end, in a runtime of its own.
///
/// # Errors
/// The command failed; [`exit::code`](crate::exit::code) gives the exit code of the error.
pub fn run(command: &Command, global: &Global) -> anyhow::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(async {
        let done = match command {
            Command::New(args) => new::run(args, global),
            Command::Build(args) => build::run(args, global).await,
            Command::Deploy(args) => deploy::run(args, global).await,
            Command::Invoke(args) => invoke::run(args, global).await,
            Command::List(args) => list::run(args, global).await,
            Command::Logs(args) => logs::run(args, global).await,
            Command::Rm(args) => rm::run(args, global).await,
            Command::Rollback(args) => rollback::run(args, global).await,
            Command::Status => status::run(global).await,
            Command::History(args) => history::run(args, global).await,
            Command::Events(args) => events::run(args, global).await,
            Command::Queues(args) => queues::run(args, global).await,
            Command::Clients(args) => clients::run(args, global).await,
            Command::Topics(args) => topics::run(args, global).await,
            Command::Retained(args) => retained::run(args, global).await,
            Command::Publish(args) => publish::run(args, global).await,
            Command::Subscribe(args) => subscribe::run(args, global).await,
            Command::Invocations(args) => invocations::run(args, Kind::Pending, global).await,
            Command::Dead(args) => invocations::run(args, Kind::Dead, global).await,
            Command::Diff(args) => diff::run(args, global).await,
            Command::Traces(args) => traces::run(args, global).await,
            Command::Settings(args) => settings::run(args, global).await,
            Command::Workflow(args) => workflow::run(args, global).await,
            Command::Cluster(args) => cluster::run(args, global).await,
            Command::Nodes(args) => nodes::run(args, global).await,
            Command::Objects(args) => objects::run(args, global).await,
            Command::Trace(args) => trace::run(args, global).await,
            Command::Secrets(args) => secrets::run(args, global).await,
            Command::Login(args) => login::run(args, global).await,
        };
        let Err(error) = done else { return Ok(()) };
        if matches!(exit::code(&error), Exit::Unreachable | Exit::Refused)
            && let Some(reason) = other_port::recognise(global).await
        {
            return Err(Failure::new(Exit::Unreachable, reason));
        }
        Err(error)
    })
}
