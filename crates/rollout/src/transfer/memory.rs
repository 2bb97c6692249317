//! Memory for whole blobs, bounded by bytes.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum of memory for whole blobs that are on the way between a file and the store. A larger blob is alone.
pub const MAX_MEMORY_BYTES: u64 = 64 << 20;

/// A semaphore counts in units of this size.
const UNIT_BYTES: u64 = 4 << 10;
const UNITS: u32 = (MAX_MEMORY_BYTES / UNIT_BYTES) as u32;

/// The memory. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Memory(Arc<Semaphore>);

/// Memory of a blob, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Memory {
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(UNITS as usize)))
    }

    /// Waits for memory for a blob. In the order of the calls, so that a large blob is not overtaken for ever.
    pub async fn take(&self, size_bytes: u64) -> Taken {
        let units = u32::try_from(size_bytes.div_ceil(UNIT_BYTES)).unwrap_or(UNITS).min(UNITS);
        // The semaphore is never closed.
        Taken { _permit: self.0.clone().acquire_many_owned(units).await.ok() }
    }
}
