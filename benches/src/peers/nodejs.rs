//! Node.js with its own HTTP server.

use std::net::SocketAddr;
use std::process::Command;

use crate::process::Process;
use crate::repository;

/// Starts it; gives its address too.
///
/// # Errors
/// There is no `node` here.
pub fn start_nodejs() -> anyhow::Result<(Process, SocketAddr)> {
    let process = Process::start(Command::new("node").arg(repository().join("benches/guests/server.mjs")))?;
    let address = process.first_line.trim().parse()?;
    Ok((process, address))
}
