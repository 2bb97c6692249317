//! A network namespace without a name: it lives as long as a thread that entered it, so that it also ends with a killed
//! process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rustix::process::{Signal, set_parent_process_death_signal};

type Spawn = (Box<Command>, SyncSender<io::Result<Child>>);

/// A namespace, and the thread that keeps it.
pub(crate) struct Namespace {
    file: File,
    /// The keeper ends when this is dropped.
    spawns: Option<SyncSender<Spawn>>,
    keeper: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Makes a namespace, and runs `configure` in it before anything else.
    pub(crate) fn new<T: Send + 'static>(
        configure: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<(Self, T)> {
        let (spawns, requests) = sync_channel(0);
        let (ready, made) = sync_channel(1);
        let keeper = std::thread::Builder::new().name("testnet-host".into()).spawn(move || {
            let entered = enter_new().and_then(|file| Ok((file, configure()?)));
            let is_made = entered.is_ok();
            if ready.send(entered).is_ok() && is_made {
                keep(&requests);
            }
        })?;
        let (file, configured) = made.recv().map_err(io::Error::other)??;
        Ok((Self { file, spawns: Some(spawns), keeper: Some(keeper) }, configured))
    }

    /// Starts a process in the namespace. It is killed when the namespace is dropped, and when this process dies.
    pub(crate) fn spawn(&self, command: Command) -> io::Result<Child> {
        let gone = || io::Error::other("the keeper of the namespace has ended");
        let (reply, answer) = sync_channel(1);
        let spawns = self.spawns.as_ref().ok_or_else(gone)?;
        spawns.send((Box::new(command), reply)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }

    /// Runs `inside` on a thread in the namespace. Sockets that it makes, and threads that it starts, stay there.
    pub(crate) fn enter<R: Send>(&self, inside: impl FnOnce() -> R + Send) -> io::Result<R> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into(&self.file)?;
                Ok(inside())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.spawns.take());
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
    }
}

/// Moves this thread into a new namespace.
fn enter_new() -> io::Result<File> {
    // SAFETY: File descriptors stay shared: only the network of this thread changes.
    #[allow(unsafe_code, reason = "a system call")]
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    check(result)?;
    File::open("/proc/thread-self/ns/net")
}

/// Moves this thread into the namespace of a file under `/proc/PID/ns`.
fn move_into(namespace: &File) -> io::Result<()> {
    // SAFETY: The descriptor is open, and only the network of this thread changes.
    #[allow(unsafe_code, reason = "a system call")]
    let result = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
    check(result)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Starts processes until nobody can ask for them. Their parent is this thread, and they end with it.
fn keep(requests: &Receiver<Spawn>) {
    while let Ok((mut command, reply)) = requests.recv() {
        let end_with_parent = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: The function is one system call, which is allowed between fork and exec.
        #[allow(unsafe_code, reason = "the only way to a call between fork and exec")]
        unsafe {
            command.pre_exec(end_with_parent);
        }
        // Nobody may wait for the answer any more.
        let _ = reply.send(command.spawn());
    }
}

/// Runs `ip -batch` with these commands, in the namespace of this thread.
pub(crate) fn ip_batch(commands: &str) -> io::Result<()> {
    use std::io::Write;
    let mut command = Command::new("ip");
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(commands.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
