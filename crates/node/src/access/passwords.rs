//! Passwords: hashed with argon2id, with a limit on concurrent checks and a cache of correct passwords.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use argon2::password_hash::phc::PasswordHash;
use argon2::{Algorithm, Argon2, Params, PasswordHasher, PasswordVerifier, Version};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::address_limits::AddressLimits;

/// Maximum length of a password, in bytes.
pub const MAX_PASSWORD_BYTES: usize = 1024;
/// Cost of a hash: 19 MiB and two passes, OWASP's choice for argon2id, about 100 ms on a Raspberry Pi 4.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
/// Maximum number of concurrent checks: 38 MiB together, and not all four cores of a Raspberry Pi 4.
const MAX_CONCURRENT: usize = 2;
/// Maximum number of waiting checks; further ones are refused.
const MAX_WAITING: usize = 256;
/// Maximum number of checks that wait or run for clients of one address, so that one address cannot block the others.
const WAITING_PER_ADDRESS: usize = 32;
/// Maximum number of cached correct passwords, 32 bytes each: this many devices can reconnect together.
const MAX_REMEMBERED: usize = 16_384;

/// Verifies passwords.
///
/// A hash is slow by design. After a restart of the network thousands of devices reconnect together, and each would
/// cost a hash; so correct passwords are cached, as a hash under a key that never leaves this process. Wrong passwords
/// are not cached, and a check for an unknown user takes as long as for a known one.
pub struct Passwords {
    key: [u8; 32],
    remembered: Mutex<Remembered>,
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    address_limits: Arc<AddressLimits>,
    /// Hash that the password of an unknown user is compared with.
    decoy: Arc<str>,
}

#[derive(Default)]
struct Remembered {
    known: HashSet<[u8; 32]>,
    oldest: VecDeque<[u8; 32]>,
}

/// Too many password checks wait.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many passwords wait to be checked; try again later")]
pub struct Busy;

impl Passwords {
    /// Makes an empty cache.
    pub fn new() -> Self {
        Self {
            key: rand::random(),
            remembered: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
            waiting: AtomicUsize::new(0),
            address_limits: AddressLimits::new(WAITING_PER_ADDRESS),
            // Random bytes in place of a hash: the cost is the same, and no password matches.
            decoy: decoy().into(),
        }
    }

    /// True if `hash` is the hash of `password`; `None` stands for an unknown user. `address` is the client's address.
    /// Takes as long as a hash unless the password is cached. Dropping the future leaves the queue; a check that runs
    /// continues and keeps its permit.
    ///
    /// # Errors
    /// Too many checks wait, in all or for that address.
    pub async fn check(
        &self,
        user: &str,
        password: &[u8],
        hash: Option<&Arc<str>>,
        address: IpAddr,
    ) -> Result<bool, Busy> {
        let known = self.fingerprint(user, password, hash.map_or("", |hash| hash));
        if self.remembered.lock().known.contains(&known) {
            return Ok(true);
        }
        if password.len() > MAX_PASSWORD_BYTES {
            return Ok(false);
        }
        let _address_permit = self.address_limits.acquire(address).ok_or(Busy)?;
        let permit = {
            let _waiting = Waiting::enter(&self.waiting)?;
            self.permits.clone().acquire_owned().await.map_err(|_| Busy)?
        };
        let (exists, hash) = (hash.is_some(), hash.unwrap_or(&self.decoy).clone());
        let password = password.to_vec();
        let right = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            is_right(&password, &hash)
        });
        let right = right.await.unwrap_or(false) && exists;
        if right {
            self.remember(known);
        }
        Ok(right)
    }

    /// True if `password` is cached as correct for the same hash.
    pub fn remembers(&self, user: &str, password: &[u8], hash: Option<&Arc<str>>) -> bool {
        let known = self.fingerprint(user, password, hash.map_or("", |hash| hash));
        self.remembered.lock().known.contains(&known)
    }

    /// The fingerprint covers the stored hash: changing the password invalidates the cache entry.
    fn fingerprint(&self, user: &str, password: &[u8], hash: &str) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for part in [user.as_bytes(), password, hash.as_bytes()] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        *hasher.finalize().as_bytes()
    }

    fn remember(&self, fingerprint: [u8; 32]) {
        let mut remembered = self.remembered.lock();
        if !remembered.known.insert(fingerprint) {
            return;
        }
        remembered.oldest.push_back(fingerprint);
        if remembered.oldest.len() > MAX_REMEMBERED
            && let Some(oldest) = remembered.oldest.pop_front()
        {
            remembered.known.remove(&oldest);
        }
    }
}

impl Default for Passwords {
    fn default() -> Self {
        Self::new()
    }
}

