//! Rounds: what two nodes compare and exchange, step by step.

use std::collections::{BTreeSet, VecDeque};

use crate::replication::machine::round_gap_end;
use crate::replication::peer::{Answer, Cursor, Peer, Round, Stage, Work};
use crate::replication::round::{
    Difference, Entry, Tally, bucket, bucket_range, differences, lines, with_hash,
};
use crate::replication::{Delta, NodeId, ObjectKey, Output, Replica, Replication, View};
use crate::wire::{self, Kind, ROUND_OBJECTS};

/// Rounds that a peer may begin in one burst …
const ROUNDS: u64 = 256;
/// … and per second after that.
const ROUNDS_PER_SECOND: u64 = 2;
/// Maximum of bytes of field names in a round. Above it, objects are exchanged whole.
const NAMES_BYTES: usize = 2 * 1024 * 1024;

impl<D: Delta> Replication<D> {
    /// First step, if it is time for it; or the request for it.
    pub(super) fn begin_round<R>(&mut self, node: NodeId, replica: &R, out: &mut Vec<Output>)
    where
        R: Replica<Delta = D>,
    {
        let begins = self.begins(node);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let busy = peer.blocked || peer.untold || peer.round.is_some() || peer.answer.is_some();
        if busy || peer.interests.is_none() {
            return;
        }
        let wanted = peer.round_wanted && self.now >= round_gap_end(peer);
        if !(wanted || begins && self.now >= peer.round_due) {
            return;
        }
        peer.round_wanted = false;
        peer.round_began = Some(self.now);
        peer.heard = self.now;
        if !begins {
            self.send(node, Kind::RoundPlease(wire::RoundPlease {}), out);
            return;
        }
        self.counters.rounds += 1;
        let (clock_ms, agreed_ms) = (replica.clock_ms(), self.agreement.agreed_ms());
        let without_ms = self.agreement.known_to(node);
        let sweep = self.agreement.begin(clock_ms);
        let tally = self.tally(node, without_ms, replica);
        let root = tally.root();
        // The count of all rounds serves as a number that no other round with the peer has.
        let number = self.counters.rounds as u32;
        let (version, began) = (self.interests_version, self.now);
        let (round_due, settle) = (self.next_round_due(), self.settings.settle);
        if let Some(peer) = self.peers.get_mut(&node) {
            // A new one is to keep copies as soon as it counts, here and there.
            let counts = peer.since + settle + settle / 10;
            peer.round_due = if self.now < counts { round_due.min(counts) } else { round_due };
            peer.names_bytes = 0;
            let interests_version = peer.interests_version;
            let cursor = std::mem::take(&mut peer.cursor);
            let first = if cursor.versions == (version, interests_version) { cursor.hash } else { 0 };
            peer.is_spoiled &= first > 0;
            peer.sweep = if first > 0 { peer.sweep } else { sweep };
            let (their_version, stage) = (interests_version, Stage::Buckets { tally });
            let round = Round { number, first, began, version, their_version, without_ms, stage };
            peer.round = Some(Box::new(round));
            let has_lost = std::mem::take(&mut peer.has_lost);
            let summary = wire::Summary {
                round: number,
                root,
                interests_version,
                clock_ms,
                agreed_ms,
                without_ms,
                has_lost,
            };
            self.send(node, Kind::Summary(summary), out);
        }
    }

