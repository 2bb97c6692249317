//! On-disk format of apps, revisions and sources.
//!
//! The record of an app names its live revision. A revision is a manifest with the digests of its sources, and its name is
//! the digest of both. So a revision never changes, and equal sources are stored once.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use edgefaas_isolates::FunctionSource;
use edgefaas_state::store::{Batch, Store, StoreError};
use serde::{Deserialize, Serialize};

/// The version of all formats here.
pub const FORMAT: u32 = 1;
/// Begin of the key of an asset; the digest follows.
pub const ASSET_PREFIX: &str = "asset-";

/// The live revision of an app and its earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppRecord {
    /// See [`FORMAT`].
    pub format: u32,
    /// The live revision's digest.
    pub live: String,
    /// The time of the deploy, in milliseconds since the Unix epoch.
    pub deployed_unix_ms: u64,
    /// The digests of earlier revisions, newest first.
    pub previous: Vec<String>,
    /// The deployment of the cluster that this record carries out, or that a deploy to this node alone has overridden: its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// The reach of the deploy.
    #[serde(default)]
    pub reach: Reach,
    /// Whether this node runs the app's functions.
    #[serde(default)]
    pub code: Code,
}

/// The nodes that a deploy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// This node alone, until the next deploy of the app to the cluster.
    #[default]
    ThisNode,
    /// All nodes of the cluster.
    Cluster,
}

/// Whether a node runs the functions of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// The node has the code and runs it.
    #[default]
    Here,
    /// Only other nodes run it. The node knows the manifest, and perhaps not the sources.
    Elsewhere,
}

impl AppRecord {
    /// Decodes a record; `app` is for the error.
    pub fn decode(app: &str, bytes: &[u8]) -> Result<Self, StoreError> {
        serde_json::from_slice(bytes).map_err(|error| damaged(format!("the record of app `{app}`"), error))
    }
}

/// A manifest and its sources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// See [`FORMAT`].
    pub format: u32,
    /// The text of the manifest.
    pub manifest: String,
    /// The sources by function.
    pub functions: BTreeMap<String, SourceRecord>,
    /// The assets by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub assets: BTreeMap<String, AssetRecord>,
    /// The texts of the workflows by file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub workflows: BTreeMap<String, String>,
}

/// An asset. Its content is stored under its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssetRecord {
    /// The digest of its content.
    pub digest: String,
    /// Its size in bytes.
    pub bytes: u64,
}

impl AssetRecord {
    /// The record for this content.
    pub fn new(content: &[u8]) -> Self {
        Self { digest: asset_digest(content), bytes: content.len() as u64 }
    }
}

/// A source. Its encoding is stored under its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// The digest of its encoding.
    pub digest: String,
    /// `component` or `javascript`.
    pub kind: String,
    /// The size of the source in bytes, without its encoding.
    pub bytes: u64,
}

impl Revision {
    /// The revision of a manifest with these sources.
    pub fn new(
        manifest: String,
        sources: &BTreeMap<String, FunctionSource>,
        assets: &BTreeMap<String, Bytes>,
        workflows: BTreeMap<String, String>,
    ) -> Self {
        let functions = sources
            .iter()
            .map(|(name, source)| {
                let record = SourceRecord {
                    digest: source_digest(&encode_source(source)),
                    kind: source.kind().to_owned(),
                    bytes: source.size_bytes() as u64,
                };
                (name.clone(), record)
            })
            .collect();
        let assets =
            assets.iter().map(|(name, content)| (name.clone(), AssetRecord::new(content))).collect();
        Self { format: FORMAT, manifest, functions, assets, workflows }
    }

    /// The digest of the revision in hex, which is its name.
    pub fn digest(&self) -> String {
        blake3::hash(&encode(self)).to_hex().to_string()
    }
}

/// The content of a source or an asset, by the digest that the revision names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content {
    /// Its key in the store: `asset-` and hex for an asset, hex for a source.
    pub key: String,
    /// BLAKE3 digest of the stored bytes.
    pub hash: [u8; 32],
}

impl Content {
    /// The content with this key; `None` if the key has another form.
    pub fn parse(key: &str) -> Option<Self> {
        let hex = key.strip_prefix(ASSET_PREFIX).unwrap_or(key);
        let hash = blake3::Hash::from_hex(hex).ok()?;
        (hash.to_hex().as_str() == hex).then(|| Self { key: key.to_owned(), hash: *hash.as_bytes() })
    }
}

impl Revision {
    /// The contents that it needs beside its own record.
    pub fn contents(&self) -> BTreeSet<Content> {
        let sources = self.functions.values().map(|source| &source.digest);
        let assets = self.assets.values().map(|asset| &asset.digest);
        sources.chain(assets).filter_map(|key| Content::parse(key)).collect()
    }
}

/// Decodes and checks a revision that another node sent.
pub fn decode_revision(digest: &str, bytes: &[u8]) -> Result<Revision, StoreError> {
    let what = || format!("revision {digest}");
    if blake3::hash(bytes).to_hex().as_str() != digest {
        return Err(damaged(what(), "its content does not match its digest"));
    }
    let revision: Revision = serde_json::from_slice(bytes).map_err(|error| damaged(what(), error))?;
    if revision.format != FORMAT {
        return Err(damaged(what(), format!("its format version {} is unknown", revision.format)));
    }
    let named = revision.functions.values().map(|source| &source.digest);
    let named = named.chain(revision.assets.values().map(|asset| &asset.digest));
    match named.into_iter().find(|key| Content::parse(key).is_none()) {
        Some(key) => Err(damaged(what(), format!("`{}` is not a digest", key.escape_debug()))),
        None => Ok(revision),
    }
}

