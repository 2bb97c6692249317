//! Lookup of the addresses of a host name.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::fair_pool::{FairPool, ShareError};

/// Stack size of a lookup thread: more than the system's resolver needs.
const STACK_BYTES: usize = 512 << 10;

/// Errors of a lookup.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The owner's share of lookups is used up.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The system's resolver failed, or the name has no address.
    #[error("{name}: {reason}")]
    Failed {
        /// The name.
        name: String,
        /// The error of the resolver. It has no error code, only a text.
        reason: io::Error,
    },
}

/// Looks up the addresses of a name with the system's resolver.
///
/// A lookup blocks a thread until the resolver returns, and cannot be cancelled. It holds its share of `lookups` until then,
/// also if the future is dropped.
pub async fn lookup(
    lookups: &FairPool,
    owner: &Arc<str>,
    name: &str,
    port: u16,
) -> Result<Vec<SocketAddr>, LookupError> {
    let share = lookups.take(owner, 1).await?;
    let (answer, answered) = oneshot::channel();
    let host = name.to_owned();
    let resolve = move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        drop(share);
        let _ = answer.send(found);
    };
    let failed = |reason| LookupError::Failed { name: name.to_owned(), reason };
    // A thread of its own: the few blocking threads of a worker are also used for files.
    std::thread::Builder::new()
        .name("lookup".into())
        .stack_size(STACK_BYTES)
        .spawn(resolve)
        .map_err(failed)?;
    let found: io::Result<Vec<SocketAddr>> =
        answered.await.unwrap_or_else(|_| Err(io::Error::other("the lookup ended without an answer")));
    match found.map_err(failed)? {
        found if found.is_empty() => Err(failed(io::Error::other("it has no address"))),
        found => Ok(found),
    }
}
