//! Remote calls: the connections for those of this node, and the service for those of other members.

use std::sync::Arc;

use edgefaas_cluster::StreamPurpose;
use edgefaas_cluster::calls::{CallLimits, Calls, serve_until};
use edgefaas_functions::remote::Executor;
use tokio::task::JoinSet;
use tokio_util::compat::FuturesAsyncReadCompatExt;
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// Streams for calls that one node may serve at a time. A member needs one.
const MAX_STREAMS: usize = 1024;

/// Calls over the streams of the cluster. The current runtime drives the connections.
pub fn calls(cluster: &Arc<Cluster>, limits: CallLimits) -> Calls {
    Calls::new(cluster.opener(StreamPurpose::Calls), limits, tokio::runtime::Handle::current())
}

/// Serves the calls of other members until `cancel` fires. Completes when those that have begun are answered.
pub async fn serve_calls(
    cluster: Arc<Cluster>,
    executor: Arc<Executor>,
    limits: CallLimits,
    cancel: CancellationToken,
) {
    let Some(mut streams) = cluster.take_streams(StreamPurpose::Calls) else { return };
    let mut serving = JoinSet::new();
    loop {
        let incoming = tokio::select! {
            () = cancel.cancelled() => break,
            Some(_) = serving.join_next() => continue,
            Some(incoming) = streams.recv() => incoming,
            else => break,
        };
        if serving.len() >= MAX_STREAMS {
            continue;
        }
        let (node_id, executor, stop) = (incoming.node_id, executor.clone(), cancel.clone());
        serving.spawn(async move {
            let (io, stop) = (incoming.stream.compat(), stop.cancelled_owned());
            let served = serve_until(io, node_id, limits, stop, |call| executor.handle(call));
            if let Err(error) = served.await {
                tracing::debug!(node_id, %error, "the connection for calls of a member was lost");
            }
        });
    }
    drop(streams);
    while serving.join_next().await.is_some() {}
}
