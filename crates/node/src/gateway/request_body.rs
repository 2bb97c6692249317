//! Receives request bodies, with a memory limit over all connections.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use edgefaas_platform::is_loopback;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::address_limits::network_of;

/// One address may use 1/`ADDRESS_SHARE` of the limit. Loopback addresses have no such limit: a proxy on this machine may
/// forward the requests of many clients.
const ADDRESS_SHARE: usize = 2;
/// A body that has been in flight for at least this time may be evicted if another body needs memory.
const EVICTABLE_AFTER: Duration = Duration::from_secs(5);
/// Maximum time for receiving a request body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size and time for reading the rest of a refused body. Most clients read the reply only after they have sent the
/// whole body; without this they would see a closed connection instead.
const DRAIN_BYTES: usize = 1 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Memory limit of in-flight request bodies over all connections. A complete body counts as an event instead.
#[derive(Debug, Clone)]
pub struct BodyBudget(Arc<Mutex<InFlightBodies>>);

#[derive(Debug)]
struct InFlightBodies {
    /// See [`EVICTABLE_AFTER`].
    evictable_after: Duration,
    max_bytes: usize,
    bytes: usize,
    last_number: u64,
    /// By number, so the oldest is first.
    bodies: BTreeMap<u64, InFlightBody>,
    /// Bytes by address.
    by_address: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct InFlightBody {
    since: Instant,
    bytes: usize,
    /// Network of the sender; `None` for a loopback address.
    address: Option<IpAddr>,
    evicted: CancellationToken,
}

/// Failure to receive a body.
#[derive(Debug)]
pub enum BodyError {
    /// It exceeds the limit of the function or workflow.
    TooLarge {
        /// Its declared size, or the number of bytes received so far.
        actual_bytes: usize,
    },
    /// All bodies together, or those of one address, exceed the memory limit.
    NoMemory {
        /// Limit of all bodies together.
        max_bytes: usize,
    },
    /// Another body needed the memory, and this one had been in flight for [`EVICTABLE_AFTER`].
    Evicted,
    /// It took longer than [`BODY_TIMEOUT`].
    TooSlow,
    /// The connection failed, or the body is invalid.
    Broken(String),
}

impl BodyBudget {
    /// A limit of `max_bytes` for all bodies together.
    pub fn new(max_bytes: usize) -> Self {
        Self::with(max_bytes, EVICTABLE_AFTER)
    }

    fn with(max_bytes: usize, evictable_after: Duration) -> Self {
        let all = InFlightBodies {
            evictable_after,
            max_bytes,
            bytes: 0,
            last_number: 0,
            bodies: BTreeMap::new(),
            by_address: HashMap::new(),
        };
        Self(Arc::new(Mutex::new(all)))
    }

    /// Receives a body of at most `limit_bytes` from `peer`. Its bytes count against the limit until it is complete.
    ///
    /// # Errors
    /// See [`BodyError`].
    pub async fn read(
        &self,
        headers: &HeaderMap,
        mut body: Incoming,
        peer: IpAddr,
        limit_bytes: usize,
    ) -> Result<Bytes, BodyError> {
        let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if let Some(actual_bytes) = declared.filter(|length| *length > limit_bytes) {
            // A client that sent `Expect: 100-continue` waits for permission and sends no body after a refusal.
            if !headers.contains_key(EXPECT) {
                drain(&mut body).await;
            }
            return Err(BodyError::TooLarge { actual_bytes });
        }
        // Most requests have no body, and need neither a place in the limit nor a timer.
        if declared == Some(0) || body.is_end_stream() {
            return Ok(Bytes::new());
        }
        let mut receiving = self.register(peer);
        let evicted = receiving.evicted.clone();
        let read = tokio::select! {
            read = collect(&mut body, &mut receiving, limit_bytes) => read,
            () = evicted.cancelled() => Err(BodyError::Evicted),
            () = tokio::time::sleep(BODY_TIMEOUT) => Err(BodyError::TooSlow),
        };
        drop(receiving);
        if matches!(read, Err(BodyError::TooLarge { .. } | BodyError::NoMemory { .. })) {
            drain(&mut body).await;
        }
        read
    }

    fn register(&self, peer: IpAddr) -> ReceivingBody<'_> {
        let address = (!is_loopback(peer)).then(|| network_of(peer));
        let evicted = CancellationToken::new();
        let mut all = self.0.lock();
        all.last_number += 1;
        let number = all.last_number;
        let body = InFlightBody { since: Instant::now(), bytes: 0, address, evicted: evicted.clone() };
        all.bodies.insert(number, body);
        ReceivingBody { all: &self.0, number, bytes: 0, evicted }
    }
}

