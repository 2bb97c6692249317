//! `[nodes]`: the nodes of a cluster on which an app runs. Where one call runs is decided by placement policies.

use edgefaas_platform::{LABEL_RULE, is_label};

use super::diagnostic::Problems;
use super::reader::Item;

/// Maximum number of labels or zones that an app names.
const MAX_WORDS: usize = 32;
/// Maximum number of nodes of a cluster.
const MAX_NODES: u32 = 1024;

/// The nodes of a cluster on which an app runs. A node alone runs all its apps, whatever this says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSelection {
    /// How many of the nodes with the labels and in the zones.
    pub on: NodeCount,
    /// Labels that a node must have, all of them.
    pub labels: Vec<String>,
    /// Zones; a node must be in one of them. All zones if there are none.
    pub zones: Vec<String>,
}

/// How many nodes run an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NodeCount {
    /// All nodes.
    #[default]
    All,
    /// This many nodes: 1 to 1,024.
    Count(u32),
    /// One node of each zone.
    OnePerZone,
}

/// Reads `[nodes]`.
pub(super) fn nodes(item: &Item<'_>, problems: &mut Problems) -> NodeSelection {
    let mut selection = NodeSelection::default();
    let Some(table) = item.table("in [nodes]", &["on", "labels", "zones"], problems) else {
        return selection;
    };
    if let Some(item) = table.get("on") {
        if item.is_number() {
            selection.on = item.count(1..=MAX_NODES, problems).map_or(NodeCount::All, NodeCount::Count);
        } else if !item.is_string() {
            item.wrong_type("a whole number, \"all\" or \"one-per-zone\"", problems);
        } else if let Some("one-per-zone") = item.word(&["all", "one-per-zone"], problems) {
            selection.on = NodeCount::OnePerZone;
        }
    }
    selection.labels = table.get("labels").map(|item| labels(&item, problems)).unwrap_or_default();
    selection.zones = table.get("zones").map(|item| labels(&item, problems)).unwrap_or_default();
    selection
}

/// The tag of a placement policy.
pub(super) fn placement(item: &Item<'_>, problems: &mut Problems) -> Option<String> {
    let tag = item.text(problems)?;
    if is_label(tag) {
        return Some(tag.to_owned());
    }
    let message = format!("`{}` cannot be the tag of a placement policy", tag.escape_debug());
    problems.add(&item.span, message, Some(LABEL_RULE.into()));
    None
}

fn labels(item: &Item<'_>, problems: &mut Problems) -> Vec<String> {
    let mut labels = Vec::new();
    for (label, span) in item.texts(problems) {
        if !is_label(label) {
            let message = format!("`{}` is not a label", label.escape_debug());
            problems.add(&span, message, Some(LABEL_RULE.into()));
        } else if labels.iter().all(|known| known != label) {
            labels.push(label.to_owned());
        }
    }
    if labels.len() > MAX_WORDS {
        let message =
            format!("`{}` has {} entries; at most {MAX_WORDS} are allowed", item.key, labels.len());
        problems.add(&item.span, message, None);
        labels.clear();
    }
    labels
}
