//! `edgefaas upgrade`: a verified program takes the place of the installed one, and leaves it again if the node does not get ready.
//!
//! The steps, in this order, so that a power cut between any two leaves a program that runs:
//!
//! 1. [`release`]: the packed program and its sums are read; the signature and the sum are checked, and the program is unpacked beside
//!    the installed one.
//! 2. [`installed`]: the new program must start. The installed one is kept, an upgrade is marked as open, and the new one takes its
//!    place, each by one rename.
//! 3. [`service`]: the node restarts and must be ready. Then the mark is removed; otherwise the kept program returns.
//!
//! A command that finds an open upgrade returns to the kept program first.

pub mod installed;
pub mod release;
pub mod service;

use std::time::Duration;

use edgefaas_client::args::Global;
use edgefaas_client::exit::{Exit, Failure};
use edgefaas_client::progress::Step;

use self::installed::Installed;
use self::release::{Key, Source};
use self::service::Service;

/// What an upgrade needs.
pub struct Upgrade {
    pub installed: Installed,
    pub service: Service,
    /// Maximum time until the node is ready after a restart.
    pub wait: Duration,
}

impl Upgrade {
    /// Replaces the installed program by that of a release.
    pub async fn to(&self, source: &Source, key: &Key, global: &Global) -> anyhow::Result<()> {
        let _lock = self.installed.lock()?;
        self.end_open_upgrade(global).await?;
        let program = {
            let step = Step::start(format!("Reading {source}"));
            let staged = self.installed.stage()?;
            source.unpack(key, staged, &step).await?
        };
        let before = self.installed.version().await?;
        let after = program.version().await?;
        eprintln!("{before} is installed, {after} is verified");
        self.installed.replace(program)?;
        let Some(reason) = self.restart(global).await.err() else {
            self.installed.close()?;
            self.report(&format!("{after} is installed"));
            return Ok(());
        };
        eprintln!("error: {reason}; {before} returns");
        self.installed.return_to_previous()?;
        self.installed.close()?;
        let message = match self.restart(global).await {
            Ok(()) => format!(
                "{after} is not installed: {reason}; {before} is installed and its node is ready again"
            ),
            Err(again) => format!(
                "{after} is not installed: {reason}; {before} is installed again, and its node is not ready: {again}"
            ),
        };
        Err(Failure::new(Exit::Failed, message))
    }

    /// Returns to the program before the last upgrade.
    pub async fn back(&self, global: &Global) -> anyhow::Result<()> {
        let _lock = self.installed.lock()?;
        self.installed.return_to_previous()?;
        self.installed.close()?;
        let version = self.installed.version().await?;
        if let Err(reason) = self.restart(global).await {
            let message = format!("{version} is installed, but its node is not ready: {reason}");
            return Err(Failure::new(Exit::Failed, message));
        }
        self.report(&format!("{version} is installed"));
        Ok(())
    }

    /// Returns to the kept program if an upgrade was cut off after it had replaced the program: the node that runs may be
    /// one that nobody has seen ready.
    async fn end_open_upgrade(&self, global: &Global) -> anyhow::Result<()> {
        if !self.installed.is_open() {
            return Ok(());
        }
        eprintln!("an earlier upgrade was cut off; the program before it returns");
        self.installed.return_to_previous()?;
        self.installed.close()?;
        if let Err(reason) = self.restart(global).await {
            eprintln!("warning: its node is not ready: {reason}");
        }
        Ok(())
    }

    async fn restart(&self, global: &Global) -> Result<(), service::NotReady> {
        if let Service::None = self.service {
            return Ok(());
        }
        let _step = Step::start(format!("Restarting by {}", self.service));
        let ready = async {
            self.service.restart().await?;
            service::ready(global, &self.service, self.wait).await
        };
        tokio::select! {
            ready = ready => ready,
            _ = tokio::signal::ctrl_c() => Err(service::NotReady::Interrupted),
        }
    }

    fn report(&self, done: &str) {
        match self.service {
            Service::None => eprintln!(
                "{done}; no running service `{}` of systemd was found, and --restart was not given: restart the node yourself",
                service::DEFAULT_UNIT
            ),
            _ => eprintln!("{done}, and its node is ready"),
        }
        eprintln!(
            "the program before it is {}; `edgefaas upgrade --back` returns to it",
            self.installed.previous().display()
        );
    }
}
