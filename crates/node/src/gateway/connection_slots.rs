//! How many connections the gateway has, by the memory that it may take for them. One that waits for a request makes way for a new one:
//! of the address with most of those the one that has waited longest.
//!
//! One address has at most [`SHARE`] times as many as are free, so that the next one always finds some: the threshold follows
//! what is left (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). Beyond that, and
//! where none is free, a new connection takes the slot of one of its own address.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::address_limits::network_of;

/// So long a connection waits for those that make way to be closed.
const CLOSING_PATIENCE: Duration = Duration::from_secs(5);

/// Connections that an address may have for each one that is free.
const SHARE: usize = 8;

/// Of all connections of the gateway.
#[derive(Debug)]
pub struct ConnectionSlots {
    max: usize,
    state: Mutex<State>,
    /// A connection that made way is closed.
    closed: Notify,
}

/// Why there is no slot for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoSlot {
    /// As many connections make way as there may be, and are not closed yet.
    Closing,
    /// Requests are served on all connections, or on all that the address may have.
    Busy,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// Those of them that make way and are not closed yet.
    leaving: usize,
    /// The others, by address.
    staying: HashMap<IpAddr, usize>,
    /// Connections that wait for a request, by address, in the order in which they began to.
    idle: HashMap<IpAddr, BTreeMap<u64, Arc<Notify>>>,
    next: u64,
}

/// The slot of one connection, until it is dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    slots: Arc<ConnectionSlots>,
    address: IpAddr,
    given_up: Arc<Notify>,
    /// Its key in [`State::idle`]; 0 while a request is served.
    idle: AtomicU64,
    /// A request is served.
    is_serving: AtomicBool,
    has_left: AtomicBool,
}

impl ConnectionSlots {
    /// For so many connections.
    pub fn new(max: usize) -> Arc<Self> {
        let state = Mutex::new(State { next: 1, ..State::default() });
        Arc::new(Self { max, state, closed: Notify::new() })
    }

