//! Notifications to the service manager that started the node: sd_notify(3). Without `NOTIFY_SOCKET` nothing is sent.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use edgefaas_node::{Health, Node, Readiness};
use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Maximum wait for room in the socket of the manager.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to write everything to the disk after the drain: an SD card syncs a few megabytes a second.
const CLOSE_TIME: Duration = Duration::from_secs(20);

/// The service manager, if one has started this process.
#[derive(Clone)]
pub struct ServiceManager {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
}

/// Notifications of a running node. A drop ends the watchdog's.
#[must_use = "a drop ends the notifications"]
pub struct Notifying {
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl ServiceManager {
    /// The manager that `NOTIFY_SOCKET` names.
    pub fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Self { socket: None } };
        let socket = open(&name).map(Arc::new);
        let socket = socket.inspect_err(|error| {
            tracing::warn!(%error, socket = ?name, "the service manager of NOTIFY_SOCKET gets no notifications");
        });
        Self { socket: socket.ok() }
    }

    /// Reports a node that is ready, later its stop, and its health to the watchdog.
    pub fn follow(&self, node: &Node, shutdown: &CancellationToken) -> Notifying {
        if self.socket.is_none() {
            return Notifying { _tasks: Vec::new() };
        }
        let (health, addresses) = (node.health(), node.addresses());
        let status = format!(
            "{}; http {}, mqtt {}, control {}",
            health.readiness(),
            addresses.http,
            addresses.mqtt,
            addresses.control
        );
        self.send(&[NotifyState::Ready, NotifyState::Status(&status)]);
        let mut tasks = vec![{
            let (manager, shutdown, drain) = (self.clone(), shutdown.clone(), node.drain_time());
            tokio::spawn(async move {
                shutdown.cancelled().await;
                manager.stopping(drain);
            })
        }];
        if let Some(timeout) = sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero()) {
            tasks.push(tokio::spawn(self.clone().watch(health, timeout / 2)));
        }
        Notifying { _tasks: tasks.into_iter().map(AbortOnDropHandle::new).collect() }
    }

    /// Reports that configuration is being read again.
    pub fn reloading(&self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.send(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!(%error, "the reload is not reported to the service manager"),
        }
    }

    /// Reports the end of a reload.
    pub fn reloaded(&self, status: &str) {
        self.send(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Extends the manager's stop timeout to that of the configured drain.
    fn stopping(&self, drain: Duration) {
        let timeout = u32::try_from((drain + CLOSE_TIME).as_micros()).unwrap_or(u32::MAX);
        let status = NotifyState::Status("draining: running invocations end");
        self.send(&[NotifyState::Stopping, NotifyState::ExtendTimeoutUsec(timeout), status]);
    }

    /// Answers the watchdog while the node is healthy. A node without a usable store, or with a worker that hangs, does not
    /// answer: the manager restarts it.
    async fn watch(self, health: Arc<Health>, interval: Duration) {
        let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut disk_was_full = false;
        loop {
            ticks.tick().await;
            health.workers_answer().await;
            let readiness = health.readiness();
            let disk_is_full = matches!(readiness, Readiness::DiskFull);
            match &readiness {
                Readiness::StoreFailed { .. } => self.send(&[NotifyState::Status(&readiness.to_string())]),
                Readiness::Ready | Readiness::DiskFull if disk_is_full != disk_was_full => {
                    self.send(&[NotifyState::Watchdog, NotifyState::Status(&readiness.to_string())]);
                    disk_was_full = disk_is_full;
                }
                _ => self.send(&[NotifyState::Watchdog]),
            }
        }
    }

    fn send(&self, states: &[NotifyState<'_>]) {
        let Some(socket) = &self.socket else { return };
        let mut message = String::new();
        for state in states {
            let _ = writeln!(message, "{}", one_line(state));
        }
        let (socket, manager) = &**socket;
        if let Err(error) = socket.send_to_addr(message.as_bytes(), manager) {
            tracing::warn!(%error, "the service manager did not take a notification");
        }
    }
}

fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok((socket, address))
}

/// Line ends separate assignments.
fn one_line(state: &NotifyState<'_>) -> String {
    state.to_string().replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_add_an_assignment() {
        assert_eq!(one_line(&NotifyState::Status("full\nREADY=1\r\n")), "STATUS=full READY=1  ");
    }

    #[test]
    fn paths_and_abstract_names_are_sockets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let (_, address) = open(path.as_os_str()).unwrap();
        assert_eq!(address.as_pathname(), Some(path.as_path()));
        let (_, address) = open(OsStr::new("@a/name")).unwrap();
        assert_eq!(address.as_abstract_name(), Some(&b"a/name"[..]));
        assert!(open(OsStr::new(&"long".repeat(100))).is_err(), "longer than sun_path");
    }
}
