//! Sending to a peer: changes immediately where there is room, the rest in pieces.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message as _;

use crate::replication::copies::keeps;
use crate::replication::lag::{Lagged, Next};
use crate::replication::peer::{LongPayload, Work};
use crate::replication::{
    DEFAULT_COPIES, Delta, NodeId, ObjectKey, Output, PAYLOAD_LIMIT_BYTES, Part, Replica, Replication,
};
use crate::wire::{Chunk, Deltas, Differences, Finished, Kind, ObjectDelta, ObjectFields, Wants};

/// Approximate number of bytes that one call sends; the next call sends the rest.
pub(super) const OUTPUT_BYTES: usize = 1024 * 1024;
/// Overhead of an entry of a message beside its fields, in bytes, at most.
const ENTRY_BYTES: usize = 24;
/// Maximum size of the names and digests of an object's fields that are compared one by one, in bytes.
const FIELDS_BYTES: usize = 64 * 1024;

/// A message that grows until it is full.
#[derive(Debug, Default)]
struct Growing {
    kind: Option<Kind>,
    bytes: usize,
}

impl<D: Delta> Replication<D> {
    /// Sends the due changes to the peers that they concern.
    pub(super) fn flush(&mut self, out: &mut Vec<Output>) {
        let mut growing: BTreeMap<NodeId, Growing> = BTreeMap::new();
        let mut lagging: BTreeSet<NodeId> = BTreeSet::new();
        let mut bytes = 0;
        while bytes < OUTPUT_BYTES
            && let Some((object, waiting)) = self.pending.take_due(self.now, self.settings.pending_bytes)
        {
            let delay = self.now.saturating_sub(waiting.since);
            self.counters.flushes += 1;
            self.counters.flush_delay = self.counters.flush_delay.saturating_add(delay);
            self.counters.flush_delay_max = self.counters.flush_delay_max.max(delay);
            let mut payload: Option<Bytes> = None;
            for node in self.targets(&object, waiting.copies) {
                let Some(peer) = self.peers.get_mut(&node) else {
                    continue;
                };
                peer.holds(&object);
                if !peer.is_ready() {
                    self.lag(node, &object, &waiting.delta);
                    lagging.insert(node);
                    continue;
                }
                let payload = payload.get_or_insert_with(|| waiting.delta.encode());
                if payload.len() > self.settings.message_bytes {
                    self.lag(node, &object, &waiting.delta);
                    lagging.insert(node);
                    continue;
                }
                bytes += payload.len() + ENTRY_BYTES;
                let (id, new) = peer.keys_out.id(&object);
                let sent =
                    Sent { copies: waiting.copies, payload: payload.clone(), depth: waiting.delta.depth() };
                let delta = object_delta(&object, id, new, sent);
                let growing = growing.entry(node).or_default();
                self.grow_deltas(node, growing, delta, out);
            }
        }
        for (node, mut growing) in growing {
            self.emit(node, &mut growing, out);
        }
        // Peers that lag may have something to do now.
        lagging.into_iter().for_each(|node| self.set_timer(node));
    }

    /// The connected nodes that get a change of an object.
    fn targets(&self, object: &ObjectKey, copies: u8) -> Vec<NodeId> {
        let hash = object.hash64();
        let gets = |(node, interested): &(NodeId, bool)| {
            *interested || keeps(*node, hash, copies, self.view(object))
        };
        let others = self.view(object).filter(|(node, _)| self.peers.contains_key(node));
        others.filter(gets).map(|(node, _)| node).collect()
    }

    fn lag(&mut self, node: NodeId, object: &ObjectKey, delta: &D) {
        let (objects, bytes) = (self.settings.lag_objects, self.settings.lag_bytes);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        match peer.lag.add(object, delta, objects, bytes) {
            Lagged::Waits => self.counters.lagged += 1,
            Lagged::Stale => self.counters.stale += 1,
            Lagged::StaleAll => {
                self.counters.stale_all += 1;
                peer.round_wanted = true;
            }
        }
    }

