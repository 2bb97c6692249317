//! Revisions that come from other nodes: their parts are stored one by one, before they go live.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use edgefaas_isolates::FunctionSource;
use edgefaas_manifest::{FILE_NAME, Manifest, ManifestError};
use edgefaas_state::store::{Batch, CommitError, Durability, StoreError};

use super::Registry;
use super::app_records::{self, ASSET_PREFIX, Content, Revision};
use super::cluster_apps;

/// The sources of a revision by function, and its assets by name.
pub(super) type SourcesAndAssets = (BTreeMap<String, FunctionSource>, BTreeMap<String, Bytes>);

/// A part of a revision could not be stored.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// It is not what its digest says, or the store cannot be read.
    #[error(transparent)]
    Invalid(#[from] StoreError),
    /// Its manifest is not valid for this version.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The store could not write it.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

impl Registry {
    /// Keeps these revisions and their parts from being deleted although no app refers to them yet. Replaces the previous set.
    pub fn keep_staged(&self, revisions: BTreeSet<String>) {
        *self.staged.lock() = Some(revisions);
    }

    /// The digests of the [staged](Self::keep_staged) revisions and, as far as their records are here, of their parts; `None`
    /// before the first call of that. Blocks.
    ///
    /// # Errors
    /// A revision cannot be read.
    pub fn staged_parts(&self) -> Result<Option<BTreeSet<[u8; 32]>>, StoreError> {
        let Some(staged) = self.staged.lock().clone() else { return Ok(None) };
        let mut parts = BTreeSet::new();
        for digest in staged {
            parts.extend(Content::parse(&digest).map(|record| record.hash));
            if self.has_revision(&digest)? {
                let revision = app_records::get_revision(&self.store, &digest)?;
                parts.extend(revision.contents().into_iter().map(|content| content.hash));
            }
        }
        Ok(Some(parts))
    }

    /// The manifest of a stored revision; `None` if the store does not have the revision.
    ///
    /// # Errors
    /// The revision is damaged or not valid for this version.
    pub fn stored_manifest(&self, digest: &str) -> Result<Option<Manifest>, StageError> {
        if !self.has_revision(digest)? {
            return Ok(None);
        }
        let revision = app_records::get_revision(&self.store, digest)?;
        Ok(Some(Manifest::parse(&revision.manifest, FILE_NAME)?))
    }

    /// Whether the record of a revision is in the store.
    pub fn has_revision(&self, digest: &str) -> Result<bool, StoreError> {
        Ok(self.store.spaces().revisions.contains_key(digest)?)
    }

    /// The contents of a stored revision that the store lacks.
    pub fn missing_of(&self, digest: &str) -> Result<BTreeSet<Content>, StoreError> {
        self.missing_contents(&app_records::get_revision(&self.store, digest)?)
    }

    pub(super) fn missing_contents(&self, revision: &Revision) -> Result<BTreeSet<Content>, StoreError> {
        let mut missing = revision.contents();
        let mut failed = None;
        missing.retain(|content| match self.store.spaces().sources.contains_key(&content.key) {
            Ok(is_stored) => !is_stored,
            Err(error) => {
                failed = Some(error);
                true
            }
        });
        failed.map_or(Ok(missing), |error| Err(error.into()))
    }

    /// The record of a revision, or a content, by its BLAKE3 digest; `None` if the store does not have it. The bytes are not
    /// verified.
    pub fn stored_part(&self, hash: &[u8; 32]) -> Result<Option<Bytes>, StoreError> {
        let (spaces, [plain, asset]) = (self.store.spaces(), part_keys(hash));
        for (space, key) in
            [(&spaces.sources, &plain), (&spaces.sources, &asset), (&spaces.revisions, &plain)]
        {
            if let Some(part) = space.get(key)? {
                return Ok(Some(Bytes::from_owner(part)));
            }
        }
        Ok(None)
    }

    /// The size of a [`stored_part`](Self::stored_part).
    pub fn stored_part_bytes(&self, hash: &[u8; 32]) -> Result<Option<u64>, StoreError> {
        let (spaces, [plain, asset]) = (self.store.spaces(), part_keys(hash));
        for (space, key) in
            [(&spaces.sources, &plain), (&spaces.sources, &asset), (&spaces.revisions, &plain)]
        {
            if let Some(size_bytes) = space.size_of(key)? {
                return Ok(Some(size_bytes.into()));
            }
        }
        Ok(None)
    }

    /// Stores the record of a revision.
    ///
    /// # Errors
    /// The bytes do not have this digest or are not a revision; the store cannot write, as with a full disk.
    pub async fn stage_revision(&self, digest: &str, bytes: Bytes) -> Result<(), StageError> {
        app_records::decode_revision(digest, &bytes)?;
        let mut batch = Batch::default();
        batch.put(&self.store.spaces().revisions, digest, Vec::from(bytes));
        Ok(self.store.committer().commit(batch, Durability::Synced).await?)
    }

    /// Stores a content of a revision. Its bytes must have been verified.
    ///
    /// # Errors
    /// The store cannot write, as with a full disk.
    pub async fn stage_content(&self, content: &Content, bytes: Bytes) -> Result<(), StageError> {
        let mut batch = Batch::default();
        batch.put(&self.store.spaces().sources, content.key.as_str(), Vec::from(bytes));
        Ok(self.store.committer().commit(batch, Durability::Synced).await?)
    }

    /// The sources and assets of a revision, from the store.
    pub(super) fn stored_sources(&self, revision: &Revision) -> Result<SourcesAndAssets, StoreError> {
        let mut sources = BTreeMap::new();
        for (function, source) in &revision.functions {
            sources.insert(function.clone(), app_records::get_source(&self.store, &source.digest)?);
        }
        let mut assets = BTreeMap::new();
        for (name, asset) in &revision.assets {
            assets.insert(name.clone(), app_records::get_asset(&self.store, asset)?);
        }
        Ok((sources, assets))
    }

    /// Deletes unused revisions and sources. If that fails, the next deploy tries again.
    ///
    /// Those that a deployment of the cluster names stay, whatever is live here: other nodes may have to fetch them from this
    /// one. That holds for deployments that have lost, too, until the next deploy replaces them.
    pub(super) async fn collect_garbage(&self) {
        let mut kept = self.staged.lock().clone().unwrap_or_default();
        let collected = cluster_apps::cluster_apps(self.store.objects()).and_then(|apps| {
            let deployments = apps.into_values().flat_map(|app| [vec![app.winner], app.lost].concat());
            kept.extend(deployments.filter_map(|deployment| deployment.revision));
            app_records::garbage(&self.store, &kept)
        });
        match collected {
            Ok(batch) if batch.is_empty() => {}
            Ok(batch) => {
                if let Err(error) = self.store.committer().commit(batch, Durability::Written).await {
                    tracing::warn!(%error, "old revisions could not be deleted");
                }
            }
            Err(error) => tracing::warn!(%error, "old revisions could not be found"),
        }
    }
}

/// The keys of a part with this digest: of a source or the record of a revision, and of an asset.
fn part_keys(hash: &[u8; 32]) -> [String; 2] {
    let hex = blake3::Hash::from_bytes(*hash).to_hex();
    [hex.to_string(), format!("{ASSET_PREFIX}{hex}")]
}
