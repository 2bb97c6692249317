//! The nodes that keep copies of objects in which too few nodes are interested.

use crate::replication::NodeId;

/// True if `node` is one of those that keep the object with this hash.
///
/// `nodes` are this node and the connected ones, with whether they are interested. Of those that are not, the
/// ones with the greatest weight make up what is missing in `copies`. A node that comes or goes moves only
/// the objects that it takes or leaves.
pub(crate) fn keeps(
    node: NodeId,
    hash: u64,
    copies: u8,
    nodes: impl Iterator<Item = (NodeId, bool)> + Clone,
) -> bool {
    let enough = usize::from(copies);
    let interested = nodes.clone().filter(|(_, interested)| *interested).take(enough).count();
    let missing = enough - interested;
    if missing == 0 {
        return false;
    }
    let own = (weight(node, hash), node);
    let before = nodes.filter(|(other, interested)| !interested && (weight(*other, hash), *other) > own);
    before.take(missing).count() < missing
}

fn weight(node: NodeId, hash: u64) -> u64 {
    mix(hash ^ mix(node.0))
}

/// The finisher of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepers(hash: u64, copies: u8, nodes: &[(u64, bool)]) -> Vec<u64> {
        let all = nodes.iter().map(|(node, interested)| (NodeId(*node), *interested));
        let candidates = nodes.iter().filter(|(_, interested)| !interested).map(|(node, _)| *node);
        candidates.filter(|node| keeps(NodeId(*node), hash, copies, all.clone())).collect()
    }

    #[test]
    fn as_many_keep_it_as_are_missing() {
        let nodes: Vec<(u64, bool)> = (0..10).map(|node| (node, node < 2)).collect();
        for hash in 0..100 {
            assert_eq!(keepers(hash, 2, &nodes).len(), 0);
            assert_eq!(keepers(hash, 3, &nodes).len(), 1);
            assert_eq!(keepers(hash, 5, &nodes).len(), 3);
            assert_eq!(keepers(hash, 99, &nodes).len(), 8, "all there are");
        }
    }

    #[test]
    fn one_that_leaves_moves_only_its_own_and_the_rest_is_spread() {
        let nodes: Vec<(u64, bool)> = (0..11).map(|node| (node, node == 0)).collect();
        let fewer: Vec<(u64, bool)> = nodes.iter().copied().filter(|(node, _)| *node != 3).collect();
        let mut load = [0_u32; 11];
        for hash in (0..10_000).map(mix) {
            let (before, after) = (keepers(hash, 2, &nodes), keepers(hash, 2, &fewer));
            assert!(before == after || before == [3]);
            load[before[0] as usize] += 1;
        }
        assert!(load[1..].iter().all(|objects| (800..1_200).contains(objects)), "{load:?}");
    }
}
