//! The running program's own file.

use std::io;
use std::path::PathBuf;

/// Path that starts the running program once more, even after an upgrade has replaced its file.
///
/// # Errors
/// `/proc` is not mounted and the kernel names no file.
pub fn this_program() -> io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    match running.exists() {
        true => Ok(running),
        false => std::env::current_exe(),
    }
}
