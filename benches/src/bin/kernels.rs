//! Six programs that compute, as a JavaScript function of a node, as the same JavaScript in Node.js (V8), as a Rust function of a node
//! and as native Rust. All are asked over HTTP, one call after another.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use edgefaas_benches::client::Client;
use edgefaas_benches::node::{Node, build_binary};
use edgefaas_benches::process::{Process, cpu_seconds_of};
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::geometric_mean;
use edgefaas_benches::{repository, target_folder};
use serde_json::{Value, json};

/// Names in the guests, and in tables.
const KERNELS: [(&str, &str); 6] = [
    ("matrix", "matrices"),
    ("json", "JSON"),
    ("expressions", "regular expressions"),
    ("strings", "strings"),
    ("sha256", "SHA-256"),
    ("sort", "sort"),
];
const CONTESTANTS: [&str; 4] = ["JavaScript function", "Node.js", "Rust function", "native Rust"];
const JS_FUNCTION: usize = 0;
const NODEJS: usize = 1;
const RUST_FUNCTION: usize = 2;
const NATIVE: usize = 3;
/// A call takes at least so long: what it costs beside its kernel is little of it.
const CALL: Duration = Duration::from_millis(40);

/// The JavaScript function times Node.js in the geometric mean: half of what it was when the interpreter was first measured.
const TARGET: f64 = 9.0;

const MANIFEST: &str = r#"app = "kernels"

[functions.js]
main = "function.mjs"

[functions.rust]
main = "kernels.wasm"
isolation = "reuse"
"#;

#[derive(Debug, Parser)]
#[command(about = "Measures programs that compute in functions, beside Node.js and native code")]
struct Arguments {
    /// Fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// How often every contestant has its turn
    #[arg(long)]
    rounds: Option<usize>,
    /// Keep what was measured in benches/results
    #[arg(long)]
    results: bool,
    /// Measure this binary instead of the one that is built here
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// One that runs kernels.
struct Contestant {
    client: Client,
    path: &'static str,
    /// Its process.
    process: u32,
}

impl Contestant {
    /// Has a kernel run so often.
    fn call(&mut self, kernel: &str, times: u32) -> anyhow::Result<String> {
        let work = json!({ "kernel": kernel, "times": times }).to_string();
        let (status, body) = self.client.post(self.path, work.as_bytes())?;
        let text = String::from_utf8_lossy(&body);
        ensure!(status == 200, "{kernel}: {status} {text}");
        let answer: Value = serde_json::from_slice(&body)?;
        Ok(answer["answer"].as_str().with_context(|| format!("{kernel}: {text} is no answer"))?.to_owned())
    }

    /// How often a kernel is run in a call, and its answer.
    fn times(&mut self, kernel: &str) -> anyhow::Result<(u32, String)> {
        let mut times = 1;
        loop {
            let begun = Instant::now();
            let answer = self.call(kernel, times)?;
            if begun.elapsed() >= CALL {
                return Ok((times, answer));
            }
            times *= 2;
        }
    }

