//! The reserved app of a cluster: its objects hold what the nodes of a cluster have in common, such as the revision of each
//! app. All members are interested in them; no function and no client can name them, since no app can have this name.

use std::time::Duration;

use edgefaas_manifest::{ObjectClass, ObjectDurability};

/// The app whose objects hold the configuration of a cluster.
pub const CLUSTER_APP: &str = "$cluster";

/// Class of the objects of [`CLUSTER_APP`].
pub(super) fn class() -> ObjectClass {
    ObjectClass {
        interval: Duration::from_millis(20),
        durability: ObjectDurability::Synced,
        quota_bytes: 15 << 20,
        ..ObjectClass::default()
    }
}