    /// Second step.
    pub(super) fn on_summary<R>(
        &mut self,
        node: NodeId,
        summary: wire::Summary,
        replica: &R,
        out: &mut Vec<Output>,
    ) where
        R: Replica<Delta = D>,
    {
        if self.begins(node) {
            self.counters.unexpected_messages += 1;
            return;
        }
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // A round costs a look at all objects.
        if !peer.round_budget.take(1, ROUNDS, ROUNDS_PER_SECOND, self.now) {
            self.counters.unexpected_messages += 1;
            return;
        }
        self.counters.rounds += 1;
        let is_partial = peer.is_answer_partial;
        let has_lost = std::mem::take(&mut peer.has_lost);
        self.agreement.confirmed(node, summary.has_lost);
        let follows_clock = summary.clock_ms > 0 && replica.follow_clock(summary.clock_ms);
        let agreed_ms = self.agreement.agreed_ms();
        self.told_agreed(summary.agreed_ms, replica);
        let without_ms = summary.without_ms.min(self.agreement.known_to(node));
        let sweep = follows_clock.then(|| self.agreement.begin(summary.clock_ms)).flatten();
        let tally = self.tally(node, without_ms, replica);
        let equal = tally.root() == summary.root;
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // A round that goes on where another ended is no better than that one.
        peer.is_spoiled &= is_partial;
        peer.sweep = if is_partial { peer.sweep } else { sweep };
        if let Some(sweep) = &mut peer.sweep {
            sweep.leaves_out(without_ms);
        }
        peer.work.clear();
        peer.names_bytes = 0;
        peer.round_wanted = false;
        peer.round_began = Some(self.now);
        peer.answer = None;
        let mut reply = wire::Buckets {
            round: summary.round,
            follows_clock,
            has_lost,
            clock_ms: replica.clock_ms(),
            agreed_ms,
            without_ms,
            ..wire::Buckets::default()
        };
        if equal {
            (peer.is_spoiled, peer.is_answer_partial) = (false, false);
            self.synced(node, summary.interests_version);
            self.confirm(node, self.now, summary.interests_version);
            self.compared(node);
        } else {
            let (number, version) = (summary.round, summary.interests_version);
            peer.answer = Some(Answer { number, version, without_ms, partial: true });
            reply.digests = tally.digests;
            reply.objects = tally.objects;
            if summary.root == Tally::new().root() && !peer.is_spoiled {
                // The peer has nothing.
                self.synced(node, summary.interests_version);
            }
        }
        self.send(node, Kind::Buckets(reply), out);
    }

