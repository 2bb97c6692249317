//! Ports, memory, limits, kernel, clock and entropy.

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use edgefaas_client::output::size;
use edgefaas_isolates::{Machine, ProcessMemory};
use edgefaas_node::config::NodeConfig;
use edgefaas_platform::{Clock, this_program};
use rustix::fs::OFlags;
use rustix::process::{Resource, getrlimit};

use super::{Finding, State};

/// Memory below which the node has no room for functions beside its own.
const MIN_MEMORY_BYTES: u64 = 48 << 20;
const LITTLE_MEMORY_BYTES: u64 = 192 << 20;
/// Open files below which a busy broker refuses connections.
const FEW_FILES: u64 = 4096;
/// Open files that a node needs for itself.
const MIN_FILES: u64 = 256;
/// 2026-01-01: an earlier clock was not set yet.
const EARLIEST_UNIX_MS: u64 = 1_767_225_600_000;

/// The addresses that a node would listen on.
pub fn ports(config: &NodeConfig) -> Vec<Finding> {
    let listeners = [
        ("--http", Some(config.http)),
        ("--mqtt", Some(config.mqtt)),
        ("--mqtts", config.mqtts),
        ("--control", Some(config.control)),
    ];
    let named = listeners.into_iter().filter_map(|(option, address)| Some((option, address?)));
    named.map(|(option, address)| port(option, address)).collect()
}

fn port(option: &str, address: SocketAddr) -> Finding {
    let (state, found) = match TcpListener::bind(address) {
        Ok(_) => (State::Good, "free".to_owned()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let detail =
                format!("in use by another program; stop it, or choose another address with {option}");
            (State::Fails, detail)
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let detail = format!(
                "not permitted: ports below 1024 need CAP_NET_BIND_SERVICE; choose another with {option}"
            );
            (State::Fails, detail)
        }
        Err(error) => (State::Fails, format!("{error}; choose another address with {option}")),
    };
    Finding::new("port", state, format!("{address} ({option}): {found}"))
}

pub fn memory(config: &NodeConfig) -> Vec<Finding> {
    let limit = ProcessMemory::find().limit();
    let plan = config.memory_plan(limit.clone());
    let detail = format!("{}, the limit of {}", size(limit.bytes), limit.source);
    let state = match limit.bytes {
        bytes if bytes < MIN_MEMORY_BYTES => State::Fails,
        bytes if bytes < LITTLE_MEMORY_BYTES => State::Slow,
        _ => State::Good,
    };
    let remedy = match state {
        State::Fails => format!("; a node needs {}", size(MIN_MEMORY_BYTES)),
        State::Slow => "; few functions run at a time, and large deploys are refused".to_owned(),
        State::Good => String::new(),
    };
    let guests = config.isolates.pool(&Machine::probe(), &plan);
    let isolates =
        format!("{} isolates of at most {}", guests.max_isolates, size(guests.max_memory_bytes as u64));
    vec![
        Finding::new("memory", state, detail + &remedy),
        Finding::new("isolates", State::Good, isolates),
        group(),
    ]
}

/// The control group of the process.
fn group() -> Finding {
    let name = "control group";
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return Finding::new(
            name,
            State::Good,
            "no cgroup v2: limits of a v1 group or of the machine count",
        );
    }
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_owned();
    let folder = Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'));
    let quota = fs::read_to_string(folder.join("cpu.max")).unwrap_or_default();
    let mut words = quota.split_whitespace().map(|word| word.parse::<f64>().ok());
    match (words.next().flatten(), words.next().flatten()) {
        (Some(quota), Some(period)) if period > 0.0 => {
            let cores = quota / period;
            let state = if cores < 0.5 { State::Slow } else { State::Good };
            Finding::new(name, state, format!("{path}: {cores:.2} cores of processor time (cpu.max)"))
        }
        _ => Finding::new(name, State::Good, format!("{path}: no limit of processor time")),
    }
}

