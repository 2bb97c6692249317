//! Revisions that come from other nodes: their parts are stored one by one, before they go live.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use edgefaas_isolates::FunctionSource;
use edgefaas_manifest::{FILE_NAME, Manifest, ManifestError};
use edgefaas_state::store::{Batch, CommitError, Durability, StoreError};

use super::Registry;
use super::app_records::{self, Content, Revision};

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
        *self.staged.lock() = revisions;
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

    /// The record of a revision, or a content, by its key; `None` if the store does not have it.
    pub fn stored_part(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        let spaces = self.store.spaces();
        let part = match spaces.sources.get(key)? {
            Some(part) => Some(part),
            None => spaces.revisions.get(key)?,
        };
        Ok(part.map(|part| Bytes::copy_from_slice(&part)))
    }

    /// Stores the record of a revision.
    ///
    /// # Errors
    /// The bytes do not have this digest or are not a revision; the store cannot write, as with a full disk.
    pub async fn stage_revision(&self, digest: &str, bytes: Bytes) -> Result<(), StageError> {
        app_records::decode_revision(digest, &bytes)?;
        let mut batch = Batch::default();
        batch.put(&self.store.spaces().revisions, digest, bytes.to_vec());
        Ok(self.store.committer().commit(batch, Durability::Synced).await?)
    }

    /// Stores a content of a revision. Its bytes must have been verified.
    ///
    /// # Errors
    /// The store cannot write, as with a full disk.
    pub async fn stage_content(&self, content: &Content, bytes: Bytes) -> Result<(), StageError> {
        let mut batch = Batch::default();
        batch.put(&self.store.spaces().sources, content.key.as_str(), bytes.to_vec());
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
    pub(super) async fn collect_garbage(&self) {
        let staged = self.staged.lock().clone();
        let collected = app_records::garbage(&self.store, &staged);
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
