//! Memory limit of the replies that are in flight to their clients: over all connections and by address. If the limit is
//! exceeded, the connection whose client reads most slowly is closed.
//!
//! ```text
//! request --reserve (expected size)--> function --hold (real size)--> connection --> client
//!             |                                     |
//!             not enough memory: 503,               not enough memory: 503
//!             the function does not run             instead of the reply
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

use super::write_progress::WriteProgress;

/// The first call of a function, whose reply size is unknown, reserves at most 1/`PROBE_SHARE` of the limit.
const PROBE_SHARE: usize = 8;
/// Memory of a connection in addition to its reply while the client does not read: buffers of the operating system and TLS.
const CONNECTION_BYTES: usize = UNSENT_BYTES as usize + (128 << 10);
/// Limit of the unsent bytes in the operating system's buffer of a connection.
pub const UNSENT_BYTES: u32 = 128 << 10;
/// A client is slow if it reads at less than this rate, measured at least `SLOW_AFTER` after the first blocked write.
const SLOW_BYTES_PER_SECOND: u64 = 64 << 10;
const SLOW_AFTER: Duration = Duration::from_millis(250);
/// Connections of faster clients may be closed this time after the first blocked write, if memory is needed.
const EVICTABLE_AFTER: Duration = Duration::from_secs(10);
/// Limits of the wait for memory.
const WAIT_LIMITS: WaitLimits =
    WaitLimits { unknown_size: Duration::from_secs(1), any_size: Duration::from_secs(5) };
/// Maximum number of requests that wait for memory.
const MAX_WAITERS: usize = 256;
/// Maximum number of requests of one address that wait for memory; loopback addresses have no such limit.
const MAX_WAITERS_PER_ADDRESS: usize = MAX_WAITERS / 4;
/// Interval of the search for slow clients during a wait.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The memory limit leaves no room for a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit for the memory of all replies in flight is {max_bytes} bytes, that for one address half of it"
)]
pub struct ReplyBudgetFull {
    /// Limit of all replies together.
    pub max_bytes: usize,
}

/// Memory limit of the replies that are in flight to their clients.
#[derive(Debug, Clone)]
pub struct ReplyBudget(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max_bytes: usize,
    wait_limits: WaitLimits,
    state: Mutex<State>,
    /// Notified when memory is released.
    released: Notify,
}

#[derive(Debug, Clone, Copy)]
struct WaitLimits {
    /// For a function whose reply size is unknown, if only reservations of other calls use the memory.
    unknown_size: Duration,
    /// For all functions.
    any_size: Duration,
}

#[derive(Debug, Default)]
struct State {
    bytes: usize,
    last_number: u64,
    /// Owners of the requests that wait for memory.
    waiters: Vec<Option<IpAddr>>,
    replies: BTreeMap<u64, AccountedReply>,
}

#[derive(Debug)]
struct AccountedReply {
    bytes: usize,
    /// See [`WriteProgress::owner`].
    owner: Option<IpAddr>,
    progress: Arc<WriteProgress>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The function runs.
    Reserved,
    /// The reply is being sent.
    Sending,
    /// The connection is being closed.
    Evicted,
}

/// Memory of the reply to one request, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: ReplyBudget,
    progress: Arc<WriteProgress>,
    /// Key in [`State::replies`]; `None` if nothing is reserved.
    number: Option<u64>,
    _probe: Option<Probe>,
}

impl ReplyBudget {
    /// A limit of `max_bytes` for all replies together.
    pub fn new(max_bytes: usize) -> Self {
        Self::with(max_bytes, WAIT_LIMITS)
    }

    fn with(max_bytes: usize, wait_limits: WaitLimits) -> Self {
        Self(Arc::new(Shared { max_bytes, wait_limits, state: Mutex::default(), released: Notify::new() }))
    }

    /// Reserves memory for the reply of a function, before it runs. Reserves nothing for a function with small replies. While the
    /// size of its replies is unknown, only one call of a function reserves memory at a time.
    ///
    /// # Errors
    /// [`ReplyBudgetFull`] if not enough memory is free now.
    pub fn reserve(
        &self,
        progress: &Arc<WriteProgress>,
        size: &ReplySize,
        limit_bytes: usize,
    ) -> Result<Reservation, ReplyBudgetFull> {
        match size.expected(limit_bytes) {
            Expected::Small => Ok(self.unreserved(progress)),
            Expected::Bytes(bytes) => self.reserve_bytes(progress, bytes),
            Expected::Unknown(bytes) => match size.probe() {
                None => Ok(self.unreserved(progress)),
                probe => {
                    // A part of the limit only: first calls of several functions may run at the same time, and never end.
                    let max_bytes = self.0.max_bytes / PROBE_SHARE;
                    let mut reservation = self.reserve_bytes(progress, bytes.min(max_bytes))?;
                    reservation._probe = probe;
                    Ok(reservation)
                }
            },
        }
    }

