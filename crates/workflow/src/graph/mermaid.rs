//! Converts a graph to a Mermaid flowchart.

use std::collections::HashMap;
use std::fmt::Write;

use super::tree::{Tree, tree};
use super::{Graph, Kind, lines};

/// The text of the flowchart. Nodes are named `n0`, `n1`, … in their order, so that no id is a keyword or a special
/// character of Mermaid.
pub fn mermaid(graph: &Graph) -> String {
    let tree = tree(graph);
    let mut out = String::from("flowchart TD\n");
    // Group 0 is the whole graph. An entry of the stack opens a group, or closes it (`true`). A group is closed after all
    // groups that it contains.
    let mut stack = vec![(0, false)];
    while let Some((group, closes)) = stack.pop() {
        let indent = "  ".repeat(tree.depth(group) + usize::from(group == 0));
        if closes {
            let _ = writeln!(out, "{indent}end");
            continue;
        }
        if group != 0 {
            let _ = writeln!(out, "{indent}subgraph g{group}[\"{}\"]", escaped(tree.title(group)));
            stack.push((group, true));
        }
        let inner = if group == 0 { indent } else { format!("{indent}  ") };
        for index in tree.nodes(group) {
            if let Some(node) = graph.nodes.get(index) {
                let (open, close) = shape(node.kind);
                let _ = writeln!(out, "{inner}n{index}{open}\"{}\"{close}", escaped(&node.label));
            }
        }
        stack.extend(tree.groups(group).into_iter().rev().map(|group| (group, false)));
    }
    write_edges(graph, &tree, &mut out);
    out
}

fn write_edges(graph: &Graph, tree: &Tree<'_>, out: &mut String) {
    let ids: &HashMap<&str, usize> = &tree.ids;
    for edge in &graph.edges {
        let (Some(from), Some(to)) = (ids.get(edge.from.as_str()), ids.get(edge.to.as_str())) else {
            continue;
        };
        let _ = match edge.label.as_deref().map(escaped).filter(|label| label != " ") {
            Some(label) => writeln!(out, "  n{from} -->|\"{label}\"| n{to}"),
            None => writeln!(out, "  n{from} --> n{to}"),
        };
    }
}

fn shape(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Start | Kind::End => ("([", "])"),
        Kind::Task => ("[", "]"),
        Kind::Choice => ("{", "}"),
        Kind::Wait => ("(", ")"),
        Kind::Event => ("[/", "/]"),
        Kind::Error => ("{{", "}}"),
    }
}

/// Escapes a text that is written between double quotes. Letters, digits and a few punctuation characters stay. All other
/// characters become `#NUMBER;`, since they can have a meaning in Markdown, HTML or Mermaid; control characters become spaces.
/// The result is never empty, since Mermaid rejects an empty text.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for (index, line) in lines(text).iter().enumerate() {
        if index > 0 {
            out.push_str("<br/>");
        }
        for character in line.chars() {
            match character {
                c if c.is_alphanumeric() || " .,:()/-=…".contains(c) => out.push(c),
                c if c.is_control() => out.push(' '),
                c => {
                    let _ = write!(out, "#{};", u32::from(c));
                }
            }
        }
    }
    if out.is_empty() { " ".into() } else { out }
}
