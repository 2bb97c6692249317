//! `edgefaas dead` and `edgefaas invocations` as an operator has them: list, show, retry and discard.

use std::path::Path;

use serde_json::Value;

use crate::durable::{eventually, request};
use crate::hosted::write_app;
use crate::support::Running;

const MANIFEST: &str = r#"
app = "gate"

[functions.open]
main = "open.js"
triggers = [{ mqtt = "in/+", qos = 1 }]
secrets = ["key"]
permissions = { objects = ["o"] }
retry = { attempts = 1 }

[functions.slow]
main = "slow.js"
retry = { attempts = 2, backoff = "10h" }

[functions.opened]
main = "opened.js"
permissions = { objects = ["o"] }
"#;
const OPEN: &str = r#"
export default async (event, context) => {
    if (context.secrets.key !== "right") throw new Error("the door stays shut");
    await context.object("o").counter("opened").add(1);
};
"#;
const SLOW: &str = r#"export default () => { throw new Error("not yet"); };"#;
const OPENED: &str = r#"export default (event, context) => context.object("o").counter("opened").value();"#;

fn start(home: &Path) -> Running {
    let node = Running::start(&home.join("data"), &[]);
    node.tell(&["secrets", "set", "key", "--app", "gate"], "wrong");
    let files = [("edgefaas.toml", MANIFEST), ("open.js", OPEN), ("slow.js", SLOW), ("opened.js", OPENED)];
    node.ok(&["deploy", &write_app(home, "gate", &files)]);
    node
}

fn list(node: &Running, args: &[&str]) -> Vec<Value> {
    let list: Value = serde_json::from_str(&node.ok(&[args, &["-o", "json"]].concat())).unwrap();
    list["invocations"].as_array().unwrap().clone()
}

#[test]
fn dead_letters_are_listed_shown_retried_and_discarded() {
    let home = tempfile::tempdir().unwrap();
    let node = start(home.path());
    for number in 0..4 {
        node.ok(&["publish", "in/door", "-d", &format!("card {number}"), "--qos", "1"]);
    }
    eventually("four are dead", || list(&node, &["dead"]).len() == 4);
    let table = node.ok(&["dead"]);
    assert!(table.contains("the door stays shut") && table.contains("mqtt in/door"), "{table}");
    assert_eq!(list(&node, &["dead", "--limit", "3"]).len(), 3);
    assert_eq!(list(&node, &["dead", "--function", "slow"]).len(), 0);
    let newest = list(&node, &["dead", "--function", "open"])[0]["id"].as_str().unwrap().to_owned();
    let shown = node.ok(&["dead", "show", &newest]);
    assert!(shown.contains("card 3") && shown.contains("the door stays shut"), "{shown}");

    node.ok(&["dead", "discard", &newest]);
    let gone = node.cli(&["dead", "retry", &newest]);
    assert_eq!(gone.status.code(), Some(6), "{gone:?}");
    node.tell(&["secrets", "set", "key", "--app", "gate"], "right");
    let retried = node.ok(&["dead", "retry", "--all", "--function", "open"]);
    assert_eq!(retried.matches("starts again as").count(), 3, "{retried}");
    eventually("three doors open", || node.http("POST", "/fn/opened", "").1 == "3");
    assert!(list(&node, &["dead"]).is_empty());
}

#[test]
fn waiting_invocations_are_hastened_and_ended() {
    let home = tempfile::tempdir().unwrap();
    let node = start(home.path());
    for _ in 0..2 {
        let accepted = request(&node.http, "POST", "/fn/slow", "prefer: respond-async\r\n", "");
        assert_eq!(accepted.map(|(status, _)| status), Some(202));
    }
    let is_retrying = |found: &Value| found["state"] == "retrying" && found["attempt"] == 2;
    eventually("both wait for their next attempt", || {
        list(&node, &["invocations", "--function", "slow"])
            .iter()
            .filter(|found| is_retrying(found))
            .count()
            == 2
    });
    node.kill();
    let node = Running::start(&home.path().join("data"), &[]);
    for found in list(&node, &["invocations", "--function", "slow"]) {
        assert!(found["detail"].as_str().unwrap().contains("not yet"), "its last error: {found}");
    }
    let first = list(&node, &["invocations"])[0]["id"].as_str().unwrap().to_owned();
    node.ok(&["invocations", "retry", &first]);
    eventually("its last attempt fails", || list(&node, &["dead"]).len() == 1);
    node.ok(&["invocations", "discard", "--all"]);
    assert!(list(&node, &["invocations"]).is_empty());
    assert_eq!(list(&node, &["dead"]).len(), 1, "what was discarded is no dead letter");
}

#[test]
fn a_name_that_no_function_has_is_an_error() {
    let home = tempfile::tempdir().unwrap();
    let node = start(home.path());
    for args in [
        &["dead", "--function", "opne"][..],
        &["invocations", "--function", "opne"],
        &["dead", "retry", "--all", "--function", "opne"],
        &["invocations", "discard", "--all", "--function", "opne"],
    ] {
        let output = node.cli(args);
        assert_eq!(output.status.code(), Some(6), "{args:?}: {output:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("there is no function `opne`"), "{args:?}: {error}");
    }
    // Nothing of a function that there is, or that there was while it has dead letters, is none.
    node.ok(&["dead", "retry", "--all", "--function", "open"]);
    node.ok(&["publish", "in/door", "-d", "card", "--qos", "1"]);
    eventually("it is dead", || list(&node, &["dead"]).len() == 1);
    node.ok(&["rm", "gate"]);
    assert_eq!(list(&node, &["dead", "--function", "open"]).len(), 1);
}
