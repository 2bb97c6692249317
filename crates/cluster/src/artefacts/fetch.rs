//! The fetch of one blob: what to ask whom next.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::blob::{Blob, Partner};
use super::chunk_set::ChunkSet;
use super::partners::{self, Place, Reach};
use super::wire::{Cancel, GetTree, Kind, Message, Open, Request, TreeParts};
use super::{BlobDigest, CROSS_AFTER, Candidate, Output, Role};
use crate::replication::{NodeId, mix};

/// Requests open at one member.
const REQUESTS_PER_PARTNER: usize = 2;
/// Requests open at all members together.
const MAX_REQUESTS: usize = 24;
/// Part of the chunks at a member that one request names.
const SET_SHARE: usize = 12;
/// Bounds of that part. The server chooses among the chunks of a request.
const MIN_SET: usize = 4;
const MAX_SET: usize = 64;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);
const TREE_TIMEOUT: Duration = Duration::from_secs(4);
/// First pause of a member whose request expired; doubled with each further one.
const SLOW_PAUSE: Duration = Duration::from_secs(1);
/// First pause of a member that does not have the blob; doubled with each further time, up to [`MAX_GONE_PAUSE`]. A fetcher
/// of the same revision is often about to begin.
const GONE_PAUSE: Duration = Duration::from_millis(100);
const MAX_GONE_PAUSE: Duration = Duration::from_secs(3);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Time after which a member of the zone that was about to fetch and has not said that it does loses its place.
const EXPECTED_FOR: Duration = Duration::from_millis(500);
/// Time without progress after which a node opens holders whatever its place, and a gateway fetches chunks of the other one.
const STALLED_AFTER: Duration = Duration::from_secs(3);
/// Pause between two choices of partners.
const CHOOSE_EVERY: Duration = Duration::from_secs(1);

/// State of a fetch.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) candidates: Vec<Candidate>,
    began_at: Duration,
    /// Time of the last verified chunk.
    progress_at: Duration,
    /// The member that was asked for the tree, and until when.
    tree_from: Option<(NodeId, Duration)>,
    last_request: u32,
    choose_at: Duration,
    /// The reach at the last choice of partners.
    chosen_for: Reach,
    random: u64,
}

/// What the fetch knows of the node.
pub(super) struct Local<'a> {
    pub(super) me: NodeId,
    pub(super) zone: &'a str,
    pub(super) is_up: &'a dyn Fn(NodeId) -> bool,
    pub(super) now: Duration,
}

impl Fetch {
    pub(super) fn new(candidates: Vec<Candidate>, seed: u64, now: Duration) -> Self {
        Self {
            candidates,
            began_at: now,
            progress_at: now,
            tree_from: None,
            last_request: 0,
            choose_at: now,
            chosen_for: Reach::default(),
            random: seed,
        }
    }

    /// Replaces the candidates.
    pub(super) fn set_candidates(&mut self, candidates: Vec<Candidate>, now: Duration) {
        self.candidates = candidates;
        self.choose_at = now;
    }

    /// Partners are chosen anew.
    pub(super) fn choose_now(&mut self, now: Duration) {
        self.choose_at = now;
    }

    fn stalled(&self, now: Duration) -> Duration {
        now.saturating_sub(self.progress_at)
    }

    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(1);
        mix(self.random)
    }

    fn is_far(&self, node: NodeId, zone: &str) -> bool {
        self.candidates.iter().any(|other| other.node == node && *other.zone != *zone)
    }

    fn reach(&self, digest: &BlobDigest, local: &Local<'_>) -> (Place, Reach) {
        let is_expecting = local.now.saturating_sub(self.began_at) < EXPECTED_FOR;
        let near: Vec<Candidate> = self
            .candidates
            .iter()
            .filter(|other| (local.is_up)(other.node) && (is_expecting || other.role != Role::Expected))
            .cloned()
            .collect();
        let place = partners::place(digest, local.me, local.zone, &near);
        let stalled = self.stalled(local.now);
        let has_near_holder =
            near.iter().any(|other| other.role == Role::Holds && *other.zone == *local.zone);
        let is_gateway = place.rank < place.gateways && !has_near_holder;
        let crosses = is_gateway || stalled >= CROSS_AFTER;
        (place, Reach { crosses, is_stalled: stalled >= STALLED_AFTER })
    }
}

