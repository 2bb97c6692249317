//! Three trivial functions between two messages, beside the same flow in Node-RED.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use edgefaas_benches::node::Node;
use edgefaas_benches::peers::node_red::{function, mqtt_in, mqtt_out};
use edgefaas_benches::peers::{Mosquitto, NODE_RED_VERSION, NodeRed, Persistence};
use edgefaas_benches::process::{cpu_seconds_of, resident_mb_of};
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_benches::samples::median;
use serde_json::Value;
use tempfile::TempDir;

use crate::Plan;
use crate::apps::App;
use crate::load::{Answers, Mqtt, Pace, load};

const CONTESTANTS: [&str; 3] = ["node, fresh", "node, reuse", "Node-RED and mosquitto"];
const REUSE: usize = 1;
const NODE_RED: usize = 2;
const STEPS: usize = 3;
/// Requests that have no answer yet, in the closed loop.
const OUTSTANDING: u64 = 256;
/// Rates of the open loops, in requests a second.
const RATES: [f64; 3] = [1_000.0, 8_000.0, 16_000.0];
/// How long a node is left alone before its memory is looked at: what is set for a loaded one.
const REST: Duration = Duration::from_secs(10);

/// Figures of the closed loop.
const CLOSED_FIGURES: [(&str, &str); 4] =
    [("rate", "1/s"), ("p50", "us"), ("p99", "us"), ("processor", "us")];
const PROCESSOR: usize = 3;

/// The function of every step, as a module and as the body of a function node.
const MODULE: &str = "export default function step(event) {\n  const data = event.json();\n  data.x = (data.x ?? 0) + 1;\n  return data;\n}\n";
const BODY: &str = "msg.payload.x = (msg.payload.x ?? 0) + 1;\nreturn msg;";
/// That of the last one, which says where the answer goes.
const LAST_BODY: &str = "msg.payload.x = (msg.payload.x ?? 0) + 1;\nmsg.topic = 'chain/result/' + msg.topic.split('/').pop();\nreturn \
     msg;";

/// One that takes part.
struct Contestant {
    address: SocketAddr,
    root: &'static str,
    processes: Vec<u32>,
    _node: Option<(Node, TempDir)>,
    _node_red: Option<(NodeRed, Mosquitto)>,
}

impl Contestant {
    fn start(plan: &Plan, row: usize) -> anyhow::Result<Self> {
        match row {
            0 => Self::node(plan, "fresh"),
            1 => Self::node(plan, "reuse"),
            _ => Self::node_red(),
        }
    }

    fn node(plan: &Plan, isolation: &str) -> anyhow::Result<Self> {
        let data = tempfile::tempdir()?;
        let node = Node::start(&plan.binary, data.path())?;
        node.deploy_app(&plan.binary, data.path(), app(isolation, Durability::InMemory)?.path())?;
        let (address, processes) = (node.mqtt, vec![node.process.id()]);
        Ok(Self { address, root: "$faas/wf/chain", processes, _node: Some((node, data)), _node_red: None })
    }

    fn node_red() -> anyhow::Result<Self> {
        let mosquitto = Mosquitto::start(Persistence::None)?;
        let node_red = NodeRed::start(mosquitto.address, flow())?;
        let (address, processes) = (mosquitto.address, vec![node_red.process.id(), mosquitto.id()]);
        Ok(Self { address, root: "chain", processes, _node: None, _node_red: Some((node_red, mosquitto)) })
    }

    fn load(&self, who: &str, pace: Pace) -> anyhow::Result<(Answers, f64)> {
        self.load_at(self.root, who, pace)
    }

    fn load_at(&self, root: &str, who: &str, pace: Pace) -> anyhow::Result<(Answers, f64)> {
        let before = self.cpu_seconds()?;
        let answers = load(&Mqtt::asking(self.address, root, true), pace)?;
        let cpu_us = (self.cpu_seconds()? - before) * 1e6 / answers.answered.max(1) as f64;
        answers.warn(who);
        Ok((answers, cpu_us))
    }

