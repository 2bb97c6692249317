//! HTTP hello: a node beside workerd, Node.js, `wasmtime serve`, a process a request and bare hyper.

use std::fs::write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, ensure};
use edgefaas_benches::functions::{ECHO_JS, Guest, WORKER_JS};
use edgefaas_benches::http::{closed_loop, get};
use edgefaas_benches::node::Node;
use edgefaas_benches::peers::{self, WasmtimeServe, Workerd};
use edgefaas_benches::process::{Process, cpu_seconds_of_family, resident_mb_of_family};
use edgefaas_benches::results::{Report, Table, Target};
use tempfile::TempDir;

use crate::Plan;

const CONNECTIONS: [usize; 2] = [1, 32];
/// Figures of the tables.
const RATE: usize = 0;
const LOADED: usize = 2;

const NODE_JS: &str = "node, JavaScript";
const NODE_WORKER: &str = "node, the worker's JavaScript";
const NODE_WORKER_ONE: &str = "node with one thread, the worker's JavaScript";
const WORKERD: &str = "workerd";
const NODE_RUST: &str = "node, Rust";
const NODE_PROXY: &str = "node, the wasi:http component";
const WASMTIME: &str = "wasmtime serve, the wasi:http component";

type Start = Box<dyn Fn() -> anyhow::Result<(Process, SocketAddr)>>;

/// Somebody who answers `GET path` with "hello".
struct Contestant {
    name: &'static str,
    path: &'static str,
    start: Start,
}

/// A contestant's figures of one round: of each number of connections, and of the process.
struct Round {
    loads: [[f64; 4]; 2],
    process: [f64; 4],
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "serve",
        "HTTP hello beside other servers",
        &format!(
            "GET on connections that are kept alive, answered with five bytes; one load client (a single-threaded tokio \
             program) drives all, which needs one of the cores. In every round each contestant is started, left alone, warmed \
             up, measured and stopped, alone on the machine. The node has one function, deployed before; every request has \
             a fresh isolate. workerd {} runs the same file in one isolate, on one thread, as Node.js does. `wasmtime serve` {} \
             has the component precompiled and an instance of a pool for every request, on all cores. A process a request is \
             hyper that starts `/bin/echo`. Processor time is that of the server with its children, user and system; start \
             is from exec to the first answer; loaded is the most that was seen with {} connections.",
            peers::WORKERD_VERSION,
            peers::WASMTIME_VERSION,
            CONNECTIONS[1],
        ),
        &crate::command("serve"),
    );
    let contestants = contestants(plan)?;
    let names: Vec<&str> = contestants.iter().map(|contestant| contestant.name).collect();
    let figures = [("requests", "1/s"), ("p50", "us"), ("p99", "us"), ("processor", "us/request")];
    let mut loads =
        CONNECTIONS.map(|count| Table::new(&format!("{count} connection(s)"), &names, &figures));
    let figures = [("start", "ms"), ("idle", "MB"), ("loaded", "MB"), ("of it not file-backed", "MB")];
    let mut processes = Table::new("Start and resident memory", &names, &figures);
    for _ in 0..plan.rounds {
        for (number, contestant) in contestants.iter().enumerate() {
            let round = measure(plan, contestant).with_context(|| contestant.name)?;
            for (table, values) in loads.iter_mut().zip(&round.loads) {
                table.add(number, values);
            }
            processes.add(number, &round.process);
        }
    }

    let row = |name: &str| names.iter().position(|found| *found == name);
    for (ours, peer, times, id) in [
        (NODE_JS, WORKERD, 1.0, "serve-js"),
        (NODE_WORKER, WORKERD, 1.0, "serve-js"),
        (NODE_RUST, WASMTIME, 1.5, "serve-rust"),
        (NODE_PROXY, WASMTIME, 1.5, "serve-rust"),
    ] {
        let (Some(our_row), Some(peer_row)) = (row(ours), row(peer)) else { continue };
        for (table, count) in loads.iter().zip(CONNECTIONS) {
            report.targets.push(Target::at_least(
                id,
                &format!(
                    "{ours}, {count} connection(s): at least {times} times the requests a second of {peer}"
                ),
                table.ratio(our_row, peer_row, RATE),
                times,
            ));
        }
        if peer == WORKERD {
            report.targets.push(Target::at_most(
                "serve-memory",
                &format!("{ours}: at most a fifth of workerd's memory, loaded"),
                processes.ratio(our_row, peer_row, LOADED),
                0.2,
            ));
        }
    }
    report.tables.extend(loads);
    report.tables.push(processes);
    Ok(report)
}