    /// Sends about one message of the data that waits for a peer. The next call sends more.
    pub(super) fn pump<R>(&mut self, node: NodeId, replica: &R, out: &mut Vec<Output>)
    where
        R: Replica<Delta = D>,
    {
        let end = self.counters.bytes_sent + self.settings.message_bytes as u64;
        let mut growing = Growing::default();
        while self.counters.bytes_sent < end {
            let Some(peer) = self.peers.get_mut(&node).filter(|peer| !peer.blocked) else {
                break;
            };
            if let Some(frame) = peer.take_unsent() {
                self.hand_over(node, frame, out);
            } else if std::mem::take(&mut peer.untold) {
                self.tell_interests(node, out);
            } else if peer.long.is_some() {
                self.emit(node, &mut growing, out);
                self.send_chunk(node, out);
            } else if let Some(next) = peer.lag.take() {
                match next {
                    Next::Delta(object, delta) => {
                        let (copies, payload) = (replica.copies(&object), delta.encode());
                        let depth = delta.depth();
                        // A payload that is sent in pieces carries its whole key and no number.
                        let (id, new) = if payload.len() > self.settings.message_bytes {
                            (0, true)
                        } else {
                            peer.keys_out.id(&object)
                        };
                        let delta = object_delta(&object, id, new, Sent { copies, payload, depth });
                        self.send_delta(node, &mut growing, object, delta, out);
                    }
                    Next::State(object) => {
                        let what = (object, None, Part::Whole);
                        self.send_state(node, &mut growing, what, replica, out);
                    }
                }
            } else if let Some(work) = peer.work.pop_front() {
                self.carry_out(node, &mut growing, work, replica, out);
            } else {
                break;
            }
        }
        self.emit(node, &mut growing, out);
    }

    fn carry_out<R>(
        &mut self,
        node: NodeId,
        growing: &mut Growing,
        work: Work,
        replica: &R,
        out: &mut Vec<Output>,
    ) where
        R: Replica<Delta = D>,
    {
        match work {
            Work::State { object, fields, part } => {
                self.send_state(node, growing, (object, fields, part), replica, out);
            }
            Work::FieldDigests { round, object, view } => {
                let (names, digests): (Vec<String>, Vec<u64>) =
                    replica.field_digests(&object, view).into_iter().unzip();
                let bytes: usize = names.iter().map(|name| name.len() + ENTRY_BYTES).sum();
                if bytes > FIELDS_BYTES {
                    let wanted = vec![object.hash64()];
                    self.send_state(node, growing, (object, None, view.part), replica, out);
                    self.emit(node, growing, out);
                    let whole = Differences { round, wanted, objects: Vec::new(), last: false };
                    self.send(node, Kind::Differences(whole), out);
                    return;
                }
                let fields = object_fields(&object, names, digests);
                if !matches!(&growing.kind, Some(Kind::Differences(_)))
                    || growing.bytes + fields.encoded_len() > self.settings.message_bytes
                {
                    self.emit(node, growing, out);
                    growing.kind = Some(Kind::Differences(Differences { round, ..Differences::default() }));
                }
                growing.bytes += fields.encoded_len() + ENTRY_BYTES;
                if let Some(Kind::Differences(differences)) = &mut growing.kind {
                    differences.objects.push(fields);
                }
            }
            Work::WantFields { round, object, fields } => {
                let fields = object_fields(&object, fields, Vec::new());
                if !matches!(&growing.kind, Some(Kind::Wants(_)))
                    || growing.bytes + fields.encoded_len() > self.settings.message_bytes
                {
                    self.emit(node, growing, out);
                    growing.kind = Some(Kind::Wants(Wants { round, ..Wants::default() }));
                }
                growing.bytes += fields.encoded_len() + ENTRY_BYTES;
                if let Some(Kind::Wants(wants)) = &mut growing.kind {
                    wants.objects.push(fields);
                }
            }
            Work::DifferencesEnd { round, wanted } => {
                self.emit(node, growing, out);
                let end = Differences { round, wanted, objects: Vec::new(), last: true };
                self.send(node, Kind::Differences(end), out);
            }
            Work::WantsEnd { round } => {
                self.emit(node, growing, out);
                self.send(node, Kind::Wants(Wants { round, objects: Vec::new(), last: true }), out);
            }
            Work::RoundEnd { round } => {
                self.emit(node, growing, out);
                self.send(node, Kind::Finished(Finished { round }), out);
                self.answer_ended(node);
            }
        }
    }

