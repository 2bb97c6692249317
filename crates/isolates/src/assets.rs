//! Files of an app that lie in the memory of its functions.
//!
//! Each is one more part of the memory that an instance starts with: the system maps it from the compiled code's file,
//! once for all instances, and copies a page only where an instance writes to it. So a start takes no longer for it, and
//! what nobody reads takes no memory.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wasm_encoder::{Component, DataSection, MemorySection, MemoryType, Module, RawSection};
use wasmparser::{Parser, Payload};

use crate::memory_image::{PAGE_BYTES, add_segment};

/// What a component imports that reads assets.
const INTERFACE: &str = "edgefaas:function/assets@";
/// Each asset begins at a multiple of this: enough for all types of numbers and vectors of them.
const ALIGNMENT: u64 = 64;
/// So many are listed for somebody who asks for another one.
const SHOWN_NAMES: usize = 10;
/// The end of what 32-bit addresses reach.
const ADDRESS_SPACE: u64 = 1 << 32;

/// A file of an app.
#[derive(Clone)]
pub struct Asset {
    /// Its name for functions.
    pub name: String,
    /// A digest of its content.
    pub digest: [u8; 32],
    /// Its size in bytes.
    pub bytes: u64,
    /// Gets the content, which is asked for only where code is compiled; or says why not.
    pub read: ReadAsset,
}

/// See [`Asset::read`]. Blocks.
pub type ReadAsset = Arc<dyn Fn() -> Result<Bytes, String> + Send + Sync>;

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

/// Gets the contents of assets. Blocks.
pub(crate) fn read_all(assets: &[Asset]) -> Result<Vec<PlainAsset>, AssetError> {
    let read = |asset: &Asset| {
        let unreadable = |reason: String| AssetError::Unreadable { name: asset.name.clone(), reason };
        let content = (asset.read)().map_err(unreadable)?;
        if content.len() as u64 != asset.bytes {
            return Err(unreadable(format!("it has {} bytes and not {}", content.len(), asset.bytes)));
        }
        Ok(PlainAsset { name: asset.name.clone(), content })
    };
    assets.iter().map(read).collect()
}

/// Where the assets of a function lie in its memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AssetTable {
    /// By name.
    places: Vec<Place>,
    /// What they add to the memory of an instance: whole pages.
    pub memory_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    name: String,
    address: u32,
    bytes: u32,
}

/// Assets that can't be given to a function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AssetError {
    #[error("the assets and the function's own memory have more than 4 GiB together")]
    TooLarge,
    #[error("the asset {name} cannot be read: {reason}")]
    Unreadable { name: String, reason: String },
    #[error("assets cannot be added to it: {0}")]
    Component(String),
}

impl AssetTable {
    /// Places assets one after another from a page on.
    fn new(first_page: u64, assets: &[PlainAsset]) -> Result<Self, AssetError> {
        let start = first_page.saturating_mul(PAGE_BYTES as u64);
        let mut end = start;
        let mut places = Vec::with_capacity(assets.len());
        for asset in assets {
            let address = end.next_multiple_of(ALIGNMENT);
            end = address.saturating_add(asset.content.len() as u64);
            let (Ok(address), Ok(bytes), true) =
                (u32::try_from(address), u32::try_from(asset.content.len()), end < ADDRESS_SPACE)
            else {
                return Err(AssetError::TooLarge);
            };
            places.push(Place { name: asset.name.clone(), address, bytes });
        }
        places.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { places, memory_bytes: (end - start).next_multiple_of(PAGE_BYTES as u64) as usize })
    }

    /// Address and length of an asset.
    pub fn find(&self, name: &str) -> Option<(u32, u32)> {
        let index = self.places.binary_search_by(|place| place.name.as_str().cmp(name)).ok()?;
        let place = &self.places[index];
        Some((place.address, place.bytes))
    }

    /// Why there is no asset of that name.
    pub fn describe_missing(&self, name: &str) -> String {
        let names: Vec<_> = self.places.iter().take(SHOWN_NAMES).map(|place| place.name.as_str()).collect();
        let more = if self.places.len() > SHOWN_NAMES { ", and others" } else { "" };
        match names.as_slice() {
            [] => format!(
                "there is no asset `{name}`: `assets` of the app's manifest names none, or the function's text does not \
                 have the word `asset`"
            ),
            names => format!("there is no asset `{name}`; there are `{}`{more}", names.join("`, `")),
        }
    }
}

