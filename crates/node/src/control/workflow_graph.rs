//! A workflow as a graph with the number of instances at each task.

use std::collections::{BTreeMap, HashMap};

use edgefaas_api::control as proto;
use edgefaas_coordinator::TaskCount;
use edgefaas_workflow::Program;
use edgefaas_workflow::flowchart::{flowchart, task_of};
use edgefaas_workflow::graph::{Group, Kind, mermaid};

/// The graph of a program. Counts of tasks that it does not have, of instances of an earlier revision, are left out.
pub(super) fn graph(program: &Program, counts: &BTreeMap<String, TaskCount>) -> proto::GraphResponse {
    let graph = flowchart(program);
    let mut groups = Vec::new();
    let mut group_of = HashMap::new();
    for group in &graph.groups {
        add_group(group, "", &mut groups, &mut group_of);
    }
    let node = |node: &edgefaas_workflow::graph::Node| {
        let task = task_of(program, &node.id);
        // The condition of a task is drawn as a node of its own.
        let count = task.filter(|_| is_task(&node.id)).and_then(|task| counts.get(task));
        let TaskCount { active, failed } = count.copied().unwrap_or_default();
        proto::GraphNode {
            id: node.id.clone(),
            label: node.label.clone(),
            shape: shape(node.kind).to_owned(),
            task: task.unwrap_or_default().to_owned(),
            active,
            failed,
            group: group_of.get(&*node.id).cloned().unwrap_or_default(),
        }
    };
    let edge = |edge: &edgefaas_workflow::graph::Edge| proto::GraphEdge {
        from: edge.from.clone(),
        to: edge.to.clone(),
        label: edge.label.clone().unwrap_or_default(),
    };
    proto::GraphResponse {
        mermaid: mermaid(&graph),
        nodes: graph.nodes.iter().map(node).collect(),
        edges: graph.edges.iter().map(edge).collect(),
        groups,
    }
}

fn is_task(node: &str) -> bool {
    node.starts_with('t')
}

fn add_group<'a>(
    group: &'a Group,
    around: &str,
    groups: &mut Vec<proto::GraphGroup>,
    group_of: &mut HashMap<&'a str, String>,
) {
    let id = format!("g{}", groups.len());
    groups.push(proto::GraphGroup { id: id.clone(), label: group.title.clone(), group: around.to_owned() });
    for node in &group.nodes {
        group_of.entry(node).or_insert_with(|| id.clone());
    }
    for inner in &group.groups {
        add_group(inner, &id, groups, group_of);
    }
}

fn shape(kind: Kind) -> &'static str {
    match kind {
        Kind::Start => "start",
        Kind::End => "end",
        Kind::Task => "task",
        Kind::Choice => "choice",
        Kind::Wait => "wait",
        Kind::Event => "event",
        Kind::Error => "error",
    }
}
