//! Checks before anything is opened: credentials of exposed listeners, and files with keys.

use std::path::PathBuf;

use crate::access::Policy;
use crate::cluster::ClusterFiles;
use crate::config::{ConfigError, NodeConfig};
use crate::gateway::auth::HTTP_TOKEN_FILE;
use crate::{control, tls};

use super::cache_folder::CACHE_KEY_FILE;

/// Checks that clients from other machines need credentials, unless anonymous access is configured.
pub(super) fn check_credentials(config: &NodeConfig, policy: &Policy) -> Result<(), ConfigError> {
    if policy.has_credentials() || config.access.allow_anonymous == Some(true) {
        if let Some((_, address, _)) = config.wide_mqtt().find(|(listener, ..)| *listener == "mqtt") {
            tracing::warn!("mqtt = {address} does not encrypt passwords and tokens; use mqtts");
        }
        return Ok(());
    }
    match config.wide_mqtt().find(|(_, _, certified)| !certified) {
        Some((listener, address, _)) => Err(ConfigError::NoCredentials { listener, address }),
        None => Ok(()),
    }
}

/// Files that no other user may read: the node's own keys and tokens, and configured private keys and secrets.
pub(super) fn files_with_keys(config: &NodeConfig) -> impl Iterator<Item = PathBuf> {
    let own = [control::TOKEN_FILE, HTTP_TOKEN_FILE, tls::KEY_FILE, CACHE_KEY_FILE];
    let own = own.map(|name| config.data_dir.join(name));
    let of_bridges =
        config.bridges.iter().flat_map(|bridge| [bridge.key.clone(), bridge.password_file.clone()]);
    let of_tokens = config.access.jwt.as_ref().and_then(|jwt| jwt.secret.clone());
    own.into_iter()
        .chain(ClusterFiles::new(&config.data_dir).keys())
        .chain(config.tls.key.clone())
        .chain(of_tokens)
        .chain(of_bridges.flatten())
}