/// What a program's code depends on: names and contents.
pub(crate) fn identity(assets: &[Asset]) -> Vec<u8> {
    let mut identity = Vec::new();
    for asset in assets {
        identity.extend((asset.name.len() as u64).to_le_bytes());
        identity.extend(asset.name.as_bytes());
        identity.extend(asset.digest);
    }
    identity
}

/// Assets in a memory of `pages` pages: where they are, and their contents by address.
pub(crate) fn place(
    pages: u64,
    assets: &[PlainAsset],
) -> Result<(AssetTable, Vec<(u32, Bytes)>), AssetError> {
    let table = AssetTable::new(pages, assets)?;
    let place = |asset: &PlainAsset| Some((table.find(&asset.name)?.0, asset.content.clone()));
    let contents = assets.iter().filter_map(place).collect();
    Ok((table, contents))
}

/// Whether a component of the world in `wit/` reads assets.
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
            // The compiler says what is wrong.
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
    let invalid = |error: wasmparser::BinaryReaderError| AssetError::Component(error.to_string());
    let mut component = Component::new();
    let mut table = None;
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(invalid)?;
        if depth == 0
            && let Some((id, range)) = payload.as_section()
        {
            let data = within(wasm, range)?;
            let changed = match payload {
                Payload::ModuleSection { .. } if table.is_none() => add_to_module(data, assets)?,
                _ => None,
            };
            match changed {
                Some((module, places)) => {
                    table = Some(places);
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
        None => Err(AssetError::Component("no module of it has a memory of its own".into())),
    }
}

/// A section of `wasm`, whose header may say that it is longer than the file.
fn within(wasm: &[u8], range: Range<usize>) -> Result<&[u8], AssetError> {
    wasm.get(range).ok_or_else(|| AssetError::Component("a section is longer than the file".into()))
}

/// The module with assets behind its memory; nothing if it has none of its own, or another's beside it.
fn add_to_module(wasm: &[u8], assets: &[PlainAsset]) -> Result<Option<(Vec<u8>, AssetTable)>, AssetError> {
    let invalid = |error: wasmparser::BinaryReaderError| AssetError::Component(error.to_string());
    let mut module = Module::new();
    let mut placed = None;
    let mut data = DataSection::new();
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(invalid)?;
        let Some((id, range)) = payload.as_section() else { continue };
        match (&payload, &placed) {
            (Payload::ImportSection(imports), _) => {
                for import in imports.clone().into_imports() {
                    if matches!(import.map_err(invalid)?.ty, wasmparser::TypeRef::Memory(_)) {
                        return Ok(None);
                    }
                }
                module.section(&RawSection { id, data: within(wasm, range)? });
            }
            (Payload::MemorySection(memories), _) => {
                let mut section = MemorySection::new();
                for (index, memory) in memories.clone().into_iter().enumerate() {
                    let memory = memory.map_err(invalid)?;
                    let mut pages = 0;
                    if index == 0 {
                        if memory.memory64 || memory.shared || memory.page_size_log2.is_some() {
                            return Err(AssetError::Component(
                                "its memory is not a plain 32-bit one".into(),
                            ));
                        }
                        let (table, contents) = place(memory.initial, assets)?;
                        pages = (table.memory_bytes / PAGE_BYTES) as u64;
                        placed = Some((table, contents));
                    }
                    let maximum = ADDRESS_SPACE / PAGE_BYTES as u64;
                    section.memory(MemoryType {
                        minimum: memory.initial.saturating_add(pages),
                        maximum: memory.maximum.map(|most| most.saturating_add(pages).min(maximum)),
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
            // It is the last one that means anything; where it is missing, there is one now.
            (Payload::DataSection(segments), Some(_)) => {
                for segment in segments.clone() {
                    data.raw(within(wasm, segment.map_err(invalid)?.range)?);
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
