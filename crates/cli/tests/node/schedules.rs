//! Cron triggers of a cluster: which node fires, and that one fires if that node is lost.

use std::path::Path;
use std::time::Instant;

use edgefaas_testnet::{Topology, isolated};
use serde_json::Value;

use crate::hosted::{HostedNode, cluster, write_app};
use crate::support::{PATIENCE, look_again};

/// Writes the app `clock` with functions that count the occurrences of a schedule, each in an object of its own: `seen-0`
/// and so on.
pub fn app(home: &Path, functions: usize, schedule: &str) -> String {
    let mut manifest = "app = \"clock\"\n[objects.\"*\"]\ninterval = \"5ms\"\n".to_owned();
    for number in 0..functions {
        manifest += &format!(
            "[functions.tick-{number}]\nmain = \"tick.js\"\ntriggers = [{{ cron = \"{schedule}\" }}]\n\
             permissions = {{ objects = [\"seen-*\"] }}\n"
        );
    }
    let source = "export default (event, context) =>\n\
                  context.object(`seen-${context.function.split('-')[1]}`)\n\
                  .counter(String(event.scheduledTime)).add(1);";
    write_app(home, "clock", &[("edgefaas.toml", &manifest), ("tick.js", source)])
}

/// How often each occurrence has fired, by its due time in milliseconds since 1970, as a node has it.
pub fn occurrences(node: &HostedNode<'_>, object: &str) -> Vec<(u64, u64)> {
    let output = node.cli(&["objects", "get", "clock", object, "-o", "json"]);
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let fields = all["fields"].as_object().or_else(|| all.as_object()).cloned().unwrap_or_default();
    let count = |(due, field): (String, Value)| Some((due.parse().ok()?, field["value"].as_u64()?));
    let mut all: Vec<_> = fields.into_iter().filter_map(count).collect();
    all.sort_unstable();
    all
}

pub fn newest(node: &HostedNode<'_>, object: &str) -> u64 {
    occurrences(node, object).last().map_or(0, |(due, _)| *due)
}

/// Waits until an occurrence that was due then or later has fired.
pub fn wait_until(node: &HostedNode<'_>, object: &str, due: u64) {
    let since = Instant::now();
    while newest(node, object) < due {
        assert!(since.elapsed() < PATIENCE, "{}: {:?}", node.name(), occurrences(node, object));
        look_again();
    }
}

/// Waits until so many occurrences that were due then or later have fired; gives all of these. A busy machine skips some.
pub fn wait_for_occurrences(
    node: &HostedNode<'_>,
    object: &str,
    from: u64,
    least: usize,
) -> Vec<(u64, u64)> {
    let since = Instant::now();
    loop {
        let mut fired = occurrences(node, object);
        fired.retain(|(due, _)| *due >= from);
        if fired.len() >= least {
            return fired;
        }
        assert!(since.elapsed() < PATIENCE, "{}: {fired:?} since {from}", node.name());
        look_again();
    }
}

const FUNCTIONS: usize = 8;
const PERIOD_MS: u64 = 3_000;

