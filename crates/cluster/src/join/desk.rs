//! Which tokens are open at their issuer. No clock and no socket.

use crate::ClusterKey;

use super::Refused;
use super::token::SECRET_BYTES;

/// Tokens that may be open at once.
const MAX_TOKENS: usize = 64;
/// For so long after a token's end its holder is told that it came too late.
const REMEMBERED_MS: u64 = 10 * 60_000;
/// Wrong tokens that may be tried at once, and how soon another may be.
const MAX_WRONG: u64 = 10;
const WRONG_PER_MS: u64 = 3_000;

/// The issuer's side of tokens: only hashes of their secrets are kept.
#[derive(Default)]
pub(crate) struct Desk {
    key: Option<ClusterKey>,
    tokens: Vec<Issued>,
    /// When the tries that were made would all be forgotten.
    calm_at_ms: u64,
}

struct Issued {
    hash: blake3::Hash,
    expires_ms: u64,
    used: bool,
}

impl Desk {
    /// Opens a token and gives its secret. The oldest is dropped if there are too many.
    pub(crate) fn open(&mut self, key: &ClusterKey, now_ms: u64, life_ms: u64) -> [u8; SECRET_BYTES] {
        self.forget(now_ms);
        if self.tokens.len() >= MAX_TOKENS {
            self.tokens.remove(0);
        }
        let secret: [u8; SECRET_BYTES] = rand::random();
        let expires_ms = now_ms.saturating_add(life_ms);
        self.tokens.push(Issued { hash: blake3::hash(&secret), expires_ms, used: false });
        self.key = Some(key.clone());
        secret
    }

    /// Until when newcomers have to be answered; none if nobody is expected.
    pub(crate) fn open_until_ms(&self) -> Option<u64> {
        self.tokens.iter().map(|token| token.expires_ms.saturating_add(REMEMBERED_MS)).max()
    }

    /// Drops tokens whose end is long past, and the key with the last of them.
    pub(crate) fn forget(&mut self, now_ms: u64) {
        self.tokens.retain(|token| token.expires_ms.saturating_add(REMEMBERED_MS) > now_ms);
        if self.tokens.is_empty() {
            self.key = None;
        }
    }

    /// Whether a secret lets its holder in, and the key to do it with.
    pub(super) fn check(&mut self, secret: &[u8], now_ms: u64) -> Result<ClusterKey, Refused> {
        let hash = blake3::hash(secret);
        // The comparison of hashes takes the same time whatever is in them.
        let token = self.tokens.iter().find(|token| token.hash == hash);
        let reason = match (token, &self.key) {
            (Some(token), _) if token.used => Refused::Used,
            (Some(token), _) if token.expires_ms <= now_ms => Refused::Expired,
            // Who knows a secret of 16 random bytes is not guessing, and is not held up by those who are.
            (Some(_), Some(key)) => return Ok(key.clone()),
            _ => Refused::Wrong,
        };
        if self.calm_at_ms.saturating_sub(now_ms) >= MAX_WRONG * WRONG_PER_MS {
            return Err(Refused::TooMany);
        }
        self.calm_at_ms = self.calm_at_ms.max(now_ms) + WRONG_PER_MS;
        Err(reason)
    }

    /// A secret has done its work.
    pub(super) fn burn(&mut self, secret: &[u8]) {
        let hash = blake3::hash(secret);
        self.tokens.iter_mut().filter(|token| token.hash == hash).for_each(|token| token.used = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_for_its_life() {
        let (mut desk, key) = (Desk::default(), ClusterKey::generate());
        let (first, second) = (desk.open(&key, 0, 1_000), desk.open(&key, 0, 2_000));
        assert!(desk.check(&first, 999).is_ok());
        assert!(desk.check(&first, 999).is_ok(), "a check alone uses nothing up");
        desk.burn(&first);
        assert_eq!(desk.check(&first, 999).unwrap_err(), Refused::Used);
        assert!(desk.check(&second, 999).is_ok());
        assert_eq!(desk.check(&second, 2_000).unwrap_err(), Refused::Expired);
        assert_eq!(desk.check(b"", 999).unwrap_err(), Refused::Wrong);
        assert_eq!(desk.open_until_ms(), Some(602_000));
        desk.forget(602_000);
        assert_eq!(desk.open_until_ms(), None);
        assert!(desk.key.is_none());
    }

    #[test]
    fn guessing_is_slow_and_holds_nobody_up() {
        let (mut desk, key) = (Desk::default(), ClusterKey::generate());
        let secret = desk.open(&key, 0, u64::MAX);
        let answers: Vec<Refused> = (0..20).map(|_| desk.check(b"guess", 0).unwrap_err()).collect();
        assert_eq!(answers.iter().filter(|answer| **answer == Refused::Wrong).count(), 10);
        assert!(desk.check(&secret, 0).is_ok());
        let tried = (0..60_000)
            .filter(|now_ms| desk.check(b"guess", *now_ms).is_err_and(|refused| refused == Refused::Wrong))
            .count();
        assert!((19..=20).contains(&tried), "{tried} in a minute");
    }

    #[test]
    fn tokens_are_few() {
        let (mut desk, key) = (Desk::default(), ClusterKey::generate());
        let first = desk.open(&key, 0, 1_000);
        for _ in 0..100 {
            desk.open(&key, 0, 1_000);
        }
        assert_eq!(desk.tokens.len(), MAX_TOKENS);
        assert_eq!(desk.check(&first, 0).unwrap_err(), Refused::Wrong);
    }
}
