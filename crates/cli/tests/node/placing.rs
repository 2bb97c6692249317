//! Deploys and policies of a cluster: nodes that are away, cut off, too small or revoked, and commands on two sides of a cut.

use std::path::Path;

use edgefaas_testnet::{Topology, isolated};
use serde_json::Value;

use crate::hosted::{HostedNode, cluster, set_policy, write_app};
use crate::schedules::{self, wait_for_occurrences, wait_until};

fn source(version: &str) -> String {
    format!(
        "export default async (event, context) => {{\n\
           const text = event.text();\n\
           if (text === 'slow') {{ console.log('begun slow'); await new Promise((end) => setTimeout(end, 2000)); }}\n\
           return '{version}';\n\
         }};"
    )
}

fn manifest(app: &str, more: &str) -> String {
    format!(
        "app = \"{app}\"\n[functions.{app}]\nmain = \"main.js\"\nplacement = \"south\"\n\
         limits = {{ memory = \"32MiB\", timeout = \"15s\" }}\n{more}"
    )
}

/// Writes a version of an app with one function of its name.
fn version(home: &Path, app: &str, version: &str, more: &str) -> String {
    let (manifest, source) = (manifest(app, more), source(version));
    write_app(home, &format!("{app}-{version}"), &[("edgefaas.toml", &manifest), ("main.js", &source)])
}

/// Deploys, and gives the revision.
fn deploy(node: &HostedNode<'_>, app: &str) -> String {
    let deployed = node.json(&["deploy", app, "--wait", "60s"]);
    deployed["app"]["revision"].as_str().expect("a revision").to_owned()
}

/// An app on a node, as `list --nodes` says.
fn on<'a>(list: &'a Value, app: &str, node: &str) -> Option<&'a Value> {
    let app = list["apps"].as_array()?.iter().find(|one| one["name"] == app)?;
    app["nodes"].as_array()?.iter().find(|one| one["node"] == node)
}

/// Waits until a node says that another one has this state of an app.
fn wait_state(node: &HostedNode<'_>, app: &str, on_node: &str, state: &str) -> Value {
    let list = node.wait(&["list", "--nodes"], |list| {
        on(list, app, on_node).is_some_and(|found| found["state"] == state)
    });
    on(&list, app, on_node).expect("it is in the list").clone()
}

fn body(node: &HostedNode<'_>, function: &str) -> String {
    node.send("POST", &format!("/fn/{function}"), "", "").answer().expect("an answer").body
}