    /// Third step, unless the sides are equal.
    pub(super) fn on_buckets<R>(
        &mut self,
        node: NodeId,
        theirs: wire::Buckets,
        replica: &R,
        out: &mut Vec<Output>,
    ) where
        R: Replica<Delta = D>,
    {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        self.agreement.confirmed(node, theirs.has_lost);
        // So that the clocks of all members are that of the fastest.
        replica.follow_clock(theirs.clock_ms);
        match &mut peer.sweep {
            Some(sweep) if theirs.follows_clock => sweep.leaves_out(theirs.without_ms),
            sweep => *sweep = None,
        }
        self.told_agreed(theirs.agreed_ms, replica);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let (tally, first, began, versions, compared_without_ms) = match peer.round.as_deref() {
            Some(Round {
                number,
                first,
                began,
                version,
                their_version,
                without_ms,
                stage: Stage::Buckets { tally },
            }) if *number == theirs.round => {
                (tally, *first, *began, (*version, *their_version), *without_ms)
            }
            _ => {
                self.counters.unexpected_messages += 1;
                return;
            }
        };
        if theirs.digests.is_empty() {
            peer.round = None;
            peer.is_spoiled = false;
            self.synced(node, versions.0);
            self.confirm(node, began, versions.0);
            self.compared(node);
            return;
        }
        let without_ms = theirs.without_ms.min(compared_without_ms);
        let mut tally = tally.clone();
        if without_ms != compared_without_ms {
            // The peer has to compare earlier deletions.
            if let Some(round) = &mut peer.round {
                round.without_ms = without_ms;
            }
            tally = self.tally(node, without_ms, replica);
        }
        let (buckets, left_for_later) =
            tally.differing(&theirs, bucket(first), self.settings.round_objects);
        let Some(peer) = self.peers.get(&node) else { return };
        if theirs.objects.iter().all(|objects| *objects == 0) && !peer.is_spoiled {
            // Such as a new member: what goes to it now keeps nobody here waiting.
            self.synced(node, versions.0);
        }
        let (mut from, mut to): (Vec<u64>, Vec<u64>) = buckets.into_iter().map(bucket_range).unzip();
        if let Some(range) = from.first_mut() {
            *range = (*range).max(first);
        }
        let mut entries = self.entries(node, (&from, &to), without_ms, replica);
        let most = self.settings.round_objects.clamp(1, ROUND_OBJECTS);
        let mut next = left_for_later.map(|bucket| bucket_range(bucket).0);
        // A single bucket may have more than one message holds.
        if let Some(first_over) = entries.get(most).map(|entry| entry.hash)
            && let Some(last) = first_over.checked_sub(1)
        {
            entries.retain(|entry| entry.hash <= last);
            let ranges = from.partition_point(|first| *first <= last);
            from.truncate(ranges);
            to.truncate(ranges);
            if let Some(end) = to.last_mut() {
                *end = (*end).min(last);
            }
            next = Some(first_over);
        }
        let (hashes, digests) = lines(&entries);
        let partial = next.is_some();
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.cursor = Cursor { hash: next.unwrap_or(0), versions };
            if let Some(round) = &mut peer.round {
                round.stage = Stage::Differences { entries, partial };
            }
        }
        let objects = wire::Objects { round: theirs.round, from, to, hashes, digests, partial };
        self.send(node, Kind::Objects(objects), out);
    }

    /// Fourth step: lists what to send.
    pub(super) fn on_objects<R>(&mut self, node: NodeId, theirs: wire::Objects, replica: &R)
    where
        R: Replica<Delta = D>,
    {
        let expected = |peer: &Peer<D>| peer.answer.as_ref().is_some_and(|a| a.number == theirs.round);
        // A second one of the same round would have its states sent twice.
        if !self.peers.get(&node).is_some_and(|peer| expected(peer) && peer.work.is_empty()) {
            self.counters.unexpected_messages += 1;
            return;
        }
        let without_ms = self.peers.get(&node).and_then(|peer| peer.answer.as_ref()).map(|a| a.without_ms);
        let without_ms = without_ms.unwrap_or_default();
        let entries = self.entries(node, (&theirs.from, &theirs.to), without_ms, replica);
        let (hashes, digests) = lines(&entries);
        let mut wanted = Vec::new();
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        for difference in differences((&hashes, &digests), (&theirs.hashes, &theirs.digests)) {
            match difference {
                Difference::OnlyOurs(hash) => peer.work.extend(with_hash(&entries, hash).map(whole)),
                Difference::OnlyTheirs(hash) => wanted.push(hash),
                Difference::Differs(hash) => {
                    // If several objects have one hash, either side may lack some of them.
                    if with_hash(&entries, hash).nth(1).is_some() {
                        peer.work.extend(with_hash(&entries, hash).map(whole));
                        wanted.push(hash);
                        continue;
                    }
                    peer.work.extend(with_hash(&entries, hash).map(|e| Work::FieldDigests {
                        round: theirs.round,
                        object: e.key.clone(),
                        view: View { part: e.part, without_ms },
                    }));
                }
            }
        }
        peer.work.push_back(Work::DifferencesEnd { round: theirs.round, wanted });
        put_first(&mut peer.work, replica);
        if let Some(answer) = &mut peer.answer {
            answer.partial = theirs.partial;
        }
    }

    /// Fifth step: lists what to send and what to ask for.
    pub(super) fn on_differences<R>(&mut self, node: NodeId, theirs: wire::Differences, replica: &R)
    where
        R: Replica<Delta = D>,
    {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let Some(Round { number, without_ms, stage: Stage::Differences { entries, partial }, .. }) =
            peer.round.as_deref_mut()
        else {
            self.counters.unexpected_messages += 1;
            return;
        };
        if *number != theirs.round {
            self.counters.unexpected_messages += 1;
            return;
        }
        let round = theirs.round;
        // Answered entries are removed, so that each object is sent once a round.
        let mut answered = BTreeSet::new();
        for hash in theirs.wanted {
            if answered.insert(hash) {
                peer.work.extend(with_hash(entries, hash).map(whole));
            }
        }
        for fields in theirs.objects {
            let key = ObjectKey::new(fields.app, fields.object);
            let hash = key.hash64();
            let Some(entry) = with_hash(entries, hash).find(|entry| entry.key == key) else {
                // The key has the same hash as one of ours, or is of no interest here.
                continue;
            };
            if !answered.insert(hash) {
                continue;
            }
            let view = View { part: entry.part, without_ms: *without_ms };
            let ours = replica.field_digests(&key, view);
            let theirs: Vec<(String, u64)> = fields.names.into_iter().zip(fields.digests).collect();
            let (send, want) = differing_fields(&ours, &theirs);
            if !send.is_empty() {
                let (object, part) = (entry.key.clone(), entry.part);
                peer.work.push_back(Work::State { object, fields: Some(send), part });
            }
            if !want.is_empty() {
                peer.names_bytes += want.iter().map(|name| name.len() + size_of::<String>()).sum::<usize>();
                let want = if peer.names_bytes > NAMES_BYTES { Vec::new() } else { want };
                peer.work.push_back(Work::WantFields { round, object: entry.key.clone(), fields: want });
            }
        }
        entries.retain(|entry| !answered.contains(&entry.hash));
        if theirs.last {
            peer.work.push_back(Work::WantsEnd { round });
            let partial = *partial;
            if let Some(open) = &mut peer.round {
                open.stage = Stage::End { partial };
            }
        }
        put_first(&mut peer.work, replica);
    }

    /// Last step: lists what to send.
    pub(super) fn on_wants<R>(&mut self, node: NodeId, theirs: wire::Wants, replica: &R)
    where
        R: Replica<Delta = D>,
    {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // More than a round can be about is not an honest wish.
        let sane = peer.work.len() + theirs.objects.len() <= 2 * ROUND_OBJECTS;
        if !sane || peer.answer.as_ref().is_none_or(|answer| answer.number != theirs.round) {
            self.counters.unexpected_messages += 1;
            return;
        }
        for fields in theirs.objects {
            let object = ObjectKey::new(fields.app, fields.object);
            if replica.digest(&object, View::ALL).is_none() {
                continue;
            }
            let part = self.part_for(node, &object, replica);
            let Some(peer) = self.peers.get_mut(&node) else { return };
            peer.names_bytes += fields.names.iter().map(|n| n.len() + size_of::<String>()).sum::<usize>();
            let whole = fields.names.is_empty() || peer.names_bytes > NAMES_BYTES;
            peer.work.push_back(Work::State { object, fields: (!whole).then_some(fields.names), part });
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if theirs.last {
            peer.work.push_back(Work::RoundEnd { round: theirs.round });
        }
        put_first(&mut peer.work, replica);
    }

    /// The higher node has sent all.
    pub(super) fn answer_ended(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if let Some(answer) = peer.answer.take() {
            self.counters.rounds_exchanged += 1;
            peer.is_answer_partial = answer.partial;
            if !answer.partial && !std::mem::take(&mut peer.is_spoiled) {
                self.synced(node, answer.version);
                self.compared(node);
            }
        }
    }

    /// The lower node has got all.
    pub(super) fn on_finished(&mut self, node: NodeId, finished: wire::Finished) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        match peer.round.as_deref() {
            Some(Round { number, version, stage: Stage::End { partial }, .. })
                if *number == finished.round =>
            {
                let (partial, version) = (*partial, *version);
                self.counters.rounds_exchanged += 1;
                peer.round = None;
                if partial {
                    peer.round_due = self.now;
                } else if !std::mem::take(&mut peer.is_spoiled) {
                    self.synced(node, version);
                    self.compared(node);
                }
            }
            _ => self.counters.unexpected_messages += 1,
        }
    }

    /// A member says up to which time deletions are agreed. Deletions of this node come after that.
    fn told_agreed<R>(&mut self, agreed_ms: u64, replica: &R)
    where
        R: Replica<Delta = D>,
    {
        if replica.follow_clock(agreed_ms) {
            self.agreement.told(agreed_ms, replica.clock_ms());
        }
    }

    /// All objects have been compared with a peer, and what differed was exchanged.
    fn compared(&mut self, node: NodeId) {
        let sweep = self.peers.get_mut(&node).and_then(|peer| peer.sweep.take());
        if let Some(sweep) = sweep {
            self.agreement.compared(node, sweep);
        }
    }

    /// All that a peer has of the local interests of a version is here.
    fn synced(&mut self, node: NodeId, version: u32) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.synced_version = version;
        }
        self.recovery.complete(node, version);
    }

    /// Both had the same; that says nothing if the peer did not know what this node is interested in.
    fn confirm(&mut self, node: NodeId, at: std::time::Duration, version: u32) {
        self.counters.rounds_equal += 1;
        if version == self.interests_version {
            self.confirmed.insert(node, at);
        }
    }
}

fn whole(entry: &Entry) -> Work {
    Work::State { object: entry.key.clone(), fields: None, part: entry.part }
}

/// Moves what is about objects that come first before all else, and keeps the order otherwise: the ends stay behind what they end.
fn put_first<R: Replica>(work: &mut VecDeque<Work>, replica: &R) {
    let comes_first = |work: &Work| work.object().is_some_and(|object| replica.comes_first(object));
    work.make_contiguous().sort_by_key(|work| !comes_first(work));
}

/// The names to send and those to ask for.
fn differing_fields(ours: &[(String, u64)], theirs: &[(String, u64)]) -> (Vec<String>, Vec<String>) {
    let ours: BTreeSet<(&str, u64)> = ours.iter().map(|(name, digest)| (name.as_str(), *digest)).collect();
    let theirs: BTreeSet<(&str, u64)> =
        theirs.iter().map(|(name, digest)| (name.as_str(), *digest)).collect();
    let names = |fields: BTreeSet<(&str, u64)>| -> Vec<String> {
        let names: BTreeSet<&str> = fields.into_iter().map(|(name, _)| name).collect();
        names.into_iter().map(str::to_owned).collect()
    };
    (names(&ours - &theirs), names(&theirs - &ours))
}