    fn send_state<R>(
        &mut self,
        node: NodeId,
        growing: &mut Growing,
        (object, fields, part): (ObjectKey, Option<Vec<String>>, Part),
        replica: &R,
        out: &mut Vec<Output>,
    ) where
        R: Replica<Delta = D>,
    {
        if let Some(state) = replica.state(&object, fields.as_deref(), part) {
            self.counters.states_sent += 1;
            if part == Part::Whole
                && let Some(peer) = self.peers.get_mut(&node)
            {
                peer.holds(&object);
            }
            // Without a number: states are sent seldom, and there may be many.
            let (copies, payload, depth) = (replica.copies(&object), state.encode(), state.depth());
            let delta = object_delta(&object, 0, true, Sent { copies, payload, depth });
            self.send_delta(node, growing, object, delta, out);
        }
    }

    fn send_delta(
        &mut self,
        node: NodeId,
        growing: &mut Growing,
        object: ObjectKey,
        delta: ObjectDelta,
        out: &mut Vec<Output>,
    ) {
        if delta.payload.len() <= self.settings.message_bytes {
            self.grow_deltas(node, growing, delta, out);
            return;
        }
        if delta.payload.len() > PAYLOAD_LIMIT_BYTES || !object.fits() {
            self.counters.payloads_too_long += 1;
            return;
        }
        self.emit(node, growing, out);
        if let Some(peer) = self.peers.get_mut(&node) {
            let copies = u8::try_from(delta.copies).unwrap_or(u8::MAX);
            let depth = u8::try_from(delta.depth).unwrap_or(u8::MAX);
            peer.long = Some(LongPayload { object, copies, depth, payload: delta.payload, sent_bytes: 0 });
        }
    }

    fn send_chunk(&mut self, node: NodeId, out: &mut Vec<Output>) {
        let piece_bytes = self.settings.message_bytes;
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let Some(mut long) = peer.long.take() else {
            return;
        };
        let offset = long.sent_bytes;
        let end = long.payload.len().min(offset + piece_bytes);
        let last = end == long.payload.len();
        let chunk = Chunk {
            app: long.object.app.to_string(),
            object: long.object.object.to_string(),
            copies: u32::from(long.copies),
            offset_bytes: offset as u64,
            last,
            payload: long.payload.slice(offset..end),
            depth: long.depth.into(),
        };
        if last {
            self.counters.deltas_sent += 1;
        } else {
            long.sent_bytes = end;
            peer.long = Some(long);
        }
        self.send(node, Kind::Chunk(chunk), out);
    }

    fn grow_deltas(
        &mut self,
        node: NodeId,
        growing: &mut Growing,
        delta: ObjectDelta,
        out: &mut Vec<Output>,
    ) {
        self.counters.deltas_sent += 1;
        let bytes = delta.encoded_len() + ENTRY_BYTES;
        if !matches!(&growing.kind, Some(Kind::Deltas(_)))
            || growing.bytes + bytes > self.settings.message_bytes
        {
            self.emit(node, growing, out);
            growing.kind = Some(Kind::Deltas(Deltas::default()));
        }
        growing.bytes += bytes;
        if let Some(Kind::Deltas(deltas)) = &mut growing.kind {
            deltas.deltas.push(delta);
        }
    }

    fn emit(&mut self, node: NodeId, growing: &mut Growing, out: &mut Vec<Output>) {
        growing.bytes = 0;
        if let Some(kind) = growing.kind.take() {
            self.send(node, kind, out);
        }
    }
}

/// What a delta of an object says beside its key.
struct Sent {
    copies: u8,
    payload: Bytes,
    depth: u8,
}

fn object_delta(object: &ObjectKey, id: u32, named: bool, sent: Sent) -> ObjectDelta {
    let Sent { copies, payload, depth } = sent;
    let copies = if copies == DEFAULT_COPIES { 0 } else { u32::from(copies) };
    let name = |name: &str| named.then(|| name.to_owned());
    let (app, object) = (name(&object.app), name(&object.object));
    ObjectDelta { id, app, object, copies, payload, depth: depth.into() }
}

fn object_fields(object: &ObjectKey, names: Vec<String>, digests: Vec<u64>) -> ObjectFields {
    ObjectFields { app: object.app.to_string(), object: object.object.to_string(), names, digests }
}
