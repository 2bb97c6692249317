//! The `edgefaas` binary: a node, and the commands for nodes.

mod allocator;
mod app;
mod args;
mod cargo;
mod client;
mod commands;
mod dev_file;
mod exit;
mod hints;
mod input;
mod known_nodes;
mod log;
mod node;
mod output;
mod progress;
mod proof;
mod templates;
mod tls;
mod watch;

use std::process::ExitCode;

use clap::Parser;

// Measured against glibc's and mimalloc: only jemalloc scales fully to a second worker thread.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    commands::run(cli).unwrap_or_else(|error| exit::report(&error))
}
