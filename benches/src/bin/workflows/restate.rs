//! Durable chains over HTTP beside Restate.

use std::net::SocketAddr;
use std::time::Duration;

use edgefaas_benches::node::Node;
use edgefaas_benches::peers::Restate;
use edgefaas_benches::peers::restate::{PATH, SDK_VERSION, VERSION};
use edgefaas_benches::process::{cpu_seconds_of, resident_mb_of};
use edgefaas_benches::results::{Report, Table, Target};
use tempfile::TempDir;

use crate::Plan;
use crate::node_red::{Durability, app};
use crate::over_http::{closed_loop, open_loop};

const CONTESTANTS: [&str; 3] = ["node, fresh", "node, reuse", "Restate"];
const RESTATE: usize = 2;
/// Connections of the closed loops, and of the open ones.
const CLOSED: [usize; 2] = [1, 32];
const OPEN: usize = 64;
/// Chains that are called in a second.
const RATES: [f64; 3] = [50.0, 200.0, 800.0];
/// How long a contestant is left alone before its memory is looked at: what is set for a loaded node.
const REST: Duration = Duration::from_secs(10);

/// What keeps a contestant running.
enum Program {
    Node { node: Node, _data: TempDir },
    Restate(Restate),
}

impl Program {
    fn start(plan: &Plan, row: usize) -> anyhow::Result<Self> {
        if row == RESTATE {
            return Ok(Self::Restate(Restate::start()?));
        }
        let data = tempfile::tempdir()?;
        let node = Node::start(&plan.binary, data.path())?;
        let isolation = if row == 0 { "fresh" } else { "reuse" };
        node.deploy_app(&plan.binary, data.path(), app(isolation, Durability::Durable)?.path())?;
        Ok(Self::Node { node, _data: data })
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Node { node, .. } => node.http,
            Self::Restate(restate) => restate.ingress,
        }
    }

    fn path(&self) -> &'static str {
        match self {
            Self::Node { .. } => "/workflows/chain",
            Self::Restate(_) => PATH,
        }
    }

    fn processes(&self) -> Vec<u32> {
        match self {
            Self::Node { node, .. } => vec![node.process.id()],
            Self::Restate(restate) => restate.processes().to_vec(),
        }
    }

    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        self.processes().into_iter().map(cpu_seconds_of).sum()
    }

    fn resident_mb(&self) -> anyhow::Result<f64> {
        self.processes().into_iter().map(|process| Ok(resident_mb_of(process)?.0)).sum()
    }
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-restate",
        "Durable chains beside Restate",
        &format!(
            "A durable chain of three JavaScript steps, each of which adds one to a member, is called over HTTP and answers with the result. \
             In the node it is a workflow with `durable: true`; in Restate {VERSION} (defaults) a handler of a service in Node.js (SDK \
             {SDK_VERSION}) that calls `context.run` three times. With both the outcome of a step is synced to the disk (`fdatasync`) before \
             the next begins. First closed loops, then open loops on {OPEN} connections, where time is from when a request was due. Processor \
             time and memory are those of all processes, memory {} s after the last load.",
            REST.as_secs(),
        ),
        &crate::command("restate"),
    );
    let figures = [("p50", "us"), ("p99", "us"), ("rate", "1/s"), ("processor", "us")];
    let mut closed = CLOSED
        .map(|count| Table::new(&format!("Closed loop, {count} connection(s)"), &CONTESTANTS, &figures));
    let figures = [("p50", "us"), ("p99", "us"), ("processor", "us"), ("answered", "%")];
    let mut open = RATES.map(|rate| Table::new(&format!("{rate} a second"), &CONTESTANTS, &figures));
    let mut memory = Table::new("Memory", &CONTESTANTS, &[("before", "MB"), ("after", "MB")]);
    for _ in 0..plan.rounds {
        for row in 0..CONTESTANTS.len() {
            let program = Program::start(plan, row)?;
            let (address, path, before) = (program.address(), program.path(), program.resident_mb()?);
            // Not counted: V8 compiles in the first seconds.
            closed_loop(address, path, CLOSED[1], plan.turn / 2)?;
            for (connections, table) in CLOSED.into_iter().zip(&mut closed) {
                let cpu = program.cpu_seconds()?;
                let mut load = closed_loop(address, path, connections, plan.turn)?;
                let cpu_us = (program.cpu_seconds()? - cpu) * 1e6 / load.samples.completed() as f64;
                let (p50, p99) = (load.samples.quantile_us(0.5), load.samples.quantile_us(0.99));
                table.add(row, &[p50, p99, load.per_second, cpu_us]);
            }
            for (rate, table) in RATES.into_iter().zip(&mut open) {
                let cpu = program.cpu_seconds()?;
                let mut paced = open_loop(address, path, OPEN, rate, plan.turn)?;
                let cpu_us = (program.cpu_seconds()? - cpu) * 1e6 / paced.samples.completed() as f64;
                let (p50, p99) = (paced.samples.quantile_us(0.5), paced.samples.quantile_us(0.99));
                table.add(row, &[p50, p99, cpu_us, paced.answered]);
            }
            std::thread::sleep(REST);
            memory.add(row, &[before, program.resident_mb()?]);
        }
    }
    let id = "workflows-restate";
    for (row, who) in CONTESTANTS.iter().enumerate().take(RESTATE) {
        report.targets.extend([
            Target::at_most(
                id,
                &format!("durable chain of three, {who}: p99 at {} a second, times Restate's", RATES[1]),
                open[1].ratio(row, RESTATE, 1),
                0.5,
            ),
            Target::at_least(
                id,
                &format!(
                    "durable chain of three, {who}: rate on {} connections, times Restate's",
                    CLOSED[1]
                ),
                closed[1].ratio(row, RESTATE, 2),
                2.0,
            ),
        ]);
    }
    report.tables.extend(closed);
    report.tables.extend(open);
    report.tables.push(memory);
    Ok(report)
}
