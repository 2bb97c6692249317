//! The placement policies in force on this node: follows those of the cluster.

use std::sync::Arc;

use edgefaas_cluster::placement::Policy;
use edgefaas_cluster::status::PolicyFact;
use edgefaas_rollout::shared_policy::{digest, is_policy_object, shared_policy};
use edgefaas_state::objects::{CLUSTER_APP, WatchScope};
use edgefaas_state::store::Store;
use tokio_util::sync::CancellationToken;

use super::{Cluster, PolicyPlacer};

/// Puts the policies that this node has kept into force, also if it has none: before it runs an invocation, new or pending.
pub fn begin_policy(store: &Store, placer: &PolicyPlacer, cluster: &Cluster) {
    apply(store, placer, cluster, &mut 0);
    placer.refresh();
}

/// Puts every change of the policies of the cluster into force, until `cancel` fires.
pub async fn follow_policy(
    store: Arc<Store>,
    placer: Arc<PolicyPlacer>,
    cluster: Arc<Cluster>,
    cancel: CancellationToken,
) {
    let scope = WatchScope { app: CLUSTER_APP.to_owned(), object: "*".to_owned(), field: None };
    let mut watch = store.objects().watch(scope);
    let mut number = 0;
    apply(&store, &placer, &cluster, &mut number);
    loop {
        tokio::select! {
            () = cancel.cancelled() => return,
            (notice, lost) = watch.next() => {
                if lost > 0 || is_policy_object(notice.key.object()) {
                    apply(&store, &placer, &cluster, &mut number);
                }
            }
        }
    }
}

fn apply(store: &Store, placer: &PolicyPlacer, cluster: &Cluster, number: &mut u64) {
    let current = match shared_policy(store.objects()) {
        Ok(Some(shared)) => shared.current,
        Ok(None) => return,
        Err(error) => return tracing::error!(%error, "the placement policies cannot be read"),
    };
    match Policy::of_cluster(&current.text) {
        Ok(policy) => {
            placer.set_policy(policy);
            if *number > 0 {
                tracing::info!(by = current.node, "the placement policies have changed");
            }
            *number = current.number;
            cluster.set_policy(PolicyFact { digest: digest(&current.text), refused: None });
        }
        // Another version of the language: a node with this version does not accept such a text.
        Err(error) => {
            tracing::error!(by = current.node, %error, "the placement policies of the cluster are not valid here; the previous ones stay in force");
            let first_line = error.to_string().lines().next().unwrap_or_default().to_owned();
            cluster.set_policy(PolicyFact { digest: digest(&current.text), refused: Some(first_line) });
        }
    }
}
