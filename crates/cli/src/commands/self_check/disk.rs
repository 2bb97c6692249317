//! Free space and speed of the disk with the data directory.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use edgefaas_client::output::size;
use edgefaas_state::store::MIN_RESERVE_BYTES;

use super::{Finding, State};

/// Free space below which a node soon refuses writes.
const LITTLE_BYTES: u64 = 64 << 20;
/// Writes that are synced one after another.
const SYNCS: usize = 16;
/// Size of one of them, as of a small commit.
const SYNC_BYTES: usize = 4 << 10;
/// Time of a sync above which durable messages are slow.
const SLOW_SYNC: Duration = Duration::from_millis(20);
/// Bytes that are written in one piece.
const STREAM_BYTES: usize = 16 << 20;
/// Bytes in a second below which deploys and large objects are slow.
const SLOW_STREAM: u64 = 10 << 20;
/// Time limit of the measurement of syncs.
const MAX_TIME: Duration = Duration::from_secs(5);
/// `f_type` of a file system in memory (statfs(2)).
const TMPFS: u64 = 0x0102_1994;

/// The folder, or the nearest one above that exists.
fn existing(folder: &Path) -> PathBuf {
    let found = folder.ancestors().find(|folder| folder.is_dir());
    found.unwrap_or(Path::new("/")).to_owned()
}

pub fn free_space(data_dir: &Path) -> Finding {
    let folder = existing(data_dir);
    let name = "free space";
    let stat = match rustix::fs::statfs(&folder) {
        Ok(stat) => stat,
        Err(error) => return Finding::new(name, State::Fails, format!("{}: {error}", folder.display())),
    };
    let free = (stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64);
    let detail = format!("{} at {}", size(free), folder.display());
    if free < MIN_RESERVE_BYTES {
        let needs = size(MIN_RESERVE_BYTES);
        return Finding::new(
            name,
            State::Fails,
            format!("{detail}; the store needs {needs}: free some, or choose another --data-dir"),
        );
    }
    if free < LITTLE_BYTES {
        return Finding::new(
            name,
            State::Slow,
            format!("{detail}; the node will soon refuse writes: free some"),
        );
    }
    if stat.f_type as u64 == TMPFS {
        return Finding::new(
            name,
            State::Slow,
            format!("{detail}, in memory: all data is lost when the machine stops"),
        );
    }
    Finding::new(name, State::Good, detail)
}

/// The speed of syncs and of a long write.
pub fn speed(data_dir: &Path) -> Vec<Finding> {
    let folder = existing(data_dir);
    match measure(&folder) {
        Ok((sync, bytes_per_second)) => {
            let syncs = 1.0 / sync.as_secs_f64().max(1e-6);
            let detail = format!("a sync takes {sync:.1?}: {syncs:.0} groups of durable messages a second");
            let state = if sync > SLOW_SYNC { State::Slow } else { State::Good };
            let remedy = if state == State::Slow { "; use an SSD, or a better SD card" } else { "" };
            let sync = Finding::new("disk, syncs", state, detail + remedy);
            let state = if bytes_per_second < SLOW_STREAM { State::Slow } else { State::Good };
            let written = format!("{} a second written", size(bytes_per_second));
            vec![sync, Finding::new("disk, long writes", state, written)]
        }
        Err(error) => {
            let detail = format!(
                "{} cannot be written: {error}; run as its owner, or choose another --data-dir",
                folder.display()
            );
            vec![Finding::new("data directory", State::Fails, detail)]
        }
    }
}

fn measure(folder: &Path) -> std::io::Result<(Duration, u64)> {
    let file = tempfile::Builder::new().prefix(".edgefaas-self-check-").tempfile_in(folder)?;
    let began = Instant::now();
    let mut syncs = Vec::new();
    for number in 0..SYNCS {
        let write = Instant::now();
        file.as_file().write_all_at(&[number as u8; SYNC_BYTES], (number * SYNC_BYTES) as u64)?;
        file.as_file().sync_data()?;
        syncs.push(write.elapsed());
        if began.elapsed() > MAX_TIME {
            break;
        }
    }
    syncs.sort_unstable();
    let median = syncs[syncs.len() / 2];
    let (write, mut out) = (Instant::now(), File::options().append(true).open(file.path())?);
    let free = rustix::fs::statvfs(folder).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    // A disk that is almost full is not filled.
    let bytes = STREAM_BYTES.min((free.unwrap_or(0) / 4) as usize).max(SYNC_BYTES);
    let chunk = vec![0x5a; 1 << 20];
    let mut left = bytes;
    while left > 0 && write.elapsed() < MAX_TIME {
        let count = left.min(chunk.len());
        out.write_all(&chunk[..count])?;
        left -= count;
    }
    out.sync_data()?;
    let seconds = write.elapsed().as_secs_f64().max(1e-6);
    let _ = fs::remove_file(file.path());
    Ok((median, ((bytes - left) as f64 / seconds) as u64))
}
