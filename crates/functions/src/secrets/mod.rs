//! Secrets: values that only functions can read. The control API can set and remove them, but not read them.

mod mask;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use edgefaas_state::store::{Batch, CommitError, Durability, Store, StoreError};
use parking_lot::RwLock;
use serde_json::Value;

use mask::Masked;

/// Maximum size of a value, in bytes.
pub const MAX_VALUE_BYTES: usize = 64 << 10;

/// Separates app and name in a key of the store. Neither can contain it. A key that begins with it has no app. A key without
/// it was written by an earlier version, in which secrets belonged to the node.
const SEPARATOR: char = '/';
/// Ends the key, after app and name, of the mark of a secret that holds on this node alone. Its value is the digest of the
/// cluster's value.
const OWN: &str = "own";

/// BLAKE3 digest of the value that a cluster has for a secret, in its stored form.
pub type SharedDigest = [u8; 32];

/// The secrets of all apps, in memory and in the store. Only the owner of the data directory can read its files.
pub struct Secrets {
    store: Arc<Store>,
    values: RwLock<Values>,
    // Held during a change of the store and of `values`: one change at a time.
    changing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Values {
    /// By app, then by name.
    of_apps: BTreeMap<String, BTreeMap<String, Secret>>,
    /// By name: secrets of an earlier version, until [`Secrets::assign`] moves them.
    of_node: BTreeMap<String, String>,
    /// By name: secrets of an earlier version that no app named when [`Secrets::assign`] moved them. No function can read
    /// them.
    unassigned: BTreeMap<String, String>,
    /// By key: the cluster's values that secrets of this node alone replace.
    own: BTreeMap<String, SharedDigest>,
}

struct Secret {
    value: String,
    masked: Masked,
}

/// The name of a secret and its app; `app` is `None` for an unassigned secret of an earlier version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName {
    /// The app.
    pub app: Option<String>,
    /// The name in the app.
    pub name: String,
}

/// Errors of a change of a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The name is invalid.
    #[error("`{name}` is not a valid secret name: use 1 to 256 letters, digits, `_`, `-` and `.`")]
    Name {
        /// The invalid name.
        name: String,
    },
    /// The value is larger than [`MAX_VALUE_BYTES`].
    #[error("the value of secret `{name}` has {actual_bytes} bytes; at most {MAX_VALUE_BYTES} are allowed")]
    TooLarge {
        /// The name of the secret.
        name: String,
        /// The size of the value.
        actual_bytes: usize,
    },
    /// The name of the app is invalid.
    #[error(
        "`{app}` is not a valid app name; a secret belongs to an app: `edgefaas secrets set --app APP NAME`"
    )]
    App {
        /// The invalid name.
        app: String,
    },
    /// The secret to remove does not exist.
    #[error("there is no {secret}")]
    Unknown {
        /// The secret.
        secret: SecretName,
    },
    /// The store could not write the change.
    #[error("secret `{name}` could not be stored: {error}")]
    Commit {
        /// The name of the secret.
        name: String,
        /// The cause.
        error: CommitError,
    },
}

