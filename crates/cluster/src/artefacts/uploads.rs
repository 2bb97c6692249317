//! Chunks that this node serves: whose turn it is, which chunk, and how fast.
//!
//! The member that has got the fewest chunks is next. Chunks that receivers have not confirmed are bounded by a window, which
//! grows while confirmations take less than [`TARGET_DELAY`] and shrinks when they take twice as long (the idea of LEDBAT, RFC
//! 6817): a slow link has up to four chunks in its queue (260 ms at 1 MB/s), a fast one up to [`MAX_WINDOW`]. Window and queue
//! count bytes: many small blobs are served at once.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::blob::Blob;
use super::chunk_set::ChunkSet;
use super::tree::CHUNK_BYTES;
use super::wire::{Busy, Kind, Message, Request};
use super::{BlobDigest, Output};
use crate::replication::{NodeId, mix};

/// Bounds of the window, in whole chunks.
const MIN_WINDOW: usize = 4;
const MAX_WINDOW: usize = 16;
/// Bytes that a chunk counts beside its own: messages, framing and encryption.
const OVERHEAD_BYTES: usize = 512;
const TARGET_DELAY: Duration = Duration::from_millis(100);
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of requests that wait; about 4 s of a link of 1 MB/s.
const MAX_QUEUE_BYTES: usize = 64 * (CHUNK_BYTES + OVERHEAD_BYTES);
const MAX_QUEUE_BYTES_PER_NODE: usize = 8 * (CHUNK_BYTES + OVERHEAD_BYTES);
/// Pause for a requester when the node has served its part.
const QUOTA_PAUSE: Duration = Duration::from_millis(300);
/// A node serves so many thousandths of what it has received, and so many more for each second for which the requester is
/// stalled beyond the first.
const QUOTA_PERMILLE: u64 = 1250;
const MORE_PERMILLE: u64 = 75;
/// A requester that is stalled for so long gets chunks without a quota: the others do not serve it.
const DESPERATE_MS: u32 = 10_000;
/// With so few members that fetch from this node there is no quota: they have nobody else, or fetch once more.
const FEW_FETCHERS: usize = 3;
/// Chunks that the token bucket holds at most.
const BURST_CHUNKS: u64 = 2;

/// Requests of members, and chunks in flight to them.
#[derive(Debug)]
pub(super) struct Uploads {
    queue: VecDeque<Queued>,
    in_flight: Vec<InFlight>,
    /// In whole chunks.
    window: usize,
    /// Chunks served to each member that has a request, since its first one.
    served: BTreeMap<NodeId, u64>,
    bucket: Option<Bucket>,
    salt: u64,
}

#[derive(Debug)]
struct Queued {
    node: NodeId,
    blob: BlobDigest,
    id: u32,
    set: ChunkSet,
    /// What a chunk of it counts.
    bytes: usize,
    stalled_ms: u32,
}

#[derive(Debug)]
struct InFlight {
    node: NodeId,
    blob: BlobDigest,
    index: usize,
    bytes: usize,
    sent_at: Duration,
}

/// A token bucket; a token is a byte.
#[derive(Debug)]
struct Bucket {
    bytes_per_second: u64,
    tokens: u64,
    refilled_at: Duration,
}

impl Uploads {
    pub(super) fn new(bytes_per_second: Option<u64>, salt: u64) -> Self {
        let bucket = bytes_per_second.map(|rate| Bucket {
            bytes_per_second: rate.max(1),
            tokens: BURST_CHUNKS * CHUNK_BYTES as u64,
            refilled_at: Duration::ZERO,
        });
        Self {
            queue: VecDeque::new(),
            in_flight: Vec::new(),
            window: MIN_WINDOW,
            served: BTreeMap::new(),
            bucket,
            salt,
        }
    }

