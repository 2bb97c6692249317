//! Child processes that say on their first line where they listen.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use edgefaas_testnet::Host;
use rustix::process::{Pid, Signal, kill_process};

/// A child that has said its first line. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    // Kept open: a child must not fail because nobody reads what else it says.
    _said: BufReader<File>,
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
        command.stdout(Stdio::piped());
        Self::start_reading(command, |child| child.stdout.take().map(OwnedFd::from))
    }

    /// The same for one that says it on its standard error.
    pub fn start_on_stderr(command: &mut Command) -> anyhow::Result<Self> {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        Self::start_reading(command, |child| child.stderr.take().map(OwnedFd::from))
    }

    fn start_reading(
        command: &mut Command,
        pipe: fn(&mut Child) -> Option<OwnedFd>,
    ) -> anyhow::Result<Self> {
        // Errors with pictures of the stack are for who looks for a fault.
        command.stdin(Stdio::null()).env_remove("RUST_BACKTRACE");
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("{command:?} cannot be started"))?;
        Self::reading(child, &format!("{command:?}"), started, pipe)
    }

    /// Starts `command` on a host of a test network, and waits for its first line.
    pub fn start_on(host: &Host, mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).env_remove("RUST_BACKTRACE");
        let (started, described) = (Instant::now(), format!("{command:?}"));
        let child = host.spawn(command).with_context(|| format!("{described} cannot be started"))?;
        Self::reading(child, &described, started, |child| child.stdout.take().map(OwnedFd::from))
    }

    fn reading(
        mut child: Child,
        command: &str,
        started: Instant,
        pipe: fn(&mut Child) -> Option<OwnedFd>,
    ) -> anyhow::Result<Self> {
        let mut said = BufReader::new(File::from(pipe(&mut child).context("it is piped")?));
        let mut first_line = String::new();
        said.read_line(&mut first_line)?;
        let ready_after = started.elapsed();
        if first_line.is_empty() {
            bail!("{command} ended with {} before it was ready", child.wait()?);
        }
        Ok(Self { child, _said: said, first_line, started, ready_after })
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

    /// The most resident memory since the start, or since [`forget_peak`](Self::forget_peak), in MB.
    pub fn peak_mb(&self) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("a line of status")?;
        let kib: f64 = line.split_whitespace().nth(1).context("a number")?.parse()?;
        Ok(kib * 1024.0 / 1e6)
    }

    /// Begins the measurement of the most resident memory anew.
    pub fn forget_peak(&self) -> anyhow::Result<()> {
        Ok(fs::write(format!("/proc/{}/clear_refs", self.id()), "5")?)
    }

    /// Waits until it has done nothing for a while, but not for longer than `patience`.
    pub fn wait_for_rest(&self, patience: Duration) -> anyhow::Result<()> {
        const LOOK: Duration = Duration::from_secs(1);
        /// What timers take on a process that rests, of `LOOK`.
        const BUSY_SECONDS: f64 = 0.02;
        let begun = Instant::now();
        loop {
            let before = self.cpu_seconds()?;
            sleep(LOOK);
            if self.cpu_seconds()? - before < BUSY_SECONDS {
                return Ok(());
            }
            if begun.elapsed() > patience {
                bail!("process {} was still busy after {patience:?}", self.id());
            }
        }
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

/// Memory in MB that would be free if a process were not there: its pages that nobody shares.
pub fn private_mb_of(process: u32) -> anyhow::Result<f64> {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
    let lines = rollup.lines().filter(|line| line.starts_with("Private_"));
    let kib: f64 = lines
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(str::parse::<f64>)
        .sum::<Result<f64, _>>()?;
    Ok(kib * 1024.0 / 1e6)
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

/// Resident memory in MB of a process and those that descend from it, and the part of it that is not backed by files.
pub fn resident_mb_of_family(root: u32) -> anyhow::Result<(f64, f64)> {
    let mut sum = resident_mb_of(root)?;
    for process in &tree_of(root)[1..] {
        let (resident, anonymous) = resident_mb_of(*process).unwrap_or_default();
        sum = (sum.0 + resident, sum.1 + anonymous);
    }
    Ok(sum)
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
