//! The examples, deployed as the README says and used.

use std::process::{Command, Stdio};

use crate::bridging::eventually;
use crate::support::{Running, has_wasm_target, repository, skipped};

#[test]
fn the_greenhouse_runs() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    if Command::new("mosquitto_sub").stderr(Stdio::null()).stdout(Stdio::null()).status().is_err() {
        return skipped("mosquitto-clients");
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(home.path(), &[]);
    node.ok(&["deploy", repository().join("examples/greenhouse").to_str().unwrap()]);

    // The simulator publishes every second, and a cold room shuts its vent.
    let actuators = Command::new("mosquitto_sub")
        .args(["-p", &node.mqtt_port, "-t", "greenhouse/attic/actuators/vent", "-C", "1", "-W", "60", "-v"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Retained, so that it does not matter which of the two is first.
    let published = Command::new("mosquitto_pub")
        .args(["-p", &node.mqtt_port, "-t", "greenhouse/attic/climate", "-q", "1"])
        .args(["-m", r#"{"temperature_c": 41, "humidity_pct": 20}"#])
        .status()
        .unwrap();
    assert!(published.success());
    let seen = actuators.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&seen.stdout).trim(), "greenhouse/attic/actuators/vent open");

    // Another function counts the reading, perhaps later than the vent is switched.
    let average = eventually("the average has a reading", || {
        let average = node.ok(&["invoke", "average", "-d", "attic"]);
        let average: serde_json::Value = serde_json::from_str(&average).unwrap();
        (average["readings"] != 0).then_some(average)
    });
    assert_eq!(average["readings"], 1, "{average}");
    assert_eq!(average["temperature_c"], 41.0, "{average}");

    let climate = Command::new("mosquitto_sub")
        .args(["-p", &node.mqtt_port, "-t", "greenhouse/north/climate", "-C", "1", "-W", "60"])
        .output()
        .unwrap();
    let reading: serde_json::Value = serde_json::from_slice(&climate.stdout).expect("the simulator runs");
    assert!(reading["temperature_c"].is_number(), "{reading}");
    let (status, latest) = node.http("GET", "/greenhouse", "");
    assert_eq!(status, 200, "{latest}");
    let latest: serde_json::Value = serde_json::from_str(&latest).unwrap();
    assert_eq!(latest[0]["zone"], "north", "{latest}");
    assert!(node.ok(&["invoke", "latest"]).contains("north"));
    let list = node.ok(&["list"]);
    for name in ["simulator", "comfort", "average", "latest"] {
        assert!(list.contains(name), "{list}");
    }
}

/// The `nth` code block of a language in a README.
fn block(readme: &str, language: &str, nth: usize) -> String {
    let text = std::fs::read_to_string(repository().join(readme)).unwrap();
    let fence = format!("```{language}\n");
    let code =
        text.split(&fence).nth(nth + 1).unwrap_or_else(|| panic!("{readme} has no {language} {nth}"));
    code.split("```").next().unwrap().to_owned()
}

const ALARM: &str = r#"
triggers = [{ mqtt = "readings/+" }]
permissions = { publish = ["alarm/temperature"], objects = ["alarms"] }
config = { limit_c = 30.0 }
"#;

fn check_alarm(node: &Running, app: &std::path::Path) {
    node.ok(&["deploy", app.to_str().unwrap()]);
    assert_eq!(node.http("POST", "/fn/alarm", r#"{"temperature_c": 20.5}"#).0, 204);
    assert_eq!(node.http("POST", "/fn/alarm", r#"{"temperature_c": 41.5}"#).0, 204);
    let log = node.ok(&["logs", "alarm"]);
    assert!(log.contains("41.5 °C, alarm number 1"), "{log}");
    let (status, problem) = node.http("POST", "/fn/alarm", "no json");
    assert_eq!(status, 500, "{problem}");
}

#[test]
fn the_examples_of_the_javascript_sdk_run() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    let app = home.path().join("alarm");
    std::fs::create_dir(&app).unwrap();
    let manifest = format!("app = \"alarm\"\n[functions.alarm]\nmain = \"alarm.ts\"\n{ALARM}");
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    std::fs::write(app.join("alarm.ts"), block("crates/sdk/js/README.md", "ts", 0)).unwrap();
    check_alarm(&node, &app);

    let weather = home.path().join("weather.ts");
    std::fs::write(&weather, block("crates/sdk/js/README.md", "ts", 1)).unwrap();
    let permissions = ["--allow", "objects=weather", "--allow", "publish=weather/poll"];
    node.ok(&[&["deploy", weather.to_str().unwrap()], &permissions[..]].concat());
    assert_eq!(node.http("GET", "/fn/weather/berlin", ""), (404, "nothing yet".into()));
}

#[test]
fn the_example_of_the_rust_sdk_runs() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    let app = home.path().join("alarm");
    std::fs::create_dir_all(app.join("src")).unwrap();
    let manifest = format!("app = \"alarm\"\n[functions.alarm]\nmain = \".\"\n{ALARM}");
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    let sdk = repository().join("crates/sdk");
    let cargo = format!(
        "[package]\nname = \"alarm\"\nedition = \"2024\"\n[lib]\ncrate-type = [\"cdylib\"]\n[dependencies]\n\
         edgefaas-sdk = {{ path = {sdk:?} }}\nserde = {{ version = \"1\", features = [\"derive\"] }}\n[workspace]\n"
    );
    std::fs::write(app.join("Cargo.toml"), cargo).unwrap();
    std::fs::write(app.join("src/lib.rs"), block("crates/sdk/README.md", "rust", 0)).unwrap();
    check_alarm(&node, &app);
}

/// One command: two zones, a function beside its data, a link that is cut and restored.
#[test]
fn two_sites_go_on_while_their_link_is_cut() {
    let is_missing = |program: &&str| {
        let mut help = Command::new(program);
        help.arg("--help").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
    };
    let missing = ["ip", "unshare", "curl", "mosquitto_pub"].into_iter().find(is_missing);
    if let Some(program) = missing {
        return skipped(program);
    }
    let namespaces = Command::new("sh")
        .args(["-c", r#"[ "$(id -u)" = 0 ] || as_root="--user --map-root-user"; unshare ${as_root:-} --net --mount true"#])
        .stderr(Stdio::null())
        .status();
    if !namespaces.is_ok_and(|status| status.success()) {
        return skipped("root, or user namespaces");
    }
    let script = repository().join("examples/two-sites/two-sites.sh");
    let run = Command::new(script).env("EDGEFAAS", env!("CARGO_BIN_EXE_edgefaas")).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{out}\n{err}");
    let parts: Vec<&str> = out.split("\n== ").collect();
    let part = |title: &str| {
        *parts.iter().find(|part| part.starts_with(title)).unwrap_or_else(|| panic!("{title}: {out}"))
    };
    let average = r#"{"sensors":3,"average":17} (200, south)"#;
    let reported = part("sensors report to the south");
    assert_eq!(reported.matches(average).count(), 2, "{reported}");
    assert!(reported.contains("\"fahrenheit\":68} (200, north)"), "{reported}");
    assert!(part("why").contains("a call of average runs on south"), "{out}");
    let cut = part("the link is cut");
    assert!(cut.contains("\"average\":17.3"), "{cut}");
    assert_eq!(cut.matches("\"fahrenheit\":68").count(), 2, "both sites go on: {cut}");
    // It may not be known yet that it is away: then its calls have failed.
    assert!(cut.contains("(503, )") && cut.contains("south is skipped: it "), "{cut}");
    assert!(part("the link is back").contains("(200, south)"), "{out}");
}