impl Blob {
    /// Does what is next: opens partners, asks for the tree and for chunks.
    pub(super) fn pump(&mut self, digest: BlobDigest, local: &Local<'_>, out: &mut Vec<Output>) {
        let Some(mut fetch) = self.fetch.take() else { return };
        self.expire(digest, local.now, out);
        let (place, reach) = fetch.reach(&digest, local);
        if fetch.choose_at <= local.now || fetch.chosen_for != reach {
            (fetch.choose_at, fetch.chosen_for) = (local.now + CHOOSE_EVERY, reach);
            self.open_partners(digest, &fetch, reach, local, out);
        }
        match self.tree.clone() {
            None => self.ask_for_tree(digest, &mut fetch, local, out),
            Some(tree) => {
                self.ask_for_chunks(digest, tree.size_bytes(), &mut fetch, (place, reach), local, out)
            }
        }
        self.fetch = Some(fetch);
    }

    fn open_partners(
        &mut self,
        digest: BlobDigest,
        fetch: &Fetch,
        reach: Reach,
        local: &Local<'_>,
        out: &mut Vec<Output>,
    ) {
        let candidates: Vec<&Candidate> = fetch
            .candidates
            .iter()
            .filter(|other| (local.is_up)(other.node))
            .filter(|other| !self.partners.get(&other.node).is_some_and(|partner| partner.is_faulty))
            .collect();
        let mut wanted = partners::choose(&digest, local.me, local.zone, &candidates, reach);
        // A fetcher that has opened the blob here is a partner in both directions.
        wanted.extend(
            self.partners.iter().filter(|(_, one)| one.is_told && !one.is_faulty).map(|(node, _)| *node),
        );
        for node in wanted {
            if let Some(partner) = self.partner(node)
                && !partner.opened
                && partner.retry_at <= local.now
            {
                partner.opened = true;
                out.push(Output::Send { node, message: Message::new(digest, Kind::Open(Open {})) });
            }
        }
    }

    fn ask_for_tree(
        &mut self,
        digest: BlobDigest,
        fetch: &mut Fetch,
        local: &Local<'_>,
        out: &mut Vec<Output>,
    ) {
        if let Some((node, deadline)) = fetch.tree_from {
            match self.partners.get_mut(&node) {
                Some(partner) if deadline <= local.now => partner.retry_at = local.now + SLOW_PAUSE,
                Some(partner) if !partner.is_faulty => return,
                _ => {}
            }
        }
        let mut able: Vec<_> = self
            .partners
            .iter()
            .filter(|(_, one)| one.has.is_some() && !one.is_faulty && one.retry_at <= local.now)
            .map(|(node, _)| (fetch.is_far(*node, local.zone), *node))
            .collect();
        able.sort_unstable();
        let nearest = able.iter().take_while(|(is_far, _)| *is_far == able[0].0).count();
        let at = (fetch.next_random() % nearest.max(1) as u64) as usize;
        fetch.tree_from = able.get(at).map(|(_, node)| (*node, local.now + TREE_TIMEOUT));
        if let Some((node, _)) = fetch.tree_from {
            out.push(Output::Send { node, message: Message::new(digest, Kind::GetTree(GetTree {})) });
        }
    }

