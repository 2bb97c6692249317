//! Many replicas in one process, in virtual time: what they send, how long they take to agree and how much memory they need,
//! against the object's size and how often it changes. Each run is a process of its own, so that its memory is its own too.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use edgefaas_benches::process::resident_mb_of;
use edgefaas_benches::replica::Objects;
use edgefaas_benches::results::{Report, Table};
use edgefaas_cluster::replication::{Interest, NodeId, ObjectKey, Policy, Settings};
use edgefaas_cluster::simulation::{Network, Random, Simulation};
use serde::{Deserialize, Serialize};

use crate::Plan;

/// How large the object is, and how many changes a second there are in all.
const SCENARIOS: [(&str, Kind, usize, u64); 5] = [
    ("counter, 10 changes/s", Kind::Counter, 0, 10),
    ("counter, 100 changes/s", Kind::Counter, 0, 100),
    ("counter, 1,000 changes/s", Kind::Counter, 0, 1000),
    ("set of 100 elements, 10 changes/s", Kind::Set, 100, 10),
    ("set of 1,000 elements, 10 changes/s", Kind::Set, 1000, 10),
];
const FIGURES: [(&str, &str); 8] = [
    ("sent by a node", "kB"),
    ("by the one that sent most", "kB"),
    ("for a change to a peer", "B"),
    ("equal after", "ms"),
    ("equal after a partition", "ms"),
    ("memory of a replica", "kB"),
    ("of it before changes", "kB"),
    ("real time", "s"),
];
/// Replicas that change the object, at most.
const WRITERS: usize = 10;
const INTERVAL: Duration = Duration::from_millis(200);
/// Until all are connected and have compared what they have.
const SETTLE: Duration = Duration::from_secs(5);
/// How long the network is split.
const SPLIT: Duration = Duration::from_secs(5);
/// Nodes compare what they have every 10 to 30 s at the latest; what takes longer than that is not repaired.
const PATIENCE: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(5);

/// One simulation.
#[derive(Debug, Clone, Args)]
pub struct Scenario {
    /// How many there are
    #[arg(long)]
    replicas: usize,
    /// The type of the field that changes
    #[arg(long)]
    kind: Kind,
    /// Elements that a set has before
    #[arg(long)]
    elements: usize,
    /// In a second, in all
    #[arg(long)]
    changes: u64,
    /// Virtual time in which they come
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Counter,
    Set,
}

/// What came of a simulation.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    /// For changes before the partition, by a node.
    sent_bytes: f64,
    sent_bytes_most: f64,
    of_a_delta_bytes: f64,
    equal_after_ms: f64,
    equal_after_partition_ms: f64,
    replica_bytes: f64,
    replica_bytes_before: f64,
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let seconds = plan.simulated.as_secs();
    let mut report = Report::new(
        "objects-simulation",
        "Simulated clusters",
        &format!(
            "The node's replication machine and its data types in one process with virtual time (1 to 5 ms of latency, 10 MB/s \
             from each to each, interval {} ms); all replicas use one object, up to {WRITERS} of them change it for {seconds} s. Bytes \
             are those of these changes, heartbeats and comparisons in that time among them; \"for a change to a peer\" is \
             the bytes of all by the deltas sent. \"Equal after\" is virtual time from the last change to the moment that all digests \
             agree. Then the network is split into halves for {} s with changes on both sides: time from the end of that. Memory is \
             the process's, by replica: each knows all others. Seed {}.",
            INTERVAL.as_millis(),
            SPLIT.as_secs(),
            plan.seed
        ),
        &format!("{} --seed {}", crate::command("simulation"), plan.seed),
    );
    for replicas in &plan.replicas {
        let names = SCENARIOS.map(|(name, ..)| name);
        let mut table = Table::new(&format!("{replicas} replicas"), &names, &FIGURES);
        for (row, (name, kind, elements, changes)) in SCENARIOS.into_iter().enumerate() {
            // A thousand replicas take minutes for each of the others.
            if plan.quick && *replicas > 100 && row > 0 {
                continue;
            }
            let scenario =
                Scenario { replicas: *replicas, kind, elements, changes, seconds, seed: plan.seed };
            let begun = Instant::now();
            let outcome = start(&scenario)?;
            println!("{replicas} replicas, {name}: {:?}", begun.elapsed());
            table.add(
                row,
                &[
                    outcome.sent_bytes / 1e3,
                    outcome.sent_bytes_most / 1e3,
                    outcome.of_a_delta_bytes,
                    outcome.equal_after_ms,
                    outcome.equal_after_partition_ms,
                    outcome.replica_bytes / 1e3,
                    outcome.replica_bytes_before / 1e3,
                    begun.elapsed().as_secs_f64(),
                ],
            );
        }
        report.tables.push(table);
    }
    Ok(report)
}

