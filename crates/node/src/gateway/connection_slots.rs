//! Maximum number of gateway connections, derived from their memory. If no slot is free, a new connection evicts an idle one:
//! the longest idle connection of the address with the most idle connections.
//!
//! One address has at most [`SHARE`] connections for each free slot, so other addresses always find a free slot: the threshold
//! depends on the number of free slots (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches",
//! 1998). Beyond its threshold, a new connection evicts an idle one of its own address.
//!
//! An idle connection waits for a request. An evicted connection keeps its slot until it is closed; up to `max` evicted
//! connections may be open beside the others.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::address_limits::network_of;

/// Maximum wait of a new connection for evicted connections to be closed.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of connections of one address for each free slot.
const SHARE: usize = 8;

/// Slots for the connections of the gateway.
#[derive(Debug)]
pub struct ConnectionSlots {
    max: usize,
    state: Mutex<State>,
    /// Notified when a connection releases its slot.
    released: Notify,
}

/// Refusal of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSlot {
    /// The maximum number of evicted connections are not closed yet.
    Closing,
    /// No connection is idle, or none of the address if the address has reached its threshold.
    Busy,
}

#[derive(Debug, Default)]
struct State {
    /// Open connections, with the evicted ones.
    open: usize,
    /// Evicted connections that are not closed yet.
    evicted: usize,
    /// Number of the other open connections, by address.
    by_address: HashMap<IpAddr, usize>,
    /// Idle connections by address; the longest idle one first.
    idle: HashMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
    next_key: u64,
}

/// The slot of one connection, until it is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    address: IpAddr,
    evicted: Arc<Notify>,
    /// Its key in [`State::idle`]; 0 during a request. An evicted connection keeps its last key.
    idle_key: AtomicU64,
    is_serving: AtomicBool,
    is_released: AtomicBool,
}

impl ConnectionSlots {
    /// Slots for `max` connections.
    pub fn new(max: usize) -> Arc<Self> {
        let state = Mutex::new(State { next_key: 1, ..State::default() });
        Arc::new(Self { max, state, released: Notify::new() })
    }

