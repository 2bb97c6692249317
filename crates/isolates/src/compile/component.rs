//! Compiling a component with its assets.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wasmtime::Engine;

use super::{CodeKind, CompileError, compile};
use crate::assets::{self, AssetTable, PlainAsset};

/// A component, and the assets for its memory.
#[derive(Serialize, Deserialize)]
pub(crate) struct ComponentTask {
    pub wasm: Bytes,
    pub assets: Vec<PlainAsset>,
}

/// A compiled component.
#[derive(Serialize, Deserialize)]
pub(crate) struct CompiledComponent {
    pub native: Bytes,
    /// The addresses of its assets; none if it reads no assets.
    pub assets: Option<AssetTable>,
}

impl ComponentTask {
    /// Adds the assets and compiles it, in this process. Blocks.
    pub fn run(self, engine: &Engine) -> Result<CompiledComponent, CompileError> {
        let Self { wasm, assets } = self;
        if assets.is_empty() || !assets::reads_assets(&wasm) {
            let native = compile(engine, CodeKind::Component, &wasm)?.into();
            return Ok(CompiledComponent { native, assets: None });
        }
        let (wasm, table) = assets::add_to_component(&wasm, &assets)?;
        let native = compile(engine, CodeKind::Component, &wasm)?.into();
        Ok(CompiledComponent { native, assets: Some(table) })
    }
}
