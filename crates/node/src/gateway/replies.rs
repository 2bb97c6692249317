//! Replies in memory that wait for their clients: a bound over all connections, shares by address, eviction of the slowest.
//!
//! ```text
//! request --reserve (expected size)--> run --hold (real size)--> connection --> client
//!             |                                  |
//!             no room: 503, not run              room is made: the slowest connection is closed
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_functions::registry::{Expected, Probe, ReplySize, SMALL_REPLY_BYTES};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::outflow::Outflow;

/// The call that tells the size of a function's replies reserves no more than one in so many bytes.
const PROBE_SHARE: usize = 8;
/// What a connection has beside the reply while its client does not read: buffers of the system and of TLS.
const CONNECTION_BYTES: usize = UNSENT_BYTES as usize + (128 << 10);
/// What the system may hold of a connection that it has not sent yet.
pub const UNSENT_BYTES: u32 = 128 << 10;
/// A client is slow that takes less than this after it has let its reply wait for so long.
const SLOW_BYTES_PER_SECOND: u64 = 64 << 10;
const SLOW_AFTER: Duration = Duration::from_millis(250);
/// Who takes more than that may be closed after this time, if room is needed.
const LONG: Duration = Duration::from_secs(10);
/// The longest wait for room, and for others whose replies are unknown; for so many requests at once.
const WAITS: Waits = Waits { unknown: Duration::from_secs(1), all: Duration::from_secs(5) };
const MAX_WAITING: usize = 256;
/// How many of them one address may have, that is not this machine's.
const MAX_WAITING_OF_ONE: usize = MAX_WAITING / 4;
/// Time between two looks for a client that has become slow.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// There is no room for a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the replies that wait for their clients have {max_bytes} bytes together, those of one address half of them"
)]
pub struct NoRoom {
    /// The bound.
    pub max_bytes: usize,
}

/// What there is for replies that wait for their clients.
#[derive(Debug, Clone)]
pub struct ReplyBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max_bytes: usize,
    waits: Waits,
    replies: Mutex<Replies>,
    room: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Waits {
    unknown: Duration,
    all: Duration,
}

#[derive(Debug, Default)]
struct Replies {
    bytes: usize,
    last: u64,
    /// Who waits for room.
    waiting: Vec<Option<IpAddr>>,
    all: BTreeMap<u64, Counted>,
}

#[derive(Debug)]
struct Counted {
    bytes: usize,
    owner: Option<IpAddr>,
    outflow: Arc<Outflow>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The function runs.
    Reserved,
    /// The client takes it.
    Sent,
    /// Its connection is being closed.
    Evicted,
}

/// Room for the reply to one request.
#[derive(Debug)]
pub struct Reservation {
    budget: ReplyBudget,
    outflow: Arc<Outflow>,
    number: Option<u64>,
    _probe: Option<Probe>,
}