    /// Reserves memory for a reply of about `bytes` bytes.
    ///
    /// # Errors
    /// [`ReplyBudgetFull`] if not enough memory is free now.
    pub fn reserve_bytes(
        &self,
        progress: &Arc<WriteProgress>,
        bytes: usize,
    ) -> Result<Reservation, ReplyBudgetFull> {
        let mut state = self.0.state.lock();
        let number = state.add(progress, self.accounted_bytes(bytes), Stage::Reserved);
        // The memory of evicted connections is free only once they are closed.
        let fits = state.evict_slow(number, self.0.max_bytes) && state.bytes <= self.0.max_bytes;
        if !fits {
            state.remove(number);
            return Err(self.budget_full());
        }
        Ok(Reservation {
            budget: self.clone(),
            progress: progress.clone(),
            number: Some(number),
            _probe: None,
        })
    }

    /// An empty reservation, for a reply whose size is known only later.
    pub fn unreserved(&self, progress: &Arc<WriteProgress>) -> Reservation {
        Reservation { budget: self.clone(), progress: progress.clone(), number: None, _probe: None }
    }

    /// Like [`reserve`](Self::reserve), but waits up to 5 s for memory.
    ///
    /// # Errors
    /// [`ReplyBudgetFull`] after the timeout, or if too many requests wait. The caller must not run the function.
    ///
    /// # Cancellation
    /// A dropped future reserves nothing.
    pub async fn reserve_or_wait(
        &self,
        progress: &Arc<WriteProgress>,
        size: &ReplySize,
        limit_bytes: usize,
    ) -> Result<Reservation, ReplyBudgetFull> {
        let _waiter = self.add_waiter(progress.owner())?;
        let since = Instant::now();
        loop {
            let released = self.0.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if let Ok(reservation) = self.reserve(progress, size, limit_bytes) {
                return Ok(reservation);
            }
            // Reservations of running functions delay a call of unknown reply size only briefly: these functions may run long.
            if let Expected::Unknown(bytes) = size.expected(limit_bytes)
                && since.elapsed() >= self.0.wait_limits.unknown_size
                && self.fits_without_reservations(bytes)
            {
                return Ok(self.unreserved(progress));
            }
            if since.elapsed() >= self.0.wait_limits.any_size {
                return Err(self.budget_full());
            }
            let _ = timeout(RECHECK_INTERVAL, released).await;
        }
    }

    fn add_waiter(&self, owner: Option<IpAddr>) -> Result<Waiter<'_>, ReplyBudgetFull> {
        let mut state = self.0.state.lock();
        let waiters = &mut state.waiters;
        let of_owner = waiters.iter().filter(|other| **other == owner).count();
        if waiters.len() >= MAX_WAITERS || owner.is_some() && of_owner >= MAX_WAITERS_PER_ADDRESS {
            return Err(self.budget_full());
        }
        waiters.push(owner);
        Ok(Waiter { shared: &self.0, owner })
    }

    /// True if a reply of this size would fit beside the replies that are being sent, without the reservations of running
    /// functions.
    fn fits_without_reservations(&self, bytes: usize) -> bool {
        let state = self.0.state.lock();
        let sent = state.replies.values().filter(|reply| reply.stage != Stage::Reserved);
        sent.map(|reply| reply.bytes).sum::<usize>() + self.accounted_bytes(bytes) <= self.0.max_bytes
    }

    /// Bytes that a reply counts: its size and the buffers of its connection, at most the limit, so that the largest reply
    /// fits alone.
    fn accounted_bytes(&self, bytes: usize) -> usize {
        bytes.saturating_add(CONNECTION_BYTES).min(self.0.max_bytes)
    }

    fn budget_full(&self) -> ReplyBudgetFull {
        ReplyBudgetFull { max_bytes: self.0.max_bytes }
    }
}

impl State {
    fn add(&mut self, progress: &Arc<WriteProgress>, bytes: usize, stage: Stage) -> u64 {
        self.last_number += 1;
        self.bytes += bytes;
        let reply = AccountedReply { bytes, owner: progress.owner(), progress: progress.clone(), stage };
        self.replies.insert(self.last_number, reply);
        self.last_number
    }

    fn remove(&mut self, number: u64) -> Option<AccountedReply> {
        let reply = self.replies.remove(&number)?;
        self.bytes -= reply.bytes;
        Some(reply)
    }

