//! States of the node that somebody should end, each with a remedy: a pure function of its facts.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytesize::ByteSize;
use edgefaas_isolates::{GuestMemoryReading, MemoryLevel};
use edgefaas_state::store::SpaceReading;

use super::failures::{Counts, RecentFailures};
use super::ring::CLOCK_IS_SET_MS;
use crate::bridge::BridgeStatus;

/// Maximum number of warnings; the worst ones stay.
pub const MAX_WARNINGS: usize = 100;
/// From this temperature on boards slow their processor down.
const HOT_MILLICELSIUS: i32 = 80_000;
/// Recent invocations of a function below which failures are no warning.
pub const MIN_INVOCATIONS: u64 = 5;
/// Recent instances of a workflow: they are seldom, and their tasks are tried again before one fails.
pub const MIN_INSTANCES: u64 = 1;
/// Memory is short below this fraction (one in 20) of the limit.
const SHORT: u64 = 20;
/// The disk is nearly full below the needed space and this fraction (one in 10) of it.
const NEAR: u64 = 10;
/// Members have this time to connect after the start of the node.
const TIME_TO_CONNECT: Duration = Duration::from_secs(30);

/// Kinds of warnings, the worse ones of a severity first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    Revoked,
    IdentityCopy,
    DiskFull,
    DiskLow,
    MemoryShort,
    BoardHot,
    ClockNotSet,
    FunctionBroken,
    FunctionFailing,
    WorkflowFailing,
    QueueFull,
    SecretMissing,
    BridgeAway,
    MemberAway,
    MemberCopy,
    MqttPlain,
    Draining,
}

impl Code {
    /// All codes.
    pub const ALL: [Self; 17] = [
        Self::Revoked,
        Self::IdentityCopy,
        Self::DiskFull,
        Self::DiskLow,
        Self::MemoryShort,
        Self::BoardHot,
        Self::ClockNotSet,
        Self::FunctionBroken,
        Self::FunctionFailing,
        Self::WorkflowFailing,
        Self::QueueFull,
        Self::SecretMissing,
        Self::BridgeAway,
        Self::MemberAway,
        Self::MemberCopy,
        Self::MqttPlain,
        Self::Draining,
    ];
}

impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Revoked => "revoked",
            Self::IdentityCopy => "identity-copy",
            Self::DiskFull => "disk-full",
            Self::DiskLow => "disk-low",
            Self::MemoryShort => "memory-short",
            Self::BoardHot => "board-hot",
            Self::ClockNotSet => "clock-not-set",
            Self::FunctionBroken => "function-broken",
            Self::FunctionFailing => "function-failing",
            Self::WorkflowFailing => "workflow-failing",
            Self::QueueFull => "queue-full",
            Self::SecretMissing => "secret-missing",
            Self::BridgeAway => "bridge-away",
            Self::MemberAway => "member-away",
            Self::MemberCopy => "member-copy",
            Self::MqttPlain => "mqtt-plain",
            Self::Draining => "draining",
        })
    }
}

/// How bad it is; the worst one is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something fails now.
    Failing,
    /// Something may fail soon.
    Caution,
}

/// One warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// How bad it is.
    pub severity: Severity,
    /// Its kind.
    pub code: Code,
    /// The function, workflow, bridge or member that it is about; empty for the node.
    pub subject: String,
    /// The app of the function or workflow.
    pub app: String,
    /// The secrets that are not set, of [`Code::SecretMissing`].
    pub secrets: Vec<String>,
    /// What is the matter, with the figures.
    pub text: String,
    /// What to do about it.
    pub remedy: String,
}

/// Facts of the node, the input of [`warnings`].
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Milliseconds since the Unix epoch.
    pub now_unix_ms: u64,
    /// Time since the start of the node.
    pub uptime: Duration,
    /// Space on the disk of the data directory.
    pub space: SpaceReading,
    /// Memory of the process; `None` if it is unknown.
    pub memory: Option<MemoryLevel>,
    /// Memory of functions.
    pub guests: GuestMemoryReading,
    /// Temperature of the board; `None` if it does not tell.
    pub temperature_millicelsius: Option<i32>,
    /// All functions.
    pub functions: Vec<FunctionFacts>,
    /// All workflows.
    pub workflows: Vec<WorkflowFacts>,
    /// Functions and workflows that name secrets that are not set.
    pub unset_secrets: Vec<UnsetSecrets>,
    /// All bridges.
    pub bridges: Vec<BridgeStatus>,
    /// All other members of the cluster.
    pub members: Vec<MemberFacts>,
    /// A report of a second node with the identity of this one.
    pub own_copy: Option<String>,
    /// The id of the cluster in which this node was revoked.
    pub revoked: Option<String>,
    /// The MQTT listener without TLS that other machines reach.
    pub plain_mqtt: Option<SocketAddr>,
    /// True while the node stops.
    pub is_draining: bool,
}