#[test]
fn a_node_that_was_away_gets_what_has_changed() {
    isolated(|| {
        let network = Topology::new().zone("north", &["n", "s"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let mut nodes = cluster(&network, home.path(), &[("n", &[]), ("s", &[])]);
        let [n, s] = nodes.as_slice() else { unreachable!() };
        let first = version(home.path(), "shop", "1", "");
        let one = deploy(n, &first);
        deploy(n, &version(home.path(), "gone", "1", ""));
        assert_eq!(wait_state(n, "shop", "s", "live")["revision"], one);
        assert_eq!(body(s, "shop"), "1");
        assert_eq!(n.json(&["deploy", &first, "--wait", "60s"])["unchanged"], true);

        // To one node alone, until the next deploy to the cluster.
        let own = s.json(&["deploy", "--this-node", &version(home.path(), "shop", "own", "")]);
        let own = own["app"]["revision"].as_str().unwrap();
        assert_eq!(wait_state(n, "shop", "s", "this-node")["revision"], own);
        set_policy(n, home.path(), "south: [{ workers: [s] }]\n");
        let explained = n.ok(&["policy", "explain", "shop"]);
        assert!(explained.contains("s is skipped: it runs a revision of its own"), "{explained}");
        n.ok(&["policy", "rm", "--wait", "60s"]);
        let none = n.cli(&["policy", "rm"]);
        assert_eq!(none.status.code(), Some(6), "{none:?}");
        let two = deploy(n, &version(home.path(), "shop", "2", ""));
        assert_eq!(wait_state(n, "shop", "s", "live")["revision"], two);
        let live = n.cli(&["rollback", "shop", "--to", &two[..12]]);
        assert!(String::from_utf8_lossy(&live.stderr).contains("is live already"), "{live:?}");
        let back = n.json(&["rollback", "shop", "--wait", "60s"]);
        assert_eq!(back["app"]["revision"], one);
        assert_eq!(wait_state(n, "shop", "s", "live")["revision"], one);

        nodes[1].kill();
        let [n, _] = nodes.as_slice() else { unreachable!() };
        n.wait_for_loss("s");
        let deployed = n.json(&["deploy", &version(home.path(), "shop", "3", ""), "--wait", "60s"]);
        assert_eq!(deployed["nodes"][1]["state"], "away", "{deployed:#}");
        let removed = n.json(&["rm", "gone", "--wait", "60s"]);
        assert_eq!(removed["nodes"][1]["state"], "away", "{removed:#}");
        n.tell(&["secrets", "set", "KEY", "--app", "shop"], "value");
        set_policy(n, home.path(), "south:\n  - workers: [s]\n");
        nodes[1].up();
        let [n, s] = nodes.as_slice() else { unreachable!() };
        wait_state(n, "shop", "s", "live");
        assert_eq!(body(s, "shop"), "3");
        s.wait(&["list", "--nodes"], |list| on(list, "gone", "s").is_none());
        s.wait(&["policy", "show"], |policy| {
            policy["text"].as_str().is_some_and(|text| text.contains("[s]"))
        });
        let secrets = |secrets: &Value| secrets.to_string().contains("KEY");
        s.wait(&["secrets", "list"], secrets);
        n.ok(&["secrets", "rm", "KEY", "--app", "shop"]);
        s.wait(&["secrets", "list"], |all| !secrets(all));
    });
}

#[test]
fn both_sides_of_a_cut_agree_afterwards() {
    isolated(|| {
        let network = Topology::new().zone("north", &["n"]).zone("south", &["s"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let nodes = cluster(&network, home.path(), &[("n", &[]), ("s", &[])]);
        let [n, s] = nodes.as_slice() else { unreachable!() };
        deploy(n, &schedules::app(home.path(), 1, "* * * * * *"));
        deploy(n, &version(home.path(), "shop", "1", ""));
        wait_state(s, "clock", "n", "live");
        // How often each occurrence has fired. From a time on at which both nodes knew that both run the app, and that it has
        // fired at all.
        let newest = schedules::newest;
        wait_until(n, "seen-0", 1);
        let begin = newest(n, "seen-0") + 1000;
        wait_until(n, "seen-0", begin + 4000);
        let fired = wait_for_occurrences(n, "seen-0", begin, 3);
        assert!(fired.iter().all(|(_, count)| *count == 1), "{fired:?}");

        network.trunk("north", "south").cut();
        n.wait_for_loss("s");
        s.wait_for_loss("n");
        let cut = newest(n, "seen-0").max(newest(s, "seen-0")) + 1000;
        let on_n = deploy(n, &version(home.path(), "shop", "north", ""));
        let on_s = deploy(s, &version(home.path(), "shop", "south", ""));
        set_policy(n, home.path(), "south:\n  - workers: [n]\n");
        set_policy(s, home.path(), "south:\n  - workers: [s]\n");
        assert_eq!((body(n, "shop"), body(s, "shop")), ("north".to_owned(), "south".to_owned()));
        // Each side fires; a busy machine may skip an occurrence.
        for node in [n, s] {
            wait_until(node, "seen-0", cut + 2000);
            let fired = wait_for_occurrences(node, "seen-0", cut, 2);
            assert!(fired.iter().all(|(_, count)| *count == 1), "{}: {fired:?}", node.name());
        }

        network.trunk("north", "south").restore();
        let (winner, loser) = if on_n > on_s { (on_n, on_s) } else { (on_s, on_n) };
        let app = |list: &Value| {
            list["apps"].as_array().unwrap().iter().find(|app| app["name"] == "shop").cloned()
        };
        let mut texts = Vec::new();
        for node in [n, s] {
            wait_state(node, "shop", "n", "live");
            // The winner may be there before the other side has told what lost.
            let list = node.wait(&["list", "--nodes"], |list| {
                let runs_it =
                    |name: &&str| on(list, "shop", name).is_some_and(|on| on["revision"] == winner);
                ["n", "s"].iter().all(runs_it) && app(list).is_some_and(|app| !app["lost"][0].is_null())
            });
            let app = app(&list).unwrap();
            assert_eq!(app["lost"][0]["revision"], loser, "{list:#}");
            let warning = String::from_utf8(node.cli(&["list"]).stderr).unwrap();
            assert!(warning.contains("two sides") && warning.contains(&loser[..12]), "{warning}");
            let policy = node.wait(&["policy", "show"], |policy| !policy["lost"][0].is_null());
            assert_ne!(policy["text"], policy["lost"][0]["text"]);
            texts.push(policy["text"].clone());
        }
        assert_eq!(texts[0], texts[1]);
        assert_eq!(body(n, "shop"), body(s, "shop"));
        // The next commands end the conflict.
        deploy(n, &version(home.path(), "shop", "next", ""));
        n.ok(&["policy", "rm", "--wait", "60s"]);
        for node in [n, s] {
            node.wait(&["policy", "show"], |policy| policy["lost"].as_array().is_some_and(Vec::is_empty));
            let list = node.json(&["list"]);
            assert!(app(&list).unwrap()["lost"].as_array().is_none_or(Vec::is_empty), "{list:#}");
        }
    });
}

#[test]
fn a_node_that_cannot_run_a_revision_says_so_and_keeps_the_one_that_it_has() {
    isolated(|| {
        let network = Topology::new().zone("north", &["n", "small"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let config = home.path().join("small.toml");
        std::fs::write(&config, "[isolates]\nmax_memory = \"48MiB\"\n").unwrap();
        let small = ["--config", config.to_str().unwrap()];
        let nodes = cluster(&network, home.path(), &[("n", &[]), ("small", &small)]);
        let [n, small] = nodes.as_slice() else { unreachable!() };
        let one = deploy(n, &version(home.path(), "shop", "1", ""));
        wait_state(n, "shop", "small", "live");
        let large = write_app(
            home.path(),
            "large",
            &[
                ("edgefaas.toml", &manifest("shop", "").replace("32MiB", "64MiB")),
                ("main.js", &source("large")),
            ],
        );
        let output = n.cli(&["deploy", &large, "--wait", "60s"]);
        let warning = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warning.contains("node `small` keeps"), "{warning}");
        let failed = wait_state(n, "shop", "small", "failed");
        assert_eq!(failed["revision"], one);
        assert!(failed["reason"].as_str().unwrap().contains("isolates.max_memory"), "{failed:#}");
        let member = n.ok(&["nodes", "small"]);
        assert!(member.contains("failed: ") && member.contains(&one[..12]), "{member}");
        assert_eq!((body(n, "shop"), body(small, "shop")), ("large".to_owned(), "1".to_owned()));
        // The next deploy is no failure.
        let three = n.json(&["deploy", &version(home.path(), "shop", "3", ""), "--wait", "60s"]);
        assert!(three["nodes"].as_array().unwrap().iter().all(|node| node["state"] == "live"), "{three:#}");
        assert_eq!(body(small, "shop"), "3");
    });
}

#[test]
fn apps_run_on_the_nodes_that_their_manifest_selects() {
    isolated(|| {
        let network = Topology::new().zone("north", &["n1", "n2"]).zone("south", &["s"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let north = ["--zone", "north", "--label", "disk"];
        let south = ["--zone", "south", "--label", "camera"];
        let nodes = cluster(&network, home.path(), &[("n1", &north), ("n2", &north), ("s", &south)]);
        let [n1, _, s] = nodes.as_slice() else { unreachable!() };
        let states = |app: &str, selection: &str| {
            let deployed =
                n1.json(&["deploy", &version(home.path(), app, "1", selection), "--wait", "60s"]);
            let nodes = deployed["nodes"].as_array().unwrap().clone();
            nodes.iter().map(|node| node["state"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let live = |states: &[String]| states.iter().filter(|state| *state == "live").count();
        let two = states("two", "[nodes]\non = 2\n");
        assert_eq!((live(&two), two.len()), (2, 3), "{two:?}");
        let zones = states("zones", "[nodes]\non = \"one-per-zone\"\n");
        assert_eq!((live(&zones), zones[2].as_str()), (2, "live"), "{zones:?}");
        assert_eq!(states("eye", "[nodes]\nlabels = [\"camera\"]\n"), ["elsewhere", "elsewhere", "live"]);
        // A node without the code passes the call on.
        let answer = n1.send("POST", "/fn/eye", "", "").answer().unwrap();
        assert_eq!(
            (answer.status, answer.node(), answer.body.as_str()),
            (200, Some("s"), "1"),
            "{answer:?}"
        );
        let explained = n1.json(&["policy", "explain", "eye"]);
        assert_eq!(explained["node"], "s", "{explained:#}");

        // A selection that matches no node is refused, and the previous revision stays.
        let wrong = version(home.path(), "eye", "wrong", "[nodes]\nzones = [\"suoth\"]\n");
        let refused = n1.cli(&["deploy", &wrong]);
        let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(7), "{reason}");
        assert!(reason.contains("no node would run it") && reason.contains("`south`?"), "{reason}");
        assert_eq!(body(n1, "eye"), "1");
        let many =
            n1.json(&["deploy", &version(home.path(), "two", "2", "[nodes]\non = 9\n"), "--wait", "60s"]);
        assert!(many["warnings"].to_string().contains("asks for 9 nodes, and 3"), "{many:#}");

        // A node that leaves the cluster by a revocation: no place, no calls, and it works alone.
        n1.ok(&["cluster", "revoke", "s"]);
        n1.wait(&["list", "--nodes"], |list| on(list, "eye", "s").is_none());
        s.wait(&["nodes"], |nodes| {
            nodes["members"].as_array().unwrap().iter().all(|one| one["peer"].is_null())
        });
        assert_eq!(body(s, "eye"), "1");
        let refused = n1.send("POST", "/fn/eye", "", "").answer().unwrap();
        assert_eq!(refused.status, 503, "{refused:?}");
        // A durable call waits, and says for what.
        let waits = n1.send("POST", "/fn/eye", "Prefer: respond-async\r\n", "").answer().unwrap();
        assert_eq!(waits.status, 202, "{waits:?}");
        n1.wait(&["invocations"], |list| {
            let one = &list["invocations"][0];
            one["state"] == "waiting" && one["detail"].as_str().is_some_and(|text| text.contains("`eye`"))
        });
        let deployed = n1.json(&["deploy", &version(home.path(), "eye", "2", ""), "--wait", "60s"]);
        assert_eq!(deployed["nodes"].as_array().unwrap().len(), 2, "{deployed:#}");
        n1.wait(&["invocations"], |list| list["invocations"].as_array().unwrap().is_empty());
        assert_eq!(body(s, "eye"), "1");
    });
}

#[test]
fn a_policy_holds_from_the_next_call_on_and_says_what_it_refuses() {
    isolated(|| {
        let network = Topology::new().zone("north", &["n"]).zone("south", &["s"]).build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let options: [(&str, &[&str]); 2] = [("n", &["--zone", "north"]), ("s", &["--zone", "south"])];
        let nodes = cluster(&network, home.path(), &options);
        let [n, s] = nodes.as_slice() else { unreachable!() };
        deploy(n, &version(home.path(), "shop", "1", ""));
        set_policy(n, home.path(), "south:\n  - workers: [{ set: south }]\n  - followup: fail\n");
        let explained = n.json(&["policy", "explain", "shop"]);
        assert_eq!(explained["node"], "s", "{explained:#}");

        // A running call stays where it is.
        let running = n.send("POST", "/fn/shop", "", "slow");
        s.wait_log("shop", "begun slow");
        set_policy(n, home.path(), "south:\n  - workers: [n]\n  - followup: fail\n");
        let next = s.send("POST", "/fn/shop", "", "").answer().unwrap();
        assert_eq!((next.status, next.node()), (200, Some("n")), "{next:?}");
        let running = running.answer().unwrap();
        assert_eq!((running.status, running.node()), (200, Some("s")), "{running:?}");

        // Unknown names are warnings, and the explanation names the nodes that are left.
        let file = home.path().join("unknown.yaml");
        let unknown = "south:\n  - workers: [nn, { set: sooth }]\n  - followup: fail\n";
        std::fs::write(&file, unknown).unwrap();
        let set = n.cli(&["policy", "set", file.to_str().unwrap()]);
        let warnings = String::from_utf8_lossy(&set.stderr);
        assert!(
            set.status.success() && warnings.contains("nn") && warnings.contains("sooth"),
            "{warnings}"
        );
        let line =
            |line: &str| line.starts_with(file.to_str().unwrap()) && line.contains(":2:15: warning: ");
        assert!(warnings.lines().any(line), "{warnings}");
        let explained = n.json(&["policy", "explain", "shop", "--entry", "s"]);
        assert!(explained["steps"].to_string().contains("what node `n` knows"), "{explained:#}");
        assert!(explained["node"].is_null(), "{explained:#}");
        let refused = n.send("POST", "/fn/shop", "", "").answer().unwrap();
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(refused.body.contains("policy explain shop"), "{refused:?}");
        assert_eq!(refused.node(), None, "it ran nowhere: {refused:?}");
        let unknown = n.cli(&["policy", "explain", "shop", "--entry", "nobody"]);
        assert!(String::from_utf8_lossy(&unknown.stderr).contains("`nobody` does not exist"));

        // A text that is not valid changes nothing.
        std::fs::write(&file, "south:\n  - workers: [n]\n    strategy: neerest\n").unwrap();
        let invalid = n.cli(&["policy", "set", file.to_str().unwrap()]);
        let report = String::from_utf8_lossy(&invalid.stderr);
        assert!(
            !invalid.status.success() && report.contains("nearest") && report.contains(":3:"),
            "{report}"
        );
        assert!(n.ok(&["policy", "show"]).contains("sooth"));

        // An empty text is no removal.
        std::fs::write(&file, "# nothing\n\n").unwrap();
        let empty = n.cli(&["policy", "set", file.to_str().unwrap()]);
        let report = String::from_utf8_lossy(&empty.stderr);
        assert_eq!(empty.status.code(), Some(7), "{report}");
        assert!(report.contains("`edgefaas policy rm`"), "{report}");
        assert!(n.ok(&["policy", "show"]).contains("sooth"));

        // A tag that one side does not have is named by both.
        std::fs::write(&file, "suoth:\n  - workers: \"*\"\n").unwrap();
        let set = n.cli(&["policy", "set", file.to_str().unwrap()]);
        let warnings = String::from_utf8_lossy(&set.stderr);
        assert!(
            warnings.contains("no tag `south`") && warnings.contains("`placement = \"suoth\"`"),
            "{warnings}"
        );
        let deployed = n.json(&["deploy", &version(home.path(), "shop", "2", ""), "--wait", "60s"]);
        let warnings = deployed["warnings"].to_string();
        assert!(warnings.contains("did you mean `suoth`?"), "{warnings}");
        let explained = n.ok(&["policy", "explain", "shop"]);
        assert!(
            explained.starts_with("the tag `south` of function `shop` is not in the policy"),
            "{explained}"
        );
    });
}
