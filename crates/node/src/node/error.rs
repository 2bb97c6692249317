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
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The data directory cannot be created or locked.
    #[error(transparent)]
    DataDir(#[from] LockError),
    /// A listener cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored state of the broker cannot be restored.
    #[error("the broker cannot start: {0}")]
    Broker(StorageError),
    /// A token cannot be read or created.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Users, rules or keys are invalid.
    #[error(transparent)]
    Access(#[from] PolicyError),
    /// Other users can read keys.
    #[error(transparent)]
    Exposed(#[from] ExposedFiles),
    /// Certificates or their keys are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The pool of isolates cannot be created.
    #[error(transparent)]
    Isolates(#[from] EngineError),
    /// The folder or the key of compiled code cannot be created.
    #[error("the cache {path} cannot be used: {reason}")]
    Cache {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// The node cannot start as a member of its cluster.
    #[error(
        "the node cannot start as a member of its cluster; choose another address with --p2p ADDR:PORT if it is in use"
    )]
    Cluster(#[from] ClusterError),
    /// A worker thread cannot be started.
    #[error("a worker thread could not be started: {0}")]
    Workers(std::io::Error),
}

/// A node did not stop in order.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The task that stops the workers and closes the store panicked.
    #[error("the node could not stop in order: {0}")]
    Stop(tokio::task::JoinError),
    /// The store could not be closed.
    #[error("the store could not be closed: {0}")]
    Close(StoreError),
    /// The store accepts no more writes.
    #[error(
        "the store failed, and the node ends: {reason}; start it again: acknowledged data is on the disk, unless the disk is \
         damaged"
    )]
    Store {
        /// The writer's failure.
        reason: StoreFailure,
    },
}
