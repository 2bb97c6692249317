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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn memory_for_whole_blobs_is_bounded_by_bytes() {
        let memory = Memory::new();
        let first = memory.take(40 << 20).await;
        let second = tokio::spawn({
            let memory = memory.clone();
            async move { memory.take(256 << 20).await }
        });
        let third = tokio::spawn({
            let memory = memory.clone();
            async move { memory.take(1).await }
        });
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!second.is_finished() && !third.is_finished(), "a large blob waits, and is not overtaken");
        drop(first);
        let second = second.await.expect("it has memory");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!third.is_finished(), "a large blob is alone");
        drop(second);
        third.await.expect("it has memory");
    }
}
