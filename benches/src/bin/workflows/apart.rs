//! Events that are mapped and reduced at a site: inside of its broker, by a coordinator or Node-RED beside the broker, and by a
//! coordinator far away. Steady loads, one that rises, and more mappers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use edgefaas_benches::node::Node;
use edgefaas_benches::peers::node_red::{function, join, mqtt_in, mqtt_out};
use edgefaas_benches::peers::{Mosquitto, NODE_RED_VERSION, NodeRed, Persistence};
use edgefaas_benches::results::{Report, Table, Target};
use edgefaas_testnet::{Conditions, Network, Topology};
use serde_json::Value;
use tempfile::TempDir;

use crate::Plan;
use crate::apps::App;
use crate::inside::{GROUP, TOPICS, app, highest_rate, warm_up};
use crate::load::{Answers, Mqtt, Pace, load};

const CONTESTANTS: [&str; 4] = [
    "inside of the node",
    "coordinator beside mosquitto",
    "Node-RED beside mosquitto",
    "coordinator far away",
];
const INSIDE: usize = 0;
const BESIDE: usize = 1;
const NODE_RED: usize = 2;
const FAR: usize = 3;
/// From the site to what is far away, and as long back.
const WAY: Duration = Duration::from_micros(17_500);
/// Messages a second.
const STEADY: [f64; 3] = [1_000.0, 2_000.0, 4_000.0];
/// Workflows that map each message.
const MAPPERS: [u64; 3] = [1, 2, 4];
const SITE: &str = "site";
const CLOUD: &str = "cloud";

/// Where messages go, and what keeps it running.
struct Contestant<'a> {
    network: &'a Network,
    address: SocketAddr,
    _node: Option<(Node, TempDir)>,
    _node_red: Option<NodeRed>,
    _mosquitto: Option<Mosquitto>,
}

impl Contestant<'_> {
    /// Sends from the site.
    fn carry(&self, rate: f64, length: Duration) -> anyhow::Result<Answers> {
        let way = Mqtt::through(self.address, "x1", "x3", GROUP);
        self.network.host(SITE).enter(|| load(&way, Pace::Rate(rate, length)))
    }
}

pub fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "workflows-apart",
        "Events inside of the broker, beside it and far away",
        &format!(
            "The same work as before with JavaScript functions: a client publishes to x1, each message is mapped, each {GROUP} of them \
             are reduced, and the client waits at x3; with 2 and 4 mappers each of them maps each message, and {GROUP} times as many \
             are reduced. The client, mosquitto ({}), the node, `edgefaas coordinator` and Node-RED {NODE_RED_VERSION} (`mqtt in`, a \
             function node for each mapper, `join`, a function node, `mqtt out`) are on one host of a test network; the coordinator far \
             away is on another one, {} ms there and back by the user-space switch. The highest rate is the one at which 99 % of the \
             answers come within a second.",
            Mosquitto::version().unwrap_or_default(),
            (WAY * 2).as_millis(),
        ),
        &crate::command("apart"),
    );
    let network = Topology::new().zone(SITE, &[SITE]).zone(CLOUD, &[CLOUD]).build()?;
    network.trunk(SITE, CLOUD).set(Conditions::delayed(WAY));
    let figures = [("p50", "us"), ("p99", "us"), ("answered", "%")];
    let mut steady = STEADY.map(|rate| Table::new(&format!("{rate} a second"), &CONTESTANTS, &figures));
    let figures = [("p50", "us"), ("p99", "us"), ("answered", "%"), ("highest rate", "1/s")];
    let title = |mappers: u64| match mappers {
        1 => format!("1 mapper, {} a second, and a load that rises", STEADY[0]),
        mappers => format!("{mappers} mappers, {} a second, and a load that rises", STEADY[0]),
    };
    let mut mapping = MAPPERS.map(|mappers| Table::new(&title(mappers), &CONTESTANTS, &figures));
    for _ in 0..plan.rounds {
        for (mappers, table) in MAPPERS.into_iter().zip(&mut mapping) {
            let app = app(true, mappers)?;
            for (row, who) in CONTESTANTS.iter().enumerate() {
                let contestant = start(plan, &network, row, &app, mappers)?;
                let look = |rate: f64| -> anyhow::Result<[f64; 3]> {
                    let mut answers = contestant.carry(rate, plan.turn / 2)?;
                    answers.warn(who);
                    let latency = &mut answers.latency;
                    let (p50, p99) = (latency.quantile_us(0.5), latency.quantile_us(0.99));
                    Ok([p50, p99, answers.share() * 100.0])
                };
                let [p50, p99, share] = look(STEADY[0])?;
                if mappers == 1 {
                    steady[0].add(row, &[p50, p99, share]);
                    for (rate, table) in STEADY.into_iter().zip(&mut steady).skip(1) {
                        table.add(row, &look(rate)?);
                    }
                }
                let length = plan.turn / 4;
                let highest = highest_rate(length, |rate| contestant.carry(rate, length))?;
                table.add(row, &[p50, p99, share, highest]);
            }
        }
    }
    targets(&mut report, &steady, &mapping);
    report.tables.extend(steady);
    report.tables.extend(mapping);
    Ok(report)
}