    /// Processor time of a kernel that is called for `turn`, in milliseconds.
    fn take(&mut self, kernel: &str, times: u32, turn: Duration) -> anyhow::Result<f64> {
        self.call(kernel, times)?;
        let (begun, before, mut calls) = (Instant::now(), cpu_seconds_of(self.process)?, 0);
        while begun.elapsed() < turn {
            self.call(kernel, times)?;
            calls += 1;
        }
        Ok((cpu_seconds_of(self.process)? - before) * 1e3 / f64::from(calls) / f64::from(times))
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let (rounds, turn) = if arguments.quick { (3, 300) } else { (7, 1500) };
    let (rounds, turn) = (arguments.rounds.unwrap_or(rounds), Duration::from_millis(turn));
    let binary = arguments.binary.map_or_else(build_binary, Ok)?;
    let mut report = Report::new(
        "kernels",
        "Programs that compute",
        &format!(
            "Six programs as a JavaScript function of a node (in fresh isolates), the same file in Node.js {}, and a program of the same \
             form in Rust as a function of the node (`isolation = \"reuse\"`) and as native code: the product of two matrices of 100 x 100 \
             numbers, 100 kB of JSON parsed and written, three regular expressions over 500 lines, a text of 10,000 lines built, split \
             and read by character, SHA-256 of 16 KiB without the processor's instructions for it, and 26,000 numbers, texts and objects \
             sorted. A call runs a program as often as takes {} ms, and its answer is the same of all four. Times are processor time of the \
             whole process, V8's compiler and garbage collector among it.",
            nodejs_version()?,
            CALL.as_millis(),
        ),
        "target/release/kernels --results",
    );
    let data = tempfile::tempdir()?;
    let node = Node::start(&binary, data.path())?;
    let built = build()?;
    deploy(&node, &binary, data.path(), &built)?;
    let nodejs = Process::start(Command::new("node").arg(guests().join("server.mjs")))?;
    let native = Process::start(&mut Command::new(built.join("release/kernels-native")))?;
    let contestant = |process: &Process| -> anyhow::Result<Contestant> {
        let client = Client::new(process.first_line.trim().parse()?);
        Ok(Contestant { client, path: "/", process: process.id() })
    };
    let function = |path| Contestant { client: Client::new(node.http), path, process: node.process.id() };
    let mut contestants =
        [function("/fn/js"), contestant(&nodejs)?, function("/fn/rust"), contestant(&native)?];

    let mut times = Vec::new();
    for (kernel, _) in KERNELS {
        let mut of_kernel = Vec::new();
        let mut expected = None;
        for (contestant, who) in contestants.iter_mut().zip(CONTESTANTS) {
            let (times, answer) = contestant.times(kernel).with_context(|| who)?;
            let expected = expected.get_or_insert_with(|| answer.clone());
            ensure!(answer == *expected, "{kernel}: {who} answers {answer:?} and not {expected:?}");
            of_kernel.push(times);
        }
        times.push(of_kernel);
    }
    let mut table = Table::new("One run", &CONTESTANTS, &KERNELS.map(|(_, title)| (title, "ms")));
    for _ in 0..rounds {
        for ((figure, (kernel, _)), times) in KERNELS.into_iter().enumerate().zip(&times) {
            for (row, contestant) in contestants.iter_mut().enumerate() {
                let ms = contestant.take(kernel, times[row], turn)?;
                table.rows[row].figures[figure].rounds.push(ms);
            }
        }
    }
    let beside_v8 = ratios("Times Node.js", &table, NODEJS, &[JS_FUNCTION, RUST_FUNCTION, NATIVE]);
    let beside_native = ratios("Times native Rust", &table, NATIVE, &[JS_FUNCTION, NODEJS, RUST_FUNCTION]);
    report.targets.push(Target::at_most(
        "kernels",
        "six programs that compute: the JavaScript function times Node.js, geometric mean",
        beside_v8.rows[0].figures[KERNELS.len()].median(),
        TARGET,
    ));
    report.tables = vec![table, beside_v8, beside_native];
    report.print();
    if arguments.results {
        report.save()?;
    }
    Ok(())
}

/// The figures of `rows` over those of `peer`, round by round, and their geometric means.
fn ratios(title: &str, of: &Table, peer: usize, rows: &[usize]) -> Table {
    let names: Vec<&str> = rows.iter().map(|row| CONTESTANTS[*row]).collect();
    let mut figures = KERNELS.map(|(_, title)| (title, "x")).to_vec();
    figures.push(("geometric mean", "x"));
    let mut table = Table::new(title, &names, &figures);
    let value = |row: usize, figure: usize, round: usize| of.rows[row].figures[figure].rounds[round];
    for round in 0..of.rows[peer].figures[0].rounds.len() {
        for (at, row) in rows.iter().enumerate() {
            let ratio = |figure| value(*row, figure, round) / value(peer, figure, round);
            let mut values: Vec<f64> = (0..KERNELS.len()).map(ratio).collect();
            values.push(geometric_mean(&values));
            table.add(at, &values);
        }
    }
    table
}

fn nodejs_version() -> anyhow::Result<String> {
    let output = Command::new("node").arg("--version").output().context("Node.js is not installed")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().trim_start_matches('v').to_owned())
}

fn guests() -> PathBuf {
    repository().join("benches/guests/kernels")
}

/// Builds the Rust function and the native server; gives cargo's folder.
fn build() -> anyhow::Result<PathBuf> {
    let target = target_folder().join("guest");
    for arguments in [&["--lib", "--target", "wasm32-wasip2"][..], &["--bins"]] {
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--release", "--quiet"]).args(arguments);
        cargo.current_dir(guests()).env("CARGO_TARGET_DIR", &target);
        let status = cargo.status().context("cargo cannot be started")?;
        if !status.success() {
            bail!("benches/guests/kernels could not be built: cargo ended with {status}");
        }
    }
    Ok(target)
}

fn deploy(node: &Node, binary: &Path, data_dir: &Path, built: &Path) -> anyhow::Result<()> {
    let app = tempfile::tempdir()?;
    std::fs::write(app.path().join("edgefaas.toml"), MANIFEST)?;
    for file in ["function.mjs", "kernels.mjs"] {
        std::fs::copy(guests().join(file), app.path().join(file))?;
    }
    let wasm = built.join("wasm32-wasip2/release/kernels.wasm");
    std::fs::copy(wasm, app.path().join("kernels.wasm"))?;
    node.deploy_app(binary, data_dir, app.path())
}
