//! The folder of compiled code, and the key that authenticates it.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use edgefaas_isolates::CacheFolder;

use super::BuildError;
use crate::config::NodeConfig;

/// The key that authenticates compiled code, in the data directory.
pub(super) const CACHE_KEY_FILE: &str = "cache-key";
/// Compiled code takes at most one in so many bytes of its file system, and leaves twice as much free, or less.
const CACHE_SHARE: u64 = 4;
const MAX_CACHE_RESERVE_BYTES: u64 = 256 << 20;

/// The folder for compiled code and the key that says it was compiled here.
pub(super) fn cache_folder(config: &NodeConfig) -> Result<CacheFolder, BuildError> {
    let path = config.cache_dir.clone().unwrap_or_else(|| config.data_dir.join("cache"));
    let failed = |reason| BuildError::Cache { path: path.clone(), reason };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
    let disk = rustix::fs::statvfs(&path).map_err(|error| failed(error.into()))?;
    let total_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
    let max_bytes = config.isolates.code_cache.as_u64().min(total_bytes / CACHE_SHARE);
    let reserve_bytes = (total_bytes / CACHE_SHARE * 2).min(MAX_CACHE_RESERVE_BYTES);
    // What is in it can be made again; the store may need the room for its start.
    if disk.f_bavail.saturating_mul(disk.f_frsize) < reserve_bytes / 2 {
        tracing::warn!(path = %path.display(), "compiled code makes way: the disk is almost full");
        for entry in std::fs::read_dir(&path).map_err(failed)?.flatten() {
            // One that stays does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    // Beside the store and not in the cache, which may lie where others write.
    let file = config.data_dir.join(CACHE_KEY_FILE);
    if let Some(key) = std::fs::read(&file).ok().and_then(|key| key.try_into().ok()) {
        return Ok(CacheFolder { path, key, max_bytes, reserve_bytes });
    }
    // Without its old key the cache is worth nothing, and is made anew.
    let key: [u8; 32] = rand::random();
    let mut open = std::fs::OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(0o600);
    std::io::Write::write_all(&mut open.open(&file).map_err(failed)?, &key).map_err(failed)?;
    Ok(CacheFolder { path, key, max_bytes, reserve_bytes })
}
