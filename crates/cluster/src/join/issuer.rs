//! Join tokens that a node has issued. No clock and no socket.

use super::protocol::JoinRefusal;
use super::token::SECRET_BYTES;
use crate::ClusterKey;

/// Tokens that may be open at the same time.
const MAX_TOKENS: usize = 64;
/// Time for which a token is remembered after its expiry, so that its holder gets `ExpiredToken`.
const REMEMBERED_MS: u64 = 10 * 60_000;
/// Wrong tokens that may be tried in one burst.
const MAX_WRONG_ATTEMPTS: u64 = 10;
/// The burst refills by one attempt in this time.
const WRONG_ATTEMPT_REFILL_MS: u64 = 3_000;

/// Issues join tokens and checks them. Keeps only hashes of their secrets.
#[derive(Default)]
pub(crate) struct TokenIssuer {
    key: Option<ClusterKey>,
    tokens: Vec<Issued>,
    /// Time at which all wrong attempts so far are forgotten, in milliseconds.
    attempts_forgotten_at_ms: u64,
}

struct Issued {
    hash: blake3::Hash,
    expires_ms: u64,
    used: bool,
}

impl TokenIssuer {
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

    /// Time until which joining nodes are answered, in milliseconds; `None` if no token is remembered.
    pub(crate) fn open_until_ms(&self) -> Option<u64> {
        self.tokens.iter().map(|token| token.expires_ms.saturating_add(REMEMBERED_MS)).max()
    }

    /// Drops tokens that expired more than 10 minutes ago, and the key with the last of them.
    pub(crate) fn forget(&mut self, now_ms: u64) {
        self.tokens.retain(|token| token.expires_ms.saturating_add(REMEMBERED_MS) > now_ms);
        if self.tokens.is_empty() {
            self.key = None;
        }
    }

    /// The cluster key, if the secret admits its holder. The token can still be used after that.
    ///
    /// # Errors
    /// `WrongToken`, `UsedToken`, `ExpiredToken`, or `TooManyAttempts` after too many of these.
    pub(super) fn check(&mut self, secret: &[u8], now_ms: u64) -> Result<ClusterKey, JoinRefusal> {
        let hash = blake3::hash(secret);
        // The comparison of hashes takes the same time whatever is in them.
        let token = self.tokens.iter().find(|token| token.hash == hash);
        let reason = match (token, &self.key) {
            (Some(token), _) if token.used => JoinRefusal::UsedToken,
            (Some(token), _) if token.expires_ms <= now_ms => JoinRefusal::ExpiredToken,
            // A holder of 16 random bytes is not guessing, and is not delayed by those that are.
            (Some(_), Some(key)) => return Ok(key.clone()),
            _ => JoinRefusal::WrongToken,
        };
        if self.attempts_forgotten_at_ms.saturating_sub(now_ms)
            >= MAX_WRONG_ATTEMPTS * WRONG_ATTEMPT_REFILL_MS
        {
            return Err(JoinRefusal::TooManyAttempts);
        }
        self.attempts_forgotten_at_ms = self.attempts_forgotten_at_ms.max(now_ms) + WRONG_ATTEMPT_REFILL_MS;
        Err(reason)
    }

    /// Marks a token as used.
    pub(super) fn use_up(&mut self, secret: &[u8]) {
        let hash = blake3::hash(secret);
        self.tokens.iter_mut().filter(|token| token.hash == hash).for_each(|token| token.used = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_once_and_for_its_life() {
        let (mut issuer, key) = (TokenIssuer::default(), ClusterKey::generate());
        let (first, second) = (issuer.open(&key, 0, 1_000), issuer.open(&key, 0, 2_000));
        assert!(issuer.check(&first, 999).is_ok());
        assert!(issuer.check(&first, 999).is_ok(), "a check alone uses nothing up");
        issuer.use_up(&first);
        assert_eq!(issuer.check(&first, 999).unwrap_err(), JoinRefusal::UsedToken);
        assert!(issuer.check(&second, 999).is_ok());
        assert_eq!(issuer.check(&second, 2_000).unwrap_err(), JoinRefusal::ExpiredToken);
        assert_eq!(issuer.check(b"", 999).unwrap_err(), JoinRefusal::WrongToken);
        assert_eq!(issuer.open_until_ms(), Some(602_000));
        issuer.forget(602_000);
        assert_eq!(issuer.open_until_ms(), None);
        assert!(issuer.key.is_none());
    }

    #[test]
    fn guessing_is_slow_and_holds_nobody_up() {
        let (mut issuer, key) = (TokenIssuer::default(), ClusterKey::generate());
        let secret = issuer.open(&key, 0, u64::MAX);
        let answers: Vec<JoinRefusal> = (0..20).map(|_| issuer.check(b"guess", 0).unwrap_err()).collect();
        assert_eq!(answers.iter().filter(|answer| **answer == JoinRefusal::WrongToken).count(), 10);
        assert!(issuer.check(&secret, 0).is_ok());
        let tried = (0..60_000)
            .filter(|now_ms| {
                issuer.check(b"guess", *now_ms).is_err_and(|refused| refused == JoinRefusal::WrongToken)
            })
            .count();
        assert!((19..=20).contains(&tried), "{tried} in a minute");
    }

    #[test]
    fn tokens_are_few() {
        let (mut issuer, key) = (TokenIssuer::default(), ClusterKey::generate());
        let first = issuer.open(&key, 0, 1_000);
        for _ in 0..100 {
            issuer.open(&key, 0, 1_000);
        }
        assert_eq!(issuer.tokens.len(), MAX_TOKENS);
        assert_eq!(issuer.check(&first, 0).unwrap_err(), JoinRefusal::WrongToken);
    }
}
