//! All blobs of a node that are fetched or served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::blob::{Blob, Partner};
use super::chunk_set::ChunkSet;
use super::fetch::{Fetch, Local};
use super::tree::Tree;
use super::uploads::Uploads;
use super::wire::{Gone, Kind, Message};
use super::{
    BlobDigest, Candidate, Event, FORGET_AFTER, MAX_FETCHES, MAX_SERVED_BLOBS, Output, Resumed, Settings,
};
use crate::replication::{NodeId, mix};

/// While something is fetched or served, the machine is called at least so often.
const TICK: Duration = Duration::from_millis(100);

/// The transfers of one node: a machine without I/O.
#[derive(Debug)]
pub struct Transfers {
    me: NodeId,
    seed: u64,
    zone: Arc<str>,
    up: BTreeSet<NodeId>,
    blobs: BTreeMap<BlobDigest, Blob>,
    /// Fetches over [`MAX_FETCHES`], which begin when others end.
    waiting: BTreeMap<BlobDigest, (Vec<Candidate>, Option<Resumed>)>,
    uploads: Uploads,
    /// The last call.
    now: Duration,
}

impl Transfers {
    /// A machine of node `me`.
    pub fn new(me: NodeId, settings: Settings) -> Self {
        let seed = mix(settings.seed ^ mix(me.0));
        let uploads = Uploads::new(settings.upload_bytes_per_second, seed);
        Self {
            me,
            seed,
            zone: "".into(),
            up: BTreeSet::new(),
            blobs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            uploads,
            now: Duration::ZERO,
        }
    }

