//! Work on the runtime's blocking threads, and errors of the node while a function is prepared.

use super::error::{PrepareError, PrepareFault};

/// Runs `work` on a blocking thread. Dropping the future abandons it there: it ends by itself.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PrepareError> + Send + 'static,
) -> Result<T, PrepareError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| PrepareFault::Task { detail: error.to_string() })?
}

/// An error of the node.
pub(super) fn internal(error: wasmtime::Error) -> PrepareError {
    PrepareFault::engine(&error).into()
}
