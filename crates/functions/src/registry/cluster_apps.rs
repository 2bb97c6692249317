//! The revision of each app of a cluster: replicated state, in objects that all members have.
//!
//! A deploy replaces the deployments that its node knows. Concurrent deployments therefore stay side by side until the next
//! deploy; the same one wins on every node.

use std::collections::BTreeMap;

use bytes::Bytes;
use edgefaas_crdt::{Operation, Value};
use edgefaas_manifest::is_name;
use edgefaas_state::objects::{CLUSTER_APP, FieldKey, Objects};
use edgefaas_state::store::{Batch, StoreError};
use serde::{Deserialize, Serialize};

use super::app_records::FORMAT;

/// Prefix of the objects of apps.
const OBJECT_PREFIX: &str = "app/";
/// The field with the deployments.
const FIELD: &str = "live";
/// Length of a digest in hex.
const DIGEST_CHARS: usize = 64;
/// Objects that are read together.
const PAGE_OBJECTS: usize = 1000;

/// A decision about an app of the cluster: the revision that goes live, or its removal.
///
/// The order of the fields is the order of precedence: of concurrent deployments the greatest wins. The number counts the
/// deployments that came before, so no clock decides.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Deployment {
    /// One more than that of every deployment which it replaces.
    pub number: u64,
    /// The digest of the revision in hex; `None` for the removal of the app.
    pub revision: Option<String>,
    /// The name of the node that got the command.
    pub node: String,
    /// The time of the command by the clock of that node, in milliseconds since the Unix epoch.
    pub deployed_unix_ms: u64,
    /// The format version, see `app_records::FORMAT`.
    pub format: u32,
}

impl Deployment {
    /// Its number and revision as text: equal for the same deployment on all nodes.
    pub fn id(&self) -> String {
        format!("{}-{}", self.number, self.revision.as_deref().unwrap_or("removed"))
    }

    /// The number in an [`id`](Self::id); 0 if it is none.
    pub fn number_of(id: &str) -> u64 {
        id.split_once('-').and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
    }

    /// Its form in the field of the app.
    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let deployment: Self = serde_json::from_slice(bytes).ok()?;
        let is_digest = |text: &String| {
            text.len() == DIGEST_CHARS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_valid = deployment.format == FORMAT
            && deployment.revision.as_ref().is_none_or(is_digest)
            && deployment.number < u64::MAX / 2;
        is_valid.then_some(deployment)
    }
}

/// The deployments of one app that no other one has replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterApp {
    /// The deployment that every node carries out.
    pub winner: Deployment,
    /// Concurrent deployments that lost, the greatest first. The next deploy replaces them.
    pub lost: Vec<Deployment>,
}

impl ClusterApp {
    /// The winner of the values of an app's field; `None` if none of them is a deployment.
    pub fn of(values: &[Bytes]) -> Option<Self> {
        let deployments = values.iter().filter_map(|value| Deployment::decode(value));
        let (winner, mut lost) = winner_of(deployments)?;
        // The same revision from two nodes is no conflict.
        lost.retain(|lost| lost.revision != winner.revision);
        Some(Self { winner, lost })
    }
}

/// The value that holds on all nodes, of concurrent values of a multi-value register: the greatest. The others follow, the
/// greatest first. `None` without a value.
pub fn winner_of<T: Ord>(values: impl Iterator<Item = T>) -> Option<(T, Vec<T>)> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable_by(|one, other| other.cmp(one));
    let mut values = values.into_iter();
    Some((values.next()?, values.collect()))
}

/// The app of the cluster with this name; `None` if it was never deployed to the cluster.
///
/// # Errors
/// The object cannot be read.
pub fn cluster_app(objects: &Objects, app: &str) -> Result<Option<ClusterApp>, StoreError> {
    let value = objects.read(&key(app), |field| field.map(edgefaas_crdt::Field::value))?;
    Ok(match value {
        Some(Value::Values(values)) => ClusterApp::of(&values),
        _ => None,
    })
}

/// All apps that were ever deployed to the cluster, also removed ones. Blocks.
///
/// # Errors
/// An object cannot be read.
pub fn cluster_apps(objects: &Objects) -> Result<BTreeMap<String, ClusterApp>, StoreError> {
    let mut apps = BTreeMap::new();
    let mut after: Option<String> = Some(OBJECT_PREFIX.to_owned());
    while let Some(from) = after.take() {
        let page = objects.list(Some(CLUSTER_APP), Some((CLUSTER_APP, &from)), PAGE_OBJECTS)?;
        if page.len() == PAGE_OBJECTS {
            after = page.last().map(|last| last.object.clone());
        }
        for object in page {
            let Some(app) = object.object.strip_prefix(OBJECT_PREFIX).filter(|app| is_name(app)) else {
                continue;
            };
            if let Some(found) = cluster_app(objects, app)? {
                apps.insert(app.to_owned(), found);
            }
        }
    }
    Ok(apps)
}

/// Adds a deployment to a batch. It replaces all deployments of the app that this node knows, so its number must be greater
/// than theirs: see [`next_number`].
pub fn put_deployment(batch: &mut Batch, app: &str, deployment: &Deployment) {
    batch.operate(key(app), Operation::MvRegisterSet(deployment.encode()));
}

/// The number of the next deployment.
pub fn next_number(known: Option<&ClusterApp>) -> u64 {
    known.map_or(1, |known| known.winner.number + 1)
}

/// The app that an object of the cluster's own app is about.
pub fn app_of_object(object: &str) -> Option<&str> {
    object.strip_prefix(OBJECT_PREFIX).filter(|app| is_name(app))
}

fn key(app: &str) -> FieldKey {
    FieldKey::new(CLUSTER_APP, &format!("{OBJECT_PREFIX}{app}"), FIELD)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(number: u64, revision: Option<char>, node: &str) -> Deployment {
        let revision = revision.map(|digit| digit.to_string().repeat(DIGEST_CHARS));
        Deployment { number, revision, node: node.into(), deployed_unix_ms: 0, format: FORMAT }
    }

    #[test]
    fn of_concurrent_deployments_the_same_wins_in_any_order_and_the_others_are_named() {
        let (old, new) = (deployment(4, Some('f'), "a"), deployment(5, Some('1'), "b"));
        let removed = deployment(5, None, "c");
        for values in [[&old, &new, &removed], [&removed, &old, &new], [&new, &removed, &old]] {
            let app = ClusterApp::of(&values.map(Deployment::encode)).unwrap();
            assert_eq!(app.winner, new);
            assert_eq!(app.lost, [removed.clone(), old.clone()]);
        }
    }

    #[test]
    fn one_revision_from_two_nodes_is_no_conflict() {
        let values = [deployment(2, Some('a'), "a"), deployment(2, Some('a'), "b")].map(|one| one.encode());
        assert_eq!(ClusterApp::of(&values).unwrap().lost, []);
    }

    #[test]
    fn a_value_that_no_node_writes_is_ignored() {
        let good = deployment(1, Some('a'), "a");
        let mut short = good.clone();
        short.revision = Some("abc".into());
        let mut huge = good.clone();
        huge.number = u64::MAX;
        let mut newer = good.clone();
        newer.format += 1;
        let values = [
            Deployment::encode(&short),
            Deployment::encode(&huge),
            Deployment::encode(&newer),
            "{}".into(),
            Deployment::encode(&good),
        ];
        assert_eq!(ClusterApp::of(&values).unwrap().winner, good);
        assert_eq!(ClusterApp::of(&values[..4]), None);
    }
}
