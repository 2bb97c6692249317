//! `edgefaas self-check`: whether a node would run on this machine, and what makes it slow.

mod disk;
mod system;

use edgefaas_client::args::{Format, Global};
use edgefaas_client::exit::{Exit, Failure};
use edgefaas_client::output;
use edgefaas_state::store::{DirLock, LockError};
use serde_json::json;

use crate::args::SelfCheck;
use crate::data_owner::act_as_owner;
use crate::node;

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Good,
    /// A node runs, but slower or with less than it could have.
    Slow,
    /// A node does not start, or does not keep running.
    Fails,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Slow => "slow",
            Self::Fails => "FAILS",
        }
    }
}

/// A check with its result.
#[derive(Debug)]
struct Finding {
    name: &'static str,
    state: State,
    detail: String,
}

impl Finding {
    fn new(name: &'static str, state: State, detail: impl Into<String>) -> Self {
        Self { name, state, detail: detail.into() }
    }
}

pub fn run(args: &SelfCheck, global: &Global) -> anyhow::Result<()> {
    let findings = findings(args, global);
    let failed = findings.iter().filter(|finding| finding.state == State::Fails).count();
    if global.output == Format::Json {
        let checks = findings.iter().map(|finding| {
            json!({ "name": finding.name, "state": finding.state.word().to_lowercase(), "detail": finding.detail })
        });
        output::json(&json!({ "runs": failed == 0, "checks": checks.collect::<Vec<_>>() }))?;
    } else {
        let rows = findings.iter().map(|finding| {
            vec![finding.state.word().to_owned(), finding.name.to_owned(), finding.detail.clone()]
        });
        output::table(&["", "CHECK", "FOUND"], rows.collect())?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::new(Exit::Failed, "a node would not run here: see the lines with FAILS")),
    }
}

fn findings(args: &SelfCheck, global: &Global) -> Vec<Finding> {
    let config = match node::config(&args.listen, global.data_dir.clone()) {
        Ok(config) => config,
        Err(error) => return vec![Finding::new("configuration", State::Fails, format!("{error:#}"))],
    };
    let mut findings = vec![match config.check() {
        Ok(()) => Finding::new("configuration", State::Good, "valid"),
        Err(error) => Finding::new("configuration", State::Fails, error.to_string()),
    }];
    // Before the process acts as the owner, who may have the capability for low ports from a service manager.
    let ports = system::ports(&config);
    if let Err(error) = act_as_owner(&config.data_dir) {
        findings.push(Finding::new("data directory", State::Fails, error.to_string()));
        return findings;
    }
    // Only a folder that exists is locked: a check makes none.
    let lock = config.data_dir.exists().then(|| DirLock::take(&config.data_dir));
    let runs = matches!(lock, Some(Err(LockError::Held { .. })));
    if runs {
        findings.push(Finding::new(
            "data directory",
            State::Good,
            "a node runs with it; its ports are not checked",
        ));
    } else {
        findings.extend(ports);
    }
    findings.push(disk::free_space(&config.data_dir));
    findings.extend(disk::speed(&config.data_dir));
    findings.extend(system::memory(&config));
    findings.push(system::open_files());
    findings.push(system::processors());
    findings.push(system::kernel());
    findings.push(system::address_space());
    findings.push(system::clock());
    findings.push(system::entropy());
    findings.push(system::child_processes());
    findings
}
