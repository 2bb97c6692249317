//! From a deploy to the first answer, and nodes with a thousand functions.

use std::fmt::Write as _;
use std::fs::write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use edgefaas_benches::functions::Guest;
use edgefaas_benches::http::get;
use edgefaas_benches::node::Node;
use edgefaas_benches::process::private_mb_of;
use edgefaas_benches::results::{Report, Table, Target};

use crate::Plan;

const FUNCTIONS: usize = 1000;
/// How long a node may take to make the programs of all of them.
const PATIENCE: Duration = Duration::from_secs(600);
const FIRST_ANSWER: usize = 0;
const RESIDENT: usize = 0;
/// The row of functions of JavaScript with their own sources, and their resident memory after the calls.
const OWN_JS: usize = 1;
const CALLED_RESIDENT: usize = 6;
/// The same row in the table of deploys, which has none without functions.
const DEPLOYED_JS: usize = 0;
const COMMAND: usize = 0;
const CACHE: usize = 1;

/// The functions of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// None at all.
    None,
    /// JavaScript, each its own source.
    OwnJs,
    /// JavaScript, the same source in as many files.
    SameJs,
    /// The same Rust component.
    SameRust,
}

const KINDS: [(Kind, &str); 4] = [
    (Kind::None, "none"),
    (Kind::OwnJs, "1,000 of JavaScript, each its own source"),
    (Kind::SameJs, "1,000 of JavaScript, one source"),
    (Kind::SameRust, "1,000 of one Rust component"),
];

pub fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    first_answer(plan, report)?;
    thousand(plan, report)
}

/// A file that has never been there, from the command to the answer.
fn first_answer(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let contestants = ["a new function", "a new source of a function"];
    let figures = [
        ("exec to first answer", "ms"),
        ("the command", "ms"),
        ("the request", "ms"),
        ("a command that does nothing", "ms"),
        ("without the start of the process", "ms"),
    ];
    let title = "`edgefaas deploy FILE.js` and a GET of the function; `edgefaas --version` does nothing";
    let mut table = Table::new(title, &contestants, &figures);
    let data = tempfile::tempdir()?;
    let folder = tempfile::tempdir()?;
    let node = Node::start(&plan.binary, data.path())?;
    let mut deploy = |row: usize, name: &str, number: usize, counts: bool| -> anyhow::Result<()> {
        let file = folder.path().join(format!("{name}.js"));
        let answer = format!("answer {number} of {name}");
        write(&file, source(&answer))?;
        let nothing = Instant::now();
        ensure!(command(plan).arg("--version").status()?.success(), "--version failed");
        let nothing = nothing.elapsed();

        let begun = Instant::now();
        node.deploy_app(&plan.binary, data.path(), &file)?;
        let deployed = begun.elapsed();
        let (status, body) = get(node.http, &format!("/fn/{name}"))?;
        let answered = begun.elapsed();
        ensure!(
            (status, &body[..]) == (200, answer.as_bytes()),
            "{status} {}",
            String::from_utf8_lossy(&body)
        );
        let times = [answered, deployed, answered - deployed, nothing, answered.saturating_sub(nothing)];
        if counts {
            table.add(row, &times.map(|time| time.as_secs_f64() * 1e3));
        }
        Ok(())
    };
    // The first of all also makes what all functions share.
    deploy(0, "first", 0, false)?;
    deploy(1, "again", 0, false)?;
    for number in 1..=plan.starts {
        deploy(0, &format!("new-{number}"), number, true)?;
        deploy(1, "again", number, true)?;
    }
    node.process.terminate()?;
    report.targets.push(Target::at_most(
        "density-deploy",
        "the first answer 20 ms after the exec of `edgefaas deploy FILE.js`",
        table.rows[0].figures[FIRST_ANSWER].median(),
        20.0,
    ));
    report.tables.push(table);
    Ok(())
}

fn source(answer: &str) -> String {
    format!("export default function answer() {{\n  return \"{answer}\";\n}}\n")
}

