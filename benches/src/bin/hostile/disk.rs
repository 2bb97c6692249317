//! A small file system for a node's data: an image on a loop device, or in memory where there is none.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use tempfile::TempDir;

/// Mounted until it is dropped.
pub struct Disk {
    mount: TempDir,
    _image: TempDir,
}

impl Disk {
    /// Makes and mounts a file system of so many MiB.
    ///
    /// # Errors
    /// Nothing can be mounted: run this as root.
    pub fn mount(mib: u64) -> anyhow::Result<Self> {
        let (mount, folder) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let image = folder.path().join("image");
        std::fs::File::create(&image)?.set_len(mib << 20)?;
        let on_loop = run(Command::new("mkfs.ext4").arg("-qF").arg(&image)).is_ok()
            && run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(mount.path())).is_ok();
        if !on_loop {
            // Its pages count as the node's memory.
            eprintln!("there is no loop device: the data is in memory, and counts as such");
            let size = format!("size={mib}m");
            run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(mount.path()))
                .context("nothing can be mounted; run this as root")?;
        }
        Ok(Self { mount, _image: folder })
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("-l").arg(self.mount.path()));
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
