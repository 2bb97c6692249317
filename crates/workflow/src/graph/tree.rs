//! Flattens the nested groups of a graph.

use std::collections::HashMap;

use super::{Graph, Group};

/// Maximum nesting depth of boxes. The nodes of deeper boxes belong to the box at this depth.
const MAX_DEPTH: usize = 32;

/// The groups as a list. Each group comes before the groups that it contains. The first group is the whole graph.
pub(super) struct Tree<'g> {
    /// Index of the first node with each id.
    pub(super) ids: HashMap<&'g str, usize>,
    groups: Vec<Flat<'g>>,
}

#[derive(Default)]
struct Flat<'g> {
    title: &'g str,
    parent: usize,
    depth: usize,
    items: Vec<Item>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Item {
    Node(usize),
    Group(usize),
}

/// Assigns each node to its group.
pub(super) fn tree(graph: &Graph) -> Tree<'_> {
    let mut ids = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        ids.entry(node.id.as_str()).or_insert(index);
    }
    let mut groups = vec![Flat::default()];
    let mut group_of: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    let mut stack: Vec<(&Group, usize)> = graph.groups.iter().rev().map(|group| (group, 0)).collect();
    while let Some((group, parent)) = stack.pop() {
        let depth = groups[parent].depth + 1;
        let index = match depth > MAX_DEPTH {
            true => parent,
            false => {
                groups.push(Flat { title: &group.title, parent, depth, items: vec![] });
                groups.len() - 1
            }
        };
        for node in group.nodes.iter().filter_map(|id| ids.get(id.as_str())) {
            group_of[*node].get_or_insert(index);
        }
        stack.extend(group.groups.iter().rev().map(|group| (group, index)));
    }
    let group_of: Vec<usize> = group_of.into_iter().map(Option::unwrap_or_default).collect();
    for (node, group) in group_of.iter().enumerate() {
        groups[*group].items.push(Item::Node(node));
    }
    for group in 1..groups.len() {
        let parent = groups[group].parent;
        groups[parent].items.push(Item::Group(group));
    }
    Tree { ids, groups }
}

impl Tree<'_> {
    pub(super) fn title(&self, group: usize) -> &str {
        self.groups.get(group).map_or("", |flat| flat.title)
    }

    /// Nesting depth of a group; 0 for the whole graph.
    pub(super) fn depth(&self, group: usize) -> usize {
        self.groups.get(group).map_or(0, |flat| flat.depth)
    }

    /// Nodes of a group, without the nodes of the groups that it contains.
    pub(super) fn nodes(&self, group: usize) -> Vec<usize> {
        let items = self.groups.get(group).map(|flat| flat.items.as_slice()).unwrap_or_default();
        items
            .iter()
            .filter_map(|item| if let Item::Node(node) = item { Some(*node) } else { None })
            .collect()
    }

    /// Groups that a group contains directly.
    pub(super) fn groups(&self, group: usize) -> Vec<usize> {
        let items = self.groups.get(group).map(|flat| flat.items.as_slice()).unwrap_or_default();
        items
            .iter()
            .filter_map(|item| if let Item::Group(inner) = item { Some(*inner) } else { None })
            .collect()
    }
}