impl Secrets {
    /// Reads the secrets from the store.
    pub fn open(store: Arc<Store>) -> Result<Self, StoreError> {
        let mut values = Values::default();
        for entry in store.spaces().secrets.iter() {
            let (key, value) = entry.into_inner()?;
            if let Some(secret) = own_secret(&key) {
                values.own.extend(SharedDigest::try_from(&*value).ok().map(|digest| (secret, digest)));
                continue;
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (key, value) = (text(&key), text(&value));
            match key.split_once(SEPARATOR) {
                Some(("", name)) => drop(values.unassigned.insert(name.to_owned(), value)),
                Some((app, name)) => values.insert(app, name, value),
                None => drop(values.of_node.insert(key, value)),
            }
        }
        Ok(Self { store, values: RwLock::new(values), changing: tokio::sync::Mutex::default() })
    }

    /// Moves the secrets of an earlier version, which belonged to the node, to the apps that name them: `apps` has an entry
    /// for each app and each name in its manifest. A secret that no app names becomes unassigned: an app that is deployed
    /// later cannot get it by naming it. If the store cannot write a move, the next start repeats it.
    pub async fn assign(&self, apps: &[SecretName]) {
        let _changing = self.changing.lock().await;
        let of_node = std::mem::take(&mut self.values.write().of_node);
        for (name, value) in of_node {
            let apps: Vec<&str> = apps
                .iter()
                .filter(|secret| secret.name == name)
                .filter_map(|secret| secret.app.as_deref())
                .collect();
            let space = &self.store.spaces().secrets;
            let mut batch = Batch::default();
            {
                let mut values = self.values.write();
                for app in &apps {
                    if !values.has(app, &name) {
                        batch.put(space, key(app, &name), value.as_str());
                        values.insert(app, &name, value.clone());
                    }
                }
                if apps.is_empty() {
                    batch.put(space, key("", &name), value.as_str());
                    values.unassigned.insert(name.clone(), value);
                }
            }
            batch.delete(space, name.as_str());
            if let Err(error) = self.commit(&name, batch).await {
                tracing::warn!(secret = name, %error, "a secret of the whole node could not be moved");
            } else if apps.is_empty() {
                tracing::warn!(
                    secret = name,
                    "no app names this secret, which was set for the whole node; set it with `edgefaas secrets set --app APP`, \
                     or remove it with `edgefaas secrets rm --unassigned`"
                );
            } else {
                tracing::info!(
                    secret = name,
                    ?apps,
                    "a secret of the whole node belongs to the apps that name it now"
                );
            }
        }
    }

    /// The value of a secret of an app.
    pub fn get(&self, app: &str, name: &str) -> Option<String> {
        self.values.read().get(app, name).cloned()
    }

    /// The names of all secrets, or of the secrets of one app.
    pub fn names(&self, app: Option<&str>) -> Vec<SecretName> {
        let values = self.values.read();
        let of_apps = values.of_apps.iter().flat_map(|(app, secrets)| {
            secrets.keys().map(move |name| SecretName { app: Some(app.clone()), name: name.clone() })
        });
        let unassigned = values.unassigned.keys().map(|name| SecretName { app: None, name: name.clone() });
        let matches = |secret: &SecretName| app.is_none() || secret.app.as_deref() == app;
        of_apps.chain(unassigned).filter(matches).collect()
    }

    /// Sets a secret of an app. It is on the disk when this returns.
    pub async fn set(&self, app: &str, name: &str, value: String) -> Result<(), SecretError> {
        self.set_over(app, name, value, None).await
    }

    /// Sets a secret of an app on this node alone, although the cluster has the value with the digest `over`, if any. See
    /// [`holds_over`](Self::holds_over).
    pub async fn set_over(
        &self,
        app: &str,
        name: &str,
        value: String,
        over: Option<SharedDigest>,
    ) -> Result<(), SecretError> {
        if !edgefaas_manifest::is_name(app) {
            return Err(SecretError::App { app: app.to_owned() });
        }
        if !edgefaas_manifest::is_secret_name(name) {
            return Err(SecretError::Name { name: name.to_owned() });
        }
        if value.len() > MAX_VALUE_BYTES {
            return Err(SecretError::TooLarge { name: name.to_owned(), actual_bytes: value.len() });
        }
        let _changing = self.changing.lock().await;
        let mut batch = Batch::default();
        batch.put(&self.store.spaces().secrets, key(app, name), value.as_str());
        self.mark_own(&mut batch, app, name, over);
        self.commit(name, batch).await?;
        let mut values = self.values.write();
        values.insert(app, name, value);
        values.mark_own(app, name, over);
        Ok(())
    }

    /// Whether this node keeps its own secret, or does without one, although the cluster has the value with this digest: until
    /// the cluster's value changes.
    pub fn holds_over(&self, app: &str, name: &str, shared: &SharedDigest) -> bool {
        self.values.read().own.get(&key(app, name)) == Some(shared)
    }

    fn mark_own(&self, batch: &mut Batch, app: &str, name: &str, over: Option<SharedDigest>) {
        let space = &self.store.spaces().secrets;
        match over {
            Some(digest) => batch.put(space, own_key(app, name), digest),
            None if self.values.read().own.contains_key(&key(app, name)) => {
                batch.delete(space, own_key(app, name));
            }
            None => {}
        }
    }

    /// Removes a secret of an app, or an unassigned one.
    pub async fn remove(&self, secret: &SecretName) -> Result<(), SecretError> {
        self.remove_over(secret, None).await
    }

    /// Removes a secret of an app on this node alone, although the cluster has the value with the digest `over`, if any.
    pub async fn remove_over(
        &self,
        secret: &SecretName,
        over: Option<SharedDigest>,
    ) -> Result<(), SecretError> {
        let SecretName { app, name } = secret;
        let _changing = self.changing.lock().await;
        let (is_set, key) = match app {
            Some(app) => (self.values.read().has(app, name), key(app, name)),
            None => (self.values.read().unassigned.contains_key(name), key("", name)),
        };
        if !is_set {
            return Err(SecretError::Unknown { secret: secret.clone() });
        }
        let mut batch = Batch::default();
        batch.delete(&self.store.spaces().secrets, key.as_str());
        if let Some(app) = app {
            self.mark_own(&mut batch, app, name, over);
        }
        self.commit(name, batch).await?;
        let mut values = self.values.write();
        match app {
            Some(app) => {
                values.remove(app, name);
                values.mark_own(app, name, over);
            }
            None => drop(values.unassigned.remove(name)),
        }
        Ok(())
    }

    /// Replaces the secrets of an app in a text by `***`: values of at least four bytes, their base64, URL and JSON encodings, and
    /// the start of a value where the text was cut (`…`). Other text that was made from a secret is not recognised.
    pub fn mask(&self, app: &str, text: String) -> String {
        match self.values.read().of_apps.get(app) {
            Some(secrets) => mask::replace(secrets.values().map(|secret| &secret.masked), text),
            None => text,
        }
    }

    /// [`mask`](Self::mask) for the strings, the names of fields and the numbers of a JSON value. A masked number becomes a string.
    pub fn mask_json(&self, app: &str, value: Value) -> Value {
        if !self.values.read().of_apps.contains_key(app) {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.mask(app, text)),
            Value::Array(items) => items.into_iter().map(|item| self.mask_json(app, item)).collect(),
            Value::Object(fields) => {
                let masked = |(name, value)| (self.mask(app, name), self.mask_json(app, value));
                Value::Object(fields.into_iter().map(masked).collect())
            }
            Value::Number(number) => {
                let text = number.to_string();
                let masked = self.mask(app, text.clone());
                if masked == text { Value::Number(number) } else { Value::String(masked) }
            }
            other => other,
        }
    }

