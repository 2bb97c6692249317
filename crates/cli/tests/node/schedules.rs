//! Cron triggers of a cluster: which node fires, and that one fires if that node is lost.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use edgefaas_testnet::{Topology, isolated};
use serde_json::Value;

use crate::hosted::{HostedNode, cluster, write_app};
use crate::support::PATIENCE;

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
        objects.iter().for_each(|object| wait_until(&nodes[1], object, 1));
        // It is silent: that it is lost shows only after seconds.
        nodes[1].signal("-STOP");
        let stopped_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        nodes[0].wait_for_loss("b");
        nodes[1].kill();
        let first = stopped_ms.next_multiple_of(PERIOD_MS);
        let last = first + 4 * PERIOD_MS;
        objects.iter().for_each(|object| wait_until(&nodes[0], object, last + PERIOD_MS));
        for object in &objects {
            let fired = occurrences(&nodes[0], object);
            for due in (first..=last).step_by(PERIOD_MS as usize) {
                let count = fired.iter().find(|(at, _)| *at == due).map_or(0, |(_, count)| *count);
                assert_eq!(count, 1, "{object}, due at {due}, since {first}: {fired:?}");
            }
        }
    });
}