    /// Closes slow connections until all replies of the other connections fit into the limit, and those of the owner of reply
    /// `number` into half of it. False if they do not fit and no further connection may be closed.
    fn evict_slow(&mut self, number: u64, max_bytes: usize) -> bool {
        let Some(owner) = self.replies.get(&number).map(|reply| reply.owner) else { return false };
        let is_kept = |reply: &&AccountedReply| reply.stage != Stage::Evicted;
        loop {
            let total: usize = self.replies.values().filter(is_kept).map(|reply| reply.bytes).sum();
            let of_owner = || self.replies.values().filter(|reply| owner.is_some() && reply.owner == owner);
            // One reply of an owner may exceed its share.
            let is_over_share = of_owner().filter(is_kept).count() > 1
                && of_owner().filter(is_kept).map(|reply| reply.bytes).sum::<usize>() > max_bytes / 2;
            if total <= max_bytes && !is_over_share {
                return true;
            }
            let others = self.replies.iter_mut().filter(|(other, reply)| {
                **other != number
                    && reply.stage == Stage::Sending
                    && (!is_over_share || reply.owner == owner)
            });
            let slow = others.filter_map(|(_, reply)| {
                let rate = reply.progress.read_rate()?;
                let is_slow = rate.bytes_per_second < SLOW_BYTES_PER_SECOND && rate.elapsed >= SLOW_AFTER;
                (is_slow || rate.elapsed >= EVICTABLE_AFTER).then_some((rate, reply))
            });
            let slowest =
                slow.min_by_key(|(rate, _)| (rate.bytes_per_second, std::cmp::Reverse(rate.elapsed)));
            let Some((_, reply)) = slowest else { return false };
            reply.stage = Stage::Evicted;
            reply.progress.evict();
        }
    }
}

impl Reservation {
    /// Accounts the real size of the reply until the returned bytes are dropped, after they are sent.
    ///
    /// # Errors
    /// [`ReplyBudgetFull`] if the reply is larger than reserved and not enough memory is free.
    pub fn hold(mut self, body: Bytes) -> Result<Bytes, ReplyBudgetFull> {
        if body.len() <= SMALL_REPLY_BYTES {
            return Ok(body);
        }
        let bytes = self.budget.accounted_bytes(body.len());
        let shared = self.budget.0.clone();
        let mut state = shared.state.lock();
        let number = match self.number {
            Some(number) => {
                let reserved =
                    state.replies.get_mut(&number).map(|reply| std::mem::replace(&mut reply.bytes, bytes));
                state.bytes = state.bytes + bytes - reserved.unwrap_or(bytes);
                number
            }
            None => state.add(&self.progress, bytes, Stage::Reserved),
        };
        self.number = Some(number);
        if !state.evict_slow(number, shared.max_bytes) {
            drop(state);
            return Err(self.budget.budget_full());
        }
        if let Some(reply) = state.replies.get_mut(&number) {
            reply.stage = Stage::Sending;
        }
        drop(state);
        // The reply may be smaller than reserved.
        shared.released.notify_waiters();
        self.progress.begin_reply();
        Ok(Bytes::from_owner(AccountedBody { body, reservation: self }))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        self.budget.0.state.lock().remove(number);
        self.budget.0.released.notify_waiters();
    }
}

/// Body of a reply that is not completely sent.
struct AccountedBody {
    body: Bytes,
    reservation: Reservation,
}

impl AsRef<[u8]> for AccountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for AccountedBody {
    fn drop(&mut self) {
        self.reservation.progress.end_reply();
    }
}

