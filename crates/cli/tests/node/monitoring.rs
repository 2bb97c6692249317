//! The dashboard and the alerts name metrics that a node has.

use std::collections::BTreeSet;

use crate::support::{Running, repository};

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    words.filter(|word| word.starts_with("edgefaas_")).map(str::to_owned).collect()
}

#[test]
fn the_metrics_of_the_dashboard_and_the_alerts_exist() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("hello.js");
    std::fs::write(&file, "export default () => 'hello';\n").unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    node.ok(&["deploy", file.to_str().unwrap()]);
    node.ok(&["invoke", "hello"]);
    let metrics = node.control_get("/metrics");
    // With their suffixes: of samples, not of the comments about a family.
    let there: BTreeSet<String> = metrics
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned()))
        .collect();
    for name in ["grafana-dashboard.json", "edgefaas-alerts.yml"] {
        let text = std::fs::read_to_string(repository().join("docs/monitoring").join(name)).unwrap();
        let named = names(&text);
        assert!(named.len() >= 4, "{name}: {named:?}");
        let missing: Vec<_> = named.difference(&there).collect();
        assert!(missing.is_empty(), "{name} names {missing:?}, which are not among:\n{metrics}");
    }
    let dashboard = std::fs::read_to_string(repository().join("docs/monitoring/grafana-dashboard.json"));
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard.unwrap()).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() >= 12);
}
