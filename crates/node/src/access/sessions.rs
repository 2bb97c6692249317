//! Connections whose credential may end: a token that expires, or a user that is removed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use edgefaas_broker::{Client, Transport};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Key of a connection: no other open connection has the same.
type Key = (SocketAddr, Transport);

/// Credential that a client was accepted with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// The password of this user.
    Password {
        /// The user.
        user: Arc<str>,
    },
    /// A token.
    Token {
        /// Expiry in seconds since the Unix epoch.
        expires_unix_s: u64,
    },
}

/// Accepted connections whose credential may end.
#[derive(Default)]
pub struct Sessions {
    connections: Mutex<Connections>,
    /// Notified after a client with a token was accepted, or after the connect of a user that was removed meanwhile.
    changed: Notify,
}

#[derive(Default)]
struct Connections {
    all: HashMap<Key, Connection>,
    /// Time of the last removal of stale entries.
    swept_unix_s: u64,
}

struct Connection {
    credential: Credential,
    /// Set once the client's session exists.
    client: Option<Arc<Client>>,
    /// Time of acceptance, in seconds since the Unix epoch.
    since_unix_s: u64,
}

/// An entry that has not got a session within this time is removed.
const SESSION_TIMEOUT_S: u64 = 60;

impl Sessions {
    /// Adds an accepted client, and removes accepted clients that never got a session, at most once per second.
    pub fn accepted(&self, key: Key, credential: Credential, now_unix_s: u64) {
        let is_token = matches!(credential, Credential::Token { .. });
        let mut connections = self.connections.lock();
        if connections.swept_unix_s != now_unix_s {
            connections.swept_unix_s = now_unix_s;
            connections.all.retain(|_, connection| {
                connection.client.is_some()
                    || now_unix_s.saturating_sub(connection.since_unix_s) < SESSION_TIMEOUT_S
            });
        }
        connections.all.insert(key, Connection { credential, client: None, since_unix_s: now_unix_s });
        drop(connections);
        if is_token {
            self.check_again();
        }
    }

    /// Sets the client of an accepted connection. Returns its credential; `None` if the connection has none that may end.
    pub fn connected(&self, client: &Arc<Client>) -> Option<Credential> {
        let mut connections = self.connections.lock();
        let connection = connections.all.get_mut(&(client.peer, client.transport))?;
        connection.client = Some(client.clone());
        Some(connection.credential.clone())
    }

    /// Removes the connection of a client.
    pub fn disconnected(&self, client: &Client) {
        self.connections.lock().all.remove(&(client.peer, client.transport));
    }

    /// Connected clients whose credential is not valid according to `is_valid`.
    pub fn with_invalid_credential(&self, is_valid: impl Fn(&Credential) -> bool) -> Vec<Arc<Client>> {
        let connections = self.connections.lock();
        let invalid = connections.all.values().filter(|connection| !is_valid(&connection.credential));
        invalid.filter_map(|connection| connection.client.clone()).collect()
    }

    /// Earliest expiry of a token, in seconds since the Unix epoch; `None` without tokens.
    pub fn next_expiry_unix_s(&self) -> Option<u64> {
        let connections = self.connections.lock();
        let expiries = connections.all.values().filter_map(|connection| match connection.credential {
            Credential::Token { expires_unix_s } => Some(expires_unix_s),
            Credential::Password { .. } => None,
        });
        expiries.min()
    }

    /// Ends the current or next wait in [`changed`](Self::changed).
    pub fn check_again(&self) {
        self.changed.notify_one();
    }

    /// Waits until credentials have to be checked: a token was added, or [`check_again`](Self::check_again) was called.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
