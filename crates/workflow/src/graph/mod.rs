//! Graphs in Mermaid.

mod mermaid;
#[cfg(test)]
mod tests;
mod tree;

pub use mermaid::mermaid;

/// A graph to draw. Edges and groups that name an unknown node are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    /// The nodes, those that come first in the flow first.
    pub nodes: Vec<Node>,
    /// The edges; they may lead back.
    pub edges: Vec<Edge>,
    /// Boxes around nodes.
    pub groups: Vec<Group>,
}

/// A step of the flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name in the edges and groups; of several nodes with one name the first is meant.
    pub id: String,
    /// What is written in it: of up to four lines the first 40 characters each.
    pub label: String,
    /// What it looks like.
    pub kind: Kind,
}

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Where the flow begins.
    Start,
    /// Where it ends.
    End,
    /// A task.
    Task,
    /// A choice between ways.
    Choice,
    /// Waiting for time to pass.
    Wait,
    /// Events that come or go.
    Event,
    /// An error, raised or caught.
    Error,
}

/// A way from one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Where it begins: a node's id.
    pub from: String,
    /// Where it leads: a node's id.
    pub to: String,
    /// What is written beside it.
    pub label: Option<String>,
}

/// A box around nodes and other boxes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// What is written at its top.
    pub title: String,
    /// The ids of its nodes; a node that several groups name is in the first of them, groups before what they contain.
    pub nodes: Vec<String>,
    /// The boxes in it; beyond 32 boxes in each other their nodes are in the last.
    pub groups: Vec<Group>,
}

/// The lines of a label as they are shown: up to four, with up to 40 characters each.
fn lines(label: &str) -> Vec<String> {
    const LINES: usize = 4;
    const CHARACTERS: usize = 40;
    let short = |line: &str| match line.char_indices().nth(CHARACTERS) {
        Some(_) => line.chars().take(CHARACTERS - 1).chain(['…']).collect(),
        None => line.to_owned(),
    };
    label.lines().take(LINES).map(short).collect()
}
