//! Where everything of a graph is. A group is laid out by itself and is one item of what it is in.

use std::collections::HashMap;

use super::layers::{Placed, place};
use super::{Graph, Group, Kind, lines};

/// The width of a character, in pixels; the SVG's text is monospaced.
pub(super) const CHARACTER: f64 = 7.3;
/// The height of a line of text, in pixels.
pub(super) const LINE: f64 = 16.0;
/// Around the text in a node, and around the items in a group.
const PADDING: f64 = 14.0;
/// The height of a group's title.
pub(super) const TITLE: f64 = 22.0;
/// Around everything.
const MARGIN: f64 = 12.0;
/// Between edges that lead back, side by side.
const LANE: f64 = 14.0;
const MOST_DEPTH: usize = 32;

/// A place in pixels from the top left.
pub type Point = (f64, f64);

/// A box in pixels from the top left.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rect {
    /// Its left side.
    pub x: f64,
    /// Its top.
    pub y: f64,
    /// From left to right.
    pub width: f64,
    /// From top to bottom.
    pub height: f64,
}

/// Where everything is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layout {
    /// The whole width, in pixels.
    pub width: f64,
    /// The whole height, in pixels.
    pub height: f64,
    /// The nodes, in the graph's order.
    pub nodes: Vec<Rect>,
    /// The groups, each before those in it.
    pub groups: Vec<PlacedGroup>,
    /// The edges, in the graph's order; nothing for those that are left out.
    pub edges: Vec<Option<Route>>,
}

/// A group's box.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacedGroup {
    /// What is written at its top.
    pub title: String,
    /// Where it is.
    pub rect: Rect,
}

/// An edge's way.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// At least two; the arrow's head is at the last.
    pub points: Vec<Point>,
    /// Where the middle of the label is.
    pub label_at: Point,
}

/// The groups as a list, each before those in it; the first is the whole picture.
pub(super) struct Tree<'g> {
    /// The index of each node.
    pub(super) ids: HashMap<&'g str, usize>,
    groups: Vec<Flat<'g>>,
    /// The group of each node.
    group_of: Vec<usize>,
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

/// Computes where everything of `graph` is. The same graph always gives the same.
pub fn layout(graph: &Graph) -> Layout {
    let tree = tree(graph);
    let levels = levels(graph, &tree);
    let mut sizes: HashMap<Item, (f64, f64)> =
        graph.nodes.iter().enumerate().map(|(index, node)| (Item::Node(index), node_size(node))).collect();

    // Inside out: what is in a group comes after it.
    let mut placed: Vec<Placed> = Vec::new();
    for (group, flat) in tree.groups.iter().enumerate().rev() {
        let items: Vec<_> = flat.items.iter().map(|item| sizes[item]).collect();
        let edges: Vec<_> = levels[group].iter().map(|(_, from, to)| (*from, *to)).collect();
        let mut inner = place(&items, &edges);
        let backs = inner.back.iter().filter(|back| **back).count();
        inner.width += backs as f64 * LANE;
        let width = inner.width.max(text_width(flat.title)) + 2.0 * PADDING;
        sizes.insert(Item::Group(group), (width, inner.height + TITLE + 2.0 * PADDING));
        placed.push(inner);
    }
    placed.reverse();

    // And outside in.
    let mut out = Layout { nodes: vec![Rect::default(); graph.nodes.len()], ..Layout::default() };
    let mut origins = vec![(MARGIN, MARGIN); tree.groups.len()];
    out.edges = vec![None; graph.edges.len()];
    for (group, flat) in tree.groups.iter().enumerate() {
        let origin = origins[group];
        for (item, middle) in flat.items.iter().zip(&placed[group].middles) {
            let (width, height) = sizes[item];
            let (x, y) = (origin.0 + middle.0 - width / 2.0, origin.1 + middle.1 - height / 2.0);
            let rect = Rect { x, y, width, height };
            match item {
                Item::Node(node) => out.nodes[*node] = rect,
                Item::Group(inner) => {
                    origins[*inner] = (x + PADDING, y + PADDING + TITLE);
                    let title = tree.groups[*inner].title.to_owned();
                    out.groups.push(PlacedGroup { title, rect });
                }
            }
        }
    }
    out.width = placed[0].width + 2.0 * MARGIN;
    out.height = placed[0].height + 2.0 * MARGIN;
    for (group, edges) in levels.iter().enumerate() {
        let (inner, origin) = (&placed[group], origins[group]);
        let mut lane = origin.0 + inner.width;
        for (index, (edge, ..)) in edges.iter().enumerate() {
            let Some((from, to)) = ends(graph, &tree, *edge) else {
                continue;
            };
            let (from, to) = (out.nodes[from], out.nodes[to]);
            out.edges[*edge] = Some(match inner.back[index] {
                true => {
                    lane -= LANE;
                    back_route(from, to, lane + LANE / 2.0)
                }
                false => {
                    route(from, to, inner.bends[index].iter().map(|(x, y)| (origin.0 + x, origin.1 + y)))
                }
            });
        }
    }
    out
}

