//! Which objects two nodes compare, and the digests of them.

use std::ops::RangeInclusive;

use crate::replication::copies::keeps;
use crate::replication::round::{Entry, Tally, bucket_range, in_ranges};
use crate::replication::{Delta, NodeId, ObjectDigest, ObjectKey, Part, Replica, Replication, View};
use crate::wire::BUCKETS;

/// Digests of buckets from the last round with a peer. A bucket that has not changed is not looked at again.
#[derive(Debug, Default)]
pub(crate) struct TallyCache {
    /// The interests that it is about: of this node, of the peer.
    versions: (u32, u32),
    buckets: Vec<Option<CachedBucket>>,
}

#[derive(Debug, Clone, Copy)]
struct CachedBucket {
    version: u64,
    digest: u64,
    objects: u32,
    /// The deletions that are left out, if the bucket has deletions.
    without_ms: Option<u64>,
}

/// An object that is compared with a peer.
struct Shared {
    hash: u64,
    digest: u64,
    part: Part,
}

impl<D: Delta> Replication<D> {
    /// True if an object that this node holds is compared with a peer: the peer is interested, or is known to hold the
    /// object, or the peer is to keep a copy and this node is responsible for that (it is interested, or no node is). Both
    /// sides must mostly agree; a round corrects a disagreement, and both agree in the next round.
    pub(super) fn shares<R>(&self, node: NodeId, object: &ObjectKey, replica: &R) -> bool
    where
        R: Replica<Delta = D>,
    {
        let Some(peer) = self.peers.get(&node) else { return false };
        if peer.is_interested(object) || peer.kept.contains(object) {
            return true;
        }
        let in_charge =
            self.interests.matches(object) || !self.view(object).any(|(_, interested)| interested);
        in_charge && keeps(node, object.hash64(), replica.copies(object), self.view(object))
    }

