//! Claims of idempotency keys: a request claims its key until its invocation is in the store.
//!
//! The store is read without a lock: [`Claims::begin`] registers the lookup, and [`KeyLookup::settle`] decides with the
//! result. If another claim of the same key was made and released between the two, the result may be outdated, so the
//! caller has to read the store again.
//!
//! A repetition of a claimed request waits for the first one: see [`Claims::progress`].

use std::collections::HashMap;
use std::sync::Arc;

use edgefaas_broker::Ticket;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::invocation_records::{Digest, Reserved};

/// Claims by key.
#[derive(Debug, Default)]
pub(super) struct Claims {
    keys: Mutex<HashMap<Digest, Entry>>,
}

/// A key that is claimed, or that a request is looking up.
#[derive(Debug, Default)]
struct Entry {
    claimed: Option<Claimed>,
    /// Number of registered lookups.
    lookups: u32,
    /// Number of claims that were released while a lookup was registered.
    released: u64,
}

/// The claim of a key. The senders in `waiters` are dropped when the ticket is known and when the claim is released.
#[derive(Debug)]
struct Claimed {
    reserved: Reserved,
    /// The ticket of the broker's write-ahead log, once the invocation was handed to its writer.
    ticket: Option<Ticket>,
    waiters: Vec<oneshot::Sender<()>>,
}

/// The progress of storing the invocation of a claimed key.
pub(super) enum Progress {
    /// The invocation is on the disk when this ticket is durable.
    At(Ticket),
    /// The invocation was not handed to the writer yet. The receiver completes when it was, or when the claim was released.
    Before(oneshot::Receiver<()>),
}

/// The claim of an idempotency key, held until the invocation is on the disk. Dropping it releases the key.
#[derive(Debug)]
pub struct KeyClaim {
    claims: Arc<Claims>,
    pub(super) key: Digest,
    pub(super) reserved: Reserved,
}

/// A registered lookup of a key that is not claimed.
pub(super) struct KeyLookup {
    claims: Arc<Claims>,
    key: Digest,
    seen_released: u64,
}

/// The result of [`KeyLookup::settle`].
pub(super) enum Settled {
    /// The caller has claimed the key.
    Claimed(KeyClaim),
    /// The key belongs to this earlier request.
    Known(Reserved),
    /// A claim of the key was released since the lookup began: the caller has to read the store again.
    Again(KeyLookup),
}

impl Claims {
    /// Registers a lookup of a key. `Err` with the request that has claimed the key, if one has.
    pub fn begin(self: &Arc<Self>, key: Digest) -> Result<KeyLookup, Reserved> {
        let mut keys = self.keys.lock();
        let entry = keys.entry(key).or_default();
        if let Some(claimed) = &entry.claimed {
            return Err(claimed.reserved);
        }
        entry.lookups += 1;
        Ok(KeyLookup { claims: self.clone(), key, seen_released: entry.released })
    }

    /// True if an invocation has claimed a key.
    pub fn has_invocation(&self, id: u128) -> bool {
        self.keys.lock().values_mut().any(|entry| entry.claim_of(id).is_some())
    }

    /// The progress of storing an invocation; `None` if it has claimed no key.
    pub fn progress(&self, id: u128) -> Option<Progress> {
        let mut keys = self.keys.lock();
        let claimed = keys.values_mut().find_map(|entry| entry.claim_of(id))?;
        Some(match claimed.ticket {
            Some(ticket) => Progress::At(ticket),
            None => Progress::Before(claimed.wait()),
        })
    }

    /// Completes when this invocation has no claim.
    pub async fn released(&self, id: u128) {
        loop {
            let wait =
                self.keys.lock().values_mut().find_map(|entry| entry.claim_of(id)).map(Claimed::wait);
            let Some(wait) = wait else { return };
            // A sender is dropped, not used.
            let _ = wait.await;
        }
    }
}

impl Entry {
    fn claim_of(&mut self, id: u128) -> Option<&mut Claimed> {
        self.claimed.as_mut().filter(|claimed| claimed.reserved.id == id)
    }
}

impl Claimed {
    fn wait(&mut self) -> oneshot::Receiver<()> {
        let (waiter, wait) = oneshot::channel();
        self.waiters.retain(|waiter| !waiter.is_closed());
        self.waiters.push(waiter);
        wait
    }
}

impl KeyClaim {
    /// Sets the ticket: the invocation is on the disk when it is durable. Wakes the waiters.
    pub(super) fn recorded(&self, ticket: Ticket) {
        let mut keys = self.claims.keys.lock();
        if let Some(claimed) = keys.get_mut(&self.key).and_then(|entry| entry.claimed.as_mut()) {
            claimed.ticket = Some(ticket);
            claimed.waiters.clear();
        }
    }
}