impl ReplyBudget {
    /// At most so many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Self::with(max_bytes, WAITS)
    }

    fn with(max_bytes: usize, waits: Waits) -> Self {
        Self(Arc::new(Shared { max_bytes, waits, replies: Mutex::default(), room: Notify::new() }))
    }

    /// Room for a reply of a function, before it runs.
    ///
    /// # Errors
    /// There is none now.
    pub fn reserve(
        &self,
        outflow: &Arc<Outflow>,
        size: &ReplySize,
        limit_bytes: usize,
    ) -> Result<Reservation, NoRoom> {
        match size.expected(limit_bytes) {
            Expected::Small => Ok(self.unreserved(outflow)),
            Expected::Bytes(bytes) => self.reserve_now(outflow, bytes),
            Expected::Unknown(bytes) => match size.probe() {
                None => Ok(self.unreserved(outflow)),
                probe => {
                    // Not all of it: several functions may be called for the first time, and not end.
                    let max_bytes = self.0.max_bytes / PROBE_SHARE;
                    let mut reservation = self.reserve_now(outflow, bytes.min(max_bytes))?;
                    reservation._probe = probe;
                    Ok(reservation)
                }
            },
        }
    }

    /// Room for a reply of about so many bytes.
    ///
    /// # Errors
    /// There is none now.
    pub fn reserve_now(&self, outflow: &Arc<Outflow>, bytes: usize) -> Result<Reservation, NoRoom> {
        let mut replies = self.0.replies.lock();
        let number = replies.add(outflow, self.counted(bytes), Stage::Reserved);
        let fits = replies.make_room(number, self.0.max_bytes) && replies.bytes <= self.0.max_bytes;
        if !fits {
            replies.remove(number);
            return Err(self.no_room());
        }
        Ok(Reservation {
            budget: self.clone(),
            outflow: outflow.clone(),
            number: Some(number),
            _probe: None,
        })
    }

    /// No room yet, for a reply whose size only comes to be known.
    pub fn unreserved(&self, outflow: &Arc<Outflow>) -> Reservation {
        Reservation { budget: self.clone(), outflow: outflow.clone(), number: None, _probe: None }
    }

    /// Room for a reply of a function, before it runs; waits for some seconds.
    ///
    /// # Errors
    /// There was none in time, or too many wait. The function is not to run.
    pub async fn reserve_soon(
        &self,
        outflow: &Arc<Outflow>,
        size: &ReplySize,
        limit_bytes: usize,
    ) -> Result<Reservation, NoRoom> {
        let _place = self.place(outflow.owner())?;
        let since = Instant::now();
        loop {
            let room = self.0.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if let Ok(reservation) = self.reserve(outflow, size, limit_bytes) {
                return Ok(reservation);
            }
            // What others of its kind might reply with is not to keep it for long: they may wait for something.
            if let Expected::Unknown(bytes) = size.expected(limit_bytes)
                && since.elapsed() >= self.0.waits.unknown
                && self.is_reserved_only(bytes)
            {
                return Ok(self.unreserved(outflow));
            }
            if since.elapsed() >= self.0.waits.all {
                return Err(self.no_room());
            }
            let _ = timeout(LOOK_AGAIN, room).await;
        }
    }

    fn place(&self, owner: Option<IpAddr>) -> Result<Waiting<'_>, NoRoom> {
        let mut replies = self.0.replies.lock();
        let waiting = &mut replies.waiting;
        let same = waiting.iter().filter(|other| **other == owner).count();
        if waiting.len() >= MAX_WAITING || owner.is_some() && same >= MAX_WAITING_OF_ONE {
            return Err(self.no_room());
        }
        waiting.push(owner);
        Ok(Waiting { shared: &self.0, owner })
    }

    /// There would be room for so many bytes if nothing ran.
    fn is_reserved_only(&self, bytes: usize) -> bool {
        let replies = self.0.replies.lock();
        let sent = replies.all.values().filter(|reply| reply.stage != Stage::Reserved);
        sent.map(|reply| reply.bytes).sum::<usize>() + self.counted(bytes) <= self.0.max_bytes
    }

    /// What a reply counts. The largest may be all there is.
    fn counted(&self, bytes: usize) -> usize {
        bytes.saturating_add(CONNECTION_BYTES).min(self.0.max_bytes)
    }

    fn no_room(&self) -> NoRoom {
        NoRoom { max_bytes: self.0.max_bytes }
    }
}

impl Replies {
    fn add(&mut self, outflow: &Arc<Outflow>, bytes: usize, stage: Stage) -> u64 {
        self.last += 1;
        self.bytes += bytes;
        let reply = Counted { bytes, owner: outflow.owner(), outflow: outflow.clone(), stage };
        self.all.insert(self.last, reply);
        self.last
    }

    fn remove(&mut self, number: u64) -> Option<Counted> {
        let reply = self.all.remove(&number)?;
        self.bytes -= reply.bytes;
        Some(reply)
    }

    /// Has connections closed until there is room for all replies but those of connections that are being closed; false if
    /// there is nobody left who may be closed.
    fn make_room(&mut self, number: u64, max_bytes: usize) -> bool {
        let Some(owner) = self.all.get(&number).map(|reply| reply.owner) else { return false };
        let stays = |reply: &&Counted| reply.stage != Stage::Evicted;
        loop {
            let total: usize = self.all.values().filter(stays).map(|reply| reply.bytes).sum();
            let of_owner = || self.all.values().filter(|reply| owner.is_some() && reply.owner == owner);
            // One may always have one.
            let is_over_share = of_owner().filter(stays).count() > 1
                && of_owner().filter(stays).map(|reply| reply.bytes).sum::<usize>() > max_bytes / 2;
            if total <= max_bytes && !is_over_share {
                return true;
            }
            let others = self.all.iter_mut().filter(|(other, reply)| {
                **other != number && reply.stage == Stage::Sent && (!is_over_share || reply.owner == owner)
            });
            let slow = others.filter_map(|(_, reply)| {
                let pace = reply.outflow.pace()?;
                let is_slow = pace.bytes_per_second < SLOW_BYTES_PER_SECOND && pace.waited >= SLOW_AFTER;
                (is_slow || pace.waited >= LONG).then_some((pace, reply))
            });
            let slowest =
                slow.min_by_key(|(pace, _)| (pace.bytes_per_second, std::cmp::Reverse(pace.waited)));
            let Some((_, reply)) = slowest else { return false };
            reply.stage = Stage::Evicted;
            reply.outflow.evict();
        }
    }
}

