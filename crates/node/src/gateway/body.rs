//! Reading the bodies of requests, with a bound on what all of them have in memory.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use edgefaas_platform::is_loopback;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::address_limits::network_of;

/// What one address may have of all: one in so many bytes. Those of this machine have no such bound: a proxy may stand
/// for many.
const ADDRESS_SHARE: usize = 2;
/// A body that has been on its way for so long goes when there is no room for another one.
const LONG: Duration = Duration::from_secs(5);
/// The longest time for a request's body to come in.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// What is read of a body that is not taken, and for how long: most clients look for an answer only when they have sent
/// all, and would find the connection gone.
const DRAIN_BYTES: usize = 1 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of bodies that are on their way in, over all connections. Whole ones count as events.
#[derive(Debug, Clone)]
pub struct BodyBudget(Arc<Mutex<OnTheirWay>>);

#[derive(Debug)]
struct OnTheirWay {
    /// See [`LONG`].
    long: Duration,
    max_bytes: usize,
    bytes: usize,
    last: u64,
    /// The oldest first.
    bodies: BTreeMap<u64, OnItsWay>,
    /// Bytes by address.
    by_address: HashMap<IpAddr, usize>,
}

#[derive(Debug)]
struct OnItsWay {
    since: Instant,
    bytes: usize,
    /// Where it comes from, as it counts there.
    address: Option<IpAddr>,
    gives_way: CancellationToken,
}

/// Why there is no body.
#[derive(Debug)]
pub enum BodyError {
    /// It is over the limit.
    TooLarge {
        /// Its size; at least, where its end was not awaited.
        actual_bytes: usize,
    },
    /// All bodies together are, or those of its address.
    NoMemory {
        /// What all may have together.
        max_bytes: usize,
    },
    /// Others needed its room when it had taken [`LONG`] already.
    GaveWay,
    /// It took longer than [`BODY_TIMEOUT`].
    TooSlow,
    /// The connection failed, or what came is no body.
    Broken(String),
}

impl BodyBudget {
    /// At most so many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self::with(max_bytes, LONG)
    }

    fn with(max_bytes: usize, long: Duration) -> Self {
        let all = OnTheirWay {
            long,
            max_bytes,
            bytes: 0,
            last: 0,
            bodies: BTreeMap::new(),
            by_address: HashMap::new(),
        };
        Self(Arc::new(Mutex::new(all)))
    }

    /// Reads a body of at most `limit_bytes` that `peer` sends. What is in memory of it is counted until it is whole.
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
            // Who asks first sends nothing when the answer is no.
            if !headers.contains_key(EXPECT) {
                drain(&mut body).await;
            }
            return Err(BodyError::TooLarge { actual_bytes });
        }
        if declared == Some(0) {
            return Ok(Bytes::new());
        }
        let mut taken = self.begin(peer);
        let gives_way = taken.gives_way.clone();
        let read = tokio::select! {
            read = collect(&mut body, &mut taken, limit_bytes) => read,
            () = gives_way.cancelled() => Err(BodyError::GaveWay),
            () = tokio::time::sleep(BODY_TIMEOUT) => Err(BodyError::TooSlow),
        };
        drop(taken);
        if matches!(read, Err(BodyError::TooLarge { .. } | BodyError::NoMemory { .. })) {
            drain(&mut body).await;
        }
        read
    }

    fn begin(&self, peer: IpAddr) -> Taken<'_> {
        let address = (!is_loopback(peer)).then(|| network_of(peer));
        let gives_way = CancellationToken::new();
        let mut all = self.0.lock();
        all.last += 1;
        let number = all.last;
        let body = OnItsWay { since: Instant::now(), bytes: 0, address, gives_way: gives_way.clone() };
        all.bodies.insert(number, body);
        Taken { all: &self.0, number, bytes: 0, gives_way }
    }
}

async fn collect(
    body: &mut Incoming,
    taken: &mut Taken<'_>,
    limit_bytes: usize,
) -> Result<Bytes, BodyError> {
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Broken(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        taken.add(data.len())?;
        if taken.bytes > limit_bytes {
            return Err(BodyError::TooLarge { actual_bytes: taken.bytes });
        }
        // Most bodies come in one piece, and need no copy.
        if taken.bytes == data.len() {
            first = data;
            continue;
        }
        rest.extend_from_slice(&std::mem::take(&mut first));
        rest.extend_from_slice(&data);
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

/// What one body has taken.
struct Taken<'a> {
    all: &'a Mutex<OnTheirWay>,
    number: u64,
    bytes: usize,
    gives_way: CancellationToken,
}

impl Taken<'_> {
    /// Takes more; where there is none left, from those that have been on their way for long.
    fn add(&mut self, bytes: usize) -> Result<(), BodyError> {
        self.bytes += bytes;
        let mut all = self.all.lock();
        let own = all.bodies.get_mut(&self.number).ok_or(BodyError::GaveWay)?;
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
            let long = all.long;
            let oldest = all.bodies.iter().find(|(number, body)| **number != self.number && body.bytes > 0);
            let oldest = oldest.filter(|(_, body)| body.since.elapsed() >= long).map(|(number, _)| *number);
            all.end(oldest.ok_or(BodyError::NoMemory { max_bytes })?);
        }
        Ok(())
    }
}

impl OnTheirWay {
    fn end(&mut self, number: u64) {
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
            body.gives_way.cancel();
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.all.lock().end(self.number);
    }
}

async fn drain(body: &mut Incoming) {
    let rest = Limited::new(body, DRAIN_BYTES);
    tokio::pin!(rest);
    let reading = async { while let Some(Ok(_)) = rest.frame().await {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "127.0.0.1";
    const MAX_BODY_BYTES: usize = 64 << 20;
    const ADDRESS_BYTES: usize = MAX_BODY_BYTES / ADDRESS_SHARE;

    fn begin<'a>(budget: &'a BodyBudget, from: &str) -> Taken<'a> {
        budget.begin(from.parse().unwrap())
    }

    #[test]
    fn those_that_take_long_give_way_and_others_do_not() {
        for (long, gives_way) in [(Duration::ZERO, true), (Duration::from_secs(3600), false)] {
            let budget = BodyBudget::with(MAX_BODY_BYTES, long);
            let mut bodies: Vec<_> = (0..2).map(|_| begin(&budget, HERE)).collect();
            bodies.iter_mut().for_each(|body| body.add(MAX_BODY_BYTES / 2).unwrap());
            let mut next = begin(&budget, HERE);
            let added = next.add(1);
            assert_eq!(added.is_ok(), gives_way);
            let gone = bodies.iter().map(|body| body.gives_way.is_cancelled());
            assert_eq!(gone.collect::<Vec<_>>(), [gives_way, false]);
            if gives_way {
                assert!(matches!(bodies[0].add(1), Err(BodyError::GaveWay)));
            }
            drop((bodies, next));
            let all = budget.0.lock();
            assert_eq!((all.bytes, all.bodies.len()), (0, 0));
        }
    }

    #[test]
    fn one_address_does_not_have_all_of_it() {
        let budget = BodyBudget::new(MAX_BODY_BYTES);
        let mut greedy = begin(&budget, "10.0.0.1");
        greedy.add(ADDRESS_BYTES).unwrap();
        assert!(matches!(begin(&budget, "10.0.0.1").add(1), Err(BodyError::NoMemory { .. })));
        begin(&budget, "10.0.0.2").add(ADDRESS_BYTES).unwrap();
        begin(&budget, HERE).add(MAX_BODY_BYTES - ADDRESS_BYTES).unwrap();
    }
}
