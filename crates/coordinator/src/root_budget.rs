//! Budgets of root instances: a root and its descendants share a limit of live descendants and of bytes.
//!
//! A root is an instance that no other instance started, neither directly nor through functions. Its budget is shared by
//! the whole tree; each instance and each waiting event holds a [`Charge`], which returns its part when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use edgefaas_functions::invocation::OverBudget;
use edgefaas_platform::{Budget, Taken};
use ulid::Ulid;

/// Maximum size of a small instance, in bytes.
pub(super) const SMALL_INSTANCE_BYTES: usize = 32 << 10;
/// Divisor of the node's budget: one byte in this many is reserved for the growth of existing instances.
const GROWTH_SHARE: usize = 8;

/// Limits of each root instance with its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootLimits {
    /// Live descendants, at any depth.
    pub descendants: usize,
    /// Bytes of the root, its descendants and the events that wait for them.
    pub bytes: usize,
}

/// The budget of all instances of a node, of which each root has its part.
#[derive(Debug, Clone)]
pub(crate) struct NodeBudget {
    bytes: Budget,
    /// Number of root instances.
    roots: Arc<AtomicUsize>,
}

impl NodeBudget {
    /// A budget of `bytes` bytes for all instances.
    pub fn new(max_bytes: usize) -> Self {
        Self { bytes: Budget::new(max_bytes), roots: Arc::default() }
    }

    /// The byte budget, for memory that belongs to no instance.
    pub fn bytes(&self) -> &Budget {
        &self.bytes
    }

    /// Takes `bytes` bytes.
    ///
    /// # Errors
    /// Fewer bytes are free.
    pub fn take(&self, bytes: usize) -> Result<Taken, OverBudget> {
        self.bytes.take(bytes).ok_or(OverBudget::NodeBytes { max_bytes: self.bytes.max_bytes() })
    }

    /// True if a new instance of `bytes` bytes fits.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes.free() >= bytes.saturating_add(self.growth_bytes())
    }

    /// True if less than half of the budget is free.
    pub fn is_tight(&self) -> bool {
        self.bytes.free() < self.bytes.max_bytes() / 2
    }

    /// True if less than half of the reserve for growth is free.
    pub fn is_spent(&self) -> bool {
        self.bytes.free() < self.growth_bytes() / 2
    }

    fn growth_bytes(&self) -> usize {
        self.bytes.max_bytes() / GROWTH_SHARE
    }

    /// The fair share of each root while memory is short, in bytes.
    fn fair_bytes(&self) -> usize {
        self.bytes.max_bytes() / self.roots.load(Relaxed).max(1)
    }
}

/// The budget of a root instance, shared by its tree.
#[derive(Debug)]
pub(crate) struct RootBudget {
    id: Ulid,
    limits: RootLimits,
    descendants: AtomicUsize,
    bytes: AtomicUsize,
    pub(super) node: NodeBudget,
}

impl Drop for RootBudget {
    fn drop(&mut self) {
        self.node.roots.fetch_sub(1, Relaxed);
    }
}

/// A part of a root's budget; returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    root: Arc<RootBudget>,
    bytes: usize,
    is_descendant: bool,
    node: Taken,
    /// For a waiting event: the charge of the event itself, shared by all its waiters. `None` for other charges.
    _event: Option<Arc<Taken>>,
}

impl RootBudget {
    /// An unused budget for the root `id`.
    pub fn new(id: Ulid, limits: RootLimits, node: NodeBudget) -> Arc<Self> {
        node.roots.fetch_add(1, Relaxed);
        Arc::new(Self { id, limits, descendants: AtomicUsize::new(0), bytes: AtomicUsize::new(0), node })
    }

    /// The id of the root.
    pub fn id(&self) -> Ulid {
        self.id
    }

