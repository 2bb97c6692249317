//! A node with little memory and a small disk under attack, with healthy clients beside it.

mod app;
mod attacks;
mod disk;
mod group;
mod healthy;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use attacks::{Attack, Tally};
use clap::Parser;
use edgefaas_benches::node::{Node, build_binary, token};
use edgefaas_benches::results::{Report, Table, Target as Aim};
use edgefaas_benches::samples::quantile;
use group::Group;
use healthy::{Ledger, Target};

/// p99 of healthy clients under any attack, in milliseconds.
const HEALTHY_P99_MS: f64 = 20.0;
/// Memory after all attacks beside that before them. Pages of files, such as the node's own code, are the kernel's to take back.
const MEMORY_RATIO: f64 = 1.2;
/// How long healthy clients use the node before its memory is measured.
const WARM_UP: Duration = Duration::from_secs(10);
/// How long the node may take to come to rest: it works off what it has accepted.
const PATIENCE: Duration = Duration::from_secs(900);
/// How long it may take to give memory back; instances of functions wait for their next call for 300 s.
const MEMORY_PATIENCE: Duration = Duration::from_secs(360);

#[derive(Debug, Parser)]
#[command(about = "Attacks a node in a control group and measures its healthy clients")]
struct Arguments {
    /// How long all attacks last together, in seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The node's memory, in MiB
    #[arg(long, default_value_t = 256)]
    memory_mib: u64,
    /// The file system of its data directory, in MiB
    #[arg(long, default_value_t = 128)]
    disk_mib: u64,
    /// Prints only and keeps no results
    #[arg(long)]
    quick: bool,
    /// Only attacks whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Attack this binary instead of the one that is built here
    #[arg(long)]
    binary: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let binary = arguments.binary.clone().map_or_else(build_binary, Ok)?;
    let report = run(&arguments, &binary)?;
    report.print();
    if !arguments.quick && arguments.only.is_none() {
        report.save()?;
    }
    Ok(())
}

fn run(arguments: &Arguments, binary: &std::path::Path) -> anyhow::Result<Report> {
    let attacks: Vec<Attack> = Attack::ALL
        .into_iter()
        .filter(|attack| arguments.only.as_ref().is_none_or(|only| attack.name().contains(only.as_str())))
        .collect();
    let turn = Duration::from_secs(arguments.seconds) / attacks.len().max(1) as u32;
    let mut report = Report::new(
        "hostile",
        "A node under attack",
        &format!(
            "A node in a control group of {} MiB with its data on a file system of {} MiB. Each attack has its turn, while healthy \
             clients do one request at a time: an MQTT message to itself, a call of a small function over HTTP, an addition over \
             gRPC, and a numbered message of QoS 1 to a session that is away. Refused are answers 429 and 503 and closed \
             connections; the peak is that of the group, page cache included.",
            arguments.memory_mib, arguments.disk_mib
        ),
        "target/release/hostile",
    );
    let group = Group::new(arguments.memory_mib << 20)?;
    let disk = disk::Disk::mount(arguments.disk_mib)?;
    let node = Node::start_in(binary, disk.path(), &group.procs())?;
    let folder = tempfile::tempdir()?;
    app::write(folder.path())?;
    node.deploy_app(binary, disk.path(), folder.path())?;
    let target =
        Target { http: node.http, mqtt: node.mqtt, control: node.control, token: token(disk.path())? };
    let mut ledger = Ledger::open(&target)?;
    let names: Vec<&str> = attacks.iter().map(|attack| attack.name()).collect();
    let figures = [
        ("MQTT p50", "ms"),
        ("MQTT p99", "ms"),
        ("HTTP p50", "ms"),
        ("HTTP p99", "ms"),
        ("gRPC p50", "ms"),
        ("gRPC p99", "ms"),
        ("healthy failures", ""),
        ("attacks answered", "1/s"),
        ("refused", "1/s"),
        ("peak", "MB"),
    ];
    let mut table = Table::new("One attack at a time", &names, &figures);
    // An idle node is one that has been used: its caches are warm.
    healthy::run(&target, WARM_UP, &mut ledger)?;
    ledger.receive(&target)?;
    node.process.wait_for_rest(PATIENCE)?;
    let before_mb = node.process.resident_mb()?.1;
    let mut worst = 0.0_f64;
    for (row, attack) in attacks.iter().enumerate() {
        group.reset_peak();
        let (stop, tally) = (AtomicBool::new(false), Tally::default());
        let times = std::thread::scope(|threads| {
            let attacker = threads.spawn(|| attack.run(&target, &stop, &tally));
            let times = healthy::run(&target, turn, &mut ledger);
            stop.store(true, Ordering::Relaxed);
            attacker.join().ok().context("an attacker panicked")??;
            times
        })
        .with_context(|| format!("under attack: {}", attack.name()))?;
        let both = |times: &[f64]| [quantile(times, 0.5), quantile(times, 0.99)];
        let [mqtt, http, grpc] = [&times.mqtt, &times.http, &times.grpc].map(|times| both(times));
        worst = [mqtt[1], http[1], grpc[1]].into_iter().fold(worst, f64::max);
        let (answered, refused) = tally.figures();
        let rate = |count: u64| count as f64 / turn.as_secs_f64();
        let own = [times.failed as f64, rate(answered), rate(refused), group.peak_mb()?];
        let row_figures = [&mqtt[..], &http, &grpc, &own].concat();
        eprintln!("{}: {row_figures:.1?}", attack.name());
        table.add(row, &row_figures);
        ledger.receive(&target)?;
        if let Err(error) = node.process.wait_for_rest(PATIENCE) {
            // What was measured by then says why, perhaps.
            report.tables = vec![table];
            report.print();
            return Err(error.context(format!("after {}", attack.name())));
        }
        eprintln!("{}: anonymous memory at rest {:.0} MB", attack.name(), node.process.resident_mb()?.1);
    }
    let since = Instant::now();
    let mut after_mb = node.process.resident_mb()?.1;
    while after_mb > before_mb * MEMORY_RATIO && since.elapsed() < MEMORY_PATIENCE && !arguments.quick {
        std::thread::sleep(Duration::from_secs(1));
        after_mb = node.process.resident_mb()?.1;
    }
    let returned_s = since.elapsed().as_secs();
    let (acknowledged, lost) = ledger.lost(&target)?;
    report.targets = vec![
        Aim::at_most("hostile-latency", "healthy p99 under any attack: 20 ms", worst, HEALTHY_P99_MS),
        Aim::at_most(
            "hostile-memory",
            &format!(
                "anonymous memory {returned_s} s after the attacks beside {before_mb:.0} MB before: 1.2"
            ),
            after_mb / before_mb,
            MEMORY_RATIO,
        ),
        Aim::at_most("hostile-loss", &format!("lost of {acknowledged} acknowledged: 0"), lost as f64, 0.0),
    ];
    report.tables = vec![table];
    node.process.terminate()?;
    Ok(report)
}
