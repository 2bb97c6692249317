//! The parts of this node that other nodes use.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Share;

/// What other nodes use now, by node.
#[derive(Debug, Clone, Default)]
pub(super) struct UsedShares {
    used: Arc<Mutex<HashMap<u64, Used>>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Used {
    bytes: u64,
    permits: u32,
}

/// The use of one invocation; a drop returns it.
#[derive(Debug)]
pub(super) struct Use {
    shares: UsedShares,
    node_id: u64,
    bytes: u64,
}

/// A node would use more than its share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum ShareFull {
    /// The node may use nothing.
    #[error("nodes of another zone may not use this node (`distribution: isolated`)")]
    Nothing,
    /// Its share of the memory or of the isolates is used up.
    #[error(
        "the entry node uses its share of this node: it may have {permits} invocations and {memory_bytes} bytes here; try \
         again later"
    )]
    Used {
        /// The share of the memory.
        memory_bytes: u64,
        /// The share of the isolates.
        permits: u32,
    },
}

impl UsedShares {
    /// Takes what one invocation of a node needs.
    pub fn take(&self, node_id: u64, bytes: u64, share: Share) -> Result<Use, ShareFull> {
        let Share { memory_bytes, permits } = share;
        if memory_bytes == 0 || permits == 0 {
            return Err(ShareFull::Nothing);
        }
        let mut nodes = self.used.lock();
        let used = nodes.entry(node_id).or_default();
        // One invocation always fits.
        let is_first = used.permits == 0;
        if !is_first && (used.permits >= permits || used.bytes.saturating_add(bytes) > memory_bytes) {
            return Err(ShareFull::Used { memory_bytes, permits });
        }
        used.bytes += bytes;
        used.permits += 1;
        Ok(Use { shares: self.clone(), node_id, bytes })
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut nodes = self.shares.used.lock();
        let Some(used) = nodes.get_mut(&self.node_id) else { return };
        used.bytes = used.bytes.saturating_sub(self.bytes);
        used.permits = used.permits.saturating_sub(1);
        if used.permits == 0 {
            nodes.remove(&self.node_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_gets_its_share_and_no_more() {
        let shares = UsedShares::default();
        let share = Share { memory_bytes: 100, permits: 3 };
        let first = shares.take(1, 60, share).unwrap();
        let full = ShareFull::Used { memory_bytes: 100, permits: 3 };
        assert_eq!(shares.take(1, 60, share).unwrap_err(), full);
        let _other_node = shares.take(2, 60, share).unwrap();
        let small = [shares.take(1, 10, share).unwrap(), shares.take(1, 10, share).unwrap()];
        assert_eq!(shares.take(1, 1, share).unwrap_err(), full, "its permits are used");
        drop((first, small));
        let _large = shares.take(1, 500, share).expect("one invocation always fits");
        let nothing = Share { memory_bytes: 0, permits: 3 };
        assert_eq!(shares.take(3, 1, nothing).unwrap_err(), ShareFull::Nothing);
        assert_eq!(shares.used.lock().len(), 2, "a node that uses nothing is forgotten");
    }
}