    /// Charges an instance of the tree. With `may_exceed_budget`, a small instance is admitted beyond the node's budget.
    ///
    /// # Errors
    /// One of the budgets has no room.
    pub fn charge_instance(
        self: &Arc<Self>,
        id: Ulid,
        bytes: usize,
        may_exceed_budget: bool,
    ) -> Result<Charge, OverBudget> {
        let may_exceed_budget = may_exceed_budget && bytes <= SMALL_INSTANCE_BYTES;
        if !may_exceed_budget && !self.node.has_room(bytes) {
            return Err(OverBudget::NodeBytes { max_bytes: self.node.bytes.max_bytes() });
        }
        let is_descendant = id != self.id;
        let max = self.limits.descendants;
        if is_descendant && self.descendants.fetch_add(1, Relaxed) >= max {
            self.descendants.fetch_sub(1, Relaxed);
            return Err(OverBudget::Descendants { root: self.id, max });
        }
        // The excess is bounded: few workflows, with few such instances each.
        let charge = if may_exceed_budget { Ok(self.charge_beyond(bytes)) } else { self.charge(bytes) };
        match charge {
            Ok(mut charge) => {
                charge.is_descendant = is_descendant;
                Ok(charge)
            }
            Err(error) => {
                self.descendants.fetch_sub(usize::from(is_descendant), Relaxed);
                Err(error)
            }
        }
    }

    /// Charges a recovered instance. It may exceed the limits of its root and the free bytes of the node.
    ///
    /// # Errors
    /// The node's budget is exceeded already.
    pub fn charge_recovered(self: &Arc<Self>, id: Ulid, bytes: usize) -> Result<Charge, OverBudget> {
        let mut node = self.node.take(0)?;
        // Other recovered instances have grown in the meantime.
        node.resize(bytes);
        let is_descendant = id != self.id;
        self.descendants.fetch_add(usize::from(is_descendant), Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        Ok(Charge { root: self.clone(), bytes, is_descendant, node, _event: None })
    }

    /// A charge of 0 bytes.
    pub fn charge_nothing(self: &Arc<Self>) -> Charge {
        self.charge_beyond(0)
    }

    fn charge_beyond(self: &Arc<Self>, bytes: usize) -> Charge {
        let node = self.node.bytes.take_none();
        let mut charge = Charge { root: self.clone(), bytes: 0, is_descendant: false, node, _event: None };
        charge.set_bytes(bytes);
        charge
    }

    /// Charges `bytes` bytes.
    ///
    /// # Errors
    /// The root's budget or the node's has no room.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge, OverBudget> {
        self.charge_parts(bytes, bytes, None)
    }

    /// Charges a waiting event. The root is charged for the whole event; the node is charged once for the event, and
    /// `waiting_bytes` for each waiter.
    ///
    /// # Errors
    /// The root's budget or the node's has no room.
    pub fn charge_event(
        self: &Arc<Self>,
        event: &Arc<Taken>,
        waiting_bytes: usize,
    ) -> Result<Charge, OverBudget> {
        let bytes = event.bytes().saturating_add(waiting_bytes);
        self.charge_parts(bytes, waiting_bytes, Some(event.clone()))
    }

    fn charge_parts(
        self: &Arc<Self>,
        bytes: usize,
        node_bytes: usize,
        event: Option<Arc<Taken>>,
    ) -> Result<Charge, OverBudget> {
        let max_bytes = self.limits.bytes;
        if self.bytes.fetch_add(bytes, Relaxed).saturating_add(bytes) > max_bytes {
            self.bytes.fetch_sub(bytes, Relaxed);
            return Err(OverBudget::RootBytes { root: self.id, max_bytes });
        }
        match self.node.take(node_bytes) {
            Ok(node) => Ok(Charge { root: self.clone(), bytes, is_descendant: false, node, _event: event }),
            Err(error) => {
                self.bytes.fetch_sub(bytes, Relaxed);
                Err(error)
            }
        }
    }
}

impl Charge {
    /// Sets the charge to the current size of its owner. This may exceed the budgets, since the bytes exist already.
    /// Returns true if the owner may continue: the root is within its budget and, where the node is not, within its
    /// fair share.
    pub fn set_bytes(&mut self, bytes: usize) -> bool {
        match bytes >= self.bytes {
            true => self.root.bytes.fetch_add(bytes - self.bytes, Relaxed),
            false => self.root.bytes.fetch_sub(self.bytes - bytes, Relaxed),
        };
        self.node.resize(bytes);
        self.bytes = bytes;
        self.is_within_root() && self.is_within_node()
    }

    fn is_within_root(&self) -> bool {
        self.root.bytes.load(Relaxed) <= self.root.limits.bytes
    }

    fn is_within_node(&self) -> bool {
        let node = &self.root.node;
        node.bytes.free() > 0 || self.root.bytes.load(Relaxed) <= node.fair_bytes()
    }

