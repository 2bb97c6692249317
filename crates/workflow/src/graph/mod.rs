//! Graphs with nodes, edges and boxes, and their Mermaid text.

mod mermaid;
#[cfg(test)]
mod tests;
mod tree;

pub use mermaid::mermaid;

/// A graph to draw. An edge from or to an unknown node is not drawn. An unknown node in a group is ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    /// The nodes, in the order of the flow.
    pub nodes: Vec<Node>,
    /// The edges. They may form cycles.
    pub edges: Vec<Edge>,
    /// Boxes around nodes.
    pub groups: Vec<Group>,
}

/// A step of the flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Id that edges and groups use. If several nodes have the same id, edges and groups refer to the first.
    pub id: String,
    /// Text of the node. At most four lines with at most 40 characters each are shown.
    pub label: String,
    /// Kind of the node. It selects the shape.
    pub kind: Kind,
}

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The start of the flow.
    Start,
    /// The end of the flow.
    End,
    /// A task.
    Task,
    /// A choice between several edges.
    Choice,
    /// A wait for a duration.
    Wait,
    /// Events that are received or sent.
    Event,
    /// An error that is raised or caught.
    Error,
}

/// An edge from one node to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Id of the source node.
    pub from: String,
    /// Id of the target node.
    pub to: String,
    /// Text beside the edge.
    pub label: Option<String>,
}

/// A box around nodes and other boxes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Title at the top of the box.
    pub title: String,
    /// Ids of the nodes. If several groups name a node, the first of them has it. A group comes before the groups that it
    /// contains.
    pub nodes: Vec<String>,
    /// Boxes in this box. At most 32 boxes are nested: the nodes of deeper boxes are drawn in the 32nd.
    pub groups: Vec<Group>,
}

/// The lines of a label that are shown: at most four, with at most 40 characters each.
fn lines(label: &str) -> Vec<String> {
    const LINES: usize = 4;
    const CHARACTERS: usize = 40;
    let short = |line: &str| match line.char_indices().nth(CHARACTERS) {
        Some(_) => line.chars().take(CHARACTERS - 1).chain(['…']).collect(),
        None => line.to_owned(),
    };
    label.lines().take(LINES).map(short).collect()
}
