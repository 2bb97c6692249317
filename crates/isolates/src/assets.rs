//! Files of an app that are mapped into the memory of its functions.
//!
//! Each is one more part of the memory that an instance starts with: the system maps it from the compiled code's file,
//! once for all instances, and copies a page only where an instance writes to it. So a start takes no longer for it, and
//! pages that are not read take no memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wasm_encoder::{Component, DataSection, MemorySection, MemoryType, Module, RawSection};
use wasmparser::{BinaryReaderError, Parser, Payload};

use crate::memory_image::{PAGE_BYTES, add_segment};

/// The import of components that read assets.
const INTERFACE: &str = "edgefaas:function/assets@";
/// Each asset begins at a multiple of this: enough for all types of numbers and vectors of them.
const ALIGNMENT: u64 = 64;
/// The maximum of names that the error for a missing asset lists.
const SHOWN_NAMES: usize = 10;
/// The end of 32-bit addresses.
const ADDRESS_SPACE: u64 = 1 << 32;

/// A file of an app.
#[derive(Clone)]
pub struct Asset {
    /// Name of the asset for functions.
    pub name: String,
    /// A digest of its content.
    pub digest: [u8; 32],
    /// Size of the asset, in bytes.
    pub bytes: u64,
    /// Reads the content; called only where code is compiled.
    pub read: ReadAsset,
}

/// See [`Asset::read`]. Blocks.
pub type ReadAsset = Arc<dyn Fn() -> Result<Bytes, ReadAssetError> + Send + Sync>;

/// The error of a [`ReadAsset`]: that of the store it reads from.
pub type ReadAssetError = Box<dyn std::error::Error + Send + Sync>;

impl fmt::Debug for Asset {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Asset")
            .field("name", &self.name)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// An asset with its content.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PlainAsset {
    pub name: String,
    pub content: Bytes,
}

/// Reads the contents of assets. Blocks.
pub(crate) fn read_all(assets: &[Asset]) -> Result<Vec<PlainAsset>, AssetError> {
    let read = |asset: &Asset| {
        let name = || asset.name.clone();
        let content = (asset.read)()
            .map_err(|error| AssetError::Unreadable { name: name(), detail: error.to_string() })?;
        let (bytes, expected_bytes) = (content.len() as u64, asset.bytes);
        if bytes != expected_bytes {
            return Err(AssetError::WrongSize { name: name(), bytes, expected_bytes });
        }
        Ok(PlainAsset { name: asset.name.clone(), content })
    };
    assets.iter().map(read).collect()
}

/// The addresses of a function's assets in its memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AssetTable {
    /// Sorted by name.
    regions: Vec<Region>,
    /// Bytes that they add to the memory of an instance: whole pages.
    pub memory_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Region {
    name: String,
    address: u32,
    bytes: u32,
}

/// Assets cannot be added to a function. A child process sends this error to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum AssetError {
    /// The assets do not fit the address space.
    #[error("the assets and the function's own memory have more than 4 GiB together")]
    TooLarge,
    /// [`Asset::read`] failed.
    #[error("the asset {name} cannot be read: {detail}")]
    Unreadable {
        /// The asset.
        name: String,
        /// The text of the error.
        detail: String,
    },
    /// An asset does not have the size that was announced.
    #[error("the asset {name} cannot be read: it has {bytes} bytes and not {expected_bytes}")]
    WrongSize {
        /// The asset.
        name: String,
        /// Size of the asset, in bytes.
        bytes: u64,
        /// The announced size.
        expected_bytes: u64,
    },
    /// The function is not valid WebAssembly.
    #[error("assets cannot be added to it: {detail}")]
    InvalidWasm {
        /// The parser's message.
        detail: String,
    },
    /// All modules of the function import their memory, or have none.
    #[error("assets cannot be added to it: no module of it has a memory of its own")]
    NoMemory,
    /// The memory is shared, has 64-bit addresses or unusual pages.
    #[error("assets cannot be added to it: its memory is not a plain 32-bit one")]
    UnsupportedMemory,
    /// The header of a section gives a length beyond the end of the file.
    #[error("assets cannot be added to it: a section is longer than the file")]
    SectionTooLong,
    /// The stored [`AssetTable`] cannot be decoded or encoded.
    #[error("their table is damaged: {detail}")]
    Table {
        /// The codec's message.
        detail: String,
    },
}

impl From<BinaryReaderError> for AssetError {
    fn from(error: BinaryReaderError) -> Self {
        Self::InvalidWasm { detail: error.to_string() }
    }
}

impl AssetTable {
    /// Assigns addresses to assets one after another, from `first_page` on.
    fn new(first_page: u64, assets: &[PlainAsset]) -> Result<Self, AssetError> {
        let start = first_page.saturating_mul(PAGE_BYTES as u64);
        let mut end = start;
        let mut regions = Vec::with_capacity(assets.len());
        for asset in assets {
            let address = end.next_multiple_of(ALIGNMENT);
            end = address.saturating_add(asset.content.len() as u64);
            let (Ok(address), Ok(bytes), true) =
                (u32::try_from(address), u32::try_from(asset.content.len()), end < ADDRESS_SPACE)
            else {
                return Err(AssetError::TooLarge);
            };
            regions.push(Region { name: asset.name.clone(), address, bytes });
        }
        regions.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { regions, memory_bytes: (end - start).next_multiple_of(PAGE_BYTES as u64) as usize })
    }

    /// Address and length of an asset.
    pub fn find(&self, name: &str) -> Option<(u32, u32)> {
        let index = self.regions.binary_search_by(|region| region.name.as_str().cmp(name)).ok()?;
        let region = &self.regions[index];
        Some((region.address, region.bytes))
    }

    /// The error text for a name without an asset.
    pub fn describe_missing(&self, name: &str) -> String {
        let names: Vec<_> =
            self.regions.iter().take(SHOWN_NAMES).map(|region| region.name.as_str()).collect();
        let more = if self.regions.len() > SHOWN_NAMES { ", and others" } else { "" };
        match names.as_slice() {
            [] => format!(
                "there is no asset `{name}`: `assets` of the app's manifest names none, or the function's text does not \
                 have the word `asset`"
            ),
            names => format!("there is no asset `{name}`; there are `{}`{more}", names.join("`, `")),
        }
    }
}

