//! A compiled workflow as a graph.

use crate::graph::Graph;
use crate::program::Program;

/// The tasks of a workflow and the ways between them.
pub fn picture(_: &Program) -> Graph {
    Graph::default()
}