fn targets(report: &mut Report, steady: &[Table; 3], mapping: &[Table; 3]) {
    let id = "workflows-apart";
    for (rate, table) in STEADY.into_iter().zip(steady) {
        for (row, peer) in [(BESIDE, "beside mosquitto"), (FAR, "far away")] {
            let text = format!(
                "{rate} events a second: p99 of a coordinator {peer}, times that inside of the node"
            );
            report.targets.push(Target::at_least(id, &text, table.ratio(row, INSIDE, 1), 2.0));
        }
    }
    for (mappers, table) in MAPPERS.into_iter().zip(mapping) {
        for (row, peer) in [(BESIDE, "a coordinator"), (NODE_RED, "Node-RED")] {
            let text = format!(
                "{mappers} mappers: highest rate inside of the node, times that of {peer} beside mosquitto"
            );
            report.targets.push(Target::at_least(id, &text, table.ratio(INSIDE, row, 3), 1.0));
        }
    }
}

fn start<'a>(
    plan: &Plan,
    network: &'a Network,
    row: usize,
    app: &App,
    mappers: u64,
) -> anyhow::Result<Contestant<'a>> {
    let site = network.host(SITE);
    let mosquitto = match row {
        INSIDE => None,
        FAR => Some(site.enter(|| Mosquitto::start_at(site.address(), Persistence::None))?),
        _ => Some(site.enter(|| Mosquitto::start_at(Ipv4Addr::LOCALHOST, Persistence::None))?),
    };
    let broker = mosquitto.as_ref().map(|mosquitto| mosquitto.address);
    let node_red = match broker {
        Some(broker) if row == NODE_RED => Some(site.enter(|| NodeRed::start(broker, flow(mappers)))?),
        _ => None,
    };
    let node = match row {
        NODE_RED => None,
        _ => {
            let data = tempfile::tempdir()?;
            let host = if row == FAR { network.host(CLOUD) } else { site };
            let node = host.enter(|| -> anyhow::Result<Node> {
                let node = match broker {
                    None => Node::start(&plan.binary, data.path())?,
                    Some(broker) => Node::start_coordinator(&plan.binary, data.path(), broker, TOPICS)?,
                };
                node.deploy_app(&plan.binary, data.path(), app.path())?;
                Ok(node)
            })?;
            Some((node, data))
        }
    };
    let address = broker.or(node.as_ref().map(|(node, _)| node.mqtt)).expect("one of them is a broker");
    let contestant =
        Contestant { network, address, _node: node, _node_red: node_red, _mosquitto: mosquitto };
    warm_up(|rate, length| contestant.carry(rate, length)).with_context(|| CONTESTANTS[row])?;
    Ok(contestant)
}

/// The same in Node-RED.
fn flow(mappers: u64) -> Vec<Value> {
    let maps: Vec<String> = (1..=mappers).map(|number| format!("map-{number}")).collect();
    let names: Vec<&str> = maps.iter().map(String::as_str).collect();
    let mut nodes = vec![
        mqtt_in("in", "x1", &names),
        join("fives", GROUP * mappers, &["sum"]),
        function(
            "sum",
            "msg.payload = { n: Math.max(...msg.payload.map((item) => item.n)), x: msg.payload.reduce((sum, item) => sum + item.x, \
             0) };\nreturn msg;",
            &["out"],
        ),
        mqtt_out("out", "x3"),
    ];
    let map = "const { n } = msg.payload;\nreturn { payload: { n, x: n * 2 } };";
    nodes.extend(names.iter().map(|name| function(name, map, &["fives"])));
    nodes
}
