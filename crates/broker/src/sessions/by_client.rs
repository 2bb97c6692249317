//! All sessions by client identifier, connected or waiting for their clients.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::state::Parked;
use crate::client::Client;
use crate::mailbox::Mailbox;

/// All sessions, in the order of their client identifiers.
#[derive(Debug, Default)]
pub(super) struct ByClient {
    sessions: BTreeMap<Arc<str>, Known>,
    /// Number of sessions that a client over the network is connected to.
    connected: usize,
    /// The number of the last session that outlives its connections.
    last_number: u64,
    next_parking: u64,
}

/// One session.
#[derive(Debug)]
pub(super) struct Known {
    pub mailbox: Arc<Mailbox>,
    /// The client that has it, or had it last. The session belongs to its user; any client may resume that of an anonymous one.
    pub client: Arc<Client>,
    /// Time since which it is connected, or waits for its client; 0 if that is not known.
    pub since_unix_ms: u64,
    /// State of the session while it has no connection. If it has one, the connection owns the state.
    pub parked: Option<Parked>,
}

impl Known {
    pub(super) fn is_connected(&self) -> bool {
        self.parked.is_none()
    }

    /// 1 if it counts as a connection: a part of the node itself has none.
    fn connections(&self) -> usize {
        usize::from(self.is_connected() && self.client.is_over_network())
    }
}

impl ByClient {
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Number of sessions that a client over the network is connected to.
    pub(super) fn connected(&self) -> usize {
        self.connected
    }

    pub(super) fn get(&self, client_id: &str) -> Option<&Known> {
        self.sessions.get(client_id)
    }

    pub(super) fn get_mut(&mut self, client_id: &str) -> Option<&mut Known> {
        self.sessions.get_mut(client_id)
    }

    /// Up to `max` sessions behind `after`, in order.
    pub(super) fn behind(&self, after: Option<&str>, max: usize) -> impl Iterator<Item = &Known> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.sessions.range::<str, _>((start, Bound::Unbounded)).map(|(_, known)| known).take(max)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Known> {
        self.sessions.values()
    }

    /// A number for a session that outlives its connections.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Reserves the numbers up to `last`: no new session gets one of them.
    pub(super) fn skip_numbers(&mut self, last: u64) {
        self.last_number = self.last_number.max(last);
    }

    /// Adds a session with a connection.
    pub(super) fn insert(&mut self, mailbox: Arc<Mailbox>, client: Arc<Client>, now_unix_ms: u64) {
        let known = Known { mailbox, client, since_unix_ms: now_unix_ms, parked: None };
        self.connected += known.connections();
        self.sessions.insert(known.mailbox.client_id.clone(), known);
    }

    /// Hands the state of a waiting session to its connection.
    pub(super) fn resume(&mut self, client: &Arc<Client>, now_unix_ms: u64) -> Option<Parked> {
        let known = self.sessions.get_mut(&client.client_id)?;
        let parked = known.parked.take()?;
        known.client = client.clone();
        known.since_unix_ms = now_unix_ms;
        self.connected += known.connections();
        Some(parked)
    }

    /// Takes the state back from a connection at `since_unix_ms`, 0 if that is not known; gives the number of this waiting.
    pub(super) fn park(&mut self, client_id: &str, parked: Parked, since_unix_ms: u64) -> u64 {
        let parking = self.next_parking;
        self.next_parking += 1;
        if let Some(known) = self.sessions.get_mut(client_id) {
            self.connected -= known.connections();
            known.since_unix_ms = since_unix_ms;
            known.parked = Some(Parked { parking, ..parked });
        }
        parking
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, client_id: &str) -> Option<Known> {
        let known = self.sessions.remove(client_id)?;
        self.connected -= known.connections();
        Some(known)
    }
}
