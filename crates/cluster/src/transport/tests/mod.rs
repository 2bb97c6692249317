//! Nodes in one process, over real sockets of 127.0.0.1. Nothing here sleeps to wait: tests wait for events,
//! within a limit that only a failure reaches.

use std::sync::Arc;
use std::time::Duration;

use std::time::Instant;

use bytes::Bytes;
use libp2p::PeerId;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::network::{address, behaviour, frame, swarm::swarm};
use crate::{ClusterKey, Identity, Membership, NewCertificate, Refusal, TransportKind};

mod copies;
mod endurance;
mod hostile;
mod joins;
mod mesh;
mod refusals;
mod status;
mod streams;

/// Time limit of a wait; only a failing test reaches it.
const LIMIT: Duration = Duration::from_secs(30);

pub(super) struct Node {
    pub(super) id: u64,
    pub(super) handle: Handle,
    pub(super) events: EventReceiver,
    pub(super) streams: IncomingStreams,
    pub(super) membership: Arc<Mutex<Membership>>,
    pub(super) identity: Identity,
    pub(super) cancel: CancellationToken,
}

/// The membership of a node of its own.
pub(super) fn membership(key: &ClusterKey, identity: &Identity, id: u64) -> Membership {
    let new = NewCertificate {
        peer_id: identity.peer_id(),
        node_id: id,
        name: format!("node-{id}"),
        serial: id,
        issued_unix_ms: 1,
    };
    Membership::found(key, new).unwrap()
}

pub(super) fn options(key: &ClusterKey, id: u64) -> Options {
    let identity = Identity::generate();
    let membership = Arc::new(Mutex::new(membership(key, &identity, id)));
    Options::new(identity, membership, "127.0.0.1:0".parse().unwrap())
}

pub(super) async fn start(options: Options) -> Node {
    let cancel = CancellationToken::new();
    let (membership, identity) = (options.membership.clone(), options.identity.clone());
    let id = membership.lock().own().node_id();
    let (handle, events, streams) = Transport::start(options, cancel.clone()).await.unwrap();
    Node { id, handle, events, streams, membership, identity, cancel }
}

impl Node {
    /// The result for the next event that `wanted` accepts; other events are skipped.
    pub(super) async fn wait<T>(&mut self, mut wanted: impl FnMut(Event) -> Option<T>) -> T {
        let found = async {
            loop {
                let event = self.events.recv().await.expect("the transport has ended");
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
        };
        tokio::time::timeout(LIMIT, found).await.expect("waited too long for an event")
    }

    pub(super) async fn wait_up(&mut self, id: u64) {
        self.wait(|event| matches!(event, Event::PeerUp { node_id, .. } if node_id == id).then_some(()))
            .await;
    }

    pub(super) async fn wait_down(&mut self, id: u64) -> DownReason {
        self.wait(|event| match event {
            Event::PeerDown { node_id, reason } if node_id == id => Some(reason),
            _ => None,
        })
        .await
    }

    /// Stops the node, and waits until it has stopped.
    pub(super) async fn stop(mut self) {
        self.cancel.cancel();
        let ended = async { while self.events.recv().await.is_some() {} };
        tokio::time::timeout(LIMIT, ended).await.expect("the events do not end");
    }

    pub(super) async fn wait_frame(&mut self, id: u64) -> Bytes {
        self.wait(|event| match event {
            Event::Frame { node_id, bytes } if node_id == id => Some(bytes),
            _ => None,
        })
        .await
    }

    /// Waits for what no event tells; events are passed over meanwhile.
    pub(super) async fn until(&mut self, done: impl Fn(&Self) -> bool) {
        let mut look = tokio::time::interval(Duration::from_millis(10));
        let waiting = async {
            while !done(self) {
                tokio::select! {
                    _ = look.tick() => {}
                    Some(_) = self.events.recv() => {}
                }
            }
        };
        tokio::time::timeout(LIMIT, waiting).await.expect("waited too long");
    }

    pub(super) fn address(&self, kind: TransportKind) -> String {
        let addresses = self.handle.listen_addresses();
        addresses.iter().find(|known| address::kind(known) == Some(kind)).unwrap().to_string()
    }
}

/// A free port that the system assigns only to a process that requests it by number.
pub(super) fn free_port() -> u16 {
    loop {
        let port = rand::random_range(20_000..30_000);
        let udp = std::net::UdpSocket::bind(("127.0.0.1", port));
        if udp.is_ok() && std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
