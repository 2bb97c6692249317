//! Access control: users and passwords, tokens, client certificates, and rules for publishing and subscribing.
//!
//! A [`Policy`] is an immutable snapshot. A reload makes a new one and swaps it; if a file is invalid the old one stays
//! in force. `hook` checks the policy at every CONNECT, SUBSCRIBE and PUBLISH.

mod admin;
mod bearer;
mod certificate;
mod failed_logins;
mod filter;
mod hook;
mod jwt;
mod passwords;
mod role;
mod rules;
mod sessions;
mod sign_in;
mod users;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use edgefaas_platform::{Clock, is_loopback};
use passwords::Passwords;
use serde::{Deserialize, Serialize};
use sessions::Sessions;

pub use admin::{AccessControl, ReloadError, Reloaded};
pub use bearer::{TokenError, bearer, token_in};
pub use failed_logins::FailedLogins;
pub use filter::ClientNames;
pub use hook::{AccessHook, CONTROL_CLIENTS};
pub use jwt::{Claims, Jwt, JwtError, JwtKeyError, JwtSection};
pub use role::{Role, UnknownRole};
pub use rules::{Action, Rules};
pub use sign_in::{SignInError, SignedIn};
pub use users::{
    Change as UserChange, Users, UsersError, change as change_users, hash_password, is_user_name,
};

/// `[access]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AccessSection {
    /// Accepts anonymous clients: all (`true`), none (`false`), or by default only those on this machine.
    pub allow_anonymous: Option<bool>,
    /// The file with the rules; without one, every accepted client may do everything.
    pub acl: Option<PathBuf>,
    /// Tokens.
    pub jwt: Option<JwtSection>,
}

/// The policy cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The rules cannot be read.
    #[error("access.acl {path} cannot be read: {reason}")]
    ReadAcl {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The rules are invalid.
    #[error("access.acl {path} is not valid:\n{reason}")]
    Acl {
        /// The file.
        path: PathBuf,
        /// Position and reason.
        reason: Box<toml::de::Error>,
    },
    /// The keys of tokens are invalid.
    #[error(transparent)]
    Jwt(#[from] JwtKeyError),
    /// The users are invalid.
    #[error(transparent)]
    Users(#[from] UsersError),
}

/// The access policy in force, as one snapshot.
pub struct Policy {
    users: Users,
    rules: Arc<Rules>,
    rules_text: Option<Arc<str>>,
    jwt: Option<Arc<Jwt>>,
    allow_anonymous: Option<bool>,
}

impl Policy {
    /// Reads all files of the section and the data directory.
    ///
    /// # Errors
    /// The first invalid file.
    pub fn load(section: &AccessSection, data_dir: &Path) -> Result<Self, PolicyError> {
        let users = Users::load(data_dir)?;
        let (rules, rules_text) = match &section.acl {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|reason| PolicyError::ReadAcl { path: path.clone(), reason })?;
                let rules = Rules::parse(&text)
                    .map_err(|reason| PolicyError::Acl { path: path.clone(), reason })?;
                (rules, Some(text.into()))
            }
            None => (Rules::open(), None),
        };
        let jwt = section.jwt.as_ref().map(Jwt::load).transpose()?;
        Ok(Self {
            users,
            rules: Arc::new(rules),
            rules_text,
            jwt: jwt.map(Arc::new),
            allow_anonymous: section.allow_anonymous,
        })
    }

    /// True if users or tokens are configured.
    pub fn has_credentials(&self) -> bool {
        !self.users.is_empty() || self.jwt.is_some()
    }

    /// True if an anonymous client may connect from this address.
    pub fn allows_anonymous(&self, peer: SocketAddr) -> bool {
        self.allow_anonymous.unwrap_or_else(|| is_loopback(peer.ip()))
    }

    /// The rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The text of the rules, as it was read; `None` without a file.
    pub fn rules_text(&self) -> Option<&str> {
        self.rules_text.as_deref()
    }

    /// The users.
    pub fn users(&self) -> &Users {
        &self.users
    }

    /// The verifier of tokens, if tokens are configured.
    pub fn jwt(&self) -> Option<&Jwt> {
        self.jwt.as_deref()
    }

    /// A copy with other users.
    fn with_users(&self, users: Users) -> Self {
        let Self { rules, rules_text, jwt, allow_anonymous, .. } = self;
        let (rules, rules_text, jwt) = (rules.clone(), rules_text.clone(), jwt.clone());
        Self { users, rules, rules_text, jwt, allow_anonymous: *allow_anonymous }
    }
}

/// Access decisions for clients; the broker's hook.
pub struct Access {
    policy: ArcSwap<Policy>,
    passwords: Passwords,
    failed: FailedLogins,
    sessions: Sessions,
    clock: Clock,
    refusals: hook::RefusalLog,
    refused_logins: hook::RefusalLog,
}

impl Access {
    /// Access with this policy in force.
    pub fn new(policy: Policy, clock: Clock) -> Self {
        Self {
            policy: ArcSwap::from_pointee(policy),
            passwords: Passwords::new(),
            failed: FailedLogins::default(),
            sessions: Sessions::default(),
            clock,
            refusals: hook::RefusalLog::default(),
            refused_logins: hook::RefusalLog::default(),
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Verifies a token at the current time.
    ///
    /// # Errors
    /// The failed check; `None` if tokens are not configured.
    pub fn check_token(&self, token: &[u8]) -> Result<Claims, Option<JwtError>> {
        let policy = self.policy.load();
        let jwt = policy.jwt().ok_or(None)?;
        jwt.check(token, self.now_unix_s()).map_err(Some)
    }

    /// Delays the answer to a request with an invalid token.
    pub async fn hold_back(&self, address: IpAddr) {
        tokio::time::sleep(self.failed.failed(address, "")).await;
    }

    fn now_unix_s(&self) -> u64 {
        self.clock.now_unix_ms() / 1000
    }
}
