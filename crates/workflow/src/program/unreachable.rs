//! Tasks of a list that can never run.

use super::{Flow, Kind, Node, NodeId};

/// Positions of tasks that can never run. `nodes` are the tasks of the whole definition, `tasks` those of the list.
pub fn unreachable(nodes: &[Node], tasks: &[NodeId]) -> Vec<usize> {
    let mut reached = vec![false; tasks.len()];
    let mut open = vec![0];
    while let Some(position) = open.pop() {
        let (Some(seen), Some(id)) = (reached.get_mut(position), tasks.get(position)) else { continue };
        if std::mem::replace(seen, true) {
            continue;
        }
        let Some(node) = nodes.get(*id as usize) else { continue };
        let mut follow = |flow: Flow| match flow {
            Flow::Continue => open.push(position + 1),
            Flow::Goto(target) => open.push(target as usize),
            Flow::Exit | Flow::End => {}
        };
        // A skipped task continues with the next one.
        if node.condition.is_some() {
            follow(Flow::Continue);
        }
        match &node.kind {
            Kind::Switch(cases) => {
                cases.iter().for_each(|case| follow(case.then));
                if cases.iter().all(|case| case.when.is_some()) {
                    follow(node.then);
                }
            }
            // Nothing comes after an error.
            Kind::Raise(_) => {}
            _ => follow(node.then),
        }
    }
    (0..tasks.len()).filter(|position| !reached[*position]).collect()
}
