//! Events that are mapped, counted by fives and reduced: inside of the broker, and by a coordinator beside one.

use std::net::SocketAddr;
use std::time::Duration;

use edgefaas_benches::node::Node;
use edgefaas_benches::peers::{Mosquitto, Persistence};
use edgefaas_benches::results::{Report, Table, Target};
use tempfile::TempDir;

use crate::Plan;
use crate::apps::App;
use crate::load::{Answers, Mqtt, Pace, load};

const CONTESTANTS: [&str; 3] =
    ["inside of the node", "coordinator beside mosquitto", "coordinator beside this broker"];
/// How many messages there are in an answer.
pub const GROUP: u64 = 5;
/// Messages a second when latency is looked at.
const STEADY: f64 = 1000.0;
/// By how much the rate rises, and how often the gap between what went well and what did not is halved.
const RISE: f64 = 1.6;
const HALVINGS: usize = 2;
/// Nobody gets here.
const HIGHEST: f64 = 400_000.0;
/// So many of the answers have to be in time, for a rate to be carried.
const CARRIED: f64 = 0.99;
/// Attempts to have everything answered, at first.
const WARM_UPS: usize = 20;
/// Beside the coordinator, what it sees and what it says.
pub const TOPICS: [&str; 2] = ["x1/#", "x3/#"];

/// Where messages go, and what keeps it running.
struct Contestant {
    address: SocketAddr,
    _nodes: Vec<(Node, TempDir)>,
    _mosquitto: Option<Mosquitto>,
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let version = Mosquitto::version().unwrap_or_default();
    let mut report = Report::new(
        "workflows-inside",
        "Events inside of the broker and beside it",
        &format!(
            "A client publishes to x1 (QoS 0); a workflow maps each message and publishes it to x2, another takes five of those \
             (`metadata.events: {{ count: 5 }}`), reduces them and publishes to x3, where the client waits. Time is from sending the \
             last of the five. Both workflows run in the node that is the broker, or in `edgefaas coordinator` beside {version} (with \
             TCP_NODELAY) or beside another node; x2 stays inside of the coordinator. Map and reduce are expressions, or JavaScript \
             functions. The highest rate is the one at which 99 % of the answers come within a second."
        ),
        &crate::command("inside"),
    );
    for (kind, functions) in [("expressions", false), ("JavaScript functions", true)] {
        let app = app(functions, 1)?;
        let figures = [("p50", "us"), ("p99", "us"), ("answered", "%"), ("highest rate", "1/s")];
        let mut table = Table::new(&format!("Map and reduce are {kind}"), &CONTESTANTS, &figures);
        for _ in 0..plan.rounds.min(2) {
            for (row, who) in CONTESTANTS.iter().enumerate() {
                let contestant = start(plan, row, &app)?;
                let mut answers = carry(&contestant, STEADY, plan.turn)?;
                answers.warn(who);
                let (p50, p99) = (answers.latency.quantile_us(0.5), answers.latency.quantile_us(0.99));
                let highest = highest(&contestant, plan.turn / 2)?;
                table.add(row, &[p50, p99, answers.share() * 100.0, highest]);
            }
        }
        report.targets.push(Target::at_least(
            "workflows-inside",
            &format!("{kind}: inside of the node at least the rate of a coordinator beside mosquitto"),
            table.ratio(0, 1, 3),
            1.0,
        ));
        report.tables.push(table);
    }
    Ok(report)
}

fn carry(contestant: &Contestant, rate: f64, length: Duration) -> anyhow::Result<Answers> {
    load(&Mqtt::through(contestant.address, "x1", "x3", GROUP), Pace::Rate(rate, length))
}

fn highest(contestant: &Contestant, length: Duration) -> anyhow::Result<f64> {
    highest_rate(length, |rate| carry(contestant, rate, length))
}

/// The highest rate that is carried, by loads of this length.
pub fn highest_rate(
    length: Duration,
    carry: impl Fn(f64) -> anyhow::Result<Answers>,
) -> anyhow::Result<f64> {
    let carried = |rate: f64| -> anyhow::Result<bool> {
        let answers = carry(rate)?;
        // A client that can't send so fast has not shown anything.
        let sent_in_time = answers.sending < length.mul_f64(1.25 * 1.1);
        Ok(sent_in_time && answers.in_time as f64 >= CARRIED * answers.expected as f64)
    };
    let (mut good, mut bad) = (0.0, STEADY);
    while bad < HIGHEST && carried(bad)? {
        good = bad;
        bad *= RISE;
    }
    for _ in 0..HALVINGS {
        let middle = (good + bad) / 2.0;
        match carried(middle)? {
            true => good = middle,
            false => bad = middle,
        }
    }
    Ok(good)
}

