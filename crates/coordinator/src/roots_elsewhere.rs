//! Budgets of trees of instances that reach over several nodes.
//!
//! A function that a step calls may run on another node, and call a workflow there. The instance belongs to the tree of the
//! step: otherwise a tree could grow without end by calls that go from node to node. Each node has one budget for its part of
//! a tree.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use ulid::Ulid;

use super::coordinator::Coordinator;
use super::root_budget::RootBudget;

/// Budgets of trees whose root is on another node, by the id of the root.
#[derive(Default)]
pub(crate) struct RootsElsewhere {
    budgets: HashMap<Ulid, Weak<RootBudget>>,
    /// Unused budgets are removed when there are this many.
    clean_at: usize,
}

/// The least number of budgets at which unused ones are removed.
const MIN_CLEAN: usize = 64;

impl RootsElsewhere {
    /// The budget of a tree; `make` makes it if no instance of the tree is on this node.
    pub fn budget(&mut self, root: Ulid, make: impl FnOnce() -> Arc<RootBudget>) -> Arc<RootBudget> {
        if let Some(budget) = self.budgets.get(&root).and_then(Weak::upgrade) {
            return budget;
        }
        if self.budgets.len() >= self.clean_at {
            self.budgets.retain(|_, budget| budget.strong_count() > 0);
            self.clean_at = (2 * self.budgets.len()).max(MIN_CLEAN);
        }
        let budget = make();
        self.budgets.insert(root, Arc::downgrade(&budget));
        budget
    }
}

impl Coordinator {
    /// The budget on this node of the tree with the root instance `root`, which is on another node, or on this one if the call
    /// has come back.
    pub(crate) fn root_elsewhere(&self, root: Ulid) -> Arc<RootBudget> {
        if let Some(running) = self.find(root) {
            return running.root.clone();
        }
        self.roots_elsewhere.lock().budget(root, || self.root_budget(root))
    }
}

#[cfg(test)]
mod tests {
    use super::super::root_budget::{NodeBudget, RootLimits};
    use super::*;

    #[test]
    fn a_tree_has_one_budget_on_a_node_while_it_has_instances_there() {
        let node = NodeBudget::new(1 << 20);
        let limits = RootLimits { descendants: 2, bytes: 1 << 20 };
        let mut roots = RootsElsewhere::default();
        let mut budget = |number: u64| {
            let root = Ulid::from_parts(1, number.into());
            roots.budget(root, || RootBudget::new(root, limits, node.clone()))
        };
        let charges: Vec<_> = (10..12)
            .map(|id| budget(1).charge_instance(Ulid::from_parts(2, id), 10, false).unwrap())
            .collect();
        // Another call of the same tree, also when there are many others.
        (2..500).for_each(|number| drop(budget(number)));
        assert!(
            budget(1).charge_instance(Ulid::from_parts(2, 13), 10, false).is_err(),
            "a third descendant"
        );
        drop(charges);
        assert!(budget(1).charge_instance(Ulid::from_parts(2, 14), 10, false).is_ok());
        assert!(roots.budgets.len() <= 2 * MIN_CLEAN, "{}", roots.budgets.len());
    }
}
