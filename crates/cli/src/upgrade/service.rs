//! The restart of the node, and the wait until it is ready.

use std::fmt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use edgefaas_client::args::Global;
use edgefaas_client::connection;
use edgefaas_client::progress::Step;
use tokio::process::Command;

/// The unit that the packages install.
pub const DEFAULT_UNIT: &str = "edgefaas";
/// Time limit of a restart: the stop timeout of the unit and its start timeout, which both have minutes.
const RESTART_TIMEOUT: Duration = Duration::from_secs(600);
/// Interval between two looks at a node that is not ready.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time without a failure after which a node counts as ready: a program that dies does so in its first seconds.
const STEADY: Duration = Duration::from_secs(3);
/// Time limit of one look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// The node of this machine, while it is upgraded.
pub struct Node<'a> {
    /// How it is restarted.
    pub service: Service,
    /// Maximum time until it is ready after a restart.
    pub wait: Duration,
    /// How it is reached.
    pub global: &'a Global,
}

impl Node<'_> {
    /// Restarts the node and waits until it is ready. It does nothing if nothing restarts it.
    ///
    /// # Errors
    /// See [`NotReady`].
    pub async fn restart(&self) -> Result<(), NotReady> {
        if let Service::None = self.service {
            return Ok(());
        }
        let _step = Step::start(format!("Restarting by {}", self.service));
        interruptible(async {
            self.service.restart().await?;
            ready(self.global, &self.service, self.wait).await
        })
        .await
    }

    /// Waits until the node, which was restarted, is ready.
    ///
    /// # Errors
    /// See [`NotReady`].
    pub async fn ready(&self) -> Result<(), NotReady> {
        if let Service::None = self.service {
            return Ok(());
        }
        let _step = Step::start("Waiting until the node is ready");
        interruptible(ready(self.global, &self.service, self.wait)).await
    }
}

async fn interruptible(ready: impl Future<Output = Result<(), NotReady>>) -> Result<(), NotReady> {
    tokio::select! {
        ready = ready => ready,
        _ = tokio::signal::ctrl_c() => Err(NotReady::Interrupted),
    }
}

/// How the node is restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Service {
    /// A unit of systemd that is active, starts or has failed.
    Systemd { unit: String },
    /// A command of the shell, which ends when the old node has ended.
    Command { command: String },
    /// Nothing restarts it.
    None,
}

/// Why the node is not ready.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// The restart cannot be started.
    #[error("{service} cannot be started: {reason}")]
    Start { service: Service, reason: std::io::Error },
    /// The restart failed.
    #[error("{service} ended with {status}")]
    Restart { service: Service, status: std::process::ExitStatus },
    /// The restart takes too long.
    #[error("{service} did not end within {} s", RESTART_TIMEOUT.as_secs())]
    RestartTimeout { service: Service },
    /// systemd does not start the unit any more.
    #[error("the unit {unit} has failed; `journalctl -u {unit}` says why")]
    Failed { unit: String },
    /// The node was not ready in time.
    #[error("the node was not ready within {} s: {last}", wait.as_secs())]
    Timeout { wait: Duration, last: String },
    /// The user pressed Ctrl-C.
    #[error("the command was interrupted")]
    Interrupted,
}

impl fmt::Display for Service {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Systemd { unit } => write!(out, "`systemctl restart {unit}`"),
            Self::Command { command } => write!(out, "`{command}`"),
            Self::None => write!(out, "nothing"),
        }
    }
}

impl Service {
    /// The command that was given, else the unit if systemd runs it.
    pub async fn find(command: Option<&str>) -> Self {
        if let Some(command) = command {
            return Self::Command { command: command.to_owned() };
        }
        let unit = DEFAULT_UNIT.to_owned();
        // A node that dies again and again is most of the time being activated.
        let states = ["active", "activating", "reloading", "failed"];
        match matches!(sd_notify::booted(), Ok(true)) && states.contains(&&*state(&unit).await) {
            true => Self::Systemd { unit },
            false => Self::None,
        }
    }

    /// Restarts the node, and waits until the restart has ended.
    ///
    /// # Errors
    /// It failed, or did not end in time.
    pub async fn restart(&self) -> Result<(), NotReady> {
        let mut command = match self {
            Self::Systemd { unit } => {
                self.forget_failures().await;
                systemctl(&["restart", unit])
            }
            Self::Command { command } => {
                let mut shell = Command::new("sh");
                shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
                shell
            }
            Self::None => return Ok(()),
        };
        match tokio::time::timeout(RESTART_TIMEOUT, command.status()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(NotReady::Restart { service: self.clone(), status }),
            Ok(Err(reason)) => Err(NotReady::Start { service: self.clone(), reason }),
            Err(_) => Err(NotReady::RestartTimeout { service: self.clone() }),
        }
    }

    /// Makes systemd forget the starts of the unit: a program that died has used them up.
    pub async fn forget_failures(&self) {
        if let Self::Systemd { unit } = self {
            let _ = systemctl(&["reset-failed", unit]).stderr(Stdio::null()).status().await;
        }
    }

    /// Identifies the last start of the unit; empty without one.
    pub async fn run_id(&self) -> String {
        match self {
            Self::Systemd { unit } => property("InvocationID", unit).await,
            _ => String::new(),
        }
    }

    async fn has_failed(&self) -> bool {
        match self {
            Self::Systemd { unit } => state(unit).await == "failed",
            _ => false,
        }
    }
}

/// Waits until `/readyz` of the node has answered 200 for [`STEADY`], without a failure.
///
/// # Errors
/// It has not within `wait`, or the unit has failed.
async fn ready(global: &Global, service: &Service, wait: Duration) -> Result<(), NotReady> {
    let started = Instant::now();
    let mut ready_since: Option<Instant> = None;
    loop {
        let look = tokio::time::timeout(LOOK_TIMEOUT, connection::ready(global)).await;
        let looked = match look {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(_) => Some(format!("no answer within {} s", LOOK_TIMEOUT.as_secs())),
        };
        match looked {
            None => {
                let since = *ready_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= STEADY {
                    return Ok(());
                }
            }
            Some(last) => {
                ready_since = None;
                if service.has_failed().await {
                    let Service::Systemd { unit } = service else { continue };
                    return Err(NotReady::Failed { unit: unit.clone() });
                }
                if started.elapsed() >= wait {
                    return Err(NotReady::Timeout { wait, last });
                }
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn systemctl(args: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    command
}

/// The state of a unit: active, failed, inactive; empty if systemd does not answer.
async fn state(unit: &str) -> String {
    property("ActiveState", unit).await
}

async fn property(name: &str, unit: &str) -> String {
    let property = format!("--property={name}");
    let output = systemctl(&["show", &property, "--value", unit]).stdout(Stdio::piped()).output().await;
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