/// Adds sources and assets to a batch. Equal ones are added once.
pub fn put_contents(
    batch: &mut Batch,
    store: &Store,
    sources: &BTreeMap<String, FunctionSource>,
    assets: &BTreeMap<String, Bytes>,
) {
    let encoded = sources.values().map(encode_source).map(|encoded| (source_digest(&encoded), encoded));
    let contents = assets.values().map(|content| (asset_digest(content), content.to_vec()));
    let distinct: BTreeMap<String, Vec<u8>> = encoded.chain(contents).collect();
    for (digest, bytes) in distinct {
        batch.put(&store.spaces().sources, digest, bytes);
    }
}

/// Adds a revision to a batch.
pub fn put_revision(batch: &mut Batch, store: &Store, revision: &Revision) {
    batch.put(&store.spaces().revisions, revision.digest(), encode(revision));
}

/// Adds the record of an app to a batch.
pub fn put_app(batch: &mut Batch, store: &Store, app: &str, record: &AppRecord) {
    batch.put(&store.spaces().apps, app, encode(record));
}

/// A revision by its digest.
pub fn get_revision(store: &Store, digest: &str) -> Result<Revision, StoreError> {
    let what = || format!("revision {digest}");
    let bytes =
        store.spaces().revisions.get(digest)?.ok_or_else(|| damaged(what(), "it does not exist"))?;
    decode_revision(digest, &bytes)
}

/// A source by its digest.
pub fn get_source(store: &Store, digest: &str) -> Result<FunctionSource, StoreError> {
    let what = || format!("source {digest}");
    let bytes = store.spaces().sources.get(digest)?.ok_or_else(|| damaged(what(), "it does not exist"))?;
    if source_digest(&bytes) != digest {
        return Err(damaged(what(), "its content does not match its digest"));
    }
    match bytes.split_first() {
        Some((&version, body)) if u32::from(version) == FORMAT => {
            postcard::from_bytes(body).map_err(|error| damaged(what(), error))
        }
        Some((version, _)) => Err(damaged(what(), format!("its format version {version} is unknown"))),
        None => Err(damaged(what(), "it is empty")),
    }
}

/// The content of an asset.
pub fn get_asset(store: &Store, record: &AssetRecord) -> Result<Bytes, StoreError> {
    let AssetRecord { digest, .. } = record;
    let what = || format!("asset {digest}");
    let bytes = store.spaces().sources.get(digest)?.ok_or_else(|| damaged(what(), "it does not exist"))?;
    if asset_digest(&bytes) != *digest {
        return Err(damaged(what(), "its content does not match its digest"));
    }
    Ok(Bytes::copy_from_slice(&bytes))
}

/// A batch that deletes all revisions, sources and assets that no app refers to. `kept` are revisions that stay although they
/// are not live, if they are here.
pub fn garbage(store: &Store, kept: &BTreeSet<String>) -> Result<Batch, StoreError> {
    let spaces = store.spaces();
    let mut revisions = BTreeSet::new();
    for entry in spaces.apps.iter() {
        let (name, record) = entry.into_inner()?;
        let record = AppRecord::decode(&String::from_utf8_lossy(&name), &record)?;
        revisions.extend(record.previous);
        revisions.insert(record.live);
    }
    revisions.extend(kept.iter().cloned());
    let mut sources = BTreeSet::new();
    for digest in &revisions {
        if kept.contains(digest) && !spaces.revisions.contains_key(digest)? {
            continue;
        }
        let revision = get_revision(store, digest)?;
        sources.extend(revision.functions.into_values().map(|source| source.digest));
        sources.extend(revision.assets.into_values().map(|asset| asset.digest));
    }
    let mut batch = Batch::default();
    for (space, used) in [(&spaces.revisions, &revisions), (&spaces.sources, &sources)] {
        for entry in space.iter() {
            let digest = entry.key()?;
            if !used.contains(&*String::from_utf8_lossy(&digest)) {
                batch.delete(space, digest.to_vec());
            }
        }
    }
    Ok(batch)
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    // This cannot fail: it has only strings, numbers and maps of strings.
    serde_json::to_vec(value).unwrap_or_default()
}

fn encode_source(source: &FunctionSource) -> Vec<u8> {
    let body = postcard::to_allocvec(source).unwrap_or_default();
    let mut encoded = Vec::with_capacity(body.len() + 1);
    encoded.push(FORMAT as u8);
    encoded.extend_from_slice(&body);
    encoded
}

fn source_digest(encoded: &[u8]) -> String {
    blake3::hash(encoded).to_hex().to_string()
}

/// The prefix keeps the digest of an asset apart from that of a source with the same bytes: they share one key space.
fn asset_digest(content: &[u8]) -> String {
    format!("{ASSET_PREFIX}{}", blake3::hash(content).to_hex())
}

fn damaged(what: String, reason: impl ToString) -> StoreError {
    StoreError::Damaged { what, reason: reason.to_string() }
}