    fn ask_for_chunks(
        &mut self,
        digest: BlobDigest,
        size_bytes: u64,
        fetch: &mut Fetch,
        (place, reach): (Place, Reach),
        local: &Local<'_>,
        out: &mut Vec<Output>,
    ) {
        let mut taken = self.have.clone();
        let mut open = 0;
        for partner in self.partners.values() {
            partner.requests.values().for_each(|(set, _)| taken.add(set));
            open += partner.requests.len();
        }
        if taken.is_full() || open >= MAX_REQUESTS {
            return;
        }
        let mut able: Vec<(bool, usize, u64, NodeId)> = Vec::new();
        for (node, partner) in &self.partners {
            let is_able = !partner.is_faulty
                && partner.retry_at <= local.now
                && partner.requests.len() < REQUESTS_PER_PARTNER
                && partner.has.as_ref().is_some_and(|(size, _)| *size == size_bytes);
            let is_far = fetch.is_far(*node, local.zone);
            if is_able && (reach.crosses || !is_far) {
                able.push((is_far, partner.requests.len(), fetch.next_random(), *node));
            }
        }
        // The nearest first, then those with the fewest requests, then at random.
        able.sort_unstable();
        let far = if able.iter().any(|(is_far, ..)| *is_far) {
            self.far_chunks(fetch, place, local)
        } else {
            ChunkSet::default()
        };
        let stalled_ms = u32::try_from(fetch.stalled(local.now).as_millis()).unwrap_or(u32::MAX);
        for (is_far, _, _, node) in able {
            if open >= MAX_REQUESTS {
                break;
            }
            let Some(partner) = self.partners.get_mut(&node) else { continue };
            let Some((_, has)) = &partner.has else { continue };
            let mut able = has.clone();
            able.subtract(&taken);
            if is_far {
                able.intersect(&far);
            }
            let set = part_of(&able, fetch.next_random());
            if set.is_empty() {
                continue;
            }
            taken.add(&set);
            open += 1;
            fetch.last_request = fetch.last_request.wrapping_add(1);
            let id = fetch.last_request;
            let request = Request { id, chunks: set.to_bytes(), stalled_ms };
            partner.requests.insert(id, (set, local.now + REQUEST_TIMEOUT));
            out.push(Output::Send { node, message: Message::new(digest, Kind::Request(request)) });
        }
    }

    /// The chunks that this node fetches from other zones: no partner of its own zone has them, and they are its half.
    fn far_chunks(&self, fetch: &Fetch, place: Place, local: &Local<'_>) -> ChunkSet {
        let mut far = ChunkSet::all(self.have.chunks());
        if fetch.stalled(local.now) >= STALLED_AFTER {
            return far;
        }
        if place.gateways > 1 {
            far = ChunkSet::none(self.have.chunks());
            (0..self.have.chunks()).filter(|index| index % place.gateways == place.rank).for_each(
                |index| {
                    far.insert(index);
                },
            );
        }
        for (node, partner) in &self.partners {
            if let Some((_, has)) = &partner.has
                && !fetch.is_far(*node, local.zone)
                && has.chunks() == far.chunks()
                && !partner.is_faulty
            {
                far.subtract(has);
            }
        }
        far
    }

    fn expire(&mut self, digest: BlobDigest, now: Duration, out: &mut Vec<Output>) {
        for (node, partner) in &mut self.partners {
            let expired: Vec<u32> = partner
                .requests
                .iter()
                .filter(|(_, (_, deadline))| *deadline <= now)
                .map(|(id, _)| *id)
                .collect();
            for id in &expired {
                partner.requests.remove(id);
                out.push(Output::Send {
                    node: *node,
                    message: Message::new(digest, Kind::Cancel(Cancel { id: *id })),
                });
            }
            if !expired.is_empty() {
                partner.retry_at = now + (SLOW_PAUSE * (1 << partner.expired.min(5))).min(MAX_PAUSE);
                partner.expired += 1;
            }
        }
    }

