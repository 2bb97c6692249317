//! Deploys to a cluster with a large asset: nodes that are killed, stopped or full in the middle of it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use edgefaas_testnet::{Conditions, Network, Topology, isolated};
use serde_json::Value;

use crate::disk::{SmallDisk, fill};
use crate::hosted::{HostedNode, unite};
use crate::support::{PATIENCE, Running, free_port, look_again, skipped};

const MANIFEST: &str = r#"
app = "field"
assets = ["model.bin"]
[functions.answer]
main = "answer.js"
"#;
const MB: usize = 1_000_000;
const RECEIVED: &str = "edgefaas_cluster_artefact_bytes_received_total";
const SENT: &str = "edgefaas_cluster_artefact_bytes_sent_total";

/// Writes an app whose function tells its version, and length and sum of its asset. Gives its folder and the answer.
fn app(home: &Path, version: u32, bytes: usize) -> (PathBuf, String) {
    let folder = home.join(format!("app-{version}"));
    let mut state = u64::from(version) + 1;
    let model: Vec<u8> = (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect();
    let sum: u64 = model.iter().step_by(997).map(|byte| u64::from(*byte)).sum();
    let source = format!(
        "export default (event, context) => {{
            const model = context.asset(\"model.bin\");
            let sum = 0;
            for (let at = 0; at < model.length; at += 997) sum += model[at];
            return `{version} ${{model.length}} ${{sum}}`;
        }};"
    );
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("edgefaas.toml"), MANIFEST).unwrap();
    std::fs::write(folder.join("answer.js"), source).unwrap();
    std::fs::write(folder.join("model.bin"), model).unwrap();
    (folder, format!("{version} {bytes} {sum}"))
}

/// Waits until something is so; tells what was so at last.
fn until<T: std::fmt::Debug>(what: &str, read: impl Fn() -> T, is_so: impl Fn(&T) -> bool) -> T {
    let since = Instant::now();
    loop {
        let now = read();
        if is_so(&now) {
            return now;
        }
        assert!(since.elapsed() < PATIENCE, "{what}: {now:?}");
        look_again();
    }
}

fn answers(node: &HostedNode<'_>, expected: &str) {
    let ask = || node.exchange("POST", "/fn/answer", "").1;
    until(node.name(), ask, |answer| answer == expected);
}

/// The row of a node in the output of `list --nodes`.
fn row(list: &str, node: &str) -> String {
    let row = list.lines().find(|line| line.split_whitespace().nth(1) == Some(node));
    row.unwrap_or_default().to_owned()
}

fn is_away(node: &HostedNode<'_>, other: &str) -> bool {
    let nodes: Value = serde_json::from_str(&node.ok(&["nodes", "-o", "json"])).expect("JSON");
    let members = nodes["members"].as_array().expect("members");
    members.iter().any(|member| member["name"] == other && member["peer"].is_null())
}

/// Runs a test with hosts whose links carry 3 MB in a second, and a folder for their nodes.
fn on_slow_hosts(names: &[&str], test: impl FnOnce(&Network, &Path)) {
    isolated(|| {
        let network = Topology::new().zone("hall", names).build().unwrap();
        for name in names {
            network.link(name).set(Conditions::default().with_rate(3_000_000));
        }
        let home = tempfile::tempdir().unwrap();
        test(&network, home.path());
    });
}

#[test]
fn a_large_asset_arrives_on_all_nodes_of_a_cluster() {
    let home = tempfile::tempdir().unwrap();
    let start = |name: &str| {
        let p2p = format!("127.0.0.1:{}", free_port());
        Running::start(&home.path().join(name), &["--p2p", &p2p])
    };
    let nodes = ["n1", "n2", "n3"].map(start);
    nodes[0].ok(&["cluster", "init", "--name", "n1"]);
    for (node, name) in nodes[1..].iter().zip(["n2", "n3"]) {
        let token = nodes[0].ok(&["cluster", "token"]);
        node.ok(&["cluster", "join", token.trim(), "--name", name]);
    }
    let (folder, expected) = app(home.path(), 1, 20 * MB);
    let told = nodes[0].ok(&["deploy", folder.to_str().unwrap(), "--wait", "120s"]);
    for name in ["n1", "n2", "n3"] {
        assert!(told.lines().any(|line| line.starts_with(name) && line.ends_with("live")), "{told}");
    }
    for node in &nodes {
        assert_eq!(node.http("POST", "/fn/answer", ""), (200, expected.clone()));
        assert!(
            until("its part files", || parts(&node.data_dir), Vec::is_empty).is_empty(),
            "the store has them"
        );
    }
    // An app of the same assets is fetched without them.
    let sent = |node: &Running| node.metric(SENT);
    let before: u64 = nodes.iter().map(sent).sum();
    std::fs::write(
        folder.join("edgefaas.toml"),
        MANIFEST.replace("field", "meadow").replace("answer]", "other]"),
    )
    .unwrap();
    nodes[1].ok(&["deploy", folder.to_str().unwrap(), "--wait", "120s"]);
    let after: u64 = nodes.iter().map(sent).sum();
    println!("{before} bytes for the first app, {} for the second", after - before);
    assert!(after - before < MB as u64, "{}", after - before);
    assert_eq!(nodes[2].http("POST", "/fn/other", ""), (200, expected));
}