    /// Handles an event. `now` is the time since a fixed moment and does not go back.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Output> {
        self.now = now;
        let mut out = Vec::new();
        match event {
            Event::LocalZone(zone) => {
                self.zone = zone;
                self.choose_partners();
            }
            Event::PeerUp { node } => {
                self.up.insert(node);
                self.choose_partners();
            }
            Event::PeerDown { node } => self.peer_down(node),
            Event::Want { blob, candidates, resumed } => self.want(blob, candidates, resumed, &mut out),
            Event::Forget { blob } => self.forget(blob, &mut out),
            Event::Received { node, message } => self.received(node, message, &mut out),
            Event::Found { blob, tree } => self.found(blob, tree, &mut out),
            Event::Tick => {}
        }
        self.begin_waiting(&mut out);
        self.pump(&mut out);
        out
    }

    /// Time at which [`Event::Tick`] is due; `None` while nothing is fetched or served.
    pub fn next_deadline(&self) -> Option<Duration> {
        if self.blobs.is_empty() {
            return None;
        }
        let is_active = self.uploads.is_active()
            || self.blobs.values().any(|blob| blob.fetch.is_some() || blob.announce_at.is_some());
        let tick = self.now + if is_active { TICK } else { FORGET_AFTER / 4 };
        let announcements = self.blobs.values().filter_map(|blob| blob.announce_at);
        Some(announcements.chain(self.uploads.next_token()).fold(tick, Duration::min))
    }

    /// The part of a blob that has come, in thousandths; `None` if it is not being fetched.
    pub fn permille(&self, digest: &BlobDigest) -> Option<u16> {
        let blob = self.blobs.get(digest).filter(|blob| blob.fetch.is_some())?;
        Some((blob.have.count() * 1000 / blob.have.chunks().max(1)) as u16)
    }

    /// True while a blob is being fetched and no connected member is known to have any of it.
    pub fn has_no_source(&self, digest: &BlobDigest) -> bool {
        self.blobs.get(digest).is_some_and(|blob| {
            let has_some = |partner: &Partner| {
                !partner.is_faulty && partner.has.as_ref().is_some_and(|(_, has)| !has.is_empty())
            };
            blob.fetch.is_some() && !blob.partners.values().any(has_some)
        })
    }

    fn want(
        &mut self,
        digest: BlobDigest,
        candidates: Vec<Candidate>,
        resumed: Option<Resumed>,
        out: &mut Vec<Output>,
    ) {
        let now = self.now;
        let is_known = self
            .blobs
            .get(&digest)
            .is_some_and(|blob| blob.fetch.is_some() || (blob.tree.is_some() && blob.have.is_full()));
        if !is_known && !self.has_room() {
            // Chunks that were there at first are there still.
            let resumed = resumed.or_else(|| self.waiting.remove(&digest).and_then(|(_, resumed)| resumed));
            self.waiting.insert(digest, (candidates, resumed));
            return;
        }
        let blob = self.blobs.entry(digest).or_default();
        blob.used_at = now;
        if let Some(fetch) = &mut blob.fetch {
            fetch.set_candidates(candidates, now);
            return;
        }
        if blob.tree.is_some() && blob.have.is_full() {
            out.push(Output::Complete { blob: digest });
            return;
        }
        blob.is_looked_up = true;
        blob.fetch = Some(Fetch::new(candidates, self.seed ^ u64::from(digest.0[0]), now));
        if let Some(Resumed { tree, chunks }) =
            resumed.filter(|resumed| resumed.chunks.chunks() == resumed.tree.chunks())
        {
            out.push(Output::Begin { blob: digest, tree: tree.clone() });
            blob.set_tree(tree, chunks);
            if blob.have.is_full() {
                blob.end_fetch(digest, out);
                out.push(Output::Complete { blob: digest });
            }
        }
        let told: Vec<NodeId> = blob.partners.keys().copied().collect();
        told.into_iter().for_each(|node| blob.tell(digest, node, out));
    }

    fn has_room(&self) -> bool {
        self.blobs.values().filter(|blob| blob.fetch.is_some()).count() < MAX_FETCHES
    }

    fn begin_waiting(&mut self, out: &mut Vec<Output>) {
        while !self.waiting.is_empty() && self.has_room() {
            let Some((digest, (candidates, resumed))) = self.waiting.pop_first() else { return };
            self.want(digest, candidates, resumed, out);
        }
    }

    fn forget(&mut self, digest: BlobDigest, out: &mut Vec<Output>) {
        self.waiting.remove(&digest);
        if let Some(mut blob) = self.blobs.remove(&digest) {
            blob.end_fetch(digest, out);
            for (node, _) in blob.partners {
                self.uploads.closed(node, digest);
                out.push(gone(node, digest));
            }
        }
    }

    fn peer_down(&mut self, node: NodeId) {
        self.up.remove(&node);
        self.uploads.peer_down(node);
        self.blobs.values_mut().for_each(|blob| {
            if let Some(left) = blob.partners.remove(&node)
                && left.is_faulty
            {
                blob.partners.insert(node, Partner { is_faulty: true, ..Partner::default() });
            }
        });
        self.choose_partners();
    }

    fn choose_partners(&mut self) {
        let now = self.now;
        self.blobs
            .values_mut()
            .filter_map(|blob| blob.fetch.as_mut())
            .for_each(|fetch| fetch.choose_now(now));
    }

    fn found(&mut self, digest: BlobDigest, tree: Option<Arc<Tree>>, out: &mut Vec<Output>) {
        let Some(blob) = self.blobs.get_mut(&digest).filter(|blob| blob.fetch.is_none()) else { return };
        blob.is_looked_up = true;
        let partners: Vec<NodeId> = blob.partners.keys().copied().collect();
        match tree {
            Some(tree) => {
                if blob.tree.is_none() {
                    let all = ChunkSet::all(tree.chunks());
                    blob.set_tree(tree, all);
                }
                partners.into_iter().for_each(|node| blob.tell(digest, node, out));
            }
            None if blob.tree.is_none() => {
                self.blobs.remove(&digest);
                out.extend(partners.into_iter().map(|node| gone(node, digest)));
            }
            None => {}
        }
    }

    fn received(&mut self, node: NodeId, message: Message, out: &mut Vec<Output>) {
        let (Some(digest), Some(kind)) = (message.digest(), message.kind) else { return };
        // A message may overtake the report of the connection.
        self.up.insert(node);
        let now = self.now;
        if let Kind::Open(_) = kind {
            return self.opened(node, digest, out);
        }
        let Some(blob) = self.blobs.get_mut(&digest) else {
            if matches!(kind, Kind::GetTree(_) | Kind::Request(_)) {
                out.push(gone(node, digest));
            }
            return;
        };
        blob.used_at = now;
        match kind {
            Kind::Open(_) => {}
            Kind::Have(have) => {
                let size = have.size_bytes;
                if let Some(set) = have.set()
                    && let Some(partner) = blob.partner(node)
                {
                    self.uploads.confirmed(node, digest, &set, now);
                    partner.has = Some((size, set));
                }
            }
            Kind::GetTree(_) => {
                let message = match &blob.tree {
                    Some(tree) => Message::new(digest, Kind::Tree((&**tree).into())),
                    None => Message::new(digest, Kind::Gone(Gone {})),
                };
                out.push(Output::Send { node, message });
            }
            Kind::Tree(parts) => blob.tree_received(digest, node, parts, now, out),
            Kind::Request(request) => {
                let size = (blob.have.chunks(), blob.chunk_bytes());
                self.uploads.request(node, digest, size, &request, out);
            }
            Kind::Chunk(chunk) => {
                let part = (chunk.index as usize, chunk.bytes);
                if blob.chunk_received(digest, (node, chunk.id), part, now, out) {
                    blob.end_fetch(digest, out);
                    out.push(Output::Complete { blob: digest });
                }
            }
            Kind::Busy(busy) => {
                blob.busy(node, busy.id, Duration::from_millis(busy.wait_ms.into()), now);
            }
            Kind::Cancel(cancel) => self.uploads.cancel(node, digest, cancel.id),
            Kind::Close(_) => {
                blob.closed(node);
                self.uploads.closed(node, digest);
            }
            Kind::Gone(_) => {
                blob.gone(node, now);
                self.uploads.closed(node, digest);
            }
        }
    }

    fn opened(&mut self, node: NodeId, digest: BlobDigest, out: &mut Vec<Output>) {
        let now = self.now;
        if !self.blobs.contains_key(&digest) && !self.make_room(out) {
            out.push(gone(node, digest));
            return;
        }
        let blob = self.blobs.entry(digest).or_default();
        blob.used_at = now;
        let Some(partner) = blob.partner(node) else {
            out.push(gone(node, digest));
            return;
        };
        partner.is_told = true;
        if !partner.opened {
            // It did not have the blob, and fetches it now.
            partner.retry_at = now;
        }
        // It has had the whole blob, and fetches it once more.
        partner.has.take_if(|(_, has)| has.is_full());
        if let Some(fetch) = &mut blob.fetch {
            fetch.choose_now(now);
        }
        if blob.tree.is_some() || blob.fetch.is_some() {
            blob.tell(digest, node, out);
        } else if !std::mem::replace(&mut blob.is_looked_up, true) {
            out.push(Output::Lookup { blob: digest });
        }
    }

    /// Makes room for another blob to serve. False if all are in use.
    fn make_room(&mut self, out: &mut Vec<Output>) -> bool {
        let served = self.blobs.iter().filter(|(_, blob)| blob.fetch.is_none());
        if served.clone().count() < MAX_SERVED_BLOBS {
            return true;
        }
        let oldest =
            served.min_by_key(|(_, blob)| blob.used_at).map(|(digest, blob)| (*digest, blob.used_at));
        match oldest {
            Some((digest, used_at)) if self.now.saturating_sub(used_at) >= TICK * 10 => {
                self.forget(digest, out);
                true
            }
            _ => false,
        }
    }

    fn pump(&mut self, out: &mut Vec<Output>) {
        let now = self.now;
        let is_up = |node: NodeId| self.up.contains(&node);
        let local = Local { me: self.me, zone: &self.zone, is_up: &is_up, now };
        for (digest, blob) in &mut self.blobs {
            blob.announce(*digest, now, out);
            if blob.fetch.is_some() {
                blob.used_at = now;
                blob.pump(*digest, &local, out);
            }
        }
        self.uploads.pump(&mut self.blobs, now, out);
        let unused: Vec<BlobDigest> = self
            .blobs
            .iter()
            .filter(|(_, blob)| blob.fetch.is_none() && now.saturating_sub(blob.used_at) >= FORGET_AFTER)
            .map(|(digest, _)| *digest)
            .collect();
        unused.into_iter().for_each(|digest| self.forget(digest, out));
    }
}

fn gone(node: NodeId, digest: BlobDigest) -> Output {
    Output::Send { node, message: Message::new(digest, Kind::Gone(Gone {})) }
}
