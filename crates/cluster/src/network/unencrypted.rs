//! Incoming connections until they are encrypted: each has a place of its address's share, and 2 s.
//!
//! libp2p counts these connections of all addresses and both transports together, and cannot close one of them
//! for another. So the shares are kept below it, around its transports.

use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{AbortHandle, AbortRegistration, Abortable};
use libp2p::Multiaddr;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, Transport, TransportError, TransportEvent};
use parking_lot::Mutex;

use super::address::{self, TransportKind};
use super::crowd::{Crowd, CrowdLimits, Entry, Origin};

/// Limit of the handshake of an incoming connection, until it is encrypted.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// A handshake needs some 20 kB by TCP, and 60 kB by QUIC.
const LIMITS: CrowdLimits = CrowdLimits { strangers: 64, members: 64, per_origin: 16 };

/// Connections in the handshake, TCP and QUIC apart: packets of UDP come from any address that a sender likes.
#[derive(Debug)]
pub(crate) struct Entrance {
    tcp: Mutex<Waiting>,
    quic: Mutex<Waiting>,
    next_id: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    crowd: Crowd<u64>,
    handles: HashMap<u64, AbortHandle>,
}

impl Default for Entrance {
    fn default() -> Self {
        let waiting = || Mutex::new(Waiting { crowd: Crowd::new(LIMITS), handles: HashMap::new() });
        Self { tcp: waiting(), quic: waiting(), next_id: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }
}

impl Entrance {
    /// Replaces the addresses of known members.
    pub(crate) fn set_members(&self, members: &HashSet<Origin>) {
        for waiting in [&self.tcp, &self.quic] {
            waiting.lock().crowd.set_members(members.clone());
        }
    }

    /// Connections that got no place, or lost it to another.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn of(&self, kind: TransportKind) -> &Mutex<Waiting> {
        match kind {
            TransportKind::Tcp => &self.tcp,
            TransportKind::Quic => &self.quic,
        }
    }

    fn enter(self: &Arc<Self>, remote: &Multiaddr) -> Option<(Ticket, AbortRegistration)> {
        let kind = address::kind(remote)?;
        let origin = Origin::from(address::socket(remote)?.ip());
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.of(kind).lock();
        match waiting.crowd.enter(id, origin) {
            Entry::Free => {}
            Entry::Instead(other) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                if let Some(handle) = waiting.handles.remove(&other) {
                    handle.abort();
                }
            }
            Entry::Full => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        let (handle, registration) = AbortHandle::new_pair();
        waiting.handles.insert(id, handle);
        Some((Ticket { entrance: self.clone(), kind, id }, registration))
    }
}

/// A place; dropping it frees the place.
struct Ticket {
    entrance: Arc<Entrance>,
    kind: TransportKind,
    id: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut waiting = self.entrance.of(self.kind).lock();
        waiting.crowd.leave(self.id);
        waiting.handles.remove(&self.id);
    }
}

type Upgrade<O> = Pin<Box<dyn Future<Output = io::Result<O>> + Send>>;

/// A transport whose incoming connections need a place in an [`Entrance`].
pub(crate) struct Guarded<O> {
    inner: Boxed<O>,
    entrance: Arc<Entrance>,
}

impl<O> Guarded<O> {
    pub(crate) fn new(inner: Boxed<O>, entrance: Arc<Entrance>) -> Self {
        Self { inner, entrance }
    }
}

impl<O: 'static> Transport for Guarded<O> {
    type Output = O;
    type Error = io::Error;
    type ListenerUpgrade = Upgrade<O>;
    type Dial = <Boxed<O> as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        self.inner.dial(address, options)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.inner).poll(context).map(|event| {
            let place = match &event {
                TransportEvent::Incoming { send_back_addr, .. } => self.entrance.enter(send_back_addr),
                _ => None,
            };
            event.map_upgrade(move |upgrade| guard(upgrade, place))
        })
    }
}

/// The handshake of one connection, if it has a place, as long as it keeps it.
fn guard<O: 'static>(upgrade: Upgrade<O>, place: Option<(Ticket, AbortRegistration)>) -> Upgrade<O> {
    let Some((ticket, registration)) = place else {
        return Box::pin(async { Err(io::Error::other("too many connections")) });
    };
    Box::pin(async move {
        let _ticket = ticket;
        match tokio::time::timeout(HANDSHAKE, Abortable::new(upgrade, registration)).await {
            Ok(Ok(upgraded)) => upgraded,
            Ok(Err(_)) => Err(io::Error::other("too many connections from this address")),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    })
}