async fn collect(
    body: &mut Incoming,
    receiving: &mut ReceivingBody<'_>,
    limit_bytes: usize,
) -> Result<Bytes, BodyError> {
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Broken(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        receiving.add(data.len())?;
        if receiving.bytes > limit_bytes {
            return Err(BodyError::TooLarge { actual_bytes: receiving.bytes });
        }
        // Most bodies arrive in one piece and need no copy.
        if receiving.bytes == data.len() {
            first = data;
            continue;
        }
        rest.extend_from_slice(&std::mem::take(&mut first));
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// Registration of one body in the limit, until it is dropped.
struct ReceivingBody<'a> {
    all: &'a Mutex<InFlightBodies>,
    number: u64,
    bytes: usize,
    evicted: CancellationToken,
}

impl ReceivingBody<'_> {
    /// Counts more bytes. If the limit is exceeded, evicts the oldest bodies that may be evicted.
    ///
    /// # Errors
    /// [`BodyError::NoMemory`], or [`BodyError::Evicted`] if this body was evicted.
    fn add(&mut self, bytes: usize) -> Result<(), BodyError> {
        self.bytes += bytes;
        let mut all = self.all.lock();
        let own = all.bodies.get_mut(&self.number).ok_or(BodyError::Evicted)?;
        own.bytes += bytes;
        let address = own.address;
        all.bytes += bytes;
        let max_bytes = all.max_bytes;
        if let Some(address) = address {
            let same = all.by_address.entry(address).or_default();
            *same += bytes;
            if *same > max_bytes / ADDRESS_SHARE {
                return Err(BodyError::NoMemory { max_bytes });
            }
        }
        while all.bytes > max_bytes {
            let evictable_after = all.evictable_after;
            let oldest = all.bodies.iter().find(|(number, body)| **number != self.number && body.bytes > 0);
            let oldest = oldest
                .filter(|(_, body)| body.since.elapsed() >= evictable_after)
                .map(|(number, _)| *number);
            all.remove(oldest.ok_or(BodyError::NoMemory { max_bytes })?);
        }
        Ok(())
    }
}

impl InFlightBodies {
    fn remove(&mut self, number: u64) {
        if let Some(body) = self.bodies.remove(&number) {
            self.bytes -= body.bytes;
            if let Some(address) = body.address
                && let Some(same) = self.by_address.get_mut(&address)
            {
                *same -= body.bytes;
                if *same == 0 {
                    self.by_address.remove(&address);
                }
            }
            body.evicted.cancel();
        }
    }
}

impl Drop for ReceivingBody<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(self.number);
    }
}

/// Reads and discards the rest of a refused body.
async fn drain(body: &mut Incoming) {
    let rest = Limited::new(body, DRAIN_BYTES);
    tokio::pin!(rest);
    let reading = async { while let Some(Ok(_)) = rest.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1";
    const MAX_BODY_BYTES: usize = 64 << 20;
    const ADDRESS_BYTES: usize = MAX_BODY_BYTES / ADDRESS_SHARE;

    fn register<'a>(budget: &'a BodyBudget, from: &str) -> ReceivingBody<'a> {
        budget.register(from.parse().unwrap())
    }

    #[test]
    fn only_bodies_in_flight_for_long_are_evicted() {
        for (evictable_after, evicted) in [(Duration::ZERO, true), (Duration::from_secs(3600), false)] {
            let budget = BodyBudget::with(MAX_BODY_BYTES, evictable_after);
            let mut bodies: Vec<_> = (0..2).map(|_| register(&budget, LOOPBACK)).collect();
            bodies.iter_mut().for_each(|body| body.add(MAX_BODY_BYTES / 2).unwrap());
            let mut next = register(&budget, LOOPBACK);
            let added = next.add(1);
            assert_eq!(added.is_ok(), evicted);
            let gone = bodies.iter().map(|body| body.evicted.is_cancelled());
            assert_eq!(gone.collect::<Vec<_>>(), [evicted, false]);
            if evicted {
                assert!(matches!(bodies[0].add(1), Err(BodyError::Evicted)));
            }
            drop((bodies, next));
            let all = budget.0.lock();
            assert_eq!((all.bytes, all.bodies.len()), (0, 0));
        }
    }

    #[test]
    fn one_address_cannot_use_the_whole_limit() {
        let budget = BodyBudget::new(MAX_BODY_BYTES);
        let mut greedy = register(&budget, "10.0.0.1");
        greedy.add(ADDRESS_BYTES).unwrap();
        assert!(matches!(register(&budget, "10.0.0.1").add(1), Err(BodyError::NoMemory { .. })));
        register(&budget, "10.0.0.2").add(ADDRESS_BYTES).unwrap();
        register(&budget, LOOPBACK).add(MAX_BODY_BYTES - ADDRESS_BYTES).unwrap();
    }
}
