//! All sessions by client identifier, connected or waiting for their clients.

use std::collections::HashMap;
use std::sync::Arc;

use super::state::Parked;
use crate::mailbox::Mailbox;

/// All sessions, by client identifier.
#[derive(Debug, Default)]
pub(super) struct ByClient {
    sessions: HashMap<Arc<str>, Known>,
    /// Number of sessions that have a connection.
    connected: usize,
    /// The number of the last session that outlives its connections.
    last_number: u64,
    next_parking: u64,
}

/// One session.
#[derive(Debug)]
pub(super) struct Known {
    pub mailbox: Arc<Mailbox>,
    /// The user it belongs to; `None` for sessions of anonymous clients, which any client may resume.
    pub owner: Option<Arc<str>>,
    /// State of the session while it has no connection. If it has one, the connection owns the state.
    pub parked: Option<Parked>,
}

impl Known {
    pub(super) fn is_connected(&self) -> bool {
        self.parked.is_none()
    }
}

impl ByClient {
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Number of sessions that have a connection.
    pub(super) fn connected(&self) -> usize {
        self.connected
    }

    pub(super) fn get(&self, client_id: &str) -> Option<&Known> {
        self.sessions.get(client_id)
    }

    pub(super) fn get_mut(&mut self, client_id: &str) -> Option<&mut Known> {
        self.sessions.get_mut(client_id)
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
    pub(super) fn insert(&mut self, mailbox: Arc<Mailbox>, owner: Option<Arc<str>>) {
        self.connected += 1;
        self.sessions.insert(mailbox.client_id.clone(), Known { mailbox, owner, parked: None });
    }

    /// Hands the state of a waiting session to its connection.
    pub(super) fn resume(&mut self, client_id: &str) -> Option<Parked> {
        let parked = self.sessions.get_mut(client_id)?.parked.take()?;
        self.connected += 1;
        Some(parked)
    }

    /// Takes the state back from a connection; gives the number of this waiting.
    pub(super) fn park(&mut self, client_id: &str, parked: Parked) -> u64 {
        let parking = self.next_parking;
        self.next_parking += 1;
        if let Some(known) = self.sessions.get_mut(client_id) {
            self.connected -= usize::from(known.is_connected());
            known.parked = Some(Parked { parking, ..parked });
        }
        parking
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, client_id: &str) -> Option<Known> {
        let known = self.sessions.remove(client_id)?;
        self.connected -= usize::from(known.is_connected());
        Some(known)
    }
}
