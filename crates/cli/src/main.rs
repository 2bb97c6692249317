//! The `edgefaas` binary: a node in this process, and the commands of `edgefaas-client`.

mod allocator;
mod args;
mod commands;
mod data_owner;
mod hints;
mod log;
mod node;
mod program_pages;
mod service_manager;
mod upgrade;
mod watch;

use std::process::ExitCode;

use clap::Parser;
use edgefaas_client::exit;

// Measured against glibc's and mimalloc: only jemalloc scales fully to a second worker thread.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = args::Cli::<args::Command>::parse();
    commands::run(cli).unwrap_or_else(|error| exit::report(&error))
}