    /// Processor time so far, in seconds.
    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        self.processes.iter().map(|process| cpu_seconds_of(*process)).sum()
    }

    /// Resident memory, in MB.
    fn resident_mb(&self) -> anyhow::Result<f64> {
        self.processes.iter().map(|process| Ok(resident_mb_of(*process)?.0)).sum()
    }
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-node-red",
        "A flow of three functions beside Node-RED",
        &format!(
            "A message (QoS 0) goes through {STEPS} JavaScript functions, each of which adds one to a member, and comes back as a \
             message. In the node that is a workflow (`$faas/wf/chain/invoke/ID`), with the default settings; the peer is Node-RED \
             {NODE_RED_VERSION} with an `mqtt in`, {STEPS} function nodes and an `mqtt out`, beside {}. First a closed loop with \
             {OUTSTANDING} requests that wait for their answers, of the flow and of its function alone, after one that is not counted; \
             then open loops. Processor time is that of all processes of a contestant, and so is memory: that {} s after the last load. \
             What is refused counts as not answered.",
            Mosquitto::version().unwrap_or_default(),
            REST.as_secs(),
        ),
        &crate::command("node-red"),
    );
    let mut closed = Table::new("Closed loop", &CONTESTANTS, &CLOSED_FIGURES);
    let mut alone = functions_alone();
    let figures = [("p50", "us"), ("p99", "us"), ("processor", "us"), ("answered", "%")];
    let mut open = RATES.map(|rate| Table::new(&format!("{rate} a second"), &CONTESTANTS, &figures));
    let mut memory = Table::new("Memory", &CONTESTANTS, &[("before", "MB"), ("after", "MB")]);
    for _ in 0..plan.rounds {
        for (row, who) in CONTESTANTS.iter().enumerate() {
            let contestant = Contestant::start(plan, row)?;
            let before = contestant.resident_mb()?;
            // Not counted: V8 compiles in the first seconds.
            contestant.load(who, Pace::Outstanding(OUTSTANDING, plan.turn / 2))?;
            closed_loop(plan, &contestant, who, row, &mut closed, &mut alone)?;
            for (rate, table) in RATES.into_iter().zip(&mut open) {
                let (mut answers, cpu) = contestant.load(who, Pace::Rate(rate, plan.turn))?;
                let (p50, p99) = (answers.latency.quantile_us(0.5), answers.latency.quantile_us(0.99));
                table.add(row, &[p50, p99, cpu, answers.share() * 100.0]);
            }
            std::thread::sleep(REST);
            memory.add(row, &[before, contestant.resident_mb()?]);
        }
    }
    targets(&mut report, &closed, &open, &memory);
    report.targets.extend([0, 1].map(|row| beside_functions(&closed, &alone, row)));
    report.tables.extend([closed, alone]);
    report.tables.extend(open);
    report.tables.push(memory);
    Ok(report)
}

/// The function of the flow, called without a workflow.
fn functions_alone() -> Table {
    Table::new("Closed loop, one function alone", &CONTESTANTS[..NODE_RED], &CLOSED_FIGURES)
}

/// One turn of a contestant, and of its function alone.
fn closed_loop(
    plan: &Plan,
    contestant: &Contestant,
    who: &str,
    row: usize,
    flow: &mut Table,
    alone: &mut Table,
) -> anyhow::Result<()> {
    let take = |root: &str, table: &mut Table| -> anyhow::Result<()> {
        let (mut answers, cpu) =
            contestant.load_at(root, who, Pace::Outstanding(OUTSTANDING, plan.turn))?;
        let rate = answers.answered as f64 / answers.elapsed.as_secs_f64();
        let latency = &mut answers.latency;
        table.add(row, &[rate, latency.quantile_us(0.5), latency.quantile_us(0.99), cpu]);
        Ok(())
    };
    take(contestant.root, flow)?;
    if row < NODE_RED { take("$faas/fn/step", alone) } else { Ok(()) }
}

fn targets(report: &mut Report, closed: &Table, open: &[Table; 3], memory: &Table) {
    let id = "workflows-flow";
    let middle = |table: &Table, row: usize, figure: usize| table.rows[row].figures[figure].median();
    for (row, rate, cpu_us) in [(0, 1.5, 55.0), (1, 2.5, 30.0)] {
        let who = CONTESTANTS[row];
        report.targets.extend([
            Target::at_least(
                id,
                &format!("flow of three, {who}: rate of a closed loop, times Node-RED's"),
                closed.ratio(row, NODE_RED, 0),
                rate,
            ),
            processor_ratio(closed, row),
            Target::at_most(
                id,
                &format!("flow of three, {who}: processor time of a chain, us"),
                middle(closed, row, PROCESSOR),
                cpu_us,
            ),
            Target::at_most(
                id,
                &format!("flow of three, {who}: p50 at 1,000 a second, times Node-RED's"),
                open[0].ratio(row, NODE_RED, 0),
                1.0,
            ),
            Target::at_most(
                id,
                &format!("flow of three, {who}: p99 at 8,000 a second, us"),
                middle(&open[1], row, 1),
                5_000.0,
            ),
            Target::at_most(
                id,
                &format!("flow of three, {who}: memory after 16,000 a second, MB"),
                middle(memory, row, 1),
                60.0,
            ),
        ]);
    }
}

