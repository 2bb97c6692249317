//! Names to addresses.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::fair_pool::{FairPool, ShareError};

/// What the system's resolver takes of its thread's stack, with some to spare.
const STACK_BYTES: usize = 512 << 10;

/// A name has no addresses.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The owner has all the lookups that it may have.
    #[error(transparent)]
    Share(#[from] ShareError),
    /// The system's resolver says no, in words only.
    #[error("{name}: {reason}")]
    Failed {
        /// The name.
        name: String,
        /// What it says.
        reason: io::Error,
    },
}

/// The addresses of a name by the system's resolver.
///
/// It blocks a thread until it has an answer or gives up, which no one can hurry: a share of `lookups` is held as long, also
/// when the future was dropped.
pub async fn lookup(
    lookups: &FairPool,
    owner: &Arc<str>,
    name: &str,
    port: u16,
) -> Result<Vec<SocketAddr>, LookupError> {
    let share = lookups.take(owner, 1).await?;
    let (answer, answered) = oneshot::channel();
    let asked = name.to_owned();
    let look = move || {
        let found = (asked.as_str(), port).to_socket_addrs().map(Iterator::collect);
        drop(share);
        let _ = answer.send(found);
    };
    let failed = |reason| LookupError::Failed { name: name.to_owned(), reason };
    // Not the runtime's threads, of which a worker has a few, for files as well.
    std::thread::Builder::new()
        .name("lookup".into())
        .stack_size(STACK_BYTES)
        .spawn(look)
        .map_err(failed)?;
    let found: io::Result<Vec<SocketAddr>> =
        answered.await.unwrap_or_else(|_| Err(io::Error::other("the lookup ended without an answer")));
    match found.map_err(failed)? {
        found if found.is_empty() => Err(failed(io::Error::other("it has no address"))),
        found => Ok(found),
    }
}
