//! Errors of the start and of the run of a node.

use std::path::PathBuf;

use edgefaas_broker::StorageError;
use edgefaas_isolates::engine::EngineError;
use edgefaas_platform::private_files::ExposedFiles;
use edgefaas_state::store::{LockError, StoreError, StoreFailure};

use crate::access::{PolicyError, TokenError};
use crate::cluster::ClusterError;
use crate::config::ConfigError;
use crate::listeners::ListenError;
use crate::tls::TlsError;

/// A node could not start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The configuration is no good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory can't be had.
    #[error(transparent)]
    DataDir(#[from] LockError),
    /// A listener cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The store can't be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the broker keeps can't be brought back.
    #[error("the broker cannot start: {0}")]
    Broker(StorageError),
    /// The token can't be had.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Users, rules or keys are no good.
    #[error(transparent)]
    Access(#[from] PolicyError),
    /// Other users can read keys.
    #[error(transparent)]
    Exposed(#[from] ExposedFiles),
    /// Certificates are no good.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The isolates can't be set up.
    #[error(transparent)]
    Isolates(#[from] EngineError),
    /// The cache's folder or key can't be made.
    #[error("the cache {path} cannot be used: {reason}")]
    Cache {
        /// Its folder.
        path: PathBuf,
        /// What the system says.
        reason: std::io::Error,
    },
    /// The node can't take part in its cluster.
    #[error(
        "it cannot take part in its cluster; mend that, or choose another address with --p2p ADDR:PORT"
    )]
    Cluster(#[from] ClusterError),
    /// A thread can't be started.
    #[error("a worker thread could not be started: {0}")]
    Workers(std::io::Error),
}

/// A node ended other than it should.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its parts could not be taken apart in order.
    #[error("the node could not stop in order: {0}")]
    Stop(tokio::task::JoinError),
    /// The store could not be closed.
    #[error("the store could not be closed: {0}")]
    Close(StoreError),
    /// The store takes no writes any more.
    #[error(
        "the store failed, and the node ends: {reason}; start it again: what was acknowledged is on the disk, if the disk is not \
         damaged"
    )]
    Store {
        /// The writer's failure.
        reason: StoreFailure,
    },
}