/// Processor time of a chain beside that of the peer: what other work on the machine changes least.
fn processor_ratio(closed: &Table, row: usize) -> Target {
    let text = format!(
        "flow of three, {}: processor time of a chain, times Node-RED's and mosquitto's",
        CONTESTANTS[row]
    );
    Target::at_most("workflows-flow", &text, closed.ratio(row, NODE_RED, PROCESSOR), 1.0)
}

/// Processor time of a chain beside that of its functions: what they share, other work on the machine changes alike.
fn beside_functions(closed: &Table, alone: &Table, row: usize) -> Target {
    let who = CONTESTANTS[row];
    let text = format!(
        "flow of three, {who}: processor time of a chain, times that of three calls of its function alone"
    );
    let rounds = |table: &Table| table.rows[row].figures[PROCESSOR].rounds.clone();
    let ratio = |(chain, function): (f64, f64)| chain / (STEPS as f64 * function);
    let ratios: Vec<f64> = rounds(closed).into_iter().zip(rounds(alone)).map(ratio).collect();
    Target::at_most("workflows-flow", &text, median(&ratios), 1.0)
}

/// A short form for the gate: the closed loop's processor time beside the peer's, and beside the functions alone. Fresh isolates are not
/// held against the peer: while others use the machine they take up to twice the processor time, and the peer does not.
pub fn short(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-node-red",
        "A flow of three functions beside Node-RED, for the gate",
        "The closed loops of the long form, in short turns; the first round is not counted.",
        &crate::command("node-red --gate"),
    );
    let mut closed = Table::new("Closed loop", &CONTESTANTS, &CLOSED_FIGURES);
    let mut alone = functions_alone();
    // V8 compiles in the first round, which takes several times the processor time of later ones.
    let mut first = (closed.clone(), alone.clone());
    let contestants: Vec<Contestant> =
        (0..CONTESTANTS.len()).map(|row| Contestant::start(plan, row)).collect::<anyhow::Result<_>>()?;
    for round in 0..=plan.rounds {
        let (flow, function) =
            if round == 0 { (&mut first.0, &mut first.1) } else { (&mut closed, &mut alone) };
        for (row, who) in CONTESTANTS.iter().enumerate() {
            closed_loop(plan, &contestants[row], who, row, flow, function)?;
        }
    }
    report.targets.extend([0, 1].map(|row| beside_functions(&closed, &alone, row)));
    report.targets.push(processor_ratio(&closed, REUSE));
    report.tables.extend([closed, alone]);
    Ok(report)
}

/// The nodes of Node-RED's flow.
fn flow() -> Vec<Value> {
    vec![
        mqtt_in("in", "chain/invoke/+", &["step-1"]),
        function("step-1", BODY, &["step-2"]),
        function("step-2", BODY, &["step-3"]),
        function("step-3", LAST_BODY, &["out"]),
        mqtt_out("out", ""),
    ]
}

/// Whether a workflow outlives its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    InMemory,
    Durable,
}

/// A workflow of three functions.
pub fn app(isolation: &str, durability: Durability) -> anyhow::Result<App> {
    let manifest = format!(
        "app = \"flow\"\nworkflows = [\"workflows/*.yaml\"]\n\n[functions.step]\nmain = \"step.js\"\nisolation = \"{isolation}\"\n"
    );
    let mut workflow = format!(
        "document: {{ dsl: '1.0.3', namespace: bench, name: chain, version: '1.0.0', metadata: {{ durable: {} }} }}\ndo:\n",
        durability == Durability::Durable
    );
    for step in 1..=STEPS {
        let _ = writeln!(workflow, "  - step{step}: {{ call: step }}");
    }
    App::new(&[("edgefaas.toml", &manifest), ("step.js", MODULE), ("workflows/chain.yaml", &workflow)])
}