/// Runs a simulation in a process of its own.
fn start(scenario: &Scenario) -> anyhow::Result<Outcome> {
    let kind = scenario.kind.to_possible_value().context("every kind has a name")?;
    let output = Command::new(std::env::current_exe()?)
        .arg("simulate")
        .args(["--kind", kind.get_name()])
        .args(["--replicas", &scenario.replicas.to_string()])
        .args(["--elements", &scenario.elements.to_string()])
        .args(["--changes", &scenario.changes.to_string()])
        .args(["--seconds", &scenario.seconds.to_string()])
        .args(["--seed", &scenario.seed.to_string()])
        .output()?;
    ensure!(output.status.success(), "{scenario:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs a simulation in this process and prints what came of it.
pub fn run_one(scenario: &Scenario) -> anyhow::Result<()> {
    let outcome = simulate(scenario)?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

struct Run {
    simulation: Simulation<Objects>,
    random: Random,
    object: ObjectKey,
    replicas: usize,
    kind: Kind,
}

fn simulate(scenario: &Scenario) -> anyhow::Result<Outcome> {
    let replicas = scenario.replicas.max(2);
    let object = ObjectKey::new("bench", "object");
    let network = Network::default();
    let mut simulation = Simulation::new(scenario.seed, network, Settings::default());
    let own_bytes = resident_bytes()?;
    for number in 0..replicas {
        let mut objects = Objects::new(number as u64 + 1);
        // A set that everybody has already.
        if scenario.kind == Kind::Set {
            objects.fill(&object, scenario.elements);
        }
        let interest = Interest { app: "bench".into(), pattern: "*".into() };
        simulation.start(NodeId(number as u64 + 1), objects, vec![interest]);
    }
    simulation.run_for(SETTLE);
    let replica_bytes_before = (resident_bytes()? - own_bytes) / replicas as f64;
    let random = Random::new(scenario.seed ^ 1);
    let mut run = Run { simulation, random, object, replicas, kind: scenario.kind };
    let before = run.sent();
    run.change_for(scenario.changes, Duration::from_secs(scenario.seconds));
    let equal_after_ms = run.until_equal()?;
    let after = run.sent();
    let sent: Vec<f64> =
        after.iter().zip(&before).map(|((after, _), (before, _))| (after - before) as f64).collect();
    let deltas: u64 = after.iter().zip(&before).map(|((_, after), (_, before))| after - before).sum();
    let sum: f64 = sent.iter().sum();
    run.simulation.partition(|node| (node.0 % 2) as u32);
    run.change_for(scenario.changes, SPLIT);
    run.simulation.heal();
    let equal_after_partition_ms = run.until_equal()?;
    Ok(Outcome {
        sent_bytes: sum / replicas as f64,
        sent_bytes_most: sent.iter().copied().fold(0.0, f64::max),
        of_a_delta_bytes: sum / deltas.max(1) as f64,
        equal_after_ms,
        equal_after_partition_ms,
        replica_bytes: (resident_bytes()? - own_bytes) / replicas as f64,
        replica_bytes_before,
    })
}

impl Run {
    /// Changes come at random times, at so many a second.
    fn change_for(&mut self, per_second: u64, length: Duration) {
        let end = self.simulation.now() + length;
        let writers = self.replicas.min(WRITERS) as u64;
        let mut at = self.simulation.now();
        loop {
            // Twice the mean at most.
            at += Duration::from_micros(self.random.below(2_000_000 / per_second.max(1)) + 1);
            if at >= end {
                self.simulation.run_until(end);
                return;
            }
            self.simulation.run_until(at);
            // Spread over all replicas.
            let writer = 1 + self.random.below(writers) * self.replicas as u64 / writers;
            let policy = Policy { interval: INTERVAL, copies: 1 };
            let (object, kind, element) = (self.object.clone(), self.kind, self.random.next());
            self.simulation.change(NodeId(writer), &object, policy, |objects| match kind {
                Kind::Counter => objects.add(&object, 1),
                Kind::Set => objects.insert(&object, element),
            });
        }
    }

    /// Milliseconds until all digests agree.
    fn until_equal(&mut self) -> anyhow::Result<f64> {
        let begun = self.simulation.now();
        let equal = self.simulation.run_until_done(begun + PATIENCE, STEP, |now| now.equal(|_, _| true));
        ensure!(equal, "{} replicas are not equal {PATIENCE:?} after the last change", self.replicas);
        Ok((self.simulation.now() - begun).as_secs_f64() * 1e3)
    }

    /// Bytes and deltas of each node.
    fn sent(&self) -> Vec<(u64, u64)> {
        let nodes = self.simulation.nodes().filter_map(|node| self.simulation.counters(node));
        nodes.map(|counters| (counters.bytes_sent, counters.deltas_sent)).collect()
    }
}

fn resident_bytes() -> anyhow::Result<f64> {
    Ok(resident_mb_of(std::process::id())?.0 * 1e6)
}
