//! Names to addresses, without those that a name must not lead to.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

use crate::manifest::{is_guarded, is_local_name};

/// The system's resolver. A name leads to the node itself or to its link only if it says so: who answers for a permitted
/// name must not be able to point it at services that trust this machine.
#[derive(Debug, Clone, Copy)]
pub struct GuardedResolver;

impl Service<Name> for GuardedResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move { resolve(name.as_str(), 0).await.map(Vec::into_iter) })
    }
}

/// The addresses of a name that functions may connect to.
///
/// # Errors
/// The name has no address, or none that it may lead to.
pub async fn resolve(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let all = tokio::net::lookup_host((name, port)).await;
    // The system's resolver says why in words only.
    let all = all.map_err(|error| io::Error::new(io::ErrorKind::NotFound, format!("{name}: {error}")))?;
    let all: Vec<SocketAddr> = all.collect();
    if is_local_name(name) {
        return Ok(all);
    }
    let (guarded, open): (Vec<_>, Vec<_>) = all.into_iter().partition(|address| is_guarded(address.ip()));
    match (open.is_empty(), guarded.first()) {
        (true, Some(address)) => {
            let address = address.ip();
            let reason = format!(
                "{name} leads to {address}, which belongs to the node or its link; whoever is meant to get there is permitted \
                 `{address}` or `localhost` by that name"
            );
            Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
        }
        (true, None) => Err(io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address"))),
        (false, _) => Ok(open),
    }
}
