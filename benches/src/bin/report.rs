//! Makes `docs/benchmarks.md` of `benches/results/*.json`.
//!
//! Figures of criterion are taken from `target/criterion` into `benches/results` first, if they are there and `--collect`
//! is given. Why a target was missed is in `benches/findings.toml`, by the target's key.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use clap::Parser;
use edgefaas_benches::results::{Report, Row, Table, Target, number};
use edgefaas_benches::{repository, results_folder, target_folder};
use serde::Deserialize;

/// The order in which reports are shown.
const ORDER: [&str; 36] = [
    "broker",
    "broker-parts",
    "mqtt",
    "http",
    "serve",
    "idle",
    "dashboard",
    "density",
    "isolates",
    "interpreter",
    "kernels",
    "neighbours",
    "soak",
    "hostile",
    "photons",
    "workflows-chains",
    "workflows-burst",
    "workflows-rising",
    "workflows-node-red",
    "workflows-inside",
    "workflows-apart",
    "workflows-waiting",
    "workflows-durable",
    "workflows-restate",
    "objects-grpc",
    "objects-intervals",
    "objects-guest",
    "objects-allreduce",
    "objects-lag",
    "objects-recovery",
    "objects-simulation",
    "objects-documents",
    "placement",
    "remote-call",
    "fifty-nodes",
    "cluster-simulation",
];

const INTRODUCTION: &str = "\
# Benchmarks

Every figure stands beside its peer, measured in the same run: contestants take turns, round by round, and what is shown
is the median of the rounds (least to most). The machine is shared: absolute times vary from run to run, **only the
ratios count**. The node is the one that `cargo build --release` makes; the shipped profile (`dist`, with link-time
optimisation) is not measured here.

```console
cargo build --release --workspace --bins  # together, so that they share their dependencies
target/release/end-to-end                 # --quick for a first look
target/release/soak                       # ten minutes; the same
target/release/hostile                    # needs root (control groups, tmpfs); ten minutes
target/release/photons                    # needs Node.js; --quick for a first look
target/release/kernels --results          # needs Node.js; the same
target/release/workflows                  # needs redis-server; the same
target/release/objects --results          # needs redis-server; --full for clusters of 20 and 30 nodes too
target/release/placement --results        # needs root, redis-server, webdis, PostgreSQL and Node.js; an hour and a half, --quick for a first look
target/release/remote-call --results      # needs root; --quick for a first look
target/release/fifty-nodes --results      # needs root; the same; --base OLD for the idle cost of another version
(cd dashboard && npm run cost)            # needs Node.js and Chromium; what an open page costs the node
target/release/cluster-simulation --results  # --nodes 200 --seeds 1 for a first look
cargo run --release -p edgefaas-benches --features interpreter --config profile.release.package.pulley-interpreter.codegen-units=1 --bin interpreter -- --results
cargo bench --workspace --bench isolates && cargo bench -p edgefaas-broker
target/release/versus --base OLD --head NEW  # two binaries of the node on the hot path; prints only
target/release/report --collect           # makes this page of benches/results/*.json
```

mosquitto and Node.js have to be there. Other peers are installed into `target/` when they are first wanted: rumqttd and
`wasmtime serve` with cargo (the latter takes some minutes), nats-server with Go, workerd, Hono, Node-RED and Restate with npm. A peer that is
unavailable is left out.
";

#[derive(Debug, Parser)]
#[command(about = "Makes docs/benchmarks.md")]
struct Arguments {
    /// Take the figures of the last `cargo bench` first
    #[arg(long)]
    collect: bool,
}