pub fn open_files() -> Finding {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let shown = if most == u64::MAX { "no limit".to_owned() } else { most.to_string() };
    let (state, remedy) = match most {
        few if few < MIN_FILES => (State::Fails, "; raise the hard limit (ulimit -Hn)"),
        few if few < FEW_FILES => {
            (State::Slow, "; each connection is a file: raise the hard limit (ulimit -Hn)")
        }
        _ => (State::Good, ""),
    };
    Finding::new("open files", state, shown + remedy)
}

pub fn processors() -> Finding {
    let cores = Machine::probe().cores;
    Finding::new("processors", State::Good, format!("{cores} that this process may use"))
}

pub fn kernel() -> Finding {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into());
    let machine = Machine::probe();
    let mut missing = Vec::new();
    if !machine.pagemap_scan {
        missing.push("no PAGEMAP_SCAN (Linux 6.7): a fresh isolate costs twice as much");
    }
    if !machine.copy_on_write {
        missing.push("no copy-on-write of snapshots: each isolate has a whole copy in memory");
    }
    let (state, detail) = match missing.is_empty() {
        true => (State::Good, "all that isolates use".to_owned()),
        false => (State::Slow, missing.join("; ")),
    };
    Finding::new("kernel", state, format!("{}: {detail}", release.trim()))
}

/// Address space, of which each isolate reserves much more than it uses.
pub fn address_space() -> Finding {
    let name = "address space";
    let limit = getrlimit(Resource::As).maximum;
    if let Some(limit) = limit {
        let detail =
            format!("limited to {} (ulimit -v); isolates reserve more: remove the limit", size(limit));
        return Finding::new(name, State::Fails, detail);
    }
    let overcommit = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap_or_default();
    let bits = Machine::probe().address_bits;
    if overcommit.trim() == "2" {
        let detail = "vm.overcommit_memory is 2: reservations count as memory; set it to 0 or 1";
        return Finding::new(name, State::Slow, detail);
    }
    Finding::new(name, State::Good, format!("{bits} bits"))
}

pub fn clock() -> Finding {
    let now = Clock::system().now_unix_ms();
    if now < EARLIEST_UNIX_MS {
        let detail = "the clock is in the past: schedules, certificates and tokens are wrong until it is set (NTP, or a clock module)";
        return Finding::new("clock", State::Slow, detail);
    }
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map(|source| source.trim().to_owned()).unwrap_or_else(|_| "unknown".into());
    // Without a call into the kernel, reading it costs nanoseconds; with one, up to a microsecond.
    let slow = matches!(source.as_str(), "hpet" | "acpi_pm");
    let detail = format!("set; source {source}{}", if slow { ", which is slow to read" } else { "" });
    Finding::new("clock", if slow { State::Slow } else { State::Good }, detail)
}

pub fn entropy() -> Finding {
    let open =
        fs::File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open("/dev/random");
    let read = open.and_then(|mut device| device.read_exact(&mut [0; 32]));
    match read {
        Ok(()) => Finding::new("entropy", State::Good, "the generator of random numbers is ready"),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let detail = "the generator of random numbers is not ready: a node waits for it at its start (install haveged or rng-tools)";
            Finding::new("entropy", State::Slow, detail)
        }
        Err(error) => Finding::new("entropy", State::Fails, format!("/dev/random cannot be read: {error}")),
    }
}

/// A node parses and compiles in child processes of its own program.
pub fn child_processes() -> Finding {
    let name = "child processes";
    let ran = this_program().and_then(|program| {
        Command::new(program)
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
    });
    match ran {
        Ok(status) if status.success() => {
            Finding::new(name, State::Good, "the program can start itself, to compile")
        }
        Ok(status) => {
            Finding::new(name, State::Fails, format!("the program cannot start itself: {status}"))
        }
        Err(error) => Finding::new(name, State::Fails, format!("the program cannot start itself: {error}")),
    }
}
