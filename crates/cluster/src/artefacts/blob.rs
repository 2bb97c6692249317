//! One blob: its chunks here, and the members that it is exchanged with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::chunk_set::ChunkSet;
use super::fetch::Fetch;
use super::tree::Tree;
use super::wire::{Close, Have, Kind, Message};
use super::{BlobDigest, MAX_PARTNERS, Output};
use crate::replication::NodeId;

/// Pause between two announcements of new chunks to a partner.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(100);

/// A blob that is fetched or served.
#[derive(Debug, Default)]
pub(super) struct Blob {
    /// `None` until it has come.
    pub(super) tree: Option<Arc<Tree>>,
    /// The chunks that are here.
    pub(super) have: ChunkSet,
    /// The members that have opened it, or with which it was opened.
    pub(super) partners: BTreeMap<NodeId, Partner>,
    /// The fetch, until it is complete.
    pub(super) fetch: Option<Fetch>,
    /// How often each chunk was handed out.
    pub(super) handed_out: Vec<u16>,
    /// Number of chunks handed out.
    pub(super) sent: usize,
    /// True until the node has said whether it has the blob.
    pub(super) is_looked_up: bool,
    pub(super) used_at: Duration,
    pub(super) announce_at: Option<Duration>,
}

/// A member that the blob is exchanged with.
#[derive(Debug, Default)]
pub(super) struct Partner {
    /// This node has opened the blob there.
    pub(super) opened: bool,
    /// The member has opened the blob here, and is notified of new chunks.
    pub(super) is_told: bool,
    /// Number of chunks in the last notification.
    pub(super) told: Option<usize>,
    /// Size of the blob and its chunks there.
    pub(super) has: Option<(u64, ChunkSet)>,
    /// Chunks asked for there, by request.
    pub(super) requests: BTreeMap<u32, (ChunkSet, Duration)>,
    /// Nothing is asked there before this time.
    pub(super) retry_at: Duration,
    /// Requests in a row that expired.
    pub(super) expired: u32,
    /// How often it has said that it does not have the blob.
    pub(super) gone: u32,
    /// It has sent an invalid tree or chunk.
    pub(super) is_faulty: bool,
}

impl Blob {
    /// Sets the tree and the chunks that are here.
    pub(super) fn set_tree(&mut self, tree: Arc<Tree>, have: ChunkSet) {
        self.handed_out = vec![0; tree.chunks()];
        self.have = have;
        self.tree = Some(tree);
    }

    /// Size of a chunk, in bytes: of all but the last one, or of the only one.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.tree.as_ref().map_or(0, |tree| tree.range(0).len())
    }

    /// The partner; `None` if there are too many.
    pub(super) fn partner(&mut self, node: NodeId) -> Option<&mut Partner> {
        if self.partners.len() >= MAX_PARTNERS && !self.partners.contains_key(&node) {
            return None;
        }
        Some(self.partners.entry(node).or_default())
    }

    /// The chunks here, as a message.
    pub(super) fn have_message(&self, digest: BlobDigest) -> Message {
        let size_bytes = self.tree.as_ref().map_or(0, |tree| tree.size_bytes());
        Message::new(digest, Kind::Have(Have { size_bytes, chunks: self.have.to_bytes() }))
    }

    /// Tells a partner of the chunks here.
    pub(super) fn tell(&mut self, digest: BlobDigest, node: NodeId, out: &mut Vec<Output>) {
        let count = self.have.count();
        if let Some(partner) = self.partners.get_mut(&node) {
            partner.told = Some(count);
            out.push(Output::Send { node, message: self.have_message(digest) });
        }
    }

    /// Plans to tell all partners of new chunks: at once if these are all, and so for a blob of one chunk. Announcements of a
    /// large blob are longer, and rarer.
    pub(super) fn plan_announcement(&mut self, now: Duration) {
        if self.have.is_full() {
            self.announce_at = Some(now);
            return;
        }
        let pause = ANNOUNCE_EVERY * (1 + self.have.chunks() as u32 / 1024);
        self.announce_at.get_or_insert(now + pause);
    }

    /// Tells the partners that do not know all chunks, if it is time.
    pub(super) fn announce(&mut self, digest: BlobDigest, now: Duration, out: &mut Vec<Output>) {
        if self.announce_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        let count = self.have.count();
        let stale: Vec<_> = self
            .partners
            .iter()
            .filter(|(_, partner)| partner.is_told && partner.told != Some(count))
            // A node that has the whole blob asks for nothing.
            .filter(|(_, partner)| !partner.has.as_ref().is_some_and(|(_, has)| has.is_full()))
            .map(|(node, _)| *node)
            .collect();
        stale.into_iter().for_each(|node| self.tell(digest, node, out));
    }

    /// Ends the fetch.
    pub(super) fn end_fetch(&mut self, digest: BlobDigest, out: &mut Vec<Output>) {
        self.fetch = None;
        for (node, partner) in &mut self.partners {
            partner.requests.clear();
            if std::mem::take(&mut partner.opened) {
                out.push(Output::Send {
                    node: *node,
                    message: Message::new(digest, Kind::Close(Close {})),
                });
            }
        }
        self.partners.retain(|_, partner| partner.is_told);
    }
}
