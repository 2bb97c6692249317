//! The right to make networks: root, or a user namespace that a test runs itself in.

use std::process::{Command, Stdio};

use crate::Topology;

/// Set for a test that runs itself again in a user namespace.
const INSIDE: &str = "EDGEFAAS_TESTNET_INSIDE";
/// Set where nothing may be skipped.
const NO_SKIP: &str = "EDGEFAAS_NO_SKIP";

/// Runs the body of a test that makes networks: here, if this process may make them, and otherwise as the same test in
/// a new process, in a user namespace with a root of its own. Where neither works the test is skipped with a message,
/// or fails if `EDGEFAAS_NO_SKIP` is set.
///
/// # Panics
///
/// If `body` does, or the same test in the user namespace fails.
pub fn isolated(body: impl FnOnce()) {
    let Err(error) = Topology::new().zone("probe", &["probe"]).build() else { return body() };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "--"]).stdin(Stdio::null());
        command
    };
    let thread = std::thread::current();
    let is_inside = std::env::var_os(INSIDE).is_some();
    // The name of the thread is that of the test, unless there is one thread for all.
    let test = thread.name().filter(|name| *name != "main" && !is_inside);
    if let Some(test) = test
        && unshare().arg("true").status().is_ok_and(|status| status.success())
    {
        let program = std::env::current_exe().expect("a program has a path");
        let mut command = unshare();
        command.arg(program).args([test, "--exact", "--nocapture", "--include-ignored"]).env(INSIDE, "1");
        let status = command.status().expect("unshare starts");
        assert!(status.success(), "{test} in a user namespace: {status}");
        return;
    }
    println!("skipped: {error}");
    assert!(std::env::var_os(NO_SKIP).is_none(), "nothing may be skipped: {error}");
}