/// All that can be had here.
fn contestants(plan: &Plan) -> anyhow::Result<Vec<Contestant>> {
    let component = Guest::Proxy.build()?;
    let (echo, proxy) = (std::fs::read(Guest::Echo.build()?)?, std::fs::read(&component)?);
    let worker = WORKER_JS.as_bytes();
    let node = |file, bytes: &[u8], settings| deployed(plan, file, bytes, settings);
    let workerd = Workerd::new().map(|peer| Box::new(move || peer.start()) as Start);
    let nodejs = peers::start_nodejs().map(|_| Box::new(peers::start_nodejs) as Start);
    let wasmtime = WasmtimeServe::new(&component).map(|peer| Box::new(move || peer.start()) as Start);
    let all = [
        (NODE_JS, "/fn/echo", Ok(node("echo.js", ECHO_JS.as_bytes(), "")?)),
        (NODE_WORKER, "/fn/worker", Ok(node("worker.js", worker, "")?)),
        (NODE_WORKER_ONE, "/fn/worker", Ok(node("worker.js", worker, "workers = 1\n")?)),
        (WORKERD, "/", workerd),
        ("Node.js", "/", nodejs),
        (NODE_RUST, "/fn/echo", Ok(node("echo.wasm", &echo, "")?)),
        (NODE_PROXY, "/fn/proxy", Ok(node("proxy.wasm", &proxy, "")?)),
        (WASMTIME, "/", wasmtime),
        ("a process a request", "/", Ok(Box::new(|| peers::start_listening("process-per-request")))),
        ("bare hyper", "/", Ok(Box::new(|| peers::start_listening("hyper")))),
    ];
    let mut contestants = Vec::new();
    for (name, path, start) in all {
        match start {
            Ok(start) => contestants.push(Contestant { name, path, start }),
            Err(error) => eprintln!("without {name}: {error:#}"),
        }
    }
    Ok(contestants)
}

/// A node to which one file is deployed once, and which is then started with it.
fn deployed(plan: &Plan, file: &str, bytes: &[u8], settings: &'static str) -> anyhow::Result<Start> {
    let data: TempDir = tempfile::tempdir()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join(file);
    write(&path, bytes)?;
    let node = Node::start(&plan.binary, data.path())?;
    node.deploy_app(&plan.binary, data.path(), &path)?;
    node.process.terminate()?;
    let binary: PathBuf = plan.binary.clone();
    Ok(Box::new(move || {
        let node = Node::start_with(&binary, data.path(), settings)?;
        Ok((node.process, node.http))
    }))
}

fn measure(plan: &Plan, contestant: &Contestant) -> anyhow::Result<Round> {
    let (process, address) = (contestant.start)()?;
    let (status, body) = get(address, contestant.path)?;
    let started = process.started.elapsed();
    ensure!((status, &body[..]) == (200, b"hello"), "{status} {}", String::from_utf8_lossy(&body));
    sleep(plan.settle);
    let (idle_mb, _) = resident_mb_of_family(process.id())?;

    let run = |connections| closed_loop(address, contestant.path, connections, plan.turn);
    run(CONNECTIONS[1])?;
    let mut loads = [[0.0; 4]; 2];
    let mut most_mb = (0.0, 0.0);
    for (values, connections) in loads.iter_mut().zip(CONNECTIONS) {
        let before = cpu_seconds_of_family(process.id())?;
        let (load, loaded_mb) = most_resident_mb(plan, process.id(), || run(connections));
        let mut load = load?;
        let cpu_us = (cpu_seconds_of_family(process.id())? - before) * 1e6;
        let (p50, p99) = (load.samples.quantile_us(0.5), load.samples.quantile_us(0.99));
        *values = [load.per_second, p50, p99, cpu_us / load.samples.completed() as f64];
        most_mb = loaded_mb;
    }
    // A node writes everything to its disk, so that the next start finds what a usual one does. How the others end is theirs.
    let _ = process.terminate();
    let start_ms = started.as_secs_f64() * 1e3;
    Ok(Round { loads, process: [start_ms, idle_mb, most_mb.0, most_mb.1] })
}

/// Does `work` and looks at a process's resident memory meanwhile: the most that was seen, and the part of it that was not
/// backed by files, in MB.
fn most_resident_mb<T>(plan: &Plan, process: u32, work: impl FnOnce() -> T) -> (T, (f64, f64)) {
    const LOOKS: u32 = 8;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut most = (0.0, 0.0);
            while !done.load(Ordering::Relaxed) {
                sleep((plan.turn / LOOKS).max(Duration::from_millis(20)));
                let now = resident_mb_of_family(process).unwrap_or_default();
                if now.0 > most.0 {
                    most = now;
                }
            }
            most
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        (result, watcher.join().unwrap_or_default())
    })
}
