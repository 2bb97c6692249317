//! Connections whose credential may end: a token that expires, or a user that is removed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use edgefaas_broker::{Client, Transport};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Key of a connection, unique at a time.
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

/// Connections with such a credential.
#[derive(Default)]
pub struct Sessions {
    connections: Mutex<Connections>,
    /// Notified after a token was added, or after a connect of a user that had been removed meanwhile.
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
    /// Time of acceptance; an entry that never gets a session is removed later.
    since_unix_s: u64,
}

/// An accepted connection without a session is removed after this time.
const LET_IN_S: u64 = 60;

impl Sessions {
    /// Adds an accepted client.
    pub fn let_in(&self, key: Key, credential: Credential, now_unix_s: u64) {
        let is_token = matches!(credential, Credential::Token { .. });
        let mut connections = self.connections.lock();
        if connections.swept_unix_s != now_unix_s {
            connections.swept_unix_s = now_unix_s;
            connections.all.retain(|_, connection| {
                connection.client.is_some() || now_unix_s.saturating_sub(connection.since_unix_s) < LET_IN_S
            });
        }
        connections.all.insert(key, Connection { credential, client: None, since_unix_s: now_unix_s });
        drop(connections);
        if is_token {
            self.look_again();
        }
    }

    /// Adds the client's session. Returns the credential it was accepted with.
    pub fn connected(&self, client: &Arc<Client>) -> Option<Credential> {
        let mut connections = self.connections.lock();
        let connection = connections.all.get_mut(&(client.peer, client.transport))?;
        connection.client = Some(client.clone());
        Some(connection.credential.clone())
    }

    /// Removes a connection.
    pub fn disconnected(&self, client: &Client) {
        self.connections.lock().all.remove(&(client.peer, client.transport));
    }

    /// Connected clients whose credential has ended.
    pub fn without(&self, is_good: impl Fn(&Credential) -> bool) -> Vec<Arc<Client>> {
        let connections = self.connections.lock();
        let bad = connections.all.values().filter(|connection| !is_good(&connection.credential));
        bad.filter_map(|connection| connection.client.clone()).collect()
    }

    /// Earliest expiry of a token.
    pub fn next_expiry_unix_s(&self) -> Option<u64> {
        let connections = self.connections.lock();
        let expiries = connections.all.values().filter_map(|connection| match connection.credential {
            Credential::Token { expires_unix_s } => Some(expires_unix_s),
            Credential::Password { .. } => None,
        });
        expiries.min()
    }

    /// Notifies the waiter in [`changed`](Self::changed).
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    /// Waits until a credential was added that may end earlier than all others.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
