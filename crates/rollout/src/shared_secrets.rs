//! Secrets that all members of a cluster have: fields of an object for each app. Each node copies them into its own secrets,
//! from where functions get them.

use edgefaas_crdt::{Field, Operation, Value};
use edgefaas_functions::secrets::{SecretName, Secrets, SharedDigest};
use edgefaas_manifest::{is_name, is_secret_name};
use edgefaas_state::objects::{CLUSTER_APP, FieldKey, MAX_FIELDS_PER_OBJECT, Objects};
use edgefaas_state::store::Batch;

/// Prefix of the objects with the secrets of an app.
const OBJECT_PREFIX: &str = "secrets/";
/// First byte of a value that is set, and the only one of a value that was removed.
const SET: u8 = 1;
const REMOVED: u8 = 0;

/// The app whose secrets an object has.
pub fn app_of_object(object: &str) -> Option<&str> {
    object.strip_prefix(OBJECT_PREFIX).filter(|app| is_name(app))
}

/// Adds a secret to a batch, for all members; `None` removes it.
pub fn put(batch: &mut Batch, app: &str, name: &str, value: Option<&str>) {
    let mut bytes = Vec::with_capacity(1 + value.map_or(0, str::len));
    bytes.push(if value.is_some() { SET } else { REMOVED });
    bytes.extend_from_slice(value.unwrap_or_default().as_bytes());
    batch.operate(key(app, name), Operation::RegisterSet(bytes.into()));
}

/// The digest of the cluster's value of a secret, for a change on one node; of no bytes if the cluster has none.
pub fn digest(objects: &Objects, app: &str, name: &str) -> SharedDigest {
    let shared = objects.read(&key(app, name), |field| field.map(Field::value)).ok().flatten();
    match shared {
        Some(Value::Register(Some(shared))) => digest_of(&shared),
        _ => digest_of(&[]),
    }
}

fn digest_of(shared: &[u8]) -> SharedDigest {
    *blake3::hash(shared).as_bytes()
}

/// Adds the secrets of an app that this node has and the cluster does not.
pub fn put_missing(batch: &mut Batch, objects: &Objects, secrets: &Secrets, app: &str) {
    for SecretName { name, .. } in secrets.names(Some(app)) {
        let is_known = objects.read(&key(app, &name), |field| field.is_some()).unwrap_or(true);
        if !is_known && let Some(value) = secrets.get(app, &name) {
            put(batch, app, &name, Some(&value));
        }
    }
}

/// Copies the shared secrets of all apps.
pub(crate) async fn apply_all(objects: &Objects, secrets: &Secrets) {
    let mut after = OBJECT_PREFIX.to_owned();
    loop {
        let listed = match objects.list(Some(CLUSTER_APP), Some((CLUSTER_APP, &after)), 1000) {
            Ok(listed) => listed,
            Err(error) => return tracing::error!(%error, "secrets of the cluster cannot be read"),
        };
        let Some(last) = listed.last() else { return };
        after.clone_from(&last.object);
        for object in &listed {
            let Some(app) = app_of_object(&object.object) else { return };
            apply(objects, secrets, app).await;
        }
    }
}

/// Copies the shared secrets of an app that differ.
pub(crate) async fn apply(objects: &Objects, secrets: &Secrets, app: &str) {
    let keys =
        match objects.fields(CLUSTER_APP, &format!("{OBJECT_PREFIX}{app}"), None, MAX_FIELDS_PER_OBJECT) {
            Ok(keys) => keys,
            Err(error) => return tracing::error!(app, %error, "secrets of the cluster cannot be read"),
        };
    for key in keys {
        let name = key.field();
        let shared = objects.read(&key, |field| field.map(Field::value)).ok().flatten();
        let Some(Value::Register(Some(shared))) = shared else { continue };
        if secrets.holds_over(app, name, &digest_of(&shared)) {
            continue;
        }
        let current = secrets.get(app, name);
        let result = match shared.split_first() {
            Some((&SET, value)) if is_secret_name(name) => match String::from_utf8(value.to_vec()) {
                Ok(value) if current.as_ref() != Some(&value) => secrets.set(app, name, value).await,
                _ => continue,
            },
            Some((&REMOVED, [])) if current.is_some() => {
                secrets.remove(&SecretName { app: Some(app.to_owned()), name: name.to_owned() }).await
            }
            _ => continue,
        };
        if let Err(error) = result {
            tracing::warn!(app, secret = name, %error, "a secret of the cluster could not be stored");
        }
    }
}

fn key(app: &str, name: &str) -> FieldKey {
    FieldKey::new(CLUSTER_APP, &format!("{OBJECT_PREFIX}{app}"), name)
}
