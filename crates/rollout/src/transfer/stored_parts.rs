//! The parts of revisions in the node's store.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_cluster::artefacts::BlobDigest;
use edgefaas_functions::registry::Registry;
use edgefaas_state::store::Store;

use super::Holder;

/// The parts of revisions in the store: sources, assets and records of revisions, by digest.
pub struct StoredParts {
    /// The apps of this node.
    pub registry: Arc<Registry>,
    /// Their store.
    pub store: Arc<Store>,
}

impl Holder for StoredParts {
    fn size_bytes(&self, blob: &BlobDigest) -> Option<u64> {
        let size = self.registry.stored_part_bytes(&blob.0);
        size.inspect_err(|error| tracing::warn!(%blob, %error, "the store cannot be read")).ok()?
    }

    fn read(&self, blob: &BlobDigest) -> Option<Bytes> {
        let part = self.registry.stored_part(&blob.0);
        part.inspect_err(|error| tracing::warn!(%blob, %error, "the store cannot be read")).ok()?
    }

    fn wanted(&self) -> Option<BTreeSet<BlobDigest>> {
        let staged = self.registry.staged_parts();
        let staged =
            staged.inspect_err(|error| tracing::warn!(%error, "the store cannot be read")).ok()??;
        Some(staged.into_iter().map(BlobDigest).collect())
    }

    fn room_bytes(&self) -> u64 {
        let space = self.store.committer().space();
        match space.is_full {
            true => 0,
            false => space.free_bytes.saturating_sub(space.needed_bytes),
        }
    }
}