    async fn commit(&self, name: &str, batch: Batch) -> Result<(), SecretError> {
        let committed = self.store.committer().commit(batch, Durability::Synced).await;
        committed.map_err(|error| SecretError::Commit { name: name.to_owned(), error })
    }
}

impl Values {
    fn get(&self, app: &str, name: &str) -> Option<&String> {
        self.of_apps.get(app)?.get(name).map(|secret| &secret.value)
    }

    fn has(&self, app: &str, name: &str) -> bool {
        self.get(app, name).is_some()
    }

    fn insert(&mut self, app: &str, name: &str, value: String) {
        let secret = Secret { masked: Masked::of(&value), value };
        self.of_apps.entry(app.to_owned()).or_default().insert(name.to_owned(), secret);
    }

    fn remove(&mut self, app: &str, name: &str) {
        if let Some(secrets) = self.of_apps.get_mut(app) {
            secrets.remove(name);
            if secrets.is_empty() {
                self.of_apps.remove(app);
            }
        }
    }

    fn mark_own(&mut self, app: &str, name: &str, over: Option<SharedDigest>) {
        match over {
            Some(digest) => drop(self.own.insert(key(app, name), digest)),
            None => drop(self.own.remove(&key(app, name))),
        }
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.app {
            Some(app) => write!(out, "secret `{}` of app `{app}`", self.name),
            None => write!(out, "secret `{}` of no app", self.name),
        }
    }
}