/// Hashes a password (PHC string format). Slow: not for a worker thread.
///
/// # Errors
/// The system has no randomness for the salt, or no memory.
pub fn hash(password: &[u8]) -> Result<String, argon2::password_hash::Error> {
    let hash: PasswordHash = argon2().hash_password(password)?;
    Ok(hash.to_string())
}

/// True if `text` is a hash that [`Passwords::check`] supports.
pub fn is_hash(text: &str) -> bool {
    PasswordHash::new(text).is_ok_and(|hash| {
        Algorithm::try_from(hash.algorithm.as_str()).is_ok()
            && hash.hash.is_some()
            && Params::try_from(&hash).is_ok_and(|params| params.m_cost() <= 1 << 20)
    })
}

fn is_right(password: &[u8], hash: &str) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| argon2().verify_password(password, &hash).is_ok())
}

fn argon2() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).expect("the parameters are within range");
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

fn decoy() -> String {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
    let (salt, hash): ([u8; 16], [u8; 32]) = (rand::random(), rand::random());
    let (salt, hash) = (BASE64.encode(salt), BASE64.encode(hash));
    format!("$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p=1${salt}${hash}")
}

struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(waiting: &'a AtomicUsize) -> Result<Self, Busy> {
        let entered = Self(waiting);
        match waiting.fetch_add(1, Ordering::Relaxed) {
            before if before < MAX_WAITING => Ok(entered),
            _ => Err(Busy),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn correct_passwords_are_cached_until_the_hash_changes() {
        let passwords = Passwords::new();
        let stored: Arc<str> = hash(b"correct").unwrap().into();
        assert!(stored.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{stored}");
        assert!(is_hash(&stored));
        assert_eq!(passwords.check("ada", b"wrong", Some(&stored), HERE).await, Ok(false));
        assert_eq!(passwords.check("ada", b"correct", Some(&stored), HERE).await, Ok(true));
        assert_eq!(passwords.remembered.lock().known.len(), 1, "only the correct password");

        // All permits are taken: only cached passwords get an answer.
        let _held = passwords.permits.clone().acquire_many_owned(MAX_CONCURRENT as u32).await.unwrap();
        assert_eq!(passwords.check("ada", b"correct", Some(&stored), HERE).await, Ok(true));
        let other: Arc<str> = hash(b"correct").unwrap().into();
        for (user, password, stored) in
            [("ada", &b"wrong"[..], &stored), ("bob", b"correct", &stored), ("ada", b"correct", &other)]
        {
            let mut waits = ready_result(passwords.check(user, password, Some(stored), HERE));
            assert!(waits.take().is_none(), "the check of {user} waits for a permit");
        }
    }

    /// The result, if the future is ready at the first poll.
    fn ready_result<T>(future: impl Future<Output = T>) -> Option<T> {
        use futures_util::FutureExt;
        Box::pin(future).now_or_never()
    }

    #[tokio::test]
    async fn unknown_users_are_refused_and_waiting_checks_are_bounded() {
        let passwords = Passwords::new();
        assert!(is_hash(&passwords.decoy));
        assert_eq!(passwords.check("nobody", b"x", None, HERE).await, Ok(false));
        passwords.waiting.store(MAX_WAITING, Ordering::Relaxed);
        assert_eq!(passwords.check("nobody", b"x", None, HERE).await, Err(Busy));
        assert_eq!(passwords.waiting.load(Ordering::Relaxed), MAX_WAITING);
    }

    #[tokio::test]
    async fn guesses_from_one_address_do_not_block_others() {
        let passwords = Passwords::new();
        let stored: Arc<str> = hash(b"correct").unwrap().into();
        let guess = || passwords.check("ada", b"wrong", Some(&stored), HERE);
        let guesses: Vec<_> = (0..280).map(|_| guess()).collect();
        let there = "10.0.0.1".parse().unwrap();
        let (guesses, right) = tokio::join!(
            futures_util::future::join_all(guesses),
            passwords.check("ada", b"correct", Some(&stored), there)
        );
        assert_eq!(right, Ok(true));
        assert_eq!(guesses.iter().filter(|guess| **guess == Ok(false)).count(), WAITING_PER_ADDRESS);
        assert_eq!(guess().await, Ok(false));
    }

    #[test]
    fn the_cache_is_bounded() {
        let passwords = Passwords::new();
        for number in 0..MAX_REMEMBERED as u64 + 10 {
            let mut fingerprint = [0; 32];
            fingerprint[..8].copy_from_slice(&number.to_le_bytes());
            passwords.remember(fingerprint);
        }
        let remembered = passwords.remembered.lock();
        assert_eq!((remembered.known.len(), remembered.oldest.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert!(!remembered.known.contains(&[0; 32]), "the oldest entry is removed");
    }

    #[test]
    fn other_text_is_not_a_hash() {
        for text in
            ["", "secret", "$2b$10$abcdefghijklmnopqrstuv", "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ"]
        {
            assert!(!is_hash(text), "{text}");
        }
    }
}
