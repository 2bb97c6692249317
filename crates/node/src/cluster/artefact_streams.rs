//! Streams of artefacts: parts of revisions that this node fetches from members, and that members fetch from it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::{IncomingStream, StreamPurpose};
use edgefaas_functions::registry::Registry;
use edgefaas_rollout::direct_transfer::{self, Attempt, Partial};
use edgefaas_rollout::{Fetch, FetchFailed, FetchRequest};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// Parts that are served at the same time. Others wait on their streams.
const MAX_SERVED: usize = 4;
/// Streams that wait to be served.
const MAX_STREAMS: usize = 64;
/// Holders that are asked for one part, one after another, before the rollout pauses.
const MAX_HOLDERS: usize = 16;
/// Time limit of serving one part.
const SERVE_TIMEOUT: Duration = Duration::from_secs(600);

/// The way in which a rollout fetches parts of revisions.
pub fn fetch(cluster: Arc<Cluster>) -> Fetch {
    Arc::new(move |request| {
        let cluster = cluster.clone();
        Box::pin(async move { fetch_part(&cluster, request).await })
    })
}

async fn fetch_part(cluster: &Cluster, request: FetchRequest) -> Result<Bytes, FetchFailed> {
    let FetchRequest { key, hash, holders, progress } = request;
    let mut partial = Partial::default();
    for node_id in holders.into_iter().take(MAX_HOLDERS) {
        let Some(handle) = cluster.handle() else { break };
        let mut stream = match handle.open_stream(node_id, StreamPurpose::Artefacts).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%error, "no stream for an artefact");
                continue;
            }
        };
        match direct_transfer::fetch(&mut stream, &key, hash, &mut partial, |part| progress(part)).await {
            Ok(bytes) => return Ok(bytes),
            Err(error @ Attempt::WrongBytes) => {
                tracing::warn!(node_id, key, %error, "an artefact is refused")
            }
            Err(error) => tracing::debug!(node_id, key, %error, "an artefact was not fetched"),
        }
    }
    Err(FetchFailed::NoHolder)
}

/// Serves the parts of revisions that members ask for until `cancel` fires.
pub async fn serve(
    mut streams: mpsc::Receiver<IncomingStream>,
    registry: Arc<Registry>,
    cancel: CancellationToken,
) {
    let served = Arc::new(Semaphore::new(MAX_SERVED));
    let mut tasks = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = cancel.cancelled() => return,
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "serving an artefact failed");
                }
                continue;
            }
            stream = streams.recv(), if tasks.len() < MAX_STREAMS => stream,
        };
        let Some(IncomingStream { node_id, mut stream, .. }) = stream else { return };
        let (registry, served) = (registry.clone(), served.clone());
        tasks.spawn(async move {
            let Ok(_permit) = served.acquire_owned().await else { return };
            let read = async |key: String| {
                let read = tokio::task::spawn_blocking(move || registry.stored_part(&key)).await;
                read.map_err(std::io::Error::other)?.map_err(std::io::Error::other)
            };
            let serving = direct_transfer::serve(&mut stream, read);
            match tokio::time::timeout(SERVE_TIMEOUT, serving).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(node_id, %error, "an artefact was not served"),
                Err(_) => tracing::debug!(node_id, "an artefact was not served in time"),
            }
        });
    }
}
