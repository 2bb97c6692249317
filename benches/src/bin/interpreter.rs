//! Functions in wasmtime's interpreter beside the same functions as native code, with the node's engine settings: the speed
//! of a node on a processor that the compiler has no target for, in proportion. The interpreter is built as one unit (see the
//! command): built in several without link-time optimisation it is six times slower.

use std::time::{Duration, Instant};

use clap::Parser;
use edgefaas_benches::bare::{BareJs, BareRust};
use edgefaas_benches::functions::{COMPUTE_JS, Guest};
use edgefaas_benches::process::private_mb_of;
use edgefaas_benches::results::{Report, Table};
use edgefaas_isolates::engine::{self, PoolConfig};
use edgefaas_isolates::js::engine_code_wasm;
use rustix::time::{ClockId, clock_gettime};
use wasmtime::error::Context;
use wasmtime::{Engine, Error, Module, ensure};

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Answered with itself.
const ECHO: &[u8] = &[b'x'; 64];
const JS_WORKS: [(&str, &[u8]); 3] = [("echo", ECHO), ("JSON", b"json"), ("sieve", b"sieve")];
const RUST_WORKS: [(&str, &[u8]); 3] = [("echo", ECHO), ("SHA-256", b"sha256"), ("sort", b"sort")];
/// Instances that exist at the same time while their memory is measured.
const INSTANCES: u32 = 100;

#[derive(Debug, Parser)]
#[command(about = "Measures functions in wasmtime's interpreter")]
struct Arguments {
    /// How often every contestant has its turn
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// How many milliseconds a turn lasts
    #[arg(long, default_value_t = 300)]
    turn: u64,
    /// Keep what was measured in benches/results
    #[arg(long)]
    results: bool,
}

/// The form of a function's code.
#[derive(Debug, Clone, Copy)]
enum Code {
    Native,
    /// Bytecode for 64-bit addresses; accesses outside of the memory reach a guard page.
    Interpreted,
    /// Bytecode that checks every access, as a system without 4 GiB of address space for each instance needs it.
    InterpretedChecked,
}

const CODES: [Code; 3] = [Code::Native, Code::Interpreted, Code::InterpretedChecked];

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Interpreted => "interpreter",
            Self::InterpretedChecked => "interpreter, with checks",
        }
    }

    fn engine(self) -> wasmtime::Result<Engine> {
        let pool = PoolConfig { max_isolates: 2 * INSTANCES, ..PoolConfig::default() };
        let mut settings = match self {
            Self::Native => return Ok(engine::build(pool)?),
            Self::Interpreted => engine::settings(pool),
            Self::InterpretedChecked => {
                let reservation_bytes = pool.max_memory_bytes as u64;
                let mut settings = engine::settings(PoolConfig { reservation_bytes, ..pool });
                settings.signals_based_traps(false);
                settings
            }
        };
        Ok(Engine::new(settings.target("pulley64")?)?)
    }
}