impl KeyLookup {
    /// Ends the lookup. `stored` is the record in the store; if there is none, `new` claims the key.
    pub fn settle(mut self, stored: Option<Reserved>, new: Reserved) -> Settled {
        let claims = self.claims.clone();
        let mut keys = claims.keys.lock();
        let Some(entry) = keys.get_mut(&self.key) else {
            // Unreachable: an entry is not removed while a lookup is registered.
            drop(keys);
            return Settled::Again(self);
        };
        if let Some(claimed) = &entry.claimed {
            let reserved = claimed.reserved;
            drop(keys);
            return Settled::Known(reserved);
        }
        if entry.released != self.seen_released {
            self.seen_released = entry.released;
            drop(keys);
            return Settled::Again(self);
        }
        let settled = match stored {
            Some(stored) => Settled::Known(stored),
            None => {
                entry.claimed = Some(Claimed { reserved: new, ticket: None, waiters: Vec::new() });
                Settled::Claimed(KeyClaim { claims: claims.clone(), key: self.key, reserved: new })
            }
        };
        drop(keys);
        settled
    }
}

impl Drop for KeyLookup {
    fn drop(&mut self) {
        let mut keys = self.claims.keys.lock();
        if let Some(entry) = keys.get_mut(&self.key) {
            entry.lookups -= 1;
            if entry.lookups == 0 && entry.claimed.is_none() {
                keys.remove(&self.key);
            }
        }
    }
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        let mut keys = self.claims.keys.lock();
        if let Some(entry) = keys.get_mut(&self.key) {
            entry.claimed = None;
            entry.released += 1;
            if entry.lookups == 0 {
                keys.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Barrier;

    use super::*;

    fn reserved(id: u128) -> Reserved {
        Reserved { id, request: Digest::default() }
    }

    #[test]
    fn a_lookup_is_repeated_if_a_claim_was_released_during_it() {
        let claims = Arc::<Claims>::default();
        let key = Digest::default();
        let slow = claims.begin(key).expect("the key is not claimed");
        // Another request claims the key, is stored and releases the claim.
        let quick = claims.begin(key).expect("a lookup is not a claim");
        let Settled::Claimed(claim) = quick.settle(None, reserved(1)) else { panic!("the key is free") };
        assert_eq!(claims.begin(key).err().expect("the key is claimed").id, 1);
        drop(claim);
        // The slow request read the store before that.
        let Settled::Again(slow) = slow.settle(None, reserved(2)) else {
            panic!("the result of the lookup is outdated")
        };
        let Settled::Known(known) = slow.settle(Some(reserved(1)), reserved(2)) else {
            panic!("the key is in the store")
        };
        assert_eq!(known.id, 1);
        assert!(claims.keys.lock().is_empty());
    }

    #[tokio::test]
    async fn a_repetition_waits_until_the_claim_is_released() {
        let claims = Arc::<Claims>::default();
        let lookup = claims.begin([1; 16]).expect("the key is not claimed");
        let Settled::Claimed(claim) = lookup.settle(None, reserved(1)) else { panic!("the key is free") };
        let Some(Progress::Before(wait)) = claims.progress(1) else { panic!("the key is claimed") };
        assert!(claims.progress(2).is_none());
        let released = tokio::spawn({
            let claims = claims.clone();
            async move { claims.released(1).await }
        });
        drop(claim);
        assert!(wait.await.is_err(), "the sender is dropped");
        released.await.unwrap();
        assert!(claims.progress(1).is_none());
    }

    /// Several threads claim the same keys. The store is slower than the claims.
    #[test]
    fn one_of_many_requests_gets_a_key_if_the_store_is_slow() {
        const THREADS: u128 = 8;
        const KEYS: u8 = 50;
        let claims = Arc::<Claims>::default();
        let store = Mutex::<HashMap<Digest, Reserved>>::default();
        let first = Mutex::<HashMap<Digest, Vec<u128>>>::default();
        let barrier = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (claims, store, first, barrier) = (&claims, &store, &first, &barrier);
                scope.spawn(move || {
                    for number in 0..KEYS {
                        barrier.wait();
                        let key = [number; size_of::<Digest>()];
                        let mut lookup = match claims.begin(key) {
                            Ok(lookup) => lookup,
                            Err(_) => continue,
                        };
                        loop {
                            let stored = store.lock().get(&key).copied();
                            std::thread::yield_now();
                            match lookup.settle(stored, reserved(thread)) {
                                Settled::Again(again) => lookup = again,
                                Settled::Known(_) => break,
                                Settled::Claimed(claim) => {
                                    first.lock().entry(key).or_default().push(thread);
                                    store.lock().insert(key, claim.reserved);
                                    drop(claim);
                                    break;
                                }
                            }
                        }
                    }
                });
            }
        });
        assert!(first.lock().values().all(|owners| owners.len() == 1), "{:?}", first.lock());
        assert_eq!(first.lock().len(), KEYS as usize);
        assert!(claims.keys.lock().is_empty());
    }
}
