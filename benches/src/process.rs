//! Child processes that say on their first line where they listen.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A child that has said its first line. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    // Kept open: a child must not fail because nobody reads what else it says.
    _stdout: BufReader<ChildStdout>,
    /// The first line.
    pub first_line: String,
    /// When it was started.
    pub started: Instant,
    /// From the start to the first line.
    pub ready_after: Duration,
}

impl Process {
    /// Starts `command` and waits for its first line.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().with_context(|| format!("{command:?} cannot be started"))?;
        let mut stdout = BufReader::new(child.stdout.take().context("stdout is piped")?);
        let mut first_line = String::new();
        stdout.read_line(&mut first_line)?;
        let ready_after = started.elapsed();
        if first_line.is_empty() {
            bail!("{command:?} ended with {} before it was ready", child.wait()?);
        }
        Ok(Self { child, _stdout: stdout, first_line, started, ready_after })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end and waits until it has.
    pub fn terminate(mut self) -> anyhow::Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("process {} ended with {status}", pid.as_raw_nonzero());
        }
        Ok(())
    }

    /// Resident memory in MB, and the part of it that is not backed by files.
    pub fn resident_mb(&self) -> anyhow::Result<(f64, f64)> {
        resident_mb_of(self.id())
    }

    /// Processor time it has used so far, user and system, in seconds.
    pub fn cpu_seconds(&self) -> anyhow::Result<f64> {
        cpu_seconds_of(self.id())
    }
}

/// Resident memory of a process in MB, and the part of it that is not backed by files.
pub fn resident_mb_of(process: u32) -> anyhow::Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line = status.lines().find(|line| line.starts_with(name)).context("a line of status")?;
        let kib: f64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
        Ok(kib * 1024.0 / 1e6)
    };
    Ok((field("VmRSS:")?, field("RssAnon:")?))
}

/// Processor time a process has used so far, user and system, in seconds.
pub fn cpu_seconds_of(process: u32) -> anyhow::Result<f64> {
    cpu_seconds(process, 2)
}

/// Processor time that a process, those that descend from it and those of them that have ended have used so far.
pub fn cpu_seconds_of_family(root: u32) -> anyhow::Result<f64> {
    let own = cpu_seconds(root, 4)?;
    // One that ends meanwhile is missed.
    Ok(own + tree_of(root)[1..].iter().filter_map(|process| cpu_seconds(*process, 4).ok()).sum::<f64>())
}

/// The sum of the first `fields` of: user, system, user of ended children, system of ended children.
fn cpu_seconds(process: u32, fields: usize) -> anyhow::Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The second field is the name in parentheses, which may hold anything.
    let (_, rest) = stat.rsplit_once(") ").context("a name")?;
    let ticks: f64 =
        rest.split(' ').skip(11).take(fields).map(|ticks| ticks.parse::<f64>()).sum::<Result<f64, _>>()?;
    Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// A process and all that descend from it.
pub fn tree_of(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end at any time.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(process) = tree.get(next) {
        tree.extend(children.remove(process).unwrap_or_default());
        next += 1;
    }
    tree
}

/// The memory in MB that is a process's own: what it shares with others counts by its share (PSS). 0 if it has ended.
pub fn proportional_mb_of(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) * 1024.0 / 1e6
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_in_the_tree_and_has_memory() {
        let child = Process::start(Command::new("sh").args(["-c", "echo ready; exec sleep 60"])).unwrap();
        assert_eq!(tree_of(child.id()), [child.id()]);
        assert!(tree_of(std::process::id()).contains(&child.id()));
        assert!(proportional_mb_of(child.id()) > 0.0);
    }
}
