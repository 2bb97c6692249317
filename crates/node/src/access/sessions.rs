//! Which connections stand on a credential that may go: a token that expires, a user that is removed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use edgefaas_broker::{Client, Transport};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A connection: no two have the same at a time.
type Key = (SocketAddr, Transport);

/// Why a client was let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// It knew the password of this user.
    Password {
        /// The user.
        user: Arc<str>,
    },
    /// It had a token, good until then.
    Token {
        /// In seconds since the Unix epoch.
        expires_unix_s: u64,
    },
}

/// The connections with such a credential.
#[derive(Default)]
pub struct Sessions {
    connections: Mutex<Connections>,
    /// A token was added, or a user came in that had been removed meanwhile.
    changed: Notify,
}

#[derive(Default)]
struct Connections {
    all: HashMap<Key, Connection>,
    /// When those that never got further were forgotten last.
    swept_unix_s: u64,
}

struct Connection {
    credential: Credential,
    /// Not before its session is in place.
    client: Option<Arc<Client>>,
    /// When it was let in: one that never gets further is forgotten.
    since_unix_s: u64,
}

/// After that a connection which was let in and is not there has gone again.
const LET_IN_S: u64 = 60;

impl Sessions {
    /// A client was let in.
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

    /// Its session is in place. Says what it was let in for.
    pub fn connected(&self, client: &Arc<Client>) -> Option<Credential> {
        let mut connections = self.connections.lock();
        let connection = connections.all.get_mut(&(client.peer, client.transport))?;
        connection.client = Some(client.clone());
        Some(connection.credential.clone())
    }

    /// It is gone.
    pub fn disconnected(&self, client: &Client) {
        self.connections.lock().all.remove(&(client.peer, client.transport));
    }

    /// The connected clients whose credential is no longer good.
    pub fn without(&self, is_good: impl Fn(&Credential) -> bool) -> Vec<Arc<Client>> {
        let connections = self.connections.lock();
        let bad = connections.all.values().filter(|connection| !is_good(&connection.credential));
        bad.filter_map(|connection| connection.client.clone()).collect()
    }

    /// When the first token expires.
    pub fn next_expiry_unix_s(&self) -> Option<u64> {
        let connections = self.connections.lock();
        let expiries = connections.all.values().filter_map(|connection| match connection.credential {
            Credential::Token { expires_unix_s } => Some(expires_unix_s),
            Credential::Password { .. } => None,
        });
        expiries.min()
    }

    /// Has whoever waits for [`changed`](Self::changed) look.
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    /// Waits until somebody came in who may have to go earlier than all others.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
