//! What is there after `kill -9`, and after a stop in good order.

use crate::support::Running;

const COUNT: &str = r#"
export default async (event, context) => {
    const counter = context.object("o").counter("n");
    if (event.kind === "http" && event.method === "POST") await counter.add(1);
    return String(await counter.value());
};
"#;

#[test]
fn what_was_answered_survives_kill_9() {
    let home = tempfile::tempdir().unwrap();
    let (file, data) = (home.path().join("count.js"), home.path().join("data"));
    std::fs::write(&file, COUNT).unwrap();
    let mut expected = 0;
    for round in 0..5 {
        let node = Running::start(&data, &[]);
        if round == 0 {
            node.ok(&["deploy", file.to_str().unwrap(), "--allow", "objects=o"]);
        }
        assert_eq!(node.http("GET", "/fn/count", ""), (200, expected.to_string()));
        for _ in 0..20 {
            expected += 1;
            assert_eq!(node.http("POST", "/fn/count", ""), (200, expected.to_string()));
        }
        if round == 4 {
            assert_eq!(node.terminate(), Some(0));
        } else {
            node.kill();
        }
    }
    let node = Running::start(&data, &[]);
    assert_eq!(node.http("GET", "/fn/count", ""), (200, "100".into()));
}

#[test]
fn kill_9_during_a_deploy_leaves_the_old_or_the_new_one() {
    let home = tempfile::tempdir().unwrap();
    let (file, data) = (home.path().join("f.js"), home.path().join("data"));
    std::fs::write(&file, "export default () => 'revision 0';").unwrap();
    let node = Running::start(&data, &[]);
    node.ok(&["deploy", file.to_str().unwrap()]);
    node.kill();
    let mut last = 0;
    for revision in 1..=6 {
        let node = Running::start(&data, &[]);
        std::fs::write(&file, format!("export default () => 'revision {revision}';")).unwrap();
        let mut deploy = crate::support::edgefaas(&data)
            .args(["--node", &node.control, "deploy", file.to_str().unwrap()])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Somewhere along the way; each round is a little later.
        let mut requests = 0;
        while deploy.try_wait().unwrap().is_none() && requests < revision * 4 {
            node.http("GET", "/fn/f", "");
            requests += 1;
        }
        node.kill();
        let deployed = deploy.wait().unwrap().success();
        let node = Running::start(&data, &[]);
        let (status, body) = node.http("GET", "/fn/f", "");
        assert_eq!(status, 200, "{body}");
        let found: i32 = body.strip_prefix("revision ").unwrap().parse().unwrap();
        assert!(found == revision || (found == last && !deployed), "{found} after {last} and {revision}");
        last = found;
        node.kill();
    }
}