/// Sorts the nodes into their groups.
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
        let index = match depth > MOST_DEPTH {
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
    Tree { ids, groups, group_of }
}

impl Tree<'_> {
    pub(super) fn title(&self, group: usize) -> &str {
        self.groups.get(group).map_or("", |flat| flat.title)
    }

    /// 0 for the whole picture.
    pub(super) fn depth(&self, group: usize) -> usize {
        self.groups.get(group).map_or(0, |flat| flat.depth)
    }

    /// The nodes that are in it and not in a group in it.
    pub(super) fn nodes(&self, group: usize) -> Vec<usize> {
        let items = self.groups.get(group).map(|flat| flat.items.as_slice()).unwrap_or_default();
        items
            .iter()
            .filter_map(|item| if let Item::Node(node) = item { Some(*node) } else { None })
            .collect()
    }

    /// The groups that are right in it.
    pub(super) fn groups(&self, group: usize) -> Vec<usize> {
        let items = self.groups.get(group).map(|flat| flat.items.as_slice()).unwrap_or_default();
        items
            .iter()
            .filter_map(|item| if let Item::Group(inner) = item { Some(*inner) } else { None })
            .collect()
    }
}

/// For each group the edges between its items: the edge's index, and the places of the items in the group.
fn levels(graph: &Graph, tree: &Tree<'_>) -> Vec<Vec<(usize, usize, usize)>> {
    let mut places: HashMap<Item, usize> = HashMap::new();
    for flat in &tree.groups {
        places.extend(flat.items.iter().enumerate().map(|(place, item)| (*item, place)));
    }
    let mut levels = vec![Vec::new(); tree.groups.len()];
    for edge in 0..graph.edges.len() {
        let Some((from, to)) = ends(graph, tree, edge) else {
            continue;
        };
        let (mut from, mut to) =
            ((Item::Node(from), tree.group_of[from]), (Item::Node(to), tree.group_of[to]));
        // The deeper one goes up until both are in the same group.
        while from.1 != to.1 {
            let deeper = if tree.depth(from.1) >= tree.depth(to.1) { &mut from } else { &mut to };
            *deeper = (Item::Group(deeper.1), tree.groups[deeper.1].parent);
        }
        levels[from.1].push((edge, places[&from.0], places[&to.0]));
    }
    levels
}

fn ends(graph: &Graph, tree: &Tree<'_>, edge: usize) -> Option<(usize, usize)> {
    let edge = graph.edges.get(edge)?;
    Some((*tree.ids.get(edge.from.as_str())?, *tree.ids.get(edge.to.as_str())?))
}

fn node_size(node: &super::Node) -> (f64, f64) {
    let lines = lines(&node.label);
    let widest = lines.iter().map(|line| text_width(line)).fold(0.0, f64::max);
    // A rhombus has less room for text than its box.
    let extra = if node.kind == Kind::Choice { 28.0 } else { 0.0 };
    ((widest + 2.0 * PADDING + extra).max(44.0), LINE * lines.len().max(1) as f64 + 16.0)
}

/// The width of a line as it is shown, in pixels. East Asian characters and pictures are as wide as two others.
pub(super) fn text_width(text: &str) -> f64 {
    let wide = |c: char| if c >= '\u{1100}' && !('\u{2000}'..='\u{2bff}').contains(&c) { 2u32 } else { 1 };
    lines(text).first().map_or(0.0, |line| f64::from(line.chars().map(wide).sum::<u32>()) * CHARACTER)
}

/// Down from the middle of the bottom to the middle of the top.
fn route(from: Rect, to: Rect, bends: impl Iterator<Item = Point>) -> Route {
    let mut points = vec![(from.x + from.width / 2.0, from.y + from.height)];
    points.extend(bends);
    let first_bend = points.get(1).copied();
    let end = (to.x + to.width / 2.0, to.y);
    points.push(end);
    // Of edges that leave one node the labels shall not lie on each other, so they are nearer to where they lead.
    let (a, b) = (points[0], first_bend.unwrap_or(end));
    Route { points, label_at: (a.0 + (b.0 - a.0) * 0.6, a.1 + (b.1 - a.1) * 0.5) }
}

/// Out to the right, up, and in from the right.
fn back_route(from: Rect, to: Rect, lane: f64) -> Route {
    let same = from == to;
    let (below, above) = if same { (0.75, 0.25) } else { (0.5, 0.5) };
    let start = (from.x + from.width, from.y + from.height * below);
    let end = (to.x + to.width, to.y + to.height * above);
    let points = vec![start, (lane, start.1), (lane, end.1), end];
    Route { points, label_at: (lane, (start.1 + end.1) / 2.0) }
}
