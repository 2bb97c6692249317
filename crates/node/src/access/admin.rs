//! Access control by an operator: users, reloads, and disconnects after a credential ends.

use std::future::pending;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use edgefaas_api::ControlEndpoint;
use edgefaas_broker::{Broker, Client};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::sessions::Credential;
use super::users::{Change, hash_password};
use super::{Access, AccessSection, Policy, PolicyError, Role, Users, UsersError, users};
use crate::tls::{Tls, TlsError};

/// Minimum interval between two checks for expired tokens: an expired session stays listed until it is disconnected.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval between two checks while tokens are in use: the wall clock may be set meanwhile.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Changes users, rules and certificates while the node runs.
pub struct AccessControl {
    access: Arc<Access>,
    tls: Option<Arc<Tls>>,
    broker: Broker,
    section: AccessSection,
    data_dir: PathBuf,
    /// Address of the control port, if it speaks TLS.
    secure_control: Option<SocketAddr>,
    /// Serialises changes: file and policy change together.
    changing: Mutex<()>,
}

/// The policy after a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// Users.
    pub users: usize,
    /// Rules; `None` without a file.
    pub rules: Option<usize>,
    /// SHA-256 of the server's certificate, if it has one.
    pub fingerprint: Option<String>,
}

/// The reload failed; the previous policy stays in force.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// Users, rules or keys are invalid.
    #[error("{0}\nnothing was reloaded; the previous settings stay in force")]
    Policy(#[from] PolicyError),
    /// Certificates are invalid.
    #[error("{0}\nnothing was reloaded; the previous settings stay in force")]
    Tls(#[from] TlsError),
}

impl AccessControl {
    /// Access control of a node with this configuration.
    pub fn new(
        access: Arc<Access>,
        tls: Option<Arc<Tls>>,
        broker: Broker,
        section: AccessSection,
        data_dir: PathBuf,
        secure_control: Option<SocketAddr>,
    ) -> Self {
        let changing = Mutex::default();
        let control = Self { access, tls, broker, section, data_dir, secure_control, changing };
        control.announce_certificate();
        control
    }

    /// The names and roles of all users.
    pub fn users(&self) -> Vec<(String, Option<Role>)> {
        let policy = self.access.policy();
        let users = policy.users();
        users.names().map(|name| (name.to_owned(), users.role(name))).collect()
    }

    /// The file of the access rules, and the text that is in force; `None` without a file.
    pub fn rules_file(&self) -> Option<(&Path, String)> {
        let text = self.access.policy().rules_text().map(str::to_owned)?;
        Some((self.section.acl.as_deref()?, text))
    }

    /// The users, rules and tokens in force.
    pub fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// The fingerprint of the server's certificate, if a listener speaks TLS.
    pub fn fingerprint(&self) -> Option<String> {
        self.tls.as_ref().map(|tls| tls.fingerprint())
    }

    /// Adds a user. The user can connect immediately.
    ///
    /// # Errors
    /// The user is invalid or exists, or the file cannot be written; users are unchanged.
    pub async fn add_user(
        &self,
        name: String,
        password: String,
        role: Option<Role>,
    ) -> Result<(), UsersError> {
        self.change(move |dir| {
            users::change(&dir, &name, Change::Add(&hash_password(password.as_bytes())?, role))
        })
        .await
    }

    /// Gives a user another role at the control API, or none. Requests of the user's sessions have it from now on.
    ///
    /// # Errors
    /// The user does not exist, or the file cannot be written; users are unchanged.
    pub async fn set_role(&self, name: String, role: Option<Role>) -> Result<(), UsersError> {
        self.change(move |dir| users::change(&dir, &name, Change::SetRole(role))).await
    }

    /// Changes a user's password. Existing connections stay.
    ///
    /// # Errors
    /// The user does not exist, the password is invalid, or the file cannot be written; users are unchanged.
    pub async fn set_password(&self, name: String, password: String) -> Result<(), UsersError> {
        self.change(move |dir| {
            users::change(&dir, &name, Change::SetPassword(&hash_password(password.as_bytes())?))
        })
        .await
    }

    /// Removes a user and disconnects the connections made with the user's password.
    ///
    /// # Errors
    /// The user does not exist, or the file cannot be written; users are unchanged.
    pub async fn remove_user(&self, name: String) -> Result<(), UsersError> {
        self.change(move |dir| users::change(&dir, &name, Change::Remove)).await
    }

    /// Reads users, rules, keys and certificates again. Connections stay; subscriptions that are no longer allowed end,
    /// and connections of removed users are closed.
    ///
    /// # Errors
    /// A file is invalid: the previous policy stays in force.
    pub async fn reload(&self) -> Result<Reloaded, ReloadError> {
        let _changing = self.changing.lock().await;
        let (section, data_dir, tls) = (self.section.clone(), self.data_dir.clone(), self.tls.clone());
        let loaded = tokio::task::spawn_blocking(move || {
            let policy = Policy::load(&section, &data_dir)?;
            let certificates = tls.map(|tls| tls.load_again()).transpose()?;
            Ok::<_, ReloadError>((policy, certificates))
        });
        let (policy, certificates) = loaded.await.map_err(|error| {
            let path = self.data_dir.clone();
            PolicyError::Users(UsersError::Read { path, reason: std::io::Error::other(error) })
        })??;
        if let (Some(tls), Some(certificates)) = (&self.tls, certificates) {
            tls.replace(certificates);
            self.announce_certificate();
        }
        let reloaded = Reloaded {
            users: policy.users().len(),
            rules: self.section.acl.is_some().then(|| policy.rules().len()),
            fingerprint: self.fingerprint(),
        };
        self.put_in_force(policy);
        Ok(reloaded)
    }

    /// Ends sessions whose token has expired or whose user was removed, until `cancel` fires.
    pub async fn end_expired(&self, cancel: CancellationToken) {
        let sessions = &self.access.sessions;
        loop {
            let now = self.access.now_unix_s();
            let is_valid = |credential: &Credential| match credential {
                Credential::Token { expires_unix_s } => now < *expires_unix_s,
                Credential::Password { .. } => true,
            };
            self.disconnect(sessions.with_invalid_credential(is_valid), "its token has expired");
            self.end_removed();
            let expiry = async {
                match sessions.next_expiry_unix_s() {
                    Some(expiry) => {
                        let left = Duration::from_secs(expiry.saturating_sub(now));
                        tokio::time::sleep(left.clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)).await;
                    }
                    None => pending().await,
                }
            };
            tokio::select! {
                () = expiry => {}
                () = sessions.changed() => {}
                () = cancel.cancelled() => return,
            }
        }
    }

    async fn change<F>(&self, change: F) -> Result<(), UsersError>
    where
        F: FnOnce(PathBuf) -> Result<Users, UsersError> + Send + 'static,
    {
        let _changing = self.changing.lock().await;
        let data_dir = self.data_dir.clone();
        let changed = tokio::task::spawn_blocking(move || change(data_dir)).await;
        let users = changed.map_err(|error| UsersError::Write {
            path: self.data_dir.join(users::USERS_FILE),
            reason: std::io::Error::other(error),
        })??;
        self.access.policy.rcu(|policy| policy.with_users(users.clone()));
        self.end_removed();
        Ok(())
    }

    /// Logs the fingerprint, and stores it with the address of the control port for commands on this machine.
    fn announce_certificate(&self) {
        let fingerprint = self.fingerprint();
        if let Some(fingerprint) = &fingerprint {
            tracing::info!("the certificate's SHA-256 fingerprint is {fingerprint}");
        }
        let port = self.secure_control.zip(fingerprint);
        if let Err(error) = ControlEndpoint::write(&self.data_dir, port) {
            tracing::warn!(%error, "the address of the control port could not be stored for commands on this machine");
        }
    }

    fn put_in_force(&self, policy: Policy) {
        self.access.policy.store(Arc::new(policy));
        self.broker.recheck();
        self.end_removed();
    }

    fn end_removed(&self) {
        let policy = self.access.policy();
        let removed = self.access.sessions.with_invalid_credential(|credential| match credential {
            Credential::Password { user } => policy.users().hash(user).is_some(),
            Credential::Token { .. } => true,
        });
        self.disconnect(removed, "its user was removed");
    }

    fn disconnect(&self, clients: Vec<Arc<Client>>, reason: &str) {
        for client in clients {
            tracing::info!(
                client = &*client.client_id,
                user = client.username.as_deref(),
                "disconnected: {reason}"
            );
            self.broker.disconnect(&client.client_id);
        }
    }
}
