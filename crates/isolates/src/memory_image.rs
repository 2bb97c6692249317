//! Memory images: the bytes that an instance's memory starts with, as a wasm module.

use bytes::Bytes;
use wasm_encoder::{
    ConstExpr, DataSection, Encode, EntityType, ExportKind, ExportSection, ImportSection, MemorySection,
    MemoryType, Module, TypeSection, ValType,
};

/// Bytes of a wasm page.
pub const PAGE_BYTES: usize = 64 << 10;

/// Runs of zeros of at least this length are left out of a module.
const ZERO_RUN_BYTES: usize = 1024;

/// A host function that an image's module imports and exports again under the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOn {
    /// The module it is imported from.
    pub module: String,
    /// Name of the function, as import and as export.
    pub name: String,
    /// The types of its parameters.
    pub params: Vec<ValType>,
    /// The types of its results.
    pub results: Vec<ValType>,
}

/// The content of a linear memory.
pub struct MemoryImage(Vec<u8>);

impl MemoryImage {
    /// An image of `bytes`, which begin at address 0.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Size of the image, in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Its bytes, from address 0 on.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// A module without code that exports `memory` filled with the image, and the functions that it passes on.
    ///
    /// Passing functions on lets the host link them once, when the module is made, and not at each start.
    /// `assets` lie behind the image, at their addresses, and take `asset_bytes`, whole pages.
    pub fn to_module(
        &self,
        functions: &[PassedOn],
        assets: &[(u32, Bytes)],
        asset_bytes: usize,
    ) -> Vec<u8> {
        let image = &self.0;
        let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
        let mut exports = ExportSection::new();
        for (index, function) in (0..).zip(functions) {
            types.ty().function(function.params.iter().copied(), function.results.iter().copied());
            imports.import(&function.module, &function.name, EntityType::Function(index));
            exports.export(&function.name, ExportKind::Func, index);
        }
        exports.export("memory", ExportKind::Memory, 0);
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: (image.len().div_ceil(PAGE_BYTES) + asset_bytes / PAGE_BYTES) as u64,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        let mut data = DataSection::new();
        for range in filled(image) {
            add_segment(&mut data, range.start as u32, &image[range]);
        }
        for (address, content) in assets {
            add_segment(&mut data, *address, content);
        }
        let mut module = Module::new();
        module.section(&types).section(&imports).section(&memories).section(&exports).section(&data);
        module.finish()
    }

    /// The bytes of the processor's pages that are not all zeros.
    pub fn filled_bytes(&self) -> usize {
        const PROCESSOR_PAGE_BYTES: usize = 4 << 10;
        let pages = self.0.chunks(PROCESSOR_PAGE_BYTES);
        pages.filter(|page| !is_zero(page)).map(<[u8]>::len).sum()
    }
}

/// Adds the content at `address` of memory 0. The encoder's own method takes bytes one by one, megabytes of them here.
pub fn add_segment(data: &mut DataSection, address: u32, content: &[u8]) {
    let mut segment = Vec::with_capacity(content.len() + 16);
    // Active, memory 0 (WebAssembly core specification, 5.5.14).
    segment.push(0);
    ConstExpr::i32_const(address.cast_signed()).encode(&mut segment);
    content.encode(&mut segment);
    data.raw(&segment);
}

/// True if all bytes are zeros; compares whole words.
pub fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

/// The ranges of `image` that are not zeros. Short runs of zeros between two ranges belong to them.
fn filled(image: &[u8]) -> Vec<std::ops::Range<usize>> {
    const STEP: usize = 64;
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, chunk) in image.chunks(STEP).enumerate() {
        if is_zero(chunk) {
            continue;
        }
        let (start, end) = (index * STEP, index * STEP + chunk.len());
        match ranges.last_mut() {
            Some(last) if start - last.end < ZERO_RUN_BYTES => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_has_the_memory_of_its_image() {
        let mut image = vec![0; 3 * PAGE_BYTES];
        image[5] = 1;
        image[PAGE_BYTES..PAGE_BYTES + 3000].fill(7);
        *image.last_mut().unwrap() = 9;
        let wasm = MemoryImage::new(image.clone()).to_module(&[], &[], 0);
        assert!(wasm.len() < 4000, "zeros are left out");
        let engine = wasmtime::Engine::default();
        let module = wasmtime::Module::new(&engine, wasm).unwrap();
        let mut store = wasmtime::Store::new(&engine, ());
        let instance = wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        assert_eq!(memory.data(&store), image);
    }
}