/// Facts of a function.
#[derive(Debug, Clone)]
pub struct FunctionFacts {
    /// The app.
    pub app: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The error of its last preparation.
    pub error: Option<String>,
    /// Its invocations since the start of the node, or of the function.
    pub counts: Counts,
    /// Invocations that wait in its full queue; `None` if it has room.
    pub full_queue: Option<u64>,
}

/// Facts of a workflow.
#[derive(Debug, Clone)]
pub struct WorkflowFacts {
    /// The app.
    pub app: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// Its instances that have ended since the start of the node, but for those that were cancelled.
    pub counts: Counts,
}

/// Secrets that are not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsetSecrets {
    /// The app.
    pub app: Arc<str>,
    /// The function or workflow that names them.
    pub user: Arc<str>,
    /// Their names.
    pub secrets: Vec<String>,
}

/// Facts of another member of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberFacts {
    /// Its name.
    pub name: String,
    /// True while it is connected.
    pub is_connected: bool,
    /// The time since it was connected last; `None` if it never was since the start of this node.
    pub away: Option<Duration>,
    /// The address of a second node with its identity.
    pub copy_address: Option<String>,
}

/// All warnings, the worst first.
pub fn warnings(facts: &Facts, recent: &RecentFailures) -> Vec<Warning> {
    let mut warnings: Vec<_> = [disk(facts), memory(facts), board(facts), clock(facts), revoked(facts)]
        .into_iter()
        .chain([own_copy(facts), plain_mqtt(facts), draining(facts)])
        .flatten()
        .collect();
    for function in &facts.functions {
        warnings.extend(broken(function));
        warnings.extend(failing(function, recent));
        warnings.extend(full(function));
    }
    warnings.extend(facts.workflows.iter().filter_map(|workflow| workflow_failing(workflow, recent)));
    warnings.extend(facts.unset_secrets.iter().map(unset));
    warnings.extend(facts.bridges.iter().filter_map(bridge));
    for member in &facts.members {
        warnings.extend(away(member, facts.uptime));
        warnings.extend(copied(member));
    }
    warnings.sort_by(|one, next| {
        let key = |warning: &Warning| (warning.severity, warning.code);
        key(one).cmp(&key(next)).then_with(|| one.subject.cmp(&next.subject))
    });
    warnings.truncate(MAX_WARNINGS);
    warnings
}

fn of_node(severity: Severity, code: Code, text: String, remedy: &str) -> Warning {
    let (subject, app, secrets) = (String::new(), String::new(), Vec::new());
    Warning { severity, code, subject, app, secrets, text, remedy: remedy.to_owned() }
}

fn disk(facts: &Facts) -> Option<Warning> {
    let SpaceReading { is_full, free_bytes, needed_bytes, .. } = facts.space;
    let (free, needed) = (ByteSize(free_bytes), ByteSize(needed_bytes));
    if is_full {
        let text = format!(
            "the disk of the data directory is full: {free} free, {needed} needed; writes that need space are refused"
        );
        let remedy = "free space on the disk, or use a larger one; `edgefaas objects delete` and clients that read their queues free \
                      space of the store";
        return Some(of_node(Severity::Failing, Code::DiskFull, text, remedy));
    }
    (free_bytes < needed_bytes.saturating_add(needed_bytes / NEAR)).then(|| {
        let text = format!(
            "the disk of the data directory is nearly full: {free} free; below {needed} writes that need space are refused"
        );
        let remedy = "free space on the disk, or use a larger one; part of the needed space is `store.reserve` of the configuration";
        of_node(Severity::Caution, Code::DiskLow, text, remedy)
    })
}

fn memory(facts: &Facts) -> Option<Warning> {
    let GuestMemoryReading { withheld_bytes, waiting, .. } = facts.guests;
    let is_short = facts.memory.is_some_and(|level| level.available_bytes < level.limit_bytes / SHORT);
    // Memory is withheld from functions as soon as other programs have some of it. That alone stops nothing.
    if !is_short && waiting == 0 {
        return None;
    }
    let mut text = match facts.memory {
        Some(MemoryLevel { limit_bytes, available_bytes }) => {
            format!("memory is short: {} of {} left", ByteSize(available_bytes), ByteSize(limit_bytes))
        }
        None => "memory is short".to_owned(),
    };
    if withheld_bytes > 0 {
        text += &format!(", {} are withheld from functions", ByteSize(withheld_bytes));
    }
    let severity = match waiting {
        0 => Severity::Caution,
        waiting => {
            text += &format!(", {waiting} invocations wait for memory");
            Severity::Failing
        }
    };
    let remedy = "end other programs, raise the limit of the node (`edgefaas status` names it, `MemoryMax=` of the unit sets it), or \
                  lower `limits.memory` and `limits.concurrency` of functions";
    Some(of_node(severity, Code::MemoryShort, text, remedy))
}