struct Contestant {
    js: BareJs,
    rust: BareRust,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> wasmtime::Result<()> {
    let arguments = Arguments::parse();
    let component = std::fs::read(Guest::Compute.build().map_err(boxed)?)?;
    let mut report = Report::new(
        "interpreter",
        "Interpreter",
        "The same functions as native code and as bytecode of wasmtime's interpreter (Pulley), in one process with the node's engine \
         settings and bare wasmtime calls, each invocation in an instance of its own; times are processor time. \"With checks\" is the interpreter where address \
         space is too short for 4 GiB an instance, as on 32 bits. JSON: 200 readings parsed, grouped and written; sieve: the primes below \
         100,000; SHA-256 of 64 KiB; sort of 100,000 numbers.",
        "cargo run --release -p edgefaas-benches --features interpreter --config profile.release.package.pulley-interpreter.codegen-units=1 \
         --bin interpreter -- --results",
    );
    let names = CODES.map(Code::name);
    let mut sizes = Table::new(
        "Code, and processor time to compile it",
        &names,
        &[
            ("compiling the JavaScript engine", "s"),
            ("its code", "MB"),
            ("its file", "MB"),
            ("compiling the Rust function", "ms"),
            ("its file", "MB"),
        ],
    );
    let mut contestants = Vec::new();
    for (row, code) in CODES.into_iter().enumerate() {
        // One each: an instance of one language would take over the memory that one of the other leaves in the pool.
        let engine = code.engine().with_context(|| code.name())?;
        let own_engine = code.engine()?;
        let wasm = engine_code_wasm()?;
        let used = seconds_of(ClockId::ProcessCPUTime);
        let compiled = Module::new(&engine, &wasm)?;
        let js_compile_s = seconds_of(ClockId::ProcessCPUTime) - used;
        drop(compiled);
        let js = BareJs::new(engine, COMPUTE_JS).await?;
        let used = seconds_of(ClockId::ProcessCPUTime);
        let rust = BareRust::new(own_engine, &component)?;
        let rust_compile_ms = (seconds_of(ClockId::ProcessCPUTime) - used) * 1e3;
        let contestant = Contestant { js, rust };
        let values = [
            js_compile_s,
            contestant.js.code().text().len() as f64 / 1e6,
            contestant.js.code().serialize()?.len() as f64 / 1e6,
            rust_compile_ms,
            contestant.rust.code().serialize()?.len() as f64 / 1e6,
        ];
        sizes.add(row, &values);
        contestants.push(contestant);
    }

    let figures = |works: [(&'static str, &[u8]); 3]| works.map(|(name, _)| (name, "us"));
    let mut js = Table::new("JavaScript, one invocation", &names, &figures(JS_WORKS));
    let mut rust = Table::new("Rust, one invocation", &names, &figures(RUST_WORKS));
    for work in JS_WORKS {
        let expected = contestants[0].js.run(work.1).await?;
        for contestant in &contestants {
            ensure!(contestant.js.run(work.1).await? == expected, "{} differs", work.0);
        }
    }
    for work in RUST_WORKS {
        let expected = contestants[0].rust.run(work.1).await?;
        for contestant in &contestants {
            ensure!(contestant.rust.run(work.1).await? == expected, "{} differs", work.0);
        }
    }
    let turn = Duration::from_millis(arguments.turn);
    for _ in 0..arguments.rounds {
        // The contestants of one work follow each other, so that all see the same machine.
        for (figure, (_, payload)) in JS_WORKS.into_iter().enumerate() {
            for (row, contestant) in contestants.iter().enumerate() {
                let us = mean_us(turn, async || contestant.js.run(payload).await.map(drop)).await?;
                js.rows[row].figures[figure].rounds.push(us);
            }
        }
        for (figure, (_, payload)) in RUST_WORKS.into_iter().enumerate() {
            for (row, contestant) in contestants.iter().enumerate() {
                let us = mean_us(turn, async || contestant.rust.run(payload).await.map(drop)).await?;
                rust.rows[row].figures[figure].rounds.push(us);
            }
        }
    }
    let mut memory =
        Table::new("Memory", &names, &[("JavaScript instance", "KB"), ("Rust instance", "KB")]);
    // Last, when the memory that compiling took is back at the system.
    for (row, contestant) in contestants.iter().enumerate() {
        let (js_kb, rust_kb) = memory_kb(contestant).await?;
        memory.add(row, &[js_kb, rust_kb]);
    }
    let ratios = |title: &str, of: &Table, works: [(&'static str, &[u8]); 3]| {
        let mut table = Table::new(title, &names[1..], &works.map(|(name, _)| (name, "x")));
        for row in 1..CODES.len() {
            table.add(row - 1, &[0, 1, 2].map(|figure| of.ratio(row, 0, figure)));
        }
        table
    };
    let js_ratios = ratios("JavaScript, times as long as native code", &js, JS_WORKS);
    let rust_ratios = ratios("Rust, times as long as native code", &rust, RUST_WORKS);
    report.tables = vec![js, js_ratios, rust, rust_ratios, sizes, memory];
    report.print();
    if arguments.results {
        report.save().map_err(boxed)?;
    }
    Ok(())
}

fn boxed(error: anyhow::Error) -> Error {
    Error::from_boxed(error.into())
}

/// The mean processor time of one call, in microseconds: others use the machine as well.
async fn mean_us(turn: Duration, call: impl AsyncFn() -> wasmtime::Result<()>) -> wasmtime::Result<f64> {
    let (begun, used) = (Instant::now(), seconds_of(ClockId::ThreadCPUTime));
    let mut calls = 0;
    while calls == 0 || begun.elapsed() < turn {
        call().await?;
        calls += 1;
    }
    Ok((seconds_of(ClockId::ThreadCPUTime) - used) * 1e6 / f64::from(calls))
}

fn seconds_of(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The private memory of an instance after one call, of JavaScript and of Rust, in KB.
async fn memory_kb(contestant: &Contestant) -> wasmtime::Result<(f64, f64)> {
    let own = || private_mb_of(std::process::id()).map_err(boxed);
    contestant.js.run(ECHO).await?;
    contestant.rust.run(ECHO).await?;
    let before = own()?;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let mut instance = contestant.js.start().await?;
        instance.call(ECHO).await?;
        instances.push(instance);
    }
    let js = own()? - before;
    drop(instances);
    let before = own()?;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        let mut instance = contestant.rust.start().await?;
        instance.call(ECHO).await?;
        instances.push(instance);
    }
    let rust = own()? - before;
    let kb = |mb: f64| mb * 1e3 / f64::from(INSTANCES);
    Ok((kb(js), kb(rust)))
}