    /// A slot for a new, idle connection. May [evict](ConnectionSlot::evicted) another idle connection.
    fn try_admit(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionSlot, NoSlot> {
        let address = network_of(address);
        let mut state = self.state.lock();
        let free = self.max.saturating_sub(state.open - state.evicted);
        let own = state.by_address.get(&address).copied().unwrap_or_default();
        let is_over = own > 0 && own >= SHARE.saturating_mul(free);
        if is_over || free == 0 {
            if state.evicted >= self.max {
                return Err(NoSlot::Closing);
            }
            let from = if is_over { Some(address) } else { state.address_with_most_idle() };
            from.and_then(|from| state.evict_longest_idle(from)).ok_or(NoSlot::Busy)?;
        }
        state.open += 1;
        *state.by_address.entry(address).or_default() += 1;
        let evicted = Arc::<Notify>::default();
        let key = state.add_idle(address, &evicted);
        drop(state);
        let (is_serving, is_released) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(ConnectionSlot {
            slots: self.clone(),
            address,
            evicted,
            idle_key: AtomicU64::new(key),
            is_serving,
            is_released,
        })
    }

    /// A slot for a new, idle connection. Waits up to 5 s if too many evicted connections are not closed yet, which takes time
    /// on an overloaded machine.
    ///
    /// # Errors
    /// See [`NoSlot`].
    ///
    /// # Cancellation
    /// A dropped future takes no slot.
    pub async fn admit(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionSlot, NoSlot> {
        let until = Instant::now() + CLOSING_TIMEOUT;
        loop {
            let no_slot = match self.try_admit(address) {
                Ok(slot) => return Ok(slot),
                Err(no_slot) => no_slot,
            };
            let may_wait = no_slot == NoSlot::Closing;
            if !may_wait || timeout_at(until, self.released.notified()).await.is_err() {
                return Err(no_slot);
            }
        }
    }
}

impl State {
    /// Returns the key of the connection in `idle`.
    fn add_idle(&mut self, address: IpAddr, evicted: &Arc<Notify>) -> u64 {
        let key = self.next_key;
        self.next_key += 1;
        self.idle.entry(address).or_default().insert(key, evicted.clone());
        key
    }

    /// False if the connection was not idle.
    fn remove_idle(&mut self, address: IpAddr, key: u64) -> bool {
        let Some(idle) = self.idle.get_mut(&address) else { return false };
        let was_idle = idle.remove(&key).is_some();
        if idle.is_empty() {
            self.idle.remove(&address);
        }
        was_idle
    }

    fn address_with_most_idle(&self) -> Option<IpAddr> {
        self.idle.iter().max_by_key(|(_, idle)| idle.len()).map(|(address, _)| *address)
    }

    /// Evicts the longest idle connection of an address; `None` if it has no idle connection.
    fn evict_longest_idle(&mut self, address: IpAddr) -> Option<()> {
        let idle = self.idle.get(&address)?;
        let (key, longest) = (*idle.keys().next()?, idle.values().next()?.clone());
        self.remove_idle(address, key);
        self.evicted += 1;
        self.remove_from_address(address);
        longest.notify_one();
        Some(())
    }

    fn remove_from_address(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

impl ConnectionSlot {
    /// Records the start of a request: the connection is not idle and cannot be evicted.
    pub fn begin_request(&self) {
        self.is_serving.store(true, Relaxed);
        let mut state = self.slots.state.lock();
        let key = self.idle_key.swap(0, Relaxed);
        if !state.remove_idle(self.address, key) {
            // The connection was evicted before; the request is answered all the same.
            self.idle_key.store(key, Relaxed);
        }
    }

    /// Records the end of a request: the connection is idle, unless it was evicted.
    pub fn end_request(&self) {
        self.is_serving.store(false, Relaxed);
        if self.idle_key.load(Relaxed) == 0 {
            let key = self.slots.state.lock().add_idle(self.address, &self.evicted);
            self.idle_key.store(key, Relaxed);
        }
    }

    /// Releases the slot; further calls have no effect.
    pub fn release(&self) {
        if !self.is_released.swap(true, Relaxed) {
            let mut state = self.slots.state.lock();
            state.open -= 1;
            let key = self.idle_key.load(Relaxed);
            let was_evicted = key != 0 && !state.remove_idle(self.address, key);
            match was_evicted {
                true => state.evicted -= 1,
                false => state.remove_from_address(self.address),
            }
            drop(state);
            self.slots.released.notify_one();
        }
    }

    /// True during a request, also if the connection was evicted before the request.
    pub fn is_serving(&self) -> bool {
        self.is_serving.load(Relaxed)
    }

    /// Waits until the connection is evicted: it must be closed, after the request in progress if there is one.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt;

    use super::*;

    fn address(number: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, number).into()
    }

    fn is_evicted(slot: &ConnectionSlot) -> bool {
        slot.evicted().now_or_never().is_some()
    }

    fn counts(slots: &ConnectionSlots) -> (usize, usize) {
        let state = slots.state.lock();
        (state.open, state.evicted)
    }

    #[test]
    fn the_longest_idle_connection_is_evicted() {
        let slots = ConnectionSlots::new(2);
        let admit = || slots.try_admit(address(1));
        let [first, second] = [(); 2].map(|()| admit().expect("there are free slots"));
        first.begin_request();
        first.end_request();
        let third = admit().expect("the second is evicted");
        assert_eq!((is_evicted(&first), is_evicted(&second), is_evicted(&third)), (false, true, false));
        // A request that arrives at the same time as the eviction is answered.
        second.begin_request();
        second.end_request();
        drop(second);
        first.begin_request();
        third.begin_request();
        assert_eq!(admit().err(), Some(NoSlot::Busy), "no connection is idle");
        drop(third);
        assert!(admit().is_ok());
        drop(first);
        assert_eq!(counts(&slots), (0, 0));
    }

    #[tokio::test]
    async fn an_address_with_many_connections_evicts_its_own_and_none_of_another_address() {
        let slots = ConnectionSlots::new(10);
        let modest = slots.try_admit(address(1)).unwrap();
        let mut greedy: Vec<_> = (0..18).map(|_| slots.try_admit(address(2)).unwrap()).collect();
        assert!(!is_evicted(&modest));
        assert_eq!(greedy.iter().filter(|slot| is_evicted(slot)).count(), 10);
        assert_eq!(
            slots.try_admit(address(2)).err(),
            Some(NoSlot::Closing),
            "the maximum number of evicted connections is open"
        );
        let mut next = Box::pin(slots.admit(address(2)));
        assert!((&mut next).now_or_never().is_none(), "it waits until an evicted connection is closed");
        greedy.remove(0);
        drop(next.await.expect("an evicted connection is closed"));
        greedy.clear();
        assert_eq!(counts(&slots), (1, 0));
    }

    #[test]
    fn an_address_without_idle_connections_evicts_none_of_another_address() {
        let slots = ConnectionSlots::new(100);
        let modest = slots.try_admit(address(1)).unwrap();
        let admit = || slots.try_admit(address(2)).inspect(ConnectionSlot::begin_request);
        let greedy: Vec<_> = std::iter::from_fn(|| admit().ok()).collect();
        assert_eq!((greedy.len(), admit().err()), (88, Some(NoSlot::Busy)));
        assert!(!is_evicted(&modest));
        let third: Vec<_> = std::iter::from_fn(|| slots.try_admit(address(3)).ok()).take(20).collect();
        assert!(third.iter().filter(|slot| !is_evicted(slot)).count() >= 8);
        assert!(!is_evicted(&modest), "the third address evicts its own connections");
        drop((modest, greedy, third));
        assert_eq!((counts(&slots), slots.state.lock().by_address.len()), ((0, 0), 0));
    }
}