    /// Takes a request for a blob of `chunks`, each of `chunk_bytes`, into the queue, or refuses it.
    pub(super) fn request(
        &mut self,
        node: NodeId,
        blob: BlobDigest,
        (chunks, chunk_bytes): (usize, usize),
        request: &Request,
        out: &mut Vec<Output>,
    ) {
        let bytes = chunk_bytes + OVERHEAD_BYTES;
        let of_all: usize = self.queue.iter().map(|queued| queued.bytes).sum();
        let of_node: usize =
            self.queue.iter().filter(|queued| queued.node == node).map(|queued| queued.bytes).sum();
        let set = ChunkSet::from_bytes(chunks, &request.chunks);
        match set {
            Some(set)
                if of_all + bytes <= MAX_QUEUE_BYTES && of_node + bytes <= MAX_QUEUE_BYTES_PER_NODE =>
            {
                // A member that begins is not before all others until it has caught up with them.
                let least =
                    self.queue.iter().filter_map(|queued| self.served.get(&queued.node)).min().copied();
                let begun = self.served.entry(node).or_insert(0);
                *begun = (*begun).max(least.unwrap_or(0));
                self.queue.push_back(Queued {
                    node,
                    blob,
                    id: request.id,
                    set,
                    bytes,
                    stalled_ms: request.stalled_ms,
                });
            }
            _ => out.push(busy(node, blob, request.id, Duration::from_secs(1))),
        }
    }

    /// Removes a request.
    pub(super) fn cancel(&mut self, node: NodeId, blob: BlobDigest, id: u32) {
        self.queue.retain(|queued| (queued.node, queued.blob, queued.id) != (node, blob, id));
    }

    /// Removes all requests of a member for a blob, and chunks in flight to it.
    pub(super) fn closed(&mut self, node: NodeId, blob: BlobDigest) {
        self.queue.retain(|queued| (queued.node, queued.blob) != (node, blob));
        self.in_flight.retain(|chunk| (chunk.node, chunk.blob) != (node, blob));
    }

    /// Removes everything of a member that is gone.
    pub(super) fn peer_down(&mut self, node: NodeId) {
        self.queue.retain(|queued| queued.node != node);
        self.in_flight.retain(|chunk| chunk.node != node);
        self.served.remove(&node);
    }

    /// A member has these chunks of a blob now.
    pub(super) fn confirmed(&mut self, node: NodeId, blob: BlobDigest, has: &ChunkSet, now: Duration) {
        let was_full = self.is_full();
        let window = &mut self.window;
        self.in_flight.retain(|chunk| {
            let is_confirmed = (chunk.node, chunk.blob) == (node, blob) && has.contains(chunk.index);
            if is_confirmed {
                match now.saturating_sub(chunk.sent_at) {
                    delay if delay < TARGET_DELAY && was_full => *window = (*window + 1).min(MAX_WINDOW),
                    delay if delay > TARGET_DELAY * 2 => *window = (*window - 1).max(MIN_WINDOW),
                    _ => {}
                }
            }
            !is_confirmed
        });
    }

    /// True if the window has no room for a whole chunk.
    fn is_full(&self) -> bool {
        let whole = CHUNK_BYTES + OVERHEAD_BYTES;
        let in_flight: usize = self.in_flight.iter().map(|chunk| chunk.bytes).sum();
        in_flight + whole > self.window * whole
    }

    /// True if requests wait or chunks are in flight.
    pub(super) fn is_active(&self) -> bool {
        !self.queue.is_empty() || !self.in_flight.is_empty()
    }