    /// A tree has come.
    pub(super) fn tree_received(
        &mut self,
        digest: BlobDigest,
        node: NodeId,
        parts: TreeParts,
        now: Duration,
        out: &mut Vec<Output>,
    ) {
        let Some(fetch) = &mut self.fetch else { return };
        if self.tree.is_some() || fetch.tree_from.is_none_or(|(asked, _)| asked != node) {
            return;
        }
        fetch.tree_from = None;
        match parts.check(&digest) {
            Ok(tree) => {
                let tree = Arc::new(tree);
                fetch.progress_at = now;
                self.set_tree(tree.clone(), ChunkSet::none(tree.chunks()));
                out.push(Output::Begin { blob: digest, tree });
            }
            Err(_) => self.blame(digest, node, out),
        }
    }

    /// A chunk has come. True if the blob is complete.
    pub(super) fn chunk_received(
        &mut self,
        digest: BlobDigest,
        (node, request): (NodeId, u32),
        (index, bytes): (usize, Bytes),
        now: Duration,
        out: &mut Vec<Output>,
    ) -> bool {
        let (Some(fetch), Some(tree)) = (&mut self.fetch, &self.tree) else {
            // The server waits for the confirmation.
            self.tell(digest, node, out);
            return false;
        };
        let Some(partner) = self.partners.get_mut(&node).filter(|partner| !partner.is_faulty) else {
            return false;
        };
        partner.requests.remove(&request);
        if !self.have.contains(index) {
            if !tree.verify(&digest, index, &bytes) {
                self.blame(digest, node, out);
                return false;
            }
            partner.expired = 0;
            fetch.progress_at = now;
            let offset = tree.range(index).start;
            self.have.insert(index);
            out.push(Output::Store { blob: digest, offset, bytes });
        }
        self.tell(digest, node, out);
        self.plan_announcement(now);
        self.have.is_full()
    }

    /// The member does not serve the request now.
    pub(super) fn busy(&mut self, node: NodeId, request: u32, wait: Duration, now: Duration) {
        if let Some(partner) = self.partners.get_mut(&node)
            && partner.requests.remove(&request).is_some()
        {
            partner.retry_at = now + wait.clamp(Duration::from_millis(50), Duration::from_secs(5));
        }
    }

    /// The member needs no more announcements.
    pub(super) fn closed(&mut self, node: NodeId) {
        if let Some(partner) = self.partners.get_mut(&node) {
            partner.is_told = false;
            // It has given the fetch up, and its chunks perhaps with it.
            partner.has.take_if(|(_, has)| !has.is_full());
        }
    }

    /// The member does not have the blob. It may have it later.
    pub(super) fn gone(&mut self, node: NodeId, now: Duration) {
        if let Some(partner) = self.partners.get_mut(&node) {
            let (is_faulty, gone) = (partner.is_faulty, partner.gone.saturating_add(1));
            let retry_at = now + (GONE_PAUSE * (1 << partner.gone.min(5))).min(MAX_GONE_PAUSE);
            *partner = Partner { is_faulty, gone, retry_at, ..Partner::default() };
            if let Some(fetch) = &mut self.fetch {
                fetch.choose_at = fetch.choose_at.min(retry_at);
            }
        }
        if let Some(fetch) = &mut self.fetch {
            fetch.tree_from.take_if(|(asked, _)| *asked == node);
        }
    }

    fn blame(&mut self, digest: BlobDigest, node: NodeId, out: &mut Vec<Output>) {
        if let Some(partner) = self.partners.get_mut(&node) {
            partner.is_faulty = true;
            partner.requests.clear();
            out.push(Output::Blame { node, blob: digest });
        }
    }
}

/// A part of the chunks, from a random one on.
fn part_of(able: &ChunkSet, random: u64) -> ChunkSet {
    let mut part = ChunkSet::none(able.chunks());
    let count = able.count();
    let size = (count / SET_SHARE).clamp(MIN_SET, MAX_SET).min(count.max(1));
    // Every `step`th chunk, so that the sets of different nodes overlap little.
    let step = (count / size).max(1);
    let first = if count == 0 { 0 } else { (random % step as u64) as usize };
    able.iter().skip(first).step_by(step).take(size).for_each(|index| {
        part.insert(index);
    });
    part
}