fn board(facts: &Facts) -> Option<Warning> {
    let temperature = facts.temperature_millicelsius.filter(|value| *value >= HOT_MILLICELSIUS)?;
    let degrees = |millicelsius: i32| f64::from(millicelsius) / 1000.0;
    let text = format!(
        "the board has {:.1} °C; from {:.0} °C on the kernel slows the processor down",
        degrees(temperature),
        degrees(HOT_MILLICELSIUS)
    );
    let remedy = "cool it with a heat sink or more air, or give it less work";
    Some(of_node(Severity::Caution, Code::BoardHot, text, remedy))
}

fn clock(facts: &Facts) -> Option<Warning> {
    (facts.now_unix_ms < CLOCK_IS_SET_MS).then(|| {
        let time = std::time::UNIX_EPOCH + Duration::from_millis(facts.now_unix_ms);
        let text = format!(
            "the clock was never set, it shows {}: certificates, tokens and schedules are wrong",
            humantime::format_rfc3339_seconds(time)
        );
        let remedy =
            "connect the machine to a time server: `timedatectl set-ntp true`; or set the time with `date`";
        of_node(Severity::Failing, Code::ClockNotSet, text, remedy)
    })
}

fn revoked(facts: &Facts) -> Option<Warning> {
    let cluster = facts.revoked.as_ref()?;
    let text = format!("this node was revoked in the cluster {cluster}, and works alone");
    let remedy = "to join again, stop it, move `cluster/` out of its data directory, start it, and run `edgefaas cluster join TOKEN`";
    Some(of_node(Severity::Failing, Code::Revoked, text, remedy))
}

fn own_copy(facts: &Facts) -> Option<Warning> {
    let report = facts.own_copy.as_ref()?;
    let text = format!("a second node runs with the identity of this one: {report}");
    let remedy = "stop one of them and start it with an empty data directory";
    Some(of_node(Severity::Failing, Code::IdentityCopy, text, remedy))
}

fn plain_mqtt(facts: &Facts) -> Option<Warning> {
    let address = facts.plain_mqtt?;
    let text = format!(
        "MQTT at {address} is open to other machines without TLS: passwords and messages can be read on the network"
    );
    let remedy = "set `mqtts` in the configuration for clients of other machines, and `mqtt` to an address of this machine (127.0.0.1)";
    Some(of_node(Severity::Caution, Code::MqttPlain, text, remedy))
}

fn draining(facts: &Facts) -> Option<Warning> {
    facts.is_draining.then(|| {
        let text = "the node stops: it accepts no new work".to_owned();
        of_node(
            Severity::Failing,
            Code::Draining,
            text,
            "start it again: `systemctl start edgefaas`, or `edgefaas run`",
        )
    })
}

fn broken(function: &FunctionFacts) -> Option<Warning> {
    let FunctionFacts { app, name, error, .. } = function;
    let error = error.as_ref()?;
    Some(Warning {
        severity: Severity::Failing,
        code: Code::FunctionBroken,
        subject: name.to_string(),
        app: app.to_string(),
        secrets: Vec::new(),
        text: format!("function `{name}` cannot run: {error}"),
        remedy: format!("correct it and run `edgefaas deploy`, or return with `edgefaas rollback {app}`"),
    })
}

fn failing(function: &FunctionFacts, recent: &RecentFailures) -> Option<Warning> {
    let FunctionFacts { app, name, counts, .. } = function;
    let Counts { invocations, failures } = recent.failing(name, *counts, MIN_INVOCATIONS)?;
    Some(Warning {
        severity: Severity::Failing,
        code: Code::FunctionFailing,
        subject: name.to_string(),
        app: app.to_string(),
        secrets: Vec::new(),
        text: format!(
            "{failures} of {invocations} invocations of function `{name}` failed in the last 5 minutes"
        ),
        remedy: format!(
            "`edgefaas logs {name}` shows the errors; correct it and run `edgefaas deploy`, or return with `edgefaas rollback {app}`"
        ),
    })
}

