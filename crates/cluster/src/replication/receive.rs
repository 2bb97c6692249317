//! Receiving from a peer.

use bytes::Bytes;

use crate::replication::interest::InterestSet;
use crate::replication::peer::Assembly;
use crate::replication::{
    DEFAULT_COPIES, Delta, DisconnectReason, NodeId, ObjectKey, Output, PAYLOAD_LIMIT_BYTES, Replica,
    Replication, View,
};
use crate::wire::{Chunk, Deltas, Interests, Kind, MESSAGE_LIMIT_BYTES, Message};

/// A delta of an object, as its sender describes it.
struct Received {
    copies: u32,
    payload: Bytes,
    depth: u32,
}

impl<D: Delta> Replication<D> {
    pub(super) fn received<R>(&mut self, node: NodeId, frame: Bytes, replica: &R, out: &mut Vec<Output>)
    where
        R: Replica<Delta = D>,
    {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.heard = self.now;
        self.counters.messages_received += 1;
        self.counters.bytes_received += frame.len() as u64;
        let Ok(message) = Message::decode_frame(frame, MESSAGE_LIMIT_BYTES) else {
            self.disconnect(node, DisconnectReason::BadMessage, out);
            return;
        };
        match message.kind {
            None => self.counters.unknown_messages += 1,
            Some(Kind::Interests(told)) => self.on_interests(node, told),
            Some(Kind::Deltas(deltas)) => self.on_deltas(node, deltas, replica, out),
            Some(Kind::Chunk(chunk)) => self.on_chunk(node, chunk, replica, out),
            Some(Kind::Summary(summary)) => self.on_summary(node, summary, replica, out),
            Some(Kind::Buckets(buckets)) => self.on_buckets(node, buckets, replica, out),
            Some(Kind::Objects(objects)) => self.on_objects(node, objects, replica),
            Some(Kind::Differences(differences)) => self.on_differences(node, differences, replica),
            Some(Kind::Wants(wants)) => self.on_wants(node, wants, replica),
            Some(Kind::Finished(finished)) => self.on_finished(node, finished),
            Some(Kind::RoundPlease(_)) => {
                peer.round_wanted |= self.me < node;
            }
        }
        self.attend(node, replica, out);
    }

    fn on_interests(&mut self, node: NodeId, told: Interests) {
        let begins = self.begins(node);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let set = InterestSet::from_wire(told.interests);
        peer.interests_version = told.version;
        // The lower node begins a round even if it knows the set: the version in it is news for the peer.
        peer.round_wanted |= begins;
        if peer.set_interests(set) {
            self.confirmed.remove(&node);
        }
        self.absent.remove(&node);
    }

    fn on_deltas<R>(&mut self, node: NodeId, deltas: Deltas, replica: &R, out: &mut Vec<Output>)
    where
        R: Replica<Delta = D>,
    {
        for delta in deltas.deltas {
            let Some(peer) = self.peers.get_mut(&node) else {
                return;
            };
            let object = match (delta.app, delta.object) {
                (Some(app), Some(object)) => {
                    let key = ObjectKey::new(app, object);
                    peer.keys_in.define(delta.id, &key);
                    key
                }
                _ => match peer.keys_in.key(delta.id) {
                    Some(key) => key.clone(),
                    None => {
                        // The definition of the key was lost; a round brings the object's changes.
                        self.counters.unknown_keys += 1;
                        peer.round_wanted = true;
                        continue;
                    }
                },
            };
            let received = Received { copies: delta.copies, payload: delta.payload, depth: delta.depth };
            self.merge(node, object, received, replica, out);
        }
    }

    fn on_chunk<R>(&mut self, node: NodeId, chunk: Chunk, replica: &R, out: &mut Vec<Output>)
    where
        R: Replica<Delta = D>,
    {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let object = ObjectKey::new(chunk.app, chunk.object);
        if chunk.offset_bytes == 0 {
            peer.assembly = Some(Box::new(Assembly { object: object.clone(), payload: Vec::new() }));
        }
        let fits = |assembly: &Assembly| {
            assembly.object == object && assembly.payload.len() as u64 == chunk.offset_bytes
        };
        let Some(assembly) = peer.assembly.as_mut().filter(|assembly| fits(assembly)) else {
            self.counters.unexpected_messages += 1;
            peer.round_wanted = true;
            return;
        };
        if assembly.payload.len() + chunk.payload.len() > PAYLOAD_LIMIT_BYTES {
            self.disconnect(node, DisconnectReason::BadMessage, out);
            return;
        }
        assembly.payload.extend_from_slice(&chunk.payload);
        if chunk.last
            && let Some(assembly) = peer.assembly.take()
        {
            let payload = assembly.payload.into();
            let received = Received { copies: chunk.copies, payload, depth: chunk.depth };
            self.merge(node, object, received, replica, out);
        }
    }

    /// Outputs a delta, if this node uses or holds the object, or its budget has room for it.
    fn merge<R>(
        &mut self,
        node: NodeId,
        object: ObjectKey,
        received: Received,
        replica: &R,
        out: &mut Vec<Output>,
    ) where
        R: Replica<Delta = D>,
    {
        let Received { copies, payload, depth } = received;
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        self.counters.deltas_received += 1;
        if payload.is_empty() {
            return;
        }
        if !self.interests.matches(&object) && replica.digest(&object, View::ALL).is_none() {
            let bytes = payload.len() + object.app.len() + object.object.len();
            let (limit, per_second) = (self.settings.keep_bytes, self.settings.keep_bytes_per_second);
            if !peer.keep_budget.take(bytes as u64, limit, per_second, self.now) {
                self.counters.keep_refused += 1;
                return;
            }
        }
        peer.holds(&object);
        let copies = match u8::try_from(copies) {
            Ok(0) => DEFAULT_COPIES,
            Ok(copies) => copies,
            Err(_) => u8::MAX,
        };
        let depth = u8::try_from(depth).unwrap_or(u8::MAX);
        out.push(Output::Merge { node, object, copies, payload, depth });
    }
}
