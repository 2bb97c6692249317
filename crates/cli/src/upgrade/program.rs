//! Upgrades of a program that no package manager owns.
//!
//! The steps, in this order, so that a power cut between any two leaves a program that runs:
//!
//! 1. The packed program and its sums are read; the signature and the sum are checked, and the program is unpacked beside the
//!    installed one.
//! 2. The new program must start. The installed one is kept, an upgrade is marked as open, and the new one takes its place, each by
//!    one rename.
//! 3. The node restarts and must be ready. Then the mark is removed; otherwise the kept program returns.
//!
//! A command that finds an open upgrade returns to the kept program first.

use edgefaas_client::exit::{Exit, Failure};
use edgefaas_client::progress::Step;

use super::installed::Installed;
use super::release::{Key, Source, Wanted};
use super::service::{self, Node, Service};

/// Replaces the installed program by that of a release.
pub async fn to(installed: &Installed, node: &Node<'_>, source: Source, key: &Key) -> anyhow::Result<()> {
    let _lock = installed.lock()?;
    end_open_upgrade(installed, node).await?;
    let end = format!("-{}.gz", std::env::consts::ARCH);
    let source = source.file(key, Wanted { start: "edgefaas-", end: &end }).await?;
    let program = {
        let step = Step::start(format!("Reading {source}"));
        let (staged, file) = installed.stage(source.to_string())?;
        staged.finish(source.read(key, file, &step).await?)?
    };
    let before = installed.version().await?;
    let after = program.version().await?;
    eprintln!("{before} is installed, {after} is verified");
    installed.replace(program)?;
    let Some(reason) = node.restart().await.err() else {
        installed.close()?;
        report(installed, node, &format!("{after} is installed"));
        return Ok(());
    };
    eprintln!("error: {reason}; {before} returns");
    installed.return_to_previous()?;
    installed.close()?;
    let message = match node.restart().await {
        Ok(()) => {
            format!("{after} is not installed: {reason}; {before} is installed and its node is ready again")
        }
        Err(again) => format!(
            "{after} is not installed: {reason}; {before} is installed again, and its node is not ready: {again}"
        ),
    };
    Err(Failure::new(Exit::Failed, message))
}

/// Returns to the program before the last upgrade.
pub async fn back(installed: &Installed, node: &Node<'_>) -> anyhow::Result<()> {
    let _lock = installed.lock()?;
    installed.return_to_previous()?;
    installed.close()?;
    let version = installed.version().await?;
    if let Err(reason) = node.restart().await {
        let message = format!("{version} is installed, but its node is not ready: {reason}");
        return Err(Failure::new(Exit::Failed, message));
    }
    report(installed, node, &format!("{version} is installed"));
    Ok(())
}

/// Returns to the kept program if an upgrade was cut off after it had replaced the program: the node that runs may be
/// one that nobody has seen ready.
async fn end_open_upgrade(installed: &Installed, node: &Node<'_>) -> anyhow::Result<()> {
    if !installed.is_open() {
        return Ok(());
    }
    eprintln!("an earlier upgrade was cut off; the program before it returns");
    installed.return_to_previous()?;
    installed.close()?;
    if let Err(reason) = node.restart().await {
        eprintln!("warning: its node is not ready: {reason}");
    }
    Ok(())
}

fn report(installed: &Installed, node: &Node<'_>, done: &str) {
    match node.service {
        Service::None => eprintln!(
            "{done}; no running service `{}` of systemd was found, and --restart was not given: restart the node yourself",
            service::DEFAULT_UNIT
        ),
        _ => eprintln!("{done}, and its node is ready"),
    }
    eprintln!(
        "the program before it is {}; `edgefaas upgrade --back` returns to it",
        installed.previous().display()
    );
}
