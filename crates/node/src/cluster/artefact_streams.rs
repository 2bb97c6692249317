//! Artefacts of this node: parts of revisions that it fetches from members, and that members fetch from it.

use std::path::Path;
use std::sync::Arc;

use edgefaas_cluster::StreamPurpose;
use edgefaas_functions::registry::Registry;
use edgefaas_rollout::transfer::{Artefacts, ArtefactsParts, StoredParts};
use edgefaas_state::store::Store;
use tokio_util::compat::FuturesAsyncReadCompatExt;
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// Folder of unfinished artefacts in the data directory.
const FOLDER: &str = "artefacts";

/// Transfers over the streams of the cluster. They begin with [`transfer_artefacts`].
pub fn artefacts(
    cluster: &Arc<Cluster>,
    registry: Arc<Registry>,
    store: Arc<Store>,
    data_dir: &Path,
    upload_bytes_per_second: Option<u64>,
) -> Artefacts {
    Artefacts::new(ArtefactsParts {
        node_id: store.objects().replica().node,
        seed: rand::random(),
        dir: data_dir.join(FOLDER),
        holder: Arc::new(StoredParts { registry, store }),
        open: cluster.opener(StreamPurpose::Artefacts),
        members: cluster.members(),
        upload_bytes_per_second,
    })
}

/// Fetches artefacts and serves them until `cancel` fires.
pub async fn transfer_artefacts(cluster: Arc<Cluster>, artefacts: Artefacts, cancel: CancellationToken) {
    let Some(mut streams) = cluster.take_streams(StreamPurpose::Artefacts) else { return };
    let accepting = async {
        while let Some(incoming) = streams.recv().await {
            artefacts.incoming(incoming.node_id, Box::pin(incoming.stream.compat())).await;
        }
    };
    tokio::select! {
        () = artefacts.run(cancel) => {}
        () = accepting => {}
    }
}
