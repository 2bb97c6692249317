//! Digests of the objects whose hashes begin with the same byte.

use std::collections::{BTreeMap, HashSet};

use edgefaas_cluster::replication::{DeletionTimes, ObjectKey, Part, View};
use edgefaas_crdt::FieldState;
use xxhash_rust::xxh3::Xxh3Default;

#[derive(Default)]
pub(super) struct Bucket {
    /// Changes with every object of the bucket.
    pub(super) version: u64,
    pub(super) objects: BTreeMap<ObjectKey, Known>,
    /// Those of the objects that have deleted fields.
    pub(super) deletions: BTreeMap<ObjectKey, Deletions>,
    /// Objects that have changed since their digests were computed.
    pub(super) stale: HashSet<ObjectKey>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// Digest of all fields and deletions.
    pub(super) whole: u64,
    /// Number of copies that peers report; 0 if none did.
    pub(super) copies: u8,
}

/// Digests of an object.
pub(super) struct Digests {
    pub(super) whole: u64,
    /// `None` if no field is deleted.
    pub(super) deletions: Option<Deletions>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Deletions {
    pub(super) times: DeletionTimes,
    /// Digest of the fields that are not deleted; `None` if there are none.
    without: Option<u64>,
    /// Digest of the deleted fields.
    only: u64,
}

/// Answer to a request for the digest of a view.
pub(super) enum Answer {
    Digest(Option<u64>),
    /// Some deletions of the object are in the view and some are not: the fields have to be read.
    Mixed,
}

impl Bucket {
    /// The digest of a part of an object that is not stale.
    pub(super) fn digest(&self, object: &ObjectKey, view: View) -> Answer {
        let Some(known) = self.objects.get(object) else { return Answer::Digest(None) };
        let Some(Deletions { times, without, only }) = self.deletions.get(object) else {
            return Answer::Digest((view.part == Part::Whole).then_some(known.whole));
        };
        let (none, all) = (view.without_ms >= times.newest_ms, view.without_ms < times.oldest_ms);
        match view.part {
            Part::Whole if all => Answer::Digest(Some(known.whole)),
            Part::Whole if none => Answer::Digest(*without),
            Part::Deletions if all => Answer::Digest(Some(*only)),
            Part::Deletions if none => Answer::Digest(None),
            Part::Whole | Part::Deletions => Answer::Mixed,
        }
    }
}

/// Computes the digests of an object from its fields, in the order of their names.
#[derive(Default)]
pub(super) struct Hasher {
    all: Group,
    live: Group,
    deleted: Group,
    times: Option<DeletionTimes>,
}

#[derive(Default)]
struct Group {
    digest: Xxh3Default,
    fields: usize,
}

impl Hasher {
    pub(super) fn add(&mut self, name: &str, state: &FieldState) {
        let digest = state.digest();
        self.all.add(name, digest);
        if !state.is_deleted() {
            self.live.add(name, digest);
            return;
        }
        self.deleted.add(name, digest);
        let at_ms = state.deleted_at_ms();
        let times = self.times.get_or_insert(DeletionTimes { oldest_ms: at_ms, newest_ms: at_ms });
        times.oldest_ms = times.oldest_ms.min(at_ms);
        times.newest_ms = times.newest_ms.max(at_ms);
    }

    /// The digests; `None` without a field.
    pub(super) fn finish(&self) -> Option<Digests> {
        let deletions = self.deleted.finish().zip(self.times);
        let deletions =
            deletions.map(|(only, times)| Deletions { times, without: self.live.finish(), only });
        self.all.finish().map(|whole| Digests { whole, deletions })
    }
}

impl Group {
    fn add(&mut self, name: &str, field: u64) {
        self.fields += 1;
        self.digest.update(name.as_bytes());
        self.digest.update(&[0]);
        self.digest.update(&field.to_le_bytes());
    }

    fn finish(&self) -> Option<u64> {
        (self.fields > 0).then(|| self.digest.digest())
    }
}
