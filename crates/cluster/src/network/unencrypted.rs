//! Limits of incoming connections until they are encrypted: each needs a slot of its address, and has 2 s.
//!
//! libp2p counts these connections over all addresses and both transports, and cannot close one of them for another. So
//! [`LimitedTransport`] wraps its transports.

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
use super::address_slots::{AddressSlots, Origin, SlotGrant, SlotLimits};

/// Time limit of the encryption handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// A handshake takes about 20 kB with TCP, and 60 kB with QUIC.
const LIMITS: SlotLimits = SlotLimits { others: 64, members: 64, per_origin: 16 };

/// Connections that are not encrypted yet. TCP and QUIC have separate slots, since the sender address of UDP packets can
/// be forged.
#[derive(Debug)]
pub(crate) struct UnencryptedConnections {
    tcp: Mutex<Waiting>,
    quic: Mutex<Waiting>,
    next_id: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug)]
struct Waiting {
    slots: AddressSlots<u64>,
    handles: HashMap<u64, AbortHandle>,
}

impl Default for UnencryptedConnections {
    fn default() -> Self {
        let waiting = || Mutex::new(Waiting { slots: AddressSlots::new(LIMITS), handles: HashMap::new() });
        Self { tcp: waiting(), quic: waiting(), next_id: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }
}

impl UnencryptedConnections {
    /// Replaces the addresses of known members.
    pub(crate) fn set_members(&self, members: &HashSet<Origin>) {
        for waiting in [&self.tcp, &self.quic] {
            waiting.lock().slots.set_members(members.clone());
        }
    }

    /// Number of connections that got no slot, or lost their slot to another.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn of(&self, kind: TransportKind) -> &Mutex<Waiting> {
        match kind {
            TransportKind::Tcp => &self.tcp,
            TransportKind::Quic => &self.quic,
        }
    }

    fn acquire(self: &Arc<Self>, remote: &Multiaddr) -> Option<(Slot, AbortRegistration)> {
        let kind = address::kind(remote)?;
        let origin = Origin::from(address::socket(remote)?.ip());
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.of(kind).lock();
        match waiting.slots.acquire(id, origin) {
            SlotGrant::Free => {}
            SlotGrant::Replaces(other) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                if let Some(handle) = waiting.handles.remove(&other) {
                    handle.abort();
                }
            }
            SlotGrant::Full => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        }
        let (handle, registration) = AbortHandle::new_pair();
        waiting.handles.insert(id, handle);
        Some((Slot { unencrypted: self.clone(), kind, id }, registration))
    }
}

/// A slot; freed when it is dropped.
struct Slot {
    unencrypted: Arc<UnencryptedConnections>,
    kind: TransportKind,
    id: u64,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut waiting = self.unencrypted.of(self.kind).lock();
        waiting.slots.release(self.id);
        waiting.handles.remove(&self.id);
    }
}

type Upgrade<O> = Pin<Box<dyn Future<Output = io::Result<O>> + Send>>;

/// A transport whose incoming connections need a slot of [`UnencryptedConnections`].
pub(crate) struct LimitedTransport<O> {
    inner: Boxed<O>,
    unencrypted: Arc<UnencryptedConnections>,
}

impl<O> LimitedTransport<O> {
    pub(crate) fn new(inner: Boxed<O>, unencrypted: Arc<UnencryptedConnections>) -> Self {
        Self { inner, unencrypted }
    }
}

impl<O: 'static> Transport for LimitedTransport<O> {
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
            let slot = match &event {
                TransportEvent::Incoming { send_back_addr, .. } => self.unencrypted.acquire(send_back_addr),
                _ => None,
            };
            event.map_upgrade(move |upgrade| with_slot(upgrade, slot))
        })
    }
}

/// The handshake of one connection. It fails without a slot, or when the slot is lost.
fn with_slot<O: 'static>(upgrade: Upgrade<O>, slot: Option<(Slot, AbortRegistration)>) -> Upgrade<O> {
    let Some((slot, registration)) = slot else {
        return Box::pin(async { Err(io::Error::other("too many connections")) });
    };
    Box::pin(async move {
        let _slot = slot;
        match tokio::time::timeout(HANDSHAKE, Abortable::new(upgrade, registration)).await {
            Ok(Ok(upgraded)) => upgraded,
            Ok(Err(_)) => Err(io::Error::other("too many connections from this address")),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    })
}
