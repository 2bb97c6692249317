//! Limits of a child process.

use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

/// The processor time of a child. Its parent ends it earlier; this is for a child whose parent has died.
pub(super) const CPU_LIMIT: Duration = Duration::from_secs(600);

/// Limits of a child process, which it sets itself before it reads untrusted code.
#[derive(Debug, Clone, Copy)]
pub struct ProcessLimits {
    /// Memory that it may allocate, in bytes. Address space that is only reserved does not count.
    pub memory_bytes: u64,
}

impl ProcessLimits {
    /// Limits this process. If the machine's memory is used up, the system kills this process first; it leaves no core file, and
    /// ends with its parent.
    ///
    /// # Errors
    /// The system refuses a limit.
    pub fn apply(self) -> std::io::Result<()> {
        limit(Resource::Data, self.memory_bytes)?;
        limit(Resource::Cpu, CPU_LIMIT.as_secs())?;
        limit(Resource::Core, 0)?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If /proc is read-only, the system chooses by size, and the largest process is mostly this one as well.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        Ok(())
    }
}

fn limit(resource: Resource, max: u64) -> std::io::Result<()> {
    let limit = getrlimit(resource);
    let current = limit.maximum.map_or(max, |maximum| maximum.min(max));
    Ok(setrlimit(resource, Rlimit { current: Some(current), ..limit })?)
}
