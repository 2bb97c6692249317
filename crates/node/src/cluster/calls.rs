//! Remote calls: the connections for those of this node, and the service for those of other members.

use std::sync::Arc;

use edgefaas_cluster::StreamPurpose;
use edgefaas_cluster::calls::{CallLimits, Calls, serve};
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

/// Serves the calls of other members until `cancel` fires.
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
            () = cancel.cancelled() => return,
            Some(_) = serving.join_next() => continue,
            Some(incoming) = streams.recv() => incoming,
            else => return,
        };
        if serving.len() >= MAX_STREAMS {
            continue;
        }
        let (node_id, executor) = (incoming.node_id, executor.clone());
        serving.spawn(async move {
            let served = serve(incoming.stream.compat(), node_id, limits, |call| executor.handle(call));
            if let Err(error) = served.await {
                tracing::debug!(node_id, %error, "the connection for calls of a member was lost");
            }
        });
    }
}
