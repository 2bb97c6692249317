//! Output of an app's state on the nodes of a cluster.

use edgefaas_api::control as proto;
use edgefaas_api::control::node_app::State;
use serde::Serialize;

use crate::fitting::{Column, Fit};
use crate::output;

/// An app on one node, in JSON.
#[derive(Serialize)]
pub struct NodeApp<'a> {
    node: &'a str,
    zone: &'a str,
    revision: &'a str,
    state: &'static str,
    fetched_permille: Option<u32>,
    reason: Option<&'a str>,
}

impl<'a> From<&'a proto::NodeApp> for NodeApp<'a> {
    fn from(app: &'a proto::NodeApp) -> Self {
        Self {
            node: &app.node,
            zone: &app.zone,
            revision: &app.revision,
            state: word(app.state()),
            fetched_permille: (app.state() == State::Fetching).then_some(app.permille),
            reason: Some(app.detail.as_str()).filter(|detail| !detail.is_empty()),
        }
    }
}

/// The nodes of an app, in JSON.
pub fn json(nodes: &[proto::NodeApp]) -> Vec<NodeApp<'_>> {
    nodes.iter().map(NodeApp::from).collect()
}

/// The columns of [`rows`].
pub const COLUMNS: [Column; 4] = [
    Column { name: "NODE", fit: Fit::Middle(10) },
    Column { name: "ZONE", fit: Fit::End(6, 0) },
    Column { name: "REVISION", fit: Fit::Whole },
    Column { name: "STATE", fit: Fit::End(12, 1) },
];

/// A row for each node.
pub fn rows(nodes: &[proto::NodeApp]) -> Vec<Vec<String>> {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let row = |app: &proto::NodeApp| {
        vec![app.node.clone(), or_dash(&app.zone), or_dash(output::short(&app.revision)), sentence(app)]
    };
    nodes.iter().map(row).collect()
}

/// Warnings about nodes that could not carry out a command.
pub fn warn(nodes: &[proto::NodeApp]) {
    for node in nodes.iter().filter(|node| node.state() == State::Failed) {
        let (name, detail) = (&node.node, output::indented(&node.detail));
        eprintln!("warning: node `{name}` keeps the revision that it has: {detail}");
    }
}

/// Warnings about concurrent deploys that lost.
pub fn warn_lost(app: &proto::App) {
    for lost in &app.lost {
        let what = match output::short(&lost.revision) {
            "" => "a removal".to_owned(),
            revision => format!("revision {revision}"),
        };
        let (name, node, since) = (&app.name, &lost.node, output::since(lost.deployed_unix_ms as u64));
        eprintln!(
            "warning: app `{name}` was changed twice at the same time, or on two sides of a network partition: {what}, decided on \
             `{node}` {since}, lost; deploy the right one again"
        );
    }
}

fn word(state: State) -> &'static str {
    match state {
        State::Live => "live",
        State::Elsewhere => "elsewhere",
        State::Waiting | State::Unspecified => "waiting",
        State::Fetching => "fetching",
        State::Failed => "failed",
        State::ThisNode => "this-node",
        State::Away => "away",
        State::Removed => "removed",
    }
}

fn sentence(app: &proto::NodeApp) -> String {
    match app.state() {
        State::Live => "live".to_owned(),
        State::Elsewhere => "runs on other nodes".to_owned(),
        State::Waiting | State::Unspecified => "waiting".to_owned(),
        State::Fetching => output::fetching(app.permille),
        State::Failed => format!("failed: {}", app.detail),
        State::ThisNode => "deployed to this node alone".to_owned(),
        State::Away => "away; gets it when it returns".to_owned(),
        State::Removed => "removed".to_owned(),
    }
}
