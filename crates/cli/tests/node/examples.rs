//! The examples, deployed as the README says and used.

use std::process::{Command, Stdio};

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

    let average = node.ok(&["invoke", "average", "-d", "attic"]);
    let average: serde_json::Value = serde_json::from_str(&average).unwrap();
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