/// Registration of a request that waits for memory.
struct Waiter<'a> {
    shared: &'a Shared,
    owner: Option<IpAddr>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let waiters = &mut state.waiters;
        if let Some(at) = waiters.iter().position(|owner| *owner == self.owner) {
            waiters.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MAX: usize = 64 << 20;
    const LARGE: usize = 8 << 20;

    fn connection(address: &str) -> Arc<WriteProgress> {
        Arc::new(WriteProgress::new(address.parse().unwrap()))
    }

    fn known(bytes: usize) -> ReplySize {
        let size = ReplySize::default();
        size.learn(bytes);
        size
    }

    fn hold(
        budget: &ReplyBudget,
        progress: &Arc<WriteProgress>,
        bytes: usize,
    ) -> Result<Bytes, ReplyBudgetFull> {
        budget.unreserved(progress).hold(Bytes::from(vec![0; bytes]))
    }

    fn is_evicted(progress: &WriteProgress) -> bool {
        progress.evicted().now_or_never().is_some()
    }

    /// Fills the budget with replies whose clients do not read.
    fn fill(budget: &ReplyBudget, address: &str) -> Vec<(Arc<WriteProgress>, Bytes)> {
        std::iter::from_fn(|| {
            let progress = connection(address);
            let body = hold(budget, &progress, LARGE).ok()?;
            progress.write_blocked();
            Some((progress, body))
        })
        .collect()
    }

    #[tokio::test]
    async fn the_slowest_connection_is_evicted_and_faster_ones_are_not() {
        let next = connection("127.0.0.1");
        // Repeated until the test itself is fast enough that no client counts as slow.
        let (budget, held) = std::iter::repeat_with(|| {
            let (budget, since) = (ReplyBudget::new(MAX), Instant::now());
            let held = fill(&budget, "127.0.0.1");
            let is_refused = hold(&budget, &next, LARGE).is_err();
            (since.elapsed() < SLOW_AFTER).then(|| {
                assert_eq!(held.len(), 7, "eight replies with the buffers of their connections do not fit");
                assert!(is_refused);
                (budget, held)
            })
        })
        .flatten()
        .next()
        .unwrap();
        std::thread::sleep(SLOW_AFTER + Duration::from_millis(20));
        held[1..].iter().for_each(|(progress, _)| progress.wrote(LARGE));
        // The next function must not run before the memory is free.
        let size = known(LARGE);
        let mut reserved = Box::pin(budget.reserve_or_wait(&next, &size, LARGE));
        assert!((&mut reserved).now_or_never().is_none());
        let gone: Vec<_> = held.iter().map(|(progress, _)| is_evicted(progress)).collect();
        assert_eq!(gone, [true, false, false, false, false, false, false]);
        drop(held.into_iter().next());
        let reservation = reserved.await.unwrap();
        reservation.hold(Bytes::from(vec![0; LARGE])).unwrap();
        let state = budget.0.state.lock();
        assert_eq!((state.bytes, state.replies.len(), state.waiters.len()), (0, 0, 0));
    }

    #[test]
    fn one_address_has_half_of_the_limit_and_evicts_no_connection_of_another_address() {
        // Repeated as above.
        let (budget, held, others) = std::iter::repeat_with(|| {
            let (budget, since) = (ReplyBudget::new(MAX), Instant::now());
            let (held, others) = (fill(&budget, "10.0.0.1"), fill(&budget, "10.0.0.2"));
            (since.elapsed() < SLOW_AFTER).then_some((budget, held, others))
        })
        .flatten()
        .next()
        .unwrap();
        assert_eq!((held.len(), others.len()), (3, 3));
        std::thread::sleep(SLOW_AFTER + Duration::from_millis(20));
        let next = connection("10.0.0.1");
        hold(&budget, &next, LARGE).unwrap();
        assert_eq!(held.iter().filter(|(progress, _)| is_evicted(progress)).count(), 1);
        assert_eq!(others.iter().filter(|(progress, _)| is_evicted(progress)).count(), 0);
    }

    #[test]
    fn small_replies_are_not_accounted_and_the_largest_reply_fits_alone() {
        let budget = ReplyBudget::new(1 << 20);
        let progress = connection("10.0.0.1");
        let largest = hold(&budget, &progress, 2 << 20).unwrap();
        assert!(hold(&budget, &connection("10.0.0.2"), SMALL_REPLY_BYTES + 1).is_err());
        hold(&budget, &connection("10.0.0.2"), SMALL_REPLY_BYTES).unwrap();
        drop(largest);
        hold(&budget, &connection("10.0.0.2"), 2 << 20).unwrap();
    }

    #[tokio::test]
    async fn reservations_of_other_calls_delay_a_call_of_unknown_reply_size_only_briefly() {
        let wait_limits =
            WaitLimits { unknown_size: Duration::from_millis(20), any_size: Duration::from_millis(200) };
        let budget = ReplyBudget::with(MAX, wait_limits);
        let (unknown, progress) = (ReplySize::default(), connection("127.0.0.1"));
        let first = budget.reserve(&progress, &unknown, LARGE).unwrap();
        assert!(first.number.is_some());
        assert!(budget.reserve(&progress, &unknown, LARGE).unwrap().number.is_none());
        drop(first);
        let mut running = Vec::new();
        while let Ok(reservation) = budget.reserve(&progress, &known(LARGE), LARGE) {
            running.push(reservation);
        }
        assert_eq!(running.len(), 7);
        // The reply size is unknown: the call runs without a reservation after a short wait.
        let since = Instant::now();
        let next = budget.reserve_or_wait(&progress, &unknown, LARGE).await.unwrap();
        assert!(next.number.is_none() && since.elapsed() >= wait_limits.unknown_size);
        // The reply size is known: the call waits for memory, up to the timeout.
        unknown.learn(LARGE);
        assert_eq!(budget.reserve_or_wait(&progress, &unknown, LARGE).await.unwrap_err().max_bytes, MAX);
        assert!(since.elapsed() >= wait_limits.any_size);
        // Small replies need no reservation.
        assert!(budget.reserve(&progress, &known(100), LARGE).is_ok());
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
