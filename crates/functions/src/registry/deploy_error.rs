//! Errors of deploys, removals and rollbacks.

use std::fmt;

use edgefaas_isolates::PrepareError;
use edgefaas_manifest::{MAX_ASSETS, ManifestError};
use edgefaas_state::store::{CommitError, StoreError};

use super::definition::WorkflowError;
use super::dry_run::DryRunError;
use super::matching_nodes::AbsentWord;
use super::routes::RouteConflict;

/// Errors of a deploy, removal or rollback. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The manifest is not valid.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The deploy has no source for a function.
    #[error("the source of function `{function}` is missing from the deploy")]
    MissingSource {
        /// The function.
        function: String,
    },
    /// The deploy has a source without a function in the manifest.
    #[error("the deploy has a source for `{function}`, which the manifest does not name")]
    UnknownSource {
        /// The name of the source.
        function: String,
    },
    /// An asset matches no pattern of the manifest, or its name is not a valid path.
    #[error("the deploy has an asset `{}` that no pattern in `assets` of the manifest covers", name.escape_debug())]
    UnknownAsset {
        /// Its name.
        name: String,
    },
    /// The app has too many assets.
    #[error("the app has {count} assets; the limit is {MAX_ASSETS}: put several of them into one file")]
    TooManyAssets {
        /// Their number.
        count: usize,
    },
    /// The kind of the source does not match `main`.
    #[error("`main = \"{main}\"` of function `{function}` does not match its source, which is a {kind}")]
    WrongKind {
        /// The function.
        function: String,
        /// Its `main`.
        main: String,
        /// The kind of the source.
        kind: &'static str,
    },
    /// The name belongs to another app.
    #[error(
        "function `{function}` belongs to app `{app}` already; choose another name, or remove that app"
    )]
    NameTaken {
        /// The function.
        function: String,
        /// The app with that name.
        app: String,
    },
    /// A workflow is invalid.
    #[error(transparent)]
    Workflow(#[from] WorkflowError),
    /// The workflows cannot be compiled within the limits.
    #[error(transparent)]
    DryRun(#[from] DryRunError),
    /// A workflow file matches no pattern of the manifest.
    #[error("the deploy has a workflow `{}` that no pattern in `workflows` of the manifest covers", file.escape_debug())]
    UnknownWorkflow {
        /// Its file.
        file: String,
    },
    /// Workflows have calls or topics that are not permitted, or (in a strict deploy) calls of unknown functions.
    #[error("{}", problems.join("\n"))]
    Calls {
        /// One line for each call.
        problems: Vec<String>,
    },
    /// Triggers are in conflict.
    #[error(transparent)]
    Route(#[from] RouteConflict),
    /// The memory limit of a function is over that of the node.
    #[error(
        "limits.memory of function `{function}` and the assets of its app are {requested_bytes} bytes; this node allows at \
         most {max_bytes} (isolates.max_memory)"
    )]
    TooMuchMemory {
        /// The function.
        function: String,
        /// The limit of the function plus the size of the assets.
        requested_bytes: usize,
        /// The limit of the node.
        max_bytes: usize,
    },
    /// The source could not be compiled or evaluated.
    #[error("function `{function}`: {reason}")]
    Prepare {
        /// The function.
        function: String,
        /// The cause.
        reason: Box<PrepareError>,
    },
    /// No app has this name.
    #[error("there is no app `{name}`{hint}")]
    UnknownApp {
        /// The unknown name.
        name: String,
        /// A suggestion.
        hint: String,
    },
    /// The app has no earlier revision.
    #[error("app `{app}` has no earlier revision")]
    NoEarlierRevision {
        /// The app.
        app: String,
    },
    /// The revision of a rollback is live.
    #[error("revision {} of app `{app}` is live already", revision.get(..12).unwrap_or(revision))]
    AlreadyLive {
        /// The app.
        app: String,
        /// The digest of the revision.
        revision: String,
    },
    /// No earlier revision, or more than one, has a digest that starts like this.
    #[error("app `{app}` has no revision `{revision}`, or more than one starts like this; it has {kept}")]
    UnknownRevision {
        /// The app.
        app: String,
        /// The beginning of the digest.
        revision: String,
        /// The earlier revisions.
        kept: String,
    },
    /// No member of the cluster has the labels and is in the zones that the manifest names.
    #[error(
        "no member of the cluster matches [nodes] of app `{app}`, so that no node would run it{}",
        Absent(absent)
    )]
    NoMatchingNode {
        /// The app.
        app: String,
        /// The labels and zones that no member has; empty if no member has all of them.
        absent: Vec<AbsentWord>,
    },
    /// The app was deployed to the cluster, and the command is for one node.
    #[error(
        "app `{app}` is deployed to the cluster; remove it there (without --this-node), or keep it off this node by [nodes] in its \
         manifest"
    )]
    DeployedToCluster {
        /// The app.
        app: String,
    },
    /// The sources of a revision are on other nodes only.
    #[error(
        "the sources of revision {} of app `{app}` are not on this node; use a node that runs the app (`edgefaas list --nodes`)",
        revision.get(..12).unwrap_or(revision)
    )]
    NotOnThisNode {
        /// The app.
        app: String,
        /// The digest of the revision.
        revision: String,
    },
    /// The revision that another node names for an app belongs to another app.
    #[error("the revision of app `{app}` is one of app `{}`", other.escape_debug())]
    OtherApp {
        /// The app.
        app: String,
        /// The app that the manifest of the revision names.
        other: String,
    },
    /// The cluster has decided anew about an app, or the app was deployed again, before the earlier decision was carried out.
    #[error("app `{app}` was deployed or removed meanwhile")]
    Superseded {
        /// The app.
        app: String,
    },
    /// The store could not write the change.
    #[error("app `{app}` could not be stored: {error}")]
    Commit {
        /// The app.
        app: String,
        /// The cause.
        error: CommitError,
    },
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

struct Absent<'a>(&'a [AbsentWord]);

impl fmt::Display for Absent<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, word) in self.0.iter().enumerate() {
            write!(out, "{}{word}", if number == 0 { ": " } else { "; " })?;
        }
        match self.0 {
            [] => write!(out, ": no member has all of its labels and is in one of its zones"),
            _ => Ok(()),
        }
    }
}
