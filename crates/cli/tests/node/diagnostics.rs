//! What a node says on stderr, and who reads it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Running, edgefaas};

/// More lines than a pipe and the node's own queue take.
const CALLS: usize = 60;
const LOUD: &str = "export default () => { for (let n = 0; n < 100; n++) console.log(\"line \" + n); return \"said\"; };\n";

/// As of a terminal that is stopped, or a log collector that hangs.
#[test]
fn nothing_waits_for_who_reads_stderr() {
    let home = tempfile::tempdir().unwrap();
    let (data, file) = (home.path().join("data"), home.path().join("loud.js"));
    std::fs::write(&file, LOUD).unwrap();
    let any = "127.0.0.1:0";
    let mut child = edgefaas(&data)
        .args(["run", "--http", any, "--mqtt", any, "--control", any])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = child.stderr.take().unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let node = Running::of(child, ready, &data);
    node.ok(&["deploy", file.to_str().unwrap()]);
    for _ in 0..CALLS {
        assert_eq!(node.http("POST", "/fn/loud", ""), (200, "said".to_owned()));
    }
    // Now somebody reads: what was left out is counted, and the rest is there to the end.
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        lines.filter(|line| line.contains("lines are left out")).count()
    });
    assert_eq!(node.http("POST", "/fn/loud", ""), (200, "said".to_owned()));
    assert_eq!(node.terminate(), Some(0));
    assert!(reader.join().unwrap() > 0, "lost lines are counted");
}