/// Unfinished parts in a data directory.
fn parts(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir.join("artefacts")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_node_that_is_killed_in_the_middle_fetches_only_the_rest() {
    on_slow_hosts(&["n1", "n2"], |network, home| {
        let mut nodes = ["n1", "n2"].map(|name| HostedNode::start(network.host(name), home, &[]));
        unite(&nodes);
        // Slowly, so that the kill is in the middle also if this test is held up for some seconds before it.
        network.link("n2").set(Conditions::default().with_rate(MB as u64));
        let (folder, expected) = app(home, 1, 20 * MB);
        nodes[0].ok(&["deploy", folder.to_str().unwrap(), "--wait", "0s"]);
        let received = |node: &HostedNode<'_>| node.metric(RECEIVED);
        let before = until("bytes", || received(&nodes[1]), |received| *received >= 6 * MB as u64);
        nodes[1].kill();
        network.link("n2").set(Conditions::default().with_rate(3_000_000));
        assert!(before < 18 * MB as u64, "{before}: it was in the middle");
        // Those of small parts may not have been removed yet.
        let is_large = |part: &PathBuf| part.metadata().is_ok_and(|part| part.len() > MB as u64);
        assert_eq!(parts(nodes[1].dir()).iter().filter(|part| is_large(part)).count(), 1);
        nodes[1].up();
        answers(&nodes[1], &expected);
        let after = received(&nodes[1]);
        println!("{before} bytes before the kill, {after} after it");
        assert!(after < 17 * MB as u64, "{after} bytes: it has kept what it had");
        until("its part files", || parts(nodes[1].dir()), Vec::is_empty);
    });
}

#[test]
fn another_holder_goes_on_when_the_node_of_the_deploy_is_killed() {
    on_slow_hosts(&["n1", "n2", "n3"], |network, home| {
        let mut nodes = ["n1", "n2", "n3"].map(|name| HostedNode::start(network.host(name), home, &[]));
        unite(&nodes);
        nodes[2].kill();
        let (folder, expected) = app(home, 1, 20 * MB);
        nodes[0].ok(&["deploy", folder.to_str().unwrap(), "--wait", "0s"]);
        answers(&nodes[1], &expected);
        // Slowly, so that the kill is in the middle also if this test is held up for some seconds before it.
        network.link("n3").set(Conditions::default().with_rate(MB as u64));
        nodes[2].up();
        let received = |node: &HostedNode<'_>| node.metric(RECEIVED);
        let before = until("bytes", || received(&nodes[2]), |received| *received >= 5 * MB as u64);
        nodes[0].kill();
        network.link("n3").set(Conditions::default().with_rate(3_000_000));
        assert!(before < 18 * MB as u64, "{before}: it was in the middle");
        answers(&nodes[2], &expected);
        let after = received(&nodes[2]);
        println!("{before} bytes before the kill, {after} in all");
        assert!(after < 24 * MB as u64, "{after}");
        // The node of the deploy returns with the same revision.
        nodes[0].up();
        answers(&nodes[0], &expected);
    });
}

#[test]
fn a_holder_that_stops_for_some_seconds_delays_the_deploy_by_no_more() {
    on_slow_hosts(&["n1", "n2"], |network, home| {
        let nodes = ["n1", "n2"].map(|name| HostedNode::start(network.host(name), home, &[]));
        unite(&nodes);
        let (folder, expected) = app(home, 1, 20 * MB);
        nodes[0].ok(&["deploy", folder.to_str().unwrap(), "--wait", "0s"]);
        let received = || nodes[1].metric(RECEIVED);
        let before = until("bytes", received, |received| *received >= 5 * MB as u64);
        nodes[0].signal("-STOP");
        let since = Instant::now();
        until("the connection", || is_away(&nodes[1], "n1"), |is_away| *is_away);
        // Longer than the time after which a silent member is away.
        until("the time", || since.elapsed().as_secs(), |seconds| *seconds >= 8);
        nodes[0].signal("-CONT");
        answers(&nodes[1], &expected);
        let after = received();
        println!("{before} bytes before the stop, {after} in all");
        assert!(after < 24 * MB as u64, "{after}");
    });
}

#[test]
fn a_node_with_a_full_disk_keeps_its_revision_and_says_so_until_there_is_room() {
    let home = tempfile::tempdir().unwrap();
    let disk_path = home.path().join("disk");
    std::fs::create_dir(&disk_path).unwrap();
    let Some(_disk) = SmallDisk::mount(&disk_path, "256m") else {
        return skipped("the right to mount a file system (root)");
    };
    let start = |dir: &Path| {
        let p2p = format!("127.0.0.1:{}", free_port());
        Running::start(dir, &["--p2p", &p2p])
    };
    let (large, small) = (start(&home.path().join("n1")), start(&disk_path.join("n2")));
    large.ok(&["cluster", "init", "--name", "n1"]);
    let token = large.ok(&["cluster", "token"]);
    small.ok(&["cluster", "join", token.trim(), "--name", "n2"]);
    let (first, old) = app(home.path(), 1, 1000);
    large.ok(&["deploy", first.to_str().unwrap(), "--wait", "120s"]);
    assert_eq!(small.http("POST", "/fn/answer", ""), (200, old.clone()));

    let filler = disk_path.join("filler");
    fill(&filler);
    // Room for changes of objects, and not for the revision.
    let file = std::fs::OpenOptions::new().write(true).open(&filler).unwrap();
    file.set_len(file.metadata().unwrap().len() - 48 * MB as u64).unwrap();
    drop(file);
    let (second, new) = app(home.path(), 2, 16 * MB);
    let deploy = large.cli(&["deploy", second.to_str().unwrap(), "--wait", "120s"]);
    assert!(deploy.status.success(), "it is live on the other node");
    let told = String::from_utf8_lossy(&deploy.stderr).into_owned();
    assert!(told.contains("node `n2` keeps the revision that it has"), "{told}");
    assert!(told.contains("the disk is full"), "{told}");
    assert_eq!(large.http("POST", "/fn/answer", ""), (200, new.clone()));
    assert_eq!(small.http("POST", "/fn/answer", ""), (200, old), "it keeps the old revision");
    let list =
        until("the list", || row(&large.ok(&["list", "--nodes"]), "n2"), |row| row.contains("failed"));
    assert!(list.contains("the disk is full"), "{list}");
    let detail = large.ok(&["nodes", "n2"]);
    assert!(detail.contains("the disk is full"), "{detail}");
    // The room is left to the store.
    until("its part files", || parts(&small.data_dir), Vec::is_empty);

    std::fs::remove_file(&filler).unwrap();
    until("there is room again", || small.http("POST", "/fn/answer", "").1, |answer| *answer == new);
    until("the list", || row(&large.ok(&["list", "--nodes"]), "n2"), |row| row.ends_with("live"));
}

/// Overwrites 16 bytes of an asset wherever the store has them; gives in how many files.
fn damage_asset(data_dir: &Path, asset: &[u8]) -> usize {
    let mut folders = vec![data_dir.join("store")];
    let mut damaged = 0;
    let part = &asset[1_000_000..1_000_064];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let content = std::fs::read(&path).unwrap();
            if let Some(at) = content.windows(part.len()).position(|bytes| bytes == part) {
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &[0; 16], at as u64).unwrap();
                damaged += 1;
            }
        }
    }
    damaged
}

#[test]
fn a_node_whose_disk_has_lost_an_artefact_fetches_it_again() {
    isolated(|| {
        let network = Topology::new().zone("hall", &["n1", "n2"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let home = home.path();
        let mut nodes =
            Vec::from(["n1", "n2"].map(|name| HostedNode::start(network.host(name), home, &[])));
        unite(&nodes);
        let (folder, expected) = app(home, 1, 24 * MB);
        nodes[0].ok(&["deploy", folder.to_str().unwrap(), "--wait", "60s"]);
        answers(&nodes[1], &expected);
        let mut lost = nodes.pop().unwrap();
        lost.kill();
        let asset = std::fs::read(folder.join("model.bin")).unwrap();
        assert!(damage_asset(lost.dir(), &asset) > 0, "the asset is in a file of the store");
        // What was compiled is not what is looked for.
        std::fs::remove_dir_all(lost.dir().join("cache")).unwrap();
        drop(lost);
        let again = HostedNode::start(network.host("n2"), home, &["--accept-loss"]);
        answers(&again, &expected);
        until("the list", || row(&nodes[0].ok(&["list", "--nodes"]), "n2"), |row| row.ends_with("live"));
    });
}