fn command(plan: &Plan) -> Command {
    let mut command = Command::new(&plan.binary);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Nodes with many functions, after a restart.
fn thousand(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let figures = [
        ("resident, idle", "MB"),
        ("private, idle", "MB"),
        ("ready line", "ms"),
        ("at rest", "s"),
        ("a first call", "ms"),
        ("private, each called once", "MB"),
        ("resident, each called once", "MB"),
    ];
    let title = "A node with functions after a restart: it is ready first, then makes their programs, then rests, which is idle; \
                 then each is called once";
    let mut table = Table::new(title, &KINDS.map(|(_, name)| name), &figures);
    let figures = [("the command", "s"), ("code cache, for each function", "kB")];
    let mut deploys = Table::new("The deploy of these apps", &KINDS.map(|(_, name)| name), &figures);
    let mut nodes = Vec::new();
    for (row, (kind, _)) in KINDS.iter().enumerate() {
        let data = tempfile::tempdir()?;
        if *kind != Kind::None {
            let app = tempfile::tempdir()?;
            write_app(*kind, app.path())?;
            let node = Node::start(&plan.binary, data.path())?;
            let begun = Instant::now();
            node.deploy_app(&plan.binary, data.path(), app.path())?;
            let command_s = begun.elapsed().as_secs_f64();
            node.process.terminate()?;
            let cache_kb = cache_bytes(&data.path().join("cache"))? as f64 / 1e3;
            deploys.add(row, &[command_s, cache_kb / FUNCTIONS as f64]);
        }
        nodes.push(data);
    }
    deploys.rows.retain(|row| !row.figures[0].rounds.is_empty());
    for _ in 0..plan.rounds.min(3) {
        for (row, (kind, _)) in KINDS.iter().enumerate() {
            let node = Node::start(&plan.binary, nodes[row].path())?;
            node.process.wait_for_rest(PATIENCE)?;
            let rest_s = node.process.started.elapsed().as_secs_f64();
            sleep(plan.settle);
            let private_mb = || private_mb_of(node.process.id());
            let ready_ms = node.process.ready_after.as_secs_f64() * 1e3;
            let idle = [node.process.resident_mb()?.0, private_mb()?, ready_ms, rest_s];
            if *kind == Kind::None {
                table.add(row, &idle);
            } else {
                let call_ms = call_each(&node)?;
                sleep(plan.settle);
                let called = [call_ms, private_mb()?, node.process.resident_mb()?.0];
                table.add(row, &[&idle[..], &called].concat());
            }
            node.process.terminate()?;
        }
    }
    for (row, (kind, name)) in KINDS.iter().enumerate() {
        if *kind != Kind::None {
            report.targets.push(Target::at_most(
                "density-thousand",
                &format!("60 MB resident, idle, with functions: {name}"),
                table.rows[row].figures[RESIDENT].median(),
                60.0,
            ));
        }
    }
    let median = |table: &Table, row: usize, figure: usize| table.rows[row].figures[figure].median();
    report.targets.extend([
        Target::at_most(
            "density-called",
            "150 MB resident after a call of each of 1,000 functions of JavaScript",
            median(&table, OWN_JS, CALLED_RESIDENT),
            150.0,
        ),
        Target::at_most(
            "density-cache",
            "150 kB of code cache for each of them",
            median(&deploys, DEPLOYED_JS, CACHE),
            150.0,
        ),
        Target::at_most(
            "density-thousand-deploy",
            "8 s for the deploy of them in one app",
            median(&deploys, DEPLOYED_JS, COMMAND),
            8.0,
        ),
    ]);
    report.tables.extend([table, deploys]);
    Ok(())
}

fn write_app(kind: Kind, folder: &Path) -> anyhow::Result<()> {
    let mut manifest = "app = \"thousand\"\n".to_owned();
    if kind == Kind::SameRust {
        std::fs::copy(Guest::Echo.build()?, folder.join("echo.wasm"))?;
    }
    for number in 0..FUNCTIONS {
        let main = match kind {
            Kind::SameRust => "echo.wasm".to_owned(),
            _ => format!("f{number}.js"),
        };
        match kind {
            Kind::OwnJs => write(folder.join(&main), source(&format!("hello from {number}")))?,
            Kind::SameJs => write(folder.join(&main), source("hello"))?,
            Kind::None | Kind::SameRust => {}
        }
        write!(manifest, "\n[functions.f{number}]\nmain = \"{main}\"\n")?;
    }
    Ok(write(folder.join("edgefaas.toml"), manifest)?)
}

/// Room on the disk of all files of a code cache.
fn cache_bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

/// Calls each function once; milliseconds of one call.
fn call_each(node: &Node) -> anyhow::Result<f64> {
    let begun = Instant::now();
    for number in 0..FUNCTIONS {
        let (status, body) = get(node.http, &format!("/fn/f{number}"))?;
        ensure!(status == 200, "f{number}: {status} {}", String::from_utf8_lossy(&body));
    }
    let all: Duration = begun.elapsed();
    Ok(all.as_secs_f64() * 1e3 / FUNCTIONS as f64)
}