impl Reservation {
    /// The body of the reply, which is counted until its client has taken it.
    ///
    /// # Errors
    /// It is larger than expected, and there is no room.
    pub fn hold(mut self, body: Bytes) -> Result<Bytes, NoRoom> {
        if body.len() <= SMALL_REPLY_BYTES {
            return Ok(body);
        }
        let bytes = self.budget.counted(body.len());
        let shared = self.budget.0.clone();
        let mut replies = shared.replies.lock();
        let number = match self.number {
            Some(number) => {
                let reserved =
                    replies.all.get_mut(&number).map(|reply| std::mem::replace(&mut reply.bytes, bytes));
                replies.bytes = replies.bytes + bytes - reserved.unwrap_or(bytes);
                number
            }
            None => replies.add(&self.outflow, bytes, Stage::Reserved),
        };
        self.number = Some(number);
        if !replies.make_room(number, shared.max_bytes) {
            drop(replies);
            return Err(self.budget.no_room());
        }
        if let Some(reply) = replies.all.get_mut(&number) {
            reply.stage = Stage::Sent;
        }
        drop(replies);
        // What was reserved beyond it is free.
        shared.room.notify_waiters();
        self.outflow.begin_reply();
        Ok(Bytes::from_owner(Held { body, reservation: self }))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        self.budget.0.replies.lock().remove(number);
        self.budget.0.room.notify_waiters();
    }
}

/// A body that its client has not taken.
struct Held {
    body: Bytes,
    reservation: Reservation,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.reservation.outflow.end_reply();
    }
}

