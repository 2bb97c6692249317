//! HTTP hello: a node beside workerd, Node.js, `wasmtime serve`, a process a request and bare hyper.

use std::fs::write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, ensure};
use edgefaas_benches::functions::{ECHO_JS, Guest, HONO_JS, WORKER_JS};
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
const P99: usize = 2;
const LOADED: usize = 2;

const NODE_JS: &str = "node, JavaScript";
const NODE_WORKER: &str = "node, the worker's JavaScript";
const NODE_WORKER_ONE: &str = "node with one thread, the worker's JavaScript";
const NODE_WORKER_REUSED: &str = "node, the worker's JavaScript, `reuse`";
const WORKERD: &str = "workerd";
const NODE_HONO: &str = "node, a Hono app";
const NODE_HONO_REUSED: &str = "node, a Hono app, `reuse`";
const WORKERD_HONO: &str = "workerd, a Hono app";
const NODE_RUST: &str = "node, Rust";
const NODE_PROXY: &str = "node, the wasi:http component";
const WASMTIME: &str = "wasmtime serve, the wasi:http component";

type Start = Box<dyn Fn() -> anyhow::Result<(Process, SocketAddr)>>;

/// A request, and its answer.
#[derive(Clone, Copy)]
struct Question {
    path: &'static str,
    answer: &'static str,
}

const HONO: Question = Question { path: "/users/42?part=name", answer: r#"{"id":"42","part":"name"}"# };

const fn hello(path: &'static str) -> Question {
    Question { path, answer: "hello" }
}

/// A server that answers the question.
struct Contestant {
    name: &'static str,
    question: Question,
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
            "GET on connections that are kept alive, answered with five bytes or a short JSON; one load client (a single-threaded tokio \
             program) drives all, which needs one of the cores. In every round each contestant is started, left alone, warmed \
             up, measured and stopped, alone on the machine. The node has one function, deployed before; every request has \
             a fresh isolate, but for rows with `reuse` (`isolation = \"reuse\"`). workerd {} runs the same file in one isolate, on one \
             thread, as Node.js does. The Hono app ({}) has three routes; `GET {}` runs one with a parameter and a query. `wasmtime serve` {} \
             has the component precompiled and an instance of a pool for every request, on all cores. A process a request is \
             hyper that starts `/bin/echo`. Processor time is that of the server with its children, user and system; start \
             is from exec to the first answer; loaded is the most that was seen with {} connections.",
            peers::WORKERD_VERSION,
            peers::HONO_VERSION,
            HONO.path,
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
        (NODE_WORKER_REUSED, WORKERD, 1.0, "serve-js"),
        (NODE_HONO, WORKERD_HONO, 1.0, "serve-js"),
        (NODE_HONO_REUSED, WORKERD_HONO, 1.0, "serve-js"),
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
        if [WORKERD, WORKERD_HONO].contains(&peer) {
            report.targets.push(Target::at_most(
                "serve-tail",
                &format!("{ours}, {} connection(s): p99 at most a tenth of that of {peer}", CONNECTIONS[1]),
                loads[1].ratio(our_row, peer_row, P99),
                0.1,
            ));
            report.targets.push(Target::at_most(
                "serve-memory",
                &format!("{ours}: at most a fifth of the memory of {peer}, loaded"),
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
    let node = |file, bytes: &[u8], settings| deployed(plan, settings, |app| single_file(app, file, bytes));
    let web = |file, text, isolation| deployed(plan, "", |app| web_app(app, file, text, isolation));
    let workerd = Workerd::new().map(|peer| Box::new(move || peer.start()) as Start);
    let workerd_hono = Workerd::with_hono().map(|peer| Box::new(move || peer.start()) as Start);
    let nodejs = peers::start_nodejs().map(|_| Box::new(peers::start_nodejs) as Start);
    let wasmtime = WasmtimeServe::new(&component).map(|peer| Box::new(move || peer.start()) as Start);
    let per_request: Start = Box::new(|| peers::start_listening("process-per-request"));
    let hyper: Start = Box::new(|| peers::start_listening("hyper"));
    let all = [
        (NODE_JS, hello("/fn/echo"), Ok(node("echo.js", ECHO_JS.as_bytes(), "")?)),
        (NODE_WORKER, hello("/fn/worker"), Ok(node("worker.js", worker, "")?)),
        (NODE_WORKER_ONE, hello("/fn/worker"), Ok(node("worker.js", worker, "workers = 1\n")?)),
        (NODE_WORKER_REUSED, hello("/"), Ok(web("worker.js", WORKER_JS, "reuse")?)),
        (WORKERD, hello("/"), workerd),
        (NODE_HONO, HONO, web("hono.js", HONO_JS, "fresh")),
        (NODE_HONO_REUSED, HONO, web("hono.js", HONO_JS, "reuse")),
        (WORKERD_HONO, HONO, workerd_hono),
        ("Node.js", hello("/"), nodejs),
        (NODE_RUST, hello("/fn/echo"), Ok(node("echo.wasm", &echo, "")?)),
        (NODE_PROXY, hello("/fn/proxy"), Ok(node("proxy.wasm", &proxy, "")?)),
        (WASMTIME, hello("/"), wasmtime),
        ("a process a request", hello("/"), Ok(per_request)),
        ("bare hyper", hello("/"), Ok(hyper)),
    ];
    let mut contestants = Vec::new();
    for (name, question, start) in all {
        match start {
            Ok(start) => contestants.push(Contestant { name, question, start }),
            Err(error) => eprintln!("without {name}: {error:#}"),
        }
    }
    Ok(contestants)
}

/// An app of one file: the path to deploy.
fn single_file(folder: &Path, file: &str, bytes: &[u8]) -> anyhow::Result<PathBuf> {
    let path = folder.join(file);
    write(&path, bytes)?;
    Ok(path)
}

/// An app of one function that answers all paths.
fn web_app(folder: &Path, file: &str, text: &str, isolation: &str) -> anyhow::Result<PathBuf> {
    write(folder.join(file), text)?;
    let triggers = "[{ http = \"/\" }, { http = \"/{*path}\" }]";
    let manifest = format!(
        "app = \"web\"\n[functions.web]\nmain = \"{file}\"\ntriggers = {triggers}\nisolation = \"{isolation}\"\n"
    );
    write(folder.join("edgefaas.toml"), manifest)?;
    if text.contains("hono") {
        peers::copy_hono(folder)?;
    }
    Ok(folder.to_owned())
}

/// A node to which an app is deployed once, and which is then started with it.
fn deployed(
    plan: &Plan,
    settings: &'static str,
    app: impl FnOnce(&Path) -> anyhow::Result<PathBuf>,
) -> anyhow::Result<Start> {
    let data: TempDir = tempfile::tempdir()?;
    let folder = tempfile::tempdir()?;
    let path = app(folder.path())?;
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
    let Question { path, answer } = contestant.question;
    let (status, body) = get(address, path)?;
    let started = process.started.elapsed();
    ensure!((status, &body[..]) == (200, answer.as_bytes()), "{status} {}", String::from_utf8_lossy(&body));
    sleep(plan.settle);
    let (idle_mb, _) = resident_mb_of_family(process.id())?;

    let run = |connections| closed_loop(address, path, connections, plan.turn);
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
