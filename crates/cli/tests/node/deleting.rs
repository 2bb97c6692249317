//! `edgefaas objects delete`, and the objects of an app that is removed.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::{Running, edgefaas};

const USAGE: i32 = 2;
const FAILED: i32 = 1;

fn start(home: &Path) -> Running {
    let node = Running::start(&home.join("data"), &[]);
    for (object, field) in
        [("room-1", "people"), ("room-1", "doors"), ("room-2", "people"), ("hall", "people")]
    {
        node.ok(&["objects", "add", "rooms", object, field, "1"]);
    }
    node
}

/// The names of all objects.
fn names(node: &Running) -> Vec<String> {
    let list: Value = serde_json::from_str(&node.ok(&["objects", "list", "-o", "json"])).unwrap();
    let objects = list["objects"].as_array().unwrap();
    objects.iter().map(|object| object["object"].as_str().unwrap().to_owned()).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a command on a terminal, and answers its question.
fn on_terminal(node: &Running, args: &[&str], answer: &str) -> Output {
    let program = edgefaas(&node.data_dir);
    let words = [program.get_program().to_str().unwrap(), "--node", &node.control];
    let line: Vec<_> = words.iter().chain(args).map(|word| format!("'{word}'")).collect();
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line.join(" "), "/dev/null"]);
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("script runs");
    child.stdin.take().unwrap().write_all(answer.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn fields_and_objects_are_deleted_by_their_names() {
    let home = tempfile::tempdir().unwrap();
    let node = start(home.path());
    let deleted = |args: &[&str]| node.ok(&[&["objects", "delete", "rooms"], args].concat());
    assert_eq!(deleted(&["room-1", "doors"]), "deleted 1 field of 1 object\n");
    assert_eq!(deleted(&["room-1", "doors"]), "deleted 0 fields of 0 objects\n");
    let answer: Value = serde_json::from_str(&deleted(&["room-1", "-o", "json"])).unwrap();
    assert_eq!(answer, json!({"objects": 1, "fields": 1}));
    assert_eq!(names(&node), ["hall", "room-2"]);
    // An empty name, as of a variable that is not set, is not the whole object.
    let said = node.cli(&["objects", "delete", "rooms", "room-2", ""]);
    assert_eq!(said.status.code(), Some(USAGE), "{said:?}");
    let said = node.cli(&["objects", "delete", "rooms", ""]);
    assert!(stderr(&said).contains("the object name is empty"), "{said:?}");
    assert_eq!(names(&node), ["hall", "room-2"]);
}

#[test]
fn a_pattern_needs_a_confirmation() {
    let home = tempfile::tempdir().unwrap();
    let node = start(home.path());
    let pattern = ["objects", "delete", "rooms", "room-*"];
    let said = node.cli(&pattern);
    assert_eq!(said.status.code(), Some(USAGE), "{said:?}");
    assert!(
        stderr(&said).contains(
            "stdin is not a terminal, so you cannot confirm the deletion of 3 fields of 2 objects of app `rooms`; confirm it with --yes"
        ),
        "{said:?}"
    );
    assert_eq!(names(&node), ["hall", "room-1", "room-2"]);
    // Nothing to delete needs no confirmation.
    assert_eq!(node.ok(&["objects", "delete", "rooms", "door-*"]), "deleted 0 fields of 0 objects\n");

    let said = on_terminal(&node, &pattern, "n\n");
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(text.contains("Delete 3 fields of 2 objects of app `rooms`? [y/N]"), "{said:?}");
    assert!(text.contains("nothing was deleted"), "{said:?}");
    assert_eq!(said.status.code(), Some(FAILED), "{said:?}");
    assert_eq!(names(&node), ["hall", "room-1", "room-2"]);
    let said = on_terminal(&node, &[&pattern[..], &["doors"]].concat(), "y\n");
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(text.contains("Delete 1 field of 1 object of app `rooms`? [y/N]"), "{said:?}");
    assert!(said.status.success() && text.contains("deleted 1 field of 1 object"), "{said:?}");
    let said = node.ok(&[&pattern[..], &["--yes"]].concat());
    assert_eq!(said, "deleted 2 fields of 2 objects\n");
    assert_eq!(names(&node), ["hall"]);
}

#[test]
fn a_watch_shows_a_deletion() {
    let home = tempfile::tempdir().unwrap();
    let node = start(home.path());
    let mut watch = edgefaas(&node.data_dir)
        .args(["--node", &node.control, "objects", "watch", "rooms", "room-*", "-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    // The watch has begun once it shows a change.
    let seen = std::thread::scope(|scope| {
        let first = scope.spawn(|| lines.next().unwrap().unwrap());
        while !first.is_finished() {
            node.ok(&["objects", "add", "rooms", "room-1", "people", "1"]);
        }
        first.join().unwrap()
    });
    assert!(seen.contains(r#""deleted":false"#), "{seen}");
    node.ok(&["objects", "delete", "rooms", "room-2"]);
    let deleted = lines.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
    let deleted =
        deleted.filter(|change| change["object"] == "room-2").map(|change| change["deleted"].clone());
    assert_eq!(deleted.take(1).collect::<Vec<_>>(), [true]);
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn an_app_is_removed_with_its_objects_or_without() {
    let home = tempfile::tempdir().unwrap();
    let node = start(home.path());
    let app = home.path().join("app");
    std::fs::create_dir_all(&app).unwrap();
    let manifest =
        "app = \"rooms\"\n[functions.enter]\nmain = \"enter.js\"\npermissions = { objects = [\"*\"] }\n";
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    let code = "export default async (event, { object }) => { await object().counter('own').add(1); };\n";
    std::fs::write(app.join("enter.js"), code).unwrap();
    let deploy = || drop(node.ok(&["deploy", app.to_str().unwrap()]));
    node.ok(&["objects", "add", "other", "room-1", "people", "1"]);

    deploy();
    node.ok(&["invoke", "enter"]);
    let said = node.cli(&["rm", "rooms"]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(String::from_utf8_lossy(&said.stdout), "rooms is removed, with its functions enter\n");
    assert!(
        stderr(&said)
            .contains("its objects are kept; delete them with `edgefaas objects delete rooms '*'`"),
        "{said:?}"
    );
    assert_eq!(names(&node), ["room-1", "@enter", "hall", "room-1", "room-2"]);

    deploy();
    let said = node.cli(&["rm", "rooms", "--with-objects", "--this-node"]);
    assert_eq!(said.status.code(), Some(USAGE), "{said:?}");
    let said = node.ok(&["rm", "rooms", "--with-objects"]);
    assert_eq!(said, "rooms is removed, with its functions enter\ndeleted 5 fields of 4 objects\n");
    assert_eq!(names(&node), ["room-1"], "of the other app");

    deploy();
    let said = node.cli(&["rm", "rooms", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((&answer["objects_kept"], stderr(&said)), (&json!(false), String::new()));
    deploy();
    node.ok(&["objects", "add", "rooms", "hall", "people", "1"]);
    let answer: Value =
        serde_json::from_str(&node.ok(&["rm", "rooms", "--with-objects", "-o", "json"])).unwrap();
    assert_eq!(answer["deleted"], json!({"objects": 1, "fields": 1}));
}
