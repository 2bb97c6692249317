//! What a node says on stderr, and who reads it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use crate::support::{Running, edgefaas};

/// Each logs as many lines as one may; all of them log more than a pipe and the node's own queue take.
const FUNCTIONS: usize = 6;
const CALLS: usize = 12;
const MOST_LINES: usize = 1000;
const LOUD: &str = "export default () => { for (let n = 0; n < 100; n++) console.log(\"line \" + n); return \"said\"; };\n";

fn app(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    let functions = (0..FUNCTIONS).map(|number| format!("[functions.loud-{number}]\nmain = \"loud.js\"\n"));
    let manifest = format!("app = \"loud\"\n{}", functions.collect::<String>());
    std::fs::write(folder.join("edgefaas.toml"), manifest).unwrap();
    std::fs::write(folder.join("loud.js"), LOUD).unwrap();
}

/// As of a terminal that is stopped, or a log collector that hangs.
#[test]
fn nothing_waits_for_who_reads_stderr() {
    let home = tempfile::tempdir().unwrap();
    let (data, folder) = (home.path().join("data"), home.path().join("loud"));
    app(&folder);
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
    node.ok(&["deploy", folder.to_str().unwrap()]);
    for call in 0..FUNCTIONS * CALLS {
        let path = format!("/fn/loud-{}", call % FUNCTIONS);
        assert_eq!(node.http("POST", &path, ""), (200, "said".to_owned()));
    }
    // Now somebody reads: omitted lines are counted, and the rest is there to the end.
    let reader = std::thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        lines.filter(|line| line.contains("lines are omitted")).count()
    });
    assert_eq!(node.http("POST", "/fn/loud-0", ""), (200, "said".to_owned()));
    assert_eq!(node.terminate(), Some(0));
    assert!(reader.join().unwrap() > 0, "lost lines are counted");
}

/// One function that logs again and again does not fill the disk of a log collector.
#[test]
fn lines_of_one_kind_are_limited_on_stderr() {
    let home = tempfile::tempdir().unwrap();
    let (data, folder) = (home.path().join("data"), home.path().join("loud"));
    app(&folder);
    let log = home.path().join("log");
    let any = "127.0.0.1:0";
    let mut child = edgefaas(&data)
        .args(["run", "--http", any, "--mqtt", any, "--control", any])
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let node = Running::of(child, ready, &data);
    node.ok(&["deploy", folder.to_str().unwrap()]);
    for _ in 0..2 * CALLS {
        assert_eq!(node.http("POST", "/fn/loud-0", ""), (200, "said".to_owned()));
    }
    assert_eq!(node.http("POST", "/fn/loud-1", ""), (200, "said".to_owned()));
    assert_eq!(node.terminate(), Some(0));
    let text = std::fs::read_to_string(&log).unwrap();
    let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
    let (loud, other, notes) =
        (count("loud-0"), count("loud-1"), count("lines like the last ones are omitted"));
    // On a slow machine the calls take longer than one window of the limit.
    assert!((MOST_LINES..2 * CALLS * 100).contains(&loud), "{loud} lines");
    assert!(other == 100 && notes >= 1, "{other} lines of the other function, {notes} notes");
}
