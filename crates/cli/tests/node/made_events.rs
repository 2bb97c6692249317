//! `edgefaas invoke` with events of all kinds.

use serde_json::{Value, json};

use crate::support::Running;

const ECHO: &str = "export default async (event, context) => {\n\
                    if (event.kind === 'call' && event.text() === 'set') { await context.object('room').counter('people').add(3); }\n\
                    const headers = event.headers ? [...event.headers] : undefined;\n\
                    return { ...event.toJSON(), kind: event.kind, headers, body: event.text() };\n};\n";

const MANIFEST: &str = "app = \"echo\"\n[functions.echo]\nmain = \"echo.js\"\n\
                        triggers = [{ cron = \"0 6 * * *\" }]\npermissions = { objects = [\"room\"] }\n\
                        [functions.plain]\nmain = \"echo.js\"\n";

fn echoed(node: &Running, args: &[&str]) -> Value {
    serde_json::from_str(&node.ok(&[&["invoke", "echo"], args].concat())).unwrap()
}

#[test]
fn each_kind_of_event_reaches_the_function() {
    let home = tempfile::tempdir().unwrap();
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    std::fs::write(app.join("edgefaas.toml"), MANIFEST).unwrap();
    std::fs::write(app.join("echo.js"), ECHO).unwrap();
    let workflow = "document: { dsl: '1.0.3', namespace: default, name: flow, version: '0.1.0' }\ndo:\n  - a: { set: { b: 1 } }\n";
    std::fs::write(home.path().join("flow.yaml"), workflow).unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    node.ok(&["deploy", app.to_str().unwrap()]);
    node.ok(&["deploy", home.path().join("flow.yaml").to_str().unwrap()]);

    let http = echoed(&node, &["--http", "post", "/rooms?floor=2", "-H", "Accept: text/html", "-d", "x"]);
    assert_eq!(
        (&http["kind"], &http["method"], &http["path"]),
        (&json!("http"), &json!("POST"), &json!("/rooms"))
    );
    assert_eq!((&http["query"], &http["body"]), (&json!("floor=2"), &json!("x")));
    assert_eq!(http["headers"], json!([["accept", "text/html"]]));

    let mqtt = echoed(&node, &["--mqtt", "a/b", "--qos", "1", "--retain", "-d", "x"]);
    assert_eq!((&mqtt["kind"], &mqtt["topic"], &mqtt["qos"]), (&json!("mqtt"), &json!("a/b"), &json!(1)));
    assert_eq!(mqtt["retain"], true);

    assert_eq!(echoed(&node, &["--cron"])["schedule"], "0 6 * * *");
    let cron = echoed(&node, &["--cron", "*/5 * * * *"]);
    assert_eq!((&cron["kind"], &cron["schedule"]), (&json!("cron"), &json!("*/5 * * * *")));
    assert!(cron["scheduledTime"].as_u64().unwrap() > 1_700_000_000_000, "{cron}");

    assert_eq!(echoed(&node, &["-d", "set"])["kind"], "call");
    let change = echoed(&node, &["--object", "room", "people", "-d", "5"]);
    assert_eq!(
        (&change["kind"], &change["object"], &change["field"]),
        (&json!("object"), &json!("room"), &json!("people"))
    );
    let body: Value = serde_json::from_str(change["body"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&body["type"], &body["previous"], &body["value"]),
        (&json!("counter"), &json!(3), &json!(5))
    );
    let deleted = echoed(&node, &["--object", "room", "people"]);
    let body: Value = serde_json::from_str(deleted["body"].as_str().unwrap()).unwrap();
    assert_eq!((&body["deleted"], &body["value"]), (&json!(true), &json!(null)));

    for (args, code, expected) in [
        (&["echo", "--http", "GET", "rooms"][..], 7, "does not begin with `/`"),
        (&["echo", "--http", "GET", "/a\r\nb"], 7, "has a control character"),
        (&["echo", "--http", "GET", "/", "-H", "a b: c"], 7, "is not a header of HTTP"),
        (&["echo", "--http", "GET", "/", "-H", "a: b\r\nc: d"], 7, "is not a header of HTTP"),
        (&["echo", "--mqtt", "a/+"], 7, "is not a topic"),
        (&["plain", "--cron"], 7, "`plain` has no cron trigger; name a schedule"),
        (
            &["echo", "--cron", "often"],
            7,
            "\"often\" is not a schedule: it has 1 field, and a schedule has 5",
        ),
        (
            &["echo", "--cron", "0 25 * * *"],
            7,
            "`25` is not valid for the hour; for example, --cron '*/5 * * * *'",
        ),
        (
            &["echo", "--object", "room", "people", "-d", "\"many\""],
            7,
            "the field `people` of the object `room` is a counter, whose value is a whole number, and not a string",
        ),
        (
            &["echo", "--object", "room", "people", "-d", "1.5"],
            7,
            "a whole number, and not a number with a fraction",
        ),
        (&["echo", "--object", "room", "people", "-d", "{"], 7, "is not JSON"),
        (&["echo", "--http", "GET", "/", "-H", "nothing"], 2, "`nothing` is not a header"),
        (&["echo", "--http", "GET", "/", "--mqtt", "a"], 2, "cannot be used with"),
        (&["flow", "--cron"], 7, "`flow` is a workflow, which takes calls only"),
        (&["nobody", "--cron"], 6, "there is no function `nobody`"),
    ] {
        let output = node.cli(&[&["invoke"], args].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
}