/// The identity of assets in cache keys: their names and digests.
pub(crate) fn identity(assets: &[Asset]) -> Vec<u8> {
    let mut identity = Vec::new();
    for asset in assets {
        identity.extend((asset.name.len() as u64).to_le_bytes());
        identity.extend(asset.name.as_bytes());
        identity.extend(asset.digest);
    }
    identity
}

/// Assigns addresses behind a memory of `pages` pages. Returns them with the contents by address.
pub(crate) fn lay_out(
    pages: u64,
    assets: &[PlainAsset],
) -> Result<(AssetTable, Vec<(u32, Bytes)>), AssetError> {
    let table = AssetTable::new(pages, assets)?;
    let content = |asset: &PlainAsset| Some((table.find(&asset.name)?.0, asset.content.clone()));
    let contents = assets.iter().filter_map(content).collect();
    Ok((table, contents))
}

/// True if a component of the world in `wit/` reads assets.
pub(crate) fn reads_assets(wasm: &[u8]) -> bool {
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload {
            Ok(Payload::ModuleSection { .. } | Payload::ComponentSection { .. }) => depth += 1,
            Ok(Payload::End(_)) => depth -= 1,
            Ok(Payload::ComponentImportSection(imports)) if depth == 0 => {
                let mut imports = imports.into_iter().filter_map(Result::ok);
                if imports.any(|import| import.name.name.starts_with(INTERFACE)) {
                    return true;
                }
            }
            Ok(_) => {}
            // The compiler finds the error again.
            Err(_) => return false,
        }
    }
    false
}

/// The component with assets in the memory of its main module: the first module that has a memory of its own.
pub(crate) fn add_to_component(
    wasm: &[u8],
    assets: &[PlainAsset],
) -> Result<(Vec<u8>, AssetTable), AssetError> {
    let mut component = Component::new();
    let mut table = None;
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        if depth == 0
            && let Some((id, range)) = payload.as_section()
        {
            let data = within(wasm, range)?;
            let changed = match payload {
                Payload::ModuleSection { .. } if table.is_none() => add_to_module(data, assets)?,
                _ => None,
            };
            match changed {
                Some((module, added)) => {
                    table = Some(added);
                    component.section(&RawSection { id, data: &module });
                }
                None => drop(component.section(&RawSection { id, data })),
            }
        }
        match payload {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            _ => {}
        }
    }
    match table {
        Some(table) => Ok((component.finish(), table)),
        None => Err(AssetError::NoMemory),
    }
}

/// A section of `wasm`. Its header may give a length beyond the end of the file.
fn within(wasm: &[u8], range: Range<usize>) -> Result<&[u8], AssetError> {
    wasm.get(range).ok_or(AssetError::SectionTooLong)
}

/// The module with assets behind its memory. None if it has no memory of its own, or imports one.
fn add_to_module(wasm: &[u8], assets: &[PlainAsset]) -> Result<Option<(Vec<u8>, AssetTable)>, AssetError> {
    let mut module = Module::new();
    let mut placed = None;
    let mut data = DataSection::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        let Some((id, range)) = payload.as_section() else { continue };
        match (&payload, &placed) {
            (Payload::ImportSection(imports), _) => {
                for import in imports.clone().into_imports() {
                    if matches!(import?.ty, wasmparser::TypeRef::Memory(_)) {
                        return Ok(None);
                    }
                }
                module.section(&RawSection { id, data: within(wasm, range)? });
            }
            (Payload::MemorySection(memories), _) => {
                let mut section = MemorySection::new();
                for (index, memory) in memories.clone().into_iter().enumerate() {
                    let memory = memory?;
                    let mut pages = 0;
                    if index == 0 {
                        if memory.memory64 || memory.shared || memory.page_size_log2.is_some() {
                            return Err(AssetError::UnsupportedMemory);
                        }
                        let (table, contents) = lay_out(memory.initial, assets)?;
                        pages = (table.memory_bytes / PAGE_BYTES) as u64;
                        placed = Some((table, contents));
                    }
                    let maximum = ADDRESS_SPACE / PAGE_BYTES as u64;
                    section.memory(MemoryType {
                        minimum: memory.initial.saturating_add(pages),
                        maximum: memory.maximum.map(|max| max.saturating_add(pages).min(maximum)),
                        memory64: memory.memory64,
                        shared: memory.shared,
                        page_size_log2: memory.page_size_log2,
                    });
                }
                module.section(&section);
            }
            (Payload::DataCountSection { count, .. }, Some((_, contents))) => {
                let count = count.saturating_add(contents.len() as u32);
                module.section(&wasm_encoder::DataCountSection { count });
            }
            // Written at the end with the new segments. The order is kept: only custom sections follow.
            (Payload::DataSection(segments), Some(_)) => {
                for segment in segments.clone() {
                    data.raw(within(wasm, segment?.range)?);
                }
            }
            _ => drop(module.section(&RawSection { id, data: within(wasm, range)? })),
        }
    }
    let Some((table, contents)) = placed else { return Ok(None) };
    for (address, content) in &contents {
        add_segment(&mut data, *address, content);
    }
    module.section(&data);
    Ok(Some((module.finish(), table)))
}
