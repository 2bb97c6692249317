//! Starts a node inside this process, for `run` and `dev`.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use edgefaas_client::exit::{Exit, Failure};
use edgefaas_functions::registry::dry_run_memory_bytes;
use edgefaas_isolates::Compiler;
use edgefaas_isolates::compile::ChildCompiler;
use edgefaas_node::access::AccessControl;
use edgefaas_node::config::NodeConfig;
use edgefaas_node::{Node, Platform};
use edgefaas_platform::{Clock, this_program};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;

use crate::allocator;
use crate::args::{self, Listen};
use crate::service_manager::ServiceManager;

/// The configuration file, with the options of the command line.
pub fn config(listen: &Listen, data_dir: Option<PathBuf>) -> anyhow::Result<NodeConfig> {
    let mut config = NodeConfig::load(listen.config.as_deref())
        .map_err(|error| Failure::new(Exit::Invalid, error.to_string()))?;
    if let Some(data_dir) = data_dir {
        config.data_dir = data_dir;
    }
    config.http = listen.http.unwrap_or(config.http);
    config.mqtt = listen.mqtt.unwrap_or(config.mqtt);
    config.mqtts = listen.mqtts.or(config.mqtts);
    config.control = listen.control.unwrap_or(config.control);
    config.cluster.listen = listen.p2p.unwrap_or(config.cluster.listen);
    config.cluster.zone = listen.zone.clone().or(config.cluster.zone);
    if !listen.labels.is_empty() {
        config.cluster.labels.clone_from(&listen.labels);
    }
    Ok(config)
}

/// Checks the addresses. The error names all of them that another program uses, with a remedy.
pub fn check_ports(config: &NodeConfig) -> anyhow::Result<()> {
    let taken: Vec<String> =
        [("--http", config.http), ("--mqtt", config.mqtt), ("--control", config.control)]
            .into_iter()
            .chain(config.mqtts.map(|mqtts| ("--mqtts", mqtts)))
            .filter(|(_, address)| is_taken(*address))
            .map(|(option, address)| format!("{address} ({option})"))
            .collect();
    if taken.is_empty() {
        return Ok(());
    }
    let message = format!(
        "in use by another program: {}; stop it (another `edgefaas dev` or `run`? a mosquitto on 1883?) \
         or choose another address, such as `--mqtt 127.0.0.1:0` for any free port",
        taken.join(", ")
    );
    Err(Failure::new(Exit::Failed, message))
}

fn is_taken(address: SocketAddr) -> bool {
    matches!(TcpListener::bind(address), Err(error) if error.kind() == ErrorKind::AddrInUse)
}

/// Opens the data directory and the listeners.
pub async fn build(config: NodeConfig) -> anyhow::Result<Node> {
    build_with(config, Clock::system()).await
}

/// Does the same, for a node with this clock.
pub async fn build_with(config: NodeConfig, clock: Clock) -> anyhow::Result<Node> {
    let platform = Platform { clock, ..Platform::system() };
    if platform.memory.limit().bytes <= allocator::SMALL_MEMORY_BYTES
        && let Err(error) = allocator::give_back_soon()
    {
        tracing::warn!(%error, "freed memory returns to the system late");
    }
    let compiler = compiler(&config, &platform)?;
    let memory_bytes = dry_run_memory_bytes(&platform.machine);
    let arguments = vec![args::DRY_RUN.to_owned(), memory_bytes.to_string()];
    let dry_run = Some(ChildCompiler { program: own_file()?, arguments, memory_bytes });
    let platform = Platform { compiler, dry_run, ..platform };
    Node::build(config, platform).await.context("the node cannot start")
}

/// Parses and compiles deployed code in a child process of the same program.
fn compiler(config: &NodeConfig, platform: &Platform) -> anyhow::Result<Compiler> {
    let plan = config.memory_plan(platform.memory.limit());
    let pool = config.isolates.pool(&platform.machine, &plan);
    let memory_bytes = config.isolates.compile_memory_bytes(&platform.machine);
    // Native code depends on these settings of the engine.
    let arguments = vec![
        args::COMPILE.to_owned(),
        pool.max_memory_bytes.to_string(),
        pool.reservation_bytes.to_string(),
        memory_bytes.to_string(),
    ];
    Ok(Compiler::Child(ChildCompiler { program: own_file()?, arguments, memory_bytes }))
}

fn own_file() -> anyhow::Result<PathBuf> {
    this_program().context("this program's own file is unknown")
}

/// Raises the limit of open files to its maximum: each connection is a file.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    // `None` is no limit.
    let (from, to) = (limit.current, limit.maximum);
    match raised {
        Ok(()) => tracing::debug!(?from, ?to, "raised the limit of open files"),
        Err(error) => tracing::debug!(?from, ?to, %error, "the limit of open files stays"),
    }
}

/// Cancelled by SIGTERM and SIGINT. A second signal ends the process immediately.
pub fn shutdown_signal() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let shutdown = CancellationToken::new();
    let cancelled = shutdown.clone();
    tokio::spawn(async move {
        for code in [None, Some(130)] {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            match code {
                None => cancelled.cancel(),
                Some(code) => std::process::exit(code),
            }
        }
    });
    Ok(shutdown)
}

/// Reloads users, rules and certificates at every SIGHUP.
pub fn reload_on_hangup(access: Arc<AccessControl>, manager: ServiceManager) -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            manager.reloading();
            match access.reload().await {
                Ok(reloaded) => {
                    tracing::info!(users = reloaded.users, rules = reloaded.rules, "reloaded");
                    manager.reloaded(&format!("reloaded; {} users", reloaded.users));
                }
                Err(error) => {
                    tracing::error!("{error}");
                    manager.reloaded(&format!("the reload failed: {error}"));
                }
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_the_program_that_runs() {
        let compiler = compiler(&NodeConfig::default(), &Platform::system()).unwrap();
        let Compiler::Child(child) = compiler else { panic!("it compiles in a child") };
        assert_eq!(child.program, PathBuf::from("/proc/self/exe"), "not a path that an upgrade replaces");
        assert_eq!(child.arguments[0], args::COMPILE);
    }
}