fn key(app: &str, name: &str) -> String {
    format!("{app}{SEPARATOR}{name}")
}

fn own_key(app: &str, name: &str) -> String {
    format!("{app}{SEPARATOR}{name}{SEPARATOR}{OWN}")
}

/// The key of the secret that a mark belongs to; `None` for the key of a secret.
fn own_secret(key: &[u8]) -> Option<String> {
    let secret = std::str::from_utf8(key).ok()?.strip_suffix(OWN)?.strip_suffix(SEPARATOR)?;
    secret.contains(SEPARATOR).then(|| secret.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use edgefaas_platform::Clock;
    use edgefaas_state::store::StoreOptions;

    fn named(app: &str, name: &str) -> SecretName {
        SecretName { app: Some(app.into()), name: name.into() }
    }

    #[tokio::test]
    async fn a_secret_of_this_node_alone_holds_until_that_of_the_cluster_changes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(
            Store::open(&StoreOptions::small(dir.path()), Clock::new(|| 1_800_000_000_000)).unwrap(),
        );
        let secrets = Secrets::open(store.clone()).unwrap();
        let (old, new) = ([1; 32], [2; 32]);
        secrets.set_over("shop", "own", "x".into(), Some(old)).await.unwrap();
        secrets.set_over("shop", "gone", "x".into(), None).await.unwrap();
        secrets.remove_over(&named("shop", "gone"), Some(old)).await.unwrap();
        let reopened = Secrets::open(store.clone()).unwrap();
        for secrets in [&secrets, &reopened] {
            assert_eq!(secrets.names(None), [named("shop", "own")]);
            for name in ["own", "gone"] {
                assert!(secrets.holds_over("shop", name, &old));
                assert!(!secrets.holds_over("shop", name, &new));
            }
        }
        reopened.set("shop", "own", "y".into()).await.unwrap();
        let again = Secrets::open(store).unwrap();
        assert!(!reopened.holds_over("shop", "own", &old) && !again.holds_over("shop", "own", &old));
        assert_eq!(again.get("shop", "own").as_deref(), Some("y"));
    }

    #[tokio::test]
    async fn secrets_of_the_whole_node_go_to_the_apps_that_name_them() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::new(|| 1_800_000_000_000);
        let store = Arc::new(Store::open(&StoreOptions::small(dir.path()), clock).unwrap());
        // Keys without an app, as an earlier version wrote them.
        let mut batch = Batch::default();
        for (name, value) in [("key", "old"), ("unused", "x"), ("shop/own", "new"), ("own", "old")] {
            batch.put(&store.spaces().secrets, name, value);
        }
        store.committer().commit(batch, Durability::Synced).await.unwrap();
        let secrets = Secrets::open(store.clone()).unwrap();
        assert_eq!(secrets.get("shop", "key"), None, "`assign` was not called yet");
        secrets.assign(&[named("shop", "key"), named("pump", "key"), named("shop", "own")]).await;
        let reopened = Secrets::open(store).unwrap();
        reopened.assign(&[named("late", "key"), named("late", "unused")]).await;
        for secrets in [&secrets, &reopened] {
            assert_eq!(secrets.get("shop", "key").as_deref(), Some("old"));
            assert_eq!(secrets.get("pump", "key").as_deref(), Some("old"));
            assert_eq!(secrets.get("shop", "own").as_deref(), Some("new"), "the app's own secret stays");
            assert_eq!(secrets.get("late", "key"), None);
            assert_eq!(secrets.get("late", "unused"), None, "the app was deployed after `assign`");
            let unused = SecretName { app: None, name: "unused".into() };
            let all = [named("pump", "key"), named("shop", "key"), named("shop", "own"), unused];
            assert_eq!(secrets.names(None), all);
        }
        secrets.remove(&SecretName { app: None, name: "unused".into() }).await.unwrap();
        assert_eq!(secrets.names(None).len(), 3);
    }
}