    /// This node and the connected nodes, each with a flag: the node is interested in the object. Nodes that left a
    /// moment ago count; new nodes without interest, which may leave soon, do not.
    pub(super) fn view<'a>(
        &'a self,
        object: &'a ObjectKey,
    ) -> impl Iterator<Item = (NodeId, bool)> + Clone {
        let (now, settle) = (self.now, self.settings.settle);
        let others = self.peers.iter().filter(|(_, peer)| peer.interests.is_some());
        let others = others.map(move |(node, peer)| {
            let stays = now.saturating_sub(peer.since) >= settle;
            (*node, peer.is_interested(object), stays)
        });
        let absent = self.absent.iter().map(move |(node, absent)| {
            let returns = now.saturating_sub(absent.left) < settle;
            (*node, returns && absent.interests.matches(object), returns)
        });
        let counted = others.chain(absent).filter(|(_, interested, lasting)| *interested || *lasting);
        let counted = counted.map(|(node, interested, _)| (node, interested));
        std::iter::once_with(move || (self.me, self.interests.matches(object))).chain(counted)
    }

    /// Digests of the objects that this node and a peer share, without deletions up to `without_ms`.
    pub(super) fn tally<R>(&mut self, node: NodeId, without_ms: u64, replica: &R) -> Tally
    where
        R: Replica<Delta = D>,
    {
        let mut tally = Tally::new();
        let Some(peer) = self.peers.get_mut(&node) else { return tally };
        if replica.version(0).is_none() {
            self.visit_shared(node, 0..=u64::MAX, without_ms, replica, &mut |_, shared| {
                tally.add(shared.hash, shared.digest);
            });
            return tally;
        }
        let mut cache = std::mem::take(&mut peer.tally_cache);
        let versions = (self.interests_version, peer.interests_version);
        if cache.versions != versions || cache.buckets.len() != BUCKETS {
            cache = TallyCache { versions, buckets: vec![None; BUCKETS] };
        }
        for (bucket, known) in cache.buckets.iter_mut().enumerate() {
            let version = u8::try_from(bucket).ok().and_then(|bucket| replica.version(bucket));
            let is_current = |known: &CachedBucket| {
                Some(known.version) == version && known.without_ms.is_none_or(|known| known == without_ms)
            };
            let current = match known.filter(is_current) {
                Some(current) => current,
                None => {
                    let (current, is_lasting) = self.tally_bucket(node, bucket, without_ms, replica);
                    *known =
                        version.filter(|_| is_lasting).map(|version| CachedBucket { version, ..current });
                    current
                }
            };
            tally.set(bucket, current.digest, current.objects);
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.tally_cache = cache;
        }
        tally
    }

    /// Digests of one bucket. The flag is true if they hold until an object of the bucket changes, and not only until
    /// members come or go.
    fn tally_bucket<R>(
        &self,
        node: NodeId,
        bucket: usize,
        without_ms: u64,
        replica: &R,
    ) -> (CachedBucket, bool)
    where
        R: Replica<Delta = D>,
    {
        let mut tally = Tally::new();
        let (mut is_lasting, mut has_deletions) = (true, false);
        let (first, last) = bucket_range(bucket);
        let Some(peer) = self.peers.get(&node) else {
            return (CachedBucket { version: 0, digest: 0, objects: 0, without_ms: None }, false);
        };
        replica.digests(first..=last, &mut |object, digest| {
            is_lasting &= peer.is_interested(object);
            has_deletions |= digest.deletions.is_some();
            if let Some(shared) = self.shared(node, object, digest, without_ms, replica) {
                tally.add(shared.hash, shared.digest);
            }
        });
        let (digest, objects) = tally.bucket(bucket);
        let without_ms = has_deletions.then_some(without_ms);
        (CachedBucket { version: 0, digest, objects, without_ms }, is_lasting)
    }

    /// The shared objects in some ranges, sorted by hash.
    pub(super) fn entries<R>(
        &self,
        node: NodeId,
        (from, to): (&[u64], &[u64]),
        without_ms: u64,
        replica: &R,
    ) -> Vec<Entry>
    where
        R: Replica<Delta = D>,
    {
        let mut entries = Vec::new();
        let (Some(first), Some(last)) = (from.first(), to.last()) else { return entries };
        let mut add = |object: &ObjectKey, shared: Shared| {
            let Shared { hash, digest, part } = shared;
            if in_ranges(from, to, hash) {
                entries.push(Entry { hash, digest, key: object.clone(), part });
            }
        };
        if replica.version(0).is_none() {
            self.visit_shared(node, *first..=*last, without_ms, replica, &mut add);
        } else {
            for (first, last) in from.iter().zip(to) {
                self.visit_shared(node, *first..=*last, without_ms, replica, &mut add);
            }
        }
        entries.sort_unstable_by(|a, b| (a.hash, &a.key).cmp(&(b.hash, &b.key)));
        entries
    }

    fn visit_shared<R>(
        &self,
        node: NodeId,
        hashes: RangeInclusive<u64>,
        without_ms: u64,
        replica: &R,
        visit: &mut dyn FnMut(&ObjectKey, Shared),
    ) where
        R: Replica<Delta = D>,
    {
        replica.digests(hashes, &mut |object, digest| {
            if let Some(shared) = self.shared(node, object, digest, without_ms, replica) {
                visit(object, shared);
            }
        });
    }

    /// What of an object is compared with a peer. A node that the object does not concern may hold an old copy of it: it
    /// gets the deletions that not all members have.
    fn shared<R>(
        &self,
        node: NodeId,
        object: &ObjectKey,
        digest: ObjectDigest,
        without_ms: u64,
        replica: &R,
    ) -> Option<Shared>
    where
        R: Replica<Delta = D>,
    {
        let hash = object.hash64();
        let is_shared = self.shares(node, object, replica);
        let (part, digest) = match (is_shared, digest.deletions) {
            (true, None) => (Part::Whole, digest.whole),
            (true, Some(times)) if without_ms < times.oldest_ms => (Part::Whole, digest.whole),
            (true, Some(_)) => {
                (Part::Whole, replica.digest(object, View { part: Part::Whole, without_ms })?)
            }
            (false, Some(times)) if without_ms < times.newest_ms => {
                (Part::Deletions, replica.digest(object, View { part: Part::Deletions, without_ms })?)
            }
            (false, _) => return None,
        };
        Some(Shared { hash, digest, part })
    }

    /// The part of an object that a peer gets.
    pub(super) fn part_for<R>(&self, node: NodeId, object: &ObjectKey, replica: &R) -> Part
    where
        R: Replica<Delta = D>,
    {
        if self.shares(node, object, replica) { Part::Whole } else { Part::Deletions }
    }
}
