//! A control group with a limit of memory (cgroup v1 or v2), in which a node is started.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Where the memory controller may be mounted, with the names of its files.
const CONTROLLERS: [Controller; 3] = [
    Controller {
        root: "/sys/fs/cgroup/memory",
        limit: "memory.limit_in_bytes",
        peak: Some("memory.max_usage_in_bytes"),
        current: "memory.usage_in_bytes",
    },
    Controller {
        root: "/sys/fs/cgroup",
        limit: "memory.max",
        peak: Some("memory.peak"),
        current: "memory.current",
    },
    Controller {
        root: "/sys/fs/cgroup/unified",
        limit: "memory.max",
        peak: Some("memory.peak"),
        current: "memory.current",
    },
];

#[derive(Clone, Copy)]
struct Controller {
    root: &'static str,
    limit: &'static str,
    peak: Option<&'static str>,
    current: &'static str,
}

/// A group of its own below that of this process. It is removed when it is dropped, once it is empty.
pub struct Group {
    folder: PathBuf,
    controller: Controller,
}

impl Group {
    /// Makes a group that may use `limit_bytes`.
    ///
    /// # Errors
    /// No memory controller can be written to: run it as root.
    pub fn new(limit_bytes: u64) -> anyhow::Result<Self> {
        for controller in CONTROLLERS {
            let folder =
                Path::new(controller.root).join(format!("edgefaas-hostile-{}", std::process::id()));
            if !Path::new(controller.root).is_dir() || fs::create_dir(&folder).is_err() {
                continue;
            }
            if fs::write(folder.join(controller.limit), limit_bytes.to_string()).is_ok() {
                return Ok(Self { folder, controller });
            }
            let _ = fs::remove_dir(&folder);
        }
        bail!("no memory controller of a control group can be written to; run this as root")
    }

    /// The file that a process writes its number to in order to join.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// The most it has used since the last [`reset_peak`](Self::reset_peak), in MB; the page cache is part of it.
    pub fn peak_mb(&self) -> anyhow::Result<f64> {
        self.read(self.controller.peak.unwrap_or(self.controller.current))
    }

    /// Begins a new peak, where the kernel allows that.
    pub fn reset_peak(&self) {
        if let Some(peak) = self.controller.peak {
            let _ = fs::write(self.folder.join(peak), "0");
        }
    }

    fn read(&self, file: &str) -> anyhow::Result<f64> {
        let path = self.folder.join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.trim().parse::<f64>()? / 1e6)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
