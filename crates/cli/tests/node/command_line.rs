//! Commands that say more than they did: revisions, logs of a node that goes, tokens, ports, the self-check.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::support::{Running, edgefaas, free_port};

fn deploy(node: &Running, home: &std::path::Path, text: &str) {
    let file = home.join("hello.js");
    std::fs::write(&file, format!("export default () => {{ console.log('{text}'); return '{text}'; }};\n"))
        .unwrap();
    node.ok(&["deploy", file.to_str().unwrap()]);
}

fn revisions(node: &Running) -> (String, Vec<String>) {
    let list: serde_json::Value = serde_json::from_str(&node.ok(&["list", "-o", "json"])).unwrap();
    let short = |value: &serde_json::Value| value.as_str().unwrap()[..12].to_owned();
    let app = &list["apps"][0];
    (short(&app["revision"]), app["previous_revisions"].as_array().unwrap().iter().map(short).collect())
}

#[test]
fn list_and_rollback_name_revisions() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    for text in ["one", "two", "three"] {
        deploy(&node, home.path(), text);
    }
    let (live, earlier) = revisions(&node);
    assert_eq!(earlier.len(), 2);
    let list = node.ok(&["list"]);
    let row = list.lines().find(|line| line.contains(&live)).unwrap_or_else(|| panic!("{list}"));
    assert!(row.contains(&earlier.join(", ")), "{list}");

    let back = node.cli(&["rollback", "hello"]);
    let (stdout, stderr) =
        (String::from_utf8(back.stdout).unwrap(), String::from_utf8(back.stderr).unwrap());
    assert!(back.status.success(), "{stderr}");
    assert!(
        stderr
            .contains(&format!("rolling back hello from {live} to {}, the revision before it", earlier[0])),
        "{stderr}"
    );
    assert!(
        stdout.contains(&format!("hello {} is live, and no longer {live}; `--to` can name ", earlier[0])),
        "{stdout}"
    );
    assert_eq!(node.ok(&["invoke", "hello"]), "two\n");
    let wrong = node.cli(&["rollback", "hello", "--to", "ffff"]);
    let stderr = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(6) && stderr.contains(&earlier[1]), "{stderr}");
}

#[test]
fn a_follower_says_that_the_node_went_and_follows_it_again() {
    let home = tempfile::tempdir().unwrap();
    let (data, port) = (home.path().join("data"), free_port());
    let control = format!("127.0.0.1:{port}");
    let any = "127.0.0.1:0";
    let start = || Running::start_at(&data, &["--http", any, "--mqtt", any, "--control", &control]);
    let node = start();
    deploy(&node, home.path(), "first");
    node.ok(&["invoke", "hello"]);
    let url = node.control.clone();
    let follow = |options: &[&str]| {
        let mut command = edgefaas(&data);
        command
            .args(["--node", &url, "logs", "-f"])
            .args(options)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().contains("first"));
        (child, lines)
    };
    let (mut plain, mut plain_lines) = follow(&[]);
    let (mut again, mut again_lines) = follow(&["--reconnect"]);
    assert_eq!(node.terminate(), Some(0));
    let code = plain.wait().unwrap().code();
    assert!(plain_lines.next().is_none());
    let mut stderr = String::new();
    plain.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(code == Some(3) && stderr.contains("--reconnect"), "{code:?} {stderr}");

    let node = start();
    node.ok(&["invoke", "hello"]);
    assert!(again_lines.next().unwrap().unwrap().contains("first"), "the line of the second start");
    again.kill().unwrap();
    again.wait().unwrap();
}

#[test]
fn a_wrong_token_is_not_a_missing_one() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    let empty = home.path().join("empty");
    let ask = |token: &[&str]| {
        let output = edgefaas(&empty).args(["--node", &node.control, "list"]).args(token).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, none) = ask(&[]);
    assert!(code == Some(4) && none.contains("needs `authorization: Bearer TOKEN`"), "{none}");
    let (code, wrong) = ask(&["--token", "wrong"]);
    assert!(code == Some(4) && wrong.contains("the token is wrong"), "{wrong}");
}

#[test]
fn another_port_of_a_node_is_recognised() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    let mqtt = format!("127.0.0.1:{}", node.mqtt_port);
    for (address, kind) in [(mqtt.as_str(), "a port of MQTT"), (node.http.as_str(), "a port of HTTP")] {
        for token in [&[][..], &["--token", "given"]] {
            let ask = || {
                let output = edgefaas(&node.data_dir)
                    .args(["--node", address, "list"])
                    .args(token)
                    .output()
                    .unwrap();
                let stderr = String::from_utf8(output.stderr).unwrap();
                assert_eq!(output.status.code(), Some(3), "{stderr}");
                stderr
            };
            let is_told = |stderr: &str| stderr.contains(kind) && stderr.contains("7070 by default");
            // The command gives the port a second to answer, which a busy machine may take.
            let mut stderr = ask();
            for _ in 0..4 {
                if !is_told(&stderr) {
                    stderr = ask();
                }
            }
            assert!(is_told(&stderr), "{stderr}");
        }
    }
}

#[test]
fn the_self_check_names_what_would_stop_a_node() {
    let home = tempfile::tempdir().unwrap();
    let any = "127.0.0.1:0";
    let check = |options: &[&str]| {
        let mut command = edgefaas(&home.path().join("data"));
        command.args(["-o", "json"]).args(options);
        let output = command.output().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), found)
    };
    let free = ["--http", any, "--mqtt", any, "--control", any];
    let (code, found) = check(&[&["self-check"], &free[..]].concat());
    assert_eq!((code, &found["runs"]), (Some(0), &true.into()), "{found}");
    let names: Vec<_> =
        found["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in [
        "port",
        "free space",
        "disk, syncs",
        "memory",
        "control group",
        "open files",
        "kernel",
        "clock",
        "entropy",
        "child processes",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert!(!home.path().join("data").exists(), "a check makes no data directory");

    let taken = std::net::TcpListener::bind(any).unwrap();
    let taken = taken.local_addr().map(|address| (address.to_string(), taken)).unwrap();
    let (code, found) = check(&["doctor", "--http", &taken.0, "--mqtt", any, "--control", any]);
    assert_eq!((code, &found["runs"]), (Some(1), &false.into()), "{found}");
    let text = found.to_string();
    assert!(text.contains(&format!("{} (--http): in use by another program", taken.0)), "{text}");

    // Of a running node the ports are its own.
    let node = Running::start(&home.path().join("data"), &[]);
    let (code, found) = check(&["self-check", "--mqtt", &format!("127.0.0.1:{}", node.mqtt_port)]);
    assert_eq!(code, Some(0), "{found}");
    assert!(found.to_string().contains("a node runs with it"), "{found}");

    let wrong = home.path().join("wrong.toml");
    std::fs::write(&wrong, "[store]\nreserve = \"1B\"\n").unwrap();
    let (code, found) = check(&[&["self-check", "--config", wrong.to_str().unwrap()], &free[..]].concat());
    assert!(code == Some(1) && found.to_string().contains("store.reserve"), "{found}");
}
