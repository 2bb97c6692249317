//! How much function memory of a worker the entry nodes may use: the four distributions. The worker enforces it.

use super::policy::Distribution;

/// An entry node as the worker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// It is the worker itself, or in the worker's zone.
    SameZone,
    /// The worker has no zone.
    WorkerWithoutZone,
    /// It has no zone or another one, and the worker has a zone.
    OtherZone,
}

impl Relation {
    /// The relation of an entry node to a worker. A node is always in its own zone.
    pub fn of(entry: Zoned<'_>, worker: Zoned<'_>) -> Self {
        match worker.zone {
            _ if entry.node_id == worker.node_id => Self::SameZone,
            None => Self::WorkerWithoutZone,
            Some(_) if entry.zone == worker.zone => Self::SameZone,
            Some(_) => Self::OtherZone,
        }
    }
}

/// A node and its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zoned<'a> {
    /// The node.
    pub node_id: u64,
    /// Its zone, if it has one.
    pub zone: Option<&'a str>,
}

/// Numbers of entry nodes that are connected, the worker itself among them. Every node of a cluster is an entry node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryNodes {
    /// All of them (N).
    pub all: u32,
    /// Those in the worker's zone (k).
    pub in_zone: u32,
}

impl EntryNodes {
    /// Counts the connected members for a worker, which counts as one of them whether `connected` has it or not.
    pub fn count<'a>(worker: Zoned<'a>, connected: impl Iterator<Item = Zoned<'a>>) -> Self {
        let mut count = Self { all: 1, in_zone: 1 };
        for member in connected.filter(|member| member.node_id != worker.node_id) {
            count.all += 1;
            count.in_zone += u32::from(Relation::of(member, worker) == Relation::SameZone);
        }
        count
    }
}

/// The function memory in bytes that calls of one entry node may use on a worker with `memory_bytes`.
///
/// `invocation_bytes` is what one invocation needs at least, of the function that is called. A share that is not 0 is
/// at least this much, so that a share of a small worker is not useless, and at most the whole memory.
pub fn share_bytes(
    distribution: Distribution,
    relation: Relation,
    memory_bytes: u64,
    entry_nodes: EntryNodes,
    invocation_bytes: u64,
) -> u64 {
    let of_all = memory_bytes / u64::from(entry_nodes.all.max(1));
    let of_zone = memory_bytes / u64::from(entry_nodes.in_zone.max(1));
    let share = match (distribution, relation) {
        (Distribution::Default, _) | (_, Relation::WorkerWithoutZone) => of_all,
        (_, Relation::SameZone) => of_zone,
        (Distribution::Shared, Relation::OtherZone) => of_all,
        (Distribution::MinMemory, Relation::OtherZone) => invocation_bytes,
        (Distribution::Isolated, Relation::OtherZone) => return 0,
    };
    share.max(invocation_bytes).min(memory_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENTRY_NODES: EntryNodes = EntryNodes { all: 6, in_zone: 3 };

    #[test]
    fn shares_are_those_of_the_table() {
        use Distribution::{Default, Isolated, MinMemory, Shared};
        use Relation::{OtherZone, SameZone, WorkerWithoutZone};
        // m = 1200, N = 6, k = 3, one invocation needs 10.
        let table = [
            (Default, [200, 200, 200]),
            (Shared, [400, 200, 200]),
            (MinMemory, [400, 200, 10]),
            (Isolated, [400, 200, 0]),
        ];
        for (distribution, shares) in table {
            let found = [SameZone, WorkerWithoutZone, OtherZone]
                .map(|relation| share_bytes(distribution, relation, 1_200, ENTRY_NODES, 10));
            assert_eq!(found, shares, "{distribution:?}");
        }
    }

    #[test]
    fn relations_and_counts() {
        let node = |node_id, zone| Zoned { node_id, zone };
        let worker = node(1, Some("a"));
        assert_eq!(Relation::of(node(2, Some("a")), worker), Relation::SameZone);
        assert_eq!(Relation::of(node(2, Some("b")), worker), Relation::OtherZone);
        assert_eq!(Relation::of(node(2, None), worker), Relation::OtherZone);
        assert_eq!(Relation::of(node(2, None), node(1, None)), Relation::WorkerWithoutZone);
        assert_eq!(Relation::of(node(1, None), node(1, None)), Relation::SameZone);
        let members = [node(1, Some("a")), node(2, Some("a")), node(3, Some("b")), node(4, None)];
        assert_eq!(EntryNodes::count(worker, members.into_iter()), EntryNodes { all: 4, in_zone: 2 });
        assert_eq!(
            EntryNodes::count(node(9, None), members.into_iter()),
            EntryNodes { all: 5, in_zone: 1 }
        );
    }

    #[test]
    fn a_small_worker_still_runs_one_invocation() {
        let many = EntryNodes { all: 1_000, in_zone: 1_000 };
        assert_eq!(share_bytes(Distribution::Default, Relation::SameZone, 64, many, 16), 16);
        assert_eq!(
            share_bytes(Distribution::MinMemory, Relation::OtherZone, 8, many, 16),
            8,
            "no more than all"
        );
        assert_eq!(share_bytes(Distribution::Isolated, Relation::OtherZone, 64, many, 16), 0);
    }

    proptest! {
        #[test]
        fn shares_of_one_zone_fit_into_the_memory(memory in 0..u64::MAX, all in 1..1_024_u32, part in 0.0..1.0_f64) {
            let in_zone = ((f64::from(all) * part) as u32).max(1);
            let entry_nodes = EntryNodes { all, in_zone };
            let share = share_bytes(Distribution::Shared, Relation::SameZone, memory, entry_nodes, 0);
            prop_assert!(u128::from(share) * u128::from(in_zone) <= u128::from(memory));
            let share = share_bytes(Distribution::Default, Relation::OtherZone, memory, entry_nodes, 0);
            prop_assert!(u128::from(share) * u128::from(all) <= u128::from(memory));
        }
    }
}