/// A place among those that wait for room.
struct Waiting<'a> {
    shared: &'a Shared,
    owner: Option<IpAddr>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut replies = self.shared.replies.lock();
        let waiting = &mut replies.waiting;
        if let Some(at) = waiting.iter().position(|owner| *owner == self.owner) {
            waiting.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MAX: usize = 64 << 20;
    const LARGE: usize = 8 << 20;

    fn connection(address: &str) -> Arc<Outflow> {
        Arc::new(Outflow::new(address.parse().unwrap()))
    }

    fn known(bytes: usize) -> ReplySize {
        let size = ReplySize::default();
        size.learn(bytes);
        size
    }

    fn hold(budget: &ReplyBudget, outflow: &Arc<Outflow>, bytes: usize) -> Result<Bytes, NoRoom> {
        budget.unreserved(outflow).hold(Bytes::from(vec![0; bytes]))
    }

    fn is_evicted(outflow: &Outflow) -> bool {
        outflow.evicted().now_or_never().is_some()
    }

    /// Replies that fill the budget, whose clients do not read.
    fn fill(budget: &ReplyBudget, address: &str) -> Vec<(Arc<Outflow>, Bytes)> {
        std::iter::from_fn(|| {
            let outflow = connection(address);
            let body = hold(budget, &outflow, LARGE).ok()?;
            outflow.waits();
            Some((outflow, body))
        })
        .collect()
    }

    #[tokio::test]
    async fn the_slowest_gives_way_and_who_reads_does_not() {
        let next = connection("127.0.0.1");
        // Nobody is slow yet, if this machine was not.
        let (budget, held) = std::iter::repeat_with(|| {
            let (budget, since) = (ReplyBudget::new(MAX), Instant::now());
            let held = fill(&budget, "127.0.0.1");
            let is_refused = hold(&budget, &next, LARGE).is_err();
            (since.elapsed() < SLOW_AFTER).then(|| {
                assert_eq!(held.len(), 7, "eight with what their connections take do not fit");
                assert!(is_refused);
                (budget, held)
            })
        })
        .flatten()
        .next()
        .unwrap();
        std::thread::sleep(SLOW_AFTER + Duration::from_millis(20));
        held[1..].iter().for_each(|(outflow, _)| outflow.wrote(LARGE));
        // The next function is not to run before the memory is free.
        let size = known(LARGE);
        let mut reserved = Box::pin(budget.reserve_soon(&next, &size, LARGE));
        assert!((&mut reserved).now_or_never().is_none());
        let gone: Vec<_> = held.iter().map(|(outflow, _)| is_evicted(outflow)).collect();
        assert_eq!(gone, [true, false, false, false, false, false, false]);
        drop(held.into_iter().next());
        let reservation = reserved.await.unwrap();
        reservation.hold(Bytes::from(vec![0; LARGE])).unwrap();
        let replies = budget.0.replies.lock();
        assert_eq!((replies.bytes, replies.all.len(), replies.waiting.len()), (0, 0, 0));
    }

    #[test]
    fn one_address_has_half_and_those_of_others_are_not_closed_for_it() {
        let budget = ReplyBudget::new(MAX);
        let held = fill(&budget, "10.0.0.1");
        assert_eq!(held.len(), 3);
        let others = fill(&budget, "10.0.0.2");
        assert_eq!(others.len(), 3);
        std::thread::sleep(SLOW_AFTER + Duration::from_millis(20));
        let next = connection("10.0.0.1");
        hold(&budget, &next, LARGE).unwrap();
        assert_eq!(held.iter().filter(|(outflow, _)| is_evicted(outflow)).count(), 1);
        assert_eq!(others.iter().filter(|(outflow, _)| is_evicted(outflow)).count(), 0);
    }

    #[test]
    fn what_is_small_is_not_counted_and_the_largest_goes_alone() {
        let budget = ReplyBudget::new(1 << 20);
        let outflow = connection("10.0.0.1");
        let largest = hold(&budget, &outflow, 2 << 20).unwrap();
        assert!(hold(&budget, &connection("10.0.0.2"), SMALL_REPLY_BYTES + 1).is_err());
        hold(&budget, &connection("10.0.0.2"), SMALL_REPLY_BYTES).unwrap();
        drop(largest);
        hold(&budget, &connection("10.0.0.2"), 2 << 20).unwrap();
    }

    #[tokio::test]
    async fn what_others_may_reply_holds_nobody_back_for_long_and_what_they_do_reply_does() {
        let waits = Waits { unknown: Duration::from_millis(20), all: Duration::from_millis(200) };
        let budget = ReplyBudget::with(MAX, waits);
        let (unknown, outflow) = (ReplySize::default(), connection("127.0.0.1"));
        let first = budget.reserve(&outflow, &unknown, LARGE).unwrap();
        assert!(first.number.is_some());
        assert!(budget.reserve(&outflow, &unknown, LARGE).unwrap().number.is_none());
        drop(first);
        let mut running = Vec::new();
        while let Ok(reservation) = budget.reserve(&outflow, &known(LARGE), LARGE) {
            running.push(reservation);
        }
        assert_eq!(running.len(), 7);
        // They wait for something, perhaps.
        let since = Instant::now();
        let next = budget.reserve_soon(&outflow, &unknown, LARGE).await.unwrap();
        assert!(next.number.is_none() && since.elapsed() >= waits.unknown);
        // Once one of them has replied it is known what is to come.
        unknown.learn(LARGE);
        assert_eq!(budget.reserve_soon(&outflow, &unknown, LARGE).await.unwrap_err().max_bytes, MAX);
        assert!(since.elapsed() >= waits.all);
        // Small ones need no room.
        assert!(budget.reserve(&outflow, &known(100), LARGE).is_ok());
    }

    #[test]
    fn a_large_reply_is_expected_for_some_time() {
        let size = known(LARGE);
        assert_eq!(size.expected(LARGE), Expected::Bytes(LARGE));
        let small = std::iter::repeat_with(|| size.learn(100));
        let replies = small.take_while(|()| size.expected(LARGE) != Expected::Small).count();
        assert!((10..40).contains(&replies), "{replies}");
        assert_eq!(known(0).expected(LARGE), Expected::Small);
    }
}
