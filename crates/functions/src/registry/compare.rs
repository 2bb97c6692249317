//! What differs between two revisions of an app.

use std::collections::BTreeMap;

use bytes::Bytes;
use edgefaas_isolates::FunctionSource;
use edgefaas_manifest::FILE_NAME;
use edgefaas_state::store::StoreError;

use super::app_records::{self, Content, Revision};
use super::deploy::find_app;
use super::{DeployError, LiveApp, Registry};

/// A file that differs between two revisions. A side is `None` where the file is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// As in the app folder; for a component `FUNCTION (component)`.
    pub file: String,
    /// The earlier side.
    pub from: Option<FileContent>,
    /// The later side.
    pub to: Option<FileContent>,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContent {
    /// Text.
    Text(String),
    /// Anything else, or what this node does not have: its bytes.
    Other {
        /// Size in bytes.
        bytes: u64,
        /// Digest of the content.
        digest: String,
    },
}

type Files = BTreeMap<String, FileContent>;

impl Registry {
    /// The files that differ between two revisions of an app, by name. Each is a digest, an unambiguous start of one, or empty for the
    /// live one. Blocks.
    ///
    /// # Errors
    /// The app or a revision is unknown, or the store cannot be read.
    pub fn compare(&self, app: &str, from: &str, to: &str) -> Result<Vec<FileChange>, DeployError> {
        let routes = self.routes();
        let app = find_app(&routes, app)?;
        let read = |revision| {
            app_records::get_revision(&self.store, &find_revision(app, revision)?)
                .map_err(DeployError::from)
        };
        let (from, to) = (read(from)?, read(to)?);
        let mut changes = BTreeMap::new();
        // One side after the other, without what is the same on both.
        for (file, content) in self.files(&from, &to)? {
            changes.insert(file.clone(), FileChange { file, from: Some(content), to: None });
        }
        for (file, content) in self.files(&to, &from)? {
            let change = changes.entry(file.clone());
            change.or_insert(FileChange { file, from: None, to: None }).to = Some(content);
        }
        Ok(changes.into_values().filter(|change| change.from != change.to).collect())
    }

    /// The files of a revision but for sources and assets that `other` has too.
    fn files(&self, revision: &Revision, other: &Revision) -> Result<Files, StoreError> {
        let mut files = Files::from([(FILE_NAME.to_owned(), FileContent::Text(revision.manifest.clone()))]);
        let texts =
            revision.workflows.iter().map(|(file, text)| (file.clone(), FileContent::Text(text.clone())));
        files.extend(texts);
        for (function, source) in &revision.functions {
            if other.functions.get(function).is_some_and(|same| same.digest == source.digest) {
                continue;
            }
            let unread = || {
                let (bytes, digest) = (source.bytes, source.digest.clone());
                (format!("{function} ({})", source.kind), FileContent::Other { bytes, digest })
            };
            if source.kind == "component" || !self.has(&source.digest)? {
                files.extend([unread()]);
                continue;
            }
            match app_records::get_source(&self.store, &source.digest)? {
                FunctionSource::Component(_) => files.extend([unread()]),
                FunctionSource::JavaScript(graph) => {
                    let modules = graph.modules.into_iter();
                    files.extend(modules.map(|module| (module.path, FileContent::Text(module.source))));
                }
            }
        }
        for (name, asset) in &revision.assets {
            if other.assets.get(name) == Some(asset) {
                continue;
            }
            let content = match self.has(&asset.digest)? {
                true => text_of(app_records::get_asset(&self.store, asset)?),
                false => None,
            };
            let other = || FileContent::Other { bytes: asset.bytes, digest: asset.digest.clone() };
            files.insert(name.clone(), content.unwrap_or_else(other));
        }
        Ok(files)
    }

    fn has(&self, key: &str) -> Result<bool, StoreError> {
        let Some(Content { key, .. }) = Content::parse(key) else { return Ok(false) };
        Ok(self.store.spaces().sources.contains_key(key)?)
    }
}

fn text_of(content: Bytes) -> Option<FileContent> {
    String::from_utf8(content.into()).ok().map(FileContent::Text)
}

/// The digest of a revision of the app that is kept.
fn find_revision(app: &LiveApp, prefix: &str) -> Result<String, DeployError> {
    if prefix.is_empty() {
        return Ok(app.revision.clone());
    }
    let all = || std::iter::once(&app.revision).chain(&app.previous);
    let mut matching = all().filter(|digest| digest.starts_with(prefix));
    match (matching.next(), matching.next()) {
        (Some(digest), None) => Ok(digest.clone()),
        _ => Err(DeployError::UnknownRevision {
            app: app.name.to_string(),
            revision: prefix.to_owned(),
            kept: all().filter_map(|digest| digest.get(..12)).collect::<Vec<_>>().join(", "),
        }),
    }
}
