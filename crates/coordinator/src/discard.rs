//! Giving back what an instance held: a list of a hundred thousand values takes milliseconds to free, which no worker has.

use std::sync::Arc;

use edgefaas_workflow::Instance;

use super::instance::Running;

/// What is smaller is freed where it is.
const LARGE_BYTES: usize = 64 << 10;

/// Drops a value that holds so many bytes; a large one on a thread for what blocks.
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
        // It counts until it is gone.
        let charge = std::mem::replace(&mut state.budget.charge, self.root.charge_nothing());
        discard((std::mem::replace(&mut state.instance, empty), charge), bytes);
    }
}
