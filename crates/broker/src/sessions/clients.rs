//! Clients as an operator sees them: lists in the order of their identifiers, and clients that are dropped.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::futures::OwnedNotified;

use super::SessionTable;
use super::by_client::Known;
use crate::client::{Client, Transport};
use crate::mailbox::{EndRequest, Mailbox};
use crate::message::{QoS, Version};
use crate::search::Search;
use crate::topic::TopicFilter;

/// Sessions that are visited under one lock of the table.
const SLICE_SESSIONS: usize = 256;

/// The clients that a list is about.
#[derive(Debug, Clone, Default)]
pub struct ClientQuery {
    /// Text in the client identifier, the user or the address.
    pub search: Search,
    /// The list begins behind this client identifier.
    pub after: Option<String>,
    /// Maximum number of clients.
    pub limit: usize,
    /// Leaves out clients that are not connected.
    pub connected_only: bool,
}

/// A part of the list of clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientPage {
    /// The clients, in the order of their identifiers.
    pub clients: Vec<ClientFigures>,
    /// More clients follow.
    pub more: bool,
    /// Number of all sessions.
    pub sessions: usize,
    /// Number of sessions that a client over the network is connected to.
    pub connected: usize,
}

/// One client that has a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFigures {
    /// The client identifier.
    pub client_id: Arc<str>,
    /// The user; `None` for an anonymous client.
    pub username: Option<Arc<str>>,
    /// The connection; `None` while the session waits for its client.
    pub connection: Option<ClientConnection>,
    /// Time since which it is connected, or waits for its client; 0 if that is not known.
    pub since_unix_ms: u64,
    /// Number of its subscriptions.
    pub subscriptions: usize,
    /// Messages that wait for it, those in flight not included.
    pub waiting: u64,
    /// Messages that were sent to it and are not acknowledged.
    pub in_flight: u64,
}

/// The connection of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientConnection {
    /// Remote address.
    pub address: SocketAddr,
    /// Protocol version.
    pub version: Version,
    /// Transport.
    pub transport: Transport,
}

/// The fate of the session of a client that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It waits for its client, as after a lost connection.
    Kept,
    /// It ends with its messages and subscriptions.
    Forgotten,
}

/// A client that is being dropped.
pub(crate) enum Ending {
    /// Its connection was asked to end; the notification comes when it has.
    Connection(Pin<Box<OwnedNotified>>),
    /// It was not connected.
    NotConnected,
}

/// A client with the parts of its figures that are read without the lock of the table.
struct Found {
    mailbox: Arc<Mailbox>,
    client: Arc<Client>,
    since_unix_ms: u64,
    is_connected: bool,
}

impl SessionTable {
    /// A part of the list of clients. The lock of the table is held for a slice of the sessions at a time.
    pub(crate) fn clients(&self, query: &ClientQuery) -> ClientPage {
        let mut page = ClientPage::default();
        let mut after: Option<Arc<str>> = query.after.as_deref().map(Into::into);
        loop {
            let (mut found, mut last) = (Vec::new(), None);
            let mut visited = 0;
            {
                let sessions = self.sessions.lock();
                (page.sessions, page.connected) = (sessions.len(), sessions.connected());
                for known in sessions.behind(after.as_deref(), SLICE_SESSIONS) {
                    visited += 1;
                    if query.wants(known) {
                        found.push(Found::of(known));
                    }
                    last = Some(known.mailbox.client_id.clone());
                }
            }
            for found in found {
                if page.clients.len() == query.limit {
                    page.more = true;
                    return page;
                }
                page.clients.push(found.figures());
            }
            if visited < SLICE_SESSIONS {
                return page;
            }
            after = last;
        }
    }

    /// One client, with the filters of its subscriptions in order; `None` if it has no session.
    pub(crate) fn client(&self, client_id: &str) -> Option<(ClientFigures, Vec<(TopicFilter, QoS)>)> {
        let found = self.sessions.lock().get(client_id).map(Found::of)?;
        let mut filters = found.mailbox.filters();
        filters.sort();
        Some((found.figures(), filters))
    }

    /// Messages that were lost for a session, since it began or the node started; `None` if it does not exist.
    pub(crate) fn lost(&self, client_id: &str) -> Option<u64> {
        self.sessions.lock().get(client_id).map(|known| known.mailbox.lost())
    }

    /// Ends the connection of a client, and with [`Fate::Forgotten`] its session; `None` if it has no session.
    pub(crate) fn drop_client(&self, client_id: &str, fate: Fate) -> Option<Ending> {
        let sessions = self.sessions.lock();
        let known = sessions.get(client_id)?;
        if known.is_connected() {
            let mut released = Box::pin(known.mailbox.released.clone().notified_owned());
            // The notification counts from this moment on.
            released.as_mut().enable();
            if fate == Fate::Forgotten {
                known.mailbox.forget_at_end();
            }
            known.mailbox.end(EndRequest::Administrative);
            return Some(Ending::Connection(released));
        }
        if fate == Fate::Forgotten {
            self.end_waiting(sessions, client_id, &self.now());
        }
        Some(Ending::NotConnected)
    }
}

impl ClientQuery {
    fn wants(&self, known: &Known) -> bool {
        let client = &known.client;
        (known.is_connected() || !self.connected_only)
            && (self.search.matches(&client.client_id)
                || client.username.as_deref().is_some_and(|user| self.search.matches(user))
                || (known.is_connected() && self.search.matches(&client.peer.to_string())))
    }
}

impl Found {
    fn of(known: &Known) -> Found {
        Found {
            mailbox: known.mailbox.clone(),
            client: known.client.clone(),
            since_unix_ms: known.since_unix_ms,
            is_connected: known.is_connected(),
        }
    }

    fn figures(&self) -> ClientFigures {
        let Client { peer, version, transport, ref username, .. } = *self.client;
        ClientFigures {
            client_id: self.mailbox.client_id.clone(),
            username: username.clone(),
            connection: self.is_connected.then_some(ClientConnection { address: peer, version, transport }),
            since_unix_ms: self.since_unix_ms,
            subscriptions: self.mailbox.filter_count(),
            waiting: self.mailbox.waiting().0,
            in_flight: self.mailbox.in_flight(),
        }
    }
}