    /// A slot for a connection that waits for its first request. Without a free one another connection that waits is
    /// [given up](ConnectionSlot::given_up).
    fn enter(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionSlot, NoSlot> {
        let address = network_of(address);
        let mut state = self.state.lock();
        let free = self.max.saturating_sub(state.open - state.leaving);
        let own = state.staying.get(&address).copied().unwrap_or_default();
        let is_over = own > 0 && own >= SHARE.saturating_mul(free);
        if is_over || free == 0 {
            if state.leaving >= self.max {
                return Err(NoSlot::Closing);
            }
            let from = if is_over { Some(address) } else { state.max_idle() };
            from.and_then(|from| state.give_one_up(from)).ok_or(NoSlot::Busy)?;
        }
        state.open += 1;
        *state.staying.entry(address).or_default() += 1;
        let given_up = Arc::<Notify>::default();
        let key = state.wait(address, &given_up);
        drop(state);
        let (is_serving, has_left) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(ConnectionSlot {
            slots: self.clone(),
            address,
            given_up,
            idle: AtomicU64::new(key),
            is_serving,
            has_left,
        })
    }

    /// The same, where connections that make way have a moment to be closed: on a machine that is at its limit that takes a while.
    ///
    /// # Cancellation
    ///
    /// Nothing is taken before it returns.
    pub async fn admit(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionSlot, NoSlot> {
        let until = Instant::now() + CLOSING_PATIENCE;
        loop {
            let no_slot = match self.enter(address) {
                Ok(slot) => return Ok(slot),
                Err(no_slot) => no_slot,
            };
            let is_patient = no_slot == NoSlot::Closing;
            if !is_patient || timeout_at(until, self.closed.notified()).await.is_err() {
                return Err(no_slot);
            }
        }
    }
}

impl State {
    fn wait(&mut self, address: IpAddr, given_up: &Arc<Notify>) -> u64 {
        let key = self.next;
        self.next += 1;
        self.idle.entry(address).or_default().insert(key, given_up.clone());
        key
    }

    /// False if it does not wait any more.
    fn waits_no_more(&mut self, address: IpAddr, key: u64) -> bool {
        let Some(idle) = self.idle.get_mut(&address) else { return false };
        let waited = idle.remove(&key).is_some();
        if idle.is_empty() {
            self.idle.remove(&address);
        }
        waited
    }

    /// The address with most connections that wait.
    fn max_idle(&self) -> Option<IpAddr> {
        self.idle.iter().max_by_key(|(_, idle)| idle.len()).map(|(address, _)| *address)
    }

    fn give_one_up(&mut self, address: IpAddr) -> Option<()> {
        let idle = self.idle.get(&address)?;
        let (key, longest) = (*idle.keys().next()?, idle.values().next()?.clone());
        self.waits_no_more(address, key);
        self.leaving += 1;
        self.stays_no_more(address);
        longest.notify_one();
        Some(())
    }

    fn stays_no_more(&mut self, address: IpAddr) {
        if let Some(staying) = self.staying.get_mut(&address) {
            *staying -= 1;
            if *staying == 0 {
                self.staying.remove(&address);
            }
        }
    }
}

impl ConnectionSlot {
    /// A request came in.
    pub fn begin(&self) {
        self.is_serving.store(true, Relaxed);
        let mut state = self.slots.state.lock();
        let key = self.idle.swap(0, Relaxed);
        if !state.waits_no_more(self.address, key) {
            // It had been given up, and is served to its end all the same.
            self.idle.store(key, Relaxed);
        }
    }

    /// It is answered, and the connection waits for the next one.
    pub fn end(&self) {
        self.is_serving.store(false, Relaxed);
        if self.idle.load(Relaxed) == 0 {
            let key = self.slots.state.lock().wait(self.address, &self.given_up);
            self.idle.store(key, Relaxed);
        }
    }

    /// The connection is no longer one of the gateway.
    pub fn leave(&self) {
        if !self.has_left.swap(true, Relaxed) {
            let mut state = self.slots.state.lock();
            state.open -= 1;
            let key = self.idle.load(Relaxed);
            let made_way = key != 0 && !state.waits_no_more(self.address, key);
            match made_way {
                true => state.leaving -= 1,
                false => state.stays_no_more(self.address),
            }
            drop(state);
            self.slots.closed.notify_one();
        }
    }

    /// Whether a request is served, also if the connection was given up before it came.
    pub fn is_serving(&self) -> bool {
        self.is_serving.load(Relaxed)
    }

    /// Waits until the connection has to make way for another one.
    pub async fn given_up(&self) {
        self.given_up.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.leave();
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

    fn is_given_up(slot: &ConnectionSlot) -> bool {
        slot.given_up().now_or_never().is_some()
    }

    fn counts(slots: &ConnectionSlots) -> (usize, usize) {
        let state = slots.state.lock();
        (state.open, state.leaving)
    }

    #[test]
    fn the_connection_that_has_waited_longest_makes_way() {
        let slots = ConnectionSlots::new(2);
        let enter = || slots.enter(address(1));
        let [first, second] = [(); 2].map(|()| enter().expect("there is room"));
        first.begin();
        first.end();
        let third = enter().expect("the second makes way");
        assert_eq!((is_given_up(&first), is_given_up(&second), is_given_up(&third)), (false, true, false));
        // A request had come in meanwhile: it is answered, and the slot is free after it.
        second.begin();
        second.end();
        drop(second);
        first.begin();
        third.begin();
        assert_eq!(enter().err(), Some(NoSlot::Busy), "both serve requests");
        drop(third);
        assert!(enter().is_ok());
        drop(first);
        assert_eq!(counts(&slots), (0, 0));
    }

    #[tokio::test]
    async fn who_has_most_connections_makes_way_for_others() {
        let slots = ConnectionSlots::new(10);
        let modest = slots.enter(address(1)).unwrap();
        let mut greedy: Vec<_> = (0..18).map(|_| slots.enter(address(2)).unwrap()).collect();
        assert!(!is_given_up(&modest));
        assert_eq!(greedy.iter().filter(|slot| is_given_up(slot)).count(), 10);
        assert_eq!(
            slots.enter(address(2)).err(),
            Some(NoSlot::Closing),
            "as many as there may be are being closed"
        );
        let mut next = Box::pin(slots.admit(address(2)));
        assert!((&mut next).now_or_never().is_none(), "it waits for them");
        greedy.remove(0);
        drop(next.await.expect("one is closed"));
        greedy.clear();
        assert_eq!(counts(&slots), (1, 0));
    }

    #[test]
    fn an_address_with_requests_on_all_its_connections_takes_nobody_elses_place() {
        let slots = ConnectionSlots::new(100);
        let modest = slots.enter(address(1)).unwrap();
        let enter = || slots.enter(address(2)).inspect(ConnectionSlot::begin);
        let greedy: Vec<_> = std::iter::from_fn(|| enter().ok()).collect();
        assert_eq!((greedy.len(), enter().err()), (88, Some(NoSlot::Busy)));
        assert!(!is_given_up(&modest));
        let third: Vec<_> = std::iter::from_fn(|| slots.enter(address(3)).ok()).take(20).collect();
        assert!(third.iter().filter(|slot| !is_given_up(slot)).count() >= 8);
        assert!(!is_given_up(&modest), "the third makes way for itself");
        drop((modest, greedy, third));
        assert_eq!((counts(&slots), slots.state.lock().staying.len()), ((0, 0), 0));
    }
}