fn workflow_failing(workflow: &WorkflowFacts, recent: &RecentFailures) -> Option<Warning> {
    let WorkflowFacts { app, name, counts } = workflow;
    let Counts { invocations: ended, failures } = recent.failing(name, *counts, MIN_INSTANCES)?;
    let instances = if ended == 1 { "instance" } else { "instances" };
    Some(Warning {
        severity: Severity::Failing,
        code: Code::WorkflowFailing,
        subject: name.to_string(),
        app: app.to_string(),
        secrets: Vec::new(),
        text: format!(
            "{failures} of {ended} {instances} of workflow `{name}` that ended in the last 5 minutes failed"
        ),
        remedy: format!(
            "`edgefaas logs {name}` and `edgefaas traces --failed` show why; mend the cause; `edgefaas workflow list {name}` shows durable \
             instances, which `edgefaas workflow retry ID` lets go on"
        ),
    })
}

fn full(function: &FunctionFacts) -> Option<Warning> {
    let FunctionFacts { app, name, full_queue, .. } = function;
    let waiting = (*full_queue)?;
    Some(Warning {
        severity: Severity::Failing,
        code: Code::QueueFull,
        subject: name.to_string(),
        app: app.to_string(),
        secrets: Vec::new(),
        text: format!(
            "the queue of function `{name}` is full: {waiting} invocations wait; further ones are refused, or replace the oldest"
        ),
        remedy: "make the function faster, or raise `limits.concurrency` or `limits.queue.capacity` in its edgefaas.toml and run \
                 `edgefaas deploy`"
            .to_owned(),
    })
}

fn unset(unset: &UnsetSecrets) -> Warning {
    let UnsetSecrets { app, user, secrets } = unset;
    let names: Vec<_> = secrets.iter().map(|secret| format!("`{secret}`")).collect();
    let (what, state) = if names.len() == 1 { ("secret", "is") } else { ("secrets", "are") };
    let commands: Vec<_> =
        secrets.iter().map(|secret| format!("`edgefaas secrets set --app {app} {secret}`")).collect();
    Warning {
        severity: Severity::Caution,
        code: Code::SecretMissing,
        subject: user.to_string(),
        app: app.to_string(),
        secrets: secrets.clone(),
        text: format!("`{user}` reads {what} {}, which {state} not set", names.join(", ")),
        remedy: commands.join(", "),
    }
}

fn bridge(bridge: &BridgeStatus) -> Option<Warning> {
    let BridgeStatus { name, url, connected_since_unix_ms: None, queued, last_error: Some(error), .. } =
        bridge
    else {
        return None;
    };
    Some(Warning {
        severity: Severity::Failing,
        code: Code::BridgeAway,
        subject: name.clone(),
        app: String::new(),
        secrets: Vec::new(),
        text: format!("bridge `{name}` is not connected to {url}: {error}; {queued} messages wait"),
        remedy: "check that the other broker runs and that the network reaches it, and `url`, password and certificates of the bridge \
                 in [[bridges]] of the configuration"
            .to_owned(),
    })
}

fn away(member: &MemberFacts, uptime: Duration) -> Option<Warning> {
    let MemberFacts { name, is_connected, away, .. } = member;
    if *is_connected || uptime < TIME_TO_CONNECT {
        return None;
    }
    let since = match away {
        // The events keep the text of the beginning.
        Some(away) if away.as_secs() < 60 => "for less than a minute".to_owned(),
        Some(away) => format!("for {}", humantime::format_duration(Duration::from_secs(away.as_secs()))),
        None => "since the start of this node".to_owned(),
    };
    Some(Warning {
        severity: Severity::Caution,
        code: Code::MemberAway,
        subject: name.clone(),
        app: String::new(),
        secrets: Vec::new(),
        text: format!("member `{name}` of the cluster has been away {since}"),
        remedy: format!(
            "start it or repair its network (`edgefaas nodes {name}` shows its addresses); if it does not return, run \
             `edgefaas cluster revoke {name}`"
        ),
    })
}

fn copied(member: &MemberFacts) -> Option<Warning> {
    let MemberFacts { name, copy_address, .. } = member;
    let address = copy_address.as_ref()?;
    Some(Warning {
        severity: Severity::Caution,
        code: Code::MemberCopy,
        subject: name.clone(),
        app: String::new(),
        secrets: Vec::new(),
        text: format!("a second node with the identity of member `{name}` is refused: {address}"),
        remedy: "stop one of them and start it with an empty data directory".to_owned(),
    })
}

#[cfg(test)]
mod tests;
