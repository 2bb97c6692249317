//! Snapshots: memories after top-level code, linked as modules that isolates start from.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wasmtime::{Extern, Instance, InstancePre, Memory, Module, ModuleExport, Store};

use super::error::{PrepareError, PrepareFault};
use super::stack::Files;
use super::state::State;
use crate::LogLevel;
use crate::assets::AssetTable;
use crate::image_modules::ImageModules;

/// A memory image as a module, linked and ready to be instantiated.
pub(super) struct Snapshot {
    pub module: InstancePre<State>,
    pub memory: ModuleExport,
    /// The engine's imports, in their order.
    pub imports: Vec<ModuleExport>,
    /// The address of the buffer for small invocations.
    pub input: u32,
    pub memory_bytes: usize,
}

/// Facts about the memory of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryFacts {
    /// The address of the buffer for small invocations.
    pub input: u32,
    pub memory_bytes: usize,
    pub filled_bytes: usize,
}

/// The snapshot of the engine with its prelude and no user code.
pub(super) struct Base {
    pub snapshot: Snapshot,
    /// The address in its memory where the stack begins.
    pub stack_top: usize,
    /// Compiles the snapshots of functions.
    pub images: Arc<ImageModules>,
}

/// The version of [`SnapshotMetadata`], [`BaseMetadata`] and the transpiler's output, with which snapshots are cached.
pub(super) const FORMAT: (&str, u32) = (env!("CARGO_PKG_VERSION"), 5);

/// The kind of functions' snapshots in the cache: the first part of their keys.
pub(super) const FUNCTION_KEY: &[u8] = b"picture";

/// Metadata of a function's snapshot, stored with it.
#[derive(Serialize, Deserialize)]
pub(super) struct SnapshotMetadata {
    pub input: u32,
    pub memory_bytes: usize,
    pub filled_bytes: usize,
    pub lines: Vec<(LogLevel, String)>,
    pub files: Files,
    pub assets: AssetTable,
}

/// Metadata of the engine's own snapshot, stored with it.
#[derive(Serialize, Deserialize)]
pub(super) struct BaseMetadata {
    pub input: u32,
    pub memory_bytes: usize,
    pub filled_bytes: usize,
    pub stack_top: usize,
}

impl SnapshotMetadata {
    pub fn encode(&self) -> Result<Vec<u8>, PrepareError> {
        Ok(postcard::to_allocvec(self).map_err(PrepareFault::codec)?)
    }
}

impl Snapshot {
    /// Instantiates the engine's `code` on a copy of the memory.
    pub async fn start(
        &self,
        code: &Module,
        store: &mut Store<State>,
    ) -> wasmtime::Result<(Instance, Memory)> {
        let instance = self.module.instantiate_async(&mut *store).await?;
        let memory = instance.get_module_export(&mut *store, &self.memory);
        let Some(memory) = memory.and_then(|export| export.into_memory()) else {
            wasmtime::bail!("the snapshot lacks its memory");
        };
        store.data_mut().memory = Some(memory);
        let imports = self.externs(instance, store)?;
        Ok((Instance::new_async(&mut *store, code, &imports).await?, memory))
    }

    /// The engine's imports from an instance of the module.
    fn externs(&self, instance: Instance, store: &mut Store<State>) -> wasmtime::Result<Vec<Extern>> {
        let found = self.imports.iter().map(|export| instance.get_module_export(&mut *store, export));
        found
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| wasmtime::format_err!("the snapshot lacks an export"))
    }
}