fn main() -> anyhow::Result<()> {
    if Arguments::parse().collect {
        for (group, collect) in
            [("fresh", isolates as fn() -> anyhow::Result<Report>), ("trie_match", broker)]
        {
            if !target_folder().join("criterion").join(group).is_dir() {
                println!("{group} was not measured here: its report stays as it is");
                continue;
            }
            let report = collect()?;
            report.print();
            report.save()?;
        }
    }
    let mut reports = BTreeMap::new();
    for entry in fs::read_dir(results_folder())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let report = Report::load(&path)?;
            reports.insert(report.name.clone(), report);
        }
    }
    let shown: Vec<&Report> = ORDER.iter().filter_map(|name| reports.get(*name)).collect();
    ensure!(shown.len() == reports.len(), "ORDER does not name every one of {:?}", reports.keys());
    let findings = fs::read_to_string(repository().join("benches/findings.toml"))?;
    let findings: BTreeMap<String, String> = toml::from_str(&findings).context("benches/findings.toml")?;
    let page = repository().join("docs/benchmarks.md");
    fs::write(&page, markdown(&shown, &findings)).with_context(|| page.display().to_string())?;
    println!("{}", page.display());
    Ok(())
}

fn markdown(reports: &[&Report], findings: &BTreeMap<String, String>) -> String {
    let mut out = INTRODUCTION.to_owned();
    out.push_str("\n## Targets\n\n| | limit | reached | |\n|---|---|---|---|\n");
    for target in reports.iter().flat_map(|report| &report.targets) {
        let sign = if target.at_most { "≤" } else { "≥" };
        let word = if target.is_met() { "met" } else { "**missed**" };
        let (limit, reached) = (number(target.limit), number(target.reached));
        let _ = writeln!(out, "| {} | {sign} {limit} | {reached} | {word} |", target.text);
    }
    let mut missed: Vec<(&str, Vec<&str>)> = Vec::new();
    for target in reports.iter().flat_map(|report| &report.targets).filter(|target| !target.is_met()) {
        match missed.iter_mut().find(|(id, _)| *id == target.id) {
            Some((_, texts)) => texts.push(&target.text),
            None => missed.push((&target.id, vec![&target.text])),
        }
    }
    for (id, texts) in missed {
        let cause = findings.get(id).map_or("The cause is not known.", |cause| cause.trim());
        let _ = write!(out, "\n**Missed: {}.** {cause}\n", texts.join("; "));
    }
    for report in reports {
        let machine = &report.machine;
        let _ = write!(
            out,
            "\n## {}\n\n{}\n\n`{}`, {}: {}, {} cores, {} GiB, Linux {}; load average {:.1}.\n",
            report.title,
            report.what,
            report.command,
            report.date,
            machine.processor,
            machine.cores,
            machine.memory_gib,
            machine.kernel,
            report.load_average,
        );
        for table in &report.tables {
            let _ = write!(out, "\n{}", table.markdown());
        }
        for plot in &report.plots {
            let _ = write!(out, "\n![{}](plots/{})\n", plot.title, plot.file);
        }
        if let Some(finding) = findings.get(&report.name) {
            let _ = write!(out, "\n{}\n", finding.trim());
        }
    }
    out
}

/// Fresh invocations.
fn isolates() -> anyhow::Result<Report> {
    let mut report = Report::new(
        "isolates",
        "Isolates",
        "`Isolates::run` of an echo function with 64 B in an instance of its own, from the call to the dropped instance; \
         beside it the same component, and the same JavaScript engine on a picture of the same memory, on the same engine \
         settings with bare wasmtime calls. Then the same on one thread and on two, each with a runtime of its own.",
        "cargo bench -p edgefaas-benches --bench isolates",
    );
    let names = ["rust, bare wasmtime", "rust", "js, bare wasmtime", "js"];
    let mut fresh = Table::new("One invocation", &names, &[("time", "us")]);
    for (row, name) in names.iter().enumerate() {
        for ns in rounds("fresh", name)? {
            fresh.add(row, &[ns / 1e3]);
        }
    }
    let mut scaling = Table::new(
        "Invocations a second",
        &["rust", "js"],
        &[("1 thread", "1/s"), ("2 threads", "1/s"), ("gain", "x")],
    );
    for (row, name) in ["rust", "js"].iter().enumerate() {
        let one = rounds("threads", &format!("{name}, 1"))?;
        let two = rounds("threads", &format!("{name}, 2"))?;
        for (one, two) in one.iter().zip(&two) {
            scaling.add(row, &[1e9 / one, 1e9 / two, one / two]);
        }
    }
    for (row, language) in [(0, "Rust"), (1, "JavaScript")] {
        report.targets.push(Target::at_most(
            "isolates-control",
            &format!("{language}, fresh: at most 1.2 times bare wasmtime"),
            fresh.ratio(2 * row + 1, 2 * row, 0),
            1.2,
        ));
        report.targets.push(Target::at_least(
            "isolates-scaling",
            &format!("{language}, fresh: two cores do at least 1.8 times what one does"),
            scaling.rows[row].figures[2].median(),
            1.8,
        ));
    }
    report.tables = vec![fresh, scaling];
    Ok(report)
}

