//! The folder of compiled code, and the key that authenticates it.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use edgefaas_isolates::CacheFolder;

use super::BuildError;
use crate::config::NodeConfig;

/// Name of the file in the data directory with the key that authenticates compiled code.
pub const CACHE_KEY_FILE: &str = "cache-key";
/// Compiled code takes at most this fraction (one in 4) of its file system, and leaves half of it free.
const CACHE_SHARE: u64 = 4;
/// Maximum free space that compiled code leaves.
const MAX_CACHE_RESERVE_BYTES: u64 = 256 << 20;

/// Creates the folder of compiled code, and reads or draws the key that proves that this node compiled it.
pub(super) fn cache_folder(config: &NodeConfig) -> Result<CacheFolder, BuildError> {
    let path = config.cache_dir.clone().unwrap_or_else(|| config.data_dir.join("cache"));
    let failed = |reason| BuildError::Cache { path: path.clone(), reason };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
    let disk = rustix::fs::statvfs(&path).map_err(|error| failed(error.into()))?;
    let total_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
    let max_bytes = config.isolates.code_cache.as_u64().min(total_bytes / CACHE_SHARE);
    let reserve_bytes = (total_bytes / CACHE_SHARE * 2).min(MAX_CACHE_RESERVE_BYTES);
    // Compiled code can be restored, and the store may need the space for its start.
    if disk.f_bavail.saturating_mul(disk.f_frsize) < reserve_bytes / 2 {
        tracing::warn!(path = %path.display(), "the disk is almost full: compiled code is deleted");
        for entry in std::fs::read_dir(&path).map_err(failed)?.flatten() {
            // A file that cannot be deleted does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    // In the data directory and not in the cache folder, which other programs may be able to write.
    let file = config.data_dir.join(CACHE_KEY_FILE);
    if let Some(key) = std::fs::read(&file).ok().and_then(|key| key.try_into().ok()) {
        return Ok(CacheFolder { path, key, max_bytes, reserve_bytes });
    }
    // With a new key the cached code is invalid, and functions are compiled again.
    let key: [u8; 32] = rand::random();
    let mut open = std::fs::OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o600);
    std::io::Write::write_all(&mut open.open(&file).map_err(failed)?, &key).map_err(failed)?;
    Ok(CacheFolder { path, key, max_bytes, reserve_bytes })
}