    /// The charged bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The error of an instance that has grown beyond a budget.
    pub fn over_budget(&self) -> OverBudget {
        if self.is_within_root() {
            return OverBudget::NodeBytes { max_bytes: self.root.node.bytes.max_bytes() };
        }
        OverBudget::RootBytes { root: self.root.id, max_bytes: self.root.limits.bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.root.bytes.fetch_sub(self.bytes, Relaxed);
        self.root.descendants.fetch_sub(usize::from(self.is_descendant), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_one_budget_and_returns_all_of_it() {
        let (node, root) = (NodeBudget::new(1000), Ulid::from_parts(1, 1));
        let budget = RootBudget::new(root, RootLimits { descendants: 2, bytes: 300 }, node.clone());
        let own = budget.charge_instance(root, 100, false).unwrap();
        let first = budget.charge_instance(Ulid::from_parts(1, 2), 50, false).unwrap();
        let mut second = budget.charge_instance(Ulid::from_parts(1, 3), 50, false).unwrap();
        let third = budget.charge_instance(Ulid::from_parts(1, 4), 50, false).unwrap_err();
        assert_eq!(third, OverBudget::Descendants { root, max: 2 });
        assert_eq!(budget.charge(101).unwrap_err(), OverBudget::RootBytes { root, max_bytes: 300 });
        assert!(second.set_bytes(150), "exactly all of it");
        assert_eq!(node.bytes.free(), 700);
        drop(first);
        // Recovered instances are admitted.
        let back = budget.charge_recovered(Ulid::from_parts(1, 5), 200).unwrap();
        assert!(budget.charge(1).is_err() && !second.set_bytes(151));
        drop((own, second, back));
        assert_eq!(node.bytes.free(), 1000);
        drop(budget.charge(300).unwrap());
        let other =
            RootBudget::new(Ulid::from_parts(1, 9), RootLimits { descendants: 2, bytes: 3000 }, node);
        assert_eq!(other.charge(1001).unwrap_err(), OverBudget::NodeBytes { max_bytes: 1000 });
        assert_eq!(other.charge(1000).unwrap().bytes, 1000);
    }

    #[test]
    fn an_event_counts_once_for_the_node_and_wholly_for_each_root() {
        let node = NodeBudget::new(1000);
        let limits = RootLimits { descendants: 2, bytes: 600 };
        let roots =
            [1, 2, 3].map(|number| RootBudget::new(Ulid::from_parts(1, number), limits, node.clone()));
        let event = Arc::new(node.take(500).unwrap());
        let waits = roots.each_ref().map(|root| root.charge_event(&event, 100).unwrap());
        assert_eq!(node.bytes.free(), 200);
        assert!(
            roots[0].charge(1).is_err() && roots[0].charge_event(&event, 0).is_err(),
            "the root is full"
        );
        drop(event);
        let [first, second, third] = waits;
        drop((first, second));
        assert_eq!(node.bytes.free(), 400, "one root still waits for it");
        drop(third);
        assert_eq!(node.bytes.free(), 1000);
    }

    #[test]
    fn while_the_node_has_no_free_bytes_the_largest_root_does_not_grow() {
        let node = NodeBudget::new(1000);
        let limits = RootLimits { descendants: 2, bytes: 900 };
        let root = |number| {
            let id = Ulid::from_parts(1, number);
            RootBudget::new(id, limits, node.clone()).charge_instance(id, 100, false).unwrap()
        };
        let (mut large, mut small) = (root(1), root(2));
        assert!(large.set_bytes(800) && small.set_bytes(199), "there is room for both");
        assert!(!node.has_room(1) && node.is_spent());
        let other = RootBudget::new(Ulid::from_parts(1, 3), limits, node.clone());
        assert!(other.charge_instance(Ulid::from_parts(1, 3), 1, false).is_err());
        assert!(
            other.charge_instance(Ulid::from_parts(1, 3), 1, true).is_ok(),
            "a small instance of a workflow with few instances"
        );
        drop(other);
        assert!(small.set_bytes(400), "it has less than half");
        assert!(!large.set_bytes(801));
        assert_eq!(large.over_budget(), OverBudget::NodeBytes { max_bytes: 1000 });
        drop(large);
        assert!(small.set_bytes(800) && !node.is_spent());
    }
}
