//! Failed logins: the answer to each further one from the same address for the same user is delayed longer.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::address_limits::network_of;

/// Delay of the first failed login; it doubles for each further one.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Maximum delay: clients and the broker wait longer for the answer to a CONNECT.
const LONGEST_DELAY: Duration = Duration::from_secs(4);
/// A failed login is forgotten after this time without a further one.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of remembered pairs of address and user, 48 bytes each.
const MAX_REMEMBERED: usize = 8192;

/// Failed logins by address (IPv6: network of 64 bits) and user.
#[derive(Debug, Default)]
pub struct FailedLogins(Mutex<HashMap<Key, Failures>>);

/// A digest, since names may be long.
type Key = [u8; 16];

#[derive(Debug, Clone, Copy)]
struct Failures {
    count: u32,
    /// Time of the last answer.
    answered: Instant,
    /// A password check runs.
    is_trying: bool,
}

/// A login attempt.
pub struct Attempt<'a> {
    all: &'a FailedLogins,
    key: Key,
    /// Exclusive: an earlier attempt failed, so others wait for this one.
    is_only: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.is_only
            && let Some(failures) = self.all.0.lock().get_mut(&self.key)
        {
            failures.is_trying = false;
        }
    }
}

/// The delayed answer to an earlier failed login of the same user from the same address is still pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an earlier login of this user from this address failed; try again later")]
pub struct TooSoon;

impl FailedLogins {
    /// Begins a login attempt. After a failed login only one runs at a time.
    ///
    /// # Errors
    /// [`TooSoon`] while an earlier answer is delayed, whatever the password is.
    pub fn begin(&self, address: IpAddr, user: &str) -> Result<Attempt<'_>, TooSoon> {
        let key = key(address, user);
        let mut failures = self.0.lock();
        let Some(failures) = failures.get_mut(&key) else {
            return Ok(Attempt { all: self, key, is_only: false });
        };
        if failures.is_trying || Instant::now() < failures.answered {
            return Err(TooSoon);
        }
        failures.is_trying = true;
        Ok(Attempt { all: self, key, is_only: true })
    }

    /// Counts a failed login and returns the delay of its answer.
    pub fn failed(&self, address: IpAddr, user: &str) -> Duration {
        let (now, key) = (Instant::now(), key(address, user));
        let mut all = self.0.lock();
        if all.len() >= MAX_REMEMBERED && !all.contains_key(&key) {
            all.retain(|_, failures| now.saturating_duration_since(failures.answered) < FORGOTTEN_AFTER);
            let oldest = all.iter().min_by_key(|(_, failures)| failures.answered).map(|(key, _)| *key);
            if let Some(oldest) = oldest.filter(|_| all.len() >= MAX_REMEMBERED) {
                all.remove(&oldest);
            }
        }
        let failures = all.entry(key).or_insert(Failures { count: 0, answered: now, is_trying: false });
        if now.saturating_duration_since(failures.answered) >= FORGOTTEN_AFTER {
            failures.count = 0;
        }
        failures.count = failures.count.saturating_add(1);
        let delay = FIRST_DELAY.saturating_mul(1 << (failures.count - 1).min(16)).min(LONGEST_DELAY);
        failures.answered = failures.answered.max(now + delay);
        delay
    }

    /// Forgets the failed logins after a successful one.
    pub fn succeeded(&self, address: IpAddr, user: &str) {
        let mut all = self.0.lock();
        if !all.is_empty() {
            all.remove(&key(address, user));
        }
    }
}

fn key(address: IpAddr, user: &str) -> Key {
    let mut hasher = blake3::Hasher::new();
    match network_of(address) {
        IpAddr::V4(address) => hasher.update(&address.octets()),
        IpAddr::V6(address) => hasher.update(&address.octets()),
    };
    let mut key = Key::default();
    hasher.update(user.as_bytes()).finalize_xof().fill(&mut key);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    #[test]
    fn delays_grow_for_each_address_and_user_separately() {
        let failed = FailedLogins::default();
        assert!(failed.begin(HERE, "ada").is_ok());
        let delays: Vec<u128> = (0..8).map(|_| failed.failed(HERE, "ada").as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 4000, 4000]);
        assert_eq!(failed.begin(HERE, "ada").err(), Some(TooSoon));
        assert!(failed.begin(HERE, "bob").is_ok());
        assert!(failed.begin("10.0.0.1".parse().unwrap(), "ada").is_ok());
        failed.succeeded(HERE, "ada");
        assert!(failed.begin(HERE, "ada").is_ok());
        assert_eq!(failed.failed(HERE, "ada"), FIRST_DELAY);
    }

    #[test]
    fn after_a_failure_one_attempt_runs_at_a_time() {
        let failed = FailedLogins::default();
        let (first, second) = (failed.begin(HERE, "ada").ok(), failed.begin(HERE, "ada").ok());
        assert!(first.is_some() && second.is_some(), "no login has failed yet");
        drop((first, second));
        failed.failed(HERE, "ada");
        for failures in failed.0.lock().values_mut() {
            failures.answered = Instant::now();
        }
        let tried = failed.begin(HERE, "ada").ok();
        // An attempt that began before the failure ends.
        drop(Attempt { all: &failed, key: key(HERE, "ada"), is_only: false });
        assert!(tried.is_some() && failed.begin(HERE, "ada").is_err());
        drop(tried);
        assert!(failed.begin(HERE, "ada").is_ok());
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_entry_is_removed_first() {
        let failed = FailedLogins::default();
        for number in 0..MAX_REMEMBERED + 10 {
            failed.failed(HERE, &number.to_string());
        }
        assert_eq!(failed.0.lock().len(), MAX_REMEMBERED);
        assert!(failed.begin(HERE, "0").is_ok());
        assert_eq!(failed.failed(HERE, &(MAX_REMEMBERED + 9).to_string()), FIRST_DELAY * 2);
    }
}
