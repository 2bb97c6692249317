//! The workers that a node knows, and sets of them.

/// Maximum number of workers, which is that of the members of a cluster.
pub const MAX_WORKERS: usize = 1_024;

const WORDS: usize = MAX_WORKERS / 64;

/// Position of a worker in [`Workers`].
pub type WorkerIndex = u16;

/// A member of the cluster as a worker: what policies refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its node.
    pub node_id: u64,
    /// The name in its certificate.
    pub name: String,
    /// Its zone, if it is known.
    pub zone: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
}

impl Worker {
    /// True if the worker has the label, or is in the zone of this name.
    pub fn has_label(&self, label: &str) -> bool {
        self.zone.as_deref() == Some(label) || self.labels.iter().any(|own| own == label)
    }
}

/// All members in the order of their names, with this node among them. Members that are away are included, so that
/// positions and hashes do not change when a node goes for a moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workers {
    workers: Vec<Worker>,
    local: WorkerIndex,
}

impl Workers {
    /// Orders the members. Of two with the same node id the first one counts. At most [`MAX_WORKERS`] are kept, this
    /// node always.
    pub fn new(local: Worker, others: impl IntoIterator<Item = Worker>) -> Self {
        let local_id = local.node_id;
        let mut workers = vec![local];
        let mut seen = std::collections::HashSet::from([local_id]);
        workers
            .extend(others.into_iter().filter(|worker| seen.insert(worker.node_id)).take(MAX_WORKERS - 1));
        workers.sort_by(|a, b| (&a.name, a.node_id).cmp(&(&b.name, b.node_id)));
        let local = workers.iter().position(|worker| worker.node_id == local_id).unwrap_or_default();
        Self { local: local as WorkerIndex, workers }
    }

    /// The members in order.
    pub fn as_slice(&self) -> &[Worker] {
        &self.workers
    }

    /// This node.
    pub fn local(&self) -> WorkerIndex {
        self.local
    }

    /// The position of a node.
    pub fn index_of(&self, node_id: u64) -> Option<WorkerIndex> {
        self.workers.iter().position(|worker| worker.node_id == node_id).map(|index| index as WorkerIndex)
    }

    pub(crate) fn get(&self, index: WorkerIndex) -> Option<&Worker> {
        self.workers.get(usize::from(index))
    }

    /// The workers for which `choose` is true.
    pub fn select(&self, mut choose: impl FnMut(&Worker) -> bool) -> WorkerSet {
        let mut set = WorkerSet::default();
        for (index, worker) in self.workers.iter().enumerate() {
            if choose(worker) {
                set.insert(index as WorkerIndex);
            }
        }
        set
    }
}

/// A set of workers, by their positions. It has a fixed size and needs no allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerSet {
    words: [u64; WORDS],
}

impl Default for WorkerSet {
    fn default() -> Self {
        Self { words: [0; WORDS] }
    }
}

impl WorkerSet {
    /// Adds a worker. A position of [`MAX_WORKERS`] or more is ignored.
    pub fn insert(&mut self, index: WorkerIndex) {
        if let Some(word) = self.words.get_mut(usize::from(index) / 64) {
            *word |= 1 << (index % 64);
        }
    }

    /// Removes a worker.
    pub fn remove(&mut self, index: WorkerIndex) {
        if let Some(word) = self.words.get_mut(usize::from(index) / 64) {
            *word &= !(1 << (index % 64));
        }
    }

    /// True if the worker is in the set.
    pub fn contains(&self, index: WorkerIndex) -> bool {
        self.words.get(usize::from(index) / 64).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    /// True if no worker is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Number of workers.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The workers in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut result = *self;
        for (word, other) in result.words.iter_mut().zip(&other.words) {
            *word &= other;
        }
        result
    }

    /// The workers of this set that are not in the other.
    pub fn difference(&self, other: &Self) -> Self {
        let mut result = *self;
        for (word, other) in result.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
        result
    }

    /// The workers in either set.
    pub fn union(&self, other: &Self) -> Self {
        let mut result = *self;
        for (word, other) in result.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
        result
    }

    /// The workers in ascending order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { words: &self.words, base: 0, rest: self.words[0] }
    }

    /// The worker that has `rank` others of the set before it.
    pub(crate) fn nth(&self, rank: usize) -> Option<WorkerIndex> {
        let mut before = 0;
        for (at, word) in self.words.iter().enumerate() {
            let here = word.count_ones() as usize;
            if rank < before + here {
                let mut rest = *word;
                for _ in before..rank {
                    rest &= rest - 1;
                }
                return Some((at as u32 * 64 + rest.trailing_zeros()) as WorkerIndex);
            }
            before += here;
        }
        None
    }
}

/// The workers of a set in ascending order.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    words: &'a [u64; WORDS],
    /// Position of the first worker of the current word.
    base: usize,
    /// Workers of the current word that are still to come.
    rest: u64,
}

impl Iterator for Iter<'_> {
    type Item = WorkerIndex;

    #[inline]
    fn next(&mut self) -> Option<WorkerIndex> {
        while self.rest == 0 {
            self.base += 64;
            self.rest = *self.words.get(self.base / 64)?;
        }
        let bit = self.rest.trailing_zeros() as usize;
        self.rest &= self.rest - 1;
        Some((self.base + bit) as WorkerIndex)
    }
}

impl FromIterator<WorkerIndex> for WorkerSet {
    fn from_iter<I: IntoIterator<Item = WorkerIndex>>(indices: I) -> Self {
        let mut set = Self::default();
        for index in indices {
            set.insert(index);
        }
        set
    }
}