fn start(plan: &Plan, row: usize, app: &App) -> anyhow::Result<Contestant> {
    let folder = tempfile::tempdir;
    let (broker, mosquitto) = match row {
        0 => (None, None),
        1 => {
            let mosquitto = Mosquitto::start(Persistence::None)?;
            (Some(mosquitto.address), Some(mosquitto))
        }
        _ => (None, None),
    };
    let mut nodes = Vec::new();
    let mut address = broker;
    if row != 1 {
        let data = folder()?;
        let node = Node::start(&plan.binary, data.path())?;
        address = Some(node.mqtt);
        nodes.push((node, data));
    }
    let address = address.expect("one of them is a broker");
    if row > 0 {
        let data = folder()?;
        let coordinator = Node::start_coordinator(&plan.binary, data.path(), address, TOPICS)?;
        nodes.push((coordinator, data));
    }
    let (node, data) = nodes.last().expect("one of them runs workflows");
    node.deploy_app(&plan.binary, data.path(), app.path())?;
    let contestant = Contestant { address, _nodes: nodes, _mosquitto: mosquitto };
    warm_up(|rate, length| carry(&contestant, rate, length))?;
    Ok(contestant)
}

/// Sends until everything is answered: the coordinator is connected, and code is loaded.
pub fn warm_up(carry: impl Fn(f64, Duration) -> anyhow::Result<Answers>) -> anyhow::Result<()> {
    for _ in 0..WARM_UPS {
        let answers = carry(100.0, Duration::from_millis(400))?;
        if answers.answered == answers.expected {
            return Ok(());
        }
    }
    anyhow::bail!("events have no answers after {WARM_UPS} attempts")
}

/// A workflow that reduces, and so many that map each message; with functions or without.
pub fn app(functions: bool, mappers: u64) -> anyhow::Result<App> {
    let (map, reduce) = match functions {
        false => (
            "set: { n: '${ .n }', x: '${ .n * 2 }' }",
            "set: { n: '${ [.events[].data.n] | max }', x: '${ [.events[].data.x] | add }' }",
        ),
        true => ("call: double", "call: sum, with: { items: '${ [.events[].data] }' }"),
    };
    let workflow = |name: &str, metadata: &str, from: (&str, &str), task: &str, to: &str| {
        format!(
            "document: {{ dsl: '1.0.3', namespace: bench, name: {name}, version: '1.0.0'{metadata} }}\nschedule:\n  on: {{ one: {{ with: \
             {{ type: mqtt.publish, subject: {} }} }} }}\ninput: {{ from: '{}' }}\ndo:\n  - work: {{ {task} }}\n  - tell: {{ call: \
             asyncapi, with: {{ channel: {to}, message: {{ payload: '${{ . }}' }} }} }}\n",
            from.0, from.1
        )
    };
    let count = format!(", metadata: {{ events: {{ count: {} }} }}", GROUP * mappers);
    let limits = "limits = { queue = { capacity = 100000 } }";
    let mut manifest =
        "app = \"inside\"\n\n[workflows]\nfiles = [\"workflows/*.yaml\"]\n\n[workflows.reduce.permissions]\npublish = [\"x3\"]\n"
            .to_owned();
    let maps: Vec<String> = (1..=mappers).map(|number| format!("map-{number}")).collect();
    for map in &maps {
        manifest.push_str(&format!("\n[workflows.{map}.permissions]\npublish = [\"x2\"]\n"));
    }
    if functions {
        manifest.push_str(&format!(
            "\n[functions.double]\nmain = \"double.js\"\n{limits}\n\n[functions.sum]\nmain = \"sum.js\"\n{limits}\n"
        ));
    }
    let app = App::new(&[
        ("edgefaas.toml", &manifest),
        ("workflows/reduce.yaml", &workflow("reduce", &count, ("x2", ".[0]"), reduce, "x3")),
        (
            "double.js",
            "export default (event) => { const { n } = event.json(); return { n, x: n * 2 }; };\n",
        ),
        (
            "sum.js",
            "export default function sum(event) {\n  const { items } = event.json();\n  return { n: Math.max(...items.map((item) => \
             item.n)), x: items.reduce((sum, item) => sum + item.x, 0) };\n}\n",
        ),
    ])?;
    for name in &maps {
        app.add(&format!("workflows/{name}.yaml"), &workflow(name, "", ("x1", ".[0].data"), map, "x2"))?;
    }
    Ok(app)
}
