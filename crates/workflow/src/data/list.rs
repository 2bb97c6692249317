//! A list whose clones share their items (Bagwell, Rompf 2011; as in Clojure's vectors). Appending to a clone copies
//! one path of a tree with 32 branches per node, not the whole list.

use std::sync::Arc;

use super::Data;

const BITS: u32 = 5;
/// The number of items in one chunk. The items of a chunk are contiguous in memory.
pub(crate) const CHUNK: usize = 1 << BITS;

/// Items in order.
#[derive(Clone, Debug, Default)]
pub struct List {
    len: usize,
    /// The full chunks. `None` while there are at most [`CHUNK`] items.
    root: Option<Arc<Node>>,
    /// Levels of branches above the chunks of `root`, times [`BITS`].
    shift: u32,
    /// The last items: at least one, unless the list is empty.
    tail: Vec<Data>,
}

#[derive(Clone, Debug)]
enum Node {
    Branch(Vec<Arc<Node>>),
    Chunk(Vec<Data>),
}

impl List {
    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The item at an index.
    pub fn get(&self, at: usize) -> Option<&Data> {
        if at < self.len { self.chunk(at).get(at % CHUNK) } else { None }
    }

    /// All items.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Data> {
        self.range(0, self.len)
    }

    /// The items with indices from `from` (included) to `upto` (excluded).
    pub fn range(&self, from: usize, upto: usize) -> impl DoubleEndedIterator<Item = &Data> {
        let upto = upto.min(self.len);
        let chunks = (from / CHUNK)..upto.div_ceil(CHUNK);
        chunks.flat_map(move |chunk| {
            let start = chunk * CHUNK;
            let (first, end) = (from.max(start) - start, upto.min(start + CHUNK) - start);
            self.chunk(start).get(first..end).unwrap_or_default().iter()
        })
    }

    /// Appends an item.
    pub(crate) fn push(&mut self, item: Data) {
        if self.tail.len() == CHUNK {
            let chunk = std::mem::take(&mut self.tail);
            self.add_chunk(Arc::new(Node::Chunk(chunk)));
        }
        self.tail.push(item);
        self.len += 1;
    }

    /// The chunk that contains the item at index `at`. The index must be within the list.
    fn chunk(&self, at: usize) -> &[Data] {
        if at >= self.len - self.tail.len() {
            return &self.tail;
        }
        let (mut node, mut shift) = (self.root.as_deref(), self.shift);
        loop {
            match node {
                Some(Node::Chunk(items)) => return items,
                Some(Node::Branch(nodes)) => {
                    node = nodes.get((at >> shift) % CHUNK).map(|node| &**node);
                    shift = shift.saturating_sub(BITS);
                }
                None => return &[],
            }
        }
    }

    /// Appends a full chunk to `root`. Its items are the last of the list.
    fn add_chunk(&mut self, chunk: Arc<Node>) {
        let at = self.len - CHUNK;
        self.root = Some(match self.root.take() {
            None => chunk,
            Some(root) if at == CHUNK << self.shift => {
                let path = path(self.shift, chunk);
                self.shift += BITS;
                Arc::new(Node::Branch(vec![root, path]))
            }
            Some(mut root) => {
                insert(&mut root, self.shift, at, chunk);
                root
            }
        });
    }
}

/// Wraps `chunk` in branches, one for each level of `shift`.
fn path(shift: u32, chunk: Arc<Node>) -> Arc<Node> {
    (0..shift / BITS).fold(chunk, |below, _| Arc::new(Node::Branch(vec![below])))
}

fn insert(node: &mut Arc<Node>, shift: u32, at: usize, chunk: Arc<Node>) {
    let Node::Branch(nodes) = Arc::make_mut(node) else { return };
    match nodes.get_mut((at >> shift) % CHUNK) {
        Some(below) => insert(below, shift - BITS, at, chunk),
        None => nodes.push(path(shift - BITS, chunk)),
    }
}

impl FromIterator<Data> for List {
    fn from_iter<T: IntoIterator<Item = Data>>(items: T) -> Self {
        let items = items.into_iter();
        let mut list = Self { tail: Vec::with_capacity(items.size_hint().0.min(CHUNK)), ..Self::default() };
        items.for_each(|item| list.push(item));
        list.tail.shrink_to_fit();
        list
    }
}