    /// Sends the chunks that are next.
    pub(super) fn pump(
        &mut self,
        blobs: &mut BTreeMap<BlobDigest, Blob>,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let expired =
            self.in_flight.iter().any(|chunk| now.saturating_sub(chunk.sent_at) >= CONFIRM_TIMEOUT);
        if expired {
            self.window = MIN_WINDOW;
            self.in_flight.retain(|chunk| now.saturating_sub(chunk.sent_at) < CONFIRM_TIMEOUT);
        }
        while !self.is_full() && !self.queue.is_empty() {
            if self.bucket.as_mut().is_some_and(|bucket| !bucket.has_chunk(now)) {
                return;
            }
            let Some(queued) = self.take_next() else { return };
            let Some(blob) = blobs.get_mut(&queued.blob) else { continue };
            blob.used_at = now;
            let Some(index) = self.least_handed_out(blob, &queued) else {
                out.push(busy(queued.node, queued.blob, queued.id, Duration::ZERO));
                continue;
            };
            // Nobody else may have a chunk that was not handed out yet.
            if blob.handed_out[index] > 0 && !is_within_quota(blob, queued.stalled_ms) {
                out.push(busy(queued.node, queued.blob, queued.id, QUOTA_PAUSE));
                continue;
            }
            blob.handed_out[index] = blob.handed_out[index].saturating_add(1);
            blob.sent += 1;
            if let Some(bucket) = &mut self.bucket {
                bucket.take_chunk();
            }
            *self.served.entry(queued.node).or_default() += 1;
            let (node, blob, request) = (queued.node, queued.blob, queued.id);
            self.in_flight.push(InFlight { node, blob, index, bytes: queued.bytes, sent_at: now });
            out.push(Output::SendChunk { node, blob, request, index });
        }
        if self.queue.is_empty() {
            self.served.retain(|node, _| self.in_flight.iter().any(|chunk| chunk.node == *node));
        }
    }

    /// Time at which the token bucket has a chunk again, if that is what requests wait for.
    pub(super) fn next_token(&self) -> Option<Duration> {
        let bucket = self.bucket.as_ref()?;
        let missing = (CHUNK_BYTES as u64).saturating_sub(bucket.tokens);
        let is_waiting = missing > 0 && !self.queue.is_empty();
        is_waiting.then(|| {
            bucket.refilled_at + Duration::from_micros(missing * 1_000_000 / bucket.bytes_per_second + 1)
        })
    }

    fn take_next(&mut self) -> Option<Queued> {
        let served = |queued: &Queued| self.served.get(&queued.node).copied().unwrap_or_default();
        let next = self.queue.iter().enumerate().min_by_key(|(at, queued)| (served(queued), *at));
        let at = next.map(|(at, _)| at)?;
        self.queue.remove(at)
    }

    fn least_handed_out(&self, blob: &Blob, queued: &Queued) -> Option<usize> {
        let mut able = queued.set.clone();
        able.intersect(&blob.have);
        if let Some((_, has)) = blob.partners.get(&queued.node).and_then(|partner| partner.has.as_ref()) {
            able.subtract(has);
        }
        let in_flight = |index: usize| {
            self.in_flight
                .iter()
                .any(|chunk| (chunk.node, chunk.blob, chunk.index) == (queued.node, queued.blob, index))
        };
        able.iter()
            .filter(|index| !in_flight(*index))
            .min_by_key(|index| (blob.handed_out[*index], mix(self.salt ^ *index as u64)))
    }
}

/// A node serves a quarter more than it has received, and more to members that get nothing.
fn is_within_quota(blob: &Blob, stalled_ms: u32) -> bool {
    let fetchers = blob.partners.values().filter(|partner| partner.is_told).count();
    if fetchers <= FEW_FETCHERS || stalled_ms >= DESPERATE_MS {
        return true;
    }
    let more = u64::from(stalled_ms.saturating_sub(1000)) * MORE_PERMILLE / 1000;
    let quota = blob.have.count() as u64 * (QUOTA_PERMILLE + more) / 1000 + 1;
    (blob.sent as u64) < quota
}

fn busy(node: NodeId, blob: BlobDigest, id: u32, wait: Duration) -> Output {
    let wait_ms = wait.as_millis() as u32;
    Output::Send { node, message: Message::new(blob, Kind::Busy(Busy { id, wait_ms })) }
}

impl Bucket {
    fn has_chunk(&mut self, now: Duration) -> bool {
        let elapsed = now.saturating_sub(self.refilled_at).as_micros().min(60_000_000) as u64;
        let max = (BURST_CHUNKS * CHUNK_BYTES as u64).max(self.bytes_per_second / 10);
        let more = elapsed.saturating_mul(self.bytes_per_second) / 1_000_000;
        if more > 0 {
            self.tokens = self.tokens.saturating_add(more).min(max);
            self.refilled_at = now;
        }
        self.tokens >= CHUNK_BYTES as u64
    }

    fn take_chunk(&mut self) {
        self.tokens = self.tokens.saturating_sub(CHUNK_BYTES as u64);
    }
}
