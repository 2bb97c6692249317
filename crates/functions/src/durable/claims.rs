//! First uses of idempotency keys that are not in the store yet.
//!
//! A key is looked up in the store without a lock: [`Claims::begin`] registers the look, [`Look::settle`] decides with
//! what was read. A claim that was made and released between the two changes what the store says, so that the look is
//! repeated then; only claims of the same key can cause that.
//!
//! A repetition of a claimed request waits for the first one: [`Claims::progress`] says what to wait for.

use std::collections::HashMap;
use std::sync::Arc;

use edgefaas_broker::Ticket;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::record::{Digest, Reserved};

/// Claims by key.
#[derive(Debug, Default)]
pub(super) struct Claims {
    keys: Mutex<HashMap<Digest, Entry>>,
}

/// A key that is claimed, or that somebody looks up.
#[derive(Debug, Default)]
struct Entry {
    claimed: Option<Claimed>,
    looks: u32,
    /// Claims released while a look was registered.
    released: u64,
}

/// The claim of a key. The receivers of `waiters` end when the ticket is known and when the claim is released.
#[derive(Debug)]
struct Claimed {
    reserved: Reserved,
    /// When the invocation is on the disk, once that is known.
    ticket: Option<Ticket>,
    waiters: Vec<oneshot::Sender<()>>,
}

/// How far the invocation of a claimed key is.
pub(super) enum Progress {
    /// It is on the disk when this ticket is durable.
    At(Ticket),
    /// It is not handed to the writer yet: the receiver ends when it is, and when the claim is released.
    Before(oneshot::Receiver<()>),
}

/// The first use of an idempotency key, until it is on the disk.
#[derive(Debug)]
pub struct KeyClaim {
    claims: Arc<Claims>,
    pub(super) key: Digest,
    pub(super) reserved: Reserved,
}

/// A look at the store for a key that nobody has claimed.
pub(super) struct Look {
    claims: Arc<Claims>,
    key: Digest,
    seen_released: u64,
}

/// The result of a look.
pub(super) enum Settled {
    /// The key is this caller's.
    Claimed(KeyClaim),
    /// The key belongs to this request.
    Known(Reserved),
    /// A claim of the key was released meanwhile: the store has to be read again.
    Again(Look),
}

impl Claims {
    /// The claim of a key, or a look if there is none.
    pub fn begin(self: &Arc<Self>, key: Digest) -> Result<Look, Reserved> {
        let mut keys = self.keys.lock();
        let entry = keys.entry(key).or_default();
        if let Some(claimed) = &entry.claimed {
            return Err(claimed.reserved);
        }
        entry.looks += 1;
        Ok(Look { claims: self.clone(), key, seen_released: entry.released })
    }

    /// Whether an invocation's key is claimed.
    pub fn has_invocation(&self, id: u128) -> bool {
        self.keys.lock().values_mut().any(|entry| entry.claim_of(id).is_some())
    }

    /// How far the invocation is whose key is claimed; `None` if no claim is its.
    pub fn progress(&self, id: u128) -> Option<Progress> {
        let mut keys = self.keys.lock();
        let claimed = keys.values_mut().find_map(|entry| entry.claim_of(id))?;
        Some(match claimed.ticket {
            Some(ticket) => Progress::At(ticket),
            None => Progress::Before(claimed.wait()),
        })
    }

    /// Completes when no claim is this invocation's.
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
    /// The invocation is on the disk when `ticket` is durable.
    pub(super) fn recorded(&self, ticket: Ticket) {
        let mut keys = self.claims.keys.lock();
        if let Some(claimed) = keys.get_mut(&self.key).and_then(|entry| entry.claimed.as_mut()) {
            claimed.ticket = Some(ticket);
            claimed.waiters.clear();
        }
    }
}

impl Look {
    /// Decides: `stored` is what the store has for the key, `wanted` claims it if that is nothing.
    pub fn settle(mut self, stored: Option<Reserved>, wanted: Reserved) -> Settled {
        let claims = self.claims.clone();
        let mut keys = claims.keys.lock();
        let Some(entry) = keys.get_mut(&self.key) else {
            // A look keeps its entry.
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
                entry.claimed = Some(Claimed { reserved: wanted, ticket: None, waiters: Vec::new() });
                Settled::Claimed(KeyClaim { claims: claims.clone(), key: self.key, reserved: wanted })
            }
        };
        drop(keys);
        settled
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let mut keys = self.claims.keys.lock();
        if let Some(entry) = keys.get_mut(&self.key) {
            entry.looks -= 1;
            if entry.looks == 0 && entry.claimed.is_none() {
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
            if entry.looks == 0 {
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
    fn a_claim_that_was_released_during_a_look_has_the_store_read_again() {
        let claims = Arc::<Claims>::default();
        let key = Digest::default();
        let slow = claims.begin(key).expect("nobody has claimed it");
        // Meanwhile another one claims the key, is stored and releases it.
        let quick = claims.begin(key).expect("a look is no claim");
        let Settled::Claimed(claim) = quick.settle(None, reserved(1)) else { panic!("it is free") };
        assert_eq!(claims.begin(key).err().expect("it is claimed").id, 1);
        drop(claim);
        // What the slow one has read of the store is outdated.
        let Settled::Again(slow) = slow.settle(None, reserved(2)) else { panic!("it has to read again") };
        let Settled::Known(known) = slow.settle(Some(reserved(1)), reserved(2)) else {
            panic!("it is known")
        };
        assert_eq!(known.id, 1);
        assert!(claims.keys.lock().is_empty());
    }

    #[tokio::test]
    async fn a_repetition_waits_until_the_claim_is_released() {
        let claims = Arc::<Claims>::default();
        let look = claims.begin([1; 16]).expect("nobody has claimed it");
        let Settled::Claimed(claim) = look.settle(None, reserved(1)) else { panic!("it is free") };
        let Some(Progress::Before(wait)) = claims.progress(1) else { panic!("it is claimed") };
        assert!(claims.progress(2).is_none());
        let released = tokio::spawn({
            let claims = claims.clone();
            async move { claims.released(1).await }
        });
        drop(claim);
        assert!(wait.await.is_err(), "nothing is sent");
        released.await.unwrap();
        assert!(claims.progress(1).is_none());
    }

    /// Threads that read a store which is slower than everything else: each key is given to one request.
    #[test]
    fn one_of_many_gets_a_key_however_slow_the_store_is() {
        const THREADS: u128 = 8;
        const KEYS: u8 = 50;
        let claims = Arc::<Claims>::default();
        let store = Mutex::<HashMap<Digest, Reserved>>::default();
        let first = Mutex::<HashMap<Digest, Vec<u128>>>::default();
        let together = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (claims, store, first, together) = (&claims, &store, &first, &together);
                scope.spawn(move || {
                    for number in 0..KEYS {
                        together.wait();
                        let key = [number; size_of::<Digest>()];
                        let mut look = match claims.begin(key) {
                            Ok(look) => look,
                            Err(_) => continue,
                        };
                        loop {
                            let stored = store.lock().get(&key).copied();
                            std::thread::yield_now();
                            match look.settle(stored, reserved(thread)) {
                                Settled::Again(again) => look = again,
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