#[test]
fn what_a_lost_node_was_to_fire_is_fired_by_another_one() {
    isolated(|| {
        let network = Topology::new().zone("hall", &["a", "b"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let mut nodes = cluster(&network, home.path(), &[("a", &[]), ("b", &[])]);
        nodes[0].ok(&["deploy", &app(home.path(), FUNCTIONS, "*/3 * * * * *"), "--wait", "60s"]);
        let objects: Vec<_> = (0..FUNCTIONS).map(|number| format!("seen-{number}")).collect();
        nodes.iter().for_each(|node| objects.iter().for_each(|object| wait_until(node, object, 1)));
        // It is silent: that it is lost shows only after seconds.
        nodes[1].signal("-STOP");
        // The last that has fired. What is due two periods later, the stopped one has not fired.
        let seen = objects.iter().map(|object| newest(&nodes[0], object)).max().unwrap();
        nodes[0].wait_for_loss("b");
        nodes[1].kill();
        let first = seen + 2 * PERIOD_MS;
        let last = first + 4 * PERIOD_MS;
        objects.iter().for_each(|object| wait_until(&nodes[0], object, last + PERIOD_MS));
        let fired: Vec<_> = objects.iter().map(|object| occurrences(&nodes[0], object)).collect();
        let mut whole = 0;
        for due in (first..=last).step_by(PERIOD_MS as usize) {
            let count = |of: &Vec<(u64, u64)>| {
                let found = of.iter().find(|(at, _)| *at == due);
                found.map_or(0, |(_, count)| *count)
            };
            let counts: Vec<u64> = fired.iter().map(count).collect();
            // A node that is held up for longer than a period skips an occurrence, of all functions: they are due together.
            if counts.iter().all(|count| *count == 0) {
                continue;
            }
            assert!(
                counts.iter().all(|count| *count == 1),
                "due at {due}, since {first}: {counts:?} {fired:?}"
            );
            whole += 1;
        }
        assert!(whole >= 2, "since {first}: {fired:?}");
    });
}

#[test]
fn an_occurrence_fires_once_while_another_revision_arrives() {
    isolated(|| {
        let network = Topology::new().zone("hall", &["a", "b", "c"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let nodes = cluster(&network, home.path(), &[("a", &[]), ("b", &[]), ("c", &[])]);
        let folder = app(home.path(), FUNCTIONS, "* * * * * *");
        nodes[0].ok(&["deploy", &folder, "--wait", "60s"]);
        let objects: Vec<_> = (0..FUNCTIONS).map(|number| format!("seen-{number}")).collect();
        nodes.iter().for_each(|node| objects.iter().for_each(|object| wait_until(node, object, 1)));
        let first = newest(&nodes[0], &objects[0]) + 1000;
        let file = Path::new(&folder).join("tick.js");
        let source = std::fs::read_to_string(&file).unwrap();
        let mut version = 0;
        let fired = |object: &String| {
            let mut fired = occurrences(&nodes[0], object);
            fired.retain(|(due, _)| *due >= first);
            fired
        };
        let begun = Instant::now();
        // A busy machine skips occurrences, and what another node has fired comes later.
        while newest(&nodes[0], &objects[0]) < first + 6000
            || objects.iter().any(|object| fired(object).len() < 3)
        {
            assert!(begun.elapsed() < PATIENCE, "{:?}", objects.iter().map(fired).collect::<Vec<_>>());
            version += 1;
            std::fs::write(&file, format!("{source} // {version}")).unwrap();
            // One node after another, at times also to one alone.
            let node = &nodes[version % 3];
            let alone: &[&str] = if version % 4 == 0 { &["--this-node"] } else { &[] };
            node.ok(&[&["deploy", &folder], alone].concat());
        }
        println!("{version} deploys");
        for object in &objects {
            let fired = fired(object);
            assert!(fired.len() >= 3 && fired.iter().all(|(_, count)| *count == 1), "{object}: {fired:?}");
        }
    });
}

#[test]
fn an_interval_of_a_workflow_ends_again_and_again_on_one_node() {
    isolated(|| {
        let network = Topology::new().zone("hall", &["a", "b"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let mut nodes = cluster(&network, home.path(), &[("a", &[]), ("b", &[])]);
        let manifest = "app = \"pulse\"\nworkflows = [\"beat.yaml\"]\n[functions.count]\nmain = \"count.js\"\n\
                        permissions = { objects = [\"beats\"] }\n[objects.\"*\"]\ninterval = \"5ms\"\n";
        let beat = "document: { dsl: 1.0.3, namespace: test, name: beat, version: 1.0.0 }\n\
                    schedule: { every: 200ms }\ndo:\n  - one: { call: count }\n";
        let count = "export default (event, context) =>\n\
                     context.object('beats').counter(context.node.name).add(1);";
        let files = [("edgefaas.toml", manifest), ("beat.yaml", beat), ("count.js", count)];
        nodes[0].ok(&["deploy", &write_app(home.path(), "pulse", &files), "--wait", "60s"]);
        let beats = |node: &HostedNode<'_>, of: &str| -> u64 {
            let output = node.cli(&["objects", "get", "pulse", "beats", of, "-o", "json"]);
            let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            value["value"].as_u64().unwrap_or(0)
        };
        let wait = |what: &str, is_so: &dyn Fn() -> bool| {
            let since = Instant::now();
            while !is_so() {
                assert!(since.elapsed() < PATIENCE, "{what}");
                look_again();
            }
        };
        let both = |node: &HostedNode<'_>| [beats(node, "a"), beats(node, "b")];
        // At first a node may not know that the other one runs the app.
        let mut owner = None;
        let since = Instant::now();
        while owner.is_none() {
            assert!(since.elapsed() < PATIENCE, "both go on: {:?}", both(&nodes[0]));
            look_again();
            let before = both(&nodes[0]);
            wait("beats", &|| both(&nodes[0]).iter().sum::<u64>() >= before.iter().sum::<u64>() + 10);
            let after = both(&nodes[0]);
            owner = (0..2).find(|one| after[1 - one] == before[1 - one]);
        }
        let owner = owner.expect("one of them");
        let (name, other) = (["a", "b"][owner], 1 - owner);
        let few = beats(&nodes[0], ["a", "b"][other]);
        nodes[owner].kill();
        let left = &nodes[other];
        wait("the other one goes on", &|| beats(left, left.name()) >= few + 10);
        println!("{name} had {} beats", beats(left, name));
    });
}
