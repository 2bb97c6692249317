//! Deallocation of instances. Freeing a list of 100,000 values takes milliseconds, so a large instance is freed on a
//! thread for blocking work, not on a worker.

use std::sync::Arc;

use edgefaas_workflow::Instance;

use super::instance::Running;

/// A smaller instance is freed on the current thread.
const LARGE_BYTES: usize = 64 << 10;

/// Drops a value of `bytes` bytes; a large one on a thread for blocking work.
pub(super) fn discard<T: Send + 'static>(value: T, bytes: usize) {
    if bytes >= LARGE_BYTES
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        runtime.spawn_blocking(move || drop(value));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let bytes = state.instance.bytes();
        if bytes < LARGE_BYTES {
            return;
        }
        let empty = Instance::new(self.id.to_string().into(), Arc::default(), 0, 0);
        // The memory stays charged until it is freed.
        let charge = std::mem::replace(&mut state.budget.charge, self.root.charge_nothing());
        discard((std::mem::replace(&mut state.instance, empty), charge), bytes);
    }
}