/// Trie match, codec and hooks.
fn broker() -> anyhow::Result<Report> {
    let mut report = Report::new(
        "broker-parts",
        "Parts of the broker",
        "One match among so many filters; one PUBLISH of QoS 1 encoded, and a hundred decoded, with a payload of so many \
         bytes; one message without a subscriber published in the process, with so many hooks that forward it or give it \
         another topic, another payload and one property more.",
        "cargo bench -p edgefaas-broker",
    );
    for (group, title) in
        [("trie_match", "Trie match"), ("codec", "Codec"), ("hooks", "Publish with hooks")]
    {
        let mut table = Table::new(title, &[], &[]);
        for (name, estimate) in all(&target_folder().join("criterion").join(group))? {
            let mut row = Table::new("", &[&name], &[("time", "ns")]);
            row.add(0, &[estimate]);
            table.rows.extend(row.rows);
        }
        table.rows.sort_by_key(|row: &Row| order(&row.contestant));
        report.tables.push(table);
    }
    let time = |table: usize, name: &str| {
        let row = report.tables[table].rows.iter().find(|row| row.contestant == name);
        row.map(|row| row.figures[0].median()).with_context(|| format!("{name} was not measured"))
    };
    let rewrite_us = (time(2, "rewrite 1")? - time(2, "none 0")?) / 1e3;
    // From 10 filters to 100,000 the logarithm grows by a factor of five.
    let growth = time(0, "exact 100000")? / time(0, "exact 10")?;
    report.targets = vec![
        Target::at_most("broker-hook", "a rewriting hook adds at most 1 us a message", rewrite_us, 1.0),
        Target::at_most(
            "broker-match",
            "a match among 100,000 filters over one among 10: at most the logarithms' quotient",
            growth,
            5.0,
        ),
    ];
    Ok(report)
}

/// Names sort by their words and then by their number.
fn order(name: &str) -> (String, u64) {
    let (words, number) = name.rsplit_once(' ').unwrap_or((name, ""));
    (words.to_owned(), number.parse().unwrap_or(0))
}

/// The medians of a benchmark's rounds, in nanoseconds.
fn rounds(group: &str, name: &str) -> anyhow::Result<Vec<f64>> {
    let folder = target_folder().join("criterion").join(group).join(name);
    let mut rounds = Vec::new();
    for round in 1.. {
        let path = folder.join(round.to_string());
        if !path.is_dir() {
            break;
        }
        rounds.push(estimate(&path)?);
    }
    ensure!(!rounds.is_empty(), "{} is not there; run `cargo bench` first", folder.display());
    Ok(rounds)
}

/// All benchmarks of a group: their names and medians in nanoseconds.
fn all(group: &Path) -> anyhow::Result<Vec<(String, f64)>> {
    let mut found = Vec::new();
    let folders = |path: &Path| -> anyhow::Result<Vec<std::path::PathBuf>> {
        let entries = fs::read_dir(path)
            .with_context(|| format!("{} is not there; run `cargo bench` first", path.display()))?;
        Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect())
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for function in folders(group)?.iter().filter(|path| name(path) != "report") {
        for parameter in folders(function)?.iter().filter(|path| name(path) != "report") {
            found.push((format!("{} {}", name(function), name(parameter)), estimate(parameter)?));
        }
    }
    Ok(found)
}

#[derive(Deserialize)]
struct Estimates {
    median: Estimate,
}

#[derive(Deserialize)]
struct Estimate {
    point_estimate: f64,
}

fn estimate(benchmark: &Path) -> anyhow::Result<f64> {
    let path = benchmark.join("new/estimates.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let estimates: Estimates = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    Ok(estimates.median.point_estimate)
}
