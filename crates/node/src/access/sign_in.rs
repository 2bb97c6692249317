//! Sign-in of a user at the control API, by name and password.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Access, Role};

/// A user that has a role at the control API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedIn {
    /// The user's role.
    pub role: Role,
    /// The stored hash of the password: another one ends sessions that were made with this one.
    pub password_hash: Arc<str>,
}

/// The sign-in was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignInError {
    /// The user does not exist, or has another password.
    #[error("the user name or the password is wrong")]
    Wrong,
    /// The user may use MQTT only.
    #[error("user `{user}` has no role; `edgefaas users role {user} look` gives it one")]
    NoRole {
        /// The user's name.
        user: String,
    },
    /// Too many sign-ins of this address or for this user, or too many password checks.
    #[error("too many sign-ins; try again in a few seconds")]
    Busy,
}

impl Access {
    /// Checks name and password of a user at `address`. The answer to a wrong password is delayed, longer for each further one.
    /// Dropping the future abandons the sign-in.
    ///
    /// # Errors
    /// See [`SignInError`].
    pub async fn sign_in(
        &self,
        user: &str,
        password: &str,
        address: IpAddr,
    ) -> Result<SignedIn, SignInError> {
        let policy = self.policy();
        let hash = policy.users().hash(user);
        let role = || self.role_of(user).ok_or_else(|| SignInError::NoRole { user: user.to_owned() });
        // Wrong passwords of others at the same address do not lock the user out.
        if self.passwords.remembers(user, password.as_bytes(), hash) {
            return role();
        }
        let _attempt = self.failed.begin(address, user).map_err(|_| SignInError::Busy)?;
        match self.passwords.check(user, password.as_bytes(), hash, address).await {
            Ok(true) => self.failed.succeeded(address, user),
            Ok(false) => {
                tokio::time::sleep(self.failed.failed(address, user)).await;
                return Err(SignInError::Wrong);
            }
            Err(_) => return Err(SignInError::Busy),
        }
        role()
    }

    /// The current role and password of a user; `None` if the user does not exist or has no role.
    pub fn role_of(&self, user: &str) -> Option<SignedIn> {
        let policy = self.policy();
        let role = policy.users().role(user)?;
        let password_hash = policy.users().hash(user)?.clone();
        Some(SignedIn { role, password_hash })
    }
}
